"""Checkpoints: they come back, they refuse, they execute nothing."""

import collections
import copy
import math
import os
import pickle
import random
import warnings
from pathlib import Path

import pytest
import torch

from asvspoof_cm.calibration import Calibration, fit_calibration
from asvspoof_cm.checkpoint import (
    FORMAT,
    average_checkpoints,
    load_checkpoint,
    load_published_aasist,
    save_checkpoint,
)
from asvspoof_cm.models import (
    AASIST,
    TFPARN,
    AASISTConfig,
    InputSettings,
    RawNet2,
    RawNet2Config,
    TFPARNConfig,
)
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
    save_checkpoint(tmp_path / "a.pt", model, seed=42, history=[{"eer": 0.1}, None])
    loaded = load_checkpoint(tmp_path / "a.pt")
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert loaded.meta == {"seed": 42, "history": [{"eer": 0.1}, None]}
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
    thirds = pytest.approx([1 / 3] * 3)
    assert mean.meta == {"epoch": 2, "averaged": ["0.pt", "1.pt", "2.pt"], "shares": thirds}
    mixed = average_checkpoints(paths[:2], [6, 4])
    for name, tensor in mixed.state_dict().items():
        expected = torch.lerp(*(model.state_dict()[name] for model in models[:2]), 0.4)
        assert torch.allclose(tensor, expected, atol=1e-7)
    assert mixed.meta["shares"] == pytest.approx([0.6, 0.4])
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
    save_checkpoint(tmp_path / "a.pt", model, seed=1)
    loaded = load_checkpoint(tmp_path / "a.pt")
    save_checkpoint(tmp_path / "b.pt", loaded, epoch=3)
    assert load_checkpoint(tmp_path / "b.pt").meta == {"seed": 1, "epoch": 3}


def test_half_precision_weights_load_into_float32(tmp_path, model):
    save_checkpoint(tmp_path / "a.pt", model)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    content["state_dict"] = {k: v.half() for k, v in content["state_dict"].items()}
    torch.save(content, tmp_path / "a.pt")
    assert next(load_checkpoint(tmp_path / "a.pt").parameters()).dtype == torch.float32


def test_a_failed_save_leaves_the_old_file(tmp_path, model, monkeypatch):
    save_checkpoint(tmp_path / "a.pt", model, seed=1)

    def fail(content, path):
        Path(path).write_bytes(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path / "a.pt", model, seed=2)
    assert load_checkpoint(tmp_path / "a.pt").meta == {"seed": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_meta_must_be_plain(tmp_path, model):
    with pytest.raises(TypeError, match=r"`meta\['path'\]` must be a plain value.*PosixPath"):
        save_checkpoint(tmp_path / "a.pt", model, path=Path("x"))
    assert not (tmp_path / "a.pt").exists()


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_is_refused_and_not_executed(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bomb.pt"
    if how == "torch":
        torch.save({"format": FORMAT, "model": Bomb()}, path)
    else:
        path.write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(ValueError, match=r"bomb\.pt is not a file of tensors and plain values"):
        load_checkpoint(path)
    assert not (tmp_path / "executed").exists()


def edited(tmp_path, model, /, **changes):
    save_checkpoint(tmp_path / "a.pt", model)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    for key, value in changes.items():
        if value is None:
            del content[key]
        else:
            content[key] = value
    torch.save(content, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_what_is_not_ours(tmp_path, model):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt is not a checkpoint of asvspoof-cm\.$"):
        load_checkpoint(tmp_path / "other.pt")
    torch.save(AASIST().state_dict(), tmp_path / "aasist.pth")
    with pytest.raises(ValueError, match="use load_published_aasist"):
        load_checkpoint(tmp_path / "aasist.pth")
    for content in (b"not a checkpoint at all", b"", b"PK\x03\x04" + bytes(100)):
        (tmp_path / "text.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"text\.pt"):
            load_checkpoint(tmp_path / "text.pt")


def test_a_truncated_file(tmp_path, model):
    save_checkpoint(tmp_path / "a.pt", model)
    content = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"a\.pt is damaged or not a PyTorch file"):
        load_checkpoint(tmp_path / "a.pt")


def test_what_does_not_fit(tmp_path, model):
    with pytest.raises(ValueError, match=r"has checkpoint format 3; this version .* reads 1 to 2"):
        load_checkpoint(edited(tmp_path, model, format=3))
    with pytest.raises(ValueError, match=r"is damaged: 1 missing \(config\)"):
        load_checkpoint(edited(tmp_path, model, config=None))
    with pytest.raises(ValueError, match=r"is damaged: 1 unexpected \(notes\)"):
        load_checkpoint(edited(tmp_path, model, notes="x"))
    with pytest.raises(ValueError, match=r"`name` must be one of .*TFPARN.*; got 'ResNext'"):
        load_checkpoint(edited(tmp_path, model, model="ResNext"))
    with pytest.raises(ValueError, match="no field n_experts; it may come from a newer version"):
        load_checkpoint(edited(tmp_path, model, config={"n_experts": 4}))


def test_weights_that_do_not_fit(tmp_path, model):
    weights = dict(model.state_dict())
    del weights["projection.bias"]
    with pytest.raises(ValueError, match=r"1 missing \(projection\.bias\)"):
        load_checkpoint(edited(tmp_path, model, state_dict=weights))
    weights["projection.bias"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"projection\.bias must have shape \(16,\); got \(3,\)"):
        load_checkpoint(edited(tmp_path, model, state_dict=weights))
    weights = {**model.state_dict(), "more": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"1 unexpected \(more\)"):
        load_checkpoint(edited(tmp_path, model, state_dict=weights))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        load_checkpoint(tmp_path / "none.pt")


def test_published_aasist_is_told_by_its_width(tmp_path):
    for config in (AASISTConfig(), AASISTConfig.light()):
        torch.save(AASIST(config).state_dict(), tmp_path / "a.pth")
        assert load_published_aasist(tmp_path / "a.pth").config == config
    torch.save({"pos_S": torch.zeros(1, 23, 7)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="AASIST with 7 channels"):
        load_published_aasist(tmp_path / "a.pth")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="does not hold the weights of a published AASIST"):
        load_published_aasist(tmp_path / "a.pth")


class Derived(TFPARN):
    pass


def test_a_model_of_ones_own_is_saved_by_its_name(tmp_path):
    save_checkpoint(tmp_path / "a.pt", Derived(SMALL[0].config))
    assert type(load_checkpoint(tmp_path / "a.pt")) is Derived
    with pytest.raises(TypeError, match=r"a model must have a name of its own; TFPARN of asvsp"):
        type("TFPARN", (TFPARN,), {"__module__": "elsewhere"})
    with pytest.raises(TypeError, match="`model` must be a Countermeasure; got Linear"):
        save_checkpoint(tmp_path / "b.pt", torch.nn.Linear(1, 2))
    wrong = Derived(SMALL[0].config)
    wrong.config = AASISTConfig()
    with pytest.raises(TypeError, match=r"must be a TFPARNConfig, .* got AASISTConfig"):
        save_checkpoint(tmp_path / "b.pt", wrong)
    assert not (tmp_path / "b.pt").exists()


def test_input_settings_travel_with_the_model(tmp_path, model):
    model = copy.deepcopy(model)
    model.input = InputSettings(sample_rate=8000, crop_s=1.5, n_crops=3, normalization="none")
    save_checkpoint(tmp_path / "a.pt", model)
    assert load_checkpoint(tmp_path / "a.pt").input == model.input
    settings = {"crop_s": 1.0, "window": "hann"}
    with pytest.raises(ValueError, match=r"input settings have unknown fields window"):
        load_checkpoint(edited(tmp_path, model, input=settings))


@pytest.mark.parametrize(
    ("meta", "crop_s"),
    [
        ({}, 4.0),
        ({"recipe": {"crop_s": 1.0}}, 1.0),
        ({"recipe": {"crop_s": 1.0}, "crop_s": 2.0}, 2.0),
    ],
)
def test_files_of_the_first_format_say_what_they_were_scored_with(tmp_path, model, meta, crop_s):
    path = edited(tmp_path, model, format=1, input=None, meta=meta)
    assert load_checkpoint(path).input == InputSettings(crop_s=crop_s, normalization="utterance")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_rate": 0}, "`sample_rate` must be a positive whole number of Hz; got 0"),
        ({"crop_s": 0.0}, "`crop_s` must be a positive number of seconds; got 0.0"),
        ({"n_crops": 0}, "`n_crops` must be a whole number of at least 1; got 0"),
        ({"normalization": "rms"}, '`normalization` must be "crop", "utterance" or "none"; got'),
    ],
)
def test_input_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        InputSettings(**change)


@pytest.mark.parametrize("value", [{Path("x"): 1}, collections.Counter("a"), Path("x")])
def test_containers_of_other_kinds_can_not_be_saved(tmp_path, model, value):
    with pytest.raises(TypeError, match="must be a plain value"):
        save_checkpoint(tmp_path / "a.pt", model, extra=value)


def test_damage_is_a_value_error_or_harmless(tmp_path, model):
    save_checkpoint(tmp_path / "a.pt", model)
    content = (tmp_path / "a.pt").read_bytes()
    rng = random.Random(0)
    n_refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[rng.randrange(3000)] = rng.randrange(256)
        (tmp_path / "b.pt").write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load_checkpoint(tmp_path / "b.pt")
            except ValueError:
                n_refused += 1
    assert n_refused > 30


@pytest.mark.parametrize("number", [0, -1, True, "1"])
def test_formats_that_never_were(tmp_path, model, number):
    with pytest.raises(ValueError, match="has checkpoint format"):
        load_checkpoint(edited(tmp_path, model, format=number))


def test_weights_that_are_no_mapping(tmp_path, model):
    with pytest.raises(ValueError, match="its weights are a list"):
        load_checkpoint(edited(tmp_path, model, state_dict=[1]))


@pytest.mark.parametrize("method", ["affine", "isotonic"])
def test_a_calibration_travels_with_the_model(tmp_path, model, method):
    scores, labels = [2.0, -0.5, 1.0, -2.0], [1, 1, 0, 0]
    fitted_for = Scorer(model, device="cpu").conditions()
    calibration = fit_calibration(scores, labels, method=method, fitted_for=fitted_for)
    save_checkpoint(tmp_path / "a.pt", model, calibration=calibration.as_dict())
    stored = load_checkpoint(tmp_path / "a.pt").meta["calibration"]
    assert Calibration.from_dict(stored) == calibration
    scorer = Scorer.from_checkpoint(tmp_path / "a.pt", score="llr", device="cpu")
    assert scorer.calibration == calibration
