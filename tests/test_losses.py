"""Losses: limit cases, gradients, extreme inputs, one class, many pairs."""

import itertools
import math

import pytest
import torch
from torch.nn import functional

from asvspoof_cm import losses
from asvspoof_cm.losses import (
    FocalLoss,
    FocalPairwiseLoss,
    PairwiseRankingLoss,
    focal_loss,
    focal_pairwise_loss,
    pairwise_ranking_loss,
)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    return logits, torch.tensor([0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1])


def by_hand(logits, labels, alpha, gamma):
    values = []
    for z, y in zip(logits.tolist(), labels.tolist(), strict=True):
        p = math.exp(z[y]) / (math.exp(z[0]) + math.exp(z[1]))
        values.append(-[1 - alpha, alpha][y] * (1 - p) ** gamma * math.log(p))
    return values


@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 2.0), (0.25, 1.0), (0.9, 0.5), (1.0, 5.0)])
def test_focal_loss_by_its_formula(batch, alpha, gamma):
    expected = torch.tensor(by_hand(*batch, alpha, gamma), dtype=torch.float64)
    settings = {"alpha": alpha, "gamma": gamma}
    torch.testing.assert_close(focal_loss(*batch, **settings, reduction="none"), expected)
    torch.testing.assert_close(focal_loss(*batch, **settings, reduction="sum"), expected.sum())
    torch.testing.assert_close(focal_loss(*batch, **settings), expected.mean())


def test_gamma_zero_is_half_the_cross_entropy(batch):
    expected = functional.cross_entropy(*batch) / 2
    torch.testing.assert_close(focal_loss(*batch, gamma=0.0), expected)


def test_alpha_weights_bonafide(batch):
    logits, labels = batch
    loss = focal_loss(logits, labels, alpha=1.0, reduction="none")
    assert (loss[labels == 0] == 0).all()
    assert (loss[labels == 1] > 0).all()


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0, 10.0])
def test_pairwise_loss_over_every_pair(batch, margin):
    scores, labels = batch[0][:, 1], batch[1]
    pairs = itertools.product(scores[labels == 1].tolist(), scores[labels == 0].tolist())
    expected = [max(0.0, margin - (b - s)) for b, s in pairs]
    result = pairwise_ranking_loss(scores, labels, margin=margin)
    assert result.item() == pytest.approx(sum(expected) / len(expected), rel=1e-12)


def test_ranked_scores_cost_nothing():
    scores = torch.tensor([-3.0, -2.0, 0.0, 5.0])
    assert pairwise_ranking_loss(scores, torch.tensor([0, 0, 1, 1]), margin=2.0) == 0


def test_total_is_the_weighted_sum(batch):
    logits, labels = batch
    expected = focal_loss(logits, labels) + 0.3 * pairwise_ranking_loss(logits[:, 1], labels)
    torch.testing.assert_close(focal_pairwise_loss(logits, labels), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_gradient(batch, gamma):
    logits, labels = batch
    assert torch.autograd.gradcheck(
        lambda x: focal_loss(x, labels, gamma=gamma), logits.requires_grad_()
    )


def test_pairwise_gradients(batch, monkeypatch):
    scores, labels = batch[0][:, 1].clone().requires_grad_(), batch[1]
    assert torch.autograd.gradcheck(lambda x: pairwise_ranking_loss(x, labels), scores)
    monkeypatch.setattr(losses, "_MANY_PAIRS", 0)
    assert torch.autograd.gradcheck(lambda x: pairwise_ranking_loss(x, labels), scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e4, 100.0, 0.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_extreme_logits_stay_finite(dtype, size, gamma):
    logits = torch.tensor([[size, -size], [-size, size]] * 2, dtype=dtype, requires_grad=True)
    loss = focal_pairwise_loss(logits, torch.tensor([0, 0, 1, 1]), gamma=gamma)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_a_wrong_extreme_logit_costs_its_size():
    logits = torch.tensor([[1e4, -1e4]])
    assert focal_loss(logits, torch.tensor([1])).item() == pytest.approx(0.5 * 2e4)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_no_pairs_but_a_gradient(label):
    scores = torch.randn(5, requires_grad=True)
    loss = pairwise_ranking_loss(scores, torch.full((5,), label))
    loss.backward()
    assert loss == 0
    assert torch.equal(scores.grad, torch.zeros(5))


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_sorted_path_equals_all_pairs(monkeypatch, scale):
    generator = torch.Generator().manual_seed(3)
    scores = (scale * torch.randn(4096, generator=generator)).requires_grad_()
    labels = torch.randint(0, 2, (4096,), generator=generator)
    fast = pairwise_ranking_loss(scores, labels)
    (fast_grad,) = torch.autograd.grad(fast, scores)
    monkeypatch.setattr(losses, "_MANY_PAIRS", 1 << 60)
    dense = pairwise_ranking_loss(scores.double(), labels)
    (dense_grad,) = torch.autograd.grad(dense, scores)
    torch.testing.assert_close(fast.double(), dense, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fast_grad, dense_grad, rtol=0, atol=1e-6)


def test_sorted_path_with_ties(monkeypatch):
    scores = torch.tensor([0.0, 1.0, 1.0, 0.0, 2.0, 1.0])
    labels = torch.tensor([0, 0, 1, 1, 1, 0])
    expected = pairwise_ranking_loss(scores, labels)
    monkeypatch.setattr(losses, "_MANY_PAIRS", 0)
    torch.testing.assert_close(pairwise_ranking_loss(scores, labels), expected)


def test_modules_delegate(batch):
    logits, labels = batch
    assert FocalLoss(alpha=0.3, gamma=1.5)(logits, labels) == focal_loss(
        logits, labels, alpha=0.3, gamma=1.5
    )
    scores = logits[:, 1]
    expected = pairwise_ranking_loss(scores, labels, margin=0.7)
    assert PairwiseRankingLoss(margin=0.7)(scores, labels) == expected
    assert FocalPairwiseLoss(weight=2.0)(logits, labels) == focal_pairwise_loss(
        logits, labels, weight=2.0
    )


def test_boolean_and_small_integer_labels(batch):
    logits, labels = batch
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int32):
        assert focal_pairwise_loss(logits, labels.to(dtype)) == focal_pairwise_loss(logits, labels)


LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: focal_loss(torch.zeros(2), LABELS), ValueError, r"`logits` must have shape"),
        (lambda: focal_loss(torch.zeros(2, 3), LABELS), ValueError, r"\(batch, 2\); got \(2, 3\)"),
        (lambda: focal_loss(torch.zeros(3, 2), LABELS), ValueError, r"`labels` must have shape"),
        (lambda: focal_loss(torch.zeros(2, 2), LABELS.float()), TypeError, "must be integers"),
        (lambda: focal_loss(torch.zeros(2, 2), LABELS + 1), ValueError, "values from 1 to 2"),
        (lambda: focal_loss(torch.zeros(2, 2), LABELS, alpha=2), ValueError, "`alpha` must lie"),
        (lambda: focal_loss(torch.zeros(2, 2), LABELS, gamma=-1), ValueError, "`gamma` must not"),
        (
            lambda: focal_loss(torch.zeros(2, 2), LABELS, reduction="avg"),
            ValueError,
            "`reduction` must be",
        ),
        (lambda: focal_loss(torch.zeros(2, 2), LABELS, gamma=math.nan), ValueError, "`gamma` must"),
        (lambda: focal_loss(torch.zeros(0, 2), LABELS[:0]), ValueError, "at least one row"),
        (
            lambda: focal_pairwise_loss(torch.zeros(2, 2), LABELS, weight=-1),
            ValueError,
            "`weight` must not",
        ),
        (lambda: pairwise_ranking_loss(torch.zeros(2, 2), LABELS), ValueError, r"logits\[:, 1\]"),
        (
            lambda: pairwise_ranking_loss(torch.zeros(2), LABELS, margin=-1),
            ValueError,
            "`margin` must not",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_losses_agree(batch):
    logits, labels = batch
    compiled = torch.compile(focal_pairwise_loss, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, labels), focal_pairwise_loss(logits, labels))
