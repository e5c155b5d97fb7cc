"""The train and study commands, and the report of what they made."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from asvspoof_cm import TFPARN, TFPARNConfig, load_checkpoint, save_checkpoint
from asvspoof_cm._util import sha256
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.cli import main
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.labels import LABEL_NAMES
from asvspoof_cm.models import Encoder, EncoderConfig
from asvspoof_cm.runs import read_history


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    paths = write_miniature(
        tmp_path_factory.mktemp("data"), n_train=8, n_dev=8, duration_s=(0.3, 0.6)
    )
    return [
        *("--train-protocol", str(paths.train_protocol), "--dev-protocol", str(paths.dev_protocol)),
        *("--audio", str(paths.audio_dir), "--workers", "0", "--batch-size", "4"),
        *("--crop-s", "0.3", "--epochs", "1", "--device", "cpu", "--quiet"),
    ]


def test_train_writes_a_run(tmp_path, data, capsys):
    arguments = ["train", "--system", "6", "--seed", "7", "--out", str(tmp_path / "6-7"), *data]
    assert main([*arguments, "--lr", "0.001", "--augment", "none", "--extra-spoof", "0"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(
        "6 TFPARN, focal + pairwise, attention, seed 7: epoch 1 of 1 is best, Dev minDCF "
    )
    assert line.rstrip().endswith("best.pt")
    run = json.loads((tmp_path / "6-7" / "run.json").read_text())
    assert run["system"]["recipe"]["lr"] == 0.001
    assert run["system"]["transform"]["augmentation"] == "none"
    assert run["n_parameters"] == 4_846_275
    assert (tmp_path / "6-7" / "final.json").exists()


def test_train_starts_from_a_checkpoint(tmp_path, data, capsys):
    start = tmp_path / "start.pt"
    save_checkpoint(start, TFPARN())
    options = ["--lr", "1e-6", "--crops", "1", "--extra-spoof", "0.5"]
    options += ["--extra-spoof-kind", "vocoder", "--start-from", str(start)]
    # The rate is too low to move the weights, so the run ends with what it began with.
    changes = {"--crop-s": "0.5"}
    given = [changes.get(data[k - 1], value) for k, value in enumerate(data)]
    arguments = ["train", "--system", "6", "--out", str(tmp_path / "run"), *given, *options]
    assert main(arguments) == 0
    before, after = load_checkpoint(start), load_checkpoint(tmp_path / "run" / "best.pt")
    for name, tensor in before.state_dict().items():
        assert torch.allclose(after.state_dict()[name], tensor, atol=1e-5), name
    assert after.meta["data"]["start_from"] == {"file": "start.pt", "sha256": sha256(start)}
    assert json.loads((tmp_path / "run" / "final.json").read_text())["dev"]["n_crops"] == 1
    capsys.readouterr()
    save_checkpoint(start, TFPARN(TFPARNConfig(pooling="mean")))
    arguments[4] = str(tmp_path / "other")
    assert main(arguments) == 2
    assert "`start_from` must hold a TFPARN with" in capsys.readouterr().err
    assert main([*arguments, "--residual-scale", "0.3"]) == 2
    assert "`residual_scale` must be 1 with `start_from`" in capsys.readouterr().err


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


def test_train_resume_score_and_export_another_model(
    tmp_path, data, capsys, published_weights, monkeypatch
):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "run"
    options = ["--model", "encoder", "--encoder", "distillmos", "--layers", "0", "--freeze", "all"]
    arguments = ["train", *options, "--out", str(out), *data, "--augment", "none"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("encoder, seed ")
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
    assert main(["export", "--model", str(out / "best.pt"), "--out", str(onnx)]) == 0
    capsys.readouterr()
    scores = []
    for file in (out / "best.pt", onnx):
        assert main(["score", "--model", str(file), str(clip)]) == 0
        scores.append(capsys.readouterr().out)
    numbers = [float(re.findall(r"-?\d+\.\d+", text)[-1]) for text in scores]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)


@pytest.fixture(scope="module")
def table(data):
    """The same data as one table with splits and sources, beside its audio."""
    folder, lines = Path(data[5]), ["utterance\tpath\tlabel\tsource\tsplit"]
    for split, path in (("train", data[1]), ("dev", data[3])):
        protocol = read_protocol(path)
        for name, label in zip(protocol.utterance, protocol.label, strict=True):
            file = f"flac_{name[0]}/{name}.flac"
            lines.append(f"{name}\t{file}\t{LABEL_NAMES[label]}\tpage\t{split}")
    (folder / "corpus.tsv").write_text("\n".join(lines) + "\n")
    return folder / "corpus.tsv"


def test_train_further_from_a_checkpoint(tmp_path, data, table, capsys):
    torch.manual_seed(0)
    start = Encoder(EncoderConfig(encoder="distillmos", freeze=3, d_projection=8))
    start.input = InputSettings(crop_s=0.3, n_crops=2)
    save_checkpoint(tmp_path / "start.pt", start)
    out = tmp_path / "run"
    arguments = ["train", "--from", str(tmp_path / "start.pt"), "--freeze", "5", "--out", str(out)]
    arguments += ["--protocol", str(table), "--order", "matched", "--epochs", "1", "--workers", "0"]
    arguments += ["--augment", "none", "--device", "cpu", "--quiet"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith(
        "Encoder, fine-tuned, seed 42: epoch 1 of 1 is best, "
    )
    tuned = load_checkpoint(out / "best.pt")
    assert tuned.config.freeze == 5
    assert tuned.input == start.input
    assert main([*arguments, "--crops", "0", "--eval-protocol", data[3]]) == 0
    final = json.loads((out / "final.json").read_text())
    assert (final["dev"]["n_crops"], final["eval"]["n_crops"]) == (2, 2)
    assert tuned.meta["data"]["start_from"]["file"] == "start.pt"
    assert tuned.meta["data"]["train"] == {**tuned.meta["data"]["train"], "bonafide": 4, "spoof": 4}
    frozen, trained = ([f"encoders.0.convolutions.{k}.weight" for k in r] for r in ((0, 4), (5,)))
    for name, tensor in start.state_dict().items():
        if name in frozen:
            assert torch.equal(tuned.state_dict()[name], tensor), name
        if name in trained:
            assert not torch.equal(tuned.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--audio", "x"], "--train-protocol, --dev-protocol and --audio; --train-protocol is"),
        (["--protocol", "T", "--dev-protocol", "x"], "--protocol stands for --train-protocol and"),
        (["--protocol", "P"], "must have a column split, with rows of train and dev"),
        (["--protocol", "T", "--from", "x.pt", "--start-from", "y.pt"], "exclude each other"),
        (["--protocol", "T", "--from", "nothing"], "`name` must be one of "),
        (["--protocol", "T", "--from", "S", "--layers", "1"], "--freeze also to --from"),
        (["--protocol", "T", "--from", "S", "--freeze", "1"], "`freeze` must be None for TFPARN"),
    ],
)
def test_what_train_refuses(tmp_path, data, table, capsys, options, message):
    save_checkpoint(tmp_path / "S.pt", TFPARN(TFPARNConfig(d_model=16, n_heads=2)))
    files = {"T": str(table), "P": data[1], "S": str(tmp_path / "S.pt")}
    given = [files.get(option, option) for option in options]
    assert main(["train", "--out", str(tmp_path / "run"), "--quiet", *given]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_train_resnet(tmp_path, data, capsys):
    arguments = ["train", "--model", "resnet18", "--out", str(tmp_path / "run"), *data]
    assert main([*arguments, "--augment", "none"]) == 0
    assert type(load_checkpoint(tmp_path / "run" / "best.pt")).__name__ == "ResNet"


def test_train_with_another_loss(tmp_path, data, capsys):
    arguments = ["train", "--model", "lcnn", "--loss", "p2sgrad", "--out", str(tmp_path / "run")]
    assert main([*arguments, *data, "--augment", "none"]) == 0
    assert capsys.readouterr().out.startswith("lcnn with p2sgrad, seed ")
    model = load_checkpoint(tmp_path / "run" / "best.pt")
    assert (type(model).__name__, type(model.body).__name__) == ("CosineHead", "LCNN")
    assert model.meta["system"]["objective"] == "p2sgrad"
    further = ["train", "--from", str(tmp_path / "run" / "best.pt"), "--loss", "p2sgrad(scale=20)"]
    assert main([*further, "--out", str(tmp_path / "further"), *data, "--augment", "none"]) == 0
    body = load_checkpoint(tmp_path / "further" / "best.pt").body
    assert type(body).__name__ == "LCNN"  # no head on a head


def test_the_head_has_the_scale_of_the_loss(tmp_path, data):
    out = str(tmp_path / "run")
    arguments = ["train", "--model", "lcnn", "--loss", "focal + 0.5 * oc_softmax(scale=30)"]
    assert main([*arguments, "--out", out, *data, "--augment", "none"]) == 0
    config = load_checkpoint(tmp_path / "run" / "best.pt").config
    assert (config.n_vectors, config.scale) == (1, 30.0)


def test_study_trains_each_pair_once_and_report_reads_them(tmp_path, data, capsys):
    arguments = ["study", "--systems", "3", "--seeds", "1", "2", "--out", str(tmp_path), *data]
    assert main(arguments) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3-1", "3-2"]
    stamps = [(tmp_path / name / "last.pt").stat().st_mtime_ns for name in ("3-1", "3-2")]
    assert main(arguments) == 0
    again = [(tmp_path / name / "last.pt").stat().st_mtime_ns for name in ("3-1", "3-2")]
    assert again == stamps
    assert len(read_history(tmp_path / "3-1")) == 1
    capsys.readouterr()
    assert main(["report", str(tmp_path / "3-1"), str(tmp_path / "3-2")]) == 0
    assert "3 TFPARN, CE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--train-protocol", "none.tsv"], "none.tsv"),
        (["--augment", "magic"], "must be none, one of tfparn"),
        (["--precision", "fp8"], "`precision` must be"),
        (["--expect"], "182,357"),
        (["--audio", "nowhere"], "nowhere"),
        (["--device", "abacus"], "abacus"),
        (["--model", "bert"], "`name` must be one of tfparn, resnet18, resnet34, lcnn"),
        (["--loss", "hinge"], "a loss must be one of cross_entropy, focal"),
        (["--encoder", "distillmos"], "--encoder, --layers and --freeze belong to --model encoder"),
        (["--model", "encoder", "--layers", "1", "2"], "one for each of the 1 encoders"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(tmp_path, data, capsys, changes, message):
    assert main(["train", "--out", str(tmp_path / "run"), *data, *changes]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("asvspoof-cm train: ")
    assert message in error
    assert not (tmp_path / "run" / "resume.pt").exists()
