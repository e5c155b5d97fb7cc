"""Training objectives: classification, ranking, cost, margin and contrast.

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
    "am_softmax_loss",
    "cross_entropy_loss",
    "cross_entropy_pairwise_loss",
    "focal_loss",
    "focal_pairwise_loss",
    "listwise_loss",
    "oc_softmax_loss",
    "p2sgrad_loss",
    "pairwise_ranking_loss",
    "partial_auc_loss",
    "prior_weighted_bce",
    "soft_dcf_loss",
    "soft_min_dcf_loss",
    "supervised_contrastive_loss",
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
    _check_logits(logits, labels)
    wide = _widen(logits)
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
    _check_logits(logits, labels)
    check_between("alpha", alpha, 0, 1)
    check_not_negative(gamma=gamma)
    log_p = _widen(logits).log_softmax(dim=-1)
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


def partial_auc_loss(
    logits: Tensor, labels: Tensor, *, fraction: float = 0.2, margin: float = 1.0
) -> Tensor:
    """Return the mean of softplus(m − (s_b − s_s)) over bonafide b and the highest spoofs s.

    The ⌈ρ n⌉ of n spoofs with the highest scores are those near the threshold of a system with few
    false alarms: the part of the ROC that counts at the challenge's costs.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        fraction: ρ, above 0 and at most 1; 1 ranks all pairs.
        margin: The separation m, not negative.

    Example:
        >>> logits = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, -9.0]])
        >>> partial_auc_loss(logits, torch.tensor([1, 0, 0]), fraction=0.5)
        tensor(0.6931)
    """
    scores = _scores(logits, labels)
    check_not_negative(margin=margin)
    if not 0 < fraction <= 1:
        raise ValueError(f"`fraction` must lie above 0 and at most at 1; got {fraction}.")
    spoof = labels == SPOOF
    # Rounding must not turn 0.1 · 30 into 4.
    n_kept = (fraction * spoof.sum() - 1e-4).ceil().clamp(min=1)
    order = torch.where(spoof, scores, -math.inf).argsort(descending=True)
    kept = (torch.arange(len(scores), device=scores.device) < n_kept) & spoof[order]
    costs = functional.softplus(margin - scores[:, None] + scores[order])
    return _mean(costs, (labels == BONAFIDE)[:, None] & kept, (0, 1))


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


def soft_dcf_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    slope: float = 2.0,
    beta: float = ASVSPOOF5.beta,
) -> Tensor:
    """Return a smooth actDCF: error rates counted by a sigmoid at the Bayes threshold τ = −ln β.

    (β mean_b σ(a (τ − s)) + mean_s σ(a (s − τ))) / min(β, 1). As a grows this becomes the actDCF of
    the batch. Scores far from τ get no gradient: add a classification loss, or begin with one.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        slope: a, positive; 1 to 5 trains well.
        beta: Weight of a miss against a false alarm, priors included.

    Example:
        >>> soft_dcf_loss(torch.zeros(2, 2), torch.tensor([0, 1]), beta=1.0)
        tensor(1.)
    """
    scores = _scores(logits, labels)
    check_positive_finite(slope=slope, beta=beta)
    return _dcf(slope * (scores + math.log(beta)), labels, beta)


def soft_min_dcf_loss(
    logits: Tensor, labels: Tensor, *, slope: float = 2.0, beta: float = ASVSPOOF5.beta
) -> Tensor:
    """Return a smooth minDCF: `soft_dcf_loss` at the threshold that is best for the batch.

    The thresholds tried lie halfway between neighbouring scores and beyond both ends, so adding a
    constant to all scores changes nothing, and as the slope grows this becomes the batch's minDCF.

    Args:
        logits: Tensor of shape (batch, 2).
        labels: Integer tensor of shape (batch,).
        slope: a, positive.
        beta: Weight of a miss against a false alarm, priors included.

    Example:
        >>> logits = torch.tensor([[0.0, 7.0], [0.0, 9.0]])
        >>> soft_min_dcf_loss(logits, torch.tensor([0, 1]), slope=100.0)
        tensor(0.)
    """
    scores = _scores(logits, labels)
    check_positive_finite(slope=slope, beta=beta)
    ordered = scores.sort().values
    ends = scores.new_tensor([-math.inf]), scores.new_tensor([math.inf])
    thresholds = torch.cat([ends[0], (ordered[1:] + ordered[:-1]) / 2, ends[1]])
    return _dcf(slope * (scores - thresholds[:, None]), labels, beta).amin()


def am_softmax_loss(
    logits: Tensor, labels: Tensor, *, scale: float = 20.0, margin: float = 0.9
) -> Tensor:
    """Return the additive-margin softmax loss of logits that are scaled cosines.

    Cross-entropy of a (cos θ_j − m [j = y]).

    Args:
        logits: Tensor of shape (batch, 2), a cos θ_j: what a `CosineHead` returns.
        labels: Integer tensor of shape (batch,).
        scale: a, the `scale` of the model.
        margin: m, not negative; 0 gives the cross-entropy.

    Example:
        >>> am_softmax_loss(20 * torch.tensor([[1.0, 0.1], [-0.5, 0.4]]), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    _check_logits(logits, labels)
    check_positive_finite(scale=scale)
    check_not_negative(margin=margin)
    with_margin = _widen(logits) - scale * margin * _one_hot(labels)
    return functional.cross_entropy(with_margin, labels.long())


def oc_softmax_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    scale: float = 20.0,
    bonafide_margin: float = 0.9,
    spoof_margin: float = 0.2,
) -> Tensor:
    """Return the one-class softmax loss of bonafide logits that are scaled cosines.

    softplus(a (m_b − c)) for bonafide and softplus(a (c − m_s)) for spoof (Zhang et al., 2021), c
    the cosine to the class vector. Bonafide is kept in a narrow cone, spoof out of a wider one.

    Args:
        logits: Tensor of shape (batch, 2) whose column 1 is a c: what a `CosineHead` with one
            vector returns.
        labels: Integer tensor of shape (batch,).
        scale: a, the `scale` of the model.
        bonafide_margin: m_b, the cosine that bonafide should exceed.
        spoof_margin: m_s, the cosine that spoof should stay below.

    Example:
        >>> oc_softmax_loss(20 * torch.tensor([[0.0, 0.2], [0.0, 0.9]]), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    _check_logits(logits, labels)
    check_positive_finite(scale=scale)
    bonafide_logit = _widen(logits)[:, BONAFIDE]
    return torch.where(
        labels == BONAFIDE,
        functional.softplus(scale * bonafide_margin - bonafide_logit),
        functional.softplus(bonafide_logit - scale * spoof_margin),
    ).mean()


def p2sgrad_loss(logits: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """Return the mean over utterances and classes of (cos θ_j − [j = y])².

    The P2SGrad loss as a mean squared error (Wang and Yamagishi, 2021).

    Args:
        logits: Tensor of shape (batch, 2), a cos θ_j: what a `CosineHead` returns.
        labels: Integer tensor of shape (batch,).
        scale: a, the `scale` of the model.

    Example:
        >>> p2sgrad_loss(torch.tensor([[20.0, -20.0]]), torch.tensor([0]))
        tensor(0.5000)
    """
    _check_logits(logits, labels)
    check_positive_finite(scale=scale)
    return (_widen(logits) / scale - _one_hot(labels)).square().mean()


def supervised_contrastive_loss(
    embedding: Tensor, labels: Tensor, *, group: Tensor | None = None, temperature: float = 0.07
) -> Tensor:
    """Return the supervised contrastive loss: embeddings of a class attract, of two repel.

    −mean_i mean_{p ∈ P(i)} log(e^{z_i·z_p/T} / Σ_{a ∈ A(i)} e^{z_i·z_a/T}) of unit vectors z, with
    P(i) the other rows of i's class and A(i) all other rows (Khosla et al., 2020). With `group` the
    rows of the other class in A(i) are those of i's group only: a clip is told from its own copies,
    which say the same words in the same voice. Rows alone in their class are left out.

    Args:
        embedding: Tensor of shape (batch, d), of any length.
        labels: Integer tensor of shape (batch,).
        group: Integer tensor of shape (batch,), equal for a clip and its copies; negative for a row
            without a group.
        temperature: T, positive.

    Example:
        >>> embedding = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> labels = torch.tensor([1, 1, 0, 0])
        >>> supervised_contrastive_loss(embedding, labels, temperature=1.0)
        tensor(0.5514)
    """
    if embedding.dim() != 2:
        raise ValueError(f"`embedding` must have shape (batch, d); got {tuple(embedding.shape)}.")
    _check_labels(embedding, labels)
    check_positive_finite(temperature=temperature)
    directions = functional.normalize(_widen(embedding), dim=1)
    similarity = directions @ directions.mT / temperature
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    rivals = ~same
    if group is not None:
        if group.shape != labels.shape or group.is_floating_point():
            raise ValueError(
                f"`group` must be integers of shape {tuple(labels.shape)}, one for each row; got "
                f"{group.dtype} of shape {tuple(group.shape)}."
            )
        rivals = rivals & (group[:, None] == group) & (group >= 0)
    compared = similarity.masked_fill(~(positive | rivals), torch.finfo(similarity.dtype).min)
    log_p = similarity - compared.logsumexp(dim=1, keepdim=True)
    return _mean(-_mean(log_p, positive), positive.any(dim=1))


LOSSES: Final[dict[str, Callable[..., Tensor]]] = {
    "cross_entropy": cross_entropy_loss,
    "cross_entropy_pairwise": cross_entropy_pairwise_loss,
    "focal": focal_loss,
    "focal_pairwise": focal_pairwise_loss,
    "listwise": listwise_loss,
    "partial_auc": partial_auc_loss,
    "prior_weighted_bce": prior_weighted_bce,
    "soft_dcf": soft_dcf_loss,
    "soft_min_dcf": soft_min_dcf_loss,
    "am_softmax": am_softmax_loss,
    "oc_softmax": oc_softmax_loss,
    "p2sgrad": p2sgrad_loss,
}
"""The losses of logits and labels, by name. Add one of your own to train with it by name."""


def _widen(x: Tensor) -> Tensor:
    """Return half precision as float32, anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Return z₁ − z₀ of checked logits."""
    _check_logits(logits, labels)
    wide = _widen(logits)
    return wide[:, BONAFIDE] - wide[:, SPOOF]


def _mean(values: Tensor, chosen: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """Return the mean of the chosen values, 0 where there are none."""
    return torch.where(chosen, values, 0.0).sum(dim) / chosen.sum(dim).clamp(min=1)


def _dcf(gaps: Tensor, labels: Tensor, beta: float) -> Tensor:
    """Return the normalised cost of slope · (s − τ), shape (..., batch)."""
    miss = _mean(torch.sigmoid(-gaps), labels == BONAFIDE)
    false_alarm = _mean(torch.sigmoid(gaps), labels == SPOOF)
    return (beta * miss + false_alarm) / min(beta, 1.0)


def _one_hot(labels: Tensor) -> Tensor:
    """Return (batch, 2), 1 at each row's own class."""
    return (labels[:, None] == torch.arange(2, device=labels.device)).float()


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] != 2:
        raise ValueError(f"`logits` must have shape (batch, 2); got {tuple(logits.shape)}.")
    if logits.shape[0] == 0:
        raise ValueError("`logits` must hold at least one row; got none.")
    _check_labels(logits, labels)


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
