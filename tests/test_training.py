"""Schedules, systems, the loop: what it learns, what it repeats, what it refuses."""

import importlib
import itertools
import json
import math
import mmap
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.augmentation import augmentation
from asvspoof_cm.augmentation.recipes import AUGMENTATIONS
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.data import Batch, Protocol, SpoofDataset, make_loader, write_miniature
from asvspoof_cm.data.protocol import read_protocol
from asvspoof_cm.losses import LOSSES, cross_entropy_loss, focal_loss, focal_pairwise_loss
from asvspoof_cm.metrics import METRICS, Metric, evaluate, read_scores
from asvspoof_cm.models import (
    TFPARN,
    TFPARNConfig,
)
from asvspoof_cm.training import (
    Recipe,
    TrainingState,
    fit,
    model_system,
    system,
    train_epoch,
    validate,
)
from asvspoof_cm.training.fit import track1_of
from asvspoof_cm.training.run import early_stopping

loop = importlib.import_module("asvspoof_cm.training.loop")
TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}
STILL = {**TINY, "dropout": 0.0, "position_dropout": 0.0, "classifier_dropout": 0.0}


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    return TFPARN(TFPARNConfig(**{**TINY, **changes}))


def batches(n_batches=3, batch_size=4, n_samples=4000):
    generator = torch.Generator().manual_seed(1)
    for k in range(n_batches):
        waveform = torch.randn(batch_size, n_samples, generator=generator)
        label = torch.arange(batch_size) % 2
        yield Batch(waveform, label, torch.arange(batch_size) + k * batch_size)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return write_miniature(tmp_path_factory.mktemp("miniature"), n_train=24, n_dev=16)


HALF_SECOND = InputSettings(crop_s=0.5)


def loaders(paths, *, seed=42, n_workers=0, n_crops=None, batch_size=8):
    train, dev = (
        SpoofDataset(protocol, paths.audio_dir, input=HALF_SECOND, seed=seed, **options)
        for protocol, options in (
            (paths.train_protocol, {"crop": "random"}),
            (paths.dev_protocol, {"n_crops": n_crops}),
        )
    )
    options = {"batch_size": batch_size, "seed": seed, "n_workers": n_workers}
    return make_loader(train, shuffle=True, **options), make_loader(dev, **options)


def run(paths, out, *, model=None, seed=42, n_workers=0, n_crops=None, recipe=None, **options):
    model = model or tiny()
    train, dev = loaders(paths, seed=seed, n_workers=n_workers, n_crops=n_crops)
    model.input = train.dataset.input
    recipe = Recipe(**{"n_epochs": 3, "lr": 1e-3, **(recipe or {})})
    options = {"loss": focal_pairwise_loss, "progress": False, "seed": seed, **options}
    return fit(model, train, dev, recipe=recipe, out=out, **options)


def sgd(model, loss=focal_pairwise_loss, lr=0.1, **recipe):
    """A model whose steps are plain gradients."""
    recipe = Recipe(lr=lr, final_lr=lr, warmup_epochs=0, **recipe)
    state = TrainingState(model, loss, recipe)
    state.optimizer = torch.optim.SGD([{"params": state.parameters, "lr_scale": 1.0}], lr=lr)
    return state


# Schedules


def test_warm_up_is_linear_and_the_rest_half_a_cosine():
    lr = Recipe(lr=1.0, final_lr=0.1, warmup_epochs=4.0, n_epochs=10).learning_rate
    assert [lr(epoch) for epoch in (0, 2, 4)] == pytest.approx([0.2, 0.6, 1.0])
    for epoch in (5, 7, 9.5):
        expected = 0.1 + 0.9 * (1 + math.cos(math.pi * (epoch - 4) / 6)) / 2
        assert lr(epoch) == pytest.approx(expected)
    assert lr(10) == lr(12) == pytest.approx(0.1)
    short = Recipe(lr=1.0, final_lr=0.1, warmup_epochs=5, warmup_start=0.0, n_epochs=2)
    assert short.learning_rate(2) == pytest.approx(2 / 5)
    assert replace(short, n_epochs=5).learning_rate(5) == 1.0


def test_the_authors_schedule_is_that_of_their_scheduler():
    """Full rate, a fifth to five fifths, then `CosineAnnealingLR`, one value per epoch."""
    recipe = system(6, version="authors").recipe
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=recipe.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=95, eta_min=1e-6)
    optimizer.step()
    expected = [recipe.lr]
    for done in range(1, 100):
        if done <= 5:
            optimizer.param_groups[0]["lr"] = recipe.lr * done / 5
        else:
            scheduler.step()
        expected.append(optimizer.param_groups[0]["lr"])
    found = [recipe.learning_rate(epoch + 0.7) for epoch in range(100)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_constant_rate_falls_linearly_at_the_end():
    recipe = Recipe(schedule="constant", lr=1.0, final_lr=0.2, warmup_epochs=1, n_epochs=10)
    assert recipe.learning_rate(10) == 1.0
    recipe = replace(recipe, decay_epochs=4)
    rates = [recipe.learning_rate(epoch) for epoch in (0, 0.5, 1, 6, 8, 10, 12)]
    assert rates == pytest.approx([0.2, 0.6, 1.0, 1.0, 0.6, 0.2, 0.2])


def test_early_stopping_by_the_papers_rule():
    """A decrease within the tolerance is the best epoch, and yet the patience runs out."""
    values = [0.5, 0.4] + [0.4 - 5e-5] * 15
    assert early_stopping(values[:16], 1e-4) == (3, 14)
    assert early_stopping(values, 1e-4) == (3, 15)
    assert early_stopping([*values, 0.39], 1e-4) == (18, 0)
    assert early_stopping([], 1e-4) == (0, 0)
    assert early_stopping([math.nan, 0.5, math.nan, 0.4], 1e-4) == (4, 0)


# The paper's systems

TEXT = {
    1: ("AASIST", None, "cross_entropy", "adam", 1e-4 * 64 / 24, 1e-4, 5e-6),
    2: ("RawNet2", None, "cross_entropy", "adam", 5e-5, 1e-4, 1e-6),
    3: ("TFPARN", "mean", "cross_entropy", "adamw", 1e-4, 1e-2, 1e-6),
    4: ("TFPARN", "mean", "cross_entropy_pairwise", "adamw", 1e-4, 1e-2, 1e-6),
    5: ("TFPARN", "mean", "focal_pairwise", "adamw", 1e-4, 1e-2, 1e-6),
    6: ("TFPARN", "attention", "focal_pairwise", "adamw", 1e-4, 1e-2, 1e-6),
}
AUTHORS_LR = {1: 2.667e-4, 2: 5e-5, 3: 0.667e-4, 4: 0.667e-4, 5: 0.667e-4, 6: 0.667e-4}


@pytest.mark.parametrize("number", TEXT)
def test_the_six_systems_in_both_versions(number):
    kind, pooling, loss, optimizer, lr, weight_decay, final_lr = TEXT[number]
    n_parameters = {"AASIST": 297_866, "RawNet2": 17_621_410, "TFPARN": 4_813_250}[kind]
    n_parameters += 33_025 if pooling == "attention" else 0
    schedule = {"n_epochs": 100, "patience": 15, "tolerance": 1e-4, "warmup_epochs": 5}
    of_text = {"optimizer": optimizer, "weight_decay": weight_decay, "final_lr": final_lr}
    of_authors = {"optimizer": "adamw", "weight_decay": 1e-2, "final_lr": 1e-6, "by_epoch": True}
    for version, rate, changes, level in (
        ("text", lr, of_text, "crop"),
        ("authors", AUTHORS_LR[number], of_authors, "utterance"),
    ):
        model, _, recipe, augment, about = system(number, version=version)
        assert (type(model).__name__, about["loss"]) == (kind, loss)
        assert pooling in (None, getattr(model.config, "pooling", None))
        assert sum(p.numel() for p in model.parameters()) == n_parameters
        assert recipe.lr == pytest.approx(rate)
        assert recipe == Recipe(lr=recipe.lr, **schedule, **changes)
        assert model.input == InputSettings(crop_s=4.0, n_crops=5, normalization=level)
        assert type(augment).__name__ == "TFPARNAugment"
    assert system(number, batch_size=16).recipe.lr == pytest.approx(lr / 4)


def test_the_losses_of_the_systems():
    logits, labels = torch.randn(8, 2), torch.arange(8) % 2
    ranking = focal_pairwise_loss(logits, labels) - focal_loss(logits, labels)
    entropy = nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(system(3).loss(logits, labels), entropy)
    torch.testing.assert_close(system(4).loss(logits, labels), entropy + ranking)
    weighted = nn.functional.cross_entropy(logits, labels, weight=torch.tensor([1.0, 4.0]))
    counts = {"bonafide": 10, "spoof": 40}
    found = system(2, version="authors", counts=counts).loss(logits, labels)
    torch.testing.assert_close(found, weighted)
    assert system(1, version="authors").loss is cross_entropy_loss


def test_weights_follow_the_seed_and_leave_the_global_generator():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = (system(6, seed=seed, config=TINY).model for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.projection.weight, again.projection.weight)
    assert not torch.equal(first.projection.weight, other.projection.weight)


def test_other_models_and_trained_ones():
    small = model_system("tfparn", TINY, loss="listwise", batch_size=32)
    assert (small.loss, small.recipe.lr) == (LOSSES["listwise"], 5e-5)
    begun = tiny(pooling="mean")
    before = torch.get_rng_state()
    further = model_system(begun)
    assert further.model is begun
    assert (further.recipe.lr, further.about["augment"]) == (2e-5, "channels")
    state = torch.get_rng_state()
    changed = model_system(begun, {"dropout": 0.0}).model
    assert torch.equal(torch.get_rng_state(), state)
    assert changed.config.dropout == 0.0
    assert torch.equal(changed.projection.weight, begun.projection.weight)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: system(7), "`number` must be between 1 and 6; got 7"),
        (lambda: system(6, version="mine"), "`version` must be one of 'text', 'authors'"),
        (lambda: model_system("bert"), "`name` must be one of"),
        (lambda: model_system("tfparn", loss="hinge"), "`loss` must be one of 'cross_entropy'"),
        (lambda: augmentation("magic"), "must be none, one of tfparn, rawboost, speed, channels"),
        (lambda: Recipe(n_epochs=0), "`n_epochs` must be a whole number of at least 1"),
        (lambda: Recipe(lr=0.0), "`lr` must be positive"),
        (lambda: Recipe(lr=1e-7), "`lr` must not be below `final_lr`"),
        (lambda: Recipe(minutes=0.0), "`minutes` must be positive"),
        (lambda: Recipe(warmup_epochs=-1), "`warmup_epochs` must not be negative"),
        (lambda: Recipe(warmup_start=2), "`warmup_start` must be between 0 and 1; got 2"),
        (lambda: Recipe(decay_epochs=float("inf")), "`decay_epochs` must be finite; got inf"),
        (lambda: Recipe(optimizer="sgd"), "`optimizer` must be"),
        (lambda: Recipe(decay_epochs=2), "`decay_epochs` must be 0 with schedule=.cosine.; got 2"),
        (lambda: Recipe(ema_decay=1.0), "`ema_decay` must lie between 0 and 1, excluded; got 1.0"),
        (lambda: validate(tiny(), []), "`batches` must hold at least one batch"),
    ],
)
def test_bad_settings(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# The loop


def test_an_epoch_is_what_a_loop_by_hand_does():
    model, twin = tiny(**STILL), tiny(**STILL)
    result = train_epoch(sgd(model), list(batches()))
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.1)
    losses = []
    for batch in batches():
        by_hand.zero_grad()
        loss = focal_pairwise_loss(twin.train()(batch.waveform), batch.label)
        loss.backward()
        by_hand.step()
        losses.append(loss.item())
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
    assert result.loss == pytest.approx(np.mean(losses))
    assert result.index.tolist() == list(range(12))


def test_clipping_limits_the_step():
    def moved(clip_norm):
        model = tiny(**STILL)
        before = [p.clone() for p in model.parameters()]
        train_epoch(sgd(model, lr=1.0, clip_norm=clip_norm), list(batches(1)))
        moves = [(p - b).square().sum() for p, b in zip(model.parameters(), before, strict=True)]
        return torch.stack(moves).sum().sqrt().item()

    assert moved(1e-3) == pytest.approx(1e-3, rel=1e-3)
    assert moved(None) > 1e-2


def test_dropout_follows_the_seed_and_the_global_generator_stays():
    def scores(seed, epoch):
        return train_epoch(sgd(tiny()), list(batches()), seed=seed, epoch=epoch).scores

    first = scores(1, 0)
    tiny()  # moves the global generator
    torch.rand(5)
    assert np.array_equal(scores(1, 0), first)
    assert not np.array_equal(scores(1, 1), first)
    assert not np.array_equal(scores(2, 0), first)
    state, before = sgd(tiny()), torch.get_rng_state()
    train_epoch(state, list(batches()))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rate_moves_within_an_epoch_and_groups_have_a_share_of_it():
    class Slow(TFPARN):
        def parameter_groups(self):
            slow = list(self.layers.parameters())
            rest = [p for p in self.parameters() if all(p is not q for q in slow)]
            return [{"params": rest}, {"params": slow, "lr_scale": 0.1}]

    recipe = Recipe(lr=0.5, warmup_epochs=8)
    state = TrainingState(Slow(TFPARNConfig(**TINY)), focal_pairwise_loss, recipe)
    seen, step = [], state.step
    state.step = lambda epoch: seen.append(epoch) or step(epoch)
    train_epoch(state, list(batches(4)), epoch=3)
    assert seen == [3.0, 3.25, 3.5, 3.75]
    rate = recipe.learning_rate(3.75)
    assert [g["lr"] for g in state.optimizer.param_groups] == pytest.approx([rate, rate / 10])


def test_a_time_instead_of_epochs(monkeypatch):
    """The schedule runs over the time, which may end within an epoch."""
    recipe = Recipe(minutes=1.0, n_epochs=100, lr=0.5)
    state = TrainingState(tiny(), focal_pairwise_loss, recipe)
    seen, step = [], state.step
    state.step = lambda epoch: seen.append(epoch) or step(epoch)
    times = iter([0.6, 1.2, 1.8, 2.4, 30.0, 90.0])
    now = [0.0]
    monkeypatch.setattr(loop._Collector, "seconds", property(lambda self: now[0]))

    def clock():
        for batch in batches(6):
            now[0] = next(times)
            yield batch

    result = train_epoch(state, clock(), spent_s=30.0)
    assert seen == pytest.approx([51.0, 52.0, 53.0, 54.0, 100.0])
    assert len(result.scores) == 20


def test_a_loss_may_see_all_that_the_model_gives_and_the_whole_batch():
    def forward(model, waveform):
        embedding = model.embed(waveform)
        return model.classify(embedding), embedding

    def with_frames(waveforms, labels, generator):
        return waveforms, labels, torch.ones(len(labels), 3)

    seen = []

    def loss(outputs, batch):
        seen.append((outputs[1].shape, batch.index.tolist(), batch.frame_label.shape))
        return focal_pairwise_loss(outputs[0], batch.label) + 1e-3 * outputs[1].square().mean()

    state = TrainingState(tiny(), loss, Recipe(), forward=forward)
    result = train_epoch(state, list(batches(2)), augment=with_frames)
    assert seen[1] == ((4, 16), [4, 5, 6, 7], (4, 3))
    assert len(result.scores) == 8


def test_several_crops_are_scored_by_their_mean_logits():
    model, (batch,) = tiny().eval(), batches(1)
    crops = torch.stack([batch.waveform, batch.waveform.flip(1)], dim=1)
    found = validate(model, [(crops, batch.label, batch.index)]).scores
    one, other = (validate(model, [(crops[:, k], batch.label, batch.index)]) for k in (0, 1))
    np.testing.assert_allclose(found, (one.scores + other.scores) / 2, atol=1e-6)


def test_an_augmentation_changes_what_the_model_hears():
    def louder_and_more(waveforms, labels, generator):
        more = torch.rand(2, waveforms.shape[1], generator=generator)
        return torch.cat([2 * waveforms, more]), torch.cat([labels, labels[:2]])

    seen = []

    class Ear(TFPARN):
        def forward(self, waveform, **options):
            seen.append(waveform)
            return super().forward(waveform, **options)

    model, data = Ear(TFPARNConfig(**TINY)), list(batches(2, 4))
    result = train_epoch(sgd(model), data, augment=louder_and_more)
    assert [x.shape for x in seen] == [(6, 4000), (6, 4000)]
    assert torch.equal(seen[1][:4], 2 * data[1].waveform)
    assert not torch.equal(seen[0][4:], seen[1][4:])
    assert len(result.scores) == 8  # what was added is not reported
    seen.clear()
    train_epoch(sgd(model), data, augment=augmentation("rawboost"))
    changed = (seen[0] != data[0].waveform).any(dim=1)
    assert 0 < changed.sum() < 4


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_named_augmentation_changes_some_rows(name):
    waveform = 0.1 * torch.randn(32, 8000, generator=torch.Generator().manual_seed(0))
    changed = augmentation(name)(waveform, generator=torch.Generator().manual_seed(1))
    n_changed = int((changed != waveform).any(dim=1).sum())
    assert 0 < n_changed <= 32
    assert changed.isfinite().all()


def test_joined_augmentations_run_in_turn():
    waveform = 0.1 * torch.randn(8, 8000, generator=torch.Generator().manual_seed(0))
    joined = augmentation("speed+rawboost")(waveform, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    drawn = [augmentation(name).draw(8, 8000, generator) for name in ("speed", "rawboost")]
    by_hand = augmentation("speed").apply(waveform, drawn[0])
    assert torch.equal(joined, augmentation("rawboost").apply(by_hand, drawn[1]))


def test_a_loss_that_is_not_finite_names_the_rows():
    data = list(batches(2))
    data[1].waveform[2] = float("nan")
    with pytest.raises(FloatingPointError, match=r"is nan on the batch of rows \[4, 5, 6, 7\]"):
        train_epoch(sgd(tiny()), data)


def test_wrong_batches_are_refused():
    waveform, label, index = torch.randn(2, 4000), torch.tensor([0, 1]), torch.arange(2)
    for columns, error, message in (
        ([waveform], TypeError, "got a list"),
        ((waveform, label, "ab"), TypeError, r"of tensors; got \[.*str"),
        ((waveform, label[:1], index), ValueError, r"got shapes \(2, 4000\), \(1,\), \(2,\)"),
        ((waveform, label + 1, index), ValueError, "`labels` must be 0"),
    ):
        with pytest.raises(error, match=message):
            train_epoch(sgd(tiny()), [columns])


def test_a_metric_of_the_table_is_measured_in_training(monkeypatch):
    metric = Metric("spread", "spread", function=lambda curve, _: float(np.ptp(curve.trials()[0])))
    monkeypatch.setitem(METRICS, metric.name, metric)
    batch = Batch(torch.randn(4, 4000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
    result = validate(tiny(), [batch])
    expected = result.scores[result.labels == 1]
    assert track1_of([batch])(result)["spread"] == np.ptp(expected)


def test_validation_restores_the_mode_and_needs_no_loss():
    model = tiny().train()
    result = validate(model, list(batches()))
    assert model.training
    assert math.isnan(result.loss)
    assert result.peak_memory_bytes > 10**7
    with torch.no_grad():
        logits = torch.cat([model.eval()(batch.waveform) for batch in batches()])
    expected = (logits[:, 1] - logits[:, 0]).double().numpy()
    np.testing.assert_allclose(result.scores, expected, atol=1e-6)


def test_the_moving_average_is_that_of_its_formula():
    state = TrainingState(tiny(), focal_pairwise_loss, Recipe(lr=1e-2, ema_decay=0.5))
    weight = state.model.projection.weight
    expected = weight.detach().clone()
    for step in range(1, 4):
        train_epoch(state, list(batches(1)))
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    live = weight.detach().clone()
    with state.averaged():
        torch.testing.assert_close(weight, expected)
    assert torch.equal(weight, live)


def test_losses_stay_on_the_device_between_looks():
    collector = loop._Collector(torch.device("cpu"))
    for _ in range(3):
        logits = torch.zeros(2, 2, device="meta")
        batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.arange(2))
        collector.add(logits, batch, logits.sum())
    assert collector.n_rows == 6
    assert math.isnan(collector.mean_loss)


# Runs


def without_costs(history):
    measured = {"train_s", "dev_s", "clips_per_s", "cumulative_s"}
    measured |= {"peak_memory_bytes", "dev_peak_memory_bytes"}
    return [{k: v for k, v in record.items() if k not in measured} for record in history]


def read_history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_two_runs_with_one_seed_are_identical(tmp_path, miniature):
    histories = [
        run(miniature, tmp_path / str(k), n_workers=k, recipe={"n_epochs": 2}).history
        for k in (0, 1)
    ]
    assert without_costs(histories[0]) == without_costs(histories[1])
    other = run(miniature, tmp_path / "s", seed=1, recipe={"n_epochs": 2})
    assert without_costs(other.history) != without_costs(histories[0])


def test_a_run_folder(tmp_path, miniature):
    model, seen = tiny(), []
    model.meta = {"calibration": {"kind": "affine"}, "card": {"name": "old"}}
    known = {"system": {"name": "tiny"}}
    result = run(
        miniature, tmp_path / "run", model=model, n_crops=5, known=known, callbacks=[seen.append]
    )
    history = read_history(tmp_path / "run")
    assert history == result.history == seen
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert [record["n_clips"] for record in history] == [24, 48, 72]
    assert set(history[0]["dev"]) == {"eer", "min_dcf", "act_dcf", "cllr"}
    assert history[0]["dev_peak_memory_bytes"] > 0
    for previous, record in itertools.pairwise([{"cumulative_s": 0.0}, *history]):
        spent = record["train_s"] + record["dev_s"]
        assert record["cumulative_s"] == pytest.approx(previous["cumulative_s"] + spent)
    best = min(history, key=lambda record: record["dev"]["min_dcf"])
    assert result.best_epoch == best["epoch"]
    model = load_checkpoint(result.best_path)
    assert sorted(model.meta) == ["dev", "epoch", "system", "training"]  # nothing of old weights
    assert (model.meta["epoch"], model.meta["dev"]) == (best["epoch"], best["dev"])
    assert (model.meta["training"]["recipe"]["lr"], model.input.crop_s) == (1e-3, 0.5)
    assert load_checkpoint(tmp_path / "run" / "last.pt").meta["epoch"] == 3
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["n_parameters"] == sum(p.numel() for p in model.parameters())
    assert about["known"] == known
    # The best checkpoint scores as the table beside it and the history say.
    scores, dev = read_scores(tmp_path / "run" / "dev_scores.tsv"), loaders(miniature, n_crops=5)[1]
    protocol = dev.dataset.protocol
    assert scores.filename.tolist() == protocol.utterance.tolist()
    assert evaluate(scores.cm, protocol.label).min_dcf.value == best["dev"]["min_dcf"]
    again = validate(model, dev)
    np.testing.assert_allclose(again.scores, scores.cm, atol=1e-5)
    assert track1_of(dev)(again)["min_dcf"] == pytest.approx(best["dev"]["min_dcf"])


def test_a_finished_run_returns_at_once_and_goes_on_with_more_epochs(tmp_path, miniature):
    first = run(miniature, tmp_path, recipe={"n_epochs": 1})
    stamp = (tmp_path / "last.pt").stat().st_mtime_ns
    again = run(miniature, tmp_path, recipe={"n_epochs": 1})
    assert again.history == first.history
    assert (tmp_path / "last.pt").stat().st_mtime_ns == stamp
    assert len(run(miniature, tmp_path, recipe={"n_epochs": 2}).history) == 2


def test_a_run_of_some_minutes_ends_by_itself(tmp_path, miniature):
    recipe = {"minutes": 0.3 / 60, "n_epochs": 100, "patience": 1}
    result = run(miniature, tmp_path, recipe=recipe)
    trained_s = sum(record["train_s"] for record in result.history)
    assert 0.3 <= trained_s < 1.5
    assert 1e-6 <= result.history[-1]["lr"] < 1e-5
    assert run(miniature, tmp_path, recipe=recipe).history == result.history


@pytest.mark.parametrize("content", [b"", b"not a state", "half", "foreign"])
def test_a_damaged_state_is_named(tmp_path, miniature, content):
    run(miniature, tmp_path, recipe={"n_epochs": 1})
    state = tmp_path / "resume.pt"
    if content == "half":
        state.write_bytes(state.read_bytes()[:5000])
    elif content == "foreign":
        torch.save({"weights": torch.zeros(1)}, state)
    else:
        state.write_bytes(content)
    with pytest.raises(ValueError, match=r"can't be resumed: resume\.pt is damaged"):
        run(miniature, tmp_path, recipe={"n_epochs": 1})


def test_early_stopping_ends_a_run(tmp_path, miniature):
    # A learning rate this small changes no score enough to change a metric.
    recipe = {"n_epochs": 50, "patience": 2, "lr": 1e-12, "final_lr": 1e-12}
    result = run(miniature, tmp_path / "run", recipe=recipe)
    assert len(result.history) == 3
    with pytest.raises(ValueError, match=r"`select` must be one of .*eer.*; got 'accuracy'"):
        run(miniature, tmp_path / "other", recipe={"select": "accuracy"})


def test_resuming_with_other_settings_is_refused(tmp_path, miniature):
    known = {"system": {"loss": "focal_pairwise"}}
    run(miniature, tmp_path, recipe={"n_epochs": 1}, known=known)
    for changes, message in (
        ({"recipe": {"lr": 2e-3}}, r"other settings: .*recipe\.lr was 0\.001, now 0\.002"),
        ({"known": {"system": {"loss": "focal"}}}, r"loss was 'focal_pairwise', now 'focal'"),
        ({"seed": 43}, "seed was 42, now 43"),
        ({"model": tiny(pooling="mean")}, "pooling was 'attention', now 'mean'"),
    ):
        with pytest.raises(ValueError, match=message):
            run(miniature, tmp_path, **{"known": known, **changes})
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 42


@pytest.mark.parametrize(
    "recipe", [{"ema_decay": 0.9}, {"clip_norm": 0.1}, {"precision": "bf16"}, {"by_epoch": True}]
)
def test_every_option_resumes_bit_for_bit(tmp_path, miniature, recipe, monkeypatch):
    options = {"recipe": {"n_epochs": 3, **recipe}, "augment": augmentation("tfparn")}
    run(miniature, tmp_path / "whole", **options)
    original = fit.__globals__["train_epoch"]

    def interrupted(*args, **kwargs):
        if kwargs["epoch"] == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setitem(fit.__globals__, "train_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(miniature, tmp_path / "cut", **options)
    run(miniature, tmp_path / "cut", **options)
    for name in ("best.pt", "last.pt"):
        ours, theirs = (load_checkpoint(tmp_path / f / name) for f in ("cut", "whole"))
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_loss_with_parameters_is_trained_and_resumed(tmp_path, miniature):
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, logits, labels):
            return focal_loss(self.scale * logits, labels)

    loss, again = Tempered(), Tempered()
    run(miniature, tmp_path, loss=loss)
    assert loss.scale.item() != 1.0
    run(miniature, tmp_path, loss=again)
    assert torch.equal(again.scale, loss.scale)


def test_unlabelled_data_are_refused(tmp_path, miniature):
    names = read_protocol(miniature.train_protocol).utterance
    unlabelled = miniature._replace(train_protocol=Protocol.from_columns(names))
    with pytest.raises(ValueError, match=r"`labels` must be 0 \(spoof\) or 1"):
        run(unlabelled, tmp_path)


SCRIPT = """
import sys
import torch
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.data import SpoofDataset, make_loader
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.training import Recipe, fit, process_group, system
from asvspoof_cm.training.distributed import rank_and_size

train, dev, audio, out, n_epochs = sys.argv[1:]
half_second = InputSettings(crop_s=0.5)
still = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16, "dropout": 0.0,
         "position_dropout": 0.0, "classifier_dropout": 0.0}
with process_group(torch.device("cpu")):
    for folder in out.split(":"):
        loaders = [
            make_loader(
                SpoofDataset(protocol, audio, input=half_second, crop=crop, seed=42),
                shuffle=crop == "random", batch_size=8 // rank_and_size()[1], seed=42, n_workers=0,
            )
            for protocol, crop in ((train, "random"), (dev, "center"))
        ]
        fit(
            system(6, config=still).model, *loaders, loss=focal_pairwise_loss, out=folder,
            recipe=Recipe(n_epochs=int(n_epochs), lr=1e-3, ema_decay=0.9, clip_norm=1.0),
            progress=False,
        )
"""


def run_script(miniature, *outs, n_processes):
    script = outs[0].parent / "script.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_processes}"]
    return subprocess.Popen(
        [
            sys.executable,
            *(launch if n_processes > 1 else []),
            *(script, miniature.train_protocol, miniature.dev_protocol, miniature.audio_dir),
            *(":".join(map(str, outs)), "2"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_train_as_one(tmp_path):
    # Uneven shares of Dev, and two runs in one process group, as a study has them.
    miniature = write_miniature(tmp_path / "data", n_train=24, n_dev=15)
    assert run_script(miniature, tmp_path / "1", n_processes=1).wait() == 0
    outs = [tmp_path / "2", tmp_path / "2 again"]
    assert run_script(miniature, *outs, n_processes=2).wait() == 0
    scores = [read_scores(tmp_path / name / "dev_scores.tsv") for name in ("1", "2", "2 again")]
    assert len(scores[0].filename) == 15
    assert np.array_equal(scores[1].cm, scores[2].cm)
    np.testing.assert_allclose(scores[1].cm, scores[0].cm, atol=1e-4)
    for one, two in zip(*(read_history(tmp_path / name) for name in ("1", "2")), strict=True):
        # The same global batches, pairs across processes included, and all of Dev, each once.
        assert two["train"]["loss"] == pytest.approx(one["train"]["loss"], abs=1e-5)
        for name in ("eer", "min_dcf", "act_dcf", "cllr"):
            assert two["dev"][name] == pytest.approx(one["dev"][name], abs=1e-5)
    # AdamW's first moments are averages of the gradients.
    one, two = (
        torch.load(tmp_path / name / "resume.pt", weights_only=True)["training"]["optimizer"][
            "state"
        ]
        for name in ("1", "2")
    )
    for number, moments in one.items():
        torch.testing.assert_close(two[number]["exp_avg"], moments["exp_avg"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_system_6_learns_the_miniature(tmp_path):
    """The paper's system, full size, on clips that one simple cue separates."""
    paths = write_miniature(tmp_path / "data", n_train=96, n_dev=48, duration_s=(0.6, 1.0))
    chosen = system(6, batch_size=16)
    recipe = {"n_epochs": 8, "warmup_epochs": 1, "lr": 3e-4, "patience": 8}
    result = run(paths, tmp_path / "run", model=chosen.model, augment=chosen.augment, recipe=recipe)
    assert min(record["dev"]["eer"] for record in result.history) < 0.05


GATHER = """
import torch
import torch.distributed as dist
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.training.distributed import gather_batch, process_group, rank_and_size

torch.manual_seed(0)
logits, labels = torch.randn(5, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
whole = logits.clone().requires_grad_()
focal_pairwise_loss(whole, labels).backward()
with process_group(torch.device("cpu")):
    rank, size = rank_and_size()
    rows = slice(0, 2) if rank == 0 else slice(2, 5)  # unequal shares
    own = logits[rows].clone().requires_grad_()
    (focal_pairwise_loss(*gather_batch((own, labels[rows]))) * size).backward()
    # DistributedDataParallel divides the sum of all processes' gradients by their number.
    torch.testing.assert_close(own.grad / size, whole.grad[rows])
"""


def test_unequal_shares_have_the_gradients_of_the_whole(tmp_path):
    (tmp_path / "script.py").write_text(GATHER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path / "script.py")], env=environment, check=False)
    assert done.returncode == 0


def test_memory_is_known():
    place = torch.device("cpu")
    loop.reset_peak_memory(place)
    before = loop.peak_memory_bytes(place)
    with mmap.mmap(-1, 64 << 20) as large:  # not malloc, which may have as much to spare
        for start in range(0, len(large), mmap.PAGESIZE):
            large[start] = 1
        assert loop.peak_memory_bytes(place) - before > 32 << 20
    loop.reset_peak_memory(place)
    assert 1_000_000 < loop.peak_memory_bytes(place) < before + (32 << 20)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f", "fp32"), ("fpu avx512_bf16", "bf16"), ("amx_bf16 amx_tile", "bf16")],
)
def test_automatic_precision_is_bf16_where_the_processor_has_it(
    tmp_path, monkeypatch, flags, expected
):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(loop, "_CPUINFO", tmp_path / "cpuinfo")
    assert loop.resolve_precision("auto", torch.device("cpu")) == expected
