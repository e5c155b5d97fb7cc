"""Schedules, systems, the loop: what it learns, what it repeats, what it refuses."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from asvspoof_cm.augmentation import augmentation, extra_spoof
from asvspoof_cm.augmentation.recipes import AUGMENTATIONS, EXTRA_SPOOF
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.data import Batch, SpoofDataset, make_loader, read_protocol, write_miniature
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.metrics import evaluate, read_scores
from asvspoof_cm.models import TFPARN, LogMelMask, TFPARNConfig
from asvspoof_cm.runs import read_history
from asvspoof_cm.training import (
    Augmented,
    Corpus,
    Recipe,
    System,
    TrainingState,
    system,
    train_epoch,
    train_system,
    validate,
)
from asvspoof_cm.training.fit import EarlyStopping, track1_of
from asvspoof_cm.training.recipe import linear_scaling
from asvspoof_cm.training.systems import SEEDS

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}


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


def corpus_of(paths, **changes):
    values = {
        "train_protocol": paths.train_protocol,
        "dev_protocol": paths.dev_protocol,
        "audio_dir": paths.audio_dir,
        "n_workers": 0,
    }
    return Corpus(**{**values, **changes})


def tiny_system(**changes):
    plain = System(name="tiny", model="TFPARN", model_config=TINY, batch_size=8, crop_s=0.5)
    return plain.with_changes(**{"n_epochs": 3, "lr": 1e-3, **changes})


def train(*args, **options):
    options = {"progress": False, "n_crops": 0, **options}
    return train_system(*args, **options)


def sgd(model, loss=focal_pairwise_loss, lr=0.1, **recipe):
    """A model whose steps are plain gradients."""
    state = TrainingState(model, loss, Recipe(lr=lr, final_lr=lr, warmup_epochs=0, **recipe))
    state.optimizer = torch.optim.SGD([{"params": state.parameters, "lr_scale": 1.0}], lr=lr)
    return state


# Schedules


def test_warm_up_is_linear_and_the_rest_half_a_cosine():
    lr = Recipe(lr=1.0, final_lr=0.1, warmup_epochs=4.0, n_epochs=10).learning_rate
    assert [lr(epoch) for epoch in (0, 2, 4)] == pytest.approx([0.1, 0.55, 1.0])
    for epoch in (5, 7, 9.5):
        expected = 0.1 + 0.9 * (1 + math.cos(math.pi * (epoch - 4) / 6)) / 2
        assert lr(epoch) == pytest.approx(expected)
    assert lr(10) == pytest.approx(0.1)
    assert lr(12) == pytest.approx(0.1)


def test_a_run_shorter_than_its_warm_up():
    short = Recipe(lr=1.0, final_lr=0.1, warmup_epochs=5, n_epochs=2)
    assert short.learning_rate(2) == pytest.approx(0.1 + 0.9 * 2 / 5)
    assert replace(short, n_epochs=5).learning_rate(5) == 1.0


def test_a_constant_rate_falls_linearly_at_the_end():
    recipe = Recipe(schedule="constant", lr=1.0, final_lr=0.2, warmup_epochs=1, n_epochs=10)
    assert recipe.learning_rate(10) == 1.0
    recipe = replace(recipe, decay_epochs=4)
    rates = [recipe.learning_rate(epoch) for epoch in (0, 0.5, 1, 6, 8, 10, 12)]
    assert rates == pytest.approx([0.2, 0.6, 1.0, 1.0, 0.6, 0.2, 0.2])
    recipe = Recipe(schedule="constant", n_epochs=10, decay_epochs=5, warmup_epochs=0, lr=1e-3)
    assert recipe.learning_rate(7.5) == pytest.approx((1e-3 + 1e-6) / 2)


def test_early_stopping_by_the_papers_rule():
    stopping = EarlyStopping()
    values = [0.5, 0.4] + [0.4 - 5e-5] * 14
    for epoch, value in enumerate(values, start=1):
        stopping.update(epoch, value)
        assert not stopping.should_stop
    assert stopping.best_epoch == 3
    stopping.update(17, 0.4 - 5e-5)
    assert stopping.should_stop


# The paper's systems


def test_the_six_systems_are_the_papers():
    expected = {
        1: ("AASIST", "cross_entropy", None, "adam", 1e-4 * 64 / 24, 1e-4, 5e-6),
        2: ("RawNet2", "cross_entropy", None, "adam", 5e-5, 1e-4, 1e-6),
        3: ("TFPARN", "cross_entropy", "mean", "adamw", 1e-4, 1e-2, 1e-6),
        4: ("TFPARN", "cross_entropy + 0.3 * pairwise", "mean", "adamw", 1e-4, 1e-2, 1e-6),
        5: ("TFPARN", "focal + 0.3 * pairwise", "mean", "adamw", 1e-4, 1e-2, 1e-6),
        6: ("TFPARN", "focal + 0.3 * pairwise", "attention", "adamw", 1e-4, 1e-2, 1e-6),
    }
    for number, row in expected.items():
        chosen = system(number)
        recipe = chosen.recipe
        assert row == (
            chosen.model,
            chosen.objective,
            chosen.model_config.get("pooling"),
            recipe.optimizer,
            pytest.approx(recipe.lr),
            recipe.weight_decay,
            recipe.final_lr,
        )
        assert (recipe.n_epochs, chosen.batch_size, recipe.patience) == (100, 64, 15)
        assert (recipe.warmup_epochs, recipe.tolerance, chosen.crop_s) == (5, 1e-4, 4.0)
        assert chosen.transform == Augmented(augmentation="tfparn")
    assert SEEDS == (42, 63, 2026)


def test_parameter_counts_of_the_systems():
    counts = [sum(p.numel() for p in system(n).build(0).parameters()) for n in range(1, 7)]
    assert counts == [297_866, 17_621_410, *[4_813_250] * 3, 4_846_275]


@pytest.mark.parametrize("number", range(1, 7))
def test_systems_survive_json(number):
    chosen = system(number).with_changes(clip_norm=1.0)
    assert System.from_json(chosen.to_json()) == chosen
    assert f'"name": "{number} ' in chosen.to_json()


def test_weights_follow_the_seed_and_leave_the_global_generator():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = tiny_system().build(1), tiny_system().build(1), tiny_system().build(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.projection.weight, again.projection.weight)
    assert not torch.equal(first.projection.weight, other.projection.weight)


def test_a_system_writes_its_objective_in_one_way():
    assert replace(system(6), objective="focal+.3*pairwise") == system(6)


def test_linear_scaling():
    assert linear_scaling(1e-4, 24, 64) == pytest.approx(2.6667e-4, rel=1e-4)
    assert system(6, batch_size=16).recipe.lr == pytest.approx(2.5e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: system(7), "1 to 6; got 7"),
        (
            lambda: augmentation("magic"),
            "must be none, one of tfparn, rawboost, speed, channels, coders",
        ),
        (lambda: Augmented(augmentation="magic"), "`augmentation` must be none, one of tfparn"),
        (lambda: Recipe(n_epochs=0), "`n_epochs` must be a whole number of at least 1"),
        (lambda: system(6).with_changes(batch_size=2.5), "`batch_size` must be a whole number"),
        (lambda: Recipe(lr=0.0), "`lr` must be positive"),
        (lambda: Recipe(lr=math.inf), "`lr` must be positive and finite"),
        (lambda: Recipe(lr=1e-7), "`lr` must not be below `final_lr`"),
        (lambda: Recipe(clip_norm=-1.0), "`clip_norm` must be positive"),
        (lambda: Recipe(warmup_epochs=-1), "`warmup_epochs` must not be negative"),
        (lambda: Recipe(tolerance=-1), "`tolerance` must not be negative"),
        (lambda: Recipe(decay_epochs=float("inf")), "`decay_epochs` must be finite; got inf"),
        (lambda: Recipe(optimizer="sgd"), "`optimizer` must be"),
        (lambda: Recipe(precision="fp16"), "`precision` must be"),
        (lambda: Recipe(schedule="step"), "`schedule` must be"),
        (lambda: Recipe(decay_epochs=2), "`decay_epochs` must be 0 with schedule=.cosine.; got 2"),
        (lambda: Augmented(pairs_alike=-1), "`pairs_alike` must be between 0 and 1; got -1"),
        (lambda: Augmented(extra_spoof=2.0), "`extra_spoof` must be between 0 and 1; got 2"),
        (
            lambda: Augmented(extra_spoof_kind="magic"),
            "`extra_spoof_kind` must be one of 'segments'",
        ),
        (lambda: system(6).with_changes(residual_scale=0.0), "`residual_scale` must be positive"),
        (
            lambda: system(1).with_changes(residual_scale=0.3).build(seed=1),
            "`residual_scale` must be 1.0 for AASIST",
        ),
        (
            lambda: system(1).with_changes(mask=True).build(seed=1),
            "`mask` must be False for AASIST, which is no TFPARN",
        ),
        (lambda: TFPARN().scale_residuals(math.nan), "`factor` must be positive and finite"),
        (lambda: replace(system(6), objective="hinge"), "a loss must be one of cross_entropy"),
        (lambda: System.from_json('{"name": "x", "model": "y", "z": 1}'), "it has other fields"),
        (lambda: System.from_json("[]"), "it has other fields"),
        (
            lambda: System.from_json(system(6).to_json().replace('"tolerance"', '"edge"')),
            "must be what System.to_json wrote",
        ),
        (lambda: Recipe(ema_decay=1.0), "`ema_decay` must lie between 0 and 1, excluded; got 1.0"),
        (lambda: validate(tiny(), []), "`batches` must hold at least one batch"),
    ],
)
def test_bad_settings(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# The loop


def test_an_epoch_is_what_a_loop_by_hand_does():
    model, twin = (
        tiny(dropout=0.0, classifier_dropout=0.0),
        tiny(dropout=0.0, classifier_dropout=0.0),
    )
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
        model = tiny(dropout=0.0)
        before = [p.clone() for p in model.parameters()]
        train_epoch(sgd(model, lr=1.0, clip_norm=clip_norm), list(batches(1)))
        moves = [(p - b).square().sum() for p, b in zip(model.parameters(), before, strict=True)]
        return torch.stack(moves).sum().sqrt().item()

    assert moved(1e-3) == pytest.approx(1e-3, rel=1e-3)
    assert moved(None) > 1e-2


def test_dropout_follows_the_seed_and_the_global_generator_stays():
    def scores(seed, epoch):
        return train_epoch(sgd(tiny()), list(batches()), seed=seed, epoch=epoch).scores

    before = torch.get_rng_state()
    first = scores(1, 0)
    tiny()  # moves the global generator
    torch.rand(5)
    assert np.array_equal(scores(1, 0), first)
    assert not np.array_equal(scores(1, 1), first)
    assert not np.array_equal(scores(2, 0), first)
    torch.set_rng_state(before)
    state = sgd(tiny())
    before = torch.get_rng_state()
    train_epoch(state, list(batches()))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rate_moves_within_an_epoch_and_groups_have_a_share_of_it():
    recipe = Recipe(lr=0.5, warmup_epochs=8)
    state = TrainingState(tiny(), focal_pairwise_loss, recipe)
    state.optimizer.param_groups[0]["lr_scale"] = 0.5
    seen, step = [], state.step
    state.step = lambda epoch: seen.append(epoch) or step(epoch)
    train_epoch(state, list(batches(4)), epoch=3)
    assert seen == [3.0, 3.25, 3.5, 3.75]
    assert state.optimizer.param_groups[0]["lr"] == recipe.learning_rate(3.75) / 2


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

    torch.manual_seed(0)
    data = list(batches(2, 4))
    result = train_epoch(sgd(Ear(TFPARNConfig(**TINY))), data, augment=louder_and_more)
    assert [x.shape for x in seen] == [(6, 4000), (6, 4000)]
    assert torch.equal(seen[1][:4], 2 * data[1].waveform)
    assert not torch.equal(seen[0][4:], seen[1][4:])
    assert len(result.scores) == 8  # what was added is not reported


def test_extra_spoof_is_made_as_asked():
    (data,) = batches(1, 4, 16000)
    for kind, share in (("segments", 1.0), ("vocoder", 0.05)):
        transform = Augmented(augmentation="none", extra_spoof=1.0, extra_spoof_kind=kind)
        generator = torch.Generator().manual_seed(0)
        waveforms, labels = transform(data.waveform, data.label, generator)
        assert labels.tolist() == [0, 1, 0, 1, 0, 0]
        assert torch.equal(waveforms[:4], data.waveform)
        originals, made = (set(x.flatten().tolist()) for x in (waveforms[:4], waveforms[4:]))
        assert len(made & originals) >= len(made) if share == 1.0 else True
        assert len(made & originals) <= share * len(made)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_named_augmentation_changes_some_rows(name):
    waveform = 0.1 * torch.randn(32, 8000, generator=torch.Generator().manual_seed(0))
    changed = augmentation(name)(waveform, generator=torch.Generator().manual_seed(1))
    n_changed = int((changed != waveform).any(dim=1).sum())
    assert 0 < n_changed <= 32
    assert changed.isfinite().all()


@pytest.mark.parametrize("kind", EXTRA_SPOOF)
def test_every_kind_of_extra_spoof_changes_all_rows(kind):
    waveform = 0.1 * torch.randn(12, 16000, generator=torch.Generator().manual_seed(0))
    changed = extra_spoof(kind)(waveform, generator=torch.Generator().manual_seed(1))
    assert (changed != waveform).any(dim=1).all()
    assert changed.isfinite().all()


def test_joined_augmentations_run_in_turn():
    waveform = 0.1 * torch.randn(8, 8000, generator=torch.Generator().manual_seed(0))
    joined = augmentation("speed+rawboost")(waveform, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    drawn = [augmentation(name).draw(8, 8000, generator) for name in ("speed", "rawboost")]
    by_hand = augmentation("speed").apply(waveform, drawn[0])
    assert torch.equal(joined, augmentation("rawboost").apply(by_hand, drawn[1]))


def test_smaller_residuals_at_the_start():
    one, third = (system(6).with_changes(residual_scale=s).build(seed=3) for s in (1.0, 0.3))
    for name, tensor in one.state_dict().items():
        is_scaled = name.endswith(("out.weight", "contract.weight"))
        expected = 0.3 * tensor if is_scaled else tensor
        assert torch.allclose(third.state_dict()[name], expected), name


class Witness(TFPARN):
    """Keeps the features that reach the layers."""

    def _pool(self, log_mel, lengths):
        self.seen = log_mel
        return super()._pool(log_mel, lengths)


def test_masks_cover_features_in_training_only():
    torch.manual_seed(0)
    model, data = Witness(TFPARNConfig(**TINY)), list(batches(1))
    model.feature_mask = LogMelMask(max_mels=60)
    state = TrainingState(model, focal_pairwise_loss, Recipe())
    seen = []
    for epoch in (0, 0, 1):
        train_epoch(state, data, epoch=epoch)
        seen.append(model.seen)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    validate(model, data)
    plain = model.log_mel(data[0].waveform)
    assert torch.equal(model.seen, plain)
    covered = seen[0] != plain
    assert 0.05 < covered.float().mean() < 0.8
    mean = plain.mean(dim=(1, 2), keepdim=True).expand_as(plain)
    assert torch.equal(seen[0][covered], mean[covered])


def test_a_masked_run_repeats_itself_and_differs_from_a_plain_one(miniature, tmp_path):
    runs = [
        train(
            tiny_system(n_epochs=1, mask=mask), corpus_of(miniature), tmp_path / str(number)
        ).history[0]["train"]["loss"]
        for number, mask in enumerate((True, True, False))
    ]
    assert runs[0] == runs[1] != runs[2]


def test_bfloat16_training():
    state = TrainingState(tiny(), focal_pairwise_loss, Recipe(precision="bf16"))
    result = train_epoch(state, list(batches()))
    assert math.isfinite(result.loss)


def test_a_loss_that_is_not_finite_names_the_rows():
    data = list(batches(2))
    data[1].waveform[2] = float("nan")
    with pytest.raises(FloatingPointError, match=r"is nan on the batch of rows \[4, 5, 6, 7\]"):
        train_epoch(sgd(tiny()), data)


def test_validation_restores_the_mode_and_needs_no_loss():
    model = tiny().train()
    result = validate(model, list(batches()))
    assert model.training
    assert math.isnan(result.loss)
    with torch.no_grad():
        logits = torch.cat([model.eval()(batch.waveform) for batch in batches()])
    expected = (logits[:, 1] - logits[:, 0]).double().numpy()
    np.testing.assert_allclose(result.scores, expected, atol=1e-6)


# Runs


def without_times(history):
    timed = {"train_s", "dev_s", "clips_per_s", "peak_memory_bytes", "cumulative_s"}
    return [{k: v for k, v in record.items() if k not in timed} for record in history]


def test_two_runs_with_one_seed_are_identical(tmp_path, miniature):
    histories = [
        train(tiny_system(), corpus_of(miniature, n_workers=k), tmp_path / str(k)).history
        for k in (0, 1)
    ]
    assert without_times(histories[0]) == without_times(histories[1])
    other = train(tiny_system(), corpus_of(miniature), tmp_path / "s", seed=1)
    assert without_times(other.history) != without_times(histories[0])


def test_a_run_folder(tmp_path, miniature):
    result = train_system(tiny_system(), corpus_of(miniature), tmp_path / "run", progress=False)
    history = read_history(tmp_path / "run")
    assert history == result.history
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert set(history[0]["dev"]) == {"eer", "min_dcf", "act_dcf", "cllr"}
    for previous, record in zip([None, *history], history, strict=False):
        spent = record["train_s"] + record["dev_s"]
        before = previous["cumulative_s"] if previous else 0.0
        assert record["cumulative_s"] == pytest.approx(before + spent)
    best = min(history, key=lambda record: record["dev"]["min_dcf"])
    assert result.best_epoch == best["epoch"]
    model = load_checkpoint(result.best_path)
    assert model.meta["epoch"] == best["epoch"]
    assert model.meta["dev"] == best["dev"]
    assert load_checkpoint(tmp_path / "run" / "last.pt").meta["epoch"] == 3
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["n_parameters"] == sum(p.numel() for p in model.parameters())
    assert run["data"]["train"]["format"]
    final = json.loads((tmp_path / "run" / "final.json").read_text())
    scores = read_scores(tmp_path / "run" / "dev_scores.tsv")
    dev = read_protocol(miniature.dev_protocol)
    assert scores.filename.tolist() == dev.utterance.tolist()
    assert final["dev"]["min_dcf"] == evaluate(scores.cm, dev.label).min_dcf.value
    assert (final["dev"]["n_crops"], final["dev"]["n_failed"]) == (5, 0)
    # The best checkpoint scores as the history says.
    dev = SpoofDataset(read_protocol(miniature.dev_protocol), miniature.audio_dir, n_samples=8000)
    loader = make_loader(dev, shuffle=False, batch_size=8, n_workers=0)
    assert track1_of(loader)(validate(model, loader))["min_dcf"] == pytest.approx(
        best["dev"]["min_dcf"]
    )


def test_a_finished_run_returns_at_once(tmp_path, miniature):
    arguments = (tiny_system(n_epochs=1), corpus_of(miniature), tmp_path / "run")
    first = train(*arguments)
    stamp = (tmp_path / "run" / "last.pt").stat().st_mtime_ns
    again = train(*arguments)
    assert again.history == first.history
    assert (tmp_path / "run" / "last.pt").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("content", [b"", b"not a state", "half", "foreign"])
def test_a_damaged_state_is_named(tmp_path, miniature, content):
    arguments = (tiny_system(n_epochs=1), corpus_of(miniature), tmp_path / "run")
    train(*arguments)
    state = tmp_path / "run" / "resume.pt"
    if content == "half":
        state.write_bytes(state.read_bytes()[:5000])
    elif content == "foreign":
        torch.save({"weights": torch.zeros(1)}, state)
    else:
        state.write_bytes(content)
    with pytest.raises(ValueError, match=r"can't be resumed: resume\.pt is damaged"):
        train(*arguments)


def test_leftovers_of_a_kill_are_removed(tmp_path, miniature):
    (tmp_path / "run").mkdir()
    leftover = tmp_path / "run" / ".best.pt.0123456789abcdef.tmp"
    leftover.write_bytes(b"half a checkpoint")
    train(tiny_system(n_epochs=1), corpus_of(miniature), tmp_path / "run")
    assert not leftover.exists()


def test_one_class_is_refused_before_training(tmp_path, miniature):
    lines = miniature.dev_protocol.read_text().splitlines(keepends=True)
    one_class = tmp_path / "dev.tsv"
    one_class.write_text("".join(line for line in lines if " spoof" in line))
    with pytest.raises(ValueError, match="`dev_protocol` must hold both bonafide and spoof"):
        train_system(tiny_system(), corpus_of(miniature, dev_protocol=one_class), tmp_path / "run")


def test_early_stopping_ends_a_run(tmp_path, miniature):
    # A learning rate this small changes no score enough to change a metric.
    stopped = tiny_system(n_epochs=50, patience=2, lr=1e-12, final_lr=1e-12)
    result = train(stopped, corpus_of(miniature), tmp_path / "run")
    assert result.stopped_early
    assert len(result.history) == 3


def test_resuming_with_other_settings_is_refused(tmp_path, miniature):
    train(tiny_system(n_epochs=1), corpus_of(miniature), tmp_path / "run")
    with pytest.raises(ValueError, match=r"other settings: .*; recipe\.lr was 0\.001, now 0\.002"):
        train(tiny_system(n_epochs=1, lr=2e-3), corpus_of(miniature), tmp_path / "run")
    another = replace(tiny_system(n_epochs=1), objective="focal")
    with pytest.raises(ValueError, match=r"objective was 'focal \+ 0.3 \* pairwise', now 'focal'"):
        train(another, corpus_of(miniature), tmp_path / "run")
    with pytest.raises(ValueError, match="seed was 42, now 43"):
        train(tiny_system(n_epochs=1), corpus_of(miniature), tmp_path / "run", seed=43)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seed"] == 42


SCRIPT = """
import sys, time
import torch
import importlib
module = importlib.import_module("asvspoof_cm.training.fit")
from asvspoof_cm.training import Augmented, Corpus, Recipe, System, process_group, train_system

train, dev, audio, out, n_epochs, pause_s, evaluate = sys.argv[1:]
original = module.save_checkpoint
def save(path, *args, **kwargs):
    original(path, *args, **kwargs)
    time.sleep(float(pause_s))  # leaves time to be killed between two files
module.save_checkpoint = save
tiny = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16, "dropout": 0.0,
        "classifier_dropout": 0.0}
recipe = Recipe(n_epochs=int(n_epochs), lr=1e-3, ema_decay=0.9, clip_norm=1.0)
corpus = Corpus(train_protocol=train, dev_protocol=dev, audio_dir=audio, n_workers=0)
tiny = System(name="tiny", model="TFPARN", model_config=tiny, recipe=recipe, batch_size=8,
              crop_s=0.5, transform=Augmented(augmentation="none"))
with process_group(torch.device("cpu")):
    for folder in out.split(":"):
        train_system(tiny, corpus, folder, device="cpu", progress=False,
                     n_crops=5 if evaluate == "evaluate" else 0)
"""


def run_script(miniature, *outs, n_epochs=6, pause_s=0.0, n_processes=1):
    script = outs[0].parent / "script.py"
    out = ":".join(map(str, outs))
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_processes}"]
    return subprocess.Popen(
        [
            sys.executable,
            *(launch if n_processes > 1 else []),
            *(script, miniature.train_protocol, miniature.dev_protocol, miniature.audio_dir, out),
            *(str(n_epochs), str(pause_s), "evaluate" if n_processes > 1 else "no"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_train_as_one(tmp_path):
    # Uneven shares of Dev, and two runs in one process group, as a study has them.
    miniature = write_miniature(tmp_path / "data", n_train=24, n_dev=15)
    assert run_script(miniature, tmp_path / "1", n_epochs=2).wait() == 0
    outs = [tmp_path / "2", tmp_path / "2 again"]
    assert run_script(miniature, *outs, n_epochs=2, n_processes=2).wait() == 0
    final = [json.loads((out / "final.json").read_text())["dev"] for out in outs]
    assert final[0] == final[1]
    assert final[0]["n_bonafide"] + final[0]["n_spoof"] == 15
    histories = [read_history(tmp_path / name) for name in ("1", "2")]
    for one, two in zip(*histories, strict=True):
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


def test_killed_and_resumed_equals_never_killed(tmp_path, miniature):
    assert run_script(miniature, tmp_path / "whole").wait() == 0
    expected = without_times(read_history(tmp_path / "whole"))
    history = tmp_path / "cut" / "history.jsonl"
    for n_epochs in (1, 3, 4):
        process = run_script(miniature, tmp_path / "cut", pause_s=0.05)
        while process.poll() is None:
            if history.exists() and len(history.read_text().splitlines()) >= n_epochs:
                time.sleep(0.03)
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.005)
        assert len(read_history(tmp_path / "cut")) < 6
    assert run_script(miniature, tmp_path / "cut").wait() == 0
    resumed = read_history(tmp_path / "cut")
    assert without_times(resumed) == expected
    seconds = [record["cumulative_s"] for record in resumed]
    assert seconds == sorted(seconds)
    whole, cut = (load_checkpoint(tmp_path / name / "last.pt") for name in ("whole", "cut"))
    for ours, theirs in zip(cut.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_system_6_learns_the_miniature(tmp_path):
    """The paper's system, full size, on clips that one simple cue separates."""
    paths = write_miniature(tmp_path / "data", n_train=96, n_dev=48, duration_s=(0.6, 1.0))
    chosen = system(6, batch_size=16).with_changes(
        n_epochs=8, warmup_epochs=1, crop_s=0.8, lr=3e-4, patience=8
    )
    result = train(chosen, corpus_of(paths), tmp_path / "run")
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
