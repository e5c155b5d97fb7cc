"""Track 1 against the organisers' recorded figures, definitions, analytic values and limits."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import norm

from asvspoof_cm import metrics
from asvspoof_cm.metrics import DetectionCosts, OperatingPoint

# Recorded from the evaluation package of asvspoof-challenge/asvspoof5; see reference/README.md.
GOLDEN = json.loads((Path(__file__).parent / "reference" / "golden_metrics.json").read_text())
TOLERANCE = 1e-9


def gauss(seed, mean, n_bonafide, n_spoof):
    rng = np.random.default_rng(seed)
    return rng.normal(mean, 1, n_bonafide), rng.normal(-mean, 1, n_spoof)


# The recipes of the golden file.
CASES = {
    "gauss": lambda: gauss(0, 1, 1000, 5000),
    "gauss_ties": lambda: tuple(np.round(scores, 1) for scores in gauss(0, 1, 1000, 5000)),
    "gauss_x50": lambda: tuple(50 * scores for scores in gauss(0, 1, 1000, 5000)),
    "gauss_inverted": lambda: gauss(0, 1, 1000, 5000)[::-1],
    "tiny": lambda: (np.array([2.0, 0.5]), np.array([-1.0, 1.0, 0.5])),
    "constant": lambda: (np.zeros(10), np.zeros(30)),
    "separable": lambda: gauss(3, 10, 50, 70),
    "eval_size": lambda: gauss(7, 1, 138688, 542086),
}
SCORES, TIED_SCORES = (
    hnp.arrays(np.float64, st.integers(1, 12), elements=elements)
    for elements in (st.floats(-5, 5, allow_subnormal=False), st.integers(-2, 2).map(float))
)


@pytest.mark.filterwarnings("ignore:tied scores", "ignore:the EER is")
@pytest.mark.parametrize("case", CASES)
def test_golden_values_and_thresholds(case):
    bonafide, spoof = CASES[case]()
    expected = GOLDEN[case]["expected"]
    points = {
        name: getattr(metrics, name)(bonafide, spoof) for name in ("eer", "min_dcf", "act_dcf")
    }
    for name, point in points.items():
        assert point.value == pytest.approx(expected[name], abs=TOLERANCE)
        assert point.threshold == pytest.approx(expected[f"{name}_threshold"], abs=TOLERANCE)
    assert metrics.cllr(bonafide, spoof) == pytest.approx(expected["cllr"], abs=TOLERANCE)

    scores = np.concatenate([bonafide, spoof])
    labels = np.repeat([1, 0], [len(bonafide), len(spoof)])
    order = np.random.default_rng(0).permutation(len(scores))
    result = metrics.evaluate(scores[order], labels[order])
    assert (result.n_bonafide, result.n_spoof) == (expected["n_bonafide"], expected["n_spoof"])
    assert {name: getattr(result, name) for name in points} == points
    assert result.cllr == pytest.approx(expected["cllr"], abs=TOLERANCE)


def test_gaussian_scores_have_their_analytic_values():
    bonafide, spoof = CASES["eval_size"]()
    assert metrics.eer(bonafide, spoof).value == pytest.approx(norm.cdf(-1), abs=1e-3)
    # The LLR of N(1, 1) against N(-1, 1) is 2 s: then Cllr is already minimal.
    assert metrics.min_cllr(bonafide, spoof) == pytest.approx(
        metrics.cllr(2 * bonafide, 2 * spoof), abs=1e-3
    )


def official_points(bonafide, spoof):
    """The walk of the module docstring, one trial at a time."""
    trials = sorted([(s, 0) for s in bonafide] + [(s, 1) for s in spoof])
    missed = rejected = 0
    points = [(0.0, 1.0, trials[0][0] - 0.001)]
    for score, is_spoof in trials:
        missed, rejected = missed + (not is_spoof), rejected + is_spoof
        points.append((missed / len(bonafide), 1 - rejected / len(spoof), score))
    return np.array(points).T


@pytest.mark.filterwarnings("ignore:tied scores", "ignore:the EER is")
@given(SCORES | TIED_SCORES, SCORES | TIED_SCORES)
def test_official_metrics_follow_the_walk_through_the_trials(bonafide, spoof):
    p_miss, p_fa, thresholds = official_points(bonafide, spoof)
    curve = metrics.det_curve(bonafide, spoof)
    np.testing.assert_allclose(curve.p_miss, p_miss, atol=1e-12)
    np.testing.assert_allclose(curve.p_fa, p_fa, atol=1e-12)
    np.testing.assert_array_equal(curve.thresholds, thresholds)
    gaps = np.abs(p_miss - p_fa)
    closest = np.flatnonzero(gaps < gaps.min() + 1e-12)
    eer = metrics.eer(bonafide, spoof)
    candidates = [((p_miss[i] + p_fa[i]) / 2, thresholds[i]) for i in closest]
    assert any(eer == OperatingPoint(pytest.approx(v), t) for v, t in candidates)
    cost = 1.9 * p_miss + p_fa
    assert metrics.min_dcf(bonafide, spoof).value == pytest.approx(cost.min(), abs=1e-12)


@pytest.mark.filterwarnings("ignore:tied scores", "ignore:the EER is")
@given(TIED_SCORES, TIED_SCORES)
def test_grouped_metrics_depend_on_distinct_thresholds_only(bonafide, spoof):
    thresholds = np.append(np.unique(np.concatenate([bonafide, spoof])), np.inf)
    p_miss = np.array([(bonafide < t).mean() for t in thresholds])
    p_fa = np.array([(spoof >= t).mean() for t in thresholds])
    # A step of both classes across P_miss = P_fa is a straight line; it meets the EER.
    eer = metrics.eer(bonafide, spoof, ties="grouped").value
    k = int(np.argmax(p_miss >= p_fa))
    if p_miss[k] > p_miss[k - 1] and p_fa[k] < p_fa[k - 1]:
        p_fa_at_eer = np.interp(eer, p_miss[k - 1 : k + 1], p_fa[k - 1 : k + 1])
        assert p_fa_at_eer == pytest.approx(eer)
    else:
        assert eer == metrics.eer(bonafide, spoof).value


def test_grouped_equals_official_without_ties():
    bonafide, spoof = CASES["gauss"]()
    official, grouped = (metrics.eer(bonafide, spoof, ties=t) for t in ("official", "grouped"))
    assert official.value == grouped.value
    for scores in (bonafide, spoof):
        assert ((scores > official.threshold) == (scores >= grouped.threshold)).all()


def test_ties_that_matter_and_a_flipped_sign_are_told_once():
    constant = np.zeros(10), np.zeros(30)
    assert metrics.eer(*constant, ties="grouped").value == 0.5
    with pytest.warns(UserWarning, match=r"100\.000 % by the official .* 50\.000 %") as caught:
        assert metrics.eer(*constant).value == 1.0
    assert len(caught) == 1
    bonafide, spoof = CASES["gauss_ties"]()
    labels = np.repeat([1, 0], [len(bonafide), len(spoof)])
    with pytest.warns(UserWarning, match="tied scores change the EER") as caught:
        metrics.evaluate(np.concatenate([bonafide, spoof]), labels)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=r"83\.58 %, above 50 %: the sign .* probably flipped"):
        metrics.eer(*CASES["gauss_inverted"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.evaluate(np.concatenate(CASES["gauss"]()), labels)


def test_cllr_is_finite_for_any_finite_score():
    assert metrics.cllr([-800.0], [-900.0]) == pytest.approx(400 / np.log(2))
    assert metrics.cllr([1e300], [-1e300]) == 0.0
    assert metrics.cllr([50.0], [-50.0]) == pytest.approx(np.exp(-50) / np.log(2), rel=1e-12)
    assert metrics.cllr([-1e307], [0.0]) == pytest.approx(0.5e307 / np.log(2), rel=1e-9)


@given(SCORES, SCORES)
def test_cllr_is_its_definition(bonafide, spoof):
    expected = np.log2(1 + np.exp(-bonafide)).mean() + np.log2(1 + np.exp(spoof)).mean()
    assert metrics.cllr(bonafide, spoof) == pytest.approx(0.5 * expected, rel=1e-12)


def hull_cllr(bonafide, spoof):
    """Minimum Cllr from the lower convex hull of the error curve, point by point."""
    hull = []
    for t in np.append(np.unique(np.concatenate([bonafide, spoof])), np.inf):
        point = np.array([(spoof < t).mean(), (bonafide < t).mean()])
        while len(hull) > 1:
            (a, b), (c, d) = hull[-1] - hull[-2], point - hull[-2]
            if a * d > b * c:
                break
            hull.pop()
        hull.append(point)
    steps = np.diff(hull, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = steps * np.log2(1 + steps[:, ::-1] / steps)
    return float(np.nansum(bits)) / 2


@given(SCORES | TIED_SCORES, SCORES | TIED_SCORES)
def test_min_cllr_is_the_convex_hull_of_the_curve(bonafide, spoof):
    value = metrics.min_cllr(bonafide, spoof)
    assert value == pytest.approx(hull_cllr(bonafide, spoof), abs=1e-12)
    assert value <= metrics.cllr(bonafide, spoof) + 1e-12
    # Powers of two keep ties and order: the minimum ignores any increasing map.
    assert metrics.min_cllr(8 * bonafide, 8 * spoof) == pytest.approx(value, abs=1e-12)


def test_costs_scale_out_and_give_the_bayes_threshold():
    bonafide, spoof = CASES["gauss"]()
    scaled = DetectionCosts(p_spoof=0.05, c_miss=3, c_fa=30)
    one, other = metrics.min_dcf(bonafide, spoof), metrics.min_dcf(bonafide, spoof, scaled)
    assert (one.value, one.threshold) == (pytest.approx(other.value), other.threshold)
    assert pytest.approx(-np.log(1.9)) == metrics.ASVSPOOF5.threshold
    even = DetectionCosts(p_spoof=0.5, c_miss=1, c_fa=1)
    assert even.threshold == 0
    p_miss, p_fa = (bonafide < 0).mean(), (spoof >= 0).mean()
    assert metrics.act_dcf(bonafide, spoof, even).value == pytest.approx(p_miss + p_fa)


def test_result_prints_and_serialises_and_labels_have_many_forms():
    scores = np.array([2.0, 0.5, -1.0, 1.0])
    result = metrics.evaluate(scores, ["bonafide", "bonafide", "spoof", "spoof"])
    content = json.loads(json.dumps(result.as_dict()))
    assert content["eer"] == {"value": 0.5, "threshold": 0.5}
    assert content["costs"] == {"p_spoof": 0.05, "c_miss": 1.0, "c_fa": 10.0}
    assert "EER (%)          50.000     0.5000" in str(result)
    for labels in (
        [1, 1, 0, 0],
        np.array([True, True, False, False]),
        ["bona-fide", "bonafide", "spoof", "spoof"],
        np.array([1, "bonafide", "spoof", 0], dtype=object),
    ):
        assert metrics.evaluate(scores, labels) == result
    assert scores.tolist() == [2.0, 0.5, -1.0, 1.0]  # sorted in a copy
