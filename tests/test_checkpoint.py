"""Checkpoints: they come back, they refuse, they execute nothing."""

import collections
import contextlib
import copy
import math
import os
import pickle
import random
import re
import time
import warnings
import zipfile
from pathlib import Path

import pytest
import torch

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration, fit_calibration
from asvspoof_cm.checkpoint import (
    FORMAT,
    average_checkpoints,
    content_hash,
    load_checkpoint,
    load_published_aasist,
    save_checkpoint,
)
from asvspoof_cm.frontends import LFCC, LogMel
from asvspoof_cm.models import (
    AASIST,
    TFPARN,
    AASISTConfig,
    RawNet2,
    RawNet2Config,
    TFPARNConfig,
    build_model,
)
from asvspoof_cm.models.base import model_names
from asvspoof_cm.scorer import Scorer

SMALL = [
    TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16, pooling="mean")),
    AASIST(AASISTConfig.light()),
    RawNet2(RawNet2Config(d_gru=8, d_embedding=8, pooling="max")),
]


@pytest.fixture
def model():
    return SMALL[0]


@pytest.mark.parametrize("model", SMALL, ids=lambda model: type(model).__name__)
def test_a_model_comes_back(tmp_path, model):
    meta = {"epoch": 3, "notes": {"seed": 42, "history": [{"eer": 0.1}, None]}}
    save_checkpoint(tmp_path / "a.pt", model, **meta)
    loaded = load_checkpoint(tmp_path / "a.pt")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert loaded.meta == meta
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    waveform = torch.randn(1, 8000)
    with torch.no_grad():
        model.eval()
        assert torch.equal(loaded(waveform), model(waveform))


def test_the_mean_of_checkpoints(tmp_path):
    config = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
    models = [TFPARN(config) for _ in range(3)]
    paths = [tmp_path / f"{k}.pt" for k in range(3)]
    for k, (path, model) in enumerate(zip(paths, models, strict=True)):
        save_checkpoint(path, model, epoch=k)
    mean = average_checkpoints(paths)
    for name, tensor in mean.state_dict().items():
        expected = sum(model.state_dict()[name] for model in models) / 3
        assert torch.allclose(tensor, expected, atol=1e-7)
    names = [f"{tmp_path.name}/{k}.pt" for k in range(3)]
    assert mean.meta == {"epoch": 2, "averaged": pytest.approx(dict.fromkeys(names, 1 / 3))}
    mixed = average_checkpoints(paths[:2], [6, 4])
    for name, tensor in mixed.state_dict().items():
        expected = torch.lerp(*(model.state_dict()[name] for model in models[:2]), 0.4)
        assert torch.allclose(tensor, expected, atol=1e-7)
    assert [*mixed.meta["averaged"].values()] == pytest.approx([0.6, 0.4])
    for shares in ([1], [1, 0], [1, math.inf], [1, math.nan]):
        with pytest.raises(
            ValueError, match="`shares` must be a positive number for each of the 2"
        ):
            average_checkpoints(paths[:2], shares)
    save_checkpoint(paths[0], SMALL[1])
    with pytest.raises(ValueError, match=r"`paths` must hold one model .*0.pt has a AASIST with"):
        average_checkpoints(paths)
    with pytest.raises(ValueError, match="`paths` must name two checkpoints or more; got 1"):
        average_checkpoints(paths[:1])


def test_meta_travels_with_the_model(tmp_path, model):
    save_checkpoint(tmp_path / "a.pt", model, dev={"eer": 0.1}, epoch=2)
    loaded = load_checkpoint(tmp_path / "a.pt")
    save_checkpoint(tmp_path / "b.pt", loaded, epoch=3)
    assert load_checkpoint(tmp_path / "b.pt").meta == {"dev": {"eer": 0.1}, "epoch": 3}


def test_names_that_mean_nothing_are_refused(tmp_path, model):
    path = tmp_path / "a.pt"
    for unknown in ("meta", "calibrations", "seed"):
        with pytest.raises(
            TypeError, match=rf"takes averaged, calibration.*; got {unknown}\. Pass"
        ):
            save_checkpoint(path, model, **{unknown: {"calibration": {"scale": 2.0}}})
    for notes in ({"calibration": {}}, {"meta": {}}, "text"):
        with pytest.raises(ValueError, match="`notes` must be a dict without the names"):
            save_checkpoint(path, model, notes=notes)
    with pytest.raises(ValueError, match="cubic"):
        save_checkpoint(path, model, calibration={"kind": "cubic"})
    assert not path.exists()


def test_a_model_that_its_configuration_does_not_build_is_not_saved(tmp_path):
    """It came back as another model: nothing in the file says what was replaced."""
    bands = SMALL[0].config.n_mels
    for name, part, said in (
        ("log_mel", LFCC(n_bands=bands), r"is LFCC\(\), not LogMel\(\)"),
        ("log_mel.hop_length", LogMel(n_mels=bands, hop_length=80), "is 80, not 160"),
        ("log_mel.filterbank", LogMel(n_mels=bands, f_min=300.0), "has other values"),
        ("extra", torch.nn.Linear(2, 2), "is Linear"),
        ("projection", torch.nn.Linear(bands, 16, bias=False), "is Linear.*bias=False"),
        ("norm", torch.nn.Identity(), r"is Identity\(\)"),
