"""Losses: each against its formula and a limit case; the battery that all of them pass."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from asvspoof_cm import metrics
from asvspoof_cm.losses import (
    LOSSES,
    cross_entropy_loss,
    focal_loss,
    focal_pairwise_loss,
    listwise_loss,
    pairwise_ranking_loss,
    prior_weighted_bce,
)

LABELS = torch.tensor([0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1])


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 2, generator=generator, dtype=torch.float64), LABELS


def scores_of(logits):
    return (logits[:, 1] - logits[:, 0]).tolist()


def mean(values):
    values = list(values)
    return sum(values) / len(values)


# Classification.


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
    torch.testing.assert_close(focal_loss(*batch, **settings), expected.mean())


def test_gamma_zero_is_half_the_cross_entropy_and_extreme_logits_cost_their_size(batch):
    expected = functional.cross_entropy(*batch)
    torch.testing.assert_close(focal_loss(*batch, gamma=0.0), expected / 2)
    torch.testing.assert_close(cross_entropy_loss(*batch), expected)
    wrong = torch.tensor([[1e4, -1e4]])
    assert focal_loss(wrong, torch.tensor([1])).item() == pytest.approx(0.5 * 2e4)


# Ranking.


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0, 10.0])
def test_pairwise_loss_over_every_pair(batch, margin):
    scores, labels = batch[0][:, 1], batch[1]
    products = itertools.product(scores[labels == 1].tolist(), scores[labels == 0].tolist())
    expected = mean(max(0.0, margin - (b - s)) for b, s in products)
    result = pairwise_ranking_loss(scores, labels, margin=margin)
    assert result.item() == pytest.approx(expected, rel=1e-12)
    ranked = torch.tensor([-20.0, -15.0, 0.0, 5.0])
    assert pairwise_ranking_loss(ranked, torch.tensor([0, 0, 1, 1]), margin=margin) == 0


def test_total_is_the_weighted_sum_and_the_papers_objective_by_name(batch):
    logits, labels = batch
    expected = focal_loss(logits, labels) + 0.3 * pairwise_ranking_loss(logits[:, 1], labels)
    torch.testing.assert_close(focal_pairwise_loss(logits, labels), expected)
    assert LOSSES["focal_pairwise"] is focal_pairwise_loss


def test_listwise_by_its_formula(batch):
    logits, labels = batch
    scores = [score / 0.5 for score in scores_of(logits)]
    total = math.log(sum(math.exp(score) for score in scores))
    expected = mean(total - score for score, y in zip(scores, labels, strict=True) if y == 1)
    assert listwise_loss(*batch, temperature=0.5).item() == pytest.approx(expected)
    # It is least with the spoofs far below.
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, -40.0]])
    loss = listwise_loss(logits, torch.tensor([1, 1, 1, 0]))
    assert loss.item() == pytest.approx(math.log(3))


# Cost.


def test_prior_weighted_bce_is_cllr_at_even_odds(batch):
    logits, labels = batch
    scores = np.asarray(scores_of(logits))
    expected = metrics.cllr(scores[labels == 1], scores[labels == 0])
    result = prior_weighted_bce(*batch, beta=1.0).item() / math.log(2)
    assert result == pytest.approx(expected)


def test_prior_weighted_bce_is_least_at_the_log_likelihood_ratio():
    """Of 3 bonafide and 1 spoof with one and the same score, the ratio is (3/3) / (1/1)."""
    labels = torch.tensor([1, 1, 1, 0])
    values = torch.linspace(-2, 2, 401, dtype=torch.float64)
    zeros = torch.zeros(4, dtype=torch.float64)
    losses = [prior_weighted_bce(torch.stack([zeros, zeros + s], dim=1), labels) for s in values]
    assert values[int(torch.stack(losses).argmin())].item() == pytest.approx(0.0, abs=0.01)


# The battery.


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_in_float64(name, batch):
    logits, labels = batch
    leaf = (5 * logits).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, labels), leaf)
    if name == "focal":
        for gamma in (0.0, 0.5, 1.0):
            assert torch.autograd.gradcheck(lambda x, g=gamma: focal_loss(x, labels, gamma=g), leaf)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e4, 100.0, 0.0])
def test_extreme_logits_stay_finite(name, dtype, size):
    logits = torch.tensor([[size, -size], [-size, size]] * 2, dtype=dtype, requires_grad=True)
    loss = LOSSES[name](logits, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("n_rows", "label"), [(1, 0), (1, 1), (5, 0), (5, 1)])
def test_a_batch_of_one_class(name, n_rows, label):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(n_rows, 2, generator=generator, requires_grad=True)
    loss = LOSSES[name](logits, torch.full((n_rows,), label))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    if (name, label) == ("listwise", 0):
        assert loss == 0
        assert not logits.grad.any()


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_waits_for_the_device(name):
    logits = torch.empty(12, 2, device="meta", requires_grad=True)
    loss = LOSSES[name](logits, LABELS.to("meta"))
    loss.backward()
    assert loss.shape == ()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_to_one_graph(name, batch):
    torch.compiler.reset()
    compiled = torch.compile(LOSSES[name], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*batch), LOSSES[name](*batch))


@pytest.mark.parametrize("name", LOSSES)
def test_boolean_and_small_integer_labels(name, batch):
    logits, labels = batch
    expected = LOSSES[name](logits, labels)
    for dtype in (torch.bool, torch.uint8, torch.int32):
        assert LOSSES[name](logits, labels.to(dtype)) == expected


TWO = torch.tensor([0, 1])
LOGITS = torch.zeros(2, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: focal_loss(torch.zeros(2), TWO), ValueError, r"`logits` must have shape"),
        (lambda: focal_loss(torch.zeros(2, 3), TWO), ValueError, r"\(batch, 2\); got \(2, 3\)"),
        (lambda: focal_loss(torch.zeros(3, 2), TWO), ValueError, r"`labels` must have shape"),
        (lambda: focal_loss(LOGITS, TWO.float()), TypeError, "must be integers"),
        (lambda: listwise_loss(LOGITS, TWO + 1), ValueError, "values from 1 to 2"),
        (lambda: focal_loss(LOGITS, TWO, alpha=2), ValueError, "`alpha` must be between 0 and 1"),
        (lambda: focal_loss(LOGITS, TWO, gamma=-1), ValueError, "`gamma` must not"),
        (lambda: focal_loss(LOGITS, TWO, gamma=math.nan), ValueError, "`gamma` must"),
        (lambda: focal_loss(torch.zeros(0, 2), TWO[:0]), ValueError, "at least one row"),
        (lambda: focal_pairwise_loss(LOGITS, TWO, weight=-1), ValueError, "`weight` must not"),
        (lambda: pairwise_ranking_loss(LOGITS, TWO), ValueError, r"logits\[:, 1\]"),
        (lambda: pairwise_ranking_loss(LOGITS[0], TWO, margin=-1), ValueError, "`margin` must"),
        (lambda: listwise_loss(LOGITS, TWO, temperature=0), ValueError, "`temperature` must be"),
        (lambda: prior_weighted_bce(LOGITS, TWO, beta=0), ValueError, "`beta` must be positive"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
