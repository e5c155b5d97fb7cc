"""The clips in examples/audio are those that their README describes."""

import hashlib
import re
from pathlib import Path

import pytest

import predictions
from asvspoof_cm import load_audio, read_protocol

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "audio"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
CLIPS = sorted(FOLDER.glob("*.flac"))


def test_labels():
    protocol = read_protocol(FOLDER / "clips.tsv")
    assert sorted(protocol.utterance) == [path.name for path in CLIPS]
    counts = protocol.counts()
    assert counts == {"bonafide": 6, "spoof": 6}
    kinds = [line.split("\t")[2] for line in (FOLDER / "clips.tsv").read_text().splitlines()[1:]]
    assert len(set(kinds[6:])) == 6


def test_together_they_are_small():
    assert sum(path.stat().st_size for path in CLIPS) < 800_000


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.stem)
def test_clip(path):
    assert 2 * 16_000 <= len(load_audio(path)) <= 4 * 16_000
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert re.search(rf"^{digest}  {re.escape(path.name)}$", README, re.MULTILINE)
    assert f"| {path.name} |" in README


def test_predictions_of_a_folder(tmp_path, capsys):
    for path in CLIPS[:2]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    (tmp_path / "notes.txt").write_text("no audio file")
    out = tmp_path / "predictions.csv"
    assert predictions.main([str(tmp_path), "--out", str(out)]) == 1
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["filename", "label", "latency_ms"]
    assert [row[0] for row in rows[1:]] == [path.name for path in CLIPS[:2]]
    assert {row[1] for row in rows[1:]} <= {"real", "fake"}
    assert all(float(row[2]) > 0 for row in rows[1:])
    assert "broken.wav" in capsys.readouterr().err
