"""``asvspoof-cm train``: settings, models old and new, and how little of the library it walks."""

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import asvspoof_cm
from asvspoof_cm import TFPARN, load_checkpoint, save_checkpoint
from asvspoof_cm._util import sha256
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.cli import main
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.labels import LABEL_NAMES
from asvspoof_cm.losses import LOSSES, focal_loss
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import Encoder, EncoderConfig

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_miniature(
        tmp_path_factory.mktemp("data"), n_train=8, n_dev=8, duration_s=(0.3, 0.6)
    )


@pytest.fixture(scope="module")
def data(paths):
    return [
        *("--train-protocol", str(paths.train_protocol), "--dev-protocol", str(paths.dev_protocol)),
        *("--audio", str(paths.audio_dir), "--workers", "0", "--batch-size", "4"),
        *("--crop-s", "0.3", "--epochs", "1", "--device", "cpu", "--quiet"),
    ]


@pytest.fixture
def config(tmp_path):
    """Return a function that writes settings, those of a small system and others, to a file."""

    def write(**settings):
        path = tmp_path / "settings.json"
        own = {"model_config": TINY, "augment": "none", "recipe": {"lr": 1e-3}}
        path.write_text(json.dumps({**own, **settings}))
        return str(path)

    return write


def run_of(folder):
    return json.loads((folder / "run.json").read_text())


def test_train_writes_a_run(tmp_path, data, capsys):
    arguments = ["train", "--system", "6", "--seed", "7", "--out", str(tmp_path / "6-7"), *data]
    assert main([*arguments, "--lr", "0.001", "--augment", "none"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("epoch 1 of 1 is best, Dev min_dcf ")
    assert line.rstrip().endswith("best.pt")
    run = run_of(tmp_path / "6-7")
    assert run["recipe"]["lr"] == 0.001
    assert run["known"]["system"] == {
        "name": "6 TFPARN, focal + pairwise, attention",
        "version": "text",
        "loss": "focal_pairwise",
        "augment": "none",
        "batch_size": 4,
        "order": "shuffled",
        "n_rows": None,
    }
    assert run["known"]["data"]["dev"]["bonafide"] == 4
    assert run["n_parameters"] == 4_846_275
    assert run["model"]["input"] == {**run["model"]["input"], "crop_s": 0.3, "n_crops": 5}
    assert len(read_scores(tmp_path / "6-7" / "dev_scores.tsv").filename) == 8


def test_protocols_are_read_once_and_nothing_is_read_back(tmp_path, data, config, monkeypatch):
    opened, protocols, out = [], [], str(tmp_path / "run")

    def note(event, arguments):
        if event == "open" and opened is not None and str(arguments[0]).startswith(out):
            opened.append((Path(str(arguments[0])).name, arguments[1]))

    read = asvspoof_cm.data.protocol._read_file
    monkeypatch.setattr(
        "asvspoof_cm.data.protocol._read_file", lambda *a: protocols.append(a[0]) or read(*a)
    )
    sys.addaudithook(note)  # stays until the process ends; what it sees is this folder only
    assert main(["train", "--config", config(), "--out", out, *data]) == 0
    assert sorted(path.name for path in protocols) == [
        "ASVspoof5.dev.track_1.tsv",
        "ASVspoof5.train.tsv",
    ]
    # A temporary file is opened once more, so that it is on the disk before it takes its place.
    names = {name for name, mode in opened if mode is not None and mode.startswith("r")}
    assert not {name for name in names if not name.endswith(".tmp")}


def test_an_option_takes_the_place_of_the_file_s_model(tmp_path, data, config):
    resnet = {"model": "resnet18", "model_config": {"scale": "linear"}}
    for own, option, name in (
        (resnet, ["--system", "5", "--lr", "1e-3"], "TFPARN"),
        ({"system": 6, "version": "authors"}, ["--model", "resnet18"], "ResNet"),
        ({**resnet, "model_config": {"scale": "mel"}}, ["--model", "lcnn"], "LCNN"),
    ):
        out = tmp_path / name
        assert main(["train", "--config", config(**own), *option, "--out", str(out), *data]) == 0
        assert run_of(out)["model"]["name"] == name


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_file_of_settings_and_options_that_come_first(tmp_path, data, suffix):
    text = {
        "json": '{"model": "tfparn", "model-config": {"d_model": 16, "n_heads": 2, "n_layers": 1},'
        ' "name": "mine", "dev_clips": 4, "recipe": {"patience": 3, "lr": 0.01}, "seed": 5}',
        "toml": 'model = "tfparn"\nname = "mine"\ndev_clips = 4\nseed = 5\n'
        "recipe = {patience = 3, lr = 0.01}\n"
        "model-config = {d_model = 16, n_heads = 2, n_layers = 1}\n",
    }[suffix]
    path = tmp_path / f"settings.{suffix}"
    path.write_text(text)
    out = tmp_path / "run"
    assert main(["train", "--config", str(path), "--lr", "0.1", "--out", str(out), *data]) == 0
    run = run_of(out)
    assert (run["recipe"]["lr"], run["recipe"]["patience"], run["seed"]) == (0.1, 3, 5)
    assert (run["model"]["config"]["d_model"], run["known"]["system"]["name"]) == (16, "mine")
    assert run["known"]["data"]["dev"] == {
        **run["known"]["data"]["dev"],
        "bonafide": 2,
        "spoof": 2,
    }


def test_a_loss_and_a_model_of_ones_own(tmp_path, data, monkeypatch, config):
    class Own(TFPARN):
        pass

    monkeypatch.setitem(LOSSES, "tempered", lambda logits, labels: focal_loss(2 * logits, labels))
    arguments = ["train", "--config", config(), "--model", "Own", "--loss", "tempered"]
    assert main([*arguments, "--out", str(tmp_path / "run"), *data]) == 0
    assert type(load_checkpoint(tmp_path / "run" / "best.pt")) is Own
    assert run_of(tmp_path / "run")["known"]["system"]["loss"] == "tempered"


def test_the_authors_version(tmp_path, data, config):
    out, options = tmp_path / "run", ["--config", config(), "--version", "authors"]
    assert main(["train", *options, "--out", str(out), *data]) == 0
    run = run_of(out)
    assert run["model"]["config"]["mel_filters"] == "bins"
    assert run["model"]["input"]["normalization"] == "utterance"
    assert run["recipe"]["by_epoch"]


@pytest.fixture
def published_weights(tmp_path, monkeypatch):
    """Random weights under the names and in the place of the published ones of DistillMOS."""
    torch.manual_seed(3)
    channels = (2, 64, 64, 128, 256, 256, 256)
    weights = {}
    for k, (n_in, n_out) in enumerate(itertools.pairwise(channels)):
        weights[f"cnn.cnn.{2 * k}.weight"] = 0.1 * torch.randn(n_out, n_in, 3, 3)
        weights[f"cnn.cnn.{2 * k}.bias"] = torch.zeros(n_out)
    for norm in ("norm_input", "transformer.norm"):
        for kind, value in {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}.items():
            weights[f"transformer_pool_attn.{norm}.{kind}"] = torch.full((1024,), float(value))
    torch.save({"model": weights}, tmp_path / "distill_mos_v7.pt")
    monkeypatch.setenv("ASVSPOOF_CM_WEIGHTS", str(tmp_path))
    monkeypatch.setattr("asvspoof_cm.models.base.find_spec", lambda name: None)
    return weights


def test_train_resume_score_and_export_an_encoder(tmp_path, data, capsys, published_weights):
    pytest.importorskip("onnxruntime")
    out, settings = tmp_path / "run", tmp_path / "encoder.json"
    encoder = {"encoder": "distillmos", "n_layers": 0, "freeze": "all"}
    settings.write_text(json.dumps({"model": "encoder", "model_config": encoder}))
    arguments = ["train", "--config", str(settings), "--out", str(out), *data, "--augment", "none"]
    assert main(arguments) == 0
    model = load_checkpoint(out / "best.pt")
    assert model.config.encoder == "distillmos"
    # Frozen, so training left what was loaded.
    expected = published_weights["cnn.cnn.4.weight"]
    assert torch.equal(model.encoders[0].convolutions[2].weight, expected)
    before = sha256(out / "best.pt")
    assert main(arguments) == 0  # finished: nothing is left to do
    assert sha256(out / "best.pt") == before
    clip = min(Path(data[5]).rglob("*.flac"))
    onnx = tmp_path / "model.onnx"
    capsys.readouterr()
    assert main(["export", "--model", str(out / "best.pt"), "--out", str(onnx)]) == 0
    assert capsys.readouterr() == ("", "")
    scores = []
    for file in (out / "best.pt", onnx):
        main(["score", "--model", str(file), "--json", str(clip)])
        scores.append(capsys.readouterr().out)
    numbers = [float(re.search(r'"score": (-?[\d.e-]+)', text)[1]) for text in scores]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)


@pytest.fixture(scope="module")
def table(paths):
    """The same data as one table with splits and sources, beside its audio."""
    lines = ["utterance\tpath\tlabel\tsource\tsplit"]
    for split, path in (("train", paths.train_protocol), ("dev", paths.dev_protocol)):
        protocol = read_protocol(path)
        for name, label in zip(protocol.utterance, protocol.label, strict=True):
            file = f"flac_{name[0]}/{name}.flac"
            lines.append(f"{name}\t{file}\t{LABEL_NAMES[label]}\tpage\t{split}")
    (paths.audio_dir / "corpus.tsv").write_text("\n".join(lines) + "\n")
    return paths.audio_dir / "corpus.tsv"


def test_train_further_from_a_checkpoint(tmp_path, table):
    torch.manual_seed(0)
    start = Encoder(EncoderConfig(encoder="distillmos", freeze=3, d_projection=8))
    start.input = InputSettings(crop_s=0.3, n_crops=2)
    save_checkpoint(tmp_path / "start.pt", start)
    settings = tmp_path / "freeze.json"
    settings.write_text('{"model_config": {"freeze": 5}}')
    out = tmp_path / "run"
    arguments = ["train", "--model", str(tmp_path / "start.pt"), "--config", str(settings)]
    arguments += ["--protocol", str(table), "--order", "matched", "--epochs", "1", "--workers", "0"]
    arguments += ["--augment", "none", "--device", "cpu", "--quiet", "--out", str(out)]
    assert main(arguments) == 0
    run = run_of(out)
    assert run["known"]["system"]["name"] == "Encoder, trained further"
    assert (run["recipe"]["lr"], run["known"]["system"]["batch_size"]) == (2e-4, 16)
    tuned = load_checkpoint(out / "best.pt")
    assert (tuned.config.freeze, tuned.input) == (5, start.input)
    frozen, trained = ([f"encoders.0.convolutions.{k}.weight" for k in r] for r in ((0, 4), (5,)))
    for name, tensor in start.state_dict().items():
        if name in frozen:
            assert torch.equal(tuned.state_dict()[name], tensor), name
        if name in trained:
            assert not torch.equal(tuned.state_dict()[name], tensor), name


def test_a_sample_of_dev_is_always_the_same_and_keeps_the_shares(paths):
    from asvspoof_cm.cli.train import _sample

    protocol = read_protocol(paths.train_protocol)
    few = _sample(protocol, 4)
    assert few.counts() == {"bonafide": 2, "spoof": 2}
    assert np.array_equal(few.utterance, _sample(protocol, 4).utterance)
    assert len(_sample(protocol, 100)) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--audio", "x"], "--train-protocol, --dev-protocol and --audio; --train-protocol is"),
        (["--protocol", "T", "--dev-protocol", "x"], "--protocol stands for --train-protocol and"),
        (
            ["--protocol", "P"],
            "--protocol must hold both bonafide and spoof for train; the rows of",
        ),
        (["--protocol", "T", "--model", "nothing"], "--model must be one of "),
        (
            ["--protocol", "T", "--model", "lcnn", "--version", "text"],
            "--version belongs to --system",
        ),
        (["--protocol", "T", "--config", "C"], "has unknown settings epoch; it may have audio, "),
        (["--protocol", "T", "--config", "R"], "`recipe` must have fields of Recipe: "),
        (["--protocol", "T", "--config", "T"], "is neither JSON nor TOML"),
        (["--protocol", "T", "--config", "L"], "is neither JSON nor TOML"),
        (["--protocol", "T", "--system", "7"], "must be between 1 and 6; got 7"),
        (["--protocol", "none.tsv"], "none.tsv"),
        (["--protocol", "T", "--augment", "magic"], "must be none, one of tfparn"),
        (["--protocol", "T", "--precision", "fp8"], "--precision must be"),
        (["--protocol", "T", "--audio", "nowhere"], "nowhere"),
        (["--protocol", "T", "--device", "abacus"], "abacus"),
        (["--protocol", "T", "--loss", "hinge"], "--loss must be one of 'cross_entropy'"),
        (["--protocol", "T", "--workers", "-1"], "--workers must be at least 0; got -1"),
    ],
)
def test_what_train_refuses(tmp_path, data, table, capsys, options, message):
    files = {"T": str(table), "P": data[1]}
    recipe = '{"recipe": {"epochs": 3}}'
    written = {"C": '{"epoch": 3}', "R": recipe, "L": "[1]"}
    for name, content in written.items():
        (tmp_path / f"{name}.json").write_text(content)
        files[name] = str(tmp_path / f"{name}.json")
    given = [files.get(option, option) for option in options]
    assert main(["train", "--out", str(tmp_path / "run"), "--quiet", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("asvspoof-cm train: ")
    assert not (tmp_path / "run" / "resume.pt").exists()
