"""Checkpoints: they come back, they refuse, they execute nothing."""

import collections
import contextlib
import copy
import os
import pickle
import re
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration, fit_calibration
from asvspoof_cm.checkpoint import (
    DEFAULT_NAME,
    FORMAT,
    PRETRAINED,
    average_checkpoints,
    content_hash,
    load_checkpoint,
    load_pretrained,
    load_published,
    load_tensors,
    save_checkpoint,
    stored_hash,
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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.pt"


def edited(path, model, /, **changes):
    """Save a model, change what its file holds, and correct the hash, which tells damage."""
    save_checkpoint(path, model)
    content = torch.load(path, weights_only=True)
    content |= {key: value for key, value in changes.items() if value is not None}
    content = {key: value for key, value in content.items() if changes.get(key, 0) is not None}
    with contextlib.suppress(TypeError, LookupError):
        content["sha256"] = stored_hash(content)
    torch.save(content, path)
    return path


@pytest.mark.parametrize("model", SMALL, ids=lambda model: type(model).__name__)
def test_a_model_comes_back(path, model):
    meta = {"epoch": 3, "notes": {"seed": 42, "history": [{"eer": 0.1}, None]}}
    save_checkpoint(path, model, **meta)
    loaded = load_checkpoint(path)
    assert (type(loaded), loaded.config, loaded.meta) == (type(model), model.config, meta)
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    waveform = torch.randn(1, 8000)
    with torch.no_grad():
        model.eval()
        assert torch.equal(loaded(waveform), model(waveform))
    save_checkpoint(path, loaded, epoch=4)
    assert load_checkpoint(path).meta == {**meta, "epoch": 4}


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
    names = [f"{tmp_path.name}/{k}.pt" for k in (0, 1, 2, 2)]
    assert mean.meta == {"epoch": 2, "averaged": names[:3]}
    twice = average_checkpoints([*paths, paths[2]])
    assert twice.meta["averaged"] == names
    for name, tensor in twice.state_dict().items():
        expected = torch.lerp(mean.state_dict()[name], models[2].state_dict()[name], 0.25)
        assert torch.allclose(tensor, expected, atol=1e-7)
    for k, path in enumerate(paths[:2]):
        model = copy.deepcopy(SMALL[2])
        model.first_bn.num_batches_tracked.fill_(3 + 2 * k)
        model.first_bn.running_var.fill_(1 + 2 * k)
        save_checkpoint(path, model)
    mean = average_checkpoints(paths[:2])
    assert mean.first_bn.num_batches_tracked == 5
    assert mean.first_bn.running_var.tolist() == [2.0] * len(mean.first_bn.running_var)
    with pytest.raises(ValueError, match=r"`paths` must hold one model .*0.pt has a RawNet2 with"):
        average_checkpoints(paths)
    with pytest.raises(ValueError, match="`paths` must name two checkpoints or more; got 1"):
        average_checkpoints(paths[:1])


def test_what_may_be_said_of_a_model(path, model):
    for unknown in ("meta", "calibrations", "seed"):
        message = rf"takes averaged, calibration.*; got {unknown}\. Pass"
        with pytest.raises(TypeError, match=message):
            save_checkpoint(path, model, **{unknown: {"calibration": {"scale": 2.0}}})
    for notes in ({"calibration": {}}, {"meta": {}}, "text"):
        with pytest.raises(ValueError, match="`notes` must be a dict without the names"):
            save_checkpoint(path, model, notes=notes)
    with pytest.raises(ValueError, match="isotonic calibrations are gone"):
        save_checkpoint(path, model, calibration={"kind": "cubic"})
    for value in ({Path("x"): 1}, collections.Counter("a"), Path("x")):
        with pytest.raises(TypeError, match=r"`?meta\['notes'\]\['extra'\]` must be a plain value"):
            save_checkpoint(path, model, notes={"extra": value})
    assert not path.exists()


def test_a_model_that_its_configuration_does_not_build_is_not_saved(path):
    """It came back as another model: nothing in the file says what was replaced."""
    bands = SMALL[0].config.n_mels
    for name, part, said in (
        ("log_mel", LFCC(n_bands=bands), r"is LFCC\(\), not LogMel\(\)"),
        ("log_mel.hop_length", LogMel(n_mels=bands, hop_length=80, floor=1e-10), "is 80, not 160"),
        ("log_mel.filterbank", LogMel(n_mels=bands, f_min=300.0, floor=1e-10), "has other values"),
        ("extra", torch.nn.Linear(2, 2), "is Linear"),
        ("projection", torch.nn.Linear(bands, 16, bias=False), "is Linear.*bias=False"),
        ("norm", torch.nn.Identity(), r"is Identity\(\)"),
    ):
        model = TFPARN(SMALL[0].config)
        setattr(model, name.partition(".")[0], part)
        with pytest.raises(ValueError, match=f"{name} of this TFPARN {said}.* Derive a subclass"):
            save_checkpoint(path, model)
    model = TFPARN(SMALL[0].config)
    model.log_mel.window *= 0.5
    with pytest.raises(ValueError, match=r"log_mel\.window of this TFPARN has other values"):
        save_checkpoint(path, model)
    assert not path.exists()
    model = TFPARN(SMALL[0].config).half()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.7
    save_checkpoint(path, model)  # rates of dropout and precision are no structure


def test_batch_norms_that_several_gpus_share_are_saved_as_those_of_one(path):
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(AASIST(AASISTConfig.light()))
    assert any(isinstance(m, torch.nn.SyncBatchNorm) for m in model.modules())
    save_checkpoint(path, model)
    loaded = load_checkpoint(path).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("name", model_names())
def test_saving_and_loading_leave_the_random_state_alone(path, name):
    model = build_model(name)
    before = torch.get_rng_state()
    save_checkpoint(path, model)
    loaded = load_checkpoint(path)
    assert torch.equal(torch.get_rng_state(), before)
    for key, tensor in {**dict(model.named_buffers()), **model.state_dict()}.items():
        assert torch.equal({**dict(loaded.named_buffers()), **loaded.state_dict()}[key], tensor)


def test_one_model_has_one_hash(tmp_path, path):
    """Saved and loaded, in half precision, with a configuration older than a field of it."""
    shipped = load_pretrained(DEFAULT_NAME)
    assert content_hash(shipped) == PRETRAINED[DEFAULT_NAME]["sha256"]
    model = copy.deepcopy(SMALL[0]).half()
    model.meta = {"notes": {"pair": (1, 2)}}
    older = {k: v for k, v in asdict(model.config).items() if k != "top_k_share"}
    for changes in ({}, {"config": older}):
        loaded = load_checkpoint(edited(path, model, **changes))
        stored = load_tensors(path)["sha256"]
        assert content_hash(loaded) == stored
        save_checkpoint(tmp_path / "b.pt", loaded)
        assert load_tensors(tmp_path / "b.pt")["sha256"] == stored
        assert next(loaded.parameters()).dtype == torch.float32
    with torch.no_grad():
        loaded.norm.weight[0] += 1e-6
    assert content_hash(loaded) != stored
    loaded.config = replace(loaded.config, dropout=0.0)
    save_checkpoint(tmp_path / "b.pt", loaded)
    assert load_checkpoint(tmp_path / "b.pt").config == loaded.config


def test_a_failed_save_leaves_the_old_file(path, model, monkeypatch):
    save_checkpoint(path, model, epoch=1)

    def fail(content, file):
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(path, model, epoch=2)
    assert load_checkpoint(path).meta == {"epoch": 1}
    assert [*path.parent.iterdir()] == [path]


# What is refused


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


def test_what_is_not_ours(path, model):
    torch.save({"weight": torch.zeros(3)}, path)
    with pytest.raises(
        ValueError, match=r"a\.pt is not a checkpoint of asvspoof-cm\. .* load_published"
    ):
        load_checkpoint(path)
    save_checkpoint(path, model)
    half = path.read_bytes()[: path.stat().st_size // 2]
    for content in (b"not a checkpoint at all", b"", b"PK\x03\x04" + bytes(100), half):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.pt is (damaged|not)"):
            load_checkpoint(path)


WEIGHTS = SMALL[0].state_dict()
CALIBRATIONS = [5, {"kind": "cubic"}, {"scale": "x"}, {"knots": 1}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, r"has checkpoint format 3; this version .* reads 2\."),
        *(({"format": number}, "has checkpoint format") for number in (0, 1, True, "2")),
        ({"config": None}, "is damaged: config is missing or unexpected"),
        ({"notes": "x"}, "is damaged: notes is missing or unexpected"),
        ({"model": "ResNext"}, r"`name` must be one of .*TFPARN.*; got 'ResNext'"),
        ({"config": {"n_experts": 4}}, "no field n_experts; it may come from a newer version"),
        ({"state_dict": [1]}, "its weights are a list"),
        (
            {"state_dict": {k: v for k, v in WEIGHTS.items() if k != "projection.bias"}},
            r"does not fit TFPARN: Missing key\(s\) in state_dict: \"projection\.bias\"",
        ),
        (
            {"state_dict": {**WEIGHTS, "projection.bias": torch.zeros(3)}},
            r"does not fit TFPARN: size mismatch for projection\.bias: .* torch\.Size\(\[3\]\)",
        ),
        ({"state_dict": {**WEIGHTS, "more": torch.zeros(1)}}, r"Unexpected key\(s\) .*more"),
        *(({name: 5}, "can't be rebuilt") for name in ("meta", "config", "input")),
        ({"meta": {"epoch": torch.zeros(2)}}, "is damaged: .* must be a plain value .* got Tensor"),
        ({"input": {"crop_s": 1.0, "window": "hann"}}, "input settings have unknown fields window"),
        ({"input": {"crop_s": "long"}}, "can't be rebuilt"),
        ({"input": {"crop_s": 1e12}}, "`crop_s` must be between 6.25e-05 and 3600"),
        ({"input": {"sample_rate": True}}, "`sample_rate` must be a whole number"),
        *(({"meta": {"calibration": stored}}, "can't be rebuilt") for stored in CALIBRATIONS),
    ],
)
def test_what_is_refused(path, model, changes, message):
    with pytest.raises(ValueError, match=message) as told:
        load_checkpoint(edited(path, model, **changes))
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("stored", CALIBRATIONS)
def test_calibrations_that_are_none(model, stored):
    model = copy.deepcopy(model)
    model.meta = {"calibration": stored}
    with pytest.raises(ValueError, match=r'`model.meta\["calibration"\]` is not a calibration'):
        Scorer(model, device="cpu")


def test_a_compressed_checkpoint_is_refused_before_it_takes_memory(tmp_path, path, model):
    save_checkpoint(path, model)
    with (
        zipfile.ZipFile(path) as source,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            content = source.read(entry.filename)
            target.writestr(entry.filename, content + bytes(10**6 * ("data/" in entry.filename)))
    with pytest.raises(ValueError, match=r"b\.pt is damaged .* compressed, as torch.save"):
        load_checkpoint(tmp_path / "b.pt")


@pytest.mark.parametrize("name", model_names())
def test_a_configuration_larger_than_the_weights_takes_no_memory(path, name):
    """Every whole number of every configuration, a billion times too large."""
    save_checkpoint(path, build_model(name))
    content = torch.load(path, weights_only=True)
    numbers = [k for k, value in content["config"].items() if type(value) is int]
    for field in numbers:
        changed = {**content, "config": {**content["config"], field: 10**9}}
        torch.save({**changed, "sha256": stored_hash(changed)}, path)
        start, told = time.process_time(), ""
        try:
            load_checkpoint(path)  # as with a hop of a billion samples
        except ValueError as error:
            told = str(error)
        assert re.match(rf"$|{path} (can't be rebuilt|does not fit)", told), field
        assert "alloc" not in told, field
        assert time.process_time() - start < 5, field


def test_weights_larger_than_the_file_are_refused(path, model):
    save_checkpoint(path, model)
    content, shared = torch.load(path, weights_only=True), torch.zeros(10**6)
    for more in (
        {"big": torch.zeros(1).expand(10**12)},
        {f"big{k}": shared for k in range(10**4)},
    ):
        torch.save({**content, "state_dict": {**content["state_dict"], **more}}, path)
        start = time.process_time()
        with pytest.raises(ValueError, match=r"is damaged: its weight 'big.*' is no whole tensor"):
            load_checkpoint(path)
        assert time.process_time() - start < 5


def test_damage_that_leaves_the_file_readable_is_found(path):
    save_checkpoint(path, TFPARN(), calibration={"scale": 2.0, "offset": 0.5})
    content = torch.load(path, weights_only=True)
    for part, name, change in (
        (content["state_dict"]["norm.weight"], 3, 1e-6),
        (content["meta"]["calibration"], "offset", 0.1),
    ):
        part[name] += change
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"is damaged: its content is not what was written\."):
            load_checkpoint(path)
        part[name] -= change


# What travels with a model, and what others published


def test_published_aasist_is_told_by_its_width(path):
    for config in (AASISTConfig(), AASISTConfig.light()):
        torch.save(AASIST(config).state_dict(), path)
        assert load_published(path).config == config
    torch.save({"pos_S": torch.zeros(1, 23, 7)}, path)
    with pytest.raises(ValueError, match="AASIST with 7 channels"):
        load_published(path)
    torch.save({"weight": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="does not hold the weights of a published AASIST or LCNN"):
        load_published(path)


@pytest.mark.parametrize("n_samples", [20_000, 64_600, 100_000])
def test_published_aasist_hears_the_first_samples_as_they_are(path, n_samples):
    """The published evaluation: no normalisation, 64,600 samples from the start, or repeated."""
    torch.save(AASIST(AASISTConfig.light()).state_dict(), path)
    model = load_published(path)
    waveform = 0.01 * torch.randn(n_samples, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = model(waveform.repeat(-(-64_600 // n_samples))[None, :64_600]).double()[0]
    score = Scorer(model, device="cpu").score(waveform)
    assert score == pytest.approx((logits[1] - logits[0]).item(), abs=1e-6)


class Derived(TFPARN):
    pass


def test_a_model_of_ones_own_is_saved_by_its_name(tmp_path, path):
    save_checkpoint(path, Derived(SMALL[0].config))
    assert type(load_checkpoint(path)) is Derived
    with pytest.raises(TypeError, match=r"a model must have a name of its own; TFPARN of asvsp"):
        type("TFPARN", (TFPARN,), {"__module__": "elsewhere"})
    with pytest.raises(TypeError, match="`model` must be a Countermeasure; got Linear"):
        save_checkpoint(tmp_path / "b.pt", torch.nn.Linear(1, 2))
    wrong = Derived(SMALL[0].config)
    wrong.config = AASISTConfig()
    with pytest.raises(TypeError, match=r"must be a TFPARNConfig, .* got AASISTConfig"):
        save_checkpoint(tmp_path / "b.pt", wrong)
    assert not (tmp_path / "b.pt").exists()


def test_input_settings_and_calibration_travel_with_the_model(path, model):
    model = copy.deepcopy(model)
    model.input = InputSettings(sample_rate=8000, crop_s=1.5, n_crops=3, normalization="none")
    fitted_for = Scorer(model, device="cpu").conditions()
    scores, labels = [2.0, -0.5, 1.0, -2.0], [1, 1, 0, 0]
    calibration = fit_calibration(scores, labels, fitted_for=fitted_for)
    save_checkpoint(path, model, calibration=calibration.as_dict())
    loaded = load_checkpoint(path)
    assert loaded.input == model.input
    assert Calibration.from_dict(loaded.meta["calibration"]) == calibration
    assert Scorer.from_checkpoint(path, device="cpu").calibration == calibration


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_rate": 0}, "`sample_rate` must be a whole number of Hz from 1,000 to 768,000; "),
        *(
            ({"crop_s": value}, "`crop_s` must be between 6.25e-05 and 3600; ")
            for value in (0.0, 1e9)
        ),
        ({"n_crops": 0}, "`n_crops` must be a whole number of at least 1; got 0"),
        ({"n_crops": 10**9}, "`n_crops` must be between 1 and 1000; got 1000000000"),
        ({"normalization": "rms"}, "`normalization` must be one of 'crop', 'utterance', 'none'; "),
        ({"one_crop": "end"}, "`one_crop` must be one of 'center', 'start'; got 'end'"),
    ],
)
def test_input_settings_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        InputSettings(**change)
