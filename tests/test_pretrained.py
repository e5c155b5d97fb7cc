"""The checkpoint that comes with the package: found, checked, calibrated, and announced once."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asvspoof_cm import BONAFIDE, Scorer, pretrained, read_protocol
from asvspoof_cm.calibration import decide
from asvspoof_cm.checkpoint import load_tensors

CLIPS = Path(__file__).parents[1] / "examples" / "audio"


@pytest.fixture(scope="module")
def scorer():
    return Scorer.from_pretrained(pretrained.DEFAULT_NAME, device="cpu")


@pytest.mark.parametrize("name", pretrained.available())
def test_models_are_stored_in_half_precision_and_used_in_single(name):
    path = pretrained.checkpoint_path(name)
    assert path.stat().st_size < 25.1e6
    weights = [w for w in load_tensors(path)["state_dict"].values() if w.is_floating_point()]
    assert {str(tensor.dtype) for tensor in weights} == {"torch.float16"}
    model = pretrained.load_pretrained(name)
    assert {str(tensor.dtype) for tensor in model.parameters()} == {"torch.float32"}


def test_the_default_is_available():
    assert pretrained.available()[0] == pretrained.DEFAULT_NAME
    names = ", ".join(pretrained.available())
    with pytest.raises(ValueError, match=rf"`name` must be one of {names}; got 'no'"):
        pretrained.load_pretrained("no")


def test_a_name_of_before_says_what_replaced_it(monkeypatch):
    monkeypatch.setitem(pretrained._INDEX["replaced"], "older", pretrained.DEFAULT_NAME)
    said = f"`name`: 'older' was replaced by '{pretrained.DEFAULT_NAME}' in this version"
    with pytest.raises(ValueError, match=said):
        pretrained.load_pretrained("older")


def test_the_list_holds_what_the_files_are():
    lines = pretrained.overview().splitlines()
    assert lines[0].split()[:2] == ["model", "size"]
    assert len(lines) == 1 + len(pretrained.available())
    for name, line in zip(pretrained.available(), lines[1:], strict=True):
        size = pretrained.checkpoint_path(name).stat().st_size
        assert line.startswith(name)
        assert f"{size / 1e6:.1f} MB" in line
        assert (
            f"corpus eval {100 * pretrained._entry(name)['figures']['corpus eval']['eer']:.1f}"
            in line
        )


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "damaged.pt"
    content = bytearray(pretrained.checkpoint_path().read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    monkeypatch.setattr(pretrained, "checkpoint_path", lambda name: damaged)
    with pytest.raises(ValueError, match="is not the file that was shipped: its SHA-256 is"):
        pretrained.load_pretrained(pretrained.DEFAULT_NAME)


def test_it_says_once_that_it_was_chosen(caplog, monkeypatch):
    monkeypatch.setattr(pretrained, "_said", False)
    with caplog.at_level(logging.WARNING):
        pretrained.load_pretrained(pretrained.DEFAULT_NAME)
        assert not caplog.records
        pretrained.load_pretrained()
        pretrained.load_pretrained()
    (record,) = caplog.records
    assert "no model was named" in record.getMessage()
    assert pretrained.card()["use"] in record.getMessage()


def test_scores_are_calibrated(scorer):
    rng = np.random.default_rng(0)
    result = scorer.score(rng.standard_normal(16000), detail=True)
    assert (result.unit, result.score) == ("llr", result.llr)
    assert 0 < result.probability() < 1
    assert result.decision() == decide(result.llr)


def test_it_tells_the_example_clips_apart(scorer):
    protocol = read_protocol(CLIPS / "clips.tsv")
    scored = scorer.score_files(CLIPS / name for name in protocol.utterance.tolist())
    llr = np.array([found.result.llr for found in scored])
    is_bonafide = protocol.label == BONAFIDE
    assert llr[is_bonafide].mean() > llr[~is_bonafide].mean() + 1


def test_the_card_has_its_parts():
    card = pretrained.card()
    for part in ("use", "data", "licences", "recipe"):
        assert card[part], part


def test_command_line_takes_it(tmp_path):
    import soundfile

    path = tmp_path / "clip.wav"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    command = [sys.executable, "-m", "asvspoof_cm", "score", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, row = done.stdout.splitlines()
    assert header == "filename\tllr\tdecision\twarnings"
    scorer = Scorer.from_pretrained(pretrained.DEFAULT_NAME, device="cpu")
    (expected,) = scorer.score_files([path])
    assert float(row.split("\t")[1]) == pytest.approx(expected.score, abs=1e-4)
    assert done.stderr.count("no model was named") == 1


def test_commands_list_models_and_take_them_by_name(tmp_path, capsys):
    import soundfile

    from asvspoof_cm.cli import main

    assert main(["models"]) == 0
    assert capsys.readouterr().out == pretrained.overview() + "\n"
    assert main(["models", pretrained.DEFAULT_NAME]) == 0
    assert json.loads(capsys.readouterr().out)["use"] == pretrained.card()["use"]
    assert main(["models", "no"]) == 2
    assert "`name` must be one of" in capsys.readouterr().err
    path = tmp_path / "clip.wav"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    assert main(["score", str(path), "--model", pretrained.DEFAULT_NAME]) == 0
    assert capsys.readouterr().out.startswith("filename\tllr\tdecision\twarnings\n")
    with pytest.raises(SystemExit):
        main(["score", str(path), "--model", "x", "--checkpoint", "y.pt"])
    assert "not allowed with argument --model" in capsys.readouterr().err
