"""DistillMOS (Stahl and Gamper, 2025): a small network that rates the quality of speech."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm.frontends import stft
from asvspoof_cm.models.base import find_weights

_CHANNELS = (2, 64, 64, 128, 256, 256, 256)
_STRIDES = ((1, 1), (2, 1), (2, 1), (2, 1), (2, 1), (2, 2))
_SLOPE = 0.1
_WINDOW, _HOP = 320, 160
_WIDTH = 1024


def compressed_spectrum(waveform: Tensor, window: Tensor) -> Tensor:
    """Return |X|^0.3 · X / |X| of the STFT X, real and imaginary: (batch, 2, 161, time // 160)."""
    padded = functional.pad(waveform[:, None], (_HOP // 2, _HOP // 2), mode="reflect")[:, 0]
    spectrum = torch.view_as_real(stft(padded, window, hop_length=_HOP, padding=None))
    power = spectrum.square().sum(dim=-1, keepdim=True).clamp(min=1e-24)
    return (spectrum * power.pow(-0.35)).permute(0, 3, 1, 2)


class DistillMOSEncoder(nn.Module):
    """DistillMOS's convolutions; its Transformer layers, which tell less, are left out.

    Its one layer is the 1024 channels that the convolutions give, through DistillMOS's two batch
    norms, folded. Images and weights are channels-last, which a CPU convolves faster.
    """

    is_normalized = True
    n_least = 2 * _HOP
    widths = (_WIDTH,)
    window: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(n_in, n_out, 3, stride=stride, padding=(0, 1))
            for n_in, n_out, stride in zip(_CHANNELS, _CHANNELS[1:], _STRIDES, strict=False)
        )
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.register_buffer("scale", torch.ones(_WIDTH))
        self.register_buffer("shift", torch.zeros(_WIDTH))
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)

    def forward(self, waveform: Tensor) -> list[Tensor]:
        """Return the layer of waveforms (batch, time) of peak 1."""
        frames = self.convolve(waveform).permute(0, 3, 1, 2).flatten(2)
        return [frames * self.scale + self.shift]

    def convolve(self, waveform: Tensor) -> Tensor:
        """Return what the convolutions give, (batch, 256, 4, n_frames)."""
        x = compressed_spectrum(waveform, self.window)
        x = x.contiguous(memory_format=torch.channels_last)
        for convolution in self.convolutions:
            x = functional.leaky_relu(convolution(x), _SLOPE, inplace=True)
        return x

    def stages(self) -> list[Iterable[nn.Module]]:
        """Return the six convolutions."""
        return [(convolution,) for convolution in self.convolutions]

    def load_published(self, path: Path | None = None) -> None:
        """Load the weights of the package distillmos."""
        (path,) = find_weights(
            "distillmos",
            path,
            parts=("distillmos/weights/distill_mos_v7.pt",),
            patterns=("distill_mos_v7.pt",),
            advice="pip install --no-deps distillmos",
        )
        content = torch.load(path, map_location="cpu", weights_only=True)
        try:
            self.load_state_dict(self._renamed(content["model"]))
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold the weights of DistillMOS: {error}.") from error

    def _renamed(self, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
        weights = {
            f"convolutions.{k}.{kind}": theirs[f"cnn.cnn.{2 * k}.{kind}"]
            for k in range(len(self.convolutions))
            for kind in ("weight", "bias")
        }
        scale, shift = torch.ones(_WIDTH), torch.zeros(_WIDTH)
        for norm in ("norm_input", "transformer.norm"):
            name = f"transformer_pool_attn.{norm}"
            factor = theirs[f"{name}.weight"] / (theirs[f"{name}.running_var"] + 1e-5).sqrt()
            shift = (shift - theirs[f"{name}.running_mean"]) * factor + theirs[f"{name}.bias"]
            scale = scale * factor
        return {**weights, "scale": scale, "shift": shift}
