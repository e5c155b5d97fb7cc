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
    am_softmax_loss,
    cross_entropy_loss,
    focal_loss,
    focal_pairwise_loss,
    listwise_loss,
    oc_softmax_loss,
    p2sgrad_loss,
    pairwise_ranking_loss,
    partial_auc_loss,
    prior_weighted_bce,
    soft_dcf_loss,
    soft_min_dcf_loss,
    supervised_contrastive_loss,
)

LABELS = torch.tensor([0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1])
GROUP = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, -1, -1])


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 2, generator=generator, dtype=torch.float64), LABELS


def extra(n, dtype=torch.float64, device="cpu"):
    """What the losses that need more get, for the first n rows."""
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(12, 5, generator=generator, dtype=torch.float64)[:n]
    return {"embedding": embedding.to(device, dtype), "group": GROUP[:n].to(device)}


def scores_of(logits):
    return (logits[:, 1] - logits[:, 0]).tolist()


def pairs(logits, labels, *, among=lambda b, s: True):
    scores = scores_of(logits)
    rows = [k for k, y in enumerate(labels.tolist()) if y == 1]
    columns = [k for k, y in enumerate(labels.tolist()) if y == 0]
    return [scores[b] - scores[s] for b, s in itertools.product(rows, columns) if among(b, s)]


def softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


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


def test_gamma_zero_is_half_the_cross_entropy(batch):
    expected = functional.cross_entropy(*batch)
    torch.testing.assert_close(focal_loss(*batch, gamma=0.0), expected / 2)
    torch.testing.assert_close(cross_entropy_loss(*batch), expected)


def test_a_wrong_extreme_logit_costs_its_size():
    logits = torch.tensor([[1e4, -1e4]])
    assert focal_loss(logits, torch.tensor([1])).item() == pytest.approx(0.5 * 2e4)


# Ranking.


@pytest.mark.parametrize("margin", [0.0, 0.5, 1.0, 10.0])
def test_pairwise_loss_over_every_pair(batch, margin):
    scores, labels = batch[0][:, 1], batch[1]
    products = itertools.product(scores[labels == 1].tolist(), scores[labels == 0].tolist())
    expected = mean(max(0.0, margin - (b - s)) for b, s in products)
    result = pairwise_ranking_loss(scores, labels, margin=margin)
    assert result.item() == pytest.approx(expected, rel=1e-12)


def test_ranked_scores_cost_nothing():
    scores = torch.tensor([-3.0, -2.0, 0.0, 5.0])
    assert pairwise_ranking_loss(scores, torch.tensor([0, 0, 1, 1]), margin=2.0) == 0


def test_total_is_the_weighted_sum(batch):
    logits, labels = batch
    expected = focal_loss(logits, labels) + 0.3 * pairwise_ranking_loss(logits[:, 1], labels)
    torch.testing.assert_close(focal_pairwise_loss(logits, labels), expected)


@pytest.mark.parametrize(("fraction", "n_kept"), [(0.01, 1), (1 / 7, 1), (0.2, 2), (0.9, 7)])
def test_partial_auc_looks_at_the_highest_spoofs(batch, fraction, n_kept):
    logits, labels = batch
    scores = scores_of(logits)
    highest = sorted((k for k in range(12) if labels[k] == 0), key=lambda k: -scores[k])[:n_kept]
    expected = mean(softplus(1 - gap) for gap in pairs(*batch, among=lambda b, s: s in highest))
    assert partial_auc_loss(*batch, fraction=fraction).item() == pytest.approx(expected)


@pytest.mark.parametrize(("fraction", "n_spoof", "n_kept"), [(0.1, 30, 3), (0.3, 10, 3)])
def test_a_fraction_is_not_rounded_up_by_its_binary_form(fraction, n_spoof, n_kept):
    logits = torch.zeros(n_spoof + 1, 2)
    logits[:, 1] = torch.arange(n_spoof + 1)
    logits.requires_grad_()
    labels = torch.cat([torch.zeros(n_spoof), torch.ones(1)]).long()
    partial_auc_loss(logits, labels, fraction=fraction, margin=50.0).backward()
    assert (logits.grad[:-1, 1] > 0).sum() == n_kept


def test_listwise_by_its_formula(batch):
    logits, labels = batch
    scores = [score / 0.5 for score in scores_of(logits)]
    total = math.log(sum(math.exp(score) for score in scores))
    expected = mean(total - score for score, y in zip(scores, labels, strict=True) if y == 1)
    assert listwise_loss(*batch, temperature=0.5).item() == pytest.approx(expected)


def test_listwise_is_least_with_the_spoofs_far_below():
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, -40.0]])
    loss = listwise_loss(logits, torch.tensor([1, 1, 1, 0]))
    assert loss.item() == pytest.approx(math.log(3))


# Cost.


def test_soft_dcf_becomes_the_act_dcf(batch):
    logits, labels = batch
    scores = np.asarray(scores_of(logits))
    expected = metrics.act_dcf(scores[labels == 1], scores[labels == 0])
    assert 0 < expected.value < 1.9
    assert soft_dcf_loss(*batch, slope=1e6).item() == pytest.approx(expected.value)


@pytest.mark.parametrize("beta", [0.4, 1.0, 1.9])
def test_soft_min_dcf_becomes_the_min_dcf(batch, beta):
    logits, labels = batch
    scores = np.asarray(scores_of(logits))
    costs = metrics.DetectionCosts(p_spoof=0.5, c_miss=beta, c_fa=1.0)
    expected = metrics.min_dcf(scores[labels == 1], scores[labels == 0], costs)
    result = soft_min_dcf_loss(*batch, slope=1e6, beta=beta)
    assert 0 < expected.value <= 1
    assert result.item() == pytest.approx(expected.value)


def test_soft_dcf_by_its_formula(batch):
    logits, labels = batch
    scores = torch.tensor(scores_of(logits), dtype=torch.float64)
    miss = torch.sigmoid(3 * (-math.log(2.5) - scores[labels == 1])).mean()
    false_alarm = torch.sigmoid(3 * (scores[labels == 0] + math.log(2.5))).mean()
    result = soft_dcf_loss(*batch, slope=3.0, beta=2.5)
    torch.testing.assert_close(result, 2.5 * miss + false_alarm)


def test_only_the_order_counts_for_the_soft_min_dcf(batch):
    logits, labels = batch
    shifted = logits + torch.tensor([0.0, 5.0], dtype=torch.float64)
    loss = soft_min_dcf_loss(logits, labels)
    torch.testing.assert_close(soft_min_dcf_loss(shifted, labels), loss)
    assert loss <= soft_dcf_loss(logits, labels)
    assert not torch.isclose(soft_dcf_loss(shifted, labels), soft_dcf_loss(logits, labels))


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


# Margin and contrast.


def test_am_softmax_without_a_margin_is_the_cross_entropy(batch):
    torch.testing.assert_close(am_softmax_loss(*batch, margin=0.0), cross_entropy_loss(*batch))
    logits, labels = batch
    changed = logits.clone()
    changed[torch.arange(12), labels] -= 30 * 0.5
    expected = cross_entropy_loss(changed, labels)
    torch.testing.assert_close(am_softmax_loss(logits, labels, scale=30.0, margin=0.5), expected)


def test_oc_softmax_by_its_formula(batch):
    logits, labels = batch
    rows = zip((logits[:, 1] / 20).tolist(), labels.tolist(), strict=True)
    expected = mean(softplus(20 * (0.9 - c)) if y else softplus(20 * (c - 0.2)) for c, y in rows)
    assert oc_softmax_loss(*batch).item() == pytest.approx(expected)


def test_p2sgrad_is_zero_at_its_goal():
    goal = 20 * torch.eye(2)
    assert p2sgrad_loss(goal, torch.tensor([0, 1])) == 0
    assert p2sgrad_loss(goal, torch.tensor([1, 0])) == 1


def contrast_by_hand(embedding, labels, group, temperature):
    z = functional.normalize(embedding, dim=1)
    values = []
    for i in range(len(labels)):
        positive = [k for k in range(len(labels)) if k != i and labels[k] == labels[i]]
        rivals = [
            k
            for k in range(len(labels))
            if labels[k] != labels[i] and (group is None or group[k] == group[i] >= 0)
        ]
        if positive:
            similar = {k: float(z[i] @ z[k]) / temperature for k in positive + rivals}
            total = math.log(sum(math.exp(value) for value in similar.values()))
            values.append(mean(total - similar[k] for k in positive))
    return mean(values)


@pytest.mark.parametrize("group", [None, GROUP])
@pytest.mark.parametrize("labels", [LABELS, torch.tensor([1] + [0] * 11)])
def test_contrastive_by_its_formula(group, labels):
    embedding = extra(12)["embedding"]
    expected = contrast_by_hand(embedding, labels, group, 0.2)
    result = supervised_contrastive_loss(embedding, labels, group=group, temperature=0.2)
    assert result.item() == pytest.approx(expected)


# The battery.

CONTRASTIVE = {"contrastive": (), "group_contrastive": ("group",)}
NAMES = [*LOSSES, *CONTRASTIVE]


def call(name, logits, labels, embedding=None, group=None):
    if name in LOSSES:
        return LOSSES[name](logits, labels)
    group = group if CONTRASTIVE[name] else None
    return supervised_contrastive_loss(embedding, labels, group=group)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_float64(name, batch):
    logits, labels = batch
    embedding, group = extra(12).values()
    leaf = (5 * logits if name in LOSSES else embedding).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: call(name, x, labels, x, group), leaf)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_focal_gradient(batch, gamma):
    logits, labels = batch
    assert torch.autograd.gradcheck(
        lambda x: focal_loss(x, labels, gamma=gamma), logits.requires_grad_()
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e4, 100.0, 0.0])
def test_extreme_logits_and_embeddings_stay_finite(name, dtype, size):
    logits = torch.tensor([[size, -size], [-size, size]] * 2, dtype=dtype, requires_grad=True)
    embedding = logits.detach().clone().requires_grad_()
    group = torch.tensor([0, 1, 1, 0])
    loss = call(name, logits, torch.tensor([0, 0, 1, 1]), embedding=embedding, group=group)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    for leaf in (logits, embedding):
        assert leaf.grad is None or torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_rows", [1, 5])
@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_of_one_class(name, n_rows, label):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(n_rows, 2, generator=generator, requires_grad=True)
    rest = extra(n_rows, torch.float32)
    rest["embedding"].requires_grad_()
    loss = call(name, logits, torch.full((n_rows,), label), **rest)
    loss.backward()
    assert torch.isfinite(loss)
    for leaf in (logits, rest["embedding"]):
        assert leaf.grad is None or torch.isfinite(leaf.grad).all()
    nothing_to_rank = ("partial_auc", "soft_min_dcf")
    if name in nothing_to_rank or (name, label) == ("listwise", 0):
        assert loss == 0
        assert not logits.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_waits_for_the_device(name):
    logits = torch.empty(12, 2, device="meta", requires_grad=True)
    rest = extra(12, torch.float32, device="meta")
    rest["embedding"].requires_grad_()
    loss = call(name, logits, LABELS.to("meta"), **rest)
    loss.backward()
    assert loss.shape == ()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiles_to_one_graph(name, batch):
    torch.compiler.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    expected = call(name, *batch, **extra(12))
    torch.testing.assert_close(compiled(name, *batch, **extra(12)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_boolean_and_small_integer_labels(name, batch):
    logits, labels = batch
    expected = call(name, logits, labels, **extra(12))
    for dtype in (torch.bool, torch.uint8, torch.int32):
        assert call(name, logits, labels.to(dtype), **extra(12)) == expected


def test_the_papers_objective_by_name(batch):
    assert LOSSES["focal_pairwise"](*batch) == focal_pairwise_loss(*batch)


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
        (lambda: soft_dcf_loss(torch.zeros(0, 2), TWO[:0]), ValueError, "at least one row"),
        (lambda: focal_pairwise_loss(LOGITS, TWO, weight=-1), ValueError, "`weight` must not"),
        (lambda: pairwise_ranking_loss(LOGITS, TWO), ValueError, r"logits\[:, 1\]"),
        (lambda: pairwise_ranking_loss(LOGITS[0], TWO, margin=-1), ValueError, "`margin` must"),
        (lambda: partial_auc_loss(LOGITS, TWO, fraction=0), ValueError, "`fraction` must lie"),
        (lambda: listwise_loss(LOGITS, TWO, temperature=0), ValueError, "`temperature` must be"),
        (lambda: soft_dcf_loss(LOGITS, TWO, slope=0), ValueError, "`slope` must be positive"),
        (lambda: prior_weighted_bce(LOGITS, TWO, beta=0), ValueError, "`beta` must be positive"),
        (lambda: p2sgrad_loss(LOGITS, TWO, scale=-1), ValueError, "`scale` must be positive"),
        (
            lambda: supervised_contrastive_loss(LOGITS, TWO, group=TWO.float()),
            ValueError,
            r"of shape \(2,\), one for each row; got torch.float32",
        ),
        (
            lambda: supervised_contrastive_loss(LOGITS[0], TWO),
            ValueError,
            r"`embedding` must have shape \(batch, d\); got \(2,\)",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
