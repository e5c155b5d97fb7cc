"""TFPARN as its authors' code builds it, and what older checkpoints of it mean."""

import json
import math
from dataclasses import asdict

import pytest
import torch

from asvspoof_cm import load_checkpoint, save_checkpoint
from asvspoof_cm.checkpoint import FORMAT, stored_hash
from asvspoof_cm.models import AASIST, TFPARN, AASISTConfig, TFPARNConfig
from asvspoof_cm.models.layers import FramePooling

# The authors' names of the parameters, as torch.nn.TransformerEncoder has them, and ours.
RENAMED = {
    "input_norm": "norm",
    "feature_projection": "projection",
    "transformer_encoder.": "",
    "self_attn.in_proj_": "qkv.",
    "self_attn.out_proj": "out",
    "linear1": "expand",
    "linear2": "contract",
    "attention_pooling.0": "pooling.hidden",
    "attention_pooling.2": "pooling.score",
}


def our_name(name):
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def authors_model(record, inputs, pooling):
    """Return the model under the fill, which goes by the order of the authors' state dict."""
    model = TFPARN(TFPARNConfig.authors(pooling=pooling)).eval()
    filled = inputs.fill({name: torch.empty(shape) for name, shape in record["names"]})
    model.load_state_dict({our_name(name): value for name, value in filled.items()})
    return model


@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_the_authors_model(pooling, golden, inputs):
    record = golden("tfparn_authors")["models"][pooling]
    model = authors_model(record, inputs, pooling)
    assert sum(p.numel() for p in model.parameters()) == record["n_parameters"]
    assert model.input.normalization == "utterance"
    waveforms = torch.from_numpy(inputs.batch())
    with torch.no_grad():
        found, attention = model.attend(waveforms)
        log_mel = model._features(waveforms)
        embedding = model.embed(waveforms)
    logits, first = torch.tensor(record["logits"]), torch.tensor(record["embedding_first16"])
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(embedding[:, :16], first, rtol=0, atol=2e-4)
    if pooling == "attention":
        weights = torch.tensor(record["attention_frames_0_100_200_400"])
        torch.testing.assert_close(attention[:, [0, 100, 200, 400]], weights, rtol=0, atol=1e-6)
    features = golden("tfparn_authors")["features"]
    assert list(log_mel.mT.shape) == features["shape"]
    for place, expected in features["points"].items():
        row, frame, band = map(int, place.split(","))
        found = log_mel[row, band, frame].item()
        # Below -50 dB a band beside a loud one is the rounding of the FFT.
        assert found == pytest.approx(expected, abs=1e-4 if expected > -5 else 1e-2)
    filled = (model.log_mel.filterbank > 0).sum(dim=1).tolist()
    assert filled == golden("tfparn_authors")["filters"]["nonzero_per_band"]


def test_decibels_by_their_formula(inputs):
    natural, decibels = (
        TFPARN(TFPARNConfig(log_scale=scale, log_floor=1e-10)) for scale in ("natural", "decibels")
    )
    waveform = torch.from_numpy(inputs.wave()).double()[None]
    power = natural.log_mel(waveform).exp()
    expected = (10 * (power + 1e-10).log10()).clamp(-80, 0) / 10
    torch.testing.assert_close(decibels._features(waveform), expected)
    assert expected.max() == 0
    assert expected.min() == -8


def test_initial_weights_are_xaviers():
    """Uniform in ± gain · √(6 / (n_in + n_out)), as analysis has it."""
    torch.manual_seed(3)
    model = TFPARN()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            gain = 0.5 if name == "projection.weight" else 1.0
            bound = gain * math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max().item() <= bound
            if parameter.numel() > 1000:
                assert parameter.abs().max().item() > 0.98 * bound
                assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for layer in model.layers:
        assert not layer.qkv.bias.any()
        assert not layer.out.bias.any()


def test_dropout_after_the_positions():
    config = TFPARNConfig(n_layers=1, dropout=0.0, position_dropout=0.5, pooling="mean")
    model = TFPARN(config).train()
    seen = []
    model.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    waveform = torch.randn(1, 8000)
    model(waveform)
    assert (seen[0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.03)
    model.eval()(waveform)
    assert (seen[1] != 0).all()


def test_top_k_pooling_by_its_definition():
    torch.manual_seed(0)
    frames = torch.randn(3, 20, 8)
    for length in (20, 10, 2):
        weights = FramePooling("top-k", 8, 0.3)(frames[:, :length])
        n_kept = max(int(0.3 * length), 1)
        for row in range(3):
            norms = frames[row, :length].norm(dim=1)
            expected = torch.zeros(length)
            expected[norms.topk(n_kept).indices] = 1 / n_kept
            torch.testing.assert_close(weights[row], expected)
    model = TFPARN(TFPARNConfig(n_layers=1, pooling="top-k"))
    assert sum(p.numel() for p in model.pooling.parameters()) == 0
    model(torch.randn(2, 8000)).sum().backward()


# What version 0.2 gave, under the fill, for the configurations that it stored.
TINY = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_feedforward": 32, "d_classifier": 8}
TINY |= {"n_mels": 40}
OLD_TFPARN = {
    "sample_rate": 16000,
    "n_fft": 1024,
    "hop_length": 160,
    "log_floor": 1e-06,
    **TINY,
    "dropout": 0.1,
    "pooling": "attention",
    "classifier_dropout": 0.3,
}


def test_checkpoints_of_before_keep_their_meaning(tmp_path, inputs):
    expected = [
        [0.08241164684295654, -0.035105567425489426],
        [0.03041708655655384, -0.10757546126842499],
    ]
    loaded = load_checkpoint(
        old_checkpoint(tmp_path, inputs, TFPARN(TFPARNConfig(**TINY)), OLD_TFPARN)
    )
    waveforms = torch.from_numpy(inputs.batch())
    with torch.no_grad():
        logits = loaded(waveforms)
        torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-5, atol=1e-5)
        save_checkpoint(tmp_path / "new.pt", loaded)
        again = load_checkpoint(tmp_path / "new.pt")
        assert torch.equal(again(waveforms), logits)
    assert again.config == loaded.config
    assert (loaded.config.log_scale, loaded.config.position_dropout) == ("natural", 0.0)
    json.dumps(asdict(again.config))


def test_fields_that_are_gone_are_read_where_they_say_what_is_so(tmp_path, inputs):
    model = AASIST(AASISTConfig.light())
    old = asdict(model.config)
    fixed = old_checkpoint(tmp_path, inputs, model, {**old, "sinc_trainable": False})
    assert load_checkpoint(fixed).config == model.config
    learned = old_checkpoint(tmp_path, inputs, model, {**old, "sinc_trainable": True})
    with pytest.raises(ValueError, match="`config` of AASIST has no field sinc_trainable"):
        load_checkpoint(learned)


def old_checkpoint(folder, inputs, model, config):
    content = {
        "format": FORMAT,
        "model": type(model).__name__,
        "config": config,
        "input": asdict(model.input),
        "state_dict": inputs.fill(model.state_dict()),
        "meta": {},
    }
    torch.save({**content, "sha256": stored_hash(content)}, folder / "old.pt")
    return folder / "old.pt"
