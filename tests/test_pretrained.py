"""The checkpoint that comes with the package: found, checked, calibrated, and announced once."""

import logging
import subprocess
import sys

import numpy as np
import pytest

from asvspoof_cm import Scorer, pretrained
from asvspoof_cm.checkpoint import load_tensors
from asvspoof_cm.models import TFPARN, TFPARNConfig


@pytest.fixture(scope="module")
def scorer():
    return Scorer.from_pretrained(pretrained.DEFAULT_NAME, device="cpu")


def test_it_is_the_paper_s_full_size_model_in_half_precision():
    path = pretrained.checkpoint_path()
    assert path.stat().st_size < 10e6
    weights = load_tensors(path)["state_dict"]
    assert {str(tensor.dtype) for tensor in weights.values()} == {"torch.float16"}
    model = pretrained.load_pretrained(pretrained.DEFAULT_NAME)
    assert isinstance(model, TFPARN)
    assert model.config == TFPARNConfig()
    assert {str(tensor.dtype) for tensor in model.parameters()} == {"torch.float32"}


def test_the_default_is_available():
    assert pretrained.DEFAULT_NAME in pretrained.available()
    with pytest.raises(ValueError, match=r"`name` must be one of tfparn-small-corpus; got 'no'"):
        pretrained.load_pretrained("no")


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
    assert "no checkpoint was named" in record.getMessage()
    assert "not for deciding about people" in record.getMessage()


def test_scores_are_calibrated(scorer):
    rng = np.random.default_rng(0)
    result = scorer.score(rng.standard_normal(16000), detail=True)
    assert result.llr == pytest.approx(float(scorer.calibration.apply(result.score)))
    assert 0 < result.probability() < 1
    assert result.decision() in (0, 1)


def test_the_card_has_its_parts():
    card = pretrained.card()
    for part in ("use", "data", "licences", "recipe", "seed", "dev", "eval", "attacks"):
        assert card[part], part
    eer = card["eval"]["eer"]
    assert eer["low"] <= eer["value"] <= eer["high"]
    assert len(card["attacks"]["eval"]) == 14


def test_command_line_takes_it(tmp_path):
    import soundfile

    path = tmp_path / "clip.wav"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(16000), 16000)
    command = [sys.executable, "-m", "asvspoof_cm", "score", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, row = done.stdout.splitlines()
    assert header == "filename\tcm-score"
    scorer = Scorer.from_pretrained(pretrained.DEFAULT_NAME, device="cpu", score="llr")
    (expected,) = scorer.score_files([path])
    assert float(row.split("\t")[1]) == pytest.approx(expected.score, abs=1e-4)
    assert done.stderr.count("no checkpoint was named") == 1
