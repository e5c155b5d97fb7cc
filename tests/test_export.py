"""ONNX: the exported file says what the model says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import asvspoof_cm
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.checkpoint import DEFAULT_NAME
from asvspoof_cm.models import (
    AASIST,
    LCNN,
    TFPARN,
    AASISTConfig,
    Encoder,
    EncoderConfig,
    RawNet2,
    RawNet2Config,
    ResNet,
    ResNetConfig,
    TFPARNConfig,
)
from asvspoof_cm.scorer import Scorer

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from asvspoof_cm.export import export_onnx, load_onnx

SMALL = TFPARNConfig(d_model=64, n_layers=2, n_heads=2, d_feedforward=64, d_classifier=32)
MAKE = {
    "TFPARN": lambda: TFPARN(SMALL),
    "AASIST": lambda: AASIST(AASISTConfig.light()),
    "RawNet2": lambda: RawNet2(RawNet2Config(d_gru=32, n_gru_layers=2, d_embedding=16)),
    "Encoder": lambda: Encoder(
        EncoderConfig(encoder=("distillmos", "whisper-tiny"), n_layers=(0, 1), d_projection=8)
    ),
    "ResNet": lambda: ResNet(
        ResNetConfig(width=4, n_bands=20, attention="channel", pooling="attentive")
    ),
    "LCNN": LCNN,
}


@pytest.fixture(scope="module", params=MAKE)
def pair(request, tmp_path_factory):
    torch.manual_seed(5)
    model = MAKE[request.param]().train()
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export_onnx(model, path)
    assert model.training
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    return request.param, model.eval(), path


def noise(batch, n_samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(batch, n_samples, generator=generator)


def check(model, exported, waveform):
    with torch.inference_mode():
        expected = model(waveform)
    np.testing.assert_allclose(exported(waveform.numpy()), expected, atol=1e-4)


def test_logits_equal_torch(pair):
    _, model, path = pair
    exported = load_onnx(path, n_threads=1)
    lengths = [4800, 16000, 63999, 64000, 100001] if model.any_length else [64000]
    for n_samples in lengths:
        for batch in (1, 3):
            waveform = noise(batch, n_samples, seed=batch)
            waveform[-1] *= batch == 1  # the last of several is silent
            check(model, exported, waveform)


def test_the_file_scores_like_the_model(pair):
    """Through load_onnx, and in the guide's lines of plain onnxruntime."""
    _, model, path = pair
    waveforms = [noise(1, n)[0] for n in (9000, 64000, 100000)]
    scorer = Scorer(load_onnx(path))
    assert scorer.input == model.input
    expected = Scorer(model, device="cpu").score_batch(waveforms)
    np.testing.assert_allclose(scorer.score_batch(waveforms), expected, atol=1e-4)
    assert scorer.settings()["sha256"] == load_onnx(path).sha256
    page = (Path(__file__).parents[1] / "docs" / "deployment.md").read_text()
    (code,) = re.findall(r"```py\n(import json.*?)```", page, re.DOTALL)
    for waveform, score in zip(waveforms, expected, strict=True):
        names = {"path": path, "waveform": waveform.numpy()}
        exec(code, names)
        assert names["score"] == pytest.approx(score, abs=1e-4)


def test_a_damaged_file_is_refused(tmp_path):
    model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
    model.input = InputSettings(crop_s=1.0, n_crops=2, normalization="none")
    model.meta = {"calibration": Calibration(scale=2.0, offset=1.0).as_dict()}
    path = tmp_path / "model.onnx"
    export_onnx(model, path)
    loaded = load_onnx(path)
    assert (loaded.input, loaded.meta) == (model.input, model.meta)
    with pytest.raises(ValueError, match=r"model\.onnx can't be run on waveforms \(3,\) \("):
        loaded(np.zeros(3, np.float32))
    waveform = noise(1, 40000)[0]
    expected = Scorer(model, device="cpu").score_file(waveform)
    assert expected.unit == "llr"
    assert Scorer(loaded).score(waveform) == pytest.approx(expected.score, abs=1e-4)
    content = bytearray(path.read_bytes())
    described = content.index(b"asvspoof-cm")  # input, calibration and hash, digit by digit
    for place in (len(content) // 3, *range(described, len(content))):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.onnx is damaged"):
            load_onnx(path)


@pytest.mark.parametrize("family", ["wav2vec2", "hubert", "wavlm"])
def test_transformers_encoders(family, tmp_path, architecture):
    pytest.importorskip("transformers")
    torch.manual_seed(4)
    values = {**architecture, "model_type": family}
    config = EncoderConfig(encoder="x", n_layers=1, architecture={"x": values}, d_projection=8)
    model = Encoder(config).eval()
    export_onnx(model, tmp_path / "model.onnx")
    exported = load_onnx(tmp_path / "model.onnx", n_threads=1)
    for n_samples in (16000, 50001):
        check(model, exported, noise(2, n_samples))


def test_files_that_are_no_models(tmp_path, pair, monkeypatch):
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ValueError, match=r"text.onnx is damaged, or export_onnx did not write it"):
        load_onnx(tmp_path / "text.onnx")
    with pytest.raises(FileNotFoundError):
        load_onnx(tmp_path / "missing.onnx")
    import onnx

    other = onnx.load(pair[2])
    del other.metadata_props[:]
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(ValueError, match="did not write it: the hash in its metadata is not its"):
        load_onnx(tmp_path / "other.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="this needs onnxruntime, an extra: pip install"):
        load_onnx(tmp_path / "other.onnx")


SCORING = """
import sys, warnings
sys.modules["torch"] = None  # importing it raises ImportError
import numpy as np
from asvspoof_cm.cli import main
from asvspoof_cm.scorer import Scorer

scorer = Scorer.from_onnx(sys.argv[1])
samples = 0.1 * np.random.default_rng(0).standard_normal(40000)
print(scorer.score(samples), scorer.score_file(sys.argv[2]).score, len(scorer.timeline(samples)))
assert scorer.segments(samples)
import asvspoof_cm.serve.app  # and the service answers without
sys.exit(main(["score", "--model", sys.argv[1], sys.argv[2]]) + (main(["models"]) > 0))
"""


def test_scoring_needs_no_torch(tmp_path):
    """In Python and as a command, where importing torch raises."""
    model = TFPARN(SMALL)
    model.meta = {"calibration": Calibration(scale=2.0).as_dict()}
    export_onnx(model, tmp_path / "m.onnx")
    samples = 0.1 * np.random.default_rng(0).standard_normal(40000)
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    command = [sys.executable, "-c", SCORING, tmp_path / "m.onnx", tmp_path / "a.wav"]
    environment = {**os.environ, "PYTHONPATH": str(Path(asvspoof_cm.__file__).parents[1])}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (child.returncode, child.stderr) == (0, "")
    first, header, row, *models = child.stdout.splitlines()
    assert models[1].startswith(DEFAULT_NAME)
    score = Scorer(model, device="cpu").score(samples)
    *scores, n_windows = first.split()
    assert [float(each) for each in scores] == pytest.approx([score, score], abs=1e-4)
    assert int(n_windows) == 1
    assert header == "filename\tllr\tverdict\twarnings"
    assert float(row.split("\t")[1]) == pytest.approx(score, abs=1e-4)
