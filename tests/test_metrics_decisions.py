"""Decisions at a threshold: cases by hand, and intervals against SciPy and closed forms."""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from asvspoof_cm import metrics
from asvspoof_cm.metrics.decisions import _rates

# 40 bonafide trials, 4 of them refused; 10 spoofs, 3 of them passed.
LABELS = np.repeat([1, 1, 0, 0], [36, 4, 3, 7])
SCORES = np.repeat([1.0, -1.0, 0.0, -2.0], [36, 4, 3, 7])


def test_every_rate_by_hand():
    found = metrics.decisions(SCORES, LABELS, 0.0)
    (row,) = found.rows
    assert (row.n_bonafide, row.n_spoof) == (40, 10)
    rates = {k: getattr(rate, "value", rate) for k, rate in found.rates.items()}
    assert rates == pytest.approx(
        {
            "refusal_rate": 4 / 40,
            "pass_rate": 3 / 10,
            "accuracy": 43 / 50,
            "balanced_accuracy": (36 / 40 + 7 / 10) / 2,
            "precision": 7 / 11,
            "recall": 7 / 10,
            "f1": 14 / 21,  # harmonic mean of 7/11 and 7/10
            "f1_macro": (14 / 21 + 72 / 79) / 2,  # of bonafide: 36/39 and 36/40
        }
    )
    assert (found.gaps, found.columns) == ({}, ())
    # A score at the threshold is accepted, here the three spoofs at 0.
    assert metrics.decisions(SCORES, LABELS, 1e-9).rates["pass_rate"].value == 0


@pytest.mark.parametrize(
    ("outcomes", "undefined"),
    [
        ((0, 0, 2, 3), {"pass_rate", "recall", "balanced_accuracy"}),  # no spoof
        ((2, 3, 0, 0), {"refusal_rate", "balanced_accuracy"}),  # no bonafide trial
        ((0, 3, 0, 5), {"precision"}),  # nothing is refused
        ((0, 0, 0, 3), {"pass_rate", "recall", "balanced_accuracy", "precision", "f1", "f1_macro"}),
    ],
)
def test_a_rate_without_trials_is_undefined(outcomes, undefined):
    rates = _rates(np.array(outcomes))
    assert {name for name, rate in rates.items() if np.isnan(rate)} == undefined
    assert rates["accuracy"] >= 0


@pytest.mark.parametrize(("n_of", "n"), [(0, 20), (1, 7), (50, 299), (299, 299), (10, 20)])
def test_wilson_is_scipys(n_of, n):
    expected = binomtest(n_of, n).proportion_ci(0.95, method="wilson")
    interval = metrics.wilson(n_of, n)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert interval.low <= interval.value <= interval.high
    assert np.isnan(metrics.wilson(0, 0).value)


def trials(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    labels, gender = rng.integers(0, 2, n), rng.choice(["F", "M"], n)
    scores = rng.normal(2 * labels - 1 - 0.5 * (gender == "M"), 1)
    return scores, labels, gender


def test_groups_are_measured_on_their_own_trials_and_the_gap_is_between_them():
    scores, labels, gender = trials()
    found = metrics.decisions(scores, labels, 0.0, groups={"gender": gender}, n_bootstrap=200)
    assert [row.group for row in found.rows] == [("F",), ("M",), ("all",)]
    for row in found.rows[:2]:
        own = gender == row.group[0]
        alone = metrics.decisions(scores[own], labels[own], 0.0).rates
        assert row.values["refusal_rate"] == alone["refusal_rate"]
        assert row.values["f1_macro"].value == alone["f1_macro"]
        assert row.values["f1_macro"].low < alone["f1_macro"] < row.values["f1_macro"].high
    gap = found.gaps["refusal_rate"]
    assert (gap.highest, gap.lowest) == (("M",), ("F",))
    # Newcombe's interval of two shares: close to the normal approximation for so many trials.
    shares = [row.values["refusal_rate"].value for row in found.rows[:2]]
    numbers = [row.n_bonafide for row in found.rows[:2]]
    half = 1.96 * np.sqrt(sum(p * (1 - p) / k for p, k in zip(shares, numbers, strict=True)))
    assert gap.difference.value == pytest.approx(shares[1] - shares[0])
    assert gap.difference.high - gap.difference.low == pytest.approx(2 * half, rel=0.01)
    first, *_, last = str(found).splitlines()
    assert first.split()[:3] == ["gender", "bonafide", "spoof"]
    assert last.startswith("largest gap")
    json.dumps(found.as_dict(), allow_nan=False)


def test_groups_of_one_class_and_crossed_columns():
    labels, attack = [1, 1, 0, 0, 0], ["-", "-", "A09", "A09", "A10"]
    codec = ["C0", "C1", "C0", "C1", "C0"]
    found = metrics.decisions([1, -1, -1, 1, -1], labels, 0.0, groups={"attack": attack})
    assert [float(row.values["pass_rate"]) for row in found.rows[1:]] == [0.5, 0.0, 1 / 3]
    assert np.isnan(found.rows[0].values["pass_rate"])
    assert found.gaps["pass_rate"].highest == ("A09",)
    assert "refusal_rate" not in found.gaps
    assert "–" in str(found)
    crossed = metrics.decisions(
        [1, -1, -1, 1, -1], labels, 0.0, groups={"attack": attack, "codec": codec}, n_bootstrap=9
    )
    assert [row.group for row in crossed.rows[:3]] == [("-", "C0"), ("-", "C1"), ("A09", "C0")]


def test_bootstrap_agrees_with_wilson_where_trials_are_independent():
    scores, labels, _ = trials()
    independent = metrics.decisions(scores, labels, 0.0).rates
    options = {"n_bootstrap": 1000, "clusters": np.arange(len(scores))}
    drawn = metrics.decisions(scores, labels, 0.0, **options).rates
    for name in ("refusal_rate", "pass_rate", "accuracy", "precision", "recall"):
        assert drawn[name].n_replicates == 1000
        width = independent[name].high - independent[name].low
        assert drawn[name].high - drawn[name].low == pytest.approx(width, rel=0.12)
    # Drawing trials class by class has closed forms, and the same width.
    by_class = metrics.decisions(scores, labels, 0.0, n_bootstrap=1000).rates["f1_macro"]
    both = drawn["f1_macro"]
    assert by_class.high - by_class.low == pytest.approx(both.high - both.low, rel=0.12)


def test_copies_widen_the_intervals_where_they_are_clusters():
    scores, labels, gender = (np.repeat(column, 9) for column in trials(600))
    groups, clusters = {"gender": gender}, np.repeat(np.arange(600), 9)
    options = {"groups": groups, "n_bootstrap": 600, "clusters": clusters}
    found = metrics.decisions(scores, labels, 0.0, **options)
    plain = metrics.decisions(scores, labels, 0.0, groups=groups)
    for rows in zip(found.rows, plain.rows, strict=True):
        rates = [row.values["pass_rate"] for row in rows]
        widths = [rate.high - rate.low for rate in rates]
        assert widths[0] / widths[1] == pytest.approx(3.0, rel=0.2)
