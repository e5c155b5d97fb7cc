"""The log-Mel spectrogram against torchaudio, the sinc filterbank against its definition."""

import math

import numpy as np
import pytest
import torch

from asvspoof_cm.frontends import LogMel, SincConv, mel_filterbank


def test_mel_power_equals_torchaudio(golden, reference_wave):
    # torchaudio.transforms.MelSpectrogram(16000, n_fft=1024, hop_length=160, n_mels=160), 2.11.0.
    expected = golden("logmel")["mel_power"]
    power = LogMel(floor=1e-30)(torch.from_numpy(reference_wave)).exp()
    assert list(power.shape) == expected["shape"]
    assert power.double().sum().item() == pytest.approx(expected["sum"], rel=1e-5)
    largest = max(expected["points"].values())
    for position, value in expected["points"].items():
        band, frame = map(int, position.split(","))
        # Points 110 dB below the loudest are rounding noise of the float32 FFT.
        assert power[band, frame].item() == pytest.approx(value, rel=1e-4, abs=1e-11 * largest)


def test_filterbank_equals_torchaudio(golden):
    expected = golden("logmel")["fbank"]
    filters = mel_filterbank()
    assert list(filters.T.shape) == expected["shape"]
    np.testing.assert_allclose(filters.sum(dim=1), expected["col_sums"], rtol=1e-4, atol=1e-5)


def test_live_torchaudio(reference_wave):
    try:
        import torchaudio
    except (ImportError, OSError):
        pytest.skip("torchaudio does not import here")
    wave = torch.from_numpy(reference_wave)
    theirs = torchaudio.transforms.MelSpectrogram(16000, n_fft=1024, hop_length=160, n_mels=160)
    expected = theirs(wave)
    ours = LogMel(floor=1e-30)(wave).exp()
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(("n_samples", "n_frames"), [(1024, 7), (16000, 101), (64000, 401)])
def test_shapes(n_samples, n_frames):
    assert LogMel()(torch.zeros(n_samples)).shape == (160, n_frames)
    assert LogMel()(torch.zeros(2, 3, n_samples)).shape == (2, 3, 160, n_frames)


def test_silence_is_the_floor():
    assert torch.allclose(LogMel(floor=1e-6)(torch.zeros(4000)), torch.tensor(math.log(1e-6)))


def test_half_precision_is_computed_in_float32(reference_wave):
    wave = torch.from_numpy(reference_wave).bfloat16()
    features = LogMel()(wave)
    assert features.dtype == torch.float32
    assert torch.equal(features, LogMel()(wave.float()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(LogMel()(wave.float()), features)


def test_log_mel_is_differentiable():
    wave = torch.randn(2000, dtype=torch.float64, requires_grad=True)
    LogMel(n_fft=256, n_mels=20).double()(wave).sum().backward()
    assert torch.isfinite(wave.grad).all()


def test_constants_are_not_in_the_state_dict():
    assert not LogMel().state_dict()
    assert not SincConv(20, 1024).state_dict()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LogMel()(torch.zeros(1023)), r"one window \(1024 samples\) long; got 1023"),
        (lambda: LogMel(floor=0), "`floor` must be positive"),
        (lambda: mel_filterbank(160, 256), "bands are too many .*: 26 hold no FFT bin"),
        (lambda: mel_filterbank(f_min=9000), "0 ≤ f_min < f_max"),
        (lambda: mel_filterbank(20, 512, f_max=9000, scale="linear"), "0 ≤ f_min < f_max"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def band_edges(n_filters):
    """Edges in Hz, equally spaced in Mel from 0 to 8000 Hz."""
    mels = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), n_filters + 1)
    return 700 * (10 ** (mels / 2595) - 1)


def test_sinc_filters_by_their_definition():
    edges, filters = band_edges(70), SincConv(70, 128).filters.numpy()
    n = np.arange(-64, 65)
    for i in (0, 33, 69):
        low, high = edges[i], edges[i + 1]
        band = 2 * high / 16000 * np.sinc(2 * high * n / 16000)
        band -= 2 * low / 16000 * np.sinc(2 * low * n / 16000)
        np.testing.assert_allclose(filters[i], np.hamming(129) * band, atol=1e-7)


def test_bands_between_two_frequencies():
    filters = mel_filterbank(20, 512, f_min=1000, f_max=4000, scale="linear")
    heard = filters.sum(dim=0).nonzero()[:, 0] * 16000 / 512
    assert 1000 < heard[0] < 1100
    assert 3900 < heard[-1] < 4000
    features = LogMel(scale="linear", n_mels=20, f_min=1000, f_max=4000)(torch.randn(4000))
    assert features.shape == (20, 26)


def test_filters_pass_their_band_only():
    edges = band_edges(20)
    response = torch.fft.rfft(SincConv(20, 1025).filters, 16000).abs()
    for i in (2, 10, 18):
        centre = round((edges[i] + edges[i + 1]) / 2)
        assert response[i, centre].item() == pytest.approx(1, abs=0.01)
        assert response[i, round(edges[i + 1]) + 200 :].max() < 0.01


def test_even_kernels_are_raised_by_one():
    assert SincConv(70, 128)(torch.zeros(1, 200)).shape == (1, 70, 72)
