"""The metrics beside the organisers' package (peer ``asvspoof5``), and the bootstrap."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from asvspoof_cm import metrics
from harness import Options, Row, interleave

# The trials of the ASVspoof 5 evaluation and development sets.
N_EVAL = 138_688, 542_086
N_DEV = 31_334, 109_616
N_TANDEM = 4_000, 11_548, 14_000


def run(options: Options) -> list[Row]:
    """Measure speed, deviation and memory of the metrics."""
    peer = options.peer("asvspoof5")
    rows = []
    modules = None
    if peer is not None:
        modules, a_dcf = _organisers(str(peer / "evaluation-package"))
        rows += _track1(modules, options)
        rows += _ties(modules)
        rows += _track2(modules, a_dcf, options)
    return rows + _bootstrap(modules, options)


def _organisers(path: str) -> tuple[ModuleType, ModuleType]:
    sys.path.insert(0, path)
    try:
        import a_dcf
        import calculate_modules
    finally:
        sys.path.remove(path)
    return calculate_modules, a_dcf


def _gauss(n_bonafide: int, n_spoof: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.normal(1, 1, n_bonafide), rng.normal(-1, 1, n_spoof)


def _their_track1(modules: ModuleType, bonafide: np.ndarray, spoof: np.ndarray) -> list[float]:
    eer, frr, far, thresholds, eer_threshold = modules.compute_eer(bonafide, spoof)
    min_dcf = modules.compute_mindcf(frr, far, thresholds, 0.05, 1, 10)
    act_dcf = modules.compute_actDCF(bonafide, spoof, 0.05, 1, 10)
    return [eer, eer_threshold, *min_dcf, *act_dcf, modules.calculate_CLLR(bonafide, spoof)]


def _our_track1(bonafide: np.ndarray, spoof: np.ndarray) -> list[float]:
    points = [f(bonafide, spoof) for f in (metrics.eer, metrics.min_dcf, metrics.act_dcf)]
    flat = [figure for point in points for figure in (point.value, point.threshold)]
    return [*flat, metrics.cllr(bonafide, spoof)]


def _deviation(ours: list[float], theirs: list[float]) -> float:
    return float(np.abs(np.array(ours) - np.array(theirs)).max())


def _track1(modules: ModuleType, options: Options) -> list[Row]:
    bonafide, spoof = _gauss(*N_EVAL)
    scores = np.concatenate([bonafide, spoof])
    labels = np.repeat([1, 0], N_EVAL)
    seconds = interleave(
        {
            "ours": lambda: metrics.evaluate(scores, labels),
            "theirs": lambda: _their_track1(modules, bonafide, spoof),
        },
        n_rounds=3 if options.quick else 9,
    )
    found = metrics.evaluate(scores, labels)
    points = (found.eer, found.min_dcf, found.act_dcf)
    ours = [figure for point in points for figure in (point.value, point.threshold)]
    deviation = _deviation([*ours, found.cllr], _their_track1(modules, bonafide, spoof))
    case = f"Track 1, metrics.evaluate, {sum(N_EVAL):,} trials"
    about = {"deviation": deviation, "within": 1e-9, "note": "with min Cllr"}
    return [Row.beside(case, *seconds.values(), "organisers", times=15, **about)]


def _ties(modules: ModuleType) -> list[Row]:
    """Values and thresholds on many small sets, with many, some and no ties."""
    rng = np.random.default_rng(0)
    worst, n_sets = 0.0, 2000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(n_sets):
            n_digits = rng.integers(0, 4)
            bonafide, spoof = (
                rng.normal(mean, 1, n)
                for mean, n in zip((rng.uniform(-1, 2), 0), rng.integers(1, 40, 2), strict=True)
            )
            if n_digits < 3:
                bonafide, spoof = np.round(bonafide, n_digits), np.round(spoof, n_digits)
            theirs = _their_track1(modules, bonafide, spoof)
            worst = max(worst, _deviation(_our_track1(bonafide, spoof), theirs))
    return [
        Row(
            case="Track 1, random sets of 1 to 39 trials a class, ties included",
            ours=n_sets,
            unit="sets",
            deviation=worst,
            goal="≤ 1e-9",
            met=worst <= 1e-9,
            note="values and thresholds",
        )
    ]


def _track2(modules: ModuleType, their_a_dcf: ModuleType, options: Options) -> list[Row]:
    rng = np.random.default_rng(7)
    target, nontarget = rng.normal(2, 1, 100_000), rng.normal(-1, 1, 38_688 + 200_000)
    spoof = rng.normal(0, 1, sum(N_EVAL) - len(target) - len(nontarget))
    model = their_a_dcf.CostModel(
        Ptrg=0.95 * 0.99, Pnontrg=0.95 * 0.01, Pspf=0.05, Cmiss=1, Cfa_asv=10, Cfa_cm=10
    )

    def theirs() -> list[float]:
        result = their_a_dcf._calculate_a_dcf(target, nontarget, spoof, model, False)
        return [float(result["min_a_dcf"]), float(result["min_a_dcf_thresh"])]

    seconds = interleave(
        {"ours": lambda: metrics.a_dcf(target, nontarget, spoof), "theirs": theirs},
        n_rounds=3 if options.quick else 7,
    )
    point = metrics.a_dcf(target, nontarget, spoof)
    deviation = _deviation([point.value, point.threshold], theirs())
    case = f"a-DCF, {sum(N_EVAL):,} trials"
    about = {"deviation": deviation, "within": 1e-9}
    rows = [Row.beside(case, *seconds.values(), "organisers", times=20, **about)]
    asv = tuple(rng.normal(m, 1, n) for m, n in zip((2, -2, 0.5), N_TANDEM, strict=True))
    cm = rng.normal(2, 1.5, sum(N_TANDEM[:2])), rng.normal(-1.5, 1.5, N_TANDEM[2])

    def tandem(function: Callable[..., Any]) -> Callable[[], float]:
        def call() -> float:
            cm_curves = modules.compute_det_curve(*cm)
            return float(function(*cm_curves, *modules.compute_Pmiss_Pfa_Pspoof_curves(*asv)))

        return call

    references = {"their approximation": tandem(modules.compute_teer_accelerated)}
    if not options.quick:
        references["their exact table"] = tandem(modules.compute_teer)
    for name, function in references.items():
        n_rounds = 1 if "exact" in name else 3
        seconds = interleave(
            {"ours": lambda: metrics.t_eer(asv, cm), "theirs": function},
            n_rounds=n_rounds,
            warm_up=0 if "exact" in name else 1,
        )
        deviation = abs(metrics.t_eer(asv, cm).value - function() / 100)
        case = f"t-EER, {sum(N_TANDEM):,} trials"
        rows.append(Row.beside(case, *seconds.values(), name, deviation=deviation, within=1e-9))
    return rows


def _bootstrap(modules: ModuleType | None, options: Options) -> list[Row]:
    bonafide, spoof = _gauss(*N_DEV)
    rng = np.random.default_rng(0)

    def resample(function: Callable[..., object], n: int) -> Callable[[], None]:
        def loop() -> None:
            for _ in range(n):
                drawn = (x[rng.integers(0, len(x), len(x))] for x in (bonafide, spoof))
                function(*drawn)

        return loop

    naive, organisers = "naive loop over our functions", "naive loop over the organisers'"
    n_replicates = {"ours": 100, naive: 20, organisers: 2}
    functions = {
        "ours": lambda: metrics.bootstrap(metrics.METRICS, bonafide, spoof, n_replicates["ours"]),
        naive: resample(_our_track1, n_replicates[naive]),
    }
    if modules is not None:
        functions[organisers] = resample(
            lambda b, s: _their_track1(modules, b, s), n_replicates[organisers]
        )
    seconds = interleave(functions, n_rounds=3 if options.quick else 9)
    per_thousand = {name: 1000 * seconds[name] / n_replicates[name] for name in functions}
    deviation = _replicate_deviation(bonafide, spoof)
    case = f"bootstrap, 1,000 replicates of four metrics, {sum(N_DEV):,} trials"
    rows = []
    for name in list(per_thousand)[1:]:
        counts = f"{n_replicates['ours']} and {n_replicates[name]}"
        about = {"deviation": deviation, "note": f"timed over {counts} replicates, scaled"}
        times = per_thousand["ours"], per_thousand[name]
        rows.append(Row.beside(case, *times, name, times=10, **about))
    return rows


def _replicate_deviation(bonafide: np.ndarray, spoof: np.ndarray) -> float:
    """One replicate by counts against the same trials repeated and sorted again."""
    curve = metrics.Curve.of(bonafide, spoof)
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 3, len(bonafide)), rng.integers(0, 3, len(spoof))
    drawn = curve.drawn(counts)
    ours = {
        name: float(metric.function(drawn, metrics.ASVSPOOF5))
        for name, metric in metrics.METRICS.items()
    }
    eer, _, min_dcf, _, act_dcf, _, cllr = _our_track1(
        np.repeat(np.sort(bonafide), counts[0]), np.repeat(np.sort(spoof), counts[1])
    )
    expected = {"min_dcf": min_dcf, "act_dcf": act_dcf, "eer": eer, "cllr": cllr}
    return max(abs(ours[name] - expected[name]) for name in metrics.METRICS)
