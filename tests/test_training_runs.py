"""The run folder: whatever is handed to `fit`, and whatever happens on the way."""

import importlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.cli import main
from asvspoof_cm.data import Batch, Protocol, SpoofDataset, make_loader, read_protocol
from asvspoof_cm.data.miniature import write_miniature
from asvspoof_cm.labels import LABEL_NAMES
from asvspoof_cm.losses import focal_loss
from asvspoof_cm.models import TFPARN, Encoder, EncoderConfig, TFPARNConfig
from asvspoof_cm.runs import read_history, read_run
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
)
from asvspoof_cm.utils.files import exclusive

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}
SMALL = System(name="tiny", model="TFPARN", model_config=TINY, batch_size=4, crop_s=0.3)
SMALL = SMALL.with_changes(n_epochs=1, augmentation="none")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return write_miniature(folder, n_train=8, n_dev=8, duration_s=(0.3, 0.6))


def corpus_of(paths, **changes):
    given = {"train_protocol": paths.train_protocol, "dev_protocol": paths.dev_protocol}
    return Corpus(**{**given, "audio_dir": paths.audio_dir, "n_workers": 0, **changes})


def tiny():
    torch.manual_seed(0)
    return TFPARN(TFPARNConfig(**TINY))


def batches(*sizes):
    generator = torch.Generator().manual_seed(0)
    return [
        Batch(torch.randn(n, 8000, generator=generator), torch.arange(n) % 2, torch.arange(n))
        for n in sizes
    ]


def quick(model, train, out, **options):
    options = {"loss": focal_loss, "recipe": Recipe(n_epochs=1), "progress": False, **options}
    return fit(model, train, batches(4), out_dir=out, **options)


# What is handed to fit


def test_a_plain_dataloader_of_a_dataset_works(tmp_path, paths):
    dataset = SpoofDataset(paths.train_protocol, paths.audio_dir, crop="random", n_samples=4800)
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    model = tiny()
    result = fit(
        model,
        loader,
        DataLoader(dataset, batch_size=4),
        loss=focal_loss,
        recipe=Recipe(n_epochs=2),
        out_dir=tmp_path / "run",
        progress=False,
    )
    assert len(result.history) == 2
    assert model.input.crop_s == 0.3  # what the dataset serves is what the model will be scored on
    assert dataset.epoch == 1  # and each epoch has crops of its own


WAVEFORM, LABEL, INDEX = torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4)


@pytest.mark.parametrize(
    ("train", "error", "message"),
    [
        (
            DataLoader(TensorDataset(WAVEFORM, LABEL), batch_size=2),
            TypeError,
            r"index \(batch,\)\); got a list of 2\. Let the dataset return the number of the row",
        ),
        ([{"audio": WAVEFORM}], TypeError, "got a dict of 1"),
        ([(WAVEFORM, LABEL, ["a", "b", "c", "d"])], TypeError, "all of them tensors; got a list"),
        ([(WAVEFORM[0], LABEL, INDEX)], ValueError, r"got shapes \(8000,\), \(4,\), \(4,\)"),
        ([(WAVEFORM[:, None], LABEL, INDEX)], ValueError, r"of channels out: waveform\[:, 0\]"),
        ([(WAVEFORM, LABEL[:3], INDEX)], ValueError, r"got shapes \(4, 8000\), \(3,\), \(4,\)"),
        ([(WAVEFORM, LABEL.float(), INDEX)], TypeError, "integers; got torch.float32, torch.float"),
        ([(WAVEFORM.int(), LABEL, INDEX)], TypeError, "of floats, integers and integers; got tor"),
        ([(WAVEFORM, LABEL + 1, INDEX)], ValueError, r"labels must be 0 \(spoof\) or 1 .* got 2"),
    ],
)
def test_wrong_batches_are_named(tmp_path, train, error, message):
    with pytest.raises(error, match=message):
        quick(tiny(), train, tmp_path / "run")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: (x[:, :2], x), r"Odd must return logits \(batch, 2\), .*; got tuple for 4 wave"),
        (lambda x: x[:, 0], r"got \(4,\) for 4 waveforms"),
        (lambda x: x[:, :1], r"got \(4, 1\) for 4 waveforms"),
    ],
)
def test_models_with_other_answers_are_named(answer, message):
    class Odd(nn.Linear):
        def forward(self, waveform):
            return answer(waveform + self.bias)

    with pytest.raises(ValueError, match=message):
        train_epoch(Learner(Odd(1, 1), focal_loss, Recipe()), batches(4))


def test_a_last_batch_of_one_clip_is_left_out_of_batch_normalisation(tmp_path, caplog):
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(encoder="distillmos", d_projection=8))
    with caplog.at_level(logging.INFO):
        quick(model, Batches(batches(4, 1), names="abcd"), tmp_path / "run")
    assert "left out a batch of one clip, a" in caplog.text
    caplog.clear()
    result = train_epoch(Learner(tiny(), focal_loss, Recipe()), batches(4, 1))
    assert len(result.scores) == 5  # without batch normalisation it is trained on
    assert not caplog.text


# What is in the folder already


def test_a_run_that_never_started_is_no_obstacle(tmp_path, paths):
    out = tmp_path / "run"
    with pytest.raises(NotADirectoryError, match="nowhere"):
        train_system(SMALL, corpus_of(paths, audio_dir="nowhere"), out, progress=False)
    assert not out.exists()
    interrupted = replace(SMALL, batch_size=2)
    out.mkdir()
    (out / "run.json").write_text(json.dumps({"system": {"name": "x", "batch_size": 2}}))
    (out / "run.lock").touch()
    with pytest.raises(FileNotFoundError, match=r"at least one epoch; .* has no best\.pt"):
        evaluate_run(out, paths.dev_protocol, paths.audio_dir)
    train_system(SMALL, corpus_of(paths), out, n_crops=0, progress=False)
    assert read_run(out).system["batch_size"] == 4
    with pytest.raises(ValueError, match=r"system\.batch_size was 4, now 2"):
        train_system(interrupted, corpus_of(paths), out, n_crops=0, progress=False)


HOLD = """
import os, sys, time
from asvspoof_cm.utils.files import exclusive
with exclusive(sys.argv[1]) as holder:
    child = os.fork()  # as a worker that outlives its process for some seconds
    if child:
        print(child, flush=True)
    time.sleep(600)
"""


def test_two_runs_in_one_folder(tmp_path, capsys, paths):
    out = tmp_path / "run"
    out.mkdir()
    command = [sys.executable, "-c", HOLD, str(out / "run.lock")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process.stdout:
        child = int(process.stdout.readline())
    options = ["--train-protocol", str(paths.train_protocol), "--crop-s", "0.3", "--epochs", "1"]
    options += ["--dev-protocol", str(paths.dev_protocol), "--audio", str(paths.audio_dir)]
    arguments = ["train", "--out", str(out), *options, "--workers", "0", "--quiet"]
    try:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert f"`out_dir` {out} is being trained in by process {process.pid} on " in error
        assert error.count("\n") == 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunFolder(out).locked(), exclusive(out / "run.lock") as holder:
            assert holder.startswith(f"process {os.getpid()} on ")
    finally:
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)
    assert not (out / "run.lock").exists()


def test_no_space_left_keeps_what_was_there(tmp_path, paths, capsys):
    options = ["--train-protocol", str(paths.train_protocol), "--crop-s", "0.3", "--crops", "1"]
    options += ["--dev-protocol", str(paths.dev_protocol), "--audio", str(paths.audio_dir)]
    options += ["--workers", "0", "--quiet", "--augment", "none", "--model", "lcnn"]
    arguments = ["train", "--out", str(tmp_path / "run"), *options, "--epochs", "2"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    module = importlib.import_module("asvspoof_cm.training.fit")
    original, epochs = module.validate, []

    def validate(*args, **kwargs):
        epochs.append(len(epochs) + 1)
        if epochs[-1] == 2:  # from here on, no file may become as large as a checkpoint
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        return original(*args, **kwargs)

    module.validate = validate
    try:
        assert main(arguments) == 2
    finally:
        module.validate = original
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "could not be written: File too large. What was there before is intact; make" in error
    assert len(read_history(tmp_path / "run")) == 1
    for name in ("best.pt", "last.pt"):
        assert load_checkpoint(tmp_path / "run" / name).meta["epoch"] == 1
    assert not list((tmp_path / "run").glob(".*.tmp"))
    assert main(arguments) == 0
    assert len(read_history(tmp_path / "run")) == 2


def test_a_frozen_encoder_is_stored_once(tmp_path):
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(encoder="distillmos", n_layers=1, freeze="all", d_projection=8))
    recipe = Recipe(n_epochs=2, ema_decay=0.9)
    quick(model, batches(4), tmp_path, recipe=recipe)
    frozen = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.pt")}
    (once,) = (name for name in sizes if name.startswith("frozen-"))
    assert frozen <= sizes.pop(once) < frozen + 20_000
    # Weights; for the state also two moments of the optimiser and the moving average.
    assert sizes.keys() == {"best.pt", "last.pt", "resume.pt"}
    assert max(sizes["best.pt"], sizes["last.pt"]) < trained + 60_000 < frozen / 10
    assert sizes["resume.pt"] < 4 * trained + 100_000 < frozen / 10
    again = load_checkpoint(tmp_path / "best.pt").state_dict()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(again[name], parameter), name


# What the recipe and the data add


@pytest.fixture
def pages(tmp_path):
    """Two sources: recordings, their copies, a little longer, and other fakes."""
    rng = np.random.default_rng(0)
    rows = ["utterance\tpath\tlabel\tsource\tparent\tsplit"]
    for k in range(24):
        split, source = ("train", "dev")[k >= 16], f"page{k % 2}"
        recording = 0.1 * rng.standard_normal(16000)
        copy = np.concatenate([recording, np.zeros(16)])
        for name, audio, label, parent in (
            (f"r{k}", recording, 1, "-"),
            (f"c{k}", -copy, 0, f"r{k}"),
        ):
            soundfile.write(tmp_path / f"{name}.wav", audio, 16000)
            row = (name, f"{name}.wav", LABEL_NAMES[label], source, parent, split)
            rows.append("\t".join(row))
    (tmp_path / "pages.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path / "pages.tsv"


def test_a_copy_is_cut_where_its_recording_is(pages):
    plain = InputSettings(crop_s=0.25, normalization="none")
    dataset = SpoofDataset(pages, pages.parent, crop="random", input=plain)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        recording, copy = dataset[4].waveform, dataset[5].waveform
        similar = [
            nn.functional.cosine_similarity(recording[k:], -copy[: 4000 - k], dim=0).item()
            for k in range(17)
        ]
        assert max(similar) > 0.99  # 16 samples longer, so at most 16 later
    assert not torch.equal(dataset[0].waveform, recording)


def test_short_epochs_of_matched_pairs_from_the_command_line(tmp_path, pages, capsys):
    out = tmp_path / "run"
    arguments = ["train", "--protocol", str(pages), "--out", str(out), "--batch-size", "16"]
    arguments += ["--order", "matched", "--parent-share", "1", "--epoch-clips", "16"]
    arguments += ["--schedule", "constant", "--decay-epochs", "1", "--warmup-epochs", "0"]
    arguments += ["--select", "eer_mean", "--pairs-alike", "1", "--augment", "rawboost"]
    arguments += ["--epochs", "2", "--crop-s", "0.3", "--crops", "1", "--workers", "0", "--quiet"]
    assert main(arguments) == 0
    run = read_run(out)
    assert [record["lr"] for record in run.history] == pytest.approx([1e-4 / 4, 1e-4 / 4])
    values = [(r["dev"]["eer"] + r["dev"]["eer_within"]) / 2 for r in run.history]
    assert run.best["epoch"] == 1 + int(np.argmin(values))
    training = load_checkpoint(out / "best.pt").meta["training"]
    assert training["train"]["order"]["n_blocks"] == 1
    assert training["train"]["order"]["parent_share"] == 1.0
    capsys.readouterr()
    assert main([*arguments, "--order", "shuffled"]) == 2
    assert "--parent-share belongs to --order matched" in capsys.readouterr().err
    arguments[arguments.index("--epoch-clips") + 1] = "32"
    assert main(arguments) == 2
    assert "train.order.n_blocks was 1, now 2" in capsys.readouterr().err


def test_selection_needs_sources(tmp_path, paths):
    chosen = SMALL.with_changes(select="eer_mean")
    with pytest.raises(ValueError, match='must be "min_dcf" where no source of `dev` has both'):
        train_system(chosen, corpus_of(paths), tmp_path / "run", progress=False)


def test_pairs_are_augmented_alike():
    generator = torch.Generator().manual_seed(0)
    clip = 0.1 * torch.randn(8, 8000, generator=generator)
    waveforms, labels = torch.cat([clip, clip, clip[:1]]), torch.tensor([1] * 8 + [0] * 9)
    alike = Augmented(augmentation="robust", pairs_alike=1.0)
    changed, _ = alike(waveforms, labels, torch.Generator().manual_seed(1))
    assert torch.equal(changed[:8], changed[8:16])
    assert (changed[:8] != clip).any(dim=1).sum() >= 4
    apart, _ = Augmented(augmentation="robust")(waveforms, labels, torch.Generator().manual_seed(1))
    assert not torch.equal(apart[:8], apart[8:16])
    mixed = torch.arange(16).view(2, 8).T.flatten()  # whatever the order of the classes
    again, _ = alike(waveforms[mixed], labels[mixed], torch.Generator().manual_seed(1))
    assert torch.equal(again[0::2], again[1::2])


def test_protocols_go_where_paths_go(tmp_path, paths):
    train, dev = read_protocol(paths.train_protocol), read_protocol(paths.dev_protocol)
    assert read_protocol(train) is train
    with pytest.raises(ValueError, match=r"is not the whole train set of ASVspoof 5: expected 182"):
        read_protocol(train, expect="train")
    with pytest.raises(ValueError, match=r"`path` must have labels; Protocol\(arrays: 1 utter"):
        read_protocol(Protocol.from_columns(["a"]))
    corpus = corpus_of(paths, train_protocol=train, dev_protocol=dev)
    train_system(SMALL, corpus, tmp_path / "run", n_crops=0, progress=False)
    options = {"n_crops": 1, "device": "cpu", "progress": False}
    found = [
        evaluate_run(tmp_path / "run", protocol, paths.audio_dir, **options)
        for protocol in (dev, paths.dev_protocol)
    ]
    assert found[0] == found[1]
    for protocol in (dev, paths.dev_protocol):
        assert len(make_loader(SpoofDataset(protocol, paths.audio_dir), batch_size=4)) == 2
