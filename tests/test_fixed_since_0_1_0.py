"""What version 0.1.0 wrote down wrongly, or lost: each test fails with it."""

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm import _util
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.checkpoint import save_checkpoint
from asvspoof_cm.data import Protocol, SpoofDataset, read_protocol, write_miniature
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import TFPARN, RawNet2, RawNet2Config, TFPARNConfig
from asvspoof_cm.scorer import Scorer

TINY = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
SMALL_RAWNET2 = RawNet2Config(n_channels=8, d_gru=8, n_gru_layers=1, d_embedding=8)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_miniature(tmp_path_factory.mktemp("miniature"), n_train=8, n_dev=8)


def tiny(seed=0):
    torch.manual_seed(seed)
    return TFPARN(TINY)


def test_the_length_of_training_crops_reaches_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    from asvspoof_cm.export import export_onnx, load_onnx

    model = tiny()
    model.input = InputSettings(crop_s=0.5)
    export_onnx(model, tmp_path / "model.onnx")
    assert load_onnx(tmp_path / "model.onnx").input == model.input
    waveform = 0.1 * np.random.default_rng(0).standard_normal(40000)
    scorer = Scorer(load_onnx(tmp_path / "model.onnx"))
    assert scorer.input.crop_s == 0.5
    assert np.isfinite(scorer.score(waveform))


def test_a_smaller_protocol_does_not_replace_the_scores_of_a_larger_one(tmp_path, paths):
    scorer = Scorer(tiny(), device="cpu", n_crops=1)
    dev, output = read_protocol(paths.dev_protocol), tmp_path / "dev.tsv"
    scorer.score_protocol(dev, paths.audio_dir, output)
    with pytest.raises(ValueError, match="was begun with another n_names, another names"):
        scorer.score_protocol(dev.select([0, 1]), paths.audio_dir, output)
    assert len(read_scores(output).filename) == 8


def test_two_writers_of_one_output(tmp_path, paths):
    scorer = Scorer(tiny(), device="cpu", n_crops=1)
    output = tmp_path / "dev.tsv"
    failures = []

    class Intruder:
        """A model in whose first call another process begins with the same output."""

        def __call__(self, waveform):
            if not failures:
                try:
                    scorer.score_protocol(paths.dev_protocol, paths.audio_dir, output)
                except ValueError as error:
                    failures.append(str(error))
            return torch.zeros(len(waveform), 2)

    done = Scorer(Intruder()).score_protocol(paths.dev_protocol, paths.audio_dir, output)
    assert done.n_scored == 8
    assert "dev.tsv is being written by another process. Wait for it" in failures[0]
    assert not list(tmp_path.glob("*.lock"))


def test_a_calibration_for_other_crops_warns(tmp_path):
    content = {"kind": "affine", "scale": 2.0, "offset": 1.0, "knots": []}
    model = tiny()
    save_checkpoint(tmp_path / "a.pt", model, calibration=content)
    Scorer.from_checkpoint(tmp_path / "a.pt", device="cpu")
    for options, message in (
        ({"n_crops": 1}, r"fitted for n_crops 5, not 1: log-likelihood"),
        ({"crop_s": 1.5}, r"fitted for crop_s 4\.0, not 1\.5"),
        ({"precision": "bf16"}, r"fitted for precision 'fp32', not 'bf16'"),
    ):
        with pytest.warns(UserWarning, match=message) as caught:
            Scorer.from_checkpoint(tmp_path / "a.pt", device="cpu", **options)
        assert len(caught) == 1


def test_programming_errors_rise(tmp_path, paths, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.zeros(16000), 16000)
    scorer = Scorer(tiny(), device="cpu")
    assert scorer.score_files([tmp_path / "none.wav"]).__next__().error is not None
    monkeypatch.setattr("asvspoof_cm.audio.AudioFile.read", lambda self, *a: self.no_such_name)
    with pytest.raises(AttributeError, match="no_such_name"):
        list(scorer.score_files([tmp_path / "a.wav"]))


def test_training_and_scoring_share_one_rule_of_level(tmp_path):
    torch.manual_seed(0)
    waveform = torch.randn(32000).clamp(-3, 3) / 3
    waveform[4000:28000] *= 0.1  # the centre crop is quiet, the utterance is not
    waveform = waveform.numpy()
    soundfile.write(tmp_path / "a.wav", waveform, 16000, subtype="FLOAT")
    protocol = Protocol.from_columns(["a.wav"], [1])
    model = RawNet2(SMALL_RAWNET2).eval()
    for normalization in ("crop", "utterance", "none"):
        level = InputSettings(crop_s=1.0, normalization=normalization)
        dataset = SpoofDataset(protocol, tmp_path, input=level, crop="center")
        model.input = dataset.input
        with torch.inference_mode():
            logits = model(dataset[0][0][None])[0]
        expected = (logits[1] - logits[0]).item()
        scorer = Scorer(model, device="cpu", n_crops=1)
        assert scorer.score(waveform) == pytest.approx(expected, abs=1e-5)


def test_automatic_precision_is_bf16_where_the_processor_has_it(
    tmp_path, monkeypatch, flags, expected
):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(_util, "_CPUINFO", tmp_path / "cpuinfo")
    assert _util.resolve_precision("auto", torch.device("cpu")) == expected
