"""Codecs: which there are, that they leave length, level and alignment, and that they code."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch

from asvspoof_cm import LogMel, load_audio
from asvspoof_cm.augmentation import (
    Codec,
    SpeechCoder,
    available_codecs,
    codecs as module,
    transcode,
)

AVAILABLE = available_codecs()
MORE_RATES = ("mp3", "vorbis", "opus", "amr-nb", "g726", "opus-voip", "aac")
LEVELS = [codec for codec in AVAILABLE if codec in MORE_RATES]
ROOT = Path(__file__).resolve().parents[1]
SPEECH = load_audio(ROOT / "examples" / "audio" / "human_asterisk_en.flac")[:32000]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def wave(n_samples, seed=0):
    """Noise with most of its energy below 2 kHz, so that 8 kHz keeps it; peak 0.5."""
    rng = np.random.default_rng(seed)
    x = np.convolve(rng.standard_normal(n_samples + 40), np.hanning(16), mode="same")[20:-20]
    return torch.from_numpy((0.5 * x / np.abs(x).max()).astype(np.float32))


def lag(x, y):
    """By how many samples `y` lags behind `x`, from the cross-correlation."""
    n_fft = 2 * len(x)
    spectrum = np.fft.rfft(y, n_fft) * np.fft.rfft(x, n_fft).conj()
    k = int(np.fft.irfft(spectrum, n_fft).argmax())
    return k if k < len(x) else k - n_fft


def snr_db(x, y):
    return float(10 * torch.log10(x.square().sum() / (y - x).square().sum()))


@pytest.mark.parametrize("codec", AVAILABLE)
def test_length_level_and_alignment(codec):
    x = SPEECH[:24001]
    for narrowband in (False, True):
        y = transcode(x, codec, narrowband=narrowband)
        assert y.shape == x.shape
        assert not torch.equal(y, x)
        assert abs(float(y.norm() / x.norm()) - 1) < 0.2
        # AMR shifts the phases of low frequencies: 5 samples are 0.3 ms.
        assert abs(lag(x.numpy(), y.numpy())) <= (5 if codec == "amr-nb" else 2)
        assert snr_db(x, y) > (1 if codec == "amr-nb" else 5)
    for n_samples in (1, 2, 159, 161):
        short = transcode(x[:n_samples], codec, narrowband=True)
        assert short.shape == (n_samples,)
        assert short.isfinite().all()


@pytest.mark.parametrize("codec", LEVELS)
def test_fewer_bits_are_worse(codec):
    spectrum = LogMel(n_mels=40, f_max=3400.0, floor=1e-4)
    coded = (transcode(SPEECH, codec, compression_level=level) for level in (0.0, 1.0))
    best, worst = ((spectrum(x) - spectrum(SPEECH)).abs().mean() for x in coded)
    assert best < worst
    for level in (0.5, 0.99995):
        y = transcode(SPEECH[:8000], codec, compression_level=level)
        assert y.isfinite().all()
        assert y.abs().max() > 0.01


def test_pyav_and_libsndfile_agree_on_g726():
    pytest.importorskip("av")
    ours = transcode(SPEECH, "g726", compression_level=1 / 3)  # 32 kbit/s, which is G.721
    assert snr_db(transcode(SPEECH, "g721", narrowband=True), ours) > 25


def test_without_pyav_its_codecs_are_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    module._works.cache_clear()
    module._delay.cache_clear()
    try:
        assert {"mu-law", "a-law", "gsm", "g721", "ima-adpcm"} <= set(available_codecs())
        assert "amr-nb" not in available_codecs()
    finally:
        module._works.cache_clear()
        module._delay.cache_clear()


def test_mu_law_is_the_g711_curve():
    """G.711, 14 bits: segments start at powers of two less the bias of 33, each of 16 steps."""
    x = torch.linspace(-0.9, 0.9, 4001)
    y = transcode(x, "mu-law")
    step = torch.exp2(torch.floor(torch.log2(x.abs() * 8192 + 33)) - 4) / 8192
    assert ((y - x).abs() <= step / 2 + 2 / 8192).all()
    assert len(y.unique()) > 230


def test_narrowband_removes_what_is_above_4_khz():
    t = torch.arange(16000) / 16000
    x = 0.3 * torch.sin(2 * torch.pi * 1000 * t) + 0.3 * torch.sin(2 * torch.pi * 6000 * t)
    spectrum = torch.fft.rfft(transcode(x, "mu-law", narrowband=True)).abs()
    assert spectrum[6000] < 0.01 * spectrum[1000]


def test_a_delaying_codec_is_moved_back(monkeypatch):
    plain = module._encode_decode

    def delaying(samples, *args):
        return np.concatenate([np.zeros(529, np.float32), plain(samples, *args)])

    expected = transcode(wave(16000), "a-law")
    monkeypatch.setattr(module, "_encode_decode", delaying)
    module._delay.cache_clear()
    try:
        assert torch.equal(transcode(wave(16000), "a-law"), expected)
    finally:
        module._delay.cache_clear()


def test_loud_waveforms_are_not_clipped():
    x = wave(8000)
    assert torch.allclose(transcode(8 * x, "a-law") / 8, transcode(2 * x, "a-law") / 2, atol=1e-6)
    assert snr_db(8 * x, transcode(8 * x, "a-law")) > 33


def test_draw_covers_the_codecs_and_levels():
    augment = Codec(codecs=("mu-law", "mp3"), narrowband_p=0.3, compression_level=(0.2, 0.8))
    drawn = augment.draw(2000, 100, seeded())
    assert abs(drawn["codec"].count("mp3") / 2000 - 0.5) < 0.05
    assert abs(drawn["narrowband"].double().mean() - 0.3) < 0.05
    assert 0.2 <= drawn["compression_level"].min() < drawn["compression_level"].max() <= 0.8


def test_rows_equal_single_calls():
    x = torch.stack([wave(4000, seed) for seed in range(4)])
    augment = Codec(codecs=("mu-law", "gsm"), narrowband_p=0.5)
    drawn = augment.draw(4, 4000, seeded())
    output = augment.apply(x, drawn)
    for i, codec in enumerate(drawn["codec"]):
        expected = transcode(x[i], codec, narrowband=bool(drawn["narrowband"][i]))
        assert torch.equal(output[i], expected)


def test_levinson_solves_the_normal_equations():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 400, generator=generator, dtype=torch.float64).cumsum(-1)
    r = torch.fft.irfft(torch.fft.rfft(x, 1024).abs().square())[..., :17]
    found = module.levinson(r).reshape(-1, 17).numpy()
    for a, row in zip(found, r.reshape(-1, 17).numpy(), strict=True):
        expected = scipy.linalg.solve_toeplitz(row[:-1], -row[1:])
        np.testing.assert_allclose(a[1:], expected, rtol=1e-6, atol=1e-8)
        assert a[0] == 1


def test_the_imitated_coder_is_aligned_and_better_with_more_pulses():
    speech = SPEECH
    ratios_db = []
    for n_pulses in (2, 8, 16, 32):
        coder = SpeechCoder(n_pulses=(n_pulses, n_pulses), strength=(1.0, 1.0))
        error = coder(speech) - speech
        ratios_db.append(10 * math.log10(speech.square().sum() / error.square().sum()))
    assert ratios_db == sorted(ratios_db)
    assert ratios_db[0] < 3
    assert ratios_db[3] > 6
    coded = SpeechCoder(n_pulses=(16, 16), strength=(1.0, 1.0))(speech)
    lag = torch.fft.irfft(torch.fft.rfft(coded, 65536) * torch.fft.rfft(speech, 65536).conj())
    assert lag.argmax() == 0
    assert coded.norm() / speech.norm() == pytest.approx(1, abs=0.25)
    assert torch.equal(SpeechCoder(strength=(0.0, 0.0))(speech), speech)
