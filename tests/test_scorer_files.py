"""Files and protocols: each file a score or an error, memory flat, kills survived."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import asvspoof_cm
from asvspoof_cm.audio import load_audio
from asvspoof_cm.data import Protocol, pack, read_protocol
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer, utterances as inputs_module

SMALL = TFPARNConfig(d_model=32, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=16)
LEFT = ("errors.tsv", "run.json", "warnings.tsv")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(asvspoof_cm.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


class Cheap(torch.nn.Module):
    """A model that costs nothing and tells every crop from every other."""

    def forward(self, waveform):
        return torch.stack([waveform[:, ::37].mean(1), waveform[:, ::41].abs().mean(1)], dim=1)


@pytest.fixture
def scorer():
    return Scorer(Cheap(), device="cpu")


def noise(n_samples, seed=0):
    return 0.2 * np.random.default_rng(seed).standard_normal(n_samples).clip(-4, 4)


def write(path, samples, rate=16000, **options):
    soundfile.write(path, samples, rate, **options)
    return path


# Files


@pytest.mark.parametrize("block", [inputs_module.BLOCK_SAMPLES, 10_000])
def test_a_file_scores_as_its_waveform(tmp_path, monkeypatch, block):
    """Also read in blocks that cut its crops in pieces."""
    monkeypatch.setattr(inputs_module, "BLOCK_SAMPLES", block)
    torch.manual_seed(0)
    scorer = Scorer(TFPARN(SMALL), device="cpu")
    paths = [
        write(tmp_path / "short.wav", noise(9000)),
        write(tmp_path / "exact.flac", noise(64000)),
        write(tmp_path / "long.flac", noise(200_000) * np.linspace(0.1, 1, 200_000)),
        write(tmp_path / "rate.wav", noise(300_000), 44100, subtype="FLOAT"),
        write(tmp_path / "low.flac", noise(50_001), 8000),
        write(tmp_path / "stereo.wav", noise(120_000).reshape(-1, 2), 22050),
        write(tmp_path / "six.wav", noise(600_000).reshape(-1, 6), 96000),
    ]
    for scored in scorer.score_files(paths):
        expected = scorer.score(load_audio(scored.path))
        assert scored.score == pytest.approx(expected, abs=1e-5), scored.path.name
        assert scored.error is None
    rates = [scored.result.resampled_from for scored in scorer.score_files(paths)]
    assert rates == [None, None, None, 44100, 8000, 22050, 96000]


def bad_files(folder):
    """Every kind of file that can't be scored, and what is said about it."""
    (folder / "text.wav").write_text("This is not audio at all.\n" * 50)
    (folder / "empty.wav").touch()
    (folder / "folder.wav").mkdir()
    (folder / "loop.wav").symlink_to(folder / "loop.wav")
    whole = write(folder / "whole.flac", noise(80000)).read_bytes()
    (folder / "truncated.flac").write_bytes(whole[: len(whole) // 2])
    write(folder / "none.wav", np.zeros(0))
    write(folder / "nan.wav", np.array([0.1, np.nan, 0.2]), subtype="FLOAT")
    write(folder / "forbidden.wav", noise(1000)).chmod(0)
    return {
        "text.wav": "not an audio file that libsndfile reads",
        "empty.wav": "is an empty file",
        "folder.wav": "holds no audio file",
        "loop.wav": "loop|symbolic link",
        "truncated.flac": "can't be decoded|truncated",
        "none.wav": "holds no samples",
        "nan.wav": "NaN or infinite values in 1 of 3 samples",
        "missing.wav": "No such file",
        "forbidden.wav": "permission denied",
    }


def test_bad_files_say_what_and_which(scorer, tmp_path, monkeypatch):
    messages = bad_files(tmp_path)
    access = os.access  # the superuser may read everything
    monkeypatch.setattr(
        os, "access", lambda path, mode: "forbidden" not in str(path) and access(path, mode)
    )
    good = write(tmp_path / "ein Gespräch über 音声.wav", noise(20000))
    paths = [path for name in messages for path in (tmp_path / name, good)]
    scored = list(scorer.score_files(map(str, paths)))
    assert [item.path for item in scored] == paths
    for item in scored:
        if item.path == good:
            assert item.error is None
            assert np.isfinite(item.score)
        else:
            assert item.score is None
            assert item.result is None
            assert re.search(messages[item.path.name], item.error), item.error
            assert item.path.name in item.error
            assert "\n" not in item.error


@pytest.mark.slow
def test_ten_thousand_files_of_which_one_in_a_hundred_is_corrupt(scorer, tmp_path):
    whole = write(tmp_path / "x.wav", noise(400)).read_bytes()
    paths = []
    for k in range(10_000):
        path = tmp_path / f"{k}.wav"
        path.write_bytes(whole[: 44 if k % 300 == 7 else 100] if k % 100 == 7 else whole)
        paths.append(path)
    scorer = Scorer(Cheap(), device="cpu", n_crops=1)
    n_started = 0

    def started():
        nonlocal n_started
        for path in paths:
            n_started += 1
            yield path

    for k, item in enumerate(scorer.score_files(started())):
        assert item.path == paths[k]
        assert (item.error is not None) == (k % 100 == 7)
        assert n_started - k <= 200  # the queue is bounded
    assert k == 9_999


def test_stopping_early_stops_the_threads(scorer, tmp_path):
    path = write(tmp_path / "x.wav", noise(400))
    results = scorer.score_files([path] * 1000)
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("asvspoof-cm")]


def test_one_path_is_not_several(scorer):
    with pytest.raises(TypeError, match=r"`paths` must be several files; got 'a.wav'"):
        scorer.score_files("a.wav")
    with pytest.raises(ValueError, match="`n_threads` must be at least 1; got 0"):
        scorer.score_files(["a.wav"], n_threads=0)


def test_a_model_that_fails_is_not_a_bad_file(tmp_path):
    def broken(waveform):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        list(Scorer(broken).score_files([write(tmp_path / "x.wav", noise(400))]))


def test_a_score_that_is_not_finite_is_an_error_of_the_file(tmp_path):
    def rough(waveform):
        logits = Cheap()(waveform)
        return torch.where(logits[:, 1:] < 0.05, torch.nan, logits)

    quiet = write(tmp_path / "peaky.wav", np.eye(1, 16000)[0])
    results = list(Scorer(rough).score_files([quiet, write(tmp_path / "x.wav", noise(40000))]))
    assert results[0].error == f"{quiet}: the model's logits are not finite."
    assert results[1].error is None


MEASURE = """
import re, sys
from pathlib import Path
import torch
from asvspoof_cm.scorer import Scorer
scorer = Scorer(lambda w: torch.stack([w.mean(1), w.abs().mean(1)], dim=1), batch_size=8)
task, *paths = sys.argv[1:]
def run(path):
    if task == "timeline":
        return scorer.timeline(path, hop_s=4.0)
    (scored,) = scorer.score_files([path], n_threads=1)
    assert scored.error is None
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1))
for path in paths:
    run(path)
    print(peak())
"""


@pytest.fixture(scope="module")
def three_hours(tmp_path_factory):
    """A minute of noise, and three hours of it."""
    folder = tmp_path_factory.mktemp("long")
    minute, hours = folder / "minute.wav", folder / "hours.wav"
    block = noise(16000 * 60)
    write(minute, block)
    with soundfile.SoundFile(hours, "w", 16000, 1) as file:
        for _ in range(180):
            file.write(block)
    yield minute, hours
    hours.unlink()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("task", ["files", "timeline"])
def test_three_hours_need_no_more_memory_than_a_minute(three_hours, task):
    minute, hours = three_hours
    child = subprocess.run(
        [sys.executable, "-c", MEASURE, task, minute, minute, hours],
        env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    _, before_kb, after_kb = map(int, child.stdout.split())
    hours_kb = 3 * 3600 * 16000 * 4 / 1024
    assert after_kb - before_kb < 0.05 * hours_kb


# Protocols


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "audio"
    folder.mkdir()
    names = [f"u{k:03d}" for k in range(60)]
    for k, name in enumerate(names):
        write(folder / f"{name}.flac", noise(500 + 137 * k, seed=k))
    (folder / "u007.flac").write_bytes(b"broken")
    (folder / "u031.flac").unlink()
    protocol = tmp_path / "protocol.tsv"
    protocol.write_text("filename\tlabel\n" + "".join(f"{name}\tspoof\n" for name in names))
    return protocol, folder, names


def test_protocol(scorer, corpus, tmp_path):
    protocol, folder, names = corpus
    done = scorer.score_protocol(protocol, folder, tmp_path / "out" / "scores.tsv")
    assert (done.n_scored, done.n_resumed, done.n_failed) == (58, 0, 2)
    assert done.output.read_text().startswith("filename\tcm-score\nu000\t")
    scores = read_scores(done.output)
    assert scores.filename.tolist() == [n for n in names if n not in ("u007", "u031")]
    for name, score in zip(scores.filename, scores.cm, strict=True):
        expected = scorer.score(load_audio(folder / f"{name}.flac"))
        assert score == pytest.approx(expected, abs=1e-5)
    errors = done.errors.read_text().splitlines()
    assert done.errors.name == "scores.tsv.errors.tsv"
    assert [line.split("\t")[0] for line in errors] == ["filename", "u007", "u031"]
    assert "not an audio file" in errors[1]
    assert "No such file" in errors[2]
    warnings = [line.split("\t") for line in done.warnings.read_text().splitlines()]
    assert warnings[:2] == [
        ["filename", "warnings"],
        ["u000", "no speech to judge, shorter than 1 s"],
    ]
    assert done.n_without_speech == 53  # the others have 8,000 samples and more
    assert str(done).endswith(f"without speech to judge, see {done.warnings}")
    left = sorted(path.name for path in done.output.parent.iterdir())
    assert left == ["scores.tsv", *(f"scores.tsv.{end}" for end in LEFT)]


def test_the_same_call_again_tries_failures_only(corpus, tmp_path):
    protocol, folder, _ = corpus
    output = tmp_path / "scores.tsv"
    first = Scorer(Cheap(), device="cpu").score_protocol(protocol, folder, output)
    before = read_scores(output)
    write(folder / "u007.flac", noise(3000))
    write(folder / "u031.flac", noise(3001))
    again = Scorer(Cheap(), device="cpu").score_protocol(protocol, folder, output)
    assert again.n_without_speech == first.n_without_speech + 2  # those of before are known
    assert (again.n_scored, again.n_resumed, again.n_failed) == (60, first.n_scored, 0)
    assert again.errors is None
    assert not first.errors.exists()
    after = read_scores(output)
    kept = np.isin(after.filename, before.filename)
    assert after.filename[kept].tolist() == before.filename.tolist()
    assert after.cm[kept].tolist() == before.cm.tolist()


@pytest.mark.parametrize(
    "tail", [b"", b"u0", b"u003\t", b"u003\t-0.12", b"u003\t1.5e", b"\x00\xff"]
)
def test_a_torn_line_is_scored_again(scorer, corpus, tmp_path, tail):
    protocol, folder, _ = corpus
    output = tmp_path / "scores.tsv"
    done = scorer.score_protocol(protocol, folder, output)
    whole = output.read_bytes()
    rows = whole.split(b"\n")[1:4]
    output.unlink()
    header = json.dumps(json.loads((tmp_path / "scores.tsv.run.json").read_text())).encode()
    lines = b"\n".join([header, *rows, tail])
    (tmp_path / "scores.tsv.shard-1-of-3").write_bytes(lines)
    again = scorer.score_protocol(protocol, folder, output)
    assert again.n_resumed == 3
    assert again.n_scored == done.n_scored
    assert output.read_bytes() == whole


def test_another_model_does_not_continue(scorer, corpus, tmp_path):
    protocol, folder, _ = corpus
    output = tmp_path / "scores.tsv"
    scorer.score_protocol(protocol, folder, output)
    before = output.read_bytes()
    other = Scorer(Cheap(), device="cpu", n_crops=2)
    with pytest.raises(ValueError, match=r"another n_crops \(5, now 2\)\. Pass resume=False"):
        other.score_protocol(protocol, folder, output)
    assert output.read_bytes() == before
    other.score_protocol(protocol, folder, output, resume=False)
    assert output.read_bytes() != before
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"another model \(Cheap, now TFPARN\); another sha256"):
        Scorer(TFPARN(SMALL), device="cpu", n_crops=2).score_protocol(protocol, folder, output)
    (tmp_path / "scores.tsv.run.json").unlink()
    with pytest.raises(ValueError, match=r"scores.tsv.run.json is not, so nothing says which"):
        other.score_protocol(protocol, folder, output)


def test_protocols_that_a_score_file_cannot_hold(scorer, corpus, tmp_path):
    _, folder, _ = corpus
    output = tmp_path / "scores.tsv"
    with pytest.raises(ValueError, match="name every utterance once"):
        scorer.score_protocol(Protocol.from_columns(["u000"]).select([0, 0]), folder, output)
    for name in ("a\tb", "a\nb"):
        with pytest.raises(ValueError, match="hold tabs or line breaks"):
            scorer.score_protocol(Protocol.from_columns(["u000", name]), folder, output)
    with pytest.raises(IsADirectoryError, match="`output` must name a file"):
        scorer.score_protocol(Protocol.from_columns(["u000"]), folder, tmp_path)
    with pytest.raises(ValueError, match=r"none of the 1 utterances could be scored; see .*errors"):
        scorer.score_protocol(Protocol.from_columns(["u007"]), folder, output)
    assert not output.exists()


def test_names_with_spaces_and_folders(scorer, tmp_path):
    folder = tmp_path / "a folder"
    (folder / "sub").mkdir(parents=True)
    write(folder / "sub" / "é ü.wav", noise(900))
    protocol = tmp_path / "p.csv"
    protocol.write_text("file_name,label\nsub/é ü.wav,bona-fide\n", encoding="utf-8")
    done = scorer.score_protocol(protocol, folder, tmp_path / "s.tsv")
    assert read_scores(done.output).filename.tolist() == ["sub/é ü.wav"]


def test_packed_audio(scorer, corpus, tmp_path):
    protocol, folder, names = corpus
    kept = [name for name in names if name not in ("u007", "u031")]
    pack(Protocol.from_columns(kept), folder, tmp_path / "packed")
    packed = scorer.score_protocol(
        Protocol.from_columns(kept), tmp_path / "packed", tmp_path / "packed.tsv"
    )
    plain = scorer.score_protocol(read_protocol(protocol), folder, tmp_path / "plain.tsv")
    np.testing.assert_allclose(
        read_scores(packed.output).cm, read_scores(plain.output).cm, atol=1e-4
    )


RUN = """
import sys, time
from pathlib import Path
import torch
from asvspoof_cm.scorer import Scorer
def slow(w):
    time.sleep(float(sys.argv[4]))
    return torch.stack([w[:, ::37].mean(1), w[:, ::41].abs().mean(1)], dim=1)
scorer = Scorer(slow, batch_size=5)
done = scorer.score_protocol(*sys.argv[1:4])
print(done.n_scored, done.n_resumed, done.n_failed)
"""


def command(corpus, output, delay):
    return [sys.executable, "-c", RUN, str(corpus[0]), str(corpus[1]), str(output), str(delay)]


def test_killed_and_continued(corpus, tmp_path):
    """Twice in the middle of the work, with a signal that nothing can catch."""
    output = tmp_path / "scores.tsv"
    n_before = 0
    for n_shards in (3, 4):
        child = subprocess.Popen(command(corpus, output, 0.05), env=ENVIRONMENT)
        journal = tmp_path / "scores.tsv.shard-0-of-1"
        while not journal.exists() or journal.read_bytes().count(b"\n") < n_before + 8:
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not output.exists()
        n_before = journal.read_bytes().count(b"\n") - 2
        # As if there had been more processes.
        journal.rename(tmp_path / f"scores.tsv.shard-2-of-{n_shards}")
    last = subprocess.run(
        command(corpus, output, 0), env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    n_scored, n_resumed, n_failed = map(int, last.stdout.split())
    assert (n_scored, n_failed) == (58, 2)
    assert n_resumed >= n_before - 2 >= 8  # those that failed are tried again
    names = read_scores(output).filename.tolist()
    assert names == [name for name in corpus[2] if name not in ("u007", "u031")]
    once = tmp_path / "once.tsv"
    subprocess.run(command(corpus, once, 0), env=ENVIRONMENT, capture_output=True, check=True)
    np.testing.assert_allclose(read_scores(output).cm, read_scores(once).cm, atol=1e-6)


# One write per process: the lines of two do not mix.
DISTRIBUTED = RUN.replace(
    "print(done.n_scored, done.n_resumed, done.n_failed)",
    """import os
text = f"{os.environ['RANK']} {done.n_scored} {done.n_resumed} {done.n_failed}\\n"
os.write(1, text.encode())""",
)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_two_processes_share_the_work(corpus, tmp_path, scorer):
    """Under torchrun, then continued by one process."""
    output = tmp_path / "scores.tsv"
    script = tmp_path / "run.py"
    script.write_text(DISTRIBUTED)
    child = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0",
         "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
         str(script), str(corpus[0]), str(corpus[1]), str(output), "0.01"],
        env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert sorted(child.stdout.split("\n")) == ["", "0 58 0 2", "1 58 0 2"]
    left = sorted(path.name for path in tmp_path.glob("scores*"))
    assert left == ["scores.tsv", *(f"scores.tsv.{end}" for end in LEFT)]
    expected = scorer.score_protocol(corpus[0], corpus[1], tmp_path / "alone.tsv")
    got, alone = read_scores(output), read_scores(expected.output)
    assert got.filename.tolist() == alone.filename.tolist()
    np.testing.assert_allclose(got.cm, alone.cm, atol=1e-6)
    settings = json.loads((tmp_path / "scores.tsv.run.json").read_text())
    assert settings["audio_dir"] == str(corpus[1])


def test_one_file(scorer, tmp_path):
    path = write(tmp_path / "x.wav", noise(48000), 44100)
    (expected,) = scorer.score_files([path])
    assert scorer.score_file(str(path)) == expected.result
    (tmp_path / "empty.wav").write_bytes(b"")
    with pytest.raises((OSError, ValueError), match=r"empty.wav"):
        scorer.score_file(tmp_path / "empty.wav")
    with pytest.raises(FileNotFoundError, match=r"no.wav"):
        scorer.score_file(tmp_path / "no.wav")
