"""What the metrics, calibration and figures refuse, and what they say: one table."""

import numpy as np
import pytest

from asvspoof_cm import metrics, plots
from asvspoof_cm.calibration import (
    Calibration,
    decide,
    fit_calibration,
    fit_fusion,
    fuse_sasv,
    probability,
)
from asvspoof_cm.metrics import AsvRates, DetectionCosts, SasvCosts

CLASSES = ["target", "nontarget", "spoof"]
ONE_CLUSTER = "`clusters` must name at least 2 clusters; all trials are in one, '-'"
PAIRS = ("eer", "min_dcf", "act_dcf", "cllr", "min_cllr")


def evaluate(labels, scores=(1.0, 2.0)):
    return lambda: metrics.evaluate(scores, labels)


def breakdown(groups, **options):
    return lambda: metrics.breakdown([1.0, 0.0], [1, 0], groups, **options)


def bootstrap(metric="eer", n=10, **options):
    return lambda: metrics.bootstrap(metric, [1.0, 2.0], [0.0, -1.0], n, **options)


def undefined(bonafide, spoof):
    return float("nan")


def objects(wrong):
    return np.array([1, wrong], dtype=object)


ERRORS = [
    # Scores, labels and costs
    *(
        (lambda name=name: getattr(metrics, name)([1.0], []), "`spoof` must hold at least one sc")
        for name in PAIRS
    ),
    (lambda: metrics.eer([], [1.0]), "`bonafide` must hold at least one score; got none"),
    (lambda: metrics.eer([[1.0]], [1.0]), r"`bonafide` must have shape \(n,\); got \(1, 1\)"),
    (
        lambda: metrics.eer([1.0], [0.0, np.nan, np.inf, np.nan]),
        "`spoof` must be finite; got 2 NaN and 1 infinite of 4 scores, the first at index 1",
    ),
    (evaluate([1]), "`scores` and `labels` must be equally long; got 2 and 1"),
    (evaluate([1, 1]), "`labels` must hold both classes; got 2 bonafide and no spoof trial"),
    (evaluate([1, 2]), "`labels` must be 0 .*; got 2 at index 1 .1 such of 2"),
    *((evaluate(objects(wrong)), f"got {wrong!r} at index 1") for wrong in (None, "fake", 2)),
    (lambda: metrics.eer([1.0], [0.0], ties="mean"), "`ties` must be one of .*; got 'mean'"),
    (lambda: DetectionCosts(p_spoof=0.0), "`p_spoof` must lie between 0 and 1, excluded; got 0.0"),
    (lambda: DetectionCosts(c_fa=-1.0), "`c_fa` must be positive and finite; got -1.0"),
    # Track 2
    (lambda: metrics.a_dcf([1.0], [np.nan], [1.0]), "`nontarget` must be finite; got 1 NaN"),
    (
        lambda: metrics.t_eer(([1.0], [np.inf], [0.0]), ([1.0], [0.0])),
        "`asv nontarget` must be finite; got 0 NaN and 1 infinite",
    ),
    *(
        (
            lambda cm=cm: metrics.t_eer(([0.0], [0.0], [0.0]), cm),
            r"`asv` and `cm` must have thresholds where .* no pair",
        )
        for cm in (([0.0], [0.0]), ([0.0], [1.0]))
    ),
    (lambda: AsvRates(p_miss=-0.1, p_fa=0, p_fa_spoof=0), "`p_miss` must be between 0 and 1"),
    (
        lambda: SasvCosts(p_target=0.9, p_nontarget=0.2, p_spoof=0.1),
        "`p_target`, `p_nontarget` and `p_spoof` must be at least 0 and sum to 1",
    ),
    (
        lambda: SasvCosts(p_target=0.0, p_nontarget=0.5, p_spoof=0.5),
        "`p_target` must lie between 0 and 1, excluded",
    ),
    (
        lambda: metrics.min_t_dcf([1.0], [0.0], asv=AsvRates(p_miss=1, p_fa=1, p_fa_spoof=1)),
        "`asv` must cost less than rejecting everyone",
    ),
    # Groups, decisions, intervals and comparisons
    (breakdown({}), "`groups` must hold at least one column"),
    (breakdown({"a": ["-"]}), r"`a` must have one value per trial, shape \(2,\); got \(1,\)"),
    (breakdown({"a": [None, "A09"]}), "`a` must have a value for every trial; 1 of 2 are"),
    (breakdown({"a": ["-", "A"]}, match=["c"]), r"`match` must be .* \(a\); got \['c'\]"),
    (breakdown({"a": ["-", "A"]}, match="a"), r"`match` must be a list of columns of `groups`"),
    *(
        (lambda o=options: metrics.decisions([1.0, 0.0], [1, 0], **o), message)
        for options, message in (
            ({"n_bootstrap": -1}, "`n_bootstrap` must be at least 0; got -1"),
            (
                {"groups": {"gender": ["F"]}},
                r"`gender` must have one value per trial, shape \(2,\)",
            ),
            ({"n_bootstrap": 5, "seed": -1}, "`seed` must not be negative; got -1"),
            ({"n_bootstrap": 5, "clusters": ["-"] * 2}, ONE_CLUSTER),
        )
    ),
    (lambda: metrics.wilson(6, 5), "`n_of` must be between 0 and 5; got 6"),
    (bootstrap("f1"), "`metric` must be one of min_dcf, act_dcf, eer, cllr or a function"),
    (bootstrap(undefined), "`metric` must return a number; undefined returned NaN"),
    (bootstrap(["eer", "eer"]), "`metric` must name each metric once; got eer, eer"),
    (bootstrap(n=0), "`n` must be at least 1; got 0"),
    (bootstrap(seed=-1), "`seed` must not be negative; got -1"),
    (bootstrap(clusters=([1, 2, 3], [1])), r"`clusters\[0\]` must have one value per trial, shape"),
    (bootstrap(clusters=(["-", "-"], ["-", "-"])), ONE_CLUSTER),
    (bootstrap(clusters=([1.0, 2.0], [3.0, np.nan])), r"`clusters\[1\]` .* first at index 1"),
    (
        lambda: metrics.compare([1.0, 0.0], [2.0, 0.0], [1, 0], n=5, clusters=["-", "-"]),
        ONE_CLUSTER,
    ),
    # Calibration and fusion
    *(
        (
            lambda scores=scores: fit_calibration(scores, [1, 1, 0, 0]),
            "`scores` must rise from spoof to bonafide",
        )
        for scores in ([-1.0, -2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    ),
    (
        lambda: fit_calibration([1.0, 0.0], [1, 0], 7),
        "`prior` must lie between 0 and 1, excluded; got 7",
    ),
    (lambda: Calibration(scale=-1.0), "`scale` must be positive and finite"),
    (lambda: Calibration().apply(np.nan), "`scores` must not be NaN; got 1 NaN of 1"),
    (lambda: decide([0.0, np.nan]), "`llr` must not be NaN; got 1 NaN of 2"),
    (lambda: probability([np.nan]), "`llr` must not be NaN; got 1 NaN of 1"),
    (lambda: fuse_sasv([np.nan], [0.0]), "`asv_llr` must not be NaN"),
    (lambda: fuse_sasv([0.0], [np.nan]), "`cm_llr` must not be NaN"),
    (
        lambda: fuse_sasv([0.0, 1.0], [[0.0], [1.0]]),
        r"must have the same shape, one LLR of each per trial; got \(2,\) and \(2, 1\)",
    ),
    (lambda: fit_fusion(np.zeros(3), CLASSES), r"`scores` must have shape \(n_trials, n_systems\)"),
    (
        lambda: fit_fusion(np.zeros((3, 2)), CLASSES[:2]),
        r"`labels` must have one value per trial, shape \(3,\)",
    ),
    (
        lambda: fit_fusion(np.zeros((2, 2)), ["target", "spoof"]),
        "must be target, nontarget, spoof, each at least",
    ),
    (
        lambda: fit_fusion(np.zeros((4, 2)), [*CLASSES, "fake"]),
        "each at least once; got .*'fake'",
    ),
    (lambda: fit_fusion(np.full((3, 1), np.nan), CLASSES), "`scores` must be finite"),
    # Figures
    (lambda: plots.scores([np.nan], [0.0]), "`bonafide` must be finite"),
    (lambda: plots.timeline([]), r"`scores` must hold a row \(start_s, end_s, score\)"),
    (
        lambda: plots.breakdown(breakdown({"a": ["-", "x"]})(), metric="f1"),
        "`metric` must be one of 'min_dcf', 'act_dcf', 'eer', 'cllr'; got 'f1'",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_argument_and_the_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()
