"""Training objectives: classification, ranking and cost.

Logits have shape (batch, 2), index 0 spoof and 1 bonafide; labels have shape (batch,). The score
of an utterance is s = z₁ − z₀, except in the paper's pairwise loss, which ranks by z₁ (sections
IV-E to IV-G of the TFPARN paper). Sums over pairs are dense and masked: nothing waits for the
device, and memory grows with the square of the batch. A class that a batch lacks adds nothing.
With half-precision inputs a loss is computed and returned in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from asvspoof_cm._util import check_between, check_not_negative, check_positive_finite
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics import ASVSPOOF5

__all__ = [
    "LOSSES",
    "cross_entropy_loss",
    "cross_entropy_pairwise_loss",
    "focal_loss",
    "focal_pairwise_loss",
    "listwise_loss",
    "pairwise_ranking_loss",
    "prior_weighted_bce",
]


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, *, class_weights: tuple[float, float] | None = None
) -> Tensor:
    """Return the mean cross-entropy: the objective of systems 1 to 3 of the paper.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        class_weights: Weights of spoof and bonafide in the mean; None weighs both alike.

    Example:
        >>> cross_entropy_loss(torch.zeros(2, 2), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    wide = _checked(logits, labels)
    weight = None if class_weights is None else wide.new_tensor(class_weights)
    return functional.cross_entropy(wide, labels.long(), weight=weight)


def cross_entropy_pairwise_loss(
    logits: Tensor, labels: Tensor, *, margin: float = 1.0, weight: float = 0.3
) -> Tensor:
    """Return L_CE + λ L_pair, the objective of system 4, the pairs ranked by the bonafide logit.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        margin: See `pairwise_ranking_loss`.
        weight: λ, the weight of the ranking term.

    Example:
        >>> cross_entropy_pairwise_loss(torch.zeros(2, 2), torch.tensor([0, 1]))
        tensor(0.9931)
    """
    check_not_negative(weight=weight)
    ranked = pairwise_ranking_loss(logits[:, BONAFIDE], labels, margin=margin)
    return cross_entropy_loss(logits, labels) + weight * ranked


def focal_loss(logits: Tensor, labels: Tensor, *, alpha: float = 0.5, gamma: float = 2.0) -> Tensor:
    """Return the focal loss, the mean of −α_y (1 − p_y)^γ log p_y.

    The class weights are [1 − α, α] for [spoof, bonafide]. With two classes 1 − p_y is the
    probability of the other class, so both factors come from one log-softmax and nothing overflows
    or loses precision, however large the logits.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        alpha: The weight of bonafide, in [0, 1].
        gamma: The focusing parameter, not negative. With 0 and ``alpha=0.5`` this is half the
            cross-entropy.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [0.5, 0.5]])
        >>> focal_loss(logits, torch.tensor([0, 1]))
        tensor(0.0433)
    """
    log_p = _checked(logits, labels).log_softmax(dim=-1)
    check_between("alpha", alpha, 0, 1)
    check_not_negative(gamma=gamma)
    own = labels.long()[:, None]
    log_p_own = log_p.gather(1, own).squeeze(1)
    log_p_other = log_p.gather(1, 1 - own).squeeze(1)
    class_weights = torch.where(labels == BONAFIDE, alpha, 1.0 - alpha).to(log_p)
    return (-class_weights * torch.exp(gamma * log_p_other) * log_p_own).mean()


def pairwise_ranking_loss(scores: Tensor, labels: Tensor, *, margin: float = 1.0) -> Tensor:
    """Return the mean of max(0, m − (s_b − s_s)) over all pairs of a bonafide b and a spoof s.

    A batch with one class only has no pairs: the loss is 0 and its gradient is zero.

    Args:
        scores: Float tensor of shape (batch,), higher for bonafide.
        labels: Integer tensor of shape (batch,).
        margin: The separation m that a pair must reach to cost nothing, not negative.

    Example:
        >>> pairwise_ranking_loss(torch.tensor([1.0, 0.5, 3.0]), torch.tensor([0, 1, 1]))
        tensor(0.7500)
    """
    if scores.dim() != 1:
        raise ValueError(
            f"`scores` must have shape (batch,); got {tuple(scores.shape)}. "
            "The paper's score is the bonafide logit: logits[:, 1]."
        )
    _check_labels(scores, labels)
    check_not_negative(margin=margin)
    # Infinite where there is no pair, and so without cost: half the time of a mask.
    bonafide = torch.where(labels == BONAFIDE, _widen(scores), math.inf)
    spoof = torch.where(labels == SPOOF, _widen(scores), -math.inf)
    costs = torch.relu(margin - (bonafide[:, None] - spoof))
    n_pairs = (labels == BONAFIDE).sum() * (labels == SPOOF).sum()
    return costs.sum() / n_pairs.clamp(min=1)


def focal_pairwise_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.5,
    gamma: float = 2.0,
    margin: float = 1.0,
    weight: float = 0.3,
) -> Tensor:
    """Return TFPARN's objective, L_focal + λ L_pair, the pairs ranked by the bonafide logit.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        alpha: See `focal_loss`.
        gamma: See `focal_loss`.
        margin: See `pairwise_ranking_loss`.
        weight: λ, the weight of the ranking term.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [0.5, 0.5]], requires_grad=True)
        >>> focal_pairwise_loss(logits, torch.tensor([0, 1])).backward()
        >>> logits.grad.shape
        torch.Size([2, 2])
    """
    check_not_negative(weight=weight)
    focal = focal_loss(logits, labels, alpha=alpha, gamma=gamma)
    return focal + weight * pairwise_ranking_loss(logits[:, BONAFIDE], labels, margin=margin)


def listwise_loss(logits: Tensor, labels: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return −mean over bonafide i of log softmax(s / T)_i, the softmax over the whole batch.

    This is ListNet's top-one loss with the bonafide rows as the relevant ones. Its least value is
    the logarithm of their number: all bonafide scores equal, every spoof far below.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        temperature: T, positive; a lower one looks at the highest spoof scores only.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        >>> listwise_loss(logits, torch.tensor([1, 0, 0, 0])).exp()
        tensor(4.)
    """
    scores = _scores(logits, labels)
    check_positive_finite(temperature=temperature)
    return _mean(-(scores / temperature).log_softmax(dim=0), labels == BONAFIDE)


def prior_weighted_bce(logits: Tensor, labels: Tensor, *, beta: float = ASVSPOOF5.beta) -> Tensor:
    """Return the binary cross-entropy at an operating point: Cllr at its prior, in nats.

    π mean_b softplus(−(s + ln β)) + (1 − π) mean_s softplus(s + ln β), with π = β / (1 + β). It is
    a proper scoring rule: the scores that minimise it are log-likelihood ratios, whatever the share
    of each class in the training set.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        beta: Weight of a miss against a false alarm, priors included; see `DetectionCosts`. With 1
            and divided by ln 2 this is Cllr.

    Example:
        >>> prior_weighted_bce(torch.zeros(2, 2), torch.tensor([0, 1]), beta=1.0)
        tensor(0.6931)
    """
    scores = _scores(logits, labels)
    check_positive_finite(beta=beta)
    prior, shifted = beta / (1.0 + beta), scores + math.log(beta)
    miss = _mean(functional.softplus(-shifted), labels == BONAFIDE)
    false_alarm = _mean(functional.softplus(shifted), labels == SPOOF)
    return prior * miss + (1.0 - prior) * false_alarm


LOSSES: Final[dict[str, Callable[..., Tensor]]] = {
    "cross_entropy": cross_entropy_loss,
    "cross_entropy_pairwise": cross_entropy_pairwise_loss,
    "focal": focal_loss,
    "focal_pairwise": focal_pairwise_loss,
    "listwise": listwise_loss,
    "prior_weighted_bce": prior_weighted_bce,
}
"""The losses of logits and labels, by name. Add one of your own to train with it by name."""


def _widen(x: Tensor) -> Tensor:
    """Return half precision as float32, anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen values, 0 where there are none."""
    return torch.where(chosen, values, 0.0).sum() / chosen.sum().clamp(min=1)


def _scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return z₁ − z₀ of checked logits."""
    wide = _checked(logits, labels)
    return wide[:, BONAFIDE] - wide[:, SPOOF]


def _checked(logits: Tensor, labels: Tensor) -> Tensor:
    """Return logits, in float32 at least, of labels that fit them."""
    if logits.dim() != 2 or logits.shape[1] != 2:
        raise ValueError(f"`logits` must have shape (batch, 2); got {tuple(logits.shape)}.")
    if logits.shape[0] == 0:
        raise ValueError("`logits` must hold at least one row; got none.")
    _check_labels(logits, labels)
    return _widen(logits)


def _check_labels(scores: Tensor, labels: Tensor) -> None:
    if labels.shape != scores.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({scores.shape[0]},), one for each row; "
            f"got {tuple(labels.shape)}."
        )
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"`labels` must be integers, 0 spoof or 1 bonafide; got {labels.dtype}.")
    # Elsewhere the check would wait for the device, or break a compiled graph.
    if torch.compiler.is_compiling() or labels.device.type != "cpu":
        return
    if not ((labels == SPOOF) | (labels == BONAFIDE)).all():
        raise ValueError(
            "`labels` must be 0 (spoof) or 1 (bonafide); "
            f"got values from {labels.min().item()} to {labels.max().item()}."
        )
