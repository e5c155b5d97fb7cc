"""ResNet, LCNN and their front-ends against recorded values of the published implementations."""

import numpy as np
import pytest
import torch

from asvspoof_cm.checkpoint import load_published
from asvspoof_cm.frontends import LFCC, mel_filterbank
from asvspoof_cm.models import ResNet, ResNetConfig


def n_parameters(model):
    return sum(p.numel() for p in model.parameters())


# ResNet


def resnet_input(n_bands, n_frames):
    b, f, t = np.meshgrid(range(2), range(n_bands), range(n_frames), indexing="ij")
    x = 2 * np.sin(0.10 * t + 0.05 * f + 1.3 * b) + np.cos(0.37 * f - 0.23 * t * (1 + b))
    return torch.from_numpy((x + 0.5 * np.sin(0.011 * f * t)).astype(np.float32))


@pytest.mark.parametrize(
    "name",
    [
        "ResNet18 base 32 bands 80 frames 200",
        "ResNet34 base 32 bands 80 frames 200",
        "ResNet18 base 16 bands 80 frames 200",
        "ResNet34 base 16 bands 80 frames 200",
        "ResNet18 base 32 bands 60 frames 157",
        "ResNet34 base 16 bands 160 frames 97",
    ],
)
def test_resnet_under_the_deterministic_fill(name, golden, inputs):
    expected = golden("resnet")["deterministic_fill"][name]
    config = ResNetConfig(
        n_bands=expected["bands"], width=expected["base_width"], n_blocks=expected["blocks"]
    )
    model = ResNet(config).eval()
    state = model.state_dict()
    names = list(state)[:-2]
    assert len(names) == expected["state_dict_entries_backbone"]
    recorded = expected.get("state_dict", names)
    assert names == [key if isinstance(key, str) else key[0] for key in recorded][: len(names)]
    model.load_state_dict(inputs.fill(state))
    bands = resnet_input(expected["bands"], expected["frames"])
    with torch.no_grad():
        embedding = model._embed(bands)
        logits = model.classify(embedding)
    first = torch.tensor(expected["embedding"])
    torch.testing.assert_close(embedding[:, : first.shape[1]], first, rtol=0, atol=1e-4)
    total = torch.tensor(expected["embedding_abs_sum"])
    torch.testing.assert_close(embedding.abs().sum(dim=1), total, rtol=1e-5, atol=0)
    plain = torch.tensor(expected["logits_plain_linear"])
    torch.testing.assert_close(logits, plain, rtol=0, atol=1e-4)


def test_resnet_parameters(golden):
    assert n_parameters(ResNet(ResNetConfig.resnet34())) == 6_634_850
    for name in ("ResNet18 base 16 bands 60", "ResNet34 base 16 bands 160"):
        counts = golden("resnet")["parameter_counts"][name]
        kind, _, width, _, n_bands = name.split()
        build = ResNetConfig.resnet18 if kind == "ResNet18" else ResNetConfig.resnet34
        model = ResNet(build(n_bands=int(n_bands), width=int(width)))
        assert n_parameters(model) == counts["plus_linear_256_2"]


def test_resnet_sees_bands_of_mean_zero():
    model = ResNet(ResNetConfig(n_bands=20, width=2, scale="linear"))
    waveform = torch.randn(1, 8000)
    window = torch.hamming_window(400)
    spectrum = torch.stft(
        waveform, 1024, 160, win_length=400, window=window, return_complex=True
    ).abs()
    expected = (mel_filterbank(20, 1024, scale="linear") @ spectrum.square()).clamp(min=1e-6).log()
    bands = model._log_bands(waveform)
    torch.testing.assert_close(bands, expected - expected.mean(dim=-1, keepdim=True))
    # A filter of the whole waveform adds a constant to each band, and so do gains.
    torch.testing.assert_close(model._log_bands(0.5 * waveform), bands, rtol=0, atol=1e-3)


def test_resnet_works_on_channels_last_images():
    model = ResNet(ResNetConfig(n_bands=20, width=4))
    seen = []
    model.layer2[0].conv2.register_forward_hook(lambda module, args, y: seen.append((args[0], y)))
    model(torch.randn(2, 8000)).sum().backward()
    for tensor in (*seen[0], model.layer2[0].conv2.weight, model.layer2[0].conv2.weight.grad):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    contiguous = ResNet(ResNetConfig(n_bands=20, width=4)).to(memory_format=torch.contiguous_format)
    contiguous.load_state_dict(model.state_dict())
    waveform = torch.randn(2, 8000)
    with torch.no_grad():
        expected = contiguous.eval()(waveform)
        torch.testing.assert_close(model.eval()(waveform), expected, rtol=0, atol=1e-5)


def test_resnet_gates():
    """A gate that is 1 everywhere changes nothing; each scales its own channel."""
    plain = ResNet(ResNetConfig(n_bands=20, width=4)).eval()
    gated = ResNet(ResNetConfig(n_bands=20, width=4, attention="channel")).eval()
    gated.load_state_dict(plain.state_dict(), strict=False)
    gates = {name: module for name, module in gated.named_modules() if name.endswith("gate")}
    assert len(gates) == 8
    for gate in gates.values():
        torch.nn.init.zeros_(gate.expand.weight)
        torch.nn.init.constant_(gate.expand.bias, 100.0)
    waveform = torch.randn(2, 8000)
    with torch.no_grad():
        torch.testing.assert_close(gated(waveform), plain(waveform))
        gate = gates["layer2.0.gate"]
        gate.expand.bias[1] = -100.0
        y = gate(torch.ones(1, 8, 10, 5))
    assert y[:, 1].abs().max() < 1e-6
    assert y.sum() == 7 / 8 * y.numel()


def test_resnet_attentive_pooling_begins_with_statistics():
    attentive = ResNet(ResNetConfig(n_bands=20, width=4, pooling="attentive")).eval()
    image = torch.randn(2, 32, 3, 40)
    plain = ResNet(ResNetConfig(n_bands=20, width=4)).eval()
    with torch.no_grad():
        mean, deviation = attentive._pool(image).chunk(2, dim=1)
        expected_mean, expected_deviation = plain._pool(image).chunk(2, dim=1)
    torch.testing.assert_close(mean, expected_mean)
    unbiased = (40 / 39) ** 0.5
    torch.testing.assert_close(deviation * unbiased, expected_deviation, rtol=1e-4, atol=0)


# LFCC and LCNN


def lcnn_wave(name, inputs):
    if name == "zeros_16000":
        return np.zeros(16000, np.float32)
    n = int(name.split("_")[1])
    wave = inputs.wave(n)
    return wave[::-1] * np.float32(0.5) if name.endswith("reversed_half") else wave


@pytest.mark.parametrize(
    "name",
    ["wave_64600", "wave_64600_reversed_half", "wave_51237", "wave_8003", "zeros_16000"],
)
def test_lfcc(name, golden, inputs):
    expected = golden("lcnn")["front_end"][name]
    features = LFCC()(torch.from_numpy(lcnn_wave(name, inputs).copy())).T
    assert list(features.shape) == expected["shape"]
    assert features.mean().item() == pytest.approx(expected["mean"], abs=1e-5)
    assert features.abs().double().sum().item() == pytest.approx(expected["abs_sum"], rel=1e-5)
    for frame, values in expected["frames"].items():
        torch.testing.assert_close(features[int(frame)], torch.tensor(values), rtol=0, atol=2e-4)


def test_linear_filterbank(golden):
    expected = golden("lcnn")["filterbank"]
    filters = mel_filterbank(20, 512, scale="linear")
    sums = torch.tensor(expected["column_sums"])
    torch.testing.assert_close(filters.sum(dim=1), sums, rtol=0, atol=2e-5)
    values = torch.tensor(expected["column_0_bins_0_to_25"])
    torch.testing.assert_close(filters[0, :26], values, rtol=0, atol=1e-6)


def published_name(name):
    for ours, theirs in {
        "convolutions.": "m_transform.0.",
        "lstm1.": "m_before_pooling.0.0.l_blstm.",
        "lstm2.": "m_before_pooling.0.1.l_blstm.",
        "output.": "m_output_act.0.",
        "classes": "m_angle.0.weight",
    }.items():
        name = name.replace(ours, theirs)
    return name


@pytest.fixture(params=["sig", "p2s"])
def filled_lcnn(request, golden, inputs, tmp_path):
    """Write the filled state dict under the published names; return what is recorded of it."""
    record = golden("lcnn")["deterministic_fill"][request.param]
    shapes = record["state_dict_filled"]
    weights = inputs.fill({name: torch.zeros(shape) for name, shape in shapes})
    counts = [name for name in weights if name.endswith("num_batches_tracked")]
    weights |= {name: weights[name].long() for name in counts}
    fixed = record["state_dict_fixed_not_filled"]
    weights |= {name: torch.zeros(shape) for name, shape in fixed}
    path = tmp_path / "lcnn.pt"
    torch.save(weights, path)
    return request.param, record, path


BATCHES = {
    "batch_64600 (wave, wave reversed at half level)": ("wave_64600", "wave_64600_reversed_half"),
    "wave_51237": ("wave_51237",),
    "wave_8003": ("wave_8003",),
}


def lcnn_batch(name, inputs):
    return torch.from_numpy(np.stack([lcnn_wave(part, inputs) for part in BATCHES[name]]))


def test_lcnn_under_the_deterministic_fill(filled_lcnn, inputs):
    head, record, path = filled_lcnn
    model = load_published(path)
    assert n_parameters(model) == record["trainable_parameters"]
    assert {published_name(name) for name in model.state_dict()} == {
        name for name, _ in record["state_dict_filled"]
    }
    for name in BATCHES:
        expected = record["outputs"][name]
        waveform = lcnn_batch(name, inputs)
        with torch.no_grad():
            logits, embedding = model(waveform), model.embed(waveform)
        if head == "sig":
            score = logits[:, 1] - logits[:, 0]
            first = torch.tensor(expected["pooled"]["[0,:8]"])
            torch.testing.assert_close(embedding[0, :8], first, rtol=0, atol=1e-4)
        else:
            score = logits[:, 1]
            cosines = torch.tensor(expected["cosines_spoof_bonafide"])
            torch.testing.assert_close(logits, cosines, rtol=0, atol=1e-5)
            values = torch.tensor(expected["embedding_64"])
            torch.testing.assert_close(embedding, values, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(score, torch.tensor(expected["score"]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", BATCHES)
def test_lcnn_with_published_weights(name, golden, inputs, published):
    file = "lcnn_lstmsum_sig_2019la.pt"
    expected = golden("lcnn")["published_checkpoint"][f"weights/{file}"]["outputs"][name]
    model = load_published(published(file))
    with torch.no_grad():
        logits = model(lcnn_batch(name, inputs))
    score = logits[:, 1] - logits[:, 0]
    torch.testing.assert_close(score, torch.tensor(expected["score"]), rtol=0, atol=1e-3)


def test_lcnn_files_of_something_else(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "x.pt")
    with pytest.raises(
        ValueError, match=r"x.pt does not hold the weights of a published AASIST or LCNN"
    ):
        load_published(tmp_path / "x.pt")
    torch.save({"m_transform.0.0.weight": torch.ones(1), "other": torch.ones(1)}, tmp_path / "y.pt")
    with pytest.raises(ValueError, match=r"y.pt does not fit LCNN: .*[Mm]issing"):
        load_published(tmp_path / "y.pt")
