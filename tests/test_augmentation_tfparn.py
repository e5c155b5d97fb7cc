"""The paper's three algorithms, and the filters below them, against SciPy and closed forms."""

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import RandomButterworth, RandomFIR, TFPARNAugment, WhiteNoise
from asvspoof_cm.augmentation.filters import (
    fir_filter,
    limit_peak,
    polynomial_filter,
    sos_filter,
)
from asvspoof_cm.augmentation.tfparn import butterworth_sos


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(*shape, dtype=torch.float64, seed=0):
    return 0.2 * torch.randn(*shape, generator=seeded(seed), dtype=dtype)


@pytest.mark.parametrize("n_samples", [1, 7, 1000, 64000])
@pytest.mark.parametrize(("n_taps", "delay"), [(1, 0), (2, 1), (31, 0), (491, 245), (5000, 4999)])
def test_fir_is_convolution(n_samples, n_taps, delay):
    x, taps = noise(3, n_samples), noise(3, n_taps, seed=1)
    pairs = zip(x.numpy(), taps.numpy(), strict=True)
    expected = [np.convolve(row, h)[delay : delay + n_samples] for row, h in pairs]
    assert np.abs(fir_filter(x, taps, delay).numpy() - expected).max() < 1e-12
    single = fir_filter(x.float(), taps.float(), delay).numpy()
    assert np.abs(single - expected).max() < 1e-5 * np.sqrt(n_taps)


def test_polynomial_filter_sums_filtered_powers():
    x, taps = noise(2, 20000), noise(2, 4, 101, seed=1)
    expected = sum(fir_filter(x ** (i + 1), taps[:, i], 50) for i in range(4))
    assert (polynomial_filter(x, taps, 50) - expected).abs().max() < 1e-12


def test_fir_and_tanh_are_the_papers_formula():
    augment, x = RandomFIR(), noise(60, 500)
    drawn = augment.draw(60, 500, seeded())
    output = augment.apply(x, drawn).numpy()
    for row, taps, alpha, found in zip(x, drawn["taps"], drawn["alpha"], output, strict=True):
        expected = scipy.signal.convolve(row, taps[taps != 0], mode="same")
        if alpha > 0:
            expected = np.tanh(float(alpha) * expected)
        assert np.abs(found - expected).max() < 1e-12


def test_fir_draw():
    drawn = RandomFIR().draw(4000, 64000, seeded())
    n_taps = (drawn["taps"] != 0).sum(dim=1)
    assert np.allclose(np.bincount(n_taps, minlength=15)[5:] / 4000, 1 / 10, atol=0.02)
    assert (int(n_taps.min()), int(n_taps.max())) == (5, 14)
    assert torch.allclose(drawn["taps"].abs().sum(dim=1), torch.ones(4000, dtype=torch.float64))
    bent = drawn["alpha"] > 0
    assert abs(bent.double().mean() - 0.5) < 0.03
    assert drawn["alpha"][bent].min() >= 0.1
    assert drawn["alpha"].max() <= 0.5
    assert abs(drawn["alpha"][bent].mean() - 0.3) < 0.01


@pytest.mark.parametrize("kind", ["lowpass", "highpass", "bandpass"])
@pytest.mark.parametrize("order", [1, 2, 5, 6])
def test_butterworth_gain_is_the_analytic_one(kind, order):
    low, high, rate = 300.0, 3000.0, 16000
    sos = butterworth_sos(kind, low, high, order).numpy()
    hz, response = scipy.signal.sosfreqz(sos, 4096, fs=rate)
    warped, low, high = (np.tan(np.pi * f / rate) for f in (hz[1:], low, high))
    ratio = {
        "lowpass": warped / high,
        "highpass": low / warped,
        "bandpass": (warped**2 - low * high) / (warped * (high - low)),
    }[kind]
    assert np.abs(np.abs(response[1:]) ** 2 - 1 / (1 + ratio ** (2 * order))).max() < 1e-9


def test_butterworth_rows_are_filtfilt_of_the_drawn_filters():
    augment, x = RandomButterworth(), noise(40, 3000)
    drawn = augment.draw(40, 3000, seeded())
    output = augment.apply(x, drawn).numpy()
    for i, choice in enumerate(drawn["choice"].tolist()):
        kind, of_kind = augment.augmentations[choice].kind, drawn["branches"][choice]
        low, high = float(of_kind["low_hz"][i]), float(of_kind["high_hz"][i])
        cut = {"lowpass": high, "highpass": low, "bandpass": (low, high)}[kind]
        b, a = scipy.signal.butter(4, cut, kind, fs=16000)
        assert np.abs(output[i] - scipy.signal.filtfilt(b, a, x[i])).max() < 1e-6


def test_butterworth_draw():
    augment = RandomButterworth()
    drawn = augment.draw(3000, 64000, seeded())
    assert np.allclose(np.bincount(drawn["choice"]) / 3000, 1 / 3, atol=0.035)
    kinds = [part.kind for part in augment.augmentations]
    assert kinds == ["lowpass", "highpass", "bandpass"]
    low_pass, high_pass, band_pass = drawn["branches"]
    for found, low, high in (
        (low_pass["high_hz"], 1000, 4000),
        (high_pass["low_hz"], 200, 1000),
        (band_pass["low_hz"], 200, 1000),
        (band_pass["high_hz"], 3000, 6000),
    ):
        assert low <= found.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < found.max() <= high


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-9)], ids=str
)
@pytest.mark.parametrize("n_samples", [1, 300, 64000])
def test_sos_filter_is_sosfilt(n_samples, dtype, tolerance):
    rng = np.random.default_rng(0)
    sos = torch.stack(
        [
            butterworth_sos("bandpass", rng.uniform(20, 1000), rng.uniform(3000, 7500), 1 + k % 8)
            for k in range(0, 60, 8)
        ]
    )
    x = noise(len(sos), n_samples, dtype=dtype)
    x = x / x.abs().amax(dim=1, keepdim=True)
    output = sos_filter(x, sos).double().numpy()
    for row, sections, filtered in zip(x.double(), sos, output, strict=True):
        expected = scipy.signal.sosfilt(sections.numpy(), row.numpy())
        assert np.abs(filtered - expected).max() < tolerance


def test_noise_is_white_gaussian_and_new_in_each_row():
    x = torch.ones(20, 64000)
    added = (WhiteNoise()(x, generator=seeded()) - x).double()
    added /= added.std(dim=1, keepdim=True)
    spectrum = torch.fft.rfft(added).abs().square().mean(0)[1:-1] / 64000
    bands = spectrum[: 31 * 1032].reshape(31, -1).mean(1)
    assert (bands - 1).abs().max() < 0.05
    assert abs(float(added.pow(4).mean()) - 3) < 0.05
    correlation = added @ added.T / 64000
    assert (correlation - torch.eye(20)).abs().max() < 0.03


def test_limit_peak():
    x = noise(2, 100) * torch.tensor([[0.1], [100.0]])
    y = limit_peak(x)
    assert torch.equal(y[0], x[0])
    assert y[1].abs().max() == 1


def test_one_of_three_with_equal_chance():
    drawn = TFPARNAugment(p=1.0).draw(3000, 100, seeded())
    names = [branch["of"] for branch in drawn["branches"]]
    assert names == ["RandomFIR", "RandomButterworth", "WhiteNoise"]
    assert np.allclose(np.bincount(drawn["choice"]) / 3000, 1 / 3, atol=0.035)


def test_the_authors_ranges_are_the_default():
    assert repr(TFPARNAugment.authors()) == repr(TFPARNAugment())
