"""Files, lists and tables: each file a score or an error, memory flat, kills survived."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import asvspoof_cm
from asvspoof_cm import audio as audio_module
from asvspoof_cm.audio import load_audio
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.checkpoint import save_checkpoint
from asvspoof_cm.cli import main
from asvspoof_cm.data import Protocol, folder as folder_module, write_miniature
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer, merge_scores
from asvspoof_cm.scorer.files import _locked

SMALL = TFPARNConfig(d_model=32, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=16)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(asvspoof_cm.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


class Cheap(torch.nn.Module):
    """A model that costs nothing and tells every crop from every other."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(gain))

    def forward(self, waveform):
        parts = waveform[:, ::37].mean(1), waveform[:, ::41].abs().mean(1)
        return torch.stack(parts, dim=1) * self.gain


@pytest.fixture(scope="module")
def scorer():
    return Scorer(Cheap(), device="cpu")


def noise(n_samples, seed=0):
    return 0.2 * np.random.default_rng(seed).standard_normal(n_samples).clip(-4, 4)


def write(path, samples, rate=16000, **options):
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, samples, rate, **options)
    return path


# Files


@pytest.mark.parametrize("block", [audio_module.BLOCK_SAMPLES, 10_000])
def test_a_file_scores_as_its_waveform(tmp_path, monkeypatch, block):
    """Also read in blocks that cut its crops in pieces."""
    monkeypatch.setattr(audio_module, "BLOCK_SAMPLES", block)
    torch.manual_seed(0)
    scorer = Scorer(TFPARN(SMALL), device="cpu")
    quiet = np.concatenate([np.zeros(40_000), noise(90_000), np.zeros(30_000)])
    paths = [
        write(tmp_path / "short.wav", noise(9000)),
        write(tmp_path / "exact.flac", noise(64000)),
        write(tmp_path / "long.flac", noise(200_000) * np.linspace(0.1, 1, 200_000)),
        write(tmp_path / "quiet.flac", quiet),
        write(tmp_path / "rate.wav", noise(300_000), 44100, subtype="FLOAT"),
        write(tmp_path / "low.flac", noise(50_001), 8000),
        write(tmp_path / "stereo.wav", noise(120_000).reshape(-1, 2), 22050),
        write(tmp_path / "six.wav", noise(600_000).reshape(-1, 6), 96000),
    ]
    scored = list(scorer.score_files(paths))
    assert [item.error for item in scored] == [None] * len(paths)
    for path, item in zip(paths, scored, strict=True):
        assert item.score == pytest.approx(scorer.score(load_audio(path)), abs=1e-5), path.name
        with path.open("rb") as file:
            assert scorer.score_file(file) == scorer.score_file(path)
    rates = [item.result.resampled_from for item in scored]
    assert rates == [None, None, None, None, 44100, 8000, 22050, 96000]


def test_what_a_file_may_be(scorer, tmp_path):
    path = write(tmp_path / "a.wav", noise(20_000))
    expected = scorer.score_file(path)
    content = path.read_bytes()
    files = (str(path), content, bytearray(content), memoryview(content), io.BytesIO(content))
    for audio in (*files, soundfile.read(path)[0]):
        assert scorer.score(audio) == pytest.approx(expected.score, abs=1e-6)
    with pytest.raises(ValueError, match="the audio is not an audio file") as caught:
        scorer.score_file(b"secret" * 1000)
    assert "secret" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"no.wav"):
        scorer.score_file(tmp_path / "no.wav")


def test_channels(tmp_path):
    """Two people on two channels: mixed with a warning, one of them, or each."""
    both = np.stack([noise(64_000), noise(64_000, seed=1)])
    path = write(tmp_path / "call.wav", both.T)
    same = write(tmp_path / "same.wav", np.stack([both[0], both[0]], axis=1))
    mixed = Scorer(Cheap(), device="cpu")
    alone = [mixed.score(channel) for channel in both]
    for audio in (path, both):
        assert mixed.score_file(audio).warnings == (
            "the channels differ and were mixed: see channel",
        )
    assert mixed.score_file(same).warnings == ()
    for k in range(2):
        one = Scorer(Cheap(), device="cpu", channel=k)
        assert one.score_file(path).score == pytest.approx(alone[k], abs=1e-4)
        assert one.score(both) == pytest.approx(alone[k], abs=1e-4)
        assert one.score_file(path).warnings == ()
        assert one.settings()["channel"] == k
    each = Scorer(Cheap(), device="cpu", channel="each")
    found = list(each.score_files([path, tmp_path / "no.wav", ("pair", both)]))
    names = [f"{path}#0", f"{path}#1", str(tmp_path / "no.wav"), "pair#0", "pair#1"]
    assert [item.name for item in found] == names
    assert [found[k].score for k in (0, 1, 3, 4)] == pytest.approx(alone * 2, abs=1e-4)
    with pytest.raises(ValueError, match='"each" gives several scores; use score_files'):
        each.score_file(path)
    for wrong in (-1, True, "left"):
        with pytest.raises(ValueError, match='must be "mix", "each" or a number from 0'):
            Scorer(Cheap(), device="cpu", channel=wrong)


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
    (folder / "cr.txt").write_text("../x.wav\nno\x00.wav\n")
    (folder / "no.csv").write_bytes(b"\xff\xfe\x00")
    (folder / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.wav")
    os.mkfifo(folder / "pipe.txt")
    return {
        "text.wav": "not an audio file that libsndfile",
        "empty.wav": "is empty",
        "folder.wav": "holds no audio file",
        "loop.wav": "loop|symbolic link",
        "truncated.flac": "can't be decoded|truncated",
        "none.wav": "holds no samples",
        "nan.wav": "NaN or infinite values in 1 of 3 samples",
        "missing.wav": "missing.wav: No such file or directory",
        "forbidden.wav": "[Pp]ermission denied",
        "no.csv": "no.csv",
        "zero.txt": "must be a regular file",
        "pipe.wav": "must be a regular file",
        "pipe.txt": "must be a regular file",
    }


def test_bad_files_say_what_and_which(scorer, tmp_path):
    messages = bad_files(tmp_path)
    if os.access(tmp_path / "forbidden.wav", os.R_OK):  # the superuser may read everything
        del messages["forbidden.wav"]
    good = str(write(tmp_path / "ein Gespräch über 音声.wav", noise(20000)))
    paths = [str(path) for name in messages for path in (tmp_path / name, good)]
    scored = list(scorer.score_files(paths))
    assert [item.name for item in scored] == paths
    for item in scored:
        if item.name == good:
            assert item.error is None
            assert np.isfinite(item.score)
        else:
            assert (item.score, item.result) == (None, None)
            assert re.search(messages[Path(item.name).name], item.error), item.error
            assert Path(item.name).name in item.error
            assert "\n" not in item.error


def test_what_a_reader_raises_is_the_files_error_and_a_mistake_in_the_code_is_not(
    scorer, tmp_path, monkeypatch
):
    def deep(audio, *_, **__):
        raise RecursionError("maximum recursion depth exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "open_audio", deep)
        (item,) = scorer.score_files([("a", np.zeros(9))])
    assert item.error == "a: maximum recursion depth exceeded"
    path = write(tmp_path / "a.wav", noise(16_000))
    monkeypatch.setattr("asvspoof_cm.audio.AudioFile.read", lambda self, *_: self.no_such_name)
    with pytest.raises(AttributeError, match="no_such_name"):
        list(scorer.score_files([path]))


@pytest.mark.slow
def test_ten_thousand_files_of_which_one_in_a_hundred_is_corrupt(tmp_path):
    whole = write(tmp_path / "x.wav", noise(400)).read_bytes()
    n_started = 0

    def started():
        nonlocal n_started
        for k in range(10_000):
            path = tmp_path / f"{k}.wav"
            path.write_bytes(whole[: 44 if k % 300 == 7 else 100] if k % 100 == 7 else whole)
            n_started += 1
            yield path

    for k, item in enumerate(Scorer(Cheap(), device="cpu", n_crops=1).score_files(started())):
        assert item.name == str(tmp_path / f"{k}.wav")
        assert (item.error is not None) == (k % 100 == 7)
        assert n_started - k <= 200  # the queue is bounded
    assert k == 9_999


def test_failures_are_told_without_waiting_for_a_batch(scorer):
    """A run of nothing but failures must not pile up."""
    missing = (f"{k}.wav" for k in range(1000))
    next(scorer.score_files(missing, n_threads=1))
    assert len([*missing]) > 950


def test_stopping_early_stops_the_threads(scorer, tmp_path):
    path = write(tmp_path / "x.wav", noise(400))
    results = scorer.score_files([path] * 1000)
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("asvspoof-cm")]
    for one, name in (("a.wav", "a.wav"), (b"secret", "the audio"), (bytearray(9), "the audio")):
        with pytest.raises(TypeError, match=rf"must be several files; got one, {name}\. Wrap it"):
            next(scorer.score_files(one))
    with pytest.raises(ValueError, match="`n_threads` must be at least 1; got 0"):
        next(scorer.score_files([path], n_threads=0))


def test_a_model_that_fails_is_not_a_bad_file(tmp_path):
    def broken(waveform):
        raise RuntimeError("out of memory")

    def rough(waveform):
        logits = Cheap()(waveform)
        return torch.where(logits[:, 1:] < 0.05, torch.nan, logits)

    good = write(tmp_path / "x.wav", noise(40000))
    with pytest.raises(RuntimeError, match="out of memory"):
        list(Scorer(broken).score_files([good]))
    quiet = write(tmp_path / "peaky.wav", np.eye(1, 16000)[0] + np.eye(1, 16000, 15999)[0])
    results = [item.error for item in Scorer(rough).score_files([quiet, good])]
    assert results == [f"{quiet}: the model's logits are not finite.", None]


def test_adapting_to_a_channel():
    """The ranking stays, the ratios move, and the original scorer is left alone."""
    model = torch.nn.Identity()
    model.forward = lambda w: 4 * torch.stack([-w.abs().mean(1), w.abs().mean(1) - 0.5], dim=1)
    scorer = Scorer(model, device="cpu", calibration=Calibration(offset=3.0))
    people = [(f"human {k}", noise(20_000, k).clip(-0.3, 0.3)) for k in range(6)]
    fakes = [(f"fake {k}", noise(20_000, k) ** 3) for k in range(6)]
    before = [scorer.score(audio) for _, audio in [*people, *fakes]]
    assert min(before[:6]) > max(before[6:])
    adapted = scorer.adapt(people, fakes)
    after = [adapted.score(audio) for _, audio in [*people, *fakes]]
    shift = adapted.calibration.offset - 3
    assert abs(shift) > 0.1
    assert after == pytest.approx([score + shift for score in before])
    assert scorer.calibration.offset == 3.0
    with pytest.warns(UserWarning, match="people alone"):
        assert scorer.adapt(people).calibration.offset >= 3.0
    with pytest.raises(ValueError, match="zeros: no speech to judge"):
        scorer.adapt([("zeros", np.zeros(20_000))])
    with pytest.raises(ValueError, match=r"no.wav: No such file"):
        scorer.adapt(people, ["no.wav"])
    with pytest.raises(ValueError, match="`calibration` must be there for adapting"):
        Scorer(Cheap(), device="cpu").adapt(people)


# Folders and lists


def test_lists_and_pairs(scorer, tmp_path):
    waveform = noise(9000)
    path = write(tmp_path / "audio" / "é ü.wav", waveform, subtype="FLOAT")
    expected = scorer.score_file(path).score
    (tmp_path / "a.txt").write_text("é ü.wav\n\nno.wav\n", encoding="utf-8")
    (tmp_path / "audio" / "c.tsv").write_text("utterance\tpath\nU 1\té ü.wav\n", encoding="utf-8")
    lists = [tmp_path / "a.txt", tmp_path / "audio" / "c.tsv"]
    pairs = [("a", waveform), ("b", path.read_bytes()), ("c", "no.wav"), ("d", waveform, 8000)]
    *found, slow = scorer.score_files(iter([*lists, *pairs]), root=tmp_path / "audio")
    assert [item.name for item in found] == ["é ü.wav", "no.wav", "U 1", "a", "b", "c"]
    scores = [item.score for item in found if item.error is None]
    assert scores == pytest.approx([expected] * 4, abs=1e-6)
    assert "No such file" in found[1].error
    assert found[-1].error == "c: no.wav: No such file or directory."
    assert slow.result.resampled_from == 8000


# Memory

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


# Tables

NAMES = [f"u{k:03d}" for k in range(60)]
FAILED = ("u007", "u031")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for k, name in enumerate(NAMES):
        write(folder / f"{name}.flac", noise(500 + 137 * k, seed=k))
    (folder / "u007.flac").write_bytes(b"no audio\n" * 99)
    (folder / "u031.flac").unlink()
    protocol = folder / "protocol.tsv"
    protocol.write_text("filename\tlabel\n" + "".join(f"{name}\tspoof\n" for name in NAMES))
    return protocol, folder


def beside(output):
    return sorted(path.name.removeprefix(output.name) for path in output.parent.iterdir())


def test_protocol(scorer, corpus, tmp_path):
    protocol, folder = corpus
    output = tmp_path / "out" / "scores.tsv"
    done = scorer.score_protocol(protocol, folder, output)
    assert (done.n_scored, done.n_resumed, done.n_failed, done.n_without_speech) == (58, 0, 2, 53)
    told = f"58 utterances scored; 2 failed, see {done.errors}; 53 without speech to judge"
    assert str(done) == told
    assert beside(output) == ["", ".errors.tsv", ".run.json"]
    errors = done.errors.read_text().splitlines()
    assert [line.split("\t")[0] for line in errors] == ["filename", *FAILED]
    assert "u007.flac" in errors[1]
    assert "No such file" in errors[2]
    lines = [line.split("\t") for line in output.read_text().splitlines()]
    assert lines[0] == ["filename", "log-odds", "verdict", "warnings"]
    assert lines[1][2:] == ["-", "no speech to judge; shorter than 1 s"]
    found = read_scores(output)
    assert found.filename.tolist() == [name for name in NAMES if name not in FAILED]
    for name, score in zip(found.filename.tolist(), found.cm.tolist(), strict=True):
        assert score == pytest.approx(scorer.score_file(folder / f"{name}.flac").score, abs=1e-6)


def test_the_same_call_again_tries_failures_only(scorer, corpus, tmp_path):
    protocol, folder = corpus
    output = tmp_path / "scores.tsv"
    scorer.score_protocol(protocol, folder, output)
    before = output.read_bytes()
    again = scorer.score_protocol(protocol, folder, output)
    assert (again.n_scored, again.n_resumed, again.n_failed) == (58, 58, 2)
    assert output.read_bytes() == before
    replaced = tmp_path / "audio"
    replaced.mkdir()
    for name in NAMES:
        (replaced / f"{name}.flac").symlink_to(folder / f"{name}.flac")
    for name in FAILED:
        (replaced / f"{name}.flac").unlink()
        write(replaced / f"{name}.flac", noise(3000))
    last = scorer.score_protocol(protocol, replaced, output)
    assert (last.n_scored, last.n_resumed, last.errors) == (60, 58, None)
    assert output.read_bytes().startswith(before)
    assert ".errors.tsv" not in beside(output)


@pytest.mark.parametrize("tail", [b"", b"u0", b"u003\t-0.12", b"\x00\xff"])
def test_a_torn_line_is_scored_again(scorer, corpus, tmp_path, tail):
    output = tmp_path / "scores.tsv"
    scorer.score_protocol(*corpus, output)
    whole = output.read_bytes()
    output.write_bytes(b"\n".join([*whole.split(b"\n")[:4], tail]))
    again = scorer.score_protocol(*corpus, output)
    assert (again.n_resumed, again.n_scored) == (3, 58)
    assert output.read_bytes() == whole


def test_another_model_does_not_continue(scorer, corpus, tmp_path):
    output = tmp_path / "scores.tsv"
    scorer.score_protocol(*corpus, output)
    before = output.read_bytes()
    with pytest.raises(ValueError, match=r"was begun with another n_crops\. Choose another name"):
        Scorer(Cheap(), device="cpu", n_crops=2).score_protocol(*corpus, output)
    with pytest.raises(ValueError, match="was begun with another sha256"):
        Scorer(Cheap(2.0), device="cpu").score_protocol(*corpus, output)
    with pytest.raises(ValueError, match=r"was begun with another n_names, another names"):
        scorer.score_protocol(Protocol.from_columns(NAMES[:9]), corpus[1], output)
    with pytest.raises(ValueError, match="was begun with another n_shards"):
        scorer.score_protocol(*corpus, output, shard=(0, 2))
    assert output.read_bytes() == before
    output.write_bytes(b"filename\tstart_s\n" + before)
    with pytest.raises(ValueError, match="was begun with another header"):
        scorer.score_protocol(*corpus, output)
    output.write_bytes(before)
    (tmp_path / "scores.tsv.run.json").unlink()
    with pytest.raises(ValueError, match=r"scores.tsv.run.json is not there, so nothing says"):
        scorer.score_protocol(*corpus, output)


def test_what_a_table_cannot_hold(scorer, corpus, tmp_path):
    protocol, folder = Protocol.from_columns(["u000", "u001"]), corpus[1]
    with pytest.raises(IsADirectoryError, match="`output` must name a file"):
        scorer.score_protocol(protocol, folder, tmp_path)
    with pytest.raises(ValueError, match=r"must end in .tsv; got x.zip. A submission"):
        scorer.score_protocol(protocol, folder, tmp_path / "x.zip")
    broken = Protocol.from_columns(["u007"])
    with pytest.raises(ValueError, match=r"no utterance of 1 could be scored; see .*errors"):
        scorer.score_protocol(broken, folder, tmp_path / "s.tsv")
    with pytest.raises(ValueError, match=r"`shard` must be \(k, n\) with 0 <= k < n; got \(3, 3\)"):
        scorer.score_protocol(protocol, folder, tmp_path / "s.tsv", shard=(3, 3))


def test_names_are_written_escaped(tmp_path):
    save_checkpoint(checkpoint := tmp_path / "m.pt", TFPARN(SMALL))
    command = ["score", str(tmp_path / "in"), "--out", str(tmp_path / "s.tsv"), "--crops", "1"]
    command += ["--device", "cpu", "--model", str(checkpoint)]
    names = ["a\tb", "c\rd", "e\u2028f", "g\x85h", "i\nj", "k\\nl", "m n"]
    for name in names:
        write(tmp_path / "in" / f"{name}.wav", noise(900))
    assert main(command) == 1
    text = (tmp_path / "s.tsv").read_text(encoding="utf-8")
    lines = text.splitlines()  # at every break that any reader knows
    escaped = ["a\\tb", "c\\rd", "e\\u2028f", "g\\u0085h", "i\\nj", "k\\\\nl", "m n"]
    assert [line.split("\t")[0] for line in lines[1:]] == escaped
    assert {line.count("\t") for line in lines} == {3}
    assert main(command) == 0
    assert (tmp_path / "s.tsv").read_text(encoding="utf-8") == text


def test_two_jobs_with_one_table(scorer, corpus, tmp_path):
    class Second(Cheap):
        """Begins the same table from inside the first."""

        def forward(self, waveform):
            with pytest.raises(ValueError, match="is being written by another process"):
                scorer.score_protocol(*corpus, tmp_path / "s.tsv")
            return super().forward(waveform)

    assert Scorer(Second(), device="cpu").score_protocol(*corpus, tmp_path / "s.tsv").n_scored == 58


RUN = """
import sys, time
import torch
from asvspoof_cm.scorer import Scorer
def slow(w):
    time.sleep(float(sys.argv[4]))
    return torch.stack([w[:, ::37].mean(1), w[:, ::41].abs().mean(1)], dim=1)
done = Scorer(slow, batch_size=5).score_protocol(*sys.argv[1:4])
print(done.n_scored, done.n_resumed, done.n_failed)
"""


def test_killed_and_continued(corpus, tmp_path):
    """Twice in the middle of the work, with a signal that nothing can catch."""
    output, once = tmp_path / "scores.tsv", tmp_path / "once.tsv"

    def command(path, delay):
        return [sys.executable, "-c", RUN, *map(str, corpus), str(path), str(delay)]

    n_before = 0
    for _ in range(2):
        child = subprocess.Popen(command(output, 0.05), env=ENVIRONMENT)
        while not output.exists() or output.read_bytes().count(b"\n") < n_before + 8:
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        n_before = output.read_bytes().count(b"\n") - 1
    last = subprocess.run(
        command(output, 0), env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    n_scored, n_resumed, n_failed = map(int, last.stdout.split())
    assert (n_scored, n_failed) == (58, 2)
    assert n_resumed == n_before >= 12
    subprocess.run(command(once, 0), env=ENVIRONMENT, capture_output=True, check=True)
    # What failed is tried again by each run; the order is that of the protocol all the same.
    assert output.read_bytes() == once.read_bytes()


# Shards


@pytest.fixture
def parts(scorer, corpus, tmp_path):
    """Three shards, the last first."""
    outputs = [tmp_path / f"part-{k}.tsv" for k in range(3)]
    for k in (2, 1, 0):
        scorer.score_protocol(*corpus, outputs[k], shard=(k, 3))
    return outputs


def test_shards_merge_into_what_one_process_writes(parts, scorer, corpus, tmp_path):
    done = merge_scores(reversed(parts), tmp_path / "all" / "scores.tsv")
    alone = scorer.score_protocol(*corpus, tmp_path / "alone" / "scores.tsv")
    assert (done.n_scored, done.n_failed) == (58, 2)
    for end in ("", ".errors.tsv", ".run.json"):
        one, other = (path.output.with_name(f"scores.tsv{end}") for path in (done, alone))
        assert one.read_bytes() == other.read_bytes(), end
    # What is merged goes on as a whole run: only the failures are tried again.
    again = scorer.score_protocol(*corpus, done.output)
    assert (again.n_resumed, again.n_failed) == (58, 2)


def test_a_submission_to_the_challenge(parts, tmp_path, capsys):
    found = map(str, tmp_path.glob("part-*.tsv"))  # with the tables of errors, as a shell does
    assert main(["merge", *found, "--out", str(tmp_path / "x.zip")]) == 1
    assert "58 utterances scored; 2 failed" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        lines = archive.read("score.tsv").decode().splitlines()
    assert lines[0] == "filename\tcm-score"
    assert len(lines) == 59


def test_more_shards_than_utterances(scorer, corpus, tmp_path):
    protocol = Protocol.from_columns(NAMES[:2])
    parts = [tmp_path / f"{k}.tsv" for k in range(3)]
    for k, part in enumerate(parts):
        scorer.score_protocol(protocol, corpus[1], part, shard=(k, 3))
    assert merge_scores(parts, tmp_path / "s.tsv").n_scored == 2


def edit_record(path, **changes):
    record = path.with_name(f"{path.name}.run.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda parts: parts.pop(1), r"all shards from 0 to 2 must be there, once; got 0, 2"),
        (lambda parts: parts.append(parts[0]), r"must be there, once; got 0, 0, 1, 2"),
        (lambda parts: edit_record(parts[1], sha256="5eed"), r"part-1.tsv has another sha256 than"),
        (lambda parts: edit_record(parts[2], n_shards=4), r"has another n_shards than"),
        (
            lambda parts: parts[1].write_bytes(parts[1].read_bytes()[:-9]),
            r"part-1.tsv is not finished: 18 scores and 1 errors of 20 utterances|is not finished",
        ),
        (
            lambda parts: parts[1].write_bytes(parts[1].read_bytes() + b"u000\t1.0\t-\t-\n"),
            r"every utterance must have a name of its own; 'u000' occurs twice",
        ),
        (
            lambda parts: parts[1].with_name("part-1.tsv.run.json").write_text("{}"),
            r"part-1.tsv.run.json is of another version. Score part-1.tsv again.",
        ),
        (
            lambda parts: parts[1].with_name("part-1.tsv.run.json").unlink(),
            r"part-1.tsv.run.json is not there, so nothing says which model made part-1.tsv",
        ),
    ],
)
def test_shards_that_do_not_fit(parts, tmp_path, damage, message):
    damage(parts)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        merge_scores(parts, tmp_path / "s.tsv")
    assert not (tmp_path / "s.tsv").exists()


def scripts():
    page = (Path(__file__).parents[1] / "docs" / "deployment.md").read_text()
    slurm = re.search(r"```sh\n(#!/bin/sh\n.*?)```", page, re.DOTALL)[1]
    kubernetes = re.search(r"- >-\n((?: {14}.*\n)+)", page)[1]
    return {
        "slurm": (slurm, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
        "kubernetes": (" ".join(kubernetes.split()), "JOB_COMPLETION_INDEX", "SHARDS"),
    }


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_scripts_of_the_page_as_processes(name, tmp_path):
    script, index, count = scripts()[name]
    paths = write_miniature(tmp_path / "corpus", n_train=2, n_dev=4)
    (tmp_path / "dev_protocol.tsv").write_bytes(paths.dev_protocol.read_bytes())
    command = tmp_path / "bin" / "asvspoof-cm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asvspoof_cm "$@"\n')
    command.chmod(0o755)
    environment = {**ENVIRONMENT, count: "2"}
    environment["PATH"] = f"{command.parent}:{environment['PATH']}"
    jobs = [
        subprocess.Popen(
            ["sh", "-c", script], cwd=tmp_path, env={**environment, index: str(k)}, text=True
        )
        for k in range(2)
    ]
    assert [job.wait() for job in jobs] == [0, 0]
    parts = [str(tmp_path / f"scores-{k}.tsv") for k in range(2)]
    assert main(["merge", *parts, "--out", str(tmp_path / "scores.tsv")]) == 0
    assert len(read_scores(tmp_path / "scores.tsv").filename) == 4


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path):
    output = tmp_path / "scores.tsv"
    (tmp_path / "scores.tsv.lock").write_text("what a killed process left")
    with (
        _locked(output),
        pytest.raises(ValueError, match="is being written by another process"),
        _locked(output),
    ):
        pass
    assert [*tmp_path.iterdir()] == []
    with _locked(output):
        assert beside(output) == [".lock"]
