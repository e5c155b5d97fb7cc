"""Calibrate, fuse and evaluate two systems on scored trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asvspoof_cm import BONAFIDE, SPOOF, metrics
from asvspoof_cm.calibration import (
    Calibration,
    LinearFusion,
    fit_calibration,
    fit_fusion,
    fuse_sasv,
)
from asvspoof_cm.labels import SASV_CLASSES
from asvspoof_cm.metrics import ASVSPOOF5_SASV, Interval, SasvCosts
from sasv_trials import FloatArray, Trials, TrialScores


@dataclass(frozen=True, kw_only=True)
class Calibrations:
    """What is fitted on the calibration part.

    Attributes:
        asv: From cosine to the LLR of target against nontarget.
        cm: From the countermeasure's score to the LLR of bona fide against spoof.
        fusion: From both raw scores to the LLR of target against the rest.
        costs: What it was all fitted for.
    """

    asv: Calibration
    cm: Calibration
    fusion: LinearFusion
    costs: SasvCosts

    def systems(self, scores: TrialScores) -> dict[str, FloatArray]:
        """Return the LLR of every trial by system: ASV alone, behind a gate, and fused with the CM.

        That of ASV alone is moved by a constant, so that `SasvCosts.threshold` is its own Bayes
        threshold too, which knows of nontargets only. The gate rejects what lies below the Bayes
        threshold of the CM, which knows of spoofs only, and leaves the rest to ASV.
        """
        costs = self.costs
        asv, cm = self.asv.apply(scores.asv), self.cm.apply(scores.cm)
        alone = asv - np.log1p(-costs.rho)
        passes = cm >= np.log(costs.c_fa_spoof * costs.p_spoof / (costs.c_miss * costs.p_target))
        return {
            "ASV alone": alone,
            "ASV behind the gate": np.where(passes, alone, alone.min() - 100.0),
            "`fuse_sasv`": fuse_sasv(asv, cm, costs),
            "`fit_fusion`": self.fusion.apply(np.stack([scores.asv, scores.cm], axis=1)),
        }


def fit(scores: TrialScores, costs: SasvCosts = ASVSPOOF5_SASV) -> Calibrations:
    """Fit both calibrations and the linear fusion, each for the prior that the costs amount to."""
    trials = scores.trials
    bonafide = np.where(trials.kind == "spoof", SPOOF, BONAFIDE)
    is_asv_trial = bonafide == BONAFIDE
    # One row per utterance: bona fide ones stand in several trials.
    _, once = np.unique(trials.utterance, return_index=True)
    miss = costs.c_miss * costs.p_target
    nontarget, spoof = costs.c_fa_nontarget * costs.p_nontarget, costs.c_fa_spoof * costs.p_spoof
    return Calibrations(
        asv=fit_calibration(
            scores.asv[is_asv_trial],
            np.where(trials.kind[is_asv_trial] == "target", BONAFIDE, SPOOF),
            prior=nontarget / (miss + nontarget),
        ),
        cm=fit_calibration(scores.cm[once], bonafide[once], prior=spoof / (miss + spoof)),
        fusion=fit_fusion(np.stack([scores.asv, scores.cm], axis=1), trials.kind, costs),
        costs=costs,
    )


@dataclass(frozen=True, kw_only=True)
class SystemFigures:
    """One system on the evaluation part.

    Attributes:
        min_a_dcf: The lowest a-DCF of any threshold, and its interval over claimed speakers.
        gain: How much that is below ASV alone, on the same trials; None for ASV alone.
        act_a_dcf: The a-DCF at the Bayes threshold, what calibration makes of it.
        rejected: The share of rejected trials of each kind at that threshold.
    """

    min_a_dcf: Interval
    gain: Interval | None
    act_a_dcf: float
    rejected: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All figures of the evaluation part; those of one system by its name.

    Attributes:
        systems: By name, as in `Calibrations.systems`.
        asv_eer: Target against nontarget.
        cm_eer: Bona fide against spoof, one row per utterance.
        min_t_dcf: Of the countermeasure beside this ASV at its EER threshold.
        t_eer: The concurrent tandem EER.
        n_trials: By kind.
        n_imitations: Spoofs that imitate whom they claim.
        n_speakers: Enrolled ones.
    """

    systems: Mapping[str, SystemFigures]
    asv_eer: Interval
    cm_eer: Interval
    min_t_dcf: Interval
    t_eer: Interval
    n_trials: Mapping[str, int]
    n_imitations: int
    n_speakers: int


def markdown(results: Mapping[str, Evaluation]) -> str:
    """Return the tables of the documentation: encoders by name, on the same trials."""
    first = next(iter(results.values()))
    trials = ", ".join(f"{n:,} {kind}" for kind, n in first.n_trials.items())
    header = ["encoder", "system", "min a-DCF", "below ASV alone by", "actual a-DCF"]
    header += ["targets rejected", "nontargets accepted", "spoofs accepted"]
    trials += f", of which {first.n_imitations} imitate whom they claim to be"
    lines = [f"{first.n_speakers} enrolled speakers; trials: {trials}.", "", *_head(header)]
    for encoder, result in results.items():
        for name, of in result.systems.items():
            accepted = [1.0 - of.rejected[kind] for kind in SASV_CLASSES[1:]]
            cells = [
                encoder,
                name,
                _interval(of.min_a_dcf),
                "–" if of.gain is None else _interval(of.gain),
                f"{of.act_a_dcf:.3f}",
                *map(_percent, (of.rejected["target"], *accepted)),
            ]
            lines.append(_row(cells))
    lines += ["", *_head(["encoder", "ASV EER (%)", "CM EER (%)", "min t-DCF", "t-EER (%)"])]
    for encoder, result in results.items():
        eers = (_interval(eer, 100) for eer in (result.asv_eer, result.cm_eer))
        tandem = (_interval(result.min_t_dcf), _interval(result.t_eer, 100))
        lines.append(_row([encoder, *eers, *tandem]))
    return "\n".join(lines) + "\n"


def evaluate(
    fitted: Calibrations, scores: TrialScores, *, n_bootstrap: int = 1000, seed: int = 0
) -> Evaluation:
    """Evaluate on trials that nothing was fitted on; intervals draw whole claimed speakers."""
    trials, costs = scores.trials, fitted.costs
    llrs = fitted.systems(scores)
    baseline = next(iter(llrs))
    is_target = trials.kind == "target"
    labels = np.where(is_target, BONAFIDE, SPOOF)
    rows = np.arange(len(trials), dtype=np.float64)
    options: dict[str, Any] = {"n": n_bootstrap, "seed": seed}

    def over_trials(value: Callable[[Trials, NDArray[np.intp]], float]) -> Interval:
        # The bootstrap knows two classes of scores; here the scores are row numbers, and three
        # classes are told apart by the rows.
        def of_rows(target: FloatArray, others: FloatArray) -> float:
            drawn = np.concatenate([target, others]).astype(np.intp)
            return float(value(trials.select(drawn), drawn))

        clusters = trials.claimed[is_target], trials.claimed[~is_target]
        return metrics.bootstrap(
            of_rows, rows[is_target], rows[~is_target], clusters=clusters, **options
        )

    def min_a_dcf(llr: FloatArray) -> Interval:
        return over_trials(lambda part, drawn: metrics.a_dcf(*part.split(llr[drawn]), costs).value)

    def gain(llr: FloatArray) -> Interval:
        both = np.concatenate([llrs[baseline], llr])

        def of_rows(target: FloatArray, others: FloatArray) -> float:
            drawn = np.concatenate([target, others]).astype(np.intp)
            part = trials.select(drawn % len(trials))
            return metrics.a_dcf(*part.split(both[drawn]), costs).value

        return metrics.compare(
            rows, rows + len(trials), labels, of_rows, clusters=trials.claimed, **options
        )

    def figures(name: str, llr: FloatArray) -> SystemFigures:
        accepted = llr >= costs.threshold
        return SystemFigures(
            min_a_dcf=min_a_dcf(llr),
            gain=None if name == baseline else gain(llr),
            act_a_dcf=act_a_dcf(*trials.split(llr), costs),
            rejected={
                kind: float(np.mean(~accepted[trials.kind == kind])) for kind in SASV_CLASSES
            },
        )

    def min_t_dcf(part: Trials, drawn: NDArray[np.intp]) -> float:
        target, nontarget, spoof = part.split(scores.cm[drawn])
        asv = part.split(scores.asv[drawn])
        bonafide = np.concatenate([target, nontarget])
        return metrics.min_t_dcf(bonafide, spoof, asv=asv, costs=costs).value

    def t_eer(part: Trials, drawn: NDArray[np.intp]) -> float:
        target, nontarget, spoof = part.split(scores.cm[drawn])
        cm = (np.concatenate([target, nontarget]), spoof)
        return metrics.t_eer(part.split(scores.asv[drawn]), cm).value

    def asv_eer(part: Trials, drawn: NDArray[np.intp]) -> float:
        target, nontarget, _ = part.split(scores.asv[drawn])
        return metrics.eer(target, nontarget).value

    _, once = np.unique(trials.utterance, return_index=True)
    is_spoof = trials.kind[once] == "spoof"
    cm_once = scores.cm[once]
    return Evaluation(
        systems={name: figures(name, llr) for name, llr in llrs.items()},
        asv_eer=over_trials(asv_eer),
        cm_eer=metrics.bootstrap("eer", cm_once[~is_spoof], cm_once[is_spoof], **options),
        min_t_dcf=over_trials(min_t_dcf),
        t_eer=over_trials(t_eer),
        n_trials=trials.counts(),
        n_imitations=int(trials.imitated.sum()),
        n_speakers=len(set(trials.claimed.tolist())),
    )


def act_a_dcf(
    target: ArrayLike, nontarget: ArrayLike, spoof: ArrayLike, costs: SasvCosts = ASVSPOOF5_SASV
) -> float:
    """Return the normalised a-DCF of LLRs at the Bayes threshold; `metrics.a_dcf` is its minimum.

    1 is what rejecting or accepting everyone costs, whichever is cheaper.
    """
    miss = costs.c_miss * costs.p_target
    false = (costs.c_fa_nontarget * costs.p_nontarget, costs.c_fa_spoof * costs.p_spoof)
    cost = miss * float(np.mean(np.asarray(target) < costs.threshold))
    for weight, llr in zip(false, (nontarget, spoof), strict=True):
        cost += weight * float(np.mean(np.asarray(llr) >= costs.threshold))
    return cost / min(miss, sum(false))


def _head(titles: Sequence[str]) -> list[str]:
    return [_row(titles), _row(["---"] * len(titles))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _interval(interval: Interval, scale: float = 1.0) -> str:
    digits = 1 if scale > 1 else 3
    value, low, high = (scale * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]".replace("-", "−")
