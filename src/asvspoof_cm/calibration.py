"""From scores to log-likelihood ratios, verdicts and thresholds; fusion with speaker scores.

A log-likelihood ratio (LLR) is positive where a trial is likelier bonafide than spoofed, whatever
the prior; with a prior it gives a probability, and with costs a decision. NumPy and SciPy only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, expit, log_softmax, logsumexp

from asvspoof_cm._util import (
    FloatArray,
    Plain,
    as_column,
    as_labels,
    as_scores,
    as_trials,
    check_inside_unit,
    write_json,
)
from asvspoof_cm.labels import BONAFIDE, SASV_CLASSES, SPOOF
from asvspoof_cm.metrics.costs import (
    ASVSPOOF5,
    ASVSPOOF5_SASV,
    DetectionCosts,
    SasvCosts,
)
from asvspoof_cm.metrics.intervals import Interval

__all__ = [
    "Calibration",
    "LinearFusion",
    "Threshold",
    "Verdict",
    "adapt_calibration",
    "costs_at",
    "decide",
    "fit_calibration",
    "fit_fusion",
    "fuse_sasv",
    "load_settings",
    "probability",
    "save_settings",
    "threshold_for",
]

# Ridge penalty on the slope of standardised scores, for each unit of the lowest prior: it keeps the
# fit of separable data finite.
RIDGE = 1e-8
# How far a channel moves a model's own map, as standard deviations of its slope and offset; for an
# adaptation, which must not harm where nothing moved, of its offset.
SLOPE_SPREAD, OFFSET_SPREAD = 0.25, 2.0
SHIFT_SPREAD = 1.0
# Clips of people that weigh as much as the belief that the own map is right.
N_BELIEF = 8
CERTAINTY = 0.95


class Verdict(StrEnum):
    """What is decided about a recording; a string, so that no verdict is mistaken for another."""

    BONAFIDE = "bonafide"
    SPOOF = "spoof"
    ABSTAIN = "abstain"


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibration:
    """A map from scores s to log-likelihood ratios: a · s + b, bounded.

    With x = a · s + b and n trials of each class in the fit, the ratio is

        log[(e^x + 1 / (n_bonafide + 1)) / (1 + e^x / (n_spoof + 1))]:

    it rises with s, is x in the middle, and stays below log(n_spoof + 1), because no fake among n
    does not show that there is none among many more.

    Attributes:
        scale: The slope a, positive.
        offset: The offset b.
        n_bonafide: Bonafide trials of the fit; 0 where it is not known: no bound.
        n_spoof: Spoofed trials of the fit.
        covariance: How sure the fit is: variance of the scale, covariance, variance of the offset.
        fitted_for: How the scores of the fit were made, from `Scorer.conditions`; a scorer that
            makes them otherwise warns.
        name: What it is called in answers and records.

    Example:
        >>> Calibration(scale=2.0, offset=-1.0).apply([0.0, 1.0])
        array([-1.,  1.])
        >>> Calibration(n_bonafide=30, n_spoof=30).apply([0.0, 28.7]).round(2)
        array([0.  , 3.43])
    """

    scale: float = 1.0
    offset: float = 0.0
    n_bonafide: int = 0
    n_spoof: int = 0
    covariance: tuple[float, ...] = ()
    fitted_for: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0 and np.isfinite(self.offset)):
            raise ValueError(
                "`scale` must be positive and finite and `offset` finite; got "
                f"{self.scale} and {self.offset}."
            )

    def __repr__(self) -> str:
        sign = "−" if self.offset < 0 else "+"
        return f"Calibration({self.scale:.4g} · score {sign} {abs(self.offset):.4g})"

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Return the log-likelihood ratio of each score, in the same shape."""
        return self._bounded(self.scale * _without_nan("scores", scores) + self.offset)

    def interval(self, scores: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the 95 % interval of each score's ratio, given how sure the fit is."""
        values = _without_nan("scores", scores)
        if not self.covariance:
            raise ValueError("the calibration must come from a fit; this one has no covariance.")
        of_scale, both, of_offset = self.covariance
        half = 1.96 * np.sqrt(of_scale * values**2 + 2 * both * values + of_offset)
        middle = self.scale * values + self.offset
        return self._bounded(middle - half), self._bounded(middle + half)

    def _bounded(self, llr: FloatArray) -> FloatArray:
        if not self.n_bonafide or not self.n_spoof:
            return np.asarray(llr)
        llr = np.clip(llr, -1e3, 1e3)
        low, high = -math.log(self.n_bonafide + 1), math.log(self.n_spoof + 1)
        return np.asarray(np.logaddexp(llr, low) - np.logaddexp(0.0, llr - high))

    @property
    def sha256(self) -> str:
        """A hash of the map and of what it was fitted for, whatever its name."""
        content = {**self.as_dict(), "name": ""}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON or a checkpoint; `from_dict` is the way back."""
        return {**asdict(self), "covariance": [*self.covariance]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Calibration:
        """Return the calibration that `as_dict` described, this version's or an older one's."""
        known = {"covariance": (), "kind": "affine", "knots": (), **content}
        if known.pop("kind") != "affine" or known.pop("knots"):
            raise ValueError("isotonic calibrations are gone; fit one with fit_calibration.")
        return cls(**{**known, "covariance": tuple(known["covariance"])})


def fit_calibration(
    scores: ArrayLike,
    labels: ArrayLike,
    prior: float = ASVSPOOF5.p_spoof,
    *,
    towards: Calibration | None = None,
    fitted_for: Mapping[str, Any] | None = None,
    name: str = "",
) -> Calibration:
    """Fit a map from scores to log-likelihood ratios: prior-weighted logistic regression.

    It minimises the mean cross-entropy of the posterior, each class weighted to its prior. Applied,
    it changes neither EER nor minDCF.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        prior: Probability of spoof that the fit is made for.
        towards: The map that the fit begins from, and stays near where trials are few: the model's
            own, ``scorer.calibration``. With it people alone will do, as in `adapt_calibration`.
        fitted_for: The conditions under which the scores were made: ``scorer.conditions()``.
        name: What the calibration is called.

    Raises:
        ValueError: Also where the scores rank spoofs above bonafide trials.

    Note:
        Without `towards` there is a ridge of ½·1e-8·π·a² on the slope a of standardised scores, π
        the lower of the two priors: separable trials have no finite optimum without it. With
        `towards`, slope and offset have Gaussian priors around that map, with standard deviations
        of 0.25 and 2, against the log-likelihood of as many trials as the weights amount to.

    Example:
        >>> scores = np.random.default_rng(0).normal(np.repeat([1, -1], 4000), 1)
        >>> fit_calibration(scores, np.repeat(["bonafide", "spoof"], 4000)).apply(2.0).round()
        np.float64(4.0)
    """
    known_for = fitted_for or ({} if towards is None else towards.fitted_for)
    about: Any = {"fitted_for": dict(known_for), "name": name}
    if towards is not None and as_labels(labels).all():
        people = as_column("scores", as_scores("scores", scores), np.size(labels))
        return replace(adapt_calibration(towards, towards.apply(people)), **about)
    values, is_bonafide = as_trials(scores, labels)
    check_inside_unit(prior=prior)
    classes, priors = np.where(is_bonafide, BONAFIDE, SPOOF), np.array([prior, 1.0 - prior])
    n_of_class = np.bincount(classes)
    n_effective = 1 / (priors**2 / n_of_class).sum()
    if towards is None:
        found, curvature, to_scores = _fit_standardised(values[:, None], classes, priors)
    else:
        to_scores = np.array([[towards.scale, 0.0], [towards.offset, 1.0]])
        design = np.column_stack([values, np.ones(len(values))]) @ to_scores
        penalty = np.array([SLOPE_SPREAD, OFFSET_SPREAD]) ** -2.0 / n_effective
        found, curvature = _minimise(design, classes, priors, penalty, np.array([1.0, 0.0]))
    scale, offset = (to_scores @ found[0]).tolist()
    if scale <= 0.0:
        raise ValueError(
            f"`scores` must rise from spoof to bonafide; the fitted slope is {scale:.3g}. "
            "Negate them if their sign is flipped; scores at chance level can't be calibrated."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        spread = to_scores @ np.linalg.inv(n_effective * curvature) @ to_scores.T
    if np.isfinite(spread).all():
        about["covariance"] = tuple(spread[[0, 0, 1], [0, 1, 1]].tolist())
    about |= dict(zip(("n_spoof", "n_bonafide"), n_of_class.tolist(), strict=True))
    return Calibration(scale=scale, offset=offset, **about)


def adapt_calibration(
    calibration: Calibration, human: ArrayLike, fake: ArrayLike = ()
) -> Calibration:
    """Return a calibration whose offset fits a channel of which a few recordings are known.

    With clips of both classes the shift b maximises their likelihood under even odds times a
    Gaussian prior around no shift, with a standard deviation of 1: few clips move it little.

    With people alone the ratios can only rise, and a warning says so. Where ratios are calibrated
    the mean of e^(−llr) over people is 1; a larger mean shows that people score too low. The shift
    is n / (n + 8) of the one that brings this mean to 1, for n clips, each term at most n + 1.

    Args:
        calibration: The map in use.
        human: The LLRs that it gives people, shape (n_human,).
        fake: Those that it gives synthetic speech, shape (n_fake,).

    Example:
        >>> round(adapt_calibration(Calibration(), [-2.0, -1.0, 0.5], [-3.0, -5.0]).offset, 2)
        0.98
    """
    people, others = as_scores("human", human), np.asarray(fake, dtype=np.float64)
    n = len(people)
    if len(others):
        llr = np.concatenate([as_scores("fake", others), people])
        classes = np.repeat([SPOOF, BONAFIDE], [len(others), n])
        n_effective = 4 / (1 / len(others) + 1 / n)
        penalty = np.array([1e12, SHIFT_SPREAD**-2 / n_effective])  # the slope stays
        design = np.column_stack([llr, np.ones(len(llr))])
        found, _ = _minimise(design, classes, np.full(2, 0.5), penalty, np.array([1.0, 0.0]))
        shift = float(found[0, 1])
    else:
        from scipy.optimize import brentq

        def excess(shift: float) -> float:
            return float(np.exp(np.minimum(-people - shift, math.log(n + 1))).mean()) - 1

        warnings.warn(
            "people alone show that they are refused too often, never how many fakes pass: the "
            "ratios can rise only. Add fakes of the same channel.",
            stacklevel=2,
        )
        shift = float(brentq(excess, -float(people.max()) - 1, -float(people.min()) + 1))
        shift = max(0.0, shift) * n / (n + N_BELIEF)
    return replace(calibration, offset=calibration.offset + shift, covariance=())


def probability(llr: ArrayLike, prior: float = ASVSPOOF5.p_spoof) -> FloatArray:
    """Return the probability of bonafide, given log-likelihood ratios and the prior of spoof.

    Example:
        >>> probability([0.0], prior=0.05)
        array([0.95])
    """
    check_inside_unit(prior=prior)
    return np.asarray(expit(_without_nan("llr", llr) + np.log((1.0 - prior) / prior)))


def decide(llr: ArrayLike, costs: DetectionCosts = ASVSPOOF5) -> NDArray[np.int64]:
    """Return the cheapest label for each log-likelihood ratio: 1 (bonafide) at or above −ln β.

    Example:
        >>> decide([-1.0, 0.0])
        array([0, 1])
    """
    return np.where(_without_nan("llr", llr) >= costs.threshold, BONAFIDE, SPOOF)


# Thresholds


@dataclass(frozen=True, kw_only=True)
class Threshold(Plain):
    """A threshold that refuses few people, and what the recordings of them can show about it.

    Attributes:
        threshold: Accept scores at or above it.
        refuse_at_most: The share of people that may be refused.
        n_people: How many scores it comes from.
        refusal_rate: The share of these people that is refused, and bounds of the true share; each
            holds with 95 % certainty.
        n_needed: How many people would show `refuse_at_most`, if none of them were refused.
    """

    threshold: float
    refuse_at_most: float
    n_people: int
    refusal_rate: Interval
    n_needed: int

    @property
    def is_shown(self) -> bool:
        """Whether these people show that at most the share that was asked for is refused."""
        return self.refusal_rate.high <= self.refuse_at_most

    def __str__(self) -> str:
        wish, most = f"{100 * self.refuse_at_most:g} %", f"{100 * self.refusal_rate.high:.2g} %"
        says = f"threshold {self.threshold:.4f}: at most {most} of all people are refused (95 %)"
        if self.is_shown:
            return f"{says}, as {self.n_people} people show."
        enough = f"{self.n_needed} without an error can"
        return f"{says}. {self.n_people} people cannot show {wish}; {enough}."

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Threshold:
        """Return the threshold that `as_dict` described."""
        return cls(**{**content, "refusal_rate": Interval(**content["refusal_rate"])})


def threshold_for(human_scores: ArrayLike, refuse_at_most: float = 0.01) -> Threshold:
    """Return the highest threshold that is shown to refuse at most a share of people.

    It is one of the scores. The true share of people below the score of rank k + 1 among n has the
    distribution Beta(k + 1, n − k), whatever the distribution of scores; k is the largest for
    which its upper 95 % bound is at most `refuse_at_most`, or 0, and then ``is_shown`` is False.

    Args:
        human_scores: One score for each person, shape (n_people,): several recordings of one are
            not independent. They must be as those to be decided on: same channel, same scorer.
        refuse_at_most: The share of people that may be refused.

    Example:
        >>> print(threshold_for(np.linspace(1, 5, 40), 0.01))  # doctest: +NORMALIZE_WHITESPACE
        threshold 1.0000: at most 7.2 % of all people are refused (95 %).
        40 people cannot show 1 %; 299 without an error can.
    """
    scores = np.sort(as_scores("human_scores", human_scores))
    check_inside_unit(refuse_at_most=refuse_at_most)
    n, ranks = len(scores), np.arange(len(scores))
    highest = betaincinv(ranks + 1, n - ranks, CERTAINTY)
    k = max(0, int(np.searchsorted(highest, refuse_at_most, side="right")) - 1)
    n_refused = int(np.searchsorted(scores, scores[k]))  # equal scores are accepted together
    low = float(betaincinv(n_refused + 1, n - n_refused, 1 - CERTAINTY)) if n_refused else 0.0
    return Threshold(
        threshold=float(scores[k]),
        refuse_at_most=refuse_at_most,
        n_people=n,
        refusal_rate=Interval(value=n_refused / n, low=low, high=float(highest[n_refused])),
        n_needed=math.ceil(math.log(1 - CERTAINTY) / math.log1p(-refuse_at_most)),
    )


def costs_at(
    threshold: float, p_spoof: float = ASVSPOOF5.p_spoof, c_miss: float = ASVSPOOF5.c_miss
) -> DetectionCosts:
    """Return the costs whose Bayes threshold is `threshold`; ``costs.threshold`` is the way back.

    `p_spoof` is the prior probability of spoof and `c_miss` the cost of refusing a person; that of
    passing a spoof follows.

    Example:
        >>> round(costs_at(4.61, p_spoof=0.5).c_fa)
        100
    """
    c_fa = c_miss * (1.0 - p_spoof) / p_spoof * math.exp(threshold)
    return DetectionCosts(p_spoof=p_spoof, c_miss=c_miss, c_fa=c_fa)


# Fusion with speaker verification


def fuse_sasv(
    asv_llr: ArrayLike, cm_llr: ArrayLike, costs: SasvCosts = ASVSPOOF5_SASV
) -> FloatArray:
    """Combine two calibrated systems into one score for spoofing-robust verification.

    The log-likelihood ratio of "target" against "nontarget or spoof", non-linear in both:

        −log[(1 − ρ) e^(−asv) + ρ e^(−cm)],

    with ρ the share of spoofs in what must be rejected, weighted by cost (Wang et al., 2024).
    `asv_llr` is that of target against nontarget, `cm_llr` of bonafide against spoof, in one shape.

    Example:
        >>> fuse_sasv([5.0, 5.0, -5.0], [5.0, -5.0, 5.0]).round(2)
        array([ 5.  , -4.83, -3.17])
    """
    asv, cm = _without_nan("asv_llr", asv_llr), _without_nan("cm_llr", cm_llr)
    if asv.shape != cm.shape:
        raise ValueError(
            "`asv_llr` and `cm_llr` must have the same shape, one LLR of each per trial; got "
            f"{asv.shape} and {cm.shape}."
        )
    with np.errstate(divide="ignore"):
        log_nontarget, log_spoof = np.log1p(-costs.rho), np.log(costs.rho)
    return np.asarray(-np.logaddexp(log_nontarget - asv, log_spoof - cm))


@dataclass(frozen=True, kw_only=True)
class LinearFusion:
    """Linear class scores over any number of systems, and their log-likelihood ratio.

    `weights` has one per system and class (target, nontarget, spoof), `biases` one per class;
    `costs` weigh nontarget against spoof.
    """

    weights: tuple[tuple[float, ...], ...]
    biases: tuple[float, ...]
    costs: SasvCosts = ASVSPOOF5_SASV

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Return the LLR of target against the rest, (n_trials,), from (n_trials, n_systems)."""
        values = _of_systems(_without_nan("scores", scores), len(self.weights))
        log_likelihood = values @ np.array(self.weights) + np.array(self.biases)
        with np.errstate(divide="ignore"):
            share = np.log([1.0 - self.costs.rho, self.costs.rho])
        return np.asarray(log_likelihood[:, 0] - logsumexp(log_likelihood[:, 1:] + share, axis=1))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; `from_dict` is the way back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LinearFusion:
        """Return the fusion that `as_dict` described."""
        weights, costs = tuple(map(tuple, content["weights"])), SasvCosts(**content["costs"])
        return cls(weights=weights, biases=tuple(content["biases"]), costs=costs)


def fit_fusion(
    scores: ArrayLike, labels: ArrayLike, costs: SasvCosts = ASVSPOOF5_SASV
) -> LinearFusion:
    """Fit a linear fusion by prior-weighted logistic regression over the three classes.

    Args:
        scores: Scores of each system, shape (n_trials, n_systems): ASV and CM, say.
        labels: "target", "nontarget" or "spoof" per trial, shape (n_trials,).
        costs: Costs and priors of the three classes.

    Example:
        >>> labels = np.repeat(["target", "nontarget", "spoof"], 2)
        >>> systems = np.array([[3, 3], [1, 2], [-2, 1], [-1, 3], [2, -2], [0, -1]])  # ASV, CM
        >>> (fit_fusion(systems, labels).apply(systems) > 0).tolist()
        [True, True, False, False, False, False]
    """
    features = _of_systems(np.asarray(scores, dtype=np.float64))
    as_scores("scores", features.ravel())
    words = as_column("labels", labels, len(features))
    if set(words.tolist()) != {*SASV_CLASSES}:
        raise ValueError(
            f"`labels` must be {', '.join(SASV_CLASSES)}, each at least once; got "
            f"{np.unique(words).tolist()}."
        )
    priors = np.array([costs.p_target, costs.p_nontarget, costs.p_spoof])
    if not priors.all():
        raise ValueError(f"`costs` must give every class a positive prior; got {priors.tolist()}.")
    classes = np.argmax(words[:, None] == np.array(SASV_CLASSES), axis=1)
    found, _, to_scores = _fit_standardised(features, classes, priors)
    *weights, biases = np.column_stack([np.zeros(len(to_scores)), to_scores @ found.T]).tolist()
    return LinearFusion(weights=tuple(map(tuple, weights)), biases=tuple(biases), costs=costs)


# Keeping


def save_settings(
    path: str | os.PathLike[str], thing: Calibration | LinearFusion | Threshold
) -> None:
    """Write a calibration, a fusion or a threshold as JSON."""
    write_json(Path(path), {"type": type(thing).__name__, **thing.as_dict()})


def load_settings(path: str | os.PathLike[str]) -> Any:
    """Return what `save_settings` wrote."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    kinds = {kind.__name__: kind for kind in (Calibration, LinearFusion, Threshold)}
    if not isinstance(content, dict) or content.get("type") not in kinds:
        raise ValueError(f"{path} must be a file that save_settings wrote.")
    return kinds[content.pop("type")].from_dict(content)


# Checks, and the logistic fit


def _without_nan(name: str, values: ArrayLike) -> FloatArray:
    """Return `values` as float64; infinite ones are certainties, but NaN decides nothing."""
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise ValueError(
            f"`{name}` must not be NaN; got {int(np.isnan(array).sum())} NaN of {array.size}. "
            "Find out why the model gave them and score again."
        )
    return array


def _of_systems(scores: FloatArray, n_systems: int | None = None) -> FloatArray:
    if scores.ndim != 2 or n_systems not in (None, scores.shape[1]):
        raise ValueError(
            f"`scores` must have shape (n_trials, {n_systems or 'n_systems'}); got {scores.shape}. "
            "Stack the systems: np.stack([asv, cm], axis=1)."
        )
    return scores


def _fit_standardised(
    features: FloatArray, classes: NDArray[np.int64], priors: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit to standardised features, with a ridge penalty of RIDGE · min π on the weights.

    Returns what `_minimise` does, and the matrix that turns parameters into those for the features
    as given.
    """
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    design = np.column_stack([(features - mean) / spread, np.ones(len(features))])
    penalty = np.tile(np.append(np.full(len(mean), RIDGE * priors.min()), 0.0), len(priors) - 1)
    to_scores = np.diag(np.append(1 / spread, 1.0))
    to_scores[-1, :-1] = -mean / spread
    return *_minimise(design, classes, priors, penalty, np.zeros_like(penalty)), to_scores


def _minimise(
    design: FloatArray,
    classes: NDArray[np.int64],
    priors: FloatArray,
    penalty: FloatArray,
    centre: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Fit log-likelihoods that are linear in a design, each class weighted to its prior.

    Minimises Σ_k π_k mean_k[−log softmax(X·Wᵀ + log π)_k] + ½·Σ penalty · (W − centre)² over W
    (n_classes − 1, n_columns), the parameters of class 0 fixed at zero; `penalty` and `centre` are
    flat as W.ravel(). Returns W and the second derivative there.
    """
    from scipy.optimize import minimize

    n_free = len(priors) - 1
    weight = (priors / np.bincount(classes, minlength=len(priors)))[classes][:, None]
    truth = np.eye(len(priors))[classes]

    def log_posterior(flat: FloatArray) -> FloatArray:
        logits = design @ flat.reshape(n_free, -1).T
        logits = np.column_stack([np.zeros(len(design)), logits]) + np.log(priors)
        return np.asarray(log_softmax(logits, axis=1))

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        found, moved = log_posterior(flat), flat - centre
        loss = 0.5 * penalty @ moved**2 - (weight * truth * found).sum()
        residual = weight * (np.exp(found) - truth)[:, 1:]
        return float(loss), (residual.T @ design).ravel() + penalty * moved

    def curvature(flat: FloatArray) -> FloatArray:
        p = np.exp(log_posterior(flat))[:, 1:]
        weights = (weight * p)[:, :, None] * (np.eye(n_free) - p[:, None])
        blocks = np.tensordot(design, weights[..., None] * design[:, None, None], (0, 0))
        # A flat direction (a class that no trial is near) gets a tiny curvature, not a division.
        return blocks.swapaxes(0, 1).reshape(len(flat), -1) + np.diag(penalty + 1e-14)

    options: Any = {"jac": True, "hess": curvature, "options": {"gtol": 1e-12, "maxiter": 500}}
    found = minimize(objective, centre, method="trust-exact", **options).x
    return found.reshape(n_free, -1), curvature(found)
