"""RawBoost against its published description: distributions, filters (SciPy's), compositions."""

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import (
    ConvolutiveNoise,
    ImpulsiveNoise,
    RawBoost,
    StationaryNoise,
)
from asvspoof_cm.augmentation.rawboost import draw_notches, notch_taps

N_DRAWS = 2500


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def waves(n_rows, n_samples, dtype=torch.float64):
    x = torch.randn(n_rows, n_samples, generator=seeded(9), dtype=dtype)
    return 0.9 * x / x.abs().amax(dim=1, keepdim=True)


def replay(augment, waveform, **values):
    """Apply an augmentation with values of our own."""
    return augment.apply(waveform, {**augment.draw(len(waveform), waveform.shape[1]), **values})


def cascade(centre_hz, width_hz, n_taps, gain_db):
    """The published design with SciPy's window method: firwin band-stops, convolved, scaled."""
    taps = np.ones(1)
    for centre, width, n in zip(centre_hz, width_hz, n_taps, strict=True):
        edges = [max(centre - width / 2, 1e-3), min(centre + width / 2, 8000 - 1e-3)]
        taps = np.convolve(taps, scipy.signal.firwin(int(n), edges, fs=16000))
    _, response = scipy.signal.freqz(taps, fs=16000)
    return 10 ** (gain_db / 20) * taps / np.abs(response).max()


def is_uniform(values, low, high):
    values = np.sort((np.asarray(values).ravel() - low) / (high - low))
    distance = np.abs(values - (np.arange(len(values)) + 0.5) / len(values)).max()
    return values[0] >= 0 and values[-1] <= 1 and distance < 1.95 / np.sqrt(len(values))


def test_draws_follow_the_published_ranges():
    drawn = ConvolutiveNoise().draw(N_DRAWS, 64000, seeded())
    assert drawn["centre_hz"].shape == (N_DRAWS, 5, 5)
    assert is_uniform(drawn["centre_hz"], 20, 8000)
    assert is_uniform(drawn["width_hz"], 100, 1000)
    odd = np.arange(11, 100, 2)
    values, counts = np.unique(drawn["n_taps"], return_counts=True)
    assert values.tolist() == odd.tolist()
    assert np.allclose(counts * len(odd) / drawn["n_taps"].numel(), 1, atol=0.15)
    total = drawn["n_taps"].sum(dim=-1) - 4
    assert 51 <= int(total.min()) <= int(total.max()) <= 491
    assert abs(total.double().mean() - (5 * 54 + 1)) < 2
    assert (drawn["gain_db"][:, 0] == 0).all()
    assert is_uniform(drawn["gain_db"][:, 1:], -20, -5)
    assert is_uniform(StationaryNoise().draw(N_DRAWS, 64000, seeded())["snr_db"], 10, 40)
    assert is_uniform(ImpulsiveNoise().draw(N_DRAWS, 64000, seeded())["share"], 0, 0.1)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=str
)
def test_filters_equal_scipys(dtype, tolerance):
    drawn = draw_notches(60, 5, seeded())
    taps = notch_taps(drawn, torch.zeros(1, dtype=dtype)).double().numpy()
    worst = 0.0
    for i, j in np.ndindex(60, 5):
        rows = (drawn["centre_hz"][i, j], drawn["width_hz"][i, j], drawn["n_taps"][i, j])
        expected = cascade(*(row.numpy() for row in rows), float(drawn["gain_db"][i, j]))
        margin = (taps.shape[-1] - len(expected)) // 2
        worst = max(worst, np.abs(taps[i, j] - np.pad(expected, margin)).max())
    assert worst < tolerance


def test_lnl_is_the_sum_of_filtered_powers():
    augment, x = ConvolutiveNoise(), waves(4, 5000)
    drawn = augment.draw(4, 5000, seeded())
    output = augment.apply(x, drawn).numpy()
    for i, row in enumerate(x.numpy()):
        expected = np.zeros(5000)
        for j in range(5):
            rows = (drawn["centre_hz"][i, j], drawn["width_hz"][i, j], drawn["n_taps"][i, j])
            taps = cascade(*(values.numpy() for values in rows), float(drawn["gain_db"][i, j]))
            expected += np.convolve(row ** (j + 1), taps, mode="same")
        expected -= expected.mean()
        expected /= max(1.0, np.abs(expected).max())
        assert np.abs(output[i] - expected).max() < 1e-10


def test_isd_changes_the_drawn_share_of_the_samples():
    n_samples = 1000
    x = waves(N_DRAWS, n_samples) * 0.2
    augment = ImpulsiveNoise()
    drawn = augment.draw(N_DRAWS, n_samples, seeded())
    changed = augment.apply(x, drawn) != x
    assert torch.equal(changed.sum(dim=1), (drawn["share"] * n_samples).long())
    assert abs(changed.double().mean() - 0.0495) < 0.0015  # the mean of ⌊U(0, 100)⌋ / 1000
    place = changed.double().mean(dim=0)
    assert is_uniform(changed.nonzero()[:, 1] + 0.5, 0, n_samples)
    assert place.std() < 1.2 * np.sqrt(0.05 * 0.95 / N_DRAWS)


def test_isd_factors_are_products_of_two_uniforms():
    x = waves(1, 400_000) * 0.2
    y = replay(ImpulsiveNoise(), x, share=torch.tensor([0.5]), seed=torch.tensor([3]))
    factor = ((y / x - 1) / 2)[y != x]
    # For the product of two U(-1, 1): variance 1/9, E|uv| = 1/4, fourth moment 1/25.
    assert factor.abs().max() <= 1
    assert abs(factor.mean()) < 0.003
    assert abs(factor.square().mean() - 1 / 9) < 0.002
    assert abs(factor.abs().mean() - 1 / 4) < 0.003
    assert abs(factor.pow(4).mean() - 1 / 25) < 0.001


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_isd_counts_at_any_share_and_is_limited(share):
    share = torch.tensor([share], dtype=torch.float64)
    x = waves(1, 2000) * 0.2
    assert int((replay(ImpulsiveNoise(), x, share=share) != x).sum()) == round(float(share) * 2000)
    assert replay(ImpulsiveNoise(), 5 * x, share=share).abs().max() <= 1 + 1e-12


def test_ssi_spectrum_is_that_of_the_filter():
    notch = draw_notches(1, 1, seeded())
    x = torch.ones(800, 8192, dtype=torch.float64)
    taps = notch_taps(notch, x)[:, 0]
    notch = {name: values.expand(800, *values.shape[1:]) for name, values in notch.items()}
    added = replay(StationaryNoise(snr_db=(20, 20)), x, notch=notch, seed=torch.arange(800)) - x
    _, measured = scipy.signal.welch(added.numpy(), nperseg=1024, window="blackman")
    _, response = scipy.signal.freqz(taps[0].numpy(), worN=513, include_nyquist=True)
    power = np.abs(response) ** 2
    measured = measured.mean(0)[2:-2]
    measured *= power[2:-2].sum() / measured.sum()
    passed = power[2:-2] > 0.05
    assert np.abs(measured / power[2:-2] - 1)[passed].max() < 0.15
    assert np.abs(measured - power[2:-2]).max() < 0.05


LNL, ISD, SSI = ConvolutiveNoise, ImpulsiveNoise, StationaryNoise


@pytest.mark.parametrize(
    ("algorithm", "stages"),
    [
        (1, [LNL]),
        (2, [ISD]),
        (3, [SSI]),
        (4, [LNL, ISD, SSI]),
        (5, [LNL, ISD]),
        (6, [LNL, SSI]),
        (7, [ISD, SSI]),
        (8, [LNL, ISD]),
    ],
)
def test_algorithms_are_made_of_the_three(algorithm, stages):
    x = waves(3, 2000)
    augment = RawBoost(algorithm)
    drawn = augment.draw(3, 2000, seeded())
    parts = drawn["branches"][0]["stages"]
    assert [part["of"] for part in parts] == [stage.__name__ for stage in stages]
    if algorithm == 8:
        expected = sum(stage().apply(x, part) for stage, part in zip(stages, parts, strict=True))
        expected = expected / expected.abs().amax(dim=1, keepdim=True).clamp_min(1)
    else:
        expected = x
        for stage, part in zip(stages, parts, strict=True):
            expected = stage().apply(expected, part)
    assert torch.equal(augment.apply(x, drawn), expected)
