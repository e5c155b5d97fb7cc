"""Calibration and fusion: known likelihood ratios, optimality, invariances, limits."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from asvspoof_cm import calibration as calibration_module, metrics
from asvspoof_cm.calibration import (
    Calibration,
    decide,
    fit_calibration,
    fit_fusion,
    fuse_sasv,
    probability,
)
from asvspoof_cm.metrics import DetectionCosts, SasvCosts


@pytest.fixture(scope="module")
def trials():
    """N(3, 2²) against N(-1, 2²): the LLR is s - 1."""
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(3, 2, 20_000), rng.normal(-1, 2, 40_000)])
    return scores, np.repeat([1, 0], [20_000, 40_000])


@pytest.mark.parametrize("prior", [0.05, 0.5, 0.95, None])
def test_affine_finds_the_true_ratio(trials, prior):
    calibration = fit_calibration(*trials, prior)
    assert calibration.scale == pytest.approx(1.0, abs=0.04)
    assert calibration.offset == pytest.approx(-1.0, abs=0.08)


def test_affine_is_the_minimum_of_the_weighted_cross_entropy():
    rng = np.random.default_rng(1)
    bonafide, spoof = rng.normal(1, 2, 300), rng.normal(-1, 1, 500)
    labels = np.repeat(["bonafide", "spoof"], [300, 500])
    fitted = fit_calibration(np.concatenate([bonafide, spoof]), labels, prior=0.2)
    log_odds = np.log(0.8 / 0.2)

    def loss(p):
        miss = np.logaddexp(0, -(p[0] * bonafide + p[1] + log_odds)).mean()
        return 0.8 * miss + 0.2 * np.logaddexp(0, p[0] * spoof + p[1] + log_odds).mean()

    best = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-15})
    assert (fitted.scale, fitted.offset) == pytest.approx(tuple(best.x), abs=1e-5)


def test_affine_changes_neither_eer_nor_min_dcf_and_reaches_it(trials):
    scores, labels = trials
    raw = metrics.evaluate(5 * scores - 20, labels)
    calibration = fit_calibration(5 * scores - 20, labels)
    after = metrics.evaluate(calibration.apply(5 * scores - 20), labels)
    assert after.eer.value == raw.eer.value
    assert after.min_dcf.value == raw.min_dcf.value
    assert raw.act_dcf.value > 1.5 * raw.min_dcf.value
    assert after.act_dcf.value == pytest.approx(after.min_dcf.value, rel=0.01)
    assert after.cllr == pytest.approx(after.min_cllr, abs=3e-3)


def test_isotonic_reaches_the_minimum_costs(trials):
    scores, labels = trials
    calibration = fit_calibration(np.sinh(scores), labels, method="isotonic")
    llr = calibration.apply(np.sinh(scores))
    minimum = metrics.evaluate(scores, labels)
    assert metrics.cllr(llr[labels == 1], llr[labels == 0]) == pytest.approx(
        minimum.min_cllr, abs=2e-4
    )
    act = metrics.act_dcf(llr[labels == 1], llr[labels == 0]).value
    assert act == pytest.approx(minimum.min_dcf.value, abs=1e-3)
    assert (np.diff(calibration.apply(np.linspace(-1e4, 1e4, 999))) >= 0).all()
    middle = np.linspace(-1, 3, 21)
    np.testing.assert_allclose(calibration.apply(np.sinh(middle)), middle - 1, atol=0.25)


def test_separable_data_stay_finite():
    scores, labels = [1.0, 2.0, 3.0, -1.0, -2.0, -3.0], [1, 1, 1, 0, 0, 0]
    affine = fit_calibration(scores, labels)
    assert 1 < affine.scale < 100
    assert np.isfinite(affine.offset)
    far = fit_calibration(np.array(scores) * 1e8, labels)
    assert far.scale * 1e8 == pytest.approx(affine.scale, rel=1e-3)
    isotonic = fit_calibration(scores, labels, method="isotonic")
    # One error added to the three trials of each class: ratios of 3/4 against 1/4.
    assert isotonic.apply([-9.0, 9.0]) == pytest.approx([-np.log(3), np.log(3)])


def test_isotonic_on_unbalanced_tiny_sets():
    only_one_spoof = fit_calibration([0.0, 1.0, 2.0, -1.0], [1, 1, 1, 0], method="isotonic")
    values = only_one_spoof.apply([-1.0, 0.0, 2.0])
    assert np.isfinite(values).all()
    assert (np.diff(values) >= 0).all()
    constant = fit_calibration([0.0, 0.0, 0.0], [1, 0, 0], method="isotonic")
    assert constant.apply([0.0, 5.0]) == pytest.approx([0.0, 0.0])


def test_fit_is_deterministic(trials):
    assert fit_calibration(*trials) == fit_calibration(*trials)


@pytest.mark.parametrize("method", ["affine", "isotonic"])
def test_json_round_trip(trials, method):
    calibration = fit_calibration(*trials, method=method)
    back = Calibration.from_dict(json.loads(json.dumps(calibration.as_dict())))
    assert back == calibration
    np.testing.assert_array_equal(back.apply(trials[0]), calibration.apply(trials[0]))


def test_probability_is_bayes_rule():
    llr, prior = np.array([-2.0, 0.0, 3.0]), 0.3
    expected = np.exp(llr) * 0.7 / (np.exp(llr) * 0.7 + 0.3)
    np.testing.assert_allclose(probability(llr, prior), expected)
    assert probability([-1e4, 1e4], 0.5).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="`prior` must be the probability of spoof"):
        probability(llr, 1.0)


def test_decisions_cost_what_act_dcf_says(trials):
    scores, labels = trials
    llr = scores - 1
    costs = DetectionCosts(p_spoof=0.2, c_miss=1, c_fa=3)
    decided = decide(llr, costs)
    p_miss = (decided[labels == 1] == 0).mean()
    p_fa = (decided[labels == 0] == 1).mean()
    expected = (costs.beta * p_miss + p_fa) / min(costs.beta, 1)
    actual = metrics.act_dcf(llr[labels == 1], llr[labels == 0], costs).value
    assert actual == pytest.approx(expected)
    # No other threshold is cheaper in expectation: the probability rule decides the same.
    assert (
        decided.tolist()
        == (probability(llr, 0.2) * costs.c_miss >= (1 - probability(llr, 0.2)) * costs.c_fa)
        .astype(int)
        .tolist()
    )


def sasv_trials(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(["target", "nontarget", "spoof"], n)
    asv_mean, cm_mean = np.repeat([2.0, -2.0, 2.0], n), np.repeat([1.5, 1.5, -1.5], n)
    asv, cm = rng.normal(asv_mean, 1), rng.normal(cm_mean, 1)
    return asv, cm, labels


def test_fuse_sasv_is_the_likelihood_ratio_against_the_mixture():
    asv, cm, _ = sasv_trials(50)
    costs = SasvCosts()
    # In these trials nontargets differ by the ASV score only, spoofs by the CM score only.
    p_target = norm.pdf(asv, 2) * norm.pdf(cm, 1.5)
    p_nontarget = norm.pdf(asv, -2) * norm.pdf(cm, 1.5)
    p_spoof = norm.pdf(asv, 2) * norm.pdf(cm, -1.5)
    expected = np.log(p_target / ((1 - costs.rho) * p_nontarget + costs.rho * p_spoof))
    np.testing.assert_allclose(fuse_sasv(4 * asv, 3 * cm, costs), expected, atol=1e-9)


def test_fuse_sasv_limits():
    assert fuse_sasv([1000.0, -1000.0], [1000.0, 1000.0]) == pytest.approx([1000, -1000], abs=2)
    no_spoofs = SasvCosts(p_target=0.9, p_nontarget=0.1, p_spoof=0.0)
    assert fuse_sasv([0.3], [-50.0], no_spoofs) == pytest.approx([0.3])


def test_both_fusions_beat_either_system():
    asv, cm, labels = sasv_trials()
    systems = np.stack([asv, cm], axis=1)
    fusion = fit_fusion(systems, labels)

    def a_dcf(scores):
        return metrics.a_dcf(*(scores[labels == c] for c in ("target", "nontarget", "spoof"))).value

    nonlinear, linear = a_dcf(fuse_sasv(4 * asv, 3 * cm)), a_dcf(fusion.apply(systems))
    assert max(nonlinear, linear) < 0.8 * min(a_dcf(asv), a_dcf(cm))
    # The true class log-likelihoods are linear here, so both are the same optimal score.
    assert linear == pytest.approx(nonlinear, rel=0.02)
    np.testing.assert_allclose(
        fusion.apply(systems), fuse_sasv(4 * asv, 3 * cm), rtol=0.2, atol=0.5
    )


def test_fusion_checks_its_systems_and_priors():
    asv, cm, labels = sasv_trials(50)
    systems = np.stack([asv, cm], axis=1)
    with pytest.raises(ValueError, match=r"`scores` must have shape \(n_trials, 2\); got \(150,\)"):
        fit_fusion(systems, labels).apply(asv)
    without_spoofs = SasvCosts(p_target=0.9, p_nontarget=0.1, p_spoof=0.0)
    with pytest.raises(ValueError, match="`costs` must give every class a positive prior"):
        fit_fusion(systems, labels, without_spoofs)


@pytest.mark.parametrize("prior", [0.5, 0.05, 1e-3, 1e-6])
@pytest.mark.parametrize(("distance", "bound"), [(2.0, 1e-6), (5.0, 1e-4), (6.0, 1e-3)])
def test_the_ridge_hardly_changes_the_slope(monkeypatch, distance, bound, prior):
    rng = np.random.default_rng(0)
    scores = rng.normal(np.repeat([distance / 2, -distance / 2], 5000), 1)
    labels = np.repeat([1, 0], 5000)
    with_ridge = fit_calibration(scores, labels, prior)
    monkeypatch.setattr(calibration_module, "RIDGE", 1e-14)
    without = fit_calibration(scores, labels, prior)
    assert with_ridge.scale == pytest.approx(without.scale, rel=bound)


@pytest.mark.parametrize("factor", [2.0**-900, 2.0**700, 2.0**1000])
def test_enormous_and_tiny_scores_are_fitted_alike(factor):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(np.repeat([1, -1], 500), 1), np.repeat([1, 0], 500)
    plain = fit_calibration(scores, labels)
    scaled = fit_calibration(factor * scores, labels)
    assert scaled.scale * factor == pytest.approx(plain.scale, rel=1e-12)
    assert scaled.offset == pytest.approx(plain.offset, rel=1e-12)


def test_infinite_ratios_are_certainties():
    assert decide([-np.inf, np.inf]).tolist() == [0, 1]
    assert probability([-np.inf, np.inf]).tolist() == [0.0, 1.0]
