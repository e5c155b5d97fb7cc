"""``asvspoof-cm score`` and ``calibrate``."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.calibration import Calibration, decide, load_settings, probability
from asvspoof_cm.checkpoint import save_checkpoint
from asvspoof_cm.cli import main
from asvspoof_cm.data import read_segments, write_miniature
from asvspoof_cm.labels import LABEL_NAMES
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer

PROTOCOL = ["--protocol", "p", "--audio", "d", "--out", "o.tsv"]
SMALL = TFPARNConfig(d_model=32, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("checkpoint") / "model.pt"
    known = {"calibration": Calibration(scale=2.0, offset=1.0).as_dict()}
    save_checkpoint(path, TFPARN(SMALL), **known, segments={"scale": 2.0, "offset": 0.5})
    return path


@pytest.fixture(scope="module")
def scorer(checkpoint):
    return Scorer.from_checkpoint(checkpoint, device="cpu")


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / name for name in ("a b.wav", "ü\tx.wav", "bad.wav")]
    for path in paths[:2]:
        soundfile.write(path, 0.1 * rng.standard_normal(30000), 16000)
    paths[2].write_text("no audio")
    return paths


@pytest.fixture
def command(checkpoint, capsys):
    """Return a function that runs a command: exit code, output, errors."""

    def run(*args):
        code = main([*map(str, args), "--model", str(checkpoint), "--device", "cpu"])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def run(command):
    """Return a function that scores: exit code, lines on standard output, errors."""

    def run(*args):
        code, out, err = command("score", *args)
        return code, out.splitlines(), err

    return run


def test_files(run, files, scorer):
    code, (header, *rows), _ = run(*files[:2])
    assert (code, header) == (0, "filename\tllr\tverdict\twarnings")
    cells = [row.split("\t") for row in rows]
    assert [row[0] for row in cells] == [str(files[0]), str(files[1]).replace("\t", "\\t")]
    for path, (_, score, verdict, warnings) in zip(files, cells, strict=False):
        expected = scorer.score_file(path)
        assert float(score) == pytest.approx(expected.score, abs=1e-5)
        assert len(score.partition(".")[2]) == 6
        assert (verdict, warnings) == (expected.verdict(), "-")


@pytest.mark.filterwarnings("always:the calibration was fitted")
def test_json_lines(run, files):
    code, lines, err = run(*files, "--json", "--crops", 3)
    assert code == 1
    warning = "asvspoof-cm score: warning: the calibration was fitted for n_crops 5, not 3: "
    assert [line.startswith(warning) for line in err.splitlines()].count(True) == 1
    assert "bad.wav is not an audio file" in err
    first, second, bad = map(json.loads, lines)
    assert (first["filename"], second["filename"]) == (str(files[0]), str(files[1]))
    assert len(first["crop_scores"]) == 3
    assert first["llr"] == first["score"] == round(first["score"], 6)
    assert (first["unit"], first["prior"], first["warnings"]) == ("llr", 0.05, [])
    expected = float(probability(first["llr"], 0.05))
    assert first["probability"] == pytest.approx(expected, abs=1e-5)
    assert first["verdict"] == LABEL_NAMES[int(decide(first["llr"]))]
    assert first["duration_s"] == 1.875
    assert set(bad) == {"filename", "error"}


@pytest.mark.filterwarnings("always:the calibration was fitted")
def test_precision(run, files, scorer):
    code, (_, row), _ = run(files[0], "--precision", "bf16")
    expected = scorer.score_file(files[0]).score
    score = float(row.split("\t")[1])
    assert code == 0
    assert 0 < abs(score - expected) < 0.1 + 0.1 * abs(expected)


def test_names_that_are_not_text(run, files):
    odd = files[0].with_name("odd\udcff.wav")
    files[0].rename(odd)
    code, lines, _ = run(odd)
    assert code == 0
    assert "odd\\udcff.wav" in lines[1]


def test_protocol(run, tmp_path):
    paths = write_miniature(tmp_path / "data", n_train=2, n_dev=6)
    out = tmp_path / "dev.tsv"
    arguments = ["--protocol", paths.dev_protocol, "--audio", paths.audio_dir, "--out", out]
    code, lines, err = run(*arguments)
    assert (code, lines) == (0, [])
    assert "6 utterances scored" in err
    assert json.loads((tmp_path / "dev.tsv.run.json").read_text())["score"] == "llr"
    assert len(read_scores(out).cm) == 6
    code, _, err = run(*arguments)
    assert (code, "6 utterances scored, 6 of them before" in err) == (0, True)
    code, _, err = run(*arguments, "--worst")
    assert (code, "was begun with another worst" in err) == (2, True)
    out.unlink()
    next(paths.audio_dir.rglob("D_*.flac")).write_text("broken")
    code, _, err = run(*arguments)
    assert (code, "5 utterances scored; 1 failed, see" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give FILE… or --protocol."),
        (["--protocol", "p"], "--protocol needs --audio and --out too."),
        (["--protocol", "p", "--audio", "d"], "--protocol needs --out too."),
        (["a.wav", *PROTOCOL], "--protocol takes no FILE: the table lists them."),
        (["a.wav", "--shard", "0/2"], "--shard needs --out, a table of its own for each part."),
        (["a.wav", "--out", "x.zip"], "--out must end in .tsv; got x.zip. A submission"),
        ([*PROTOCOL, "--channel", "each"], "--channel each gives a name several scores"),
        (["a.wav", "--timeline", "--crops", "1"], "--crops has no effect along time."),
        (["a.wav", "--segments", "--worst"], "--worst has no effect along time."),
        ([*PROTOCOL, "--timeline"], "--protocol has no effect along time."),
        (["a.wav", "--prior", "1"], "--prior must lie between 0 and 1, excluded; got 1.0"),
        (["a.wav", "--crops", "0"], "--crops must be a whole number of at least 1; got 0"),
        ([*PROTOCOL], "No such file or directory."),
    ],
)
def test_wrong_arguments(run, arguments, message):
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
    assert "Errno" not in err


@pytest.mark.parametrize("model", ["no.pt", "no.onnx"])
def test_a_missing_model(model, capsys):
    assert main(["score", "a.wav", "--model", model]) == 2
    assert capsys.readouterr().err == f"asvspoof-cm score: {model}: No such file or directory.\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((f"--shard={text}", "must be K/N with K from") for text in ("3/3", "1")),
        *((f"--channel={text}", "must be mix, each or a number") for text in ("left", "-1")),
        ("--json --out=x.tsv", "argument --out: not allowed with argument --json"),
        ("--segments --timeline", "argument --timeline: not allowed with argument --segments"),
    ],
)
def test_options_that_argparse_refuses(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["score", "a.wav", *options.split()])
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_inputs_and_outputs(run, files, tmp_path, monkeypatch):
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    for name, source in (("one.wav", files[0]), ("two.wav", files[1])):
        (folder / name).write_bytes(source.read_bytes())

    def scored(*arguments):
        code, (_, *rows), _ = run(*arguments)
        assert code == 0
        return [row.split("\t")[:2] for row in rows]

    by_name = dict(scored(folder.parent))
    assert [*by_name] == ["deep/one", "deep/two"]
    (tmp_path / "list.txt").write_text("one.wav\ntwo.wav\n")
    listed = scored(tmp_path / "list.txt", "--audio", folder)
    assert [score for _, score in listed] == [*by_name.values()]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(files[0].read_bytes())))
    assert [name for name, _ in scored("-")] == ["-"]
    out = tmp_path / "scores.tsv"
    for n_before in (0, 2):
        code, lines, err = run(folder.parent, "--out", out)
        assert (code, lines) == (0, [])
        assert ("of them before" in err) == (n_before == 2)
    found = read_scores(out)  # what evaluate reads
    assert found.filename.tolist() == [*by_name]
    assert found.cm.tolist() == pytest.approx([*map(float, by_name.values())], abs=1e-5)


def test_what_was_scored_before_a_failure_is_kept(run, files, tmp_path):
    """One row of a list does not end the job, nor does it take the others with it."""
    (tmp_path / "list.txt").write_text(f"{files[0].name}\nbad.wav\nno.wav\n/dev/zero\n")
    code, _, err = run(tmp_path / "list.txt", "--out", tmp_path / "s.tsv")
    assert code == 1
    assert len((tmp_path / "s.tsv").read_text().splitlines()) == 2
    errors = (tmp_path / "s.tsv.errors.tsv").read_text()
    for message in ("bad.wav is not an audio", "No such file", "must lie below"):
        assert message in errors
        assert message in err


def test_channels(run, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    soundfile.write(tmp_path / "call.wav", 0.1 * rng.standard_normal((30000, 2)), 16000)
    _, (_, row), err = run(tmp_path / "call.wav")
    assert "the channels differ and were mixed" in row
    assert "the channels differ and were mixed" in err
    _, (_, *rows), _ = run(tmp_path / "call.wav", "--channel", "each")
    assert [row.split("\t")[0][-2:] for row in rows] == ["#0", "#1"]
    with monkeypatch.context() as patch:
        content = io.BytesIO((tmp_path / "call.wav").read_bytes())
        patch.setattr(sys, "stdin", io.TextIOWrapper(content))
        _, (_, *piped), _ = run("-", "--channel", "each")
    assert [row.split("\t")[0] for row in piped] == ["-#0", "-#1"]
    _, (_, row), _ = run(tmp_path / "call.wav", "--channel", "1")
    assert row.split("\t")[1] == rows[1].split("\t")[1]


def test_no_speech_is_said_and_sets_the_exit_code(run, tmp_path):
    soundfile.write(silence := tmp_path / "silence.wav", np.zeros(16000), 16000)
    code, (line,), err = run(silence, "--json")
    assert code == 1
    assert json.loads(line)["warnings"] == ["no speech to judge", "silent"]
    assert json.loads(line)["verdict"] == "abstain"
    assert f"asvspoof-cm score: {silence}: no speech to judge, silent" in err


def test_along_time(run, files, tmp_path, scorer):
    pytest.importorskip("matplotlib")
    soundfile.write(long := tmp_path / "long.wav", np.tile(soundfile.read(files[0])[0], 4), 16000)
    code, (header, *rows), err = run(long, files[2], "--plot", tmp_path / "plots")
    assert code == 1
    assert header == "filename\tstart_s\tend_s\tllr\twarnings"
    assert "bad.wav is not an audio file" in err
    line = scorer.timeline(long)
    scores = [window.score for window in line]
    assert [float(row.split("\t")[3]) for row in rows] == pytest.approx(scores, abs=1e-5)
    (picture,) = (tmp_path / "plots").iterdir()
    assert picture.name.endswith("long.png")
    code, (first, *_), _ = run(long, "--timeline", "--json")
    assert json.loads(first)["llr"] == pytest.approx(line[0].score, abs=1e-5)
    options = ["--segments", "--out", tmp_path / "s.tsv", "--plot", tmp_path / "more"]
    assert run(long, *options)[0] == 0
    assert [*(tmp_path / "more").iterdir()]
    text = (tmp_path / "s.tsv").read_text().splitlines()
    assert text[0] == "filename\tstart_s\tend_s\tllr\tlabel"
    (read,) = read_segments(tmp_path / "s.tsv").values()
    for row, expected in zip(read, scorer.segments(long), strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    code, _, err = run(long, "--segments", "--out", tmp_path / "s.tsv")
    assert (code, "s.tsv is there already; choose another --out" in err) == (2, True)
    assert (tmp_path / "s.tsv").read_text().splitlines() == text


def test_every_recording_has_a_picture(run, files, tmp_path):
    pytest.importorskip("matplotlib")
    names = ["a/b.wav", "a/b.flac", "a_b.wav", "A_B.wav"]
    (tmp_path / "in" / "a").mkdir(parents=True)
    for name in names:
        soundfile.write(tmp_path / "in" / name, soundfile.read(files[0])[0], 16000)
    assert run(tmp_path / "in", "--plot", tmp_path / "plots")[0] == 0
    assert len({path.name.lower() for path in (tmp_path / "plots").iterdir()}) == len(names)


def test_errors_of_the_model_are_not_those_of_a_file_along_time(run, files, monkeypatch):
    monkeypatch.setattr(Scorer, "timeline", lambda *_: [][0])
    with pytest.raises(IndexError):
        run(files[0], "--timeline")
    assert run(files[0], "--segments")[0] == 0

    def broken(*_):
        raise ValueError("the model is broken")

    monkeypatch.setattr(Scorer, "timeline", broken)
    code, rows, err = run(*files[:2], "--timeline")
    assert (code, len(rows)) == (2, 1)
    assert err.endswith("asvspoof-cm score: the model is broken\n")


def test_a_reader_that_has_enough(checkpoint, files):
    """``score … | head -1``: no traceback, no [Errno 32]."""
    command = [sys.executable, "-m", "asvspoof_cm", "score", "--model", str(checkpoint)]
    with subprocess.Popen(
        [*command, *map(str, files[:2] * 40), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:
        child.stdout.readline()
        child.stdout.close()
        err = child.stderr.read().decode()
    assert child.returncode == 141
    assert err == ""


# calibrate


@pytest.fixture
def recordings(tmp_path):
    """Ten people and ten fakes: what is loud is a person to the model of these tests."""
    rng = np.random.default_rng(0)
    for kind, level in (("human", 0.3), ("fake", 0.02)):
        (tmp_path / kind).mkdir()
        for k in range(10):
            audio = level * rng.standard_normal(20_000)
            soundfile.write(tmp_path / kind / f"{k}.wav", audio, 16000, subtype="FLOAT")
    return tmp_path / "human", tmp_path / "fake"


def test_calibrate_from_recordings_to_a_threshold(command, recordings, tmp_path, capsys):
    human, fake = recordings
    options = ["calibrate", "--human", human, "--fake", fake, "--name", "phone"]
    options += ["--refuse-at-most", 0.2]
    code, out, err = command(*options, "--out", tmp_path / "own.json")
    assert (code, "asvspoof-cm" in err) == (0, False)  # progress shows where this is slow
    assert "from 10 people and 10 fakes" in out
    assert "10 people cannot show 20 %; 14 without an error can." in out
    kept = load_settings(tmp_path / "own.json")
    assert (kept.name, kept.scale, kept.fitted_for["n_crops"]) == ("phone", 2.0, 5)
    assert kept.offset != 1.0  # moved by a constant
    assert command(*options, "--out", tmp_path / "own.pt")[0] == 0
    own = Scorer.from_checkpoint(tmp_path / "own.pt", device="cpu")
    assert own.calibration == kept
    assert own.segment_settings.offset == pytest.approx(0.5 + kept.offset - 1)  # frames move too
    c_fa = out.split("--c-fa ")[1].split()[0]
    arguments = ["score", str(human), "--model", str(tmp_path / "own.pt"), "--device", "cpu"]
    main([*arguments, "--c-fa", c_fa])
    verdicts = [row.split("\t")[2] for row in capsys.readouterr().out.splitlines()[1:]]
    assert verdicts.count("spoof") <= 1  # the lowest may fall to the last digit of the cost


@pytest.mark.filterwarnings("always:people alone")
def test_calibrate_with_people_alone_and_what_it_refuses(command, recordings, tmp_path):
    human, _ = recordings
    soundfile.write(human / "silence.wav", np.zeros(20_000), 16000)
    code, out, err = command("calibrate", "--human", human, "--out", tmp_path / "own.json")
    assert code == 0
    assert "warning: people alone show that they are refused too often" in err
    assert "left out: silence: no speech to judge" in err
    assert "from 10 people and 0 fakes" in out
    for arguments, message in (
        (["--human", human, "--out", "own.tsv"], "--out must end in .pt or .json; got own.tsv."),
        (["--human", tmp_path / "no", "--out", "own.pt"], "none of the recordings can be scored"),
        (
            ["--human", human, "--out", tmp_path / "x.json", "--refuse-at-most", 2],
            "--refuse-at-most must lie between 0 and 1",
        ),
    ):
        code, _, err = command("calibrate", *arguments)
        assert (code, message in err) == (2, True)
    assert not (tmp_path / "x.json").exists()


def test_calibrate_fits_the_slope_where_there_are_enough(command, recordings, tmp_path):
    lists = []
    for kind in recordings:
        (kind / "all.txt").write_text("".join(f"{k % 10}.wav\n" for k in range(30)))
        lists.append(kind / "all.txt")
    given = ["--human", lists[0], "--fake", lists[1], "--out", tmp_path / "o.json"]
    code, out, _ = command("calibrate", *given)
    assert code == 0
    assert "what it calls 0 lies between" in out
    kept = load_settings(tmp_path / "o.json")
    assert (kept.n_bonafide, kept.n_spoof) == (30, 30)
    assert kept.scale != 2.0
