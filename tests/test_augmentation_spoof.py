"""Copies of bona fide speech by a vocoder."""

import numpy as np
import scipy.signal
import torch

from asvspoof_cm.augmentation import CopySynthesis
from asvspoof_cm.augmentation.spoof import mel_magnitude, reconstruct_phase


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def voice(n_rows=2, n_samples=16000):
    """Harmonics of a gliding 120 Hz tone in noise: fine structure for a vocoder to lose."""
    t = torch.arange(n_samples, dtype=torch.float64) / 16000
    phase = 2 * torch.pi * (120 * t + 15 * t**2)
    tone = sum(torch.cos(k * phase) / k for k in range(1, 40))
    noise = torch.randn(n_rows, n_samples, generator=seeded(1), dtype=torch.float64)
    return 0.1 * tone + 0.003 * noise


def spectrogram(x, n_fft=1024, hop_length=256):
    """SciPy's, as an independent judge."""
    return np.abs(scipy.signal.stft(x.numpy(), nperseg=n_fft, noverlap=n_fft - hop_length)[2])


def test_phase_is_found_for_a_consistent_spectrogram():
    x = 0.1 * voice(1)
    window = torch.hann_window(1024, dtype=torch.float64)
    magnitude = torch.stft(x, 1024, 256, window=window, return_complex=True).abs()
    noise = torch.randn(x.shape, generator=seeded(), dtype=torch.float64)

    def error(n_iterations):
        y = reconstruct_phase(magnitude, noise, 256, n_iterations)
        difference = spectrogram(y) - spectrogram(x)
        return np.linalg.norm(difference) / np.linalg.norm(spectrogram(x))

    errors = [error(n) for n in (0, 1, 3, 10, 40)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.2


def test_detail_one_keeps_the_magnitude_and_zero_blurs_it():
    magnitude = torch.rand(2, 513, 7, generator=seeded(), dtype=torch.float64) + 0.1
    kept = mel_magnitude(magnitude, 80, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert torch.allclose(kept[0], magnitude[0])
    assert (
        kept[1].diff(dim=0)[300:].abs().mean() < 0.3 * magnitude[1].diff(dim=0)[300:].abs().mean()
    )


def test_copies_keep_level_and_bands_but_not_the_waveform():
    x = voice()
    y = CopySynthesis()(x, generator=seeded())
    assert torch.allclose(y.square().mean(dim=1), x.square().mean(dim=1))
    for before, after in zip(x, y, strict=True):
        correlation = np.corrcoef(before.numpy(), after.numpy())[0, 1]
        assert abs(correlation) < 0.9
        power = [
            (spectrogram(w) ** 2).mean(axis=1).reshape(-1, 27).sum(axis=1) for w in (before, after)
        ]
        share = [p / p.sum() for p in power]
        assert np.abs(share[0] - share[1]).sum() < 0.5
