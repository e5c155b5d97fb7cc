"""The random equalizer against SciPy's view of its response."""

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import RandomEqualizer
from asvspoof_cm.augmentation.equalizer import equalize


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_response_runs_through_the_points():
    x = torch.randn(1, 160000, generator=seeded(), dtype=torch.float64)
    gain_db = torch.tensor([[0.0, 12.0, -6.0, 3.0]], dtype=torch.float64)
    y = equalize(x, gain_db)
    frequency, cross = scipy.signal.csd(x[0], y[0], fs=16000, nperseg=4096)
    _, power = scipy.signal.welch(x[0], fs=16000, nperseg=4096)
    response = cross / power
    corners = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 4) / 2595) - 1)
    found_db = [
        20 * np.log10(np.abs(response[np.argmin(np.abs(frequency - f))])) for f in corners[1:3]
    ]
    assert found_db[0] - found_db[1] == pytest.approx(18, abs=0.5)
    assert np.abs(np.angle(response[10:-10])).max() < 0.05  # no delay


def test_power_is_kept_and_silence_stays():
    x = torch.randn(3, 8000, generator=seeded(), dtype=torch.float64)
    x[1] = 0
    y = RandomEqualizer()(x, generator=seeded())
    assert torch.allclose(y.square().sum(dim=1), x.square().sum(dim=1))
    assert torch.equal(y[1], x[1])


def test_gains_must_fit_the_rows():
    with pytest.raises(ValueError, match=r"`gain_db` must have shape \(2, n_points\).*\(3, 4\)"):
        equalize(torch.ones(2, 100), torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_points": 1}, "`n_points` must be at least 2; got 1"),
        ({"gain_db": (3.0, -3.0)}, r"`gain_db` must be \(low, high\)"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        RandomEqualizer(**options)
