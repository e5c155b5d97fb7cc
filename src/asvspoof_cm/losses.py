"""The training objectives (sections IV-E to IV-G of the TFPARN paper).

Logits have shape (batch, 2), index 0 spoof and 1 bonafide; labels have shape (batch,). With
half-precision inputs the loss is computed and returned in float32. Plain cross-entropy (systems 1
to 4 of the paper) is `torch.nn.functional.cross_entropy`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from asvspoof_cm.labels import BONAFIDE, SPOOF

__all__ = [
    "FocalLoss",
    "FocalPairwiseLoss",
    "PairwiseRankingLoss",
    "focal_loss",
    "focal_pairwise_loss",
    "pairwise_ranking_loss",
]

Reduction = Literal["mean", "sum", "none"]

# From this many pairs on, sorting costs less than looking at every pair.
_MANY_PAIRS = 1 << 18


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float = 0.5,
    gamma: float = 2.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return the focal loss, −α_y (1 − p_y)^γ log p_y.

    The class weights are [1 − α, α] for [spoof, bonafide]. With two classes 1 − p_y is the
    probability of the other class, so both factors come from one log-softmax and nothing overflows
    or loses precision, however large the logits.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        alpha: The weight of bonafide, in [0, 1].
        gamma: The focusing parameter, not negative. With 0 and ``alpha=0.5`` this is half the
            cross-entropy.
        reduction: "mean" over the batch, "sum", or "none" for shape (batch,).

    Example:
        >>> logits = torch.tensor([[2.0, -1.0], [0.5, 0.5]])
        >>> focal_loss(logits, torch.tensor([0, 1]))
        tensor(0.0433)
    """
    _check_logits(logits, labels)
    if not 0 <= alpha <= 1:
        raise ValueError(f"`alpha` must lie in [0, 1]; got {alpha}.")
    if not gamma >= 0:
        raise ValueError(f"`gamma` must not be negative; got {gamma}.")
    log_p = widen(logits).log_softmax(dim=-1)
    own = labels.long()[:, None]
    log_p_own = log_p.gather(1, own).squeeze(1)
    log_p_other = log_p.gather(1, 1 - own).squeeze(1)
    class_weights = log_p.new_tensor([1.0 - alpha, alpha])[own.squeeze(1)]
    loss = -class_weights * torch.exp(gamma * log_p_other) * log_p_own
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f'`reduction` must be "mean", "sum" or "none"; got {reduction!r}.')


def pairwise_ranking_loss(scores: Tensor, labels: Tensor, *, margin: float = 1.0) -> Tensor:
    """Return the mean of max(0, m − (s_b − s_s)) over all pairs of a bonafide b and a spoof s.

    A batch with one class only has no pairs: the loss is 0 and its gradient is zero. Batches with
    many pairs are computed in O(n log n) time and O(n) memory, by sorting.

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
    if not margin >= 0:
        raise ValueError(f"`margin` must not be negative; got {margin}.")
    scores = widen(scores)
    bonafide, spoof = scores[labels == BONAFIDE], scores[labels == SPOOF]
    n_pairs = len(bonafide) * len(spoof)
    if n_pairs == 0:
        return scores.sum() * 0.0
    if n_pairs < _MANY_PAIRS:
        return torch.relu(margin - bonafide[:, None] + spoof).mean()
    return _sorted_hinge_sum(bonafide, spoof, margin) / n_pairs


def _sorted_hinge_sum(bonafide: Tensor, spoof: Tensor, margin: float) -> Tensor:
    """Return Σ_b Σ_s max(0, m − b + s) without forming the pairs.

    For one b the spoof scores that cost anything are those above b − m: the tail of the sorted
    list from some k on. They add n_tail · (m − b) + Σ tail, and a cumulative sum gives every tail.
    In float64, because tails are differences of large sums; MPS has no float64.
    """
    dtype = torch.float32 if bonafide.device.type == "mps" else torch.float64
    wide, ordered = bonafide.to(dtype), spoof.to(dtype).sort().values
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    k = torch.searchsorted(ordered.detach(), wide.detach() - margin, right=True)
    n_tail = len(ordered) - k
    total = (n_tail * (margin - wide) + (sums[-1] - sums[k])).sum()
    return total.to(bonafide.dtype)


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
    if not weight >= 0:
        raise ValueError(f"`weight` must not be negative; got {weight}.")
    focal = focal_loss(logits, labels, alpha=alpha, gamma=gamma)
    return focal + weight * pairwise_ranking_loss(logits[:, BONAFIDE], labels, margin=margin)


class FocalLoss(nn.Module):
    """`focal_loss` with its settings kept.

    Example:
        >>> FocalLoss(gamma=1.0)
        FocalLoss(alpha=0.5, gamma=1.0, reduction='mean')
    """

    def __init__(
        self, *, alpha: float = 0.5, gamma: float = 2.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma
        self.reduction: Reduction = reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (batch, 2) and labels (batch,)."""
        return focal_loss(
            logits, labels, alpha=self.alpha, gamma=self.gamma, reduction=self.reduction
        )

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"alpha={self.alpha}, gamma={self.gamma}, reduction={self.reduction!r}"


class PairwiseRankingLoss(nn.Module):
    """`pairwise_ranking_loss` with its margin kept.

    Example:
        >>> PairwiseRankingLoss()
        PairwiseRankingLoss(margin=1.0)
    """

    def __init__(self, *, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of scores (batch,) and labels (batch,)."""
        return pairwise_ranking_loss(scores, labels, margin=self.margin)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"margin={self.margin}"


class FocalPairwiseLoss(nn.Module):
    """`focal_pairwise_loss` with its settings kept.

    Example:
        >>> FocalPairwiseLoss()
        FocalPairwiseLoss(alpha=0.5, gamma=2.0, margin=1.0, weight=0.3)
    """

    def __init__(
        self, *, alpha: float = 0.5, gamma: float = 2.0, margin: float = 1.0, weight: float = 0.3
    ) -> None:
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma
        self.margin = margin
        self.weight = weight

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (batch, 2) and labels (batch,)."""
        return focal_pairwise_loss(
            logits,
            labels,
            alpha=self.alpha,
            gamma=self.gamma,
            margin=self.margin,
            weight=self.weight,
        )

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"alpha={self.alpha}, gamma={self.gamma}, margin={self.margin}, weight={self.weight}"


def widen(x: Tensor) -> Tensor:
    """Return half precision as float32, anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] != 2:
        raise ValueError(f"`logits` must have shape (batch, 2); got {tuple(logits.shape)}.")
    if len(logits) == 0:
        raise ValueError("`logits` must hold at least one row; got none.")
    _check_labels(logits, labels)


def _check_labels(scores: Tensor, labels: Tensor) -> None:
    if labels.shape != scores.shape[:1]:
        raise ValueError(
            f"`labels` must have shape ({len(scores)},), one for each row; "
            f"got {tuple(labels.shape)}."
        )
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"`labels` must be integers, 0 spoof or 1 bonafide; got {labels.dtype}.")
    # On an accelerator the check would wait for the device in every step.
    if labels.device.type == "cpu" and not ((labels == SPOOF) | (labels == BONAFIDE)).all():
        raise ValueError(
            "`labels` must be 0 (spoof) or 1 (bonafide); "
            f"got values from {labels.min().item()} to {labels.max().item()}."
        )
