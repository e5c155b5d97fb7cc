"""B12: cuts, what is dropped, order and length; and the extra rows of a batch."""

import numpy as np
import pytest
import torch

from asvspoof_cm.augmentation import CopySynthesis, ShuffleSegments, as_extra_spoof
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


def test_all_orders_are_as_likely():
    order = ShuffleSegments(mean_s=(0.2,)).draw(3000, 64000, seeded())["order"]
    where_first_goes = (order == 0).nonzero()[:, 1]
    share = torch.bincount(where_first_goes) / 3000 * order.shape[1]
    assert (share - 1).abs().max() < 0.35


def test_loud_samples_are_all_there_once():
    x = ramp(8, 16000)
    y = ShuffleSegments(silence=0.0)(x, generator=seeded())
    assert torch.equal(y.sort(dim=1).values, x)
    assert (y != x).any(dim=1).all()


def test_near_silent_segments_go_and_the_rest_repeats():
    x = torch.cat([torch.ones(1000), torch.full((1000,), 0.04), -torch.ones(1000)])[None]
    lengths, order = [1000, 1000, 1000], [2, 1, 0]
    y = reordered(x, lengths, order)
    expected = torch.cat([-torch.ones(1000), torch.ones(1000), -torch.ones(1000)])[None]
    assert torch.equal(y, expected)
    assert torch.equal(reordered(x * 1e-3, lengths, order), expected * 1e-3)
    assert (reordered(x, lengths, order, silence=0.03).abs() == 0.04).sum() == 1000


def test_segments_that_would_stay_in_place_are_rotated():
    y = reordered(torch.tensor([[1.0, 2.0, 3.0]]), [1, 1, 1], [0, 1, 2])
    assert y.tolist() == [[2.0, 3.0, 1.0]]


def test_only_near_silence_keeps_all():
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


def test_extra_rows_wait_for_no_device():
    x, labels = torch.empty(4, 16000, device="meta"), torch.tensor([BONAFIDE, SPOOF] * 2)
    for augment in (ShuffleSegments(), CopySynthesis()):
        more, more_labels = as_extra_spoof(x, labels, fraction=1.0, augment=augment)
        assert (more.shape, more_labels.tolist()) == ((6, 16000), [1, 0, 1, 0, 0, 0])


def test_nothing_to_add():
    x, labels = torch.ones(3, 6400), torch.full((3,), SPOOF)
    assert as_extra_spoof(x, labels, seeded(), fraction=1.0)[0] is x
    bonafide = torch.full((3,), BONAFIDE)
    assert as_extra_spoof(x, bonafide, seeded(), fraction=0.0)[0] is x


def test_extra_rows_take_other_segments():
    x, labels = ramp(2, 1600), torch.full((2,), BONAFIDE)
    shuffle = ShuffleSegments(mean_s=(0.01,))
    more, _ = as_extra_spoof(x, labels, seeded(), fraction=1.0, augment=shuffle)
    assert len(more) == 4


def test_sample_rate_scales_the_segments():
    n_segments = [
        ShuffleSegments(mean_s=(0.1,), sample_rate=rate).draw(1, 16000, seeded())["order"].shape[1]
        for rate in (8000, 16000)
    ]
    assert n_segments == pytest.approx([20, 10], abs=1)
