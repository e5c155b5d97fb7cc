"""Damaged files and arbitrary text: every reader reads or refuses.

``benchmarks/fuzz.py`` has 10,000 mutations for each.
"""

import csv
import importlib
import io
import os
import re
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from asvspoof_cm.data import find_audio, read_protocol, read_segments
from asvspoof_cm.metrics import read_key, read_scores, write_scores

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "fuzz.py"
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Mutations ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_reader_does_what_it_must_not():
    command = [sys.executable, str(SCRIPT), "--n", "60", "--seed", "1", "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# What a longer search found: reader, seed and number of the mutation.
FOUND = [
    ("flac", 11, 326),
    *(("onnx", 9, k) for k in (18, 49)),
    *(("checkpoint", 11, k) for k in (2317, 2812, 3095)),
    ("checkpoint", 9, 362),
    *(("checkpoint", 0, k) for k in (495, 2131)),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("name", "seed", "k"), FOUND)
def test_what_was_found_once_is_refused(tmp_path, monkeypatch, name, seed, k):
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    fuzz = importlib.import_module("fuzz")
    path = tmp_path / f"found{fuzz.READERS[name].suffix}"
    path.write_bytes(fuzz.mutation(name, seed, k))
    with pytest.raises(ValueError, match=re.escape(path.name)):
        fuzz.READERS[name].read(path)


# Text --------------------------------------------------------------------------------------------

printable = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs")), min_size=1, max_size=12
)
names = st.lists(printable, min_size=1, max_size=6, unique=True)
numbers = st.floats(allow_nan=False, allow_infinity=False)
marks = st.sampled_from(
    (
        *("\t", " ", ",", ";", '"', "'", "\n", "\r", "\r\n", "\0", "|", "{", "}", "[", "]", ":"),
        *("\ufeff", "\x85", "nan", "1e999", "-", "spoof", "bonafide", "filename", "cm-score"),
        *("label", "cm-label", "path", "start", "end", "SPEAKER", "../", "/"),
    )
)
texts = st.lists(st.one_of(marks, printable), max_size=30).map("".join)


def only_refuses(read, path, content):
    """Read a file; anything but a result or a refusal that names it is raised."""
    path.write_bytes(content)
    try:
        read(path)
    except ValueError as error:
        if type(error) is not ValueError or path.name not in str(error):
            raise
    return path


def read_list(path):
    for entry in find_audio([path]):
        if isinstance(entry.audio, Exception):
            raise entry.audio


def read_unlabelled(path):
    return read_protocol(path, require_labels=False)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (read_scores, "x.tsv"),
        (read_key, "x.tsv"),
        (read_protocol, "x.txt"),
        (read_unlabelled, "x.txt"),
        (read_list, "x.csv"),
        (read_list, "x.txt"),
        (read_segments, "x.txt"),
    ],
)
@quick
@given(content=st.one_of(texts.map(str.encode), st.binary(max_size=60)))
def test_arbitrary_text_is_read_or_refused(tmp_path, read, name, content):
    only_refuses(read, tmp_path / name, content)


@quick
@given(data=st.data(), trials=names)
def test_scores_come_back_as_they_were_written(tmp_path, data, trials):
    scores = data.draw(st.lists(numbers, min_size=len(trials), max_size=len(trials)))
    write_scores(tmp_path / "s.tsv", trials, scores)
    read = read_scores(tmp_path / "s.tsv")
    assert read.filename.tolist() == trials
    assert np.array_equal(read.cm, scores)


@quick
@given(data=st.data(), trials=names)
def test_protocols_come_back_as_they_were_written(tmp_path, data, trials):
    labels = data.draw(
        st.lists(st.sampled_from(["bonafide", "spoof"]), min_size=len(trials), max_size=len(trials))
    )
    out = io.StringIO()
    csv.writer(out).writerows([("filename", "label"), *zip(trials, labels, strict=True)])
    (tmp_path / "p.csv").write_text(out.getvalue(), encoding="utf-8")
    protocol = read_protocol(tmp_path / "p.csv")
    assert protocol.utterance.tolist() == trials
    assert protocol.label.tolist() == [int(label == "bonafide") for label in labels]


@pytest.mark.parametrize("kind", ["csv", "txt"])
@quick
@given(stems=st.lists(st.text(string.ascii_letters + "é-_", min_size=1), min_size=1, unique=True))
def test_lists_come_back_as_they_were_written(tmp_path, kind, stems):
    path = tmp_path / f"list.{kind}"
    files = [f"sub/{stem}.wav" for stem in stems]
    names = files if kind == "txt" else [f"{stem}#{k}" for k, stem in enumerate(stems)]
    rows = [f"{n},{f}" for n, f in zip(names, files, strict=True)]
    text = "\n".join(files if kind == "txt" else ["utterance,path", *rows])
    path.write_text(text, encoding="utf-8")
    entries = list(find_audio([path]))
    assert [entry.name for entry in entries] == names
    assert [entry.audio for entry in entries] == [tmp_path / file for file in files]
