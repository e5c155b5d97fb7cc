"""Objectives in training: what they need reaches them, and what they have is trained."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from asvspoof_cm import load_checkpoint
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.data.loader import Batch
from asvspoof_cm.losses import focal_loss, group_ranking_loss, supervised_contrastive_loss
from asvspoof_cm.models import TFPARN, CosineHead, TFPARNConfig
from asvspoof_cm.training import (
    Batches,
    BatchLoss,
    Corpus,
    Learner,
    Objective,
    Recipe,
    System,
    system,
    train_epoch,
    train_system,
    validate,
)

SIZE = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}
BATCH = Batch(torch.randn(6, 8000), torch.tensor([0, 1, 0, 1, 0, 1]), torch.arange(6))
GROUPS = [0, 0, 1, 1, 2, -1]


def tiny():
    return TFPARN(TFPARNConfig(**SIZE, dropout=0.0, classifier_dropout=0.0))


def test_embeddings_and_groups_reach_the_objective():
    model = tiny()
    embedding = model.embed(BATCH.waveform)
    logits, group = model.classify(embedding), torch.tensor(GROUPS)
    expected = (
        focal_loss(logits, BATCH.label)
        + 0.1 * group_ranking_loss(logits, BATCH.label, group)
        + 0.2 * supervised_contrastive_loss(embedding, BATCH.label, group=group)
    )
    objective = Objective("focal + 0.1 * group_ranking + 0.2 * group_contrastive")
    result = train_epoch(Learner(model, objective, Recipe()), Batches([BATCH], groups=GROUPS))
    assert result.loss == pytest.approx(expected.item(), rel=1e-5)


def test_rows_that_a_transform_adds_have_no_group():
    def repeat(waveforms, labels, generator):
        return torch.cat([waveforms, waveforms]), torch.cat([labels, labels])

    model = tiny()
    logits = model(BATCH.waveform)
    expected = group_ranking_loss(logits, BATCH.label, torch.tensor(GROUPS))
    learner = Learner(model, Objective("group_ranking"), Recipe())
    result = train_epoch(learner, Batches([BATCH], groups=GROUPS), transform=repeat)
    assert result.loss == pytest.approx(expected.item(), rel=1e-5)


def test_groups_that_are_wanted_must_be_given():
    with pytest.raises(ValueError, match="`groups` must be given"):
        train_epoch(Learner(tiny(), Objective("group_ranking"), Recipe()), [BATCH])


def test_the_embedding_of_a_validation_batch_reaches_the_objective():
    model = tiny()
    result = validate(model, [BATCH], loss=Objective("contrastive"))
    expected = supervised_contrastive_loss(model.embed(BATCH.waveform), BATCH.label)
    assert result.loss == pytest.approx(expected.item(), rel=1e-5)


class Learned(BatchLoss):
    """A loss of its own, with a parameter and a wish."""

    needs = frozenset({"embedding"})

    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(16))

    def forward(self, logits, labels, *, embedding):
        return focal_loss(logits, labels) + (embedding - self.centre).square().mean()


def test_the_parameters_of_a_loss_are_trained():
    loss = Learned()
    train_epoch(Learner(tiny(), loss, Recipe(lr=1e-2, final_lr=1e-2)), [BATCH])
    assert loss.centre.all()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    paths = write_miniature(folder, n_train=12, n_dev=8, duration_s=(0.5, 0.6))
    return Corpus(
        train_protocol=paths.train_protocol,
        dev_protocol=paths.dev_protocol,
        audio_dir=paths.audio_dir,
    )


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("focal + 0.3 * listwise", {}),
        ("soft_min_dcf", {}),
        ("focal + 0.1 * group_ranking", {"group_by": "speaker"}),
        ("focal + 0.1 * group_contrastive", {"group_by": "speaker"}),
        (
            "oc_softmax",
            {"model": "CosineHead", "model_config": {"model_config": SIZE, "n_vectors": 1}},
        ),
    ],
)
def test_a_system_trains_with_an_objective_by_name(objective, changes, corpus, tmp_path):
    chosen = system(6, batch_size=4).with_changes(
        **{"model_config": SIZE, **changes},
        objective=objective,
        n_epochs=1,
        crop_s=0.5,
        augmentation="none",
    )
    assert System.from_json(chosen.to_json()) == chosen
    result = train_system(chosen, corpus, tmp_path, n_crops=0, device="cpu", progress=False)
    model = load_checkpoint(result.best_path)
    assert model.meta["system"]["objective"] == objective
    assert isinstance(model, CosineHead) == (objective == "oc_softmax")
    assert torch.isfinite(torch.tensor(result.history[0]["train"]["loss"]))


def test_a_margin_needs_cosines():
    with pytest.raises(ValueError, match=r"`objective` oc_softmax is for cosines.*CosineHead"):
        replace(system(6), objective="oc_softmax")


def test_the_miniature_has_several_clips_of_a_speaker(corpus):
    assert len(set(read_protocol(corpus.train_protocol).speaker)) < 12


def test_the_margin_of_the_pairwise_term_can_be_set():
    logits, labels = torch.tensor([[0.0, 0.0], [0.0, 0.5]]), torch.tensor([0, 1])
    assert Objective("pairwise(margin=2)")(logits, labels) == 1.5
    assert Objective("pairwise")(logits, labels) == 0.5
