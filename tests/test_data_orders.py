"""Orders of drawing: shuffled, balanced groups and matched pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asvspoof_cm.data import Protocol, group_balanced, matched_pairs, shuffled
from asvspoof_cm.labels import BONAFIDE, SPOOF


def corpus() -> Protocol:
    """Two sources with both classes, one with humans alone, one with fakes alone."""
    sizes = {
        ("page", BONAFIDE, "-"): 4,
        ("page", SPOOF, "GAN"): 16,
        ("call", BONAFIDE, "-"): 9,
        ("call", SPOOF, "copy"): 1,
        ("read", BONAFIDE, "-"): 36,
        ("demo", SPOOF, "GAN"): 48,
    }
    rows = [key for key, size in sizes.items() for _ in range(size)]
    source, label, attack = zip(*rows, strict=True)
    names = [f"u{number}" for number in range(len(rows))]
    return Protocol.from_columns(names, label, source=source, attack=attack)


def drawn(order, epoch=0, seed=1):
    return order(epoch, torch.Generator().manual_seed(seed)).numpy()


def test_groups_are_drawn_by_the_root_of_their_size():
    protocol = corpus()
    rows = drawn(group_balanced(protocol, n_rows=40_000))
    is_human = protocol.label[rows] == BONAFIDE
    assert is_human.mean() == pytest.approx(0.5, abs=0.01)
    sizes = {"page": 4, "call": 9, "read": 36}
    total = sum(size**0.5 for size in sizes.values())
    for source, size in sizes.items():
        share = (protocol.source[rows][is_human] == source).mean()
        assert share == pytest.approx(size**0.5 / total, abs=0.02)
    gan = (protocol.attack[rows][~is_human] == "GAN").mean()
    assert gan == pytest.approx(8 / 9, abs=0.02)


def test_every_pair_has_a_human_and_a_fake_of_one_source():
    protocol = corpus()
    rows = drawn(matched_pairs(protocol, share=1.0, n_rows=4000)).reshape(-1, 2, 8)
    assert (protocol.label[rows[:, 0]] == BONAFIDE).all()
    assert (protocol.label[rows[:, 1]] == SPOOF).all()
    assert (protocol.source[rows[:, 0]] == protocol.source[rows[:, 1]]).all()
    share = (protocol.source[rows[:, 0]] == "page").mean()
    assert share == pytest.approx(20**0.5 / (20**0.5 + 10**0.5), abs=0.03)
    assert len(np.unique(rows)) == 30  # nothing of the sources with one class, all of the others


def test_unmatched_pairs_reach_every_utterance():
    protocol = corpus()
    rows = drawn(matched_pairs(protocol, share=0.5, n_rows=16_000)).reshape(-1, 2, 8)
    assert set(rows.ravel()) == set(range(len(protocol)))
    same = (protocol.source[rows[:, 0]] == protocol.source[rows[:, 1]]).mean()
    assert 0.5 < same < 0.7


@pytest.mark.parametrize("n_processes", [1, 2, 4, 8])
def test_a_pair_stays_in_one_batch_of_one_process(n_processes):
    """As the loader deals rows out: every n-th one, in batches of equal size."""
    protocol = corpus()
    rows = torch.from_numpy(drawn(matched_pairs(protocol, share=1.0, n_rows=480)))
    joint_batch = 32
    for rank in range(n_processes):
        share = rows[rank::n_processes]
        for batch in share.split(joint_batch // n_processes):
            human = protocol.label[batch] == BONAFIDE
            sources = protocol.source[batch.numpy()]
            assert sorted(sources[human]) == sorted(sources[~human])


def test_copies_meet_their_own_recording_as_often_as_asked():
    protocol = Protocol.from_columns(
        ["a", "b", "a-copy", "b-copy", "other"],
        [1, 1, 0, 0, 0],
        codec_seed=["-", "-", "a", "b", "gone"],
        source=["x", "y", "y", "x", "x"],
    )
    # In a source is never the own recording; of the unmatched fifth half are.
    for share, expected in ((0.75, 0.75 + 0.25 * 0.2 * 0.5), (1.0, 1.0)):
        rows = drawn(matched_pairs(protocol, parent_share=share, n_rows=8000)).reshape(-1, 2, 8)
        human, fake = rows[:, 0], rows[:, 1]
        assert (protocol.label[human] == BONAFIDE).all()
        own = (human == fake - 2)[fake < 4].mean()
        assert own == pytest.approx(expected, abs=0.03 * (share < 1))


def test_short_and_long_epochs_of_a_shuffle():
    protocol = corpus()
    for n_rows, counts in ((30, {0, 1}), (228, {2}), (None, {1})):
        rows = drawn(shuffled(protocol, n_rows=n_rows))
        assert set(np.bincount(rows, minlength=len(protocol))) == counts
        assert len(rows) == n_rows or n_rows is None


@pytest.mark.parametrize("make", [group_balanced, matched_pairs, shuffled])
def test_orders_depend_on_the_generator_alone(make):
    order = make(corpus())
    assert (drawn(order) == drawn(order, epoch=7)).all()
    assert (drawn(order) != drawn(order, seed=2)).any()
    assert len(drawn(make(corpus(), n_rows=32))) == 32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: matched_pairs(p, n_rows=0), "`n_rows` must be at least 1; got 0"),
        (lambda p: matched_pairs(p, share=-1), "`share` must be between 0 and 1; got -1"),
        (lambda p: matched_pairs(p, parent_share=2), "`parent_share` must be between 0 and 1"),
        (
            lambda p: group_balanced(p.select(p.label == SPOOF)),
            "must hold utterances of both classes; got",
        ),
        (
            lambda p: matched_pairs(p.select((p.label == BONAFIDE) | (p.source == "demo"))),
            "must have a source with both classes; none of 4 has",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(corpus())
