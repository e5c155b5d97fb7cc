"""Calibration and fusion: known likelihood ratios, optimality, invariances, limits."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from asvspoof_cm import calibration as calibration_module, metrics
from asvspoof_cm.calibration import (
    Calibration,
    adapt_calibration,
    costs_at,
    decide,
    fit_calibration,
    fit_fusion,
    fuse_sasv,
    load_settings,
    probability,
    save_settings,
    threshold_for,
)
from asvspoof_cm.metrics import DetectionCosts, SasvCosts


@pytest.fixture(scope="module")
def trials():
    """N(3, 2²) against N(-1, 2²): the LLR is s - 1."""
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(3, 2, 20_000), rng.normal(-1, 2, 40_000)])
    return scores, np.repeat([1, 0], [20_000, 40_000])


@pytest.mark.parametrize("prior", [0.05, 0.5, 0.95])
def test_the_fit_finds_the_true_ratio(trials, prior):
    calibration = fit_calibration(*trials, prior)
    assert calibration.scale == pytest.approx(1.0, abs=0.04)
    assert calibration.offset == pytest.approx(-1.0, abs=0.08)


def test_the_fit_is_the_minimum_of_the_weighted_cross_entropy():
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


def test_the_map_changes_neither_eer_nor_min_dcf_and_reaches_it(trials):
    scores, labels = trials
    raw = metrics.evaluate(5 * scores - 20, labels)
    calibration = fit_calibration(5 * scores - 20, labels)
    after = metrics.evaluate(calibration.apply(5 * scores - 20), labels)
    assert after.eer.value == raw.eer.value
    assert after.min_dcf.value == raw.min_dcf.value
    assert raw.act_dcf.value > 1.5 * raw.min_dcf.value
    assert after.act_dcf.value == pytest.approx(after.min_dcf.value, rel=0.01)
    assert after.cllr == pytest.approx(after.min_cllr, abs=3e-3)


def test_separable_data_stay_finite():
    scores, labels = [1.0, 2.0, 3.0, -1.0, -2.0, -3.0], [1, 1, 1, 0, 0, 0]
    near = fit_calibration(scores, labels)
    assert 1 < near.scale < 100
    assert np.isfinite(near.offset)
    far = fit_calibration(np.array(scores) * 1e8, labels)
    assert far.scale * 1e8 == pytest.approx(near.scale, rel=1e-3)
    # Three of each show no more than one error among four would.
    assert np.abs(far.apply([-1e99, 1e99])) == pytest.approx(np.log(4))


def test_small_objects_are_kept(trials, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat(["target", "nontarget", "spoof"], 50)
    things = (
        fit_calibration(*trials, fitted_for={"n_crops": 5}, name="phone"),
        fit_fusion(rng.normal(size=(150, 2)), labels),
        threshold_for(trials[0][:500]),
    )
    for thing in things:
        save_settings(tmp_path / "kept.json", thing)
        assert load_settings(tmp_path / "kept.json") == thing
    (tmp_path / "kept.json").write_text("[1]")
    with pytest.raises(ValueError, match="must be a file that save_settings wrote"):
        load_settings(tmp_path / "kept.json")
    with pytest.raises(ValueError, match="isotonic calibrations are gone"):
        Calibration.from_dict({"kind": "isotonic", "knots": [[0.0, 0.0]]})
    stored = {"kind": "affine", "scale": 2.0, "offset": 0.5, "knots": [], "fitted_for": {}}
    assert Calibration.from_dict(stored) == Calibration(scale=2.0, offset=0.5)
    one, other = Calibration(scale=2.0, name="a"), Calibration(scale=2.0, name="b")
    assert one.sha256 == other.sha256 != Calibration(scale=2.1, name="a").sha256


def few(seed, n=30, shift=0.0):
    """LLRs of n recordings of each class, moved by what a channel does."""
    rng = np.random.default_rng(seed)
    return rng.normal(np.repeat([4, -4], n) + shift, np.sqrt(8)), np.repeat([1, 0], n)


def test_few_files_do_not_make_enormous_ratios():
    """60 files that are told apart gave a plain prompt an LLR of 28.7."""
    scores = np.linspace(2, 6, 30)
    labels = np.repeat([1, 0], 30)
    fitted = fit_calibration(np.concatenate([scores, -scores]), labels)
    assert fitted.scale * 6 > 10  # what a line through all would say
    assert fitted.apply(6.0) == pytest.approx(np.log(31))
    assert (np.diff(fitted.apply(np.linspace(-3, 3, 99))) > 0).all()
    low, high = fitted.interval([0.0, 4.0])
    assert (low <= fitted.apply([0.0, 4.0])).all()
    assert (fitted.apply([0.0, 4.0]) <= high).all()
    near = fit_calibration(np.concatenate([scores, -scores]), labels, towards=Calibration())
    assert 1 < near.scale < 1.5
    with pytest.raises(ValueError, match="must come from a fit"):
        Calibration().interval([0.0])


def test_the_interval_holds_the_truth():
    truth, at = [], np.array([-2.0, 0.0, 2.0])
    for seed in range(120):
        low, high = fit_calibration(*few(seed, 200), prior=0.5).interval(at)
        truth.append((low <= at) & (at <= high))
    assert 0.9 < np.mean(truth) < 0.99


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_with_few_files_the_own_map_is_a_good_start(shift):
    """The costs on many recordings, calibrated on 10 of each class of the same channel."""
    costs = DetectionCosts()
    many, labels = few(0, 20_000, shift)

    def cost(towards):
        found = []
        for seed in range(1, 40):
            llr = fit_calibration(*few(seed, 10, shift), towards=towards).apply(many)
            found.append(metrics.act_dcf(llr[labels == 1], llr[labels == 0], costs).value)
        return np.mean(found)

    unchanged = metrics.act_dcf(many[labels == 1], many[labels == 0], costs).value
    assert cost(Calibration()) < unchanged + 0.012
    if shift < 2:
        assert cost(Calibration()) < cost(None)
    else:
        assert cost(Calibration()) < unchanged - 0.05


@pytest.mark.parametrize(
    ("n_human", "n_fake", "gain", "harm"), [(5, 5, 2.0, 0.5), (20, 20, 3.0, 0.4)]
)
def test_adaptation_never_harms_much_and_helps_where_a_channel_shifts(n_human, n_fake, gain, harm):
    """In points of the mean of both error rates at the threshold, exactly, for Gaussian scores."""
    threshold, spread = DetectionCosts().threshold, np.sqrt(8)

    def change(shift):
        rng = np.random.default_rng(1)
        errors = []
        for _ in range(120):
            human = rng.normal(4 + shift, spread, n_human)
            fake = rng.normal(-4 + shift, spread, n_fake)
            moved = adapt_calibration(Calibration(), human, fake).offset
            for offset in (0.0, moved):
                at = threshold - shift - offset
                missed, passed = norm.cdf((at - 4) / spread), norm.sf((at + 4) / spread)
                errors.append(50 * (missed + passed))
        return np.mean(errors[1::2]) - np.mean(errors[::2])

    assert change(0.0) < harm
    assert change(2.0) < -gain
    shifts = np.linspace(-3, 3, 7)
    weights = norm.pdf(shifts) / norm.pdf(shifts).sum()
    assert weights @ [change(shift) for shift in shifts] < 0


def test_people_alone_raise_ratios_only():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="people alone show that they are refused too often"):
        refused = adapt_calibration(Calibration(), rng.normal(-3, 2, 40))
    assert 2 < refused.offset < 7
    with pytest.warns(UserWarning, match="people alone"):
        assert adapt_calibration(Calibration(), rng.normal(6, 1, 40)).offset == 0.0
    own = Calibration(fitted_for={"n_crops": 5})
    with pytest.warns(UserWarning, match="people alone"):
        fitted = fit_calibration(rng.normal(-3, 2, 40), np.ones(40), towards=own, name="x")
    assert (fitted.scale, fitted.name, fitted.fitted_for) == (1.0, "x", {"n_crops": 5})
    assert fitted.offset > 2
    with pytest.raises(ValueError, match="no spoof trial"):
        fit_calibration([1.0, 2.0], [1, 1])
    for scores, message in (
        ([1.0, np.nan], "`scores` must be finite"),
        ([1.0], "`scores` must have one"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_calibration(scores, [1, 1], towards=own)


def test_a_threshold_says_what_people_show():
    forty = threshold_for(np.linspace(1, 5, 40), 0.01)
    assert (forty.threshold, forty.is_shown, forty.n_needed) == (1.0, False, 299)
    assert "40 people cannot show 1 %; 299 without an error can." in str(forty)
    enough = threshold_for(np.linspace(1, 5, 299), 0.01)
    assert enough.is_shown
    assert enough.refusal_rate.value == 0
    assert "as 299 people show." in str(enough)
    assert not threshold_for(np.linspace(1, 5, 298), 0.01).is_shown
    many = threshold_for(np.random.default_rng(0).permutation(np.arange(10_000.0)), 0.01)
    assert 0.007 < many.refusal_rate.value < 0.009  # room for chance
    assert many.refusal_rate.low < many.refusal_rate.value < many.refusal_rate.high <= 0.01
    assert threshold_for(np.zeros(1000), 0.01).threshold == 0.0
    with pytest.raises(ValueError, match="`refuse_at_most` must lie between 0 and 1"):
        threshold_for([1.0], 1.0)


def test_a_threshold_keeps_its_promise():
    """Of 400 customers each, in at most one of twenty banks more than 2 % of all are refused."""
    rng = np.random.default_rng(0)
    rates = [norm.cdf(threshold_for(rng.normal(size=400), 0.02).threshold) for _ in range(1000)]
    assert np.mean(np.array(rates) > 0.02) < 0.06


def test_costs_of_a_threshold():
    for threshold in (-5.0, 0.0, 3.0):
        assert costs_at(threshold, p_spoof=0.2, c_miss=2).threshold == pytest.approx(threshold)


def test_probability_is_bayes_rule():
    llr, prior = np.array([-2.0, 0.0, 3.0]), 0.3
    expected = np.exp(llr) * 0.7 / (np.exp(llr) * 0.7 + 0.3)
    np.testing.assert_allclose(probability(llr, prior), expected)
    assert probability([-1e4, 1e4], 0.5).tolist() == [0.0, 1.0]
    # Infinite ratios are certainties.
    assert probability([-np.inf, np.inf]).tolist() == decide([-np.inf, np.inf]).tolist() == [0, 1]
    with pytest.raises(ValueError, match="`prior` must lie between 0 and 1, excluded; got 1"):
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
    bonafide = probability(llr, 0.2)
    cheaper = bonafide * costs.c_miss >= (1 - bonafide) * costs.c_fa
    assert decided.tolist() == cheaper.astype(int).tolist()


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

    nonlinear, linear = fuse_sasv(4 * asv, 3 * cm), fusion.apply(systems)
    assert max(a_dcf(nonlinear), a_dcf(linear)) < 0.8 * min(a_dcf(asv), a_dcf(cm))
    # The true class log-likelihoods are linear here, so both are the same optimal score.
    assert a_dcf(linear) == pytest.approx(a_dcf(nonlinear), rel=0.02)
    np.testing.assert_allclose(linear, nonlinear, rtol=0.2, atol=0.5)
    with pytest.raises(
        ValueError, match=r"`scores` must have shape \(n_trials, 2\); got \(9000,\)"
    ):
        fit_fusion(systems, labels).apply(asv)
    without_spoofs = SasvCosts(p_target=0.9, p_nontarget=0.1, p_spoof=0.0)
    with pytest.raises(ValueError, match="`costs` must give every class a positive prior"):
        fit_fusion(systems, labels, without_spoofs)


@pytest.mark.parametrize("prior", [0.5, 1e-6])
@pytest.mark.parametrize(("distance", "bound"), [(2.0, 1e-6), (5.0, 1e-4), (6.0, 1e-3)])
def test_the_ridge_hardly_changes_the_slope(monkeypatch, distance, bound, prior):
    rng = np.random.default_rng(0)
    scores = rng.normal(np.repeat([distance / 2, -distance / 2], 5000), 1)
    labels = np.repeat([1, 0], 5000)
    with_ridge = fit_calibration(scores, labels, prior)
    monkeypatch.setattr(calibration_module, "RIDGE", 1e-14)
    without = fit_calibration(scores, labels, prior)
    assert with_ridge.scale == pytest.approx(without.scale, rel=bound)
