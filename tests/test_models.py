"""The models against the paper's table, recorded logits, PyTorch's own layers and themselves."""

import copy
import json
import pickle
from dataclasses import asdict, dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

from asvspoof_cm import Scorer, export_onnx, load_checkpoint, load_onnx, save_checkpoint
from asvspoof_cm.augmentation import augmentation
from asvspoof_cm.checkpoint import load_published
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.models import (
    AASIST,
    LCNN,
    TFPARN,
    AASISTConfig,
    Countermeasure,
    Encoder,
    EncoderConfig,
    LCNNConfig,
    RawNet2,
    RawNet2Config,
    ResNet,
    ResNetConfig,
    TFPARNConfig,
    build_model,
)
from asvspoof_cm.models.layers import (
    TransformerLayer,
    attention,
    dropout,
    sinusoidal_positions,
)

PUBLISHED = {
    "AASIST": AASIST,
    "AASIST-L": lambda: AASIST(AASISTConfig.light()),
    "RawNet2": RawNet2,
}
SMALL = {
    "TFPARN": lambda: TFPARN(TFPARNConfig(d_model=32, n_layers=2, n_heads=4, d_feedforward=64)),
    "AASIST": lambda: AASIST(AASISTConfig(n_first_channels=4, n_channels=8, d_hetero=8)),
    "RawNet2": lambda: RawNet2(RawNet2Config(n_channels=16, d_gru=16, d_embedding=16)),
    "Encoder": lambda: Encoder(
        EncoderConfig(
            encoder=("distillmos", "whisper-tiny"), n_layers=(0, 1), d_projection=8, d_attention=4
        )
    ),
    "ResNet": lambda: ResNet(ResNetConfig(width=4, n_bands=20, d_embedding=8)),
    "ResNet-attentive": lambda: ResNet(
        ResNetConfig(width=4, n_bands=20, attention="channel", pooling="attentive")
    ),
    "LCNN": LCNN,
}


@pytest.fixture(params=SMALL)
def small(request):
    torch.manual_seed(0)
    return SMALL[request.param]()


# Recorded logits of the published implementations


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_under_the_deterministic_fill(name, golden, inputs):
    expected = golden("models")["deterministic_fill"][name]
    model = PUBLISHED[name]().eval()
    state = model.state_dict()
    assert [[key, list(value.shape)] for key, value in state.items()] == expected["state_dict"]
    model.load_state_dict(inputs.fill(state))
    waveform = torch.from_numpy(inputs.batch())
    with torch.no_grad():
        logits, embedding = model(waveform), model.embed(waveform)
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]), rtol=0, atol=1e-4)
    first = torch.tensor(expected["embedding_first8"])
    torch.testing.assert_close(embedding[:, :8], first, rtol=0, atol=1e-4)
    total = torch.tensor(expected["embedding_sum"], dtype=torch.float64)
    torch.testing.assert_close(embedding.double().sum(dim=1), total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["aasist_asvspoof5", "aasist_2019la", "aasist_l_2019la"])
def test_logits_of_the_published_checkpoints(name, golden, inputs, published):
    expected = golden("models")["published_checkpoints"][f"weights/{name}.pth"]
    model = load_published(published(f"{name}.pth"))
    with torch.no_grad():
        logits = model(torch.from_numpy(inputs.batch()))
    torch.testing.assert_close(logits, torch.tensor(expected["logits"]), rtol=0, atol=1e-3)


# TFPARN against torch.nn.TransformerEncoder


def torch_encoder(model):
    """Return PyTorch's encoder with the weights of ours."""
    config = model.config
    layer = nn.TransformerEncoderLayer(
        config.d_model, config.n_heads, config.d_feedforward, config.dropout, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=False)
    for theirs, ours in zip(encoder.layers, model.layers, strict=True):
        theirs.self_attn.in_proj_weight.data.copy_(ours.qkv.weight)
        theirs.self_attn.in_proj_bias.data.copy_(ours.qkv.bias)
        theirs.self_attn.out_proj.load_state_dict(ours.out.state_dict())
        theirs.linear1.load_state_dict(ours.expand.state_dict())
        theirs.linear2.load_state_dict(ours.contract.state_dict())
        theirs.norm1.load_state_dict(ours.norm1.state_dict())
        theirs.norm2.load_state_dict(ours.norm2.state_dict())
    return encoder


def encode(model, frames):
    for layer in model.layers:
        frames = layer(frames)
    return frames


def test_encoder_equals_torch_in_evaluation():
    torch.manual_seed(1)
    model = TFPARN(TFPARNConfig(n_layers=2)).eval()
    frames = torch.randn(2, 401, 256)
    with torch.no_grad():
        expected = torch_encoder(model).eval()(frames)
        torch.testing.assert_close(encode(model, frames), expected, rtol=0, atol=1e-5)


def test_encoder_gradients_equal_torch_without_dropout():
    torch.manual_seed(2)
    model = TFPARN(TFPARNConfig(n_layers=2, dropout=0.0)).train()
    encoder = torch_encoder(model).train()
    frames = torch.randn(2, 50, 256)
    target = torch.randn(2, 50, 256)
    (encode(model, frames) * target).sum().backward()
    (encoder(frames) * target).sum().backward()
    for theirs, ours in zip(encoder.layers, model.layers, strict=True):
        expected = theirs.self_attn.in_proj_weight.grad
        torch.testing.assert_close(ours.qkv.weight.grad, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            ours.contract.weight.grad, theirs.linear2.weight.grad, rtol=1e-4, atol=1e-4
        )


def test_positions_by_their_formula():
    positions = sinusoidal_positions(5000, 256, like=torch.empty(0))
    for t, i in [(0, 0), (1, 0), (400, 7), (4999, 127)]:
        angle = torch.tensor(t / 10000 ** (2 * i / 256), dtype=torch.float64)
        assert positions[t, 2 * i].item() == pytest.approx(angle.sin().item(), abs=2e-3)
        assert positions[t, 2 * i + 1].item() == pytest.approx(angle.cos().item(), abs=2e-3)


# Dropout


def test_dropout_statistics_and_gradient():
    torch.manual_seed(6)
    x = torch.full((400, 1000), 2.0, requires_grad=True)
    for p in (0.1, 0.3, 0.5):
        y = dropout(x, p, training=True)
        kept = y != 0
        assert 1 - kept.float().mean().item() == pytest.approx(p, abs=0.004)
        assert y.mean().item() == pytest.approx(2.0, abs=0.02)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, y / 2)
        # Rows and columns are dropped independently.
        assert kept.float().mean(dim=0).std().item() == pytest.approx(
            (p * (1 - p) / 400) ** 0.5, rel=0.15
        )


def test_attention_in_bfloat16_is_that_of_pytorch():
    query, key, value = torch.randn(3, 2, 4, 50, 16, generator=torch.Generator().manual_seed(1))
    half = [x.bfloat16().requires_grad_() for x in (query, key, value)]
    ours = attention(*half, p=0.0, training=True)
    expected = functional.scaled_dot_product_attention(query, key, value)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), expected, atol=0.02, rtol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(attention(*half, p=0.0, training=True), ours)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.bfloat16, 0.05)], ids=str
)
def test_attention_dropout_gradients(monkeypatch, dtype, tolerance):
    """The hand-written backward pass against autograd through the plain formula."""
    torch.manual_seed(7)
    noise = torch.randint(0, 256, (3, 2, 11, 11), dtype=torch.uint8)
    monkeypatch.setattr("asvspoof_cm.models.layers.random_bytes", lambda shape: noise)
    inputs = [torch.randn(3, 2, 11, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    query, key, value = inputs
    output = attention(*(x.to(dtype) for x in inputs), p=0.25, training=True)
    weights = (query @ key.mT / 2).softmax(dim=-1) * (noise >= 64) / 0.75
    expected = weights @ value
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)
    target = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(output, inputs, target.to(dtype)),
        torch.autograd.grad(expected, inputs, target),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def test_dropout_is_drawn_in_bytes_under_autocast_too(monkeypatch):
    """PyTorch's own is several times slower in bfloat16: the fast path must not be lost there."""

    def refuse(*args, **kwargs):
        raise AssertionError("slow path")

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", refuse)
    monkeypatch.setattr("asvspoof_cm.models.layers.functional.dropout", refuse)
    layer = TransformerLayer(8, 2, 16, p_dropout=0.1).train()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 5, 8)).isfinite().all()


# What every model does


def test_logits_do_not_depend_on_the_batch(small):
    small.eval()
    waveform = torch.randn(3, 20000)
    with torch.no_grad():
        together = small(waveform)
        alone = torch.cat([small(row[None]) for row in waveform])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_tfparn_parts_of_a_batch_change_nothing(monkeypatch):
    model, waveform = SMALL["TFPARN"]().eval(), torch.randn(5, 4800)
    with torch.no_grad():
        expected = model.attend(waveform)
        monkeypatch.setattr("asvspoof_cm.models.tfparn._CPU_BATCH", 2)
        in_parts = model.attend(waveform)
    for ours, theirs in zip(in_parts, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_aasist_tiles_change_nothing(monkeypatch):
    model = SMALL["AASIST"]().eval()
    waveform = torch.randn(1, 20000)
    with torch.no_grad():
        expected = model(waveform)
        for tile in (3, 30, 333):
            monkeypatch.setattr("asvspoof_cm.models.aasist._TILE_COLUMNS", tile)
            torch.testing.assert_close(model(waveform), expected, rtol=0, atol=1e-6)


def test_aasist_evaluation_equals_its_training_path_with_frozen_statistics():
    torch.manual_seed(9)
    model = SMALL["AASIST"]()
    block = model.encoder[2][0]
    block.bn2.running_mean.normal_()
    block.bn2.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, 23, 100)
    folded = block.eval()(x)
    block.train()
    block.bn2.eval()
    torch.testing.assert_close(block(x), folded, rtol=0, atol=1e-5)


def test_every_parameter_gets_a_gradient(small):
    functional.cross_entropy(
        small.train()(torch.randn(4, 12000)), torch.tensor([0, 1, 0, 1])
    ).backward()
    silent = {name for name, p in small.named_parameters() if p.grad is None}
    unused = {f"encoder.{k}.0.bn1.{kind}" for k in range(1, 6) for kind in ("weight", "bias")}
    assert silent == (unused if isinstance(small, AASIST) else set())


def test_copies_and_pickles(small):
    small.eval()
    small.meta = {"seed": 1}
    waveform = torch.randn(1, 8000)
    with torch.no_grad():
        expected = small(waveform)
        for clone in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
            assert torch.equal(clone(waveform), expected)
            assert clone.config == small.config
            assert clone.meta == {"seed": 1}


def test_bfloat16_autocast(small):
    waveform = torch.randn(2, 12000)
    small.eval()
    with torch.no_grad():
        expected = small(waveform)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = small(waveform)
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.cross_entropy(small.train()(waveform), torch.tensor([0, 1]))
    loss.backward()
    assert torch.isfinite(loss)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_traces_the_whole_model(small):
    small.eval()
    fullgraph = not isinstance(small, RawNet2 | LCNN)  # Dynamo runs a GRU or LSTM by itself.
    waveform = torch.randn(2, 8000)
    compiled = torch.compile(small, backend="aot_eager", fullgraph=fullgraph)
    with torch.no_grad():
        torch.testing.assert_close(compiled(waveform), small(waveform), rtol=0, atol=1e-5)
    small.train()
    step = torch.compile(
        lambda x, y: focal_pairwise_loss(small(x), y), backend="eager", fullgraph=True
    )
    with torch._dynamo.config.patch(allow_rnn=True):
        assert step(waveform, torch.tensor([0, 1])).isfinite()


def test_no_device_is_baked_in_and_nothing_waits_for_it(small):
    """The meta device has no values that anything could wait for."""
    small.to("meta")
    waveforms, labels = torch.empty(4, 8000, device="meta"), torch.empty(4, device="meta").long()
    waveforms = augmentation("tfparn+rawboost")(waveforms, generator=torch.Generator())
    assert focal_pairwise_loss(small.train()(waveforms), labels).device.type == "meta"
    assert small.eval()(waveforms).shape == (4, 2)


def test_embedding_feeds_the_logits(small):
    small.eval()
    waveform = torch.randn(2, 8000)
    head = {"AASIST": "out_layer", "RawNet2": "fc2_gru", "LCNN": "output"}
    with torch.no_grad():
        last = small.get_submodule(head.get(type(small).__name__, "classifier"))
        n = last.out_features if isinstance(last, nn.Linear) else 2
        assert torch.equal(last(small.embed(waveform)), small(waveform)[:, -n:])


# Errors


@pytest.mark.parametrize(
    ("waveform", "error", "message"),
    [
        (torch.zeros(64000), ValueError, r"got \(64000,\). Add a batch axis: waveform\[None\]"),
        (torch.zeros(1, 1, 64000), ValueError, r"\(batch, time\); got \(1, 1, 64000\)\."),
        (torch.zeros(1, 300), ValueError, r"samples long; got 300. Repeat it first"),
        (torch.zeros(0, 64000), ValueError, "a batch of none"),
        (torch.zeros(1, 64000, dtype=torch.int16), TypeError, "waveform / 32768 for int16"),
    ],
)
def test_bad_waveforms(small, waveform, error, message):
    for call in (small, small.embed):
        with pytest.raises(error, match=message):
            call(waveform)


@pytest.mark.parametrize(
    ("model", "n_least"),
    [
        (AASIST(), 2315),
        (RawNet2(RawNet2Config(d_gru=8)), 3211),
        (ResNet(ResNetConfig(n_bands=20, width=2)), 1280),
        (LCNN(LCNNConfig(head="cosine")), 2400),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shortest_waveforms(model, n_least):
    with torch.no_grad():
        assert model.eval()(torch.randn(1, n_least)).isfinite().all()
    with pytest.raises(ValueError, match=f"at least {n_least} samples"):
        model(torch.randn(1, n_least - 1))


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (TFPARNConfig, {"d_model": 100}, "multiple of `n_heads`"),
        (TFPARNConfig, {"n_layers": 0}, "`n_layers` must be a whole number of at least 1"),
        (TFPARNConfig, {"dropout": 1.0}, r"`dropout` must lie in \[0, 1\)"),
        (TFPARNConfig, {"pooling": "max"}, "`pooling` must be one of 'attention', 'mean', 'top-k'"),
        (AASISTConfig, {"pool_hetero": 0.0}, r"`pool_hetero` must lie in \(0, 1\]"),
        (AASISTConfig, {"temperature": 0.0}, "`temperature` must be positive"),
        (RawNet2Config, {"pooling": "mean"}, "`pooling` must be one of 'last', 'max'"),
        (LCNNConfig, {"head": "softmax"}, "`head` must be one of 'sigmoid', 'cosine'"),
        (ResNetConfig, {"n_blocks": (2, 2, 2)}, "`n_blocks` must be four positive numbers"),
        (ResNetConfig, {"scale": "bark"}, "`scale` must be one of 'mel', 'linear'"),
        (EncoderConfig, {"encoder": ()}, "`encoder` must be a name or a tuple of names"),
        (EncoderConfig, {"encoder": ("distillmos", 3)}, "`encoder` must be a name or a tuple"),
        (EncoderConfig, {"n_layers": -1}, "whole number of at least 0, or None; got -1"),
        (EncoderConfig, {"n_layers": (1, 2)}, r"one for each of the 1 encoders; got \(1, 2\)"),
        (EncoderConfig, {"freeze": "some"}, '`freeze` must be "none", "all" or a number of stages'),
        (EncoderConfig, {"encoder_lr": 2.0}, "`encoder_lr` must be between 0 and 1; got 2"),
    ],
)
def test_bad_configurations(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)


def test_models_are_built_from_plain_values(small):
    name = type(small).__name__
    plain = json.loads(json.dumps(asdict(small.config)))
    assert build_model(name, plain).config == small.config
    with pytest.raises(ValueError, match="`name` must be one of"):
        build_model("tfparn")


# The registry


@dataclass(frozen=True, kw_only=True)
class LoudnessConfig:
    d: int = 4


class Loudness(Countermeasure):
    """A model that the package does not know."""

    config_type = LoudnessConfig

    def __init__(self, config=None):
        super().__init__()
        self.config = config or LoudnessConfig()
        self.linear = nn.Linear(1, self.config.d)
        self.classifier = nn.Linear(self.config.d, 2)

    def embed(self, waveform):
        return self.linear(waveform.std(dim=1, keepdim=True))


def test_a_model_from_outside_is_saved_scored_and_exported(tmp_path):
    """That `fit` trains one is on the page "Bring your own", whose code runs in test_docs."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, waveform = Loudness(LoudnessConfig(d=3)).eval(), torch.randn(20000)
    save_checkpoint(tmp_path / "loud.pt", model)
    loaded = load_checkpoint(tmp_path / "loud.pt")
    assert (type(loaded), loaded.config) == (Loudness, model.config)
    export_onnx(model, tmp_path / "loud.onnx")
    scores = [Scorer(each, device="cpu").score(waveform) for each in (model, loaded)] + [
        Scorer(load_onnx(tmp_path / "loud.onnx")).score(waveform)
    ]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-5)
