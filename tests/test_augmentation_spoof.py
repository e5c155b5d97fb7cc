"""Spoofs of bona fide speech: B12's segments, vocoded copies, and the extra rows of a batch."""

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import (
    CopySynthesis,
    Gain,
    OneOf,
    RandomApply,
    ShuffleSegments,
    as_extra_spoof,
)
from asvspoof_cm.augmentation.spoof import mel_magnitude, reconstruct_phase
from asvspoof_cm.labels import BONAFIDE, SPOOF


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def ramp(n_rows, n_samples):
    """Samples that name their own place, all of them loud."""
    return torch.arange(n_samples, dtype=torch.float64).expand(n_rows, -1) + n_samples


def reordered(x, lengths, order, **settings):
    drawn = {"of": "ShuffleSegments", "n_rows": 1}
    drawn |= {"n_samples": torch.tensor([lengths]), "order": torch.tensor([order])}
    return ShuffleSegments(**settings).apply(x, drawn)


def reference(row, lengths, order, silence):
    """The same in plain Python, one segment at a time."""
    segments, start = [], 0
    for length in lengths:
        segments.append(row[start : start + length])
        start += length
    peak = np.abs(row).max()
    real = [i for i in order if len(segments[i])]
    kept = [i for i in real if np.abs(segments[i]).mean() >= silence * peak] or real
    if len(kept) > 1 and kept == sorted(kept):
        kept = kept[1:] + kept[:1]
    return np.resize(np.concatenate([segments[i] for i in kept]), len(row))


def test_equals_plain_python():
    augment = ShuffleSegments(mean_s=(0.01, 0.03))
    rng = np.random.default_rng(0)
    rhythm = np.repeat(rng.uniform(0, 1, (40, 20)) ** 4, 200, axis=1)
    x = torch.from_numpy(rng.standard_normal((40, 4000)) * rhythm)
    drawn = augment.draw(40, 4000, seeded())
    output = augment.apply(x, drawn).numpy()
    for i in range(40):
        lengths, order = drawn["n_samples"][i].tolist(), drawn["order"][i].tolist()
        assert np.array_equal(output[i], reference(x[i].numpy(), lengths, order, 0.05))


def test_lengths_follow_the_published_law():
    drawn = ShuffleSegments().draw(2000, 64000, seeded())
    assert (drawn["n_samples"].sum(dim=1) == 64000).all()
    n_segments = (drawn["n_samples"] > 0).sum(dim=1)
    short = n_segments > 35  # 4 s in segments of 0.08 s: 50; of 0.2 s: 20
    assert abs(short.double().mean() - 0.5) < 0.05
    for rows, mean_s, n_whole in [(short, 0.08, 45), (~short, 0.2, 18)]:
        seconds = drawn["n_samples"][rows, :n_whole].double() / 16000  # the last one is cut
        assert abs(seconds.mean() - mean_s) < 1e-4
        assert abs(seconds.var() - 2.5e-5) < 5e-7


def test_near_silent_segments_go_and_the_rest_repeats():
    x = torch.cat([torch.ones(1000), torch.full((1000,), 0.04), -torch.ones(1000)])[None]
    lengths, order = [1000, 1000, 1000], [2, 1, 0]
    y = reordered(x, lengths, order)
    expected = torch.cat([-torch.ones(1000), torch.ones(1000), -torch.ones(1000)])[None]
    assert torch.equal(y, expected)
    assert torch.equal(reordered(x * 1e-3, lengths, order), expected * 1e-3)
    assert (reordered(x, lengths, order, silence=0.03).abs() == 0.04).sum() == 1000


def test_what_would_stay_in_place_is_rotated_and_only_near_silence_is_kept():
    y = reordered(torch.tensor([[1.0, 2.0, 3.0]]), [1, 1, 1], [0, 1, 2])
    assert y.tolist() == [[2.0, 3.0, 1.0]]
    x = torch.zeros(1, 6)
    x[0, 0] = 1e-3
    y = reordered(x, [3, 3], [1, 0], silence=0.9)
    assert y.tolist() == torch.roll(x, 3).tolist()


def test_parameters_for_another_length_are_refused():
    augment = ShuffleSegments()
    with pytest.raises(ValueError, match=r"must sum to the waveform's 100 samples.*got \[16000\]"):
        augment.apply(torch.ones(100), augment.draw(1, 16000, seeded()))


def test_extra_rows_are_shuffled_bonafide_called_spoof():
    x = ramp(6, 16000) + 1e6 * torch.arange(6)[:, None]
    labels = torch.tensor([BONAFIDE, SPOOF, BONAFIDE, SPOOF, BONAFIDE, BONAFIDE])
    more, more_labels = as_extra_spoof(x, labels, seeded(), fraction=1.0)
    assert more.shape == (10, 16000)
    assert torch.equal(more[:6], x)
    assert torch.equal(more_labels[:6], labels)
    assert (more_labels[6:] == SPOOF).all()
    assert more_labels.dtype == labels.dtype
    for extra, row in zip(more[6:], (0, 2, 4, 5), strict=True):
        assert set(extra.tolist()) <= set(x[row].tolist())
        assert not torch.equal(extra, x[row])


def test_fraction_is_exact_on_average():
    x, labels = torch.ones(3, 6400), torch.full((3,), BONAFIDE)
    generator = seeded()
    n_extra = [len(as_extra_spoof(x, labels, generator, fraction=0.5)[1]) - 3 for _ in range(400)]
    assert set(n_extra) == {1, 2}
    assert abs(np.mean(n_extra) - 1.5) < 0.1


def test_sample_rate_scales_the_segments():
    n_segments = [
        ShuffleSegments(mean_s=(0.1,), sample_rate=rate).draw(1, 16000, seeded())["order"].shape[1]
        for rate in (8000, 16000)
    ]
    assert n_segments == pytest.approx([20, 10], abs=1)


# Copies


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


def test_extra_spoof_takes_it():
    x, labels = voice(3).float(), torch.tensor([BONAFIDE, SPOOF, BONAFIDE])
    more, more_labels = as_extra_spoof(x, labels, seeded(), fraction=1.0, augment=CopySynthesis())
    assert torch.equal(more[:3], x)
    assert more_labels.tolist() == [BONAFIDE, SPOOF, BONAFIDE, SPOOF, SPOOF]
    assert not torch.isclose(more[3], x[0]).all()


def test_the_longest_need_counts_in_a_mixture():
    mixture = OneOf([Gain(), RandomApply(CopySynthesis(), p=0.5), ShuffleSegments()])
    assert mixture.min_samples == ShuffleSegments().min_samples == 6400
    assert RandomApply(CopySynthesis(), p=0.5).min_samples == 1025
    assert CopySynthesis().min_samples == 1025
