"""Errors within sources."""

from __future__ import annotations

import numpy as np
import pytest

from asvspoof_cm import metrics
from asvspoof_cm.metrics import within_sources
from asvspoof_cm.metrics.groups import has_sources


def trials(n_sources=12, n=40, seed=0):
    """Sources that differ in offset: pooled they are hard, within a source easier."""
    rng = np.random.default_rng(seed)
    source = np.repeat([f"s{k:02d}" for k in range(n_sources)], 2 * n)
    label = np.tile(np.repeat([1, 0], n), n_sources)
    offset = np.repeat(rng.normal(0, 3, n_sources), 2 * n)
    return offset + label * 2.0 + rng.normal(0, 1, len(label)), label, source


def test_rows_are_the_metrics_of_each_source():
    scores, labels, sources = trials()
    result = within_sources(scores, labels, sources)
    for row in result.rows:
        own = sources == row.source
        pair = scores[own & (labels == 1)], scores[own & (labels == 0)]
        assert row.eer == metrics.eer(*pair).value
        assert (row.n_bonafide, row.n_spoof) == (40, 40)
    errors = [row.eer for row in result.rows]
    assert errors == sorted(errors, reverse=True)
    assert result.mean_eer == pytest.approx(np.mean(errors))
    assert result.worst.eer == max(errors)
    whole = metrics.eer(scores[labels == 1], scores[labels == 0]).value
    assert result.pooled_eer == whole > 2 * result.mean_eer


def test_sources_of_one_class_are_left_out():
    scores, labels, sources = trials(n_sources=3)
    keep = (sources != "s01") | (labels == 1)
    result = within_sources(scores[keep], labels[keep], sources[keep])
    assert [row.source for row in result.rows] != []
    assert {row.source for row in result.rows} == {"s00", "s02"}
    assert result.n_left_out == 1
    assert str(result).endswith("(1 more have one class only)")


def test_trials_of_no_known_source_are_left_out():
    scores, labels, sources = trials(n_sources=3)
    known = sources != "s01"
    unknown = np.where(known, sources, "-")
    expected = within_sources(scores[known], labels[known], sources[known], n_bootstrap=20)
    assert within_sources(scores, labels, unknown, n_bootstrap=20) == expected
    assert has_sources(labels, unknown)
    assert not has_sources(labels, ["-"] * len(labels))
    with pytest.raises(ValueError, match="none of 0 has, and 240 trials are of no known source"):
        within_sources(scores, labels, ["-"] * len(labels))


def test_intervals_cover_the_value_of_the_population():
    """95 % intervals of the mean, where each source's true EER is Φ(−1) = 15.9 %."""
    truth, n_covered = 0.15866, 0
    for seed in range(40):
        result = within_sources(*trials(seed=seed), n_bootstrap=200, seed=seed)
        n_covered += result.interval.low <= truth <= result.interval.high
        assert result.interval.value == result.mean_eer
    assert n_covered >= 34
    worst = result.worst
    assert worst.interval.low <= worst.eer <= worst.interval.high
    assert worst.interval.n_replicates == 200


def test_tables_show_what_counts():
    scores, labels, sources = trials(n_sources=2)
    within = within_sources(scores, labels, sources)
    *_, mean, pooled = str(within).splitlines()
    assert mean.split()[-1] == f"{100 * within.mean_eer:.3f}"
    assert pooled.startswith("pooled, one threshold")
    assert pooled.split()[-1] == f"{100 * within.pooled_eer:.3f}"
