"""The checkpoint that comes with the package: found, checked, calibrated, and announced once."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asvspoof_cm import BONAFIDE, Scorer, checkpoint, load_pretrained, read_protocol
from asvspoof_cm.checkpoint import DEFAULT_NAME, PRETRAINED, load_tensors, pretrained_path
from asvspoof_cm.cli import main

CLIPS = Path(__file__).parents[1] / "examples" / "audio"


@pytest.fixture(scope="module")
def scorer():
    return Scorer.from_pretrained(DEFAULT_NAME, device="cpu")


@pytest.fixture
def clip():
    return CLIPS / "human_goforward.flac"


@pytest.mark.parametrize("name", PRETRAINED)
def test_what_ships(name):
    """Half precision in the file, single in use; the table says what the file is."""
    path, entry = pretrained_path(name), PRETRAINED[name]
    assert path.stat().st_size == entry["n_bytes"] < 25.3e6
    content = load_tensors(path)
    assert content["sha256"] == entry["sha256"]
    weights = [w for w in content["state_dict"].values() if w.is_floating_point()]
    assert {str(tensor.dtype) for tensor in weights} == {"torch.float16"}
    model = load_pretrained(name)
    assert {str(tensor.dtype) for tensor in model.parameters()} == {"torch.float32"}
    assert sum(p.numel() for p in model.parameters()) == entry["n_parameters"]
    card = model.meta["card"]
    assert all(card[part] for part in ("data", "licences", "recipe"))
    assert (card["use"], card["figures"]) == (entry["use"], entry["figures"])


def test_another_file_and_another_name_are_refused(tmp_path, monkeypatch):
    message = rf"`name` must be one of {DEFAULT_NAME}, owner/name on .*; got 'no'"
    with pytest.raises(ValueError, match=message):
        load_pretrained("no")
    content = bytearray(pretrained_path(DEFAULT_NAME).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged.pt").write_bytes(content)
    monkeypatch.setattr(checkpoint, "pretrained_path", lambda name: tmp_path / "damaged.pt")
    with pytest.raises(ValueError, match="is damaged"):
        load_pretrained(DEFAULT_NAME)
    model = checkpoint.load_checkpoint(pretrained_path(DEFAULT_NAME))
    checkpoint.save_checkpoint(tmp_path / "damaged.pt", model, epoch=1)
    with pytest.raises(ValueError, match="does not hold the model that was asked for: its hash is"):
        load_pretrained(DEFAULT_NAME)


def test_the_file_is_read_once(monkeypatch):
    opened = []
    read = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *a, **k: opened.append(path) or read(path, *a, **k)
    )
    load_pretrained(DEFAULT_NAME)
    assert opened == [pretrained_path(DEFAULT_NAME)]


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("from asvspoof_cm.cli import main; main([])", ("torch", "scipy", "soundfile")),
        ("from asvspoof_cm import load_pretrained as f; f()", ("sympy", "scipy.signal", "onnx")),
    ],
)
def test_starting_is_quick(code, unwanted):
    code += f"; import sys; print(sorted({{*{unwanted}}} & {{*sys.modules}}))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert child.stdout.decode().strip() == "[]"


def test_it_says_once_that_it_was_chosen(caplog, monkeypatch):
    monkeypatch.setattr(checkpoint, "_said", set())
    with caplog.at_level(logging.WARNING):
        load_pretrained(DEFAULT_NAME)
        assert not caplog.records
        load_pretrained()
        load_pretrained()
    (record,) = caplog.records
    assert "no model was named" in record.getMessage()
    assert PRETRAINED[DEFAULT_NAME]["use"] in record.getMessage()


def test_it_tells_the_example_clips_apart(scorer):
    protocol = read_protocol(CLIPS / "clips.tsv")
    scored = scorer.score_files(CLIPS / name for name in protocol.utterance.tolist())
    llr = np.array([found.result.llr for found in scored])
    is_bonafide = protocol.label == BONAFIDE
    assert llr[is_bonafide].mean() > llr[~is_bonafide].mean() + 1


def test_command_line_takes_it(clip, scorer):
    command = [sys.executable, "-m", "asvspoof_cm", "score", str(clip)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, row = done.stdout.splitlines()
    assert header == "filename\tllr\tverdict\twarnings"
    (expected,) = scorer.score_files([clip])
    assert float(row.split("\t")[1]) == pytest.approx(expected.score, abs=1e-4)
    assert done.stderr.count("no model was named") == 1


def test_the_command_lists_models(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["model", "size"]
    for (name, entry), line in zip(PRETRAINED.items(), lines[1:], strict=True):
        assert line.startswith(name)
        assert f"{entry['n_bytes'] / 1e6:.1f} MB" in line
        assert entry["sha256"][:12] in line
        assert f"corpus, eval {100 * entry['figures']['small corpus, eval']['eer']:.1f}" in line
