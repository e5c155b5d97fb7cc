"""``asvspoof-cm score`` and ``export``, and the adapter to the benchmark arena."""

import io
import json
import math
import sys

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration, decide, probability
from asvspoof_cm.checkpoint import save_checkpoint
from asvspoof_cm.cli import main
from asvspoof_cm.data import write_miniature
from asvspoof_cm.engines.speech_spoof_bench import SpeechSpoofBenchModel
from asvspoof_cm.labels import LABEL_NAMES
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer

PROTOCOL = ["--protocol", "p", "--audio", "d", "--out", "o"]
SMALL = TFPARNConfig(d_model=32, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("checkpoint") / "model.pt"
    save_checkpoint(path, TFPARN(SMALL), calibration=Calibration(scale=2.0, offset=1.0).as_dict())
    return path


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / "a b.wav", tmp_path / "ü\tx.wav", tmp_path / "bad.wav"]
    for path in paths[:2]:
        soundfile.write(path, 0.1 * rng.standard_normal(30000), 16000)
    paths[2].write_text("no audio")
    return paths


def run(*args):
    return main(["score", *map(str, args)])


def test_files(checkpoint, files, capsys):
    assert run(*files[:2], "--checkpoint", checkpoint, "--device", "cpu") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "filename\tllr\tdecision\twarnings"
    names, scores, decisions, warnings = zip(*(row.split("\t") for row in rows), strict=True)
    assert set(decisions) <= {"bonafide", "spoof"}
    assert set(warnings) == {"-"}
    assert names == (str(files[0]), str(files[1]).replace("\t", "\\t"))
    scorer = Scorer.from_checkpoint(checkpoint, device="cpu")
    for path, score in zip(files, scores, strict=False):
        expected = scorer.score(soundfile.read(path, dtype="float32")[0])
        assert float(score) == pytest.approx(expected, abs=1e-5)


def test_a_bad_file_gives_exit_code_1(checkpoint, files, capsys):
    assert run(files[2], files[0], "--checkpoint", checkpoint) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert "asvspoof-cm score:" in captured.err
    assert "bad.wav is not an audio file" in captured.err


@pytest.mark.filterwarnings("always:the calibration was fitted")
def test_json_lines(checkpoint, files, capsys):
    assert run(*files, "--checkpoint", checkpoint, "--json", "--crops", 3) == 1
    printed = capsys.readouterr()
    warning = "asvspoof-cm score: warning: the calibration was fitted for n_crops 5, not 3: "
    assert [line.startswith(warning) for line in printed.err.splitlines()].count(True) == 1
    first, second, bad = map(json.loads, printed.out.splitlines())
    assert first["file"] == str(files[0])
    assert second["file"] == str(files[1])
    assert len(first["crop_scores"]) == 3
    assert first["llr"] == first["score"]
    assert first["unit"] == "llr"
    assert first["prior"] == 0.05
    assert first["probability"] == pytest.approx(float(probability(first["llr"], 0.05)))
    assert first["decision"] == LABEL_NAMES[int(decide(first["llr"]))]
    assert first["duration_s"] == 1.875
    assert first["warnings"] == []
    assert set(bad) == {"file", "error"}


def test_names_that_are_not_text(checkpoint, files, capsys):
    odd = files[0].with_name("odd\udcff.wav")
    files[0].rename(odd)
    assert run(odd, "--checkpoint", checkpoint) == 0
    assert "odd\\udcff.wav" in capsys.readouterr().out


def test_protocol(checkpoint, tmp_path, capsys):
    paths = write_miniature(tmp_path / "data", n_train=2, n_dev=6)
    out = tmp_path / "dev.tsv"
    arguments = ["--protocol", paths.dev_protocol, "--audio", paths.audio_dir, "--out", out]
    assert run(*arguments, "--checkpoint", checkpoint) == 0
    assert json.loads((tmp_path / "dev.tsv.run.json").read_text())["score"] == "llr"
    assert "6 utterances scored" in capsys.readouterr().err
    assert len(read_scores(out).cm) == 6
    assert run(*arguments, "--checkpoint", checkpoint, "--score", "llr") == 0
    assert "6 utterances scored, 6 of them before" in capsys.readouterr().err
    assert run(*arguments, "--checkpoint", checkpoint, "--score", "log-odds") == 2
    assert "was begun with another score" in capsys.readouterr().err
    next(paths.audio_dir.rglob("D_*.flac")).write_text("broken")
    assert run(*arguments, "--checkpoint", checkpoint, "--restart") == 1
    assert "5 utterances scored; 1 failed, see" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give FILE…, or --protocol, --audio and --out; --protocol is missing"),
        (["--protocol", "p", "--audio", "d"], "--out is missing"),
        (["a.wav", "--audio", "o"], "--audio is for protocols"),
        (["a.wav", "--shard", "0/2"], "--shard is for protocols"),
        (["a.wav", "--restart"], "--restart is for protocols"),
        (["a.wav", "--hop-s", "1"], "--hop-s is for --timeline and --plot"),
        (["a.wav", "--timeline", "--crops", "1"], "--crops has no effect along time"),
        (["a.wav", "--timeline", "--c-fa", "1"], "--c-fa has no effect along time without --plot"),
        ([*PROTOCOL, "--json"], "--format is for FILE"),
        ([*PROTOCOL, "--timeline"], "--timeline is for FILE"),
        ([*PROTOCOL, "--window-s", "4"], "--window-s is for FILE"),
        ([*PROTOCOL, "--prior", "0.05"], "--prior is for FILE"),
        (["a.wav", "--prior", "1"], "`p_spoof` must lie between 0 and 1, excluded; got 1.0"),
        (
            ["a.wav", "--crop-s", "0"],
            "`crop_s` must be a number of seconds from one sample to an hour; got 0.0",
        ),
        (["a.wav", "--checkpoint", "no.pt"], "No such file"),
        (["a.wav", "--checkpoint", "no.onnx"], "No such file"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_export_and_score(checkpoint, files, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = tmp_path / "model.onnx"
    assert main(["export", "--checkpoint", str(checkpoint), "--out", str(model)]) == 0
    assert capsys.readouterr() == ("", "")
    assert run(files[0], "--checkpoint", model) == 0
    exported = float(capsys.readouterr().out.splitlines()[1].split("\t")[1])
    expected = Scorer.from_checkpoint(checkpoint, device="cpu").score(soundfile.read(files[0])[0])
    assert exported == pytest.approx(expected, abs=1e-4)


def test_inputs_and_outputs(checkpoint, files, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    for name, source in (("one.wav", files[0]), ("two.wav", files[1]), ("notes.txt", files[2])):
        (folder / name).write_bytes(source.read_bytes())
    # Other files in a batch change the rounding.
    options = ["--checkpoint", checkpoint, "--device", "cpu", "--batch-size", "1"]

    def scored(*arguments):
        assert run(*arguments, *options) == 0
        return [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()[1:]]

    by_name = dict(scored(folder.parent))
    assert [*by_name] == ["deep/one", "deep/two"]
    assert scored(folder.parent, "--glob", "t*.wav") == [["deep/two", by_name["deep/two"]]]
    (tmp_path / "list.txt").write_text("one.wav\ntwo.wav\n")
    listed = scored(tmp_path / "list.txt", "--root", folder)
    assert [score for _, score in listed] == [*by_name.values()]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(files[0].read_bytes())))
    assert scored("-") == [["-", by_name["deep/one"]]]
    for ending in ("tsv", "csv", "jsonl"):
        out = tmp_path / f"scores.{ending}"
        assert run(folder.parent, *options, "--out", out) == 0
        assert capsys.readouterr().out == ""
        if ending == "jsonl":
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            assert [(row["file"], str(row["score"])) for row in rows] == [*by_name.items()]
        else:  # what evaluate reads
            found = read_scores(out)
            assert found.filename.tolist() == [*by_name]
            assert found.cm.tolist() == [*map(float, by_name.values())]


def test_timelines(checkpoint, files, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--checkpoint", checkpoint, "--window-s", "1", "--plot", tmp_path / "plots"]
    assert run(files[0], files[2], *options) == 1
    captured = capsys.readouterr()
    header, *rows = captured.out.splitlines()
    assert header == "filename\tstart_s\tend_s\tllr"
    assert "bad.wav is not an audio file" in captured.err
    line = Scorer.from_checkpoint(checkpoint, device="cpu").timeline(files[0], window_s=1.0)
    assert [float(row.split("\t")[3]) for row in rows] == pytest.approx(line.score.tolist())
    assert repr(line).startswith(f"Timeline({len(rows)} windows in 1.875 s, llr from ")
    assert (tmp_path / "plots" / "a b.png").stat().st_size > 1000
    assert run(files[0], "--checkpoint", checkpoint, "--timeline", "--hop-s", "0") == 2
    assert "`hop_s` must be a positive number of seconds; got 0.0" in capsys.readouterr().err
    assert run(files[0], "--checkpoint", checkpoint, "--timeline", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "llr"


def test_doctor(capsys, monkeypatch):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("asvspoof-cm", "torch", "devices", "threads", "bf16", "extras", "cache"):
        assert word in out
    assert "self-test    well: llr" in out
    monkeypatch.setattr("asvspoof_cm.checkpoint.pretrained_path", lambda name: "gone.pt")
    assert main(["doctor"]) == 1
    assert "failed: FileNotFoundError" in capsys.readouterr().out


def test_arena(tmp_path):
    model = TFPARN(SMALL)
    model.input = InputSettings(n_crops=2)
    save_checkpoint(checkpoint := tmp_path / "two_crops.pt", model)

    class System(SpeechSpoofBenchModel):
        name = "small"
        device = "cpu"

    system = System()
    with pytest.raises(RuntimeError, match=r"`load\(\)` must be called"):
        system.score_batch([np.zeros(100, np.float32)], [16000])
    with pytest.raises(ValueError, match="`checkpoint` of System must name a checkpoint"):
        system.load()
    System.checkpoint = checkpoint
    system.load()
    rng = np.random.default_rng(0)
    audios = [rng.standard_normal(n).astype(np.float32) for n in (9000, 70000)]
    scores = system.score_batch(audios, [16000, 44100])
    scorer = Scorer.from_checkpoint(checkpoint, device="cpu")
    expected = [scorer.score(audios[0]), scorer.score(audios[1], 44100)]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert all(type(score) is float and math.isfinite(score) for score in scores)
    system.unload()
    with pytest.raises(RuntimeError):
        system.score_batch(audios, [16000, 16000])


def test_no_speech_is_said_and_sets_the_exit_code(tmp_path, capsys):
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(16000), 16000)
    assert main(["score", str(silence), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["warnings"] == ["no speech to judge", "silent"]
    assert f"asvspoof-cm score: {silence}: no speech to judge, silent" in err
