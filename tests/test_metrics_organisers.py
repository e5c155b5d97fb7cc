"""Side by side with the organisers' package, where ASVSPOOF5_PATH says where it is checked out."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asvspoof_cm import metrics
from asvspoof_cm.metrics.track2 import ASVSPOOF5_ASV

PACKAGE = Path(os.environ.get("ASVSPOOF5_PATH", "")) / "evaluation-package"
pytestmark = [
    pytest.mark.skipif(
        "ASVSPOOF5_PATH" not in os.environ, reason="ASVSPOOF5_PATH names no checkout of asvspoof5"
    ),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def organisers():
    sys.path.insert(0, str(PACKAGE))
    try:
        import a_dcf
        import calculate_modules
    finally:
        sys.path.remove(str(PACKAGE))
    return calculate_modules, a_dcf


def draw(rng, *means):
    """A few scores of each class, with many, some or no ties."""
    n_digits = rng.integers(0, 4)
    scores = [rng.normal(mean, 1.2, rng.integers(1, 40)) for mean in means]
    return scores if n_digits == 3 else [np.round(x, n_digits) for x in scores]


@pytest.mark.parametrize("seed", range(8))
def test_track1_values_and_thresholds_are_identical(organisers, seed):
    theirs, _ = organisers
    rng = np.random.default_rng(seed)
    for _ in range(250):
        bonafide, spoof = draw(rng, rng.uniform(-1, 2), 0.0)
        eer, frr, far, thresholds, eer_threshold = theirs.compute_eer(bonafide, spoof)
        min_dcf = theirs.compute_mindcf(frr, far, thresholds, 0.05, 1, 10)
        act_dcf = theirs.compute_actDCF(bonafide, spoof, 0.05, 1, 10)
        ours = (
            metrics.eer(bonafide, spoof),
            metrics.min_dcf(bonafide, spoof),
            metrics.act_dcf(bonafide, spoof),
        )
        flat = [figure for point in ours for figure in (point.value, point.threshold)]
        expected = [eer, eer_threshold, *min_dcf, *act_dcf]
        np.testing.assert_allclose(flat, expected, rtol=0, atol=1e-9)
        cllr = theirs.calculate_CLLR(bonafide, spoof)
        assert metrics.cllr(bonafide, spoof) == pytest.approx(cllr, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_track2_values_are_identical(organisers, seed):
    theirs, their_a_dcf = organisers
    rng = np.random.default_rng(seed)
    model = their_a_dcf.CostModel(
        Ptrg=0.95 * 0.99, Pnontrg=0.95 * 0.01, Pspf=0.05, Cmiss=1, Cfa_asv=10, Cfa_cm=10
    )
    for _ in range(150):
        asv = draw(rng, 2.0, -2.0, 0.5)
        ours = metrics.a_dcf(*asv)
        expected = their_a_dcf._calculate_a_dcf(*asv, model, False)
        assert ours.value == pytest.approx(float(expected["min_a_dcf"]), abs=1e-9)
        assert ours.threshold == pytest.approx(float(expected["min_a_dcf_thresh"]), abs=1e-9)
        bonafide, spoof = draw(rng, 2.0, -1.5)
        asv_curves = theirs.compute_Pmiss_Pfa_Pspoof_curves(*asv)
        cm_curves = theirs.compute_det_curve(bonafide, spoof)
        expected = theirs.compute_teer(*cm_curves, *asv_curves)
        t_eer = metrics.t_eer(tuple(asv), (bonafide, spoof))
        assert 100 * t_eer.value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_t_dcf_is_identical_for_the_organisers_rates_and_for_supplied_scores(organisers, seed):
    theirs, _ = organisers
    rng = np.random.default_rng(seed)
    model = {"Pspoof": 0.05, "Ptar": 0.95 * 0.99, "Pnon": 0.95 * 0.01}
    model |= {"Cmiss": 1, "Cfa": 10, "Cfa_spoof": 10}

    def minimum(p_fa, p_miss, p_fa_spoof):
        rates = (p_fa, p_miss, p_fa_spoof)
        curve, thresholds = theirs.compute_tDCF(bonafide, spoof, *rates, model, print_cost=False)
        best = np.argmin(curve)
        return pytest.approx((curve[best], thresholds[best]), abs=1e-9)

    n_compared = 0
    for _ in range(150):
        bonafide, spoof = draw(rng, 2.0, -1.5)
        if len(np.unique(np.concatenate([bonafide, spoof]))) < 3:
            continue  # the organisers take these for decisions
        ours = metrics.min_t_dcf(bonafide, spoof)
        rates = ASVSPOOF5_ASV
        expected = minimum(rates.p_fa, rates.p_miss, rates.p_fa_spoof)
        assert (ours.value, ours.threshold) == expected
        asv = draw(rng, 3.0, -3.0, 0.5)
        threshold = theirs.compute_eer(asv[0], asv[1])[-1]
        p_fa, p_miss, p_miss_spoof, p_fa_spoof = theirs.obtain_asv_error_rates(*asv, threshold)
        c0 = model["Ptar"] * p_miss + 10 * model["Pnon"] * p_fa
        if not 0.0 < c0 < model["Ptar"]:
            continue  # refused by us, a division by zero or a negative weight there
        ours = metrics.min_t_dcf(bonafide, spoof, asv=tuple(asv))
        assert (ours.value, ours.threshold) == minimum(p_fa, p_miss, p_fa_spoof)
        # What their script passes on: the share of rejected spoofs.
        rates = metrics.asv_rates(*asv)
        legacy = metrics.min_t_dcf(
            bonafide, spoof, asv=replace(rates, p_fa_spoof=1 - rates.p_fa_spoof)
        )
        assert (legacy.value, legacy.threshold) == minimum(p_fa, p_miss, p_miss_spoof)
        n_compared += 1
    assert n_compared > 30
