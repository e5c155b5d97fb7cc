"""DistillMOS (Stahl and Gamper, 2025): a small network that rates the quality of speech."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm.frontends import stft
from asvspoof_cm.models.base import SpeechEncoder, find_weights
from asvspoof_cm.models.layers import TransformerLayer, sinusoidal_positions

_CHANNELS = (2, 64, 64, 128, 256, 256, 256)
_STRIDES = ((1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (2, 2))
_SLOPE = 0.1
_WINDOW, _HOP = 320, 160
_WIDTH, _D_MODEL, _N_HEADS, _N_LAYERS = 1024, 200, 8, 7
_POSITION_BASE = 768.0  # for the usual 10000


def compressed_spectrum(waveform: Tensor, window: Tensor) -> Tensor:
    """Return |X|^0.3 · X / |X| of the STFT X, real and imaginary: (batch, 2, 161, time // 160)."""
    padded = functional.pad(waveform[:, None], (_HOP // 2, _HOP // 2), mode="reflect")[:, 0]
    spectrum = torch.view_as_real(stft(padded, window, hop_length=_HOP, padding=None))
    power = spectrum.square().sum(dim=-1, keepdim=True).clamp(min=1e-24)
    return (spectrum * power.pow(-0.35)).permute(0, 3, 1, 2)


class DistillMOSEncoder(SpeechEncoder):
    """DistillMOS's convolutions, and as many of its seven Transformer layers as wanted.

    Its layers are the 1024 channels that the convolutions give, normalised by the statistics that
    DistillMOS holds (two batch norms, folded into one factor and one summand per channel, which
    are not trained), and the 200 channels of each Transformer layer. Images and weights of the
    convolutions are channels-last, which a CPU convolves faster.

    Example:
        >>> layers = DistillMOSEncoder(n_layers=1)(torch.randn(1, 32000))
        >>> [tuple(layer.shape) for layer in layers]
        [(1, 100, 1024), (1, 100, 200)]
    """

    is_normalized = True
    n_least = 2 * _HOP
    window: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, *, n_layers: int = 0) -> None:
        super().__init__()
        if not 0 <= n_layers <= _N_LAYERS:
            raise ValueError(
                f"`n_layers` must lie between 0 and the {_N_LAYERS} of DistillMOS; got {n_layers}."
            )
        self.widths = (_WIDTH, *[_D_MODEL] * n_layers)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(n_in, n_out, 3, stride=stride, padding=(0, 1))
            for n_in, n_out, stride in zip(_CHANNELS, _CHANNELS[1:], _STRIDES, strict=False)
        )
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.register_buffer("scale", torch.ones(_WIDTH))
        self.register_buffer("shift", torch.zeros(_WIDTH))
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        self.projection = nn.Linear(_WIDTH, _D_MODEL) if n_layers else None
        self.layers = nn.ModuleList(
            TransformerLayer(_D_MODEL, _N_HEADS, 2 * _D_MODEL, 0.0) for _ in range(n_layers)
        )

    def forward(self, waveform: Tensor) -> list[Tensor]:
        """Return the layers of waveforms (batch, time) of peak 1."""
        image = self.convolve(waveform)
        frames = image.permute(0, 3, 1, 2).flatten(2) * self.scale + self.shift
        layers = [frames]
        if self.projection is not None:
            frames = self.projection(frames)
            n_frames = frames.shape[1]
            frames = frames + sinusoidal_positions(
                n_frames, _D_MODEL, like=frames, base=_POSITION_BASE
            )
            for layer in self.layers:
                frames = layer(frames)
                layers.append(frames)
        return layers

    def convolve(self, waveform: Tensor) -> Tensor:
        """Return what the convolutions give, (batch, 256, 4, n_frames)."""
        x = compressed_spectrum(waveform, self.window)
        x = x.contiguous(memory_format=torch.channels_last)
        for convolution in self.convolutions:
            x = functional.leaky_relu(convolution(x), _SLOPE)
        return x

    def stages(self) -> list[Iterable[nn.Module]]:
        """Return the six convolutions, then each Transformer layer, the first with its input."""
        stages: list[list[nn.Module]] = [[part] for part in (*self.convolutions, *self.layers)]
        if self.projection is not None:
            stages[len(self.convolutions)].append(self.projection)
        return [*stages]

    def load_published(self, path: Path | None = None) -> None:
        """Load the weights of the package distillmos."""
        if path is None:
            (path,) = find_weights(
                "distillmos",
                parts=("distillmos/weights/distill_mos_v7.pt",),
                patterns=("distill_mos_v7.pt",),
                advice="pip install --no-deps distillmos",
            )
        content = torch.load(path, map_location="cpu", weights_only=True)
        try:
            self._load(content["model"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold the weights of DistillMOS: {error}.") from error

    def _load(self, theirs: dict[str, Tensor]) -> None:
        weights = {}
        for k in range(len(self.convolutions)):
            for kind in ("weight", "bias"):
                weights[f"convolutions.{k}.{kind}"] = theirs[f"cnn.cnn.{2 * k}.{kind}"]
        pool = "transformer_pool_attn"
        scale, shift = torch.ones(_WIDTH), torch.zeros(_WIDTH)
        for norm in (f"{pool}.norm_input", f"{pool}.transformer.norm"):
            factor = theirs[f"{norm}.weight"] / (theirs[f"{norm}.running_var"] + 1e-5).sqrt()
            shift = (shift - theirs[f"{norm}.running_mean"]) * factor + theirs[f"{norm}.bias"]
            scale = scale * factor
        weights |= {"scale": scale, "shift": shift}
        inner = {"qkv": "self_attn.in_proj_", "out": "self_attn.out_proj.", "expand": "linear1."}
        inner |= {"contract": "linear2.", "norm1": "norm1.", "norm2": "norm2."}
        for name in self.state_dict():
            if name.startswith("projection."):
                kind = name.removeprefix("projection.")
                weights[name] = theirs[f"{pool}.transformer.linear_proj.{kind}"]
            elif name.startswith("layers."):
                _, index, module, kind = name.split(".")
                encoder = f"{pool}.transformer.transformer_encoder.layers.{index}"
                weights[name] = theirs[f"{encoder}.{inner[module]}{kind}"]
        self.load_state_dict(weights)
