"""From scores to log-likelihood ratios, probabilities and decisions; fusion with speaker scores.

A log-likelihood ratio (LLR) is positive where a trial is likelier bonafide than spoofed, whatever
the prior; with a prior it gives a probability, and with costs a decision. NumPy and SciPy only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax, logsumexp

from asvspoof_cm._util import FloatArray, as_scores, check_choice, split_by_label
from asvspoof_cm.labels import BONAFIDE, SASV_CLASSES, SPOOF
from asvspoof_cm.metrics.track1 import ASVSPOOF5, DetectionCosts, pool_adjacent_violators
from asvspoof_cm.metrics.track2 import ASVSPOOF5_SASV, SasvCosts

__all__ = [
    "Calibration",
    "LinearFusion",
    "Verdict",
    "decide",
    "fit_calibration",
    "fit_fusion",
    "fuse_sasv",
    "probability",
]

# Weight of the squared slope (of standardised scores) in a fit, for each unit of the lowest prior:
# it keeps separable data finite.
RIDGE = 1e-8
_MAX_STEPS = 100


class Verdict(StrEnum):
    """What is decided about a recording; a string, so that no verdict is mistaken for another.

    Example:
        >>> Verdict.ABSTAIN == "abstain", f"{Verdict.SPOOF}"
        (True, 'spoof')
    """

    BONAFIDE = "bonafide"
    SPOOF = "spoof"
    ABSTAIN = "abstain"


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibration:
    """A map from scores to log-likelihood ratios.

    Attributes:
        kind: "affine" for scale·s + offset; "isotonic" for straight lines between `knots`.
        scale: Slope of the affine map, positive.
        offset: Offset of the affine map.
        knots: Pairs (score, LLR) of the isotonic map, both non-decreasing.
        fitted_for: How the scores were made that it was fitted on, as `Scorer.conditions` says; a
            scorer that makes them otherwise warns. Empty where that is not known.
        name: What it is called in answers and records.

    Example:
        >>> calibration = Calibration(kind="affine", scale=2.0, offset=-1.0)
        >>> calibration, calibration.apply([0.0, 1.0])
        (Calibration(affine: 2 · score − 1), array([-1.,  1.]))
        >>> Calibration.from_dict(calibration.as_dict()) == calibration
        True
    """

    kind: Literal["affine", "isotonic"] = "affine"
    scale: float = 1.0
    offset: float = 0.0
    knots: tuple[tuple[float, float], ...] = ()
    fitted_for: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("affine", "isotonic"))
        if self.kind == "affine":
            if not (np.isfinite(self.scale) and self.scale > 0 and np.isfinite(self.offset)):
                raise ValueError(
                    "`scale` must be positive and finite and `offset` finite; got "
                    f"{self.scale} and {self.offset}."
                )
            return
        knots = np.array(self.knots, dtype=np.float64)
        if knots.ndim != 2 or knots.shape[1] != 2 or not np.isfinite(knots).all():
            raise ValueError(
                f"`knots` must be finite pairs (score, LLR), at least one; got shape {knots.shape}."
            )
        if (np.diff(knots, axis=0) < 0).any():
            raise ValueError("`knots` must not decrease, neither in score nor in LLR.")

    def __repr__(self) -> str:
        if self.kind == "isotonic":
            return f"Calibration(isotonic: {len(self.knots)} knots)"
        sign = "−" if self.offset < 0 else "+"
        return f"Calibration(affine: {self.scale:.4g} · score {sign} {abs(self.offset):.4g})"

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Return the log-likelihood ratio of each score, in the same shape.

        An isotonic map is constant outside the scores that it was fitted on.
        """
        values = _without_nan("scores", scores)
        if self.kind == "affine":
            return np.asarray(self.scale * values + self.offset)
        at, llr = np.array(self.knots).T
        return np.asarray(np.interp(values, at, llr))

    @property
    def sha256(self) -> str:
        """A hash of the map and of what it was fitted for, whatever its name."""
        content = {**self.as_dict(), "name": ""}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON or a checkpoint; `from_dict` is the way back."""
        content = {**asdict(self), "knots": [list(knot) for knot in self.knots]}
        content["fitted_for"] = dict(self.fitted_for)
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Calibration:
        """Return the calibration that `as_dict` described."""
        knots = tuple((float(score), float(llr)) for score, llr in content.get("knots", ()))
        return cls(**{**content, "knots": knots})


def fit_calibration(
    scores: ArrayLike,
    labels: ArrayLike,
    prior: float | None = ASVSPOOF5.p_spoof,
    *,
    method: Literal["affine", "isotonic"] = "affine",
    fitted_for: Mapping[str, Any] | None = None,
) -> Calibration:
    """Fit a map from scores to log-likelihood ratios.

    "affine" is prior-weighted logistic regression by Newton's method: it minimises the mean
    cross-entropy of the posterior, each class weighted to its prior. Applied, it changes neither
    EER nor minDCF. "isotonic" is the best non-decreasing map (pool adjacent violators), with one
    bonafide trial added below all scores and one spoof above them, so that it stays finite.

    Args:
        scores: One score per trial, shape (n_trials,). Higher means bonafide.
        labels: 0 or "spoof", 1 or "bonafide" per trial, shape (n_trials,).
        prior: Probability of spoof that the fit is made for; None for the share among the trials.
            "isotonic" doesn't depend on it.
        method: "affine" or "isotonic".
        fitted_for: How the scores were made: ``scorer.conditions()``.

    Raises:
        ValueError: Also where the fitted slope isn't positive: such scores rank spoofs above
            bonafide trials.

    Note:
        The objective has a ridge of ½·1e-8·π·a² on the slope a of standardised scores, π the lower
        of the two priors. Separable trials have no finite optimum without it; on others it lowers
        the slope a little. Measured on Gaussian scores with priors from 0.5 to 1e-6: by less than
        1e-4 of it where the EER is above 0.6 %, and by less than 1e-3 at 0.15 %.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = np.concatenate([rng.normal(1, 1, 4000), rng.normal(-1, 1, 4000)])
        >>> labels = np.repeat(["bonafide", "spoof"], 4000)
        >>> calibration = fit_calibration(scores, labels)  # the true LLR is 2 s
        >>> round(calibration.scale), abs(calibration.offset) < 0.1
        (2, True)
    """
    check_choice("method", method, ("affine", "isotonic"))
    bonafide, spoof = split_by_label(scores, labels)
    if prior is not None:
        _check_prior(prior)
    conditions = dict(fitted_for or {})
    if method == "isotonic":
        return replace(_fit_isotonic(bonafide, spoof), fitted_for=conditions)
    if prior is None:
        prior = len(spoof) / (len(bonafide) + len(spoof))
    classes = np.repeat([SPOOF, BONAFIDE], [len(spoof), len(bonafide)])
    features = np.concatenate([spoof, bonafide])[:, None]
    weights, biases = _fit_logistic(features, classes, np.array([prior, 1.0 - prior]))
    scale = float(weights[0, BONAFIDE] - weights[0, SPOOF])
    offset = float(biases[BONAFIDE] - biases[SPOOF])
    if scale <= 0.0:
        raise ValueError(
            f"`scores` must rise from spoof to bonafide; the fitted slope is {scale:.3g}. "
            "Negate them if their sign is flipped; scores at chance level can't be calibrated."
        )
    return Calibration(kind="affine", scale=scale, offset=offset, fitted_for=conditions)


def probability(llr: ArrayLike, prior: float = ASVSPOOF5.p_spoof) -> FloatArray:
    """Return the probability of bonafide, given log-likelihood ratios and the prior of spoof.

    Example:
        >>> probability([0.0], prior=0.05)
        array([0.95])
    """
    _check_prior(prior)
    log_odds = _without_nan("llr", llr) + np.log((1.0 - prior) / prior)
    return np.asarray(expit(log_odds))


def decide(llr: ArrayLike, costs: DetectionCosts = ASVSPOOF5) -> NDArray[np.int64]:
    """Return the cheapest label for each log-likelihood ratio: 1 (bonafide) at or above −ln β.

    Example:
        >>> decide([-1.0, 0.0])
        array([0, 1])
    """
    accept = _without_nan("llr", llr) >= costs.threshold
    return np.where(accept, BONAFIDE, SPOOF)


def fuse_sasv(
    asv_llr: ArrayLike, cm_llr: ArrayLike, costs: SasvCosts = ASVSPOOF5_SASV
) -> FloatArray:
    """Combine two calibrated systems into one score for spoofing-robust verification.

    The log-likelihood ratio of "target" against "nontarget or spoof", non-linear in both:

        −log[(1 − ρ) e^(−asv) + ρ e^(−cm)],

    with ρ the share of spoofs in what must be rejected, weighted by cost (Wang et al., 2024). It
    accepts only where both systems do. Lower one of them without end and the score follows it.

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
        values = _without_nan("scores", scores)
        if values.ndim != 2 or values.shape[1] != len(self.weights):
            raise ValueError(
                f"`scores` must have shape (n_trials, {len(self.weights)}); got {values.shape}. "
                "Stack the systems: np.stack([asv, cm], axis=1)."
            )
        log_likelihood = values @ np.array(self.weights) + np.array(self.biases)
        with np.errstate(divide="ignore"):
            share = np.log([1.0 - self.costs.rho, self.costs.rho])
        return np.asarray(log_likelihood[:, 0] - logsumexp(log_likelihood[:, 1:] + share, axis=1))


def fit_fusion(
    scores: ArrayLike, labels: ArrayLike, costs: SasvCosts = ASVSPOOF5_SASV
) -> LinearFusion:
    """Fit a linear fusion by prior-weighted logistic regression over the three classes.

    Args:
        scores: Scores of each system, shape (n_trials, n_systems): ASV and CM, say.
        labels: "target", "nontarget" or "spoof" per trial, shape (n_trials,).
        costs: Costs and priors of the three classes.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(["target", "nontarget", "spoof"], 500)
        >>> asv = rng.normal(np.repeat([2, -2, 2], 500), 1)
        >>> cm = rng.normal(np.repeat([2, 2, -2], 500), 1)
        >>> systems = np.stack([asv, cm], axis=1)
        >>> fused = fit_fusion(systems, labels).apply(systems)
        >>> bool(np.median(fused[:500]) > 0 > np.median(fused[500:]))
        True
    """
    features = np.asarray(scores, dtype=np.float64)
    if features.ndim != 2:
        raise ValueError(
            f"`scores` must have shape (n_trials, n_systems); got {features.shape}. "
            "Stack the systems: np.stack([asv, cm], axis=1)."
        )
    as_scores("scores", features.ravel())
    words = np.asarray(labels)
    if words.shape != features.shape[:1]:
        raise ValueError(
            f"`labels` must have one label per trial, shape ({len(features)},); got {words.shape}."
        )
    classes = np.full(len(words), -1)
    for index, name in enumerate(SASV_CLASSES):
        classes[words == name] = index
    if set(classes.tolist()) != {*range(len(SASV_CLASSES))}:
        raise ValueError(
            f"`labels` must be {', '.join(SASV_CLASSES)}, each at least once; got "
            f"{sorted({str(word) for word in words})}."
        )
    priors = np.array([costs.p_target, costs.p_nontarget, costs.p_spoof])
    if not priors.all():
        raise ValueError(f"`costs` must give every class a positive prior; got {priors.tolist()}.")
    weights, biases = _fit_logistic(features, classes, priors)
    return LinearFusion(
        weights=tuple(map(tuple, weights.tolist())), biases=tuple(biases.tolist()), costs=costs
    )


def _without_nan(name: str, values: ArrayLike) -> FloatArray:
    """Return `values` as float64; infinite ones are certainties, but NaN decides nothing."""
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        raise ValueError(
            f"`{name}` must not be NaN; got {int(np.isnan(array).sum())} NaN of {array.size}. "
            "Find out why the model gave them and score again."
        )
    return array


def _check_prior(prior: float) -> None:
    if not 0.0 < prior < 1.0:
        raise ValueError(
            f"`prior` must be the probability of spoof, between 0 and 1, excluded; got {prior}."
        )


def _fit_isotonic(bonafide: FloatArray, spoof: FloatArray) -> Calibration:
    scores = np.unique(np.concatenate([bonafide, spoof]))
    n_bonafide, n_spoof = (
        np.bincount(np.searchsorted(scores, of_class), minlength=len(scores))
        for of_class in (bonafide, spoof)
    )
    # A bonafide trial below all scores and a spoof above them always join their neighbours.
    n_bonafide, n_spoof, starts = pool_adjacent_violators(
        np.concatenate([[1], n_bonafide, [0]]), np.concatenate([[0], n_spoof, [1]])
    )
    llr = np.log(n_bonafide / n_bonafide.sum()) - np.log(n_spoof / n_spoof.sum())
    first = np.maximum(starts - 1, 0)
    last = np.append(first[1:], len(scores)) - 1
    at = np.stack([scores[first], scores[last]], axis=1).ravel()
    knots = np.unique(np.stack([at, np.repeat(llr, 2)], axis=1), axis=0)
    return Calibration(kind="isotonic", knots=tuple(map(tuple, knots.tolist())))


def _fit_logistic(
    features: FloatArray, classes: NDArray[np.int64], priors: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Fit log-likelihoods that are linear in the features, each class weighted to its prior.

    Minimises Σ_k π_k mean_k[−log softmax(W·z + b + log π)_k] + ½·RIDGE·min π·|W|² over standardised
    features z, with the parameters of class 0 fixed at zero, by Newton steps with backtracking.
    From features (n_trials, n_features), classes (n_trials,) and priors (n_classes,) come weights
    (n_features, n_classes) and biases (n_classes,) on the features as given.
    """
    n_trials, n_features = features.shape
    n_classes = len(priors)
    # By a power of two, which is exact: the squares of enormous features would overflow.
    exponent = np.frexp(np.abs(features).max(axis=0))[1]
    features = np.ldexp(features, -exponent)
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    design = np.column_stack([(features - mean) / spread, np.ones(n_trials)])
    trial_weight = (priors / np.bincount(classes, minlength=n_classes))[classes]
    truth = np.eye(n_classes)[classes]
    log_priors = np.log(priors)
    penalty = np.zeros((n_features + 1, n_classes - 1))
    penalty[:-1] = RIDGE * priors.min()

    def objective(parameters: FloatArray) -> tuple[float, FloatArray]:
        logits = np.column_stack([np.zeros(n_trials), design @ parameters]) + log_priors
        log_posterior = log_softmax(logits, axis=1)
        picked = log_posterior[np.arange(n_trials), classes]
        loss = -float(trial_weight @ picked) + 0.5 * float((penalty * parameters**2).sum())
        return loss, np.exp(log_posterior)

    parameters = np.zeros((n_features + 1, n_classes - 1))
    loss, posterior = objective(parameters)
    for _ in range(_MAX_STEPS):
        residual = trial_weight[:, None] * (posterior - truth)[:, 1:]
        gradient = design.T @ residual + penalty * parameters
        hessian = _hessian(design, trial_weight, posterior[:, 1:]) + np.diag(penalty.T.ravel())
        # A flat direction (a class that no trial is near) gets a tiny curvature, not a division.
        hessian += 1e-14 * np.eye(len(hessian))
        step = np.linalg.solve(hessian, gradient.T.ravel()).reshape(gradient.T.shape).T
        decrease = float((gradient * step).sum())
        length = 1.0
        while True:
            trial_loss, trial_posterior = objective(parameters - length * step)
            if trial_loss <= loss - 1e-4 * length * decrease or length < 1e-10:
                break
            length /= 2.0
        if trial_loss < loss:
            parameters, loss, posterior = parameters - length * step, trial_loss, trial_posterior
        if decrease < 1e-14 or length < 1e-10:
            break
    weights = np.column_stack([np.zeros(n_features), parameters[:-1] / spread[:, None]])
    biases = np.concatenate([[0.0], parameters[-1] - mean @ weights[:, 1:]])
    return np.ldexp(weights, -exponent[:, None]), biases


def _hessian(design: FloatArray, weight: FloatArray, posterior: FloatArray) -> FloatArray:
    """Second derivative of the weighted cross-entropy, classes outermost."""
    n_free = posterior.shape[1]

    def block(i: int, j: int) -> FloatArray:
        curvature = weight * posterior[:, i] * ((i == j) - posterior[:, j])
        return np.asarray(design.T @ (curvature[:, None] * design))

    return np.block([[block(i, j) for j in range(n_free)] for i in range(n_free)])
