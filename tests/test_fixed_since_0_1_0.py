"""What version 0.1.0 wrote down wrongly, or lost: each test fails with it."""

import importlib
import json
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from torch import nn

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.checkpoint import average_checkpoints, load_checkpoint, save_checkpoint
from asvspoof_cm.data import (
    Batch,
    Protocol,
    SpoofDataset,
    make_loader,
    read_protocol,
    write_miniature,
)
from asvspoof_cm.losses import focal_loss, focal_pairwise_loss
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import (
    AASIST,
    TFPARN,
    AASISTConfig,
    RawNet2,
    RawNet2Config,
    TFPARNConfig,
)
from asvspoof_cm.scorer import Scorer
from asvspoof_cm.training import (
    Augmented,
    Batches,
    Corpus,
    Learner,
    Recipe,
    RunFolder,
    System,
    evaluate_run,
    fit,
    train_epoch,
    train_system,
    validate,
)

loop = importlib.import_module("asvspoof_cm.training.loop")

TINY = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
SMALL_RAWNET2 = RawNet2Config(n_channels=8, d_gru=8, n_gru_layers=1, d_embedding=8)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_miniature(tmp_path_factory.mktemp("miniature"), n_train=8, n_dev=8)


def loader(protocol, paths, *, shuffle, n_samples=8000, batch_size=4, group_by=None, **options):
    dataset = SpoofDataset(protocol, paths.audio_dir, n_samples=n_samples, **options)
    return make_loader(
        dataset, shuffle=shuffle, batch_size=batch_size, n_workers=0, group_by=group_by
    )


def tiny(seed=0):
    torch.manual_seed(seed)
    return TFPARN(TINY)


def run(paths, out_dir, *, train=None, loss=focal_pairwise_loss, n_epochs=1, **options):
    if train is None:
        train = loader(
            paths.train_protocol, paths, shuffle=True, group_by=options.pop("group_by", None)
        )
    dev = loader(paths.dev_protocol, paths, shuffle=False)
    recipe = options.pop("recipe", Recipe(n_epochs=n_epochs, lr=1e-3))
    folder = RunFolder(out_dir, seed=options.pop("seed", 42))
    return fit(
        tiny(), train, dev, loss=loss, recipe=recipe, out_dir=folder, progress=False, **options
    )


# 1. A model is scored on crops like those that it learned from.


def test_the_length_of_training_crops_reaches_everything(tmp_path, paths):
    best = run(paths, tmp_path / "run").best_path
    scorer = Scorer.from_checkpoint(best, device="cpu")
    assert load_checkpoint(best).input.crop_s == scorer.input.crop_s == 0.5
    assert scorer.timeline(np.zeros(16000)).end_s[0] == 0.5
    dev = read_protocol(paths.dev_protocol)
    evaluate_run(tmp_path / "run", dev, paths.audio_dir, n_crops=1, device="cpu", progress=False)
    found = read_scores(tmp_path / "run" / "dev_scores.tsv").cm
    expected = validate(load_checkpoint(best), loader(dev, paths, shuffle=False)).scores
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_length_of_training_crops_reaches_onnx(tmp_path, paths):
    pytest.importorskip("onnxruntime")
    from asvspoof_cm.export import export_onnx, load_onnx

    model = load_checkpoint(run(paths, tmp_path / "run").best_path)
    export_onnx(model, tmp_path / "model.onnx")
    assert load_onnx(tmp_path / "model.onnx").input == model.input
    waveform = 0.1 * np.random.default_rng(0).standard_normal(40000)
    scorer = Scorer(load_onnx(tmp_path / "model.onnx"))
    assert scorer.input.crop_s == 0.5
    assert np.isfinite(scorer.score(waveform))


# 2. Scores are never deleted silently.


def test_a_smaller_protocol_does_not_replace_the_scores_of_a_larger_one(tmp_path, paths):
    scorer = Scorer(tiny(), device="cpu", n_crops=1)
    dev, output = read_protocol(paths.dev_protocol), tmp_path / "dev.tsv"
    scorer.score_protocol(dev, paths.audio_dir, output)
    with pytest.raises(ValueError, match="was begun with another n_names, another names"):
        scorer.score_protocol(dev.select([0, 1]), paths.audio_dir, output)
    assert len(read_scores(output).filename) == 8


def test_two_writers_of_one_output(tmp_path, paths):
    scorer = Scorer(tiny(), device="cpu", n_crops=1)
    output = tmp_path / "dev.tsv"
    failures = []

    class Intruder:
        """A model in whose first call another process begins with the same output."""

        def __call__(self, waveform):
            if not failures:
                try:
                    scorer.score_protocol(paths.dev_protocol, paths.audio_dir, output)
                except ValueError as error:
                    failures.append(str(error))
            return torch.zeros(len(waveform), 2)

    done = Scorer(Intruder()).score_protocol(paths.dev_protocol, paths.audio_dir, output)
    assert done.n_scored == 8
    assert "dev.tsv is being written by another process. Wait for it" in failures[0]
    assert not list(tmp_path.glob("*.lock"))


# 3. Metadata say what was done.


def test_checkpoints_say_what_ran(tmp_path, paths):
    best = run(paths, tmp_path / "plain", transform=None).best_path
    training = load_checkpoint(best).meta["training"]
    assert training["transform"] is None
    assert training["train"]["batch_size"] == 4
    assert training["loss"] == "asvspoof_cm.losses.focal_pairwise_loss"
    assert training["input"]["crop_s"] == 0.5
    train = read_protocol(paths.train_protocol)
    assert training["train"]["protocol"]["sha256"] == train.sha256()
    augmented = run(paths, tmp_path / "augmented", transform=Augmented(extra_spoof=0.5)).best_path
    described = load_checkpoint(augmented).meta["training"]["transform"]
    assert (described["augmentation"], described["extra_spoof"]) == ("tfparn", 0.5)


def test_a_fine_tuned_model_has_no_calibration_of_the_old_weights(tmp_path, paths):
    model = tiny()
    model.meta = {"calibration": {"kind": "affine"}, "card": {"name": "old"}}
    loaders = [loader(paths.dev_protocol, paths, shuffle=shuffle) for shuffle in (True, False)]
    recipe = Recipe(n_epochs=1)
    fit(model, *loaders, loss=focal_loss, recipe=recipe, out_dir=tmp_path, progress=False)
    meta = load_checkpoint(tmp_path / "best.pt").meta
    assert sorted(meta) == ["dev", "epoch", "training"]


# 4. A run is resumed with what it was begun with, or not at all.


def halve(waveforms, labels, generator):
    return waveforms / 2, labels


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, logits, labels):
        return self.factor * focal_loss(logits, labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": focal_loss}, r"loss was 'asvspoof_cm\.losses\.focal_pairwise_loss', now 'asv"),
        ({"loss": lambda logits, labels: logits.sum()}, r"loss was .*<lambda>"),
        ({"loss": Scaled(2.0)}, r"loss\.factor was None, now 2\.0"),
        ({"transform": halve}, r"transform was None, now '.*test_fixed_since_0_1_0\.halve'"),
        ({"group_by": "attack"}, r"train\.groups was None, now '"),
        ({"seed": 1}, "seed was 42, now 1"),
    ],
)
def test_another_loss_or_transform_is_refused(tmp_path, paths, change, message):
    run(paths, tmp_path / "run")
    with pytest.raises(ValueError, match=f"(?s)other settings: .*{message}"):
        run(paths, tmp_path / "run", **change)


def test_swapped_labels_and_other_data_are_refused(tmp_path, paths):
    protocol = read_protocol(paths.train_protocol)
    run(paths, tmp_path / "run")
    swapped = Protocol.from_columns(protocol.utterance, 1 - protocol.label)
    others = [f"{protocol.utterance[0]}x", *protocol.utterance[1:]]
    for changed in (swapped, Protocol.from_columns(others, protocol.label)):
        train = loader(changed, paths, shuffle=True)
        with pytest.raises(ValueError, match=r"train\.protocol\.sha256 was '\w+', now '\w+'"):
            run(paths, tmp_path / "run", train=train)
    corpus = {"dev_protocol": paths.dev_protocol, "audio_dir": paths.audio_dir, "n_workers": 0}
    system = System(name="tiny", model="TFPARN", model_config=dict(vars(TINY)), crop_s=0.5)
    system = system.with_changes(n_epochs=1, batch_size=4)
    options = {"progress": False, "n_crops": 0}
    begun = Corpus(train_protocol=protocol, **corpus)
    train_system(system, begun, tmp_path / "system", **options)
    with pytest.raises(ValueError, match=r"data\.train\.sha256 was"):
        train_system(
            system, Corpus(train_protocol=swapped, **corpus), tmp_path / "system", **options
        )


# 5. A calibration belongs to crops and precision.


def test_a_calibration_for_other_crops_warns(tmp_path):
    content = {"kind": "affine", "scale": 2.0, "offset": 1.0, "knots": []}
    model = tiny()
    save_checkpoint(tmp_path / "a.pt", model, calibration=content)
    Scorer.from_checkpoint(tmp_path / "a.pt", device="cpu")
    for options, message in (
        ({"n_crops": 1}, r"fitted for n_crops 5, not 1: log-likelihood"),
        ({"crop_s": 1.5}, r"fitted for crop_s 4\.0, not 1\.5"),
        ({"precision": "bf16"}, r"fitted for precision 'fp32', not 'bf16'"),
    ):
        with pytest.warns(UserWarning, match=message) as caught:
            Scorer.from_checkpoint(tmp_path / "a.pt", device="cpu", **options)
        assert len(caught) == 1


# 6. An error in the code is not an error of a file.


def test_programming_errors_rise(tmp_path, paths, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.zeros(16000), 16000)
    scorer = Scorer(tiny(), device="cpu")
    assert scorer.score_files([tmp_path / "none.wav"]).__next__().error is not None
    monkeypatch.setattr("asvspoof_cm.audio.AudioFile.read", lambda self, *a: self.no_such_name)
    with pytest.raises(AttributeError, match="no_such_name"):
        list(scorer.score_files([tmp_path / "a.wav"]))


# 7. And the others.


def test_another_number_of_crops_evaluates_a_finished_run_again(tmp_path, paths):
    system = System(name="tiny", model="TFPARN", model_config=dict(vars(TINY)), crop_s=0.5)
    system = system.with_changes(n_epochs=1, batch_size=4)
    corpus = Corpus(
        train_protocol=paths.train_protocol,
        dev_protocol=paths.dev_protocol,
        audio_dir=paths.audio_dir,
        n_workers=0,
    )
    for n_crops in (1, 3):
        options = {"progress": False, "device": "cpu"}
        train_system(system, corpus, tmp_path / "run", n_crops=n_crops, **options)
        final = json.loads((tmp_path / "run" / "final.json").read_text())
        assert final["dev"]["n_crops"] == n_crops


def test_training_and_scoring_share_one_rule_of_level(tmp_path):
    torch.manual_seed(0)
    waveform = torch.randn(32000).clamp(-3, 3) / 3
    waveform[4000:28000] *= 0.1  # the centre crop is quiet, the utterance is not
    waveform = waveform.numpy()
    soundfile.write(tmp_path / "a.wav", waveform, 16000, subtype="FLOAT")
    protocol = Protocol.from_columns(["a.wav"], [1])
    model = RawNet2(SMALL_RAWNET2).eval()
    for normalization in ("crop", "utterance", "none"):
        level = InputSettings(crop_s=1.0, normalization=normalization)
        dataset = SpoofDataset(protocol, tmp_path, input=level, crop="center")
        model.input = dataset.input
        with torch.inference_mode():
            logits = model(dataset[0].waveform[None])[0]
        expected = (logits[1] - logits[0]).item()
        scorer = Scorer(model, device="cpu", n_crops=1)
        assert scorer.score(waveform) == pytest.approx(expected, abs=1e-5)


def test_averaged_checkpoints_keep_integers_and_need_statistics(tmp_path):
    for k in range(2):
        torch.manual_seed(k)
        model = RawNet2(SMALL_RAWNET2)
        model.first_bn.num_batches_tracked.fill_(3 + 2 * k)
        save_checkpoint(tmp_path / f"{k}.pt", model)
    files = [tmp_path / "0.pt", tmp_path / "1.pt"]
    with pytest.raises(ValueError, match="`batches` must be given for RawNet2, which has batch"):
        average_checkpoints(files)
    generator = torch.Generator().manual_seed(0)
    waveforms = [0.3 * torch.randn(3, 16000, generator=generator) for _ in range(2)]
    mean = average_checkpoints(files, batches=waveforms)
    maps = torch.cat([nn.functional.max_pool1d(mean.sinc(x).abs(), 3) for x in waveforms])
    torch.testing.assert_close(mean.first_bn.running_mean, maps.mean(dim=(0, 2)), rtol=1e-4, atol=0)
    torch.testing.assert_close(mean.first_bn.running_var, maps.var(dim=(0, 2)), rtol=1e-2, atol=0)
    assert mean.first_bn.num_batches_tracked == 2
    assert not mean.training


def test_labels_are_checked_wherever_they_are():
    batch = Batch(torch.randn(2, 4000), torch.tensor([0, 2]), torch.arange(2))
    learner = Learner(tiny(), nn.functional.cross_entropy, Recipe())
    names = ["a", "b"]
    with pytest.raises(ValueError, match=r"must be 0 \(spoof\) or 1 \(bonafide\); got 2 for b"):
        train_epoch(learner, Batches([batch], names=names))


def test_unlabelled_data_are_refused(tmp_path, paths):
    unlabelled = Protocol.from_columns(read_protocol(paths.train_protocol).utterance)
    with pytest.raises(ValueError, match="`train` must have labels; 8 of its 8 utterances have no"):
        run(paths, tmp_path / "run", train=loader(unlabelled, paths, shuffle=True))


ACCUMULATE = """
import weakref

import torch
from asvspoof_cm.data import Batch
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.training import Learner, Recipe, process_group, train_epoch

def train():
    torch.manual_seed(0)
    tiny = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
    learner = Learner(TFPARN(tiny), focal_pairwise_loss, Recipe(n_accumulate=3))
    forward, syncs = learner.network.forward, []
    def counted(*args):
        syncs.append(learner.network.require_backward_grad_sync)
        return forward(*args)
    learner.network.forward = counted
    batches = [Batch(torch.randn(2, 4000), torch.tensor([0, 1]), torch.arange(2))] * 5
    train_epoch(learner, batches)
    return weakref.ref(learner.network), syncs

with process_group(torch.device("cpu")):
    network, syncs = train()
    assert network() is not None  # its own forward function keeps it, in a cycle
assert network() is None  # and with it gloo's threads
assert syncs == [False, False, True, False, True], syncs
"""


LEFT_OUT = """
import torch
from asvspoof_cm.data import Batch
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.models import RawNet2
from asvspoof_cm.training import Learner, Recipe, process_group, train_epoch
from asvspoof_cm.training.distributed import gather_objects, rank_and_size

with process_group(torch.device("cpu")):
    torch.manual_seed(0)
    learner = Learner(RawNet2(), focal_pairwise_loss, Recipe(n_accumulate=3))
    torch.manual_seed(rank_and_size()[0])
    whole = Batch(torch.randn(2, 8000), torch.tensor([0, 1]), torch.arange(2))
    one = Batch(torch.randn(1, 8000), torch.tensor([1]), torch.arange(1))
    train_epoch(learner, [whole, one])
    weights = [float(sum(p.abs().sum() for p in learner.model.parameters()))]
    assert len({float(w[0]) for w in gather_objects(weights)}) == 1
"""


@pytest.mark.parametrize("script", [ACCUMULATE, LEFT_OUT], ids=["all", "last left out"])
def test_accumulated_gradients_are_exchanged_once_per_step(tmp_path, script):
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(tmp_path / "script.py")], env=environment, check=False)
    assert done.returncode == 0


# 8. Nothing waits for the device inside a training step.

MODELS = {
    "TFPARN": lambda: TFPARN(TINY),
    "AASIST": lambda: AASIST(AASISTConfig.light()),
    "RawNet2": lambda: RawNet2(SMALL_RAWNET2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_on_the_meta_device(name):
    model = MODELS[name]().train().to("meta")
    waveforms = torch.zeros(4, 64000, device="meta")
    transform = Augmented(augmentation="tfparn+rawboost", extra_spoof=1.0)
    labels = torch.tensor([0, 1, 0, 1])
    waveforms, labels = transform(waveforms, labels, torch.Generator().manual_seed(0))
    loss = focal_pairwise_loss(model(waveforms), labels.to("meta"))
    assert (loss.device.type, len(labels)) == ("meta", 6)


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_compiles_as_one_graph(name):
    model = MODELS[name]().train()

    def step(waveforms, labels):
        return focal_pairwise_loss(model(waveforms), labels)

    # Dynamo takes a GRU only where told to.
    with torch._dynamo.config.patch(allow_rnn=name == "RawNet2"):
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        value = compiled(torch.randn(4, 64000), torch.tensor([0, 1, 0, 1]))
    assert value.isfinite()


def test_losses_stay_on_the_device_between_looks():
    collector = loop._Collector(Batches([]))
    for _ in range(3):
        logits = torch.zeros(2, 2, device="meta")
        collector.add(logits, torch.tensor([0, 1]), torch.arange(2), logits.sum())
    assert collector.n_rows == 6
    assert math.isnan(collector.mean_loss)


# Speed and memory: a run that is resumed is the run that was not interrupted.


@pytest.mark.parametrize(
    "recipe",
    [
        {"ema_decay": 0.9},
        {"clip_norm": 0.1, "n_accumulate": 3},
        {"precision": "bf16"},
    ],
)
def test_every_option_resumes_bit_for_bit(tmp_path, paths, recipe):
    options = {"recipe": Recipe(n_epochs=3, lr=1e-3, **recipe), "transform": Augmented()}
    whole = run(paths, tmp_path / "whole", **options)
    original = fit.__globals__["train_epoch"]

    def interrupted(*args, **kwargs):
        if kwargs["epoch"] == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    fit.__globals__["train_epoch"] = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            run(paths, tmp_path / "cut", **options)
    finally:
        fit.__globals__["train_epoch"] = original
    run(paths, tmp_path / "cut", **options)
    for name in ("best.pt", "last.pt"):
        ours, theirs = (load_checkpoint(tmp_path / f / name) for f in ("cut", "whole"))
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(one, other)
    assert len(whole.history) == 3


def test_the_moving_average_is_that_of_its_formula():
    learner = Learner(tiny(), focal_pairwise_loss, Recipe(lr=1e-2, ema_decay=0.5))
    weight = learner.model.projection.weight
    expected = weight.detach().clone()
    batch = Batch(torch.randn(2, 4000), torch.tensor([0, 1]), torch.arange(2))
    for step in range(1, 4):
        train_epoch(learner, [batch])
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    live = weight.detach().clone()
    with learner.averaged():
        torch.testing.assert_close(weight, expected)
    assert torch.equal(weight, live)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx512f", ("fp32", "the CPU has neither avx512_bf16 nor amx_bf16")),
        ("fpu avx512_bf16", ("bf16", "the CPU has avx512_bf16")),
        ("amx_bf16 avx512_bf16", ("bf16", "the CPU has amx_bf16 and avx512_bf16")),
    ],
)
def test_automatic_precision_says_what_it_chose(
    tmp_path, paths, monkeypatch, caplog, flags, expected
):
    from asvspoof_cm import _util as processes

    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(processes, "_CPUINFO", tmp_path / "cpuinfo")
    assert processes.resolve_precision("auto", torch.device("cpu")) == expected
    with caplog.at_level(logging.INFO):
        best = run(paths, tmp_path / "run", recipe=Recipe(n_epochs=1, precision="auto")).best_path
    assert f"precision: {expected[0]}, because {expected[1]}" in caplog.text
    assert load_checkpoint(best).meta["training"]["recipe"]["precision"] == expected[0]


# What others can plug in.


def test_a_loss_with_parameters_is_trained_and_resumed(tmp_path, paths):
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, logits, labels):
            return focal_loss(self.scale * logits, labels)

    loss = Tempered()
    run(paths, tmp_path / "run", loss=loss)
    assert loss.scale.item() != 1.0
    again = Tempered()
    run(paths, tmp_path / "run", loss=again)
    assert torch.equal(again.scale, loss.scale)


def test_groups_learn_at_their_own_rate():
    class Slow(TFPARN):
        def parameter_groups(self):
            slow = list(self.layers.parameters())
            rest = [p for p in self.parameters() if all(p is not q for q in slow)]
            return [{"params": rest}, {"params": slow, "lr_scale": 0.1}]

    learner = Learner(Slow(TINY), focal_pairwise_loss, Recipe(lr=1e-3, warmup_epochs=0))
    batch = Batch(torch.randn(2, 4000), torch.tensor([0, 1]), torch.arange(2))
    train_epoch(learner, [batch])
    assert [group["lr"] for group in learner.optimizer.param_groups] == pytest.approx([1e-3, 1e-4])


def test_fit_takes_any_batches(tmp_path):
    generator = torch.Generator().manual_seed(0)
    batches = [
        Batch(torch.randn(4, 4000, generator=generator), torch.arange(4) % 2, torch.arange(4))
        for _ in range(2)
    ]
    model = tiny()
    options = {"loss": focal_loss, "recipe": Recipe(n_epochs=2), "progress": False}
    result = fit(model, Batches(batches, "abcd"), batches, out_dir=tmp_path / "a", **options)
    assert len(result.history) == 2
    with pytest.raises(
        TypeError, match=r"`train` must be an iterable .* got a generator, which is"
    ):
        fit(model, (b for b in batches), batches, out_dir=tmp_path / "b", **options)
    batches[1].waveform[0] = torch.nan
    with pytest.raises(FloatingPointError, match="4 utterances: a, b, c, d"):
        fit(model, Batches(batches, "abcd"), batches, out_dir=tmp_path / "c", **options)
