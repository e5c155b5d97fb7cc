"""The random band limit against pure tones and SciPy's view of its response."""

import math

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import RandomBandLimit
from asvspoof_cm.augmentation.band import band_limit


def tone(frequency, n_samples=8000):
    return torch.sin(2 * math.pi * frequency * torch.arange(n_samples, dtype=torch.float64) / 16000)


def impulse_response(high_hz):
    impulse = torch.zeros(1001, dtype=torch.float64)
    impulse[500] = 1
    return band_limit(impulse, torch.tensor(high_hz, dtype=torch.float64))


@pytest.mark.parametrize("high_hz", [3000.0, 5512.5, 7500.0])
def test_response_is_flat_then_6_db_then_nothing(high_hz):
    around = [high_hz + offset for offset in (-200, 0, 200, 400)]
    _, response = scipy.signal.freqz(impulse_response(high_hz).numpy(), worN=around, fs=16000)
    below, at, above, far = 20 * np.log10(np.abs(response))
    assert below == pytest.approx(0, abs=0.01)
    assert at == pytest.approx(-6.02, abs=0.1)
    assert above < -60
    assert far < -70


def test_nothing_is_delayed():
    response = impulse_response(4000.0)
    assert response.argmax() == 500
    assert torch.allclose(response, response.flip(0), atol=1e-12)


def test_half_the_sample_rate_changes_nothing():
    x = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(band_limit(x, torch.full((2,), 8000.0)), x, atol=1e-9)


def test_each_row_has_its_own_limit():
    x = torch.stack([tone(5000), tone(5000)])
    kept, removed = band_limit(x, torch.tensor([6000.0, 4000.0]))[:, 200:-200]
    assert torch.allclose(kept, x[0, 200:-200], atol=1e-3)
    assert removed.abs().max() < 1e-3


def test_limits_are_drawn_from_the_range():
    drawn = RandomBandLimit(high_hz=(3500.0, 7000.0)).draw(
        1000, 8000, torch.Generator().manual_seed(0)
    )
    assert 3500 <= drawn["high_hz"].min() < 3600
    assert 6900 < drawn["high_hz"].max() <= 7000


def test_limits_beyond_half_the_sample_rate_are_refused():
    with pytest.raises(ValueError, match=r"`high_hz` must be .* <= 8000.*got \(3000.0, 9000.0\)"):
        RandomBandLimit(high_hz=(3000.0, 9000.0))


@pytest.mark.parametrize("high_hz", [-1.0, 8001.0, math.nan])
def test_a_frequency_that_can_not_be_is_refused(high_hz):
    with pytest.raises(ValueError, match="`high_hz` must lie from 0 to half the sample rate, 8000"):
        band_limit(torch.ones(1, 100), torch.tensor([high_hz]))
