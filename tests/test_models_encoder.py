"""Encoder: which encoders it has, what it trains and stores, and what its head computes."""

from dataclasses import asdict

import pytest
import torch
from torch.nn import functional

from asvspoof_cm.checkpoint import load_checkpoint, save_checkpoint
from asvspoof_cm.models import Encoder, EncoderConfig, build_model
from asvspoof_cm.models.layers import attentive_statistics

HEAD = {"d_projection": 8, "d_attention": 4}


def n_trained(module):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_parameters():
    """The figures of the encoders are those of the issue and of golden_distillmos.json."""
    assert n_trained(Encoder().encoders) == 1_587_328
    whisper = Encoder(EncoderConfig(encoder="whisper-base", n_layers=3))
    assert n_trained(whisper.encoders) == 10_365_952
    assert n_trained(Encoder(EncoderConfig(encoder="whisper-tiny", n_layers=0)).encoders) == 535_296


@pytest.mark.parametrize(
    ("config", "widths"),
    [
        (EncoderConfig(), [[1024]]),
        (EncoderConfig(encoder="whisper-tiny.en"), [[384] * 4]),
        (EncoderConfig(encoder=("distillmos", "whisper-tiny")), [[1024], [384] * 4]),
        (
            EncoderConfig(encoder=("distillmos", "whisper-tiny"), n_layers=(0, 2)),
            [[1024], [384] * 3],
        ),
    ],
)
def test_layers_that_are_not_used_are_not_built(config, widths):
    model = Encoder(config).eval()
    assert [list(encoder.widths) for encoder in model.encoders] == widths
    with torch.no_grad():
        assert model.embed(torch.randn(1, 4000)).shape == (1, 512 * len(widths))


def test_head_against_its_formula():
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(encoder="whisper-tiny", n_layers=2, **HEAD)).eval()
    torch.nn.init.normal_(model.mixtures[0].weights)
    torch.nn.init.normal_(model.attention.score.weight)
    waveform = torch.randn(2, 8000)
    with torch.no_grad():
        layers = model.encoders[0](waveform / waveform.abs().amax(dim=1, keepdim=True))
        shares = model.mixtures[0].weights.softmax(dim=0)
        mixed = sum(
            w * functional.layer_norm(x, (384,)) for w, x in zip(shares, layers, strict=True)
        )
        frames = model.mixtures[0].projections["384"](mixed)
        scores = model.attention.score(torch.tanh(model.attention.hidden(frames)))
        weights = scores.exp() / scores.exp().sum(dim=1, keepdim=True)
        mean = (weights * frames).sum(dim=1)
        second = (weights * frames**2).sum(dim=1)
        pooled = torch.cat([mean, (second - mean**2 + 1e-5).sqrt()], dim=1)
        expected = model.classifier(model.norm(pooled))
        torch.testing.assert_close(model(waveform), expected, rtol=1e-3, atol=1e-4)


def test_attention_begins_with_the_mean():
    model = Encoder(EncoderConfig(**HEAD)).eval()
    frames = torch.randn(2, 30, 8)
    weights = model.attention(frames)
    assert torch.equal(weights, torch.full_like(weights, 1 / 30))
    statistics = attentive_statistics(frames, weights)
    torch.testing.assert_close(statistics[:, :8], frames.mean(dim=1))
    deviation = (frames.var(dim=1, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(statistics[:, 8:], deviation)


def test_level_does_not_matter():
    model = Encoder(
        EncoderConfig(encoder=("distillmos", "whisper-tiny"), n_layers=(0, 1), **HEAD)
    ).eval()
    waveform = torch.randn(1, 8000)
    with torch.no_grad():
        torch.testing.assert_close(model(0.01 * waveform), model(waveform), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("freeze", "trained"),
    [
        *((freeze, {"conv1", "conv2", "blocks.0", "blocks.1"}) for freeze in ("none", 0)),
        *((1, {"blocks.0", "blocks.1"}), (2, {"blocks.1"})),
        *((3, set()), ("all", set())),
    ],
)
def test_freeze(freeze, trained):
    config = EncoderConfig(encoder="whisper-tiny", n_layers=2, freeze=freeze, **HEAD)
    model = Encoder(config).train()
    parts = ("conv1", "conv2", "blocks.0", "blocks.1")
    model(torch.randn(2, 4000)).sum().backward()
    encoder = model.encoders[0]
    for part in parts:
        got = [p.grad is not None for p in encoder.get_submodule(part).parameters()]
        assert got == [part in trained] * len(got)
    rebuilt = build_model("Encoder", asdict(model.config))
    assert n_trained(rebuilt) == n_trained(model)
    assert all(p.grad is not None for p in model.mixtures.parameters())


def test_freeze_of_each_encoder():
    config = EncoderConfig(
        encoder=("distillmos", "whisper-tiny"), n_layers=(0, 1), freeze=("all", 1)
    )
    model = Encoder(config)
    assert n_trained(model.encoders[0]) == 0
    assert n_trained(model.encoders[1].conv1) == 0
    assert n_trained(model.encoders[1].blocks) > 0
    with pytest.raises(ValueError, match="must not exceed the 2 stages of the encoder; got 3"):
        Encoder(EncoderConfig(encoder="whisper-tiny", n_layers=1, freeze=3))
    with pytest.raises(ValueError, match="`n_layers` of DistillMOS must be 0 or None; got 2"):
        Encoder(EncoderConfig(n_layers=2))


def test_parameter_groups_hold_each_trained_parameter_once():
    model = Encoder(EncoderConfig(freeze=2, encoder_lr=0.2, **HEAD))
    head, encoder = model.parameter_groups()
    assert encoder["lr_scale"] == 0.2
    assert "lr_scale" not in head
    together = [id(p) for p in (*head["params"], *encoder["params"])]
    assert sorted(together) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert id(model.encoders[0].convolutions[5].weight) in map(id, encoder["params"])
    assert len(Encoder(EncoderConfig(freeze="all")).parameter_groups()) == 1


# Optional heads

HEADS = {"frame_head": True, "speech_head": True}


def test_optional_heads_change_nothing_else():
    torch.manual_seed(0)
    plain = Encoder(EncoderConfig(**HEAD)).eval()
    model = Encoder(EncoderConfig(**HEAD, **HEADS)).eval()
    added = model.state_dict().keys() - plain.state_dict().keys()
    assert {name.split(".")[0] for name in added} == {*HEADS, "frame_speech_head"}
    kept = {name: model.state_dict()[name].clone() for name in added}
    model.load_from(plain)
    assert (plain.all_parameters_used, model.all_parameters_used) == (True, False)
    waveform = torch.randn(2, 8000)
    with torch.no_grad():
        assert torch.equal(model(waveform), plain(waveform))
        outputs = model.outputs(waveform)
        assert torch.equal(outputs.embedding, plain.embed(waveform))
        assert torch.equal(outputs.logits, plain(waveform))
        scored = model.speech_head(outputs.embedding)
        assert torch.equal(outputs.speech_logits, scored.squeeze(-1))
    for name, value in kept.items():
        assert torch.equal(model.state_dict()[name], value)


def test_frames_against_plain_layers():
    """The frame head, written out: each frame hears 6 frames on either side of it."""
    model = Encoder(EncoderConfig(**HEAD, **HEADS)).eval()
    head, frames = model.frame_head, torch.randn(2, 40, 8)
    first, second = head.convolutions
    with torch.no_grad():
        x = functional.layer_norm(frames, (8,)) @ head.project.weight.T + head.project.bias
        x = x.transpose(1, 2)
        for layer in (first, second):
            padded = functional.pad(functional.gelu(x), (3, 3))
            x = x + functional.conv1d(padded, layer.weight, layer.bias)
        expected = functional.gelu(x).transpose(1, 2) @ head.score.weight[0] + head.score.bias
        torch.testing.assert_close(head(frames), expected)
        changed = frames.clone()
        changed[:, 20] += torch.randn(8)
        moved = (head(changed) - head(frames)).abs().amax(dim=0) > 0
    assert moved.nonzero().flatten().tolist() == list(range(14, 27))


@pytest.mark.parametrize("encoder", ["distillmos", "whisper-tiny", ("distillmos", "whisper-tiny")])
def test_frames_stand_where_the_sound_is(encoder):
    """A click changes the features of its own frame most."""
    torch.manual_seed(0)
    n_layers = 0 if isinstance(encoder, str) else (0, 0)
    model = Encoder(EncoderConfig(encoder=encoder, n_layers=n_layers, **HEAD, **HEADS)).eval()
    waveform = 0.1 * torch.randn(1, 32000)
    with torch.no_grad():
        frames = model.outputs(waveform).frames
        assert frames.logits.shape == frames.speech_logits.shape == (1, 100)
        assert frames.hop_s == 0.02
        for k in (20, 50, 70):
            changed = waveform.clone()
            changed[0, 320 * k + 80 : 320 * k + 240] *= -1
            moved = (model._frames(changed) - model._frames(waveform)).norm(dim=-1)[0]
            assert abs(int(moved.argmax()) - k) <= 1


def test_optional_heads_learn():
    model = Encoder(EncoderConfig(**HEAD, **HEADS)).train()
    outputs = model.outputs(torch.randn(2, 8000))
    parts = (outputs.logits, outputs.frames.logits, outputs.frames.speech_logits)
    sum(part.square().sum() for part in (*parts, outputs.speech_logits)).backward()
    assert all(p.grad is not None for p in model.parameters())
    head, _ = model.parameter_groups()
    assert id(model.frame_head.score.weight) in map(id, head["params"])


def test_heads_that_are_missing_or_do_not_fit():
    model = Encoder(EncoderConfig(**HEAD))
    assert model.outputs(torch.randn(2, 8000))[2:] == (None, None)
    for other in (Encoder(EncoderConfig(**HEAD, frame_head=True)), Encoder(EncoderConfig())):
        with pytest.raises(ValueError, match="`other` must be like this model but for optional"):
            model.load_from(other)
    with pytest.raises(TypeError, match="`other` must be an Encoder; got Linear"):
        model.load_from(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="`frame_head` must be True or False; got 2"):
        EncoderConfig(frame_head=2)


# transformers


@pytest.fixture
def transformers_folder(tmp_path, architecture):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.AutoConfig.for_model(**architecture)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "w2v")
    return tmp_path / "w2v"


def test_transformers_by_folder_then_without_it(transformers_folder, tmp_path):
    config = EncoderConfig(encoder=str(transformers_folder), n_layers=2, freeze=2, **HEAD)
    model = Encoder(config).eval()
    before = model.encoders[0].model.encoder.layers[0].attention.k_proj.weight.clone()
    model.load_published()
    after = model.encoders[0].model.encoder.layers[0].attention.k_proj.weight
    assert not torch.equal(before, after)
    assert n_trained(model.encoders[0]) == n_trained(model.encoders[0].model.encoder.layers[1])
    save_checkpoint(tmp_path / "model.pt", model)
    for file in transformers_folder.iterdir():
        file.unlink()
    loaded = load_checkpoint(tmp_path / "model.pt")
    waveform = torch.randn(2, 6000)
    with torch.no_grad():
        assert torch.equal(loaded(waveform), model(waveform))
    assert loaded.config == model.config


def test_transformers_name_that_is_none(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=r"built-in encoder or a transformers model; '.*missing'"):
        Encoder(EncoderConfig(encoder=str(tmp_path / "missing")))


def test_a_path_for_each_encoder(tmp_path):
    model = Encoder(EncoderConfig(encoder=("distillmos", "whisper-tiny"), n_layers=(0, 0)))
    with pytest.raises(ValueError, match="one file for each of the 2 encoders; got 1"):
        model.load_published(tmp_path / "x.pt")
