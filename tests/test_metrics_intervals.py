"""The bootstrap against resampling by hand, known variances, and its own promises."""

import numpy as np
import pytest

from asvspoof_cm import metrics
from asvspoof_cm.metrics import ASVSPOOF5, Curve, intervals
from asvspoof_cm.metrics.track1 import _min_cllr_of

FUNCTIONS = {
    "min_dcf": metrics.min_dcf,
    "act_dcf": metrics.act_dcf,
    "eer": metrics.eer,
    "cllr": metrics.cllr,
}


def gauss(n_bonafide=300, n_spoof=900, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(1, 1, n_bonafide), rng.normal(-1, 1, n_spoof)


@pytest.mark.filterwarnings("ignore:tied scores", "ignore:the EER is")
@pytest.mark.parametrize("n_digits", [0, 1, 8])
def test_a_replicate_equals_the_metrics_of_the_repeated_trials(n_digits):
    rng = np.random.default_rng(n_digits)
    bonafide, spoof = (np.round(scores, n_digits) for scores in gauss(40, 70))
    curve = Curve.of(bonafide, spoof)
    for _ in range(50):
        counts = rng.integers(0, 4, 40), rng.integers(0, 4, 70)
        drawn = curve.drawn(counts)
        for name, metric in metrics.METRICS.items():
            found, expected = metric.function(drawn, ASVSPOOF5), FUNCTIONS[name](*drawn.trials())
            assert float(found) == pytest.approx(float(expected), abs=1e-12)
        assert _min_cllr_of(drawn) == pytest.approx(metrics.min_cllr(*drawn.trials()), abs=1e-12)


def test_value_is_the_metric_and_names_and_functions_agree():
    bonafide, spoof = gauss()
    several = metrics.bootstrap(metrics.METRICS, bonafide, spoof, n=50, seed=3)
    assert list(several) == list(metrics.METRICS)
    for name, function in FUNCTIONS.items():
        assert several[name].value == pytest.approx(float(function(bonafide, spoof)), abs=1e-12)
        assert several[name].low < several[name].value < several[name].high
        assert metrics.bootstrap(name, bonafide, spoof, n=50, seed=3) == several[name]
        same = metrics.bootstrap(function, bonafide, spoof, n=50, seed=3)
        for bound in ("value", "low", "high"):
            assert getattr(same, bound) == pytest.approx(getattr(several[name], bound), abs=1e-12)


@pytest.mark.parametrize("n", [1, 7, 4096, 8192, 20_001])
def test_draws_are_multinomial(n):
    rng = np.random.default_rng(0)
    draws = np.array([intervals.draw(rng, np.empty(n, dtype=np.int32)) for _ in range(400)])
    assert (draws.sum(axis=1) == n).all()
    # Mean 1 and variance 1 - 1/n for every item; five standard errors of 400 draws.
    assert np.abs(draws.mean(axis=0) - 1).max() < 5.5 / np.sqrt(400)
    assert draws.var(axis=0).mean() == pytest.approx(1 - 1 / n, abs=0.05)
    if n > 4096:
        # The stages leave no trace: the first half of the items gets a binomial share.
        half = draws[:, : n // 2].sum(axis=1)
        assert half.std() == pytest.approx(np.sqrt(n) / 2, rel=0.15)


def test_interval_has_the_width_of_the_normal_approximation():
    bonafide, spoof = gauss(2000, 8000)
    interval = metrics.bootstrap("act_dcf", bonafide, spoof, n=2000)
    p_miss = (bonafide < ASVSPOOF5.threshold).mean()
    p_fa = (spoof >= ASVSPOOF5.threshold).mean()
    deviation = np.sqrt(
        1.9**2 * p_miss * (1 - p_miss) / len(bonafide) + p_fa * (1 - p_fa) / len(spoof)
    )
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * deviation, rel=0.06)


def test_copies_of_trials_widen_the_interval_only_when_they_are_clusters():
    bonafide, spoof = gauss(150, 300)
    copies = np.repeat(bonafide, 4), np.repeat(spoof, 4)
    ids = np.repeat(np.arange(150), 4), 150 + np.repeat(np.arange(300), 4)
    trials = metrics.bootstrap("cllr", *copies, n=800)
    clusters = metrics.bootstrap("cllr", *copies, n=800, clusters=ids)
    ratio = (clusters.high - clusters.low) / (trials.high - trials.low)
    assert ratio == pytest.approx(2.0, rel=0.15)


def test_replicates_without_a_class_are_left_out_and_counted():
    bonafide, spoof = gauss(10, 30)
    ids = np.zeros(10), np.arange(30) % 3
    with pytest.warns(UserWarning, match="of 200 replicates drew no trial of one class"):
        interval = metrics.bootstrap("eer", bonafide, spoof, 200, clusters=ids)
    assert 0 < interval.n_replicates < 200


def test_compare_pairs_the_trials():
    bonafide, spoof = gauss(800, 2400)
    scores, labels = np.concatenate([bonafide, spoof]), np.repeat([1, 0], [800, 2400])
    rng = np.random.default_rng(5)
    noisy = scores + rng.normal(0, 0.1, len(scores))
    difference = metrics.compare(scores, noisy, labels, "eer", n=300)
    expected = (
        metrics.evaluate(scores, labels).eer.value - metrics.evaluate(noisy, labels).eer.value
    )
    assert difference.value == pytest.approx(expected, abs=1e-12)
    # Paired, the difference varies far less than either system.
    alone = metrics.bootstrap("eer", bonafide, spoof, n=300)
    assert difference.high - difference.low < 0.6 * (alone.high - alone.low)
    reverse = metrics.compare(noisy, scores, labels, "eer", n=300)
    assert (reverse.low, reverse.high) == pytest.approx((-difference.high, -difference.low))


def test_compare_of_equal_rankings_is_zero():
    scores, labels = np.concatenate(gauss()), np.repeat([1, 0], [300, 900])
    both = metrics.compare(scores, 3 * scores + 1, labels, ["eer", "min_dcf"], n=20)
    for interval in both.values():
        assert (interval.value, interval.low, interval.high) == (0.0, 0.0, 0.0)
    speakers = np.arange(1200).astype(str)  # of any type that sorts
    clustered = metrics.compare(scores, 2 * scores, labels, "cllr", n=20, clusters=speakers)
    assert clustered.low < clustered.value < clustered.high
