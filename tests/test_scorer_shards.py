"""Shards of a protocol: scored apart, merged with checks; the scripts of the page as processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.cli import main
from asvspoof_cm.data import Protocol, write_miniature
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.scorer import Scorer, merge_scores

NAMES = [f"u{k:02}" for k in range(11)]


class Cheap(torch.nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(gain))

    def forward(self, waveform):
        return (
            torch.stack([waveform[:, ::37].mean(1), waveform[:, ::41].abs().mean(1)], 1) * self.gain
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(0)
    for name in NAMES:
        soundfile.write(folder / f"{name}.flac", 0.1 * rng.standard_normal(8000), 16000)
    (folder / "u04.flac").write_bytes(b"no audio")
    return folder


@pytest.fixture(scope="module")
def protocol():
    return Protocol.from_columns(NAMES)


@pytest.fixture(scope="module")
def scorer():
    return Scorer(Cheap(), device="cpu", n_crops=1)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "scores.tsv"


@pytest.fixture
def shards(scorer, protocol, folder, output):
    """Three shards, the last first."""
    return [scorer.score_protocol(protocol, folder, output, shard=(k, 3)) for k in (2, 1, 0)][::-1]


def files(output):
    return sorted(path.name.removeprefix(output.name) for path in output.parent.iterdir())


def test_shards_merge_into_what_one_process_writes(
    shards, scorer, protocol, folder, output, tmp_path
):
    assert [(part.n_scored, part.n_failed) for part in shards] == [(4, 0), (3, 1), (3, 0)]
    assert shards[1].errors == shards[1].output == tmp_path / "scores.tsv.shard-1-of-3"
    assert files(output) == [".shard-0-of-3", ".shard-1-of-3", ".shard-2-of-3"]
    done = merge_scores(protocol, output)
    assert (done.output, done.n_scored, done.n_failed) == (output, 10, 1)
    assert files(output) == ["", ".errors.tsv", ".run.json", ".warnings.tsv"]
    (tmp_path / "alone").mkdir()
    alone = scorer.score_protocol(protocol, folder, tmp_path / "alone" / "scores.tsv")
    assert output.read_bytes() == alone.output.read_bytes()
    assert done.errors.read_bytes() == alone.errors.read_bytes()
    assert done.warnings.read_bytes() == alone.warnings.read_bytes()
    assert (
        done.n_without_speech == alone.n_without_speech == sum(p.n_without_speech for p in shards)
    )
    # What is merged is a finished run: only the failure is tried again.
    again = scorer.score_protocol(protocol, folder, output)
    assert (again.n_resumed, again.n_scored, again.n_failed) == (10, 10, 1)


def test_a_shard_is_resumed(shards, scorer, protocol, folder, output):
    path = shards[0].output
    whole = path.read_bytes()
    path.write_bytes(b"\n".join(whole.split(b"\n")[:3]) + b"\nu06\t-0.")
    again = scorer.score_protocol(protocol, folder, output, shard=(0, 3))
    assert (again.n_resumed, again.n_scored) == (2, 4)
    assert path.read_bytes() == whole
    assert merge_scores(protocol, output).n_scored == 10


def test_one_process_goes_on_from_shards(shards, scorer, protocol, folder, output):
    shards[2].output.unlink()
    done = scorer.score_protocol(protocol, folder, output)
    assert (done.n_resumed, done.n_scored, done.n_failed) == (7, 10, 1)
    assert files(output) == ["", ".errors.tsv", ".run.json", ".warnings.tsv"]
    part = scorer.score_protocol(protocol, folder, output, shard=(1, 2))
    assert (part.n_resumed, part.n_scored) == (5, 5)


def test_more_shards_than_utterances(scorer, folder, output):
    protocol = Protocol.from_columns(NAMES[:2])
    for k in range(3):
        part = scorer.score_protocol(protocol, folder, output, shard=(k, 3))
        assert part.n_scored == (k < 2)
    assert merge_scores(protocol, output).n_scored == 2


def edit(path, change):
    lines = path.read_text().split("\n")
    change(lines)
    path.write_text("\n".join(lines))


def another_model(lines):
    lines[0] = json.dumps({**json.loads(lines[0]), "sha256": "5eed"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"shard 1 of 3 is missing"),
        (
            lambda path: edit(path, lambda lines: lines.pop(1)),
            r"shard-1-of-3 is not finished: 1 utterances are missing, such as u01\. Run it again",
        ),
        (
            lambda path: edit(path, another_model),
            r"must have one model and settings; scores.tsv.shard-1-of-3 has another sha256 \(",
        ),
        (
            lambda path: edit(path, lambda lines: lines.insert(1, "u00\t1.0")),
            r"every utterance must be in one shard; u00 is in two",
        ),
        (
            lambda path: path.rename(path.with_name("scores.tsv.shard-1-of-4")),
            r"there is scores.tsv.shard-1-of-4 beside shards of 3\. Merge or delete it",
        ),
    ],
)
def test_shards_that_do_not_fit(shards, protocol, output, damage, message):
    damage(shards[1].output)
    before = files(output)
    with pytest.raises(ValueError, match=message):
        merge_scores(protocol, output)
    assert files(output) == before


def test_what_else_is_refused(shards, scorer, protocol, folder, output, tmp_path):
    with pytest.raises(ValueError, match=r"must be that of the shards, 11 utterances.*; got 2 "):
        merge_scores(protocol.select([0, 1]), output)
    with pytest.raises(FileNotFoundError, match=r"there is no other\.tsv\.shard-0-of-N beside it"):
        merge_scores(protocol, tmp_path / "other.tsv")
    with pytest.raises(ValueError, match=r"`shard` must be \(k, n\) with 0 <= k < n; got \(3, 3\)"):
        scorer.score_protocol(protocol, folder, output, shard=(3, 3))
    with pytest.raises(ValueError, match=r"there is scores.tsv.shard-0-of-3 beside shards of 2"):
        scorer.score_protocol(protocol, folder, output, shard=(0, 2))
    other = Scorer(Cheap(2.0), device="cpu", n_crops=1)
    with pytest.raises(ValueError, match="was begun with another sha256"):
        other.score_protocol(protocol, folder, output, shard=(0, 3))
    with pytest.raises(ValueError, match="was begun with another sha256"):
        other.score_protocol(protocol, folder, output)
    other.score_protocol(protocol, folder, output, shard=(0, 3), resume=False)
    with pytest.raises(ValueError, match="must have one model and settings"):
        merge_scores(protocol, output)


def test_two_jobs_with_one_shard(scorer, protocol, folder, output):
    class Second(Cheap):
        """Starts the same shard from inside the first."""

        def forward(self, waveform):
            with pytest.raises(ValueError, match="is being written by another process"):
                scorer.score_protocol(protocol, folder, output, shard=(0, 2))
            with pytest.raises(ValueError, match="is being written by another process"):
                scorer.score_protocol(protocol, folder, output, resume=False)
            return super().forward(waveform)

    part = Scorer(Second(), device="cpu", n_crops=1).score_protocol(
        protocol, folder, output, shard=(0, 2)
    )
    assert part.n_scored == 5


@pytest.mark.parametrize("text", ["3/3", "-1/3", "1", "1/2/3", "a/b"])
def test_bad_shards_on_the_command_line(text, capsys):
    with pytest.raises(SystemExit):
        main(["score", "--protocol", "p", "--audio", "a", "--out", "o", f"--shard={text}"])
    assert "must be K/N with K from 0 to N - 1" in capsys.readouterr().err


def scripts():
    page = (Path(__file__).parents[1] / "docs" / "many_machines.md").read_text()
    slurm = re.search(r"```sh\n(#!/bin/sh\n.*?)```", page, re.DOTALL)[1]
    kubernetes = re.search(r"- >-\n((?: {14}.*\n)+)", page)[1]
    return {
        "slurm": (slurm, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
        "kubernetes": (" ".join(kubernetes.split()), "JOB_COMPLETION_INDEX", "SHARDS"),
    }


@pytest.mark.parametrize("name", scripts())
def test_scripts_of_the_page_as_processes(name, tmp_path):
    script, index, count = scripts()[name]
    paths = write_miniature(tmp_path / "corpus", n_train=2, n_dev=4)
    (tmp_path / "dev_protocol.tsv").write_bytes(paths.dev_protocol.read_bytes())
    command = tmp_path / "bin" / "asvspoof-cm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m asvspoof_cm "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", count: "2"}
    environment["PATH"] = f"{command.parent}:{environment['PATH']}"
    jobs = [
        subprocess.Popen(
            ["sh", "-c", script], cwd=tmp_path, env={**environment, index: str(k)}, text=True
        )
        for k in range(2)
    ]
    assert [job.wait() for job in jobs] == [0, 0]
    merge = [
        "--protocol",
        str(tmp_path / "dev_protocol.tsv"),
        "--out",
        str(tmp_path / "scores.tsv"),
    ]
    assert main(["merge", *merge]) == 0
    assert len(read_scores(tmp_path / "scores.tsv").filename) == 4
