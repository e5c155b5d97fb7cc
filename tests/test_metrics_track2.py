"""Track 2 against the organisers' recorded figures and the definitions."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asvspoof_cm import metrics
from asvspoof_cm.metrics import AsvRates, SasvCosts
from asvspoof_cm.metrics.track2 import ASVSPOOF5_ASV

REFERENCE = Path(__file__).parent / "reference" / "golden_metrics.json"
GOLDEN = json.loads(REFERENCE.read_text())["sasv"]["expected"]
CONSTANTS = json.loads(REFERENCE.read_text())["constants"]["track2"]
TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def trials():
    """The recipe of the golden file: ASV and CM scores of target, nontarget, spoof."""
    r = np.random.default_rng(11)
    asv = r.normal(2, 1, 400), r.normal(-2, 1, 700), r.normal(0.5, 1, 900)
    cm = r.normal(2, 1.5, 400), r.normal(2, 1.5, 700), r.normal(-1.5, 1.5, 900)
    return asv, cm


def test_golden_a_dcf_and_t_dcf(trials):
    asv, cm = trials
    point = metrics.a_dcf(*(a + c for a, c in zip(asv, cm, strict=True)))
    bonafide, spoof = np.concatenate(cm[:2]), cm[2]
    rates = metrics.asv_rates(*asv)
    found = {
        "min_a_dcf": point.value,
        "min_a_dcf_threshold": point.threshold,
        "min_t_dcf_organisers_asv": metrics.min_t_dcf(bonafide, spoof).value,
        "min_t_dcf_own_asv": metrics.min_t_dcf(bonafide, spoof, asv=asv).value,
    }
    for name, value in found.items():
        assert value == pytest.approx(GOLDEN[name], abs=TOLERANCE)
    for name in ("p_fa", "p_miss", "p_fa_spoof"):
        assert getattr(rates, name) == pytest.approx(GOLDEN["own_asv"][name], abs=TOLERANCE)


def test_golden_t_eer(trials):
    asv, cm = trials
    cm = np.concatenate(cm[:2]), cm[2]
    point = metrics.t_eer(asv, cm)
    assert 100 * point.value == pytest.approx(GOLDEN["t_eer_percent_exact"], abs=TOLERANCE)
    # At its thresholds the three error rates of the tandem agree as far as 900 trials allow.
    asv_accepts = [(scores > point.asv_threshold).mean() for scores in asv]
    cm_accepts = [(scores > point.cm_threshold).mean() for scores in cm]
    assert cm_accepts[1] * asv_accepts[2] == pytest.approx(point.value)
    assert 1 - cm_accepts[0] * asv_accepts[0] == pytest.approx(point.value, abs=2e-3)
    assert cm_accepts[0] * asv_accepts[1] == pytest.approx(point.value, abs=2e-3)


def test_presets_are_the_organisers_constants():
    asv = CONSTANTS["organisers_asv"]
    assert (
        AsvRates(p_miss=asv["p_miss"], p_fa=asv["p_fa_nontarget"], p_fa_spoof=asv["p_fa_spoof"])
        == ASVSPOOF5_ASV
    )
    costs = metrics.ASVSPOOF5_SASV
    assert (costs.p_target, costs.p_nontarget, costs.p_spoof) == (0.95 * 0.99, 0.95 * 0.01, 0.05)
    assert (costs.c_miss, costs.c_fa_nontarget, costs.c_fa_spoof) == (1, 10, 10)


def some_scores():
    return st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=8).map(np.array)


@given(some_scores(), some_scores(), some_scores())
def test_a_dcf_is_the_minimum_over_all_thresholds(target, nontarget, spoof):
    thresholds = np.append(np.unique(np.concatenate([target, nontarget, spoof])), np.inf)
    costs = [
        0.9405 * (target < t).mean() + 0.095 * (nontarget >= t).mean() + 0.5 * (spoof >= t).mean()
        for t in thresholds
    ]
    point = metrics.a_dcf(target, nontarget, spoof)
    assert point.value == pytest.approx(min(costs) / 0.595)
    above = [(scores > point.threshold).mean() for scores in (target, nontarget, spoof)]
    cost = 0.9405 * (1 - above[0]) + 0.095 * above[1] + 0.5 * above[2]
    assert point.value == pytest.approx(cost / 0.595)


@given(some_scores(), some_scores())
def test_t_dcf_with_a_perfect_asv_is_the_dcf_of_the_countermeasure(bonafide, spoof):
    # Without ASV errors and with every spoof let through, the tandem is the countermeasure alone.
    asv = AsvRates(p_miss=0.0, p_fa=0.0, p_fa_spoof=1.0)
    costs = SasvCosts(p_target=0.95, p_nontarget=0.0, p_spoof=0.05)
    point = metrics.min_t_dcf(bonafide, spoof, asv=asv, costs=costs)
    alone = metrics.min_dcf(bonafide, spoof)
    assert point.value == pytest.approx(alone.value)


def brute_force_t_eer(asv, cm):
    """The table of all pairs of thresholds, with the organisers' choice among them."""
    target, nontarget, spoof = asv
    asv_curve = [(0.0, 1.0, 1.0)]
    passed = np.zeros(3)
    for _, kind in sorted((s, k) for k, scores in enumerate(asv) for s in scores):
        passed[kind] += 1
        n = passed / [len(target), len(nontarget), len(spoof)]
        asv_curve.append((n[0], 1 - n[1], 1 - n[2]))
    curve = metrics.det_curve(*cm)
    best = np.inf, None
    for miss, fa, fa_spoof in asv_curve:
        if miss >= 0.5 * (fa + fa_spoof) or fa_spoof == 0:
            continue
        p_miss = curve.p_miss + (1 - curve.p_miss) * miss
        p_fa = 0.5 * (1 - curve.p_miss) * fa + 0.5 * curve.p_fa * fa_spoof
        i = int(np.argmin(np.abs(p_miss - p_fa)))
        if curve.p_miss[i] == 1:
            continue
        gap = abs(fa / fa_spoof - curve.p_fa[i] / (1 - curve.p_miss[i]))
        if gap < best[0]:
            best = gap, fa_spoof * curve.p_fa[i]
    return best[1]


@pytest.mark.parametrize("seed", range(30))
def test_t_eer_equals_the_whole_table(seed):
    r = np.random.default_rng(seed)
    n = r.integers(5, 30, 3)
    asv = tuple(r.normal(m, 1, k) for m, k in zip((2, -2, 0.5), n, strict=True))
    cm = r.normal(2, 1.5, n[0] + n[1]), r.normal(-1.5, 1.5, n[2])
    assert metrics.t_eer(asv, cm).value == pytest.approx(brute_force_t_eer(asv, cm), abs=1e-12)


def test_asv_rates_accept_at_the_threshold():
    """The EER threshold is a target's score here, and that target counts as accepted."""
    target, nontarget = [0.0, 1.0], [-1.0, 0.5]
    assert metrics.eer(target, nontarget).threshold == 0.0
    assert metrics.asv_rates(target, nontarget, [0.0]).p_miss == 0.0
    assert metrics.asv_rates(target, nontarget, [0.0]).p_fa_spoof == 1.0


def test_bayes_threshold_is_the_cheapest_for_true_llrs():
    costs = metrics.SasvCosts(
        p_target=0.6, p_nontarget=0.3, p_spoof=0.1, c_fa_nontarget=2.0, c_fa_spoof=5.0
    )
    rng = np.random.default_rng(0)
    # Unit Gaussians at +1 (targets) and −1 (the others): the true LLR is 2 s, whatever the mixture.
    llrs = [2 * rng.normal(mean, 1, 200_000) for mean in (1, -1, -1)]
    best = metrics.a_dcf(*llrs, costs)
    assert costs.threshold == pytest.approx(np.log((0.3 * 2 + 0.1 * 5) / 0.6))
    assert best.threshold == pytest.approx(costs.threshold, abs=0.1)
