"""ResNet on log bands, the light single system of many ASVspoof 5 submissions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm.frontends import LogMel
from asvspoof_cm.models.base import Countermeasure, check_config, check_waveform_batch
from asvspoof_cm.models.layers import ChannelAttention, attentive_statistics


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """The size of a ResNet; the defaults are WeDefense's ResNet18 with a plain classifier.

    Attributes:
        scale: Bands equally spaced in "mel" or in Hz, "linear".
        n_bands: Their number.
        n_blocks: The residual blocks of each of the four stages.
        width: The channels of the first stage; each later one has twice those before it.
        attention: What gates the output of a block: "none", or "channel", squeeze and excitation
            (Hu et al., 2018).
        pooling: "statistics", mean and standard deviation over time, or "attentive", both weighted
            by attention.
        d_embedding: The size of the utterance vector.

    Note:
        The published features are Kaldi's, with dither and a pre-emphasis; these are plain log
        bands, of which the mean over time is subtracted as there, in windows of 25 ms every 10 ms.

    Example:
        >>> ResNetConfig.resnet34(n_bands=160, scale="linear").n_blocks
        (3, 4, 6, 3)
    """

    scale: Literal["mel", "linear"] = "mel"
    n_bands: int = 80
    n_blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    width: int = 32
    attention: Literal["none", "channel"] = "none"
    pooling: Literal["statistics", "attentive"] = "statistics"
    d_embedding: int = 256

    def __post_init__(self) -> None:
        check_config(self)
        if len(self.n_blocks) != 4 or not all(type(n) is int and n > 0 for n in self.n_blocks):
            raise ValueError(f"`n_blocks` must be four positive numbers; got {self.n_blocks}.")

    @classmethod
    def resnet18(cls, **changes: Any) -> ResNetConfig:
        """Return the configuration of a ResNet18, with some fields changed."""
        return cls(**{"n_blocks": (2, 2, 2, 2), **changes})

    @classmethod
    def resnet34(cls, **changes: Any) -> ResNetConfig:
        """Return the configuration of a ResNet34, with some fields changed."""
        return cls(**{"n_blocks": (3, 4, 6, 3), **changes})


class Gate(nn.Module):
    """Scale each channel by a number in (0, 1) that depends on the means of all."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(n, max(n // 8, 1))
        self.expand = nn.Linear(max(n // 8, 1), n)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (batch, channels, bands, frames) scaled."""
        hidden = functional.relu(self.reduce(x.mean(dim=(2, 3))))
        return x * torch.sigmoid(self.expand(hidden))[:, :, None, None]


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut."""

    def __init__(self, n_in: int, n_out: int, *, stride: int, has_gate: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.gate = Gate(n_out) if has_gate else None
        self.shortcut = None
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, n_out, bands, frames) of (batch, n_in, …)."""
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.gate is not None:
            y = self.gate(y)
        return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(Countermeasure):
    """A residual network on log bands with statistics pooling (WeDefense's, which is WeSpeaker's).

    Its convolutions work on channels-last images, which a CPU handles faster.

    Example:
        >>> model = ResNet(ResNetConfig.resnet18(n_bands=80, width=32)).eval()
        >>> model(torch.randn(2, 32000)).shape
        torch.Size([2, 2])
        >>> sum(p.numel() for p in model.parameters())
        4105954
    """

    config_type = ResNetConfig
    removed_fields = {  # noqa: RUF012 - declared in the base class
        "sample_rate": 16000,
        "n_fft": 1024,
        "n_window": 400,
        "hop_length": 160,
        "log_floor": 1e-6,
        "reduction": 8,
        "d_attention": 128,
    }

    def __init__(self, config: ResNetConfig | None = None) -> None:
        super().__init__()
        self.config = config = ResNetConfig() if config is None else config
        self.bands = LogMel(
            n_mels=config.n_bands, n_window=400, window=torch.hamming_window, scale=config.scale
        )
        self.conv1 = nn.Conv2d(1, config.width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        n_in, n_bands = config.width, config.n_bands
        for k, n_blocks in enumerate(config.n_blocks):
            n_out = config.width * 2**k
            stride = 1 if k == 0 else 2
            n_bands = -(-n_bands // stride)
            has_gate = config.attention == "channel"
            block = functools.partial(BasicBlock, n_out=n_out, has_gate=has_gate)
            later = (block(n_out, stride=1) for _ in range(n_blocks - 1))
            self.add_module(f"layer{k + 1}", nn.Sequential(block(n_in, stride=stride), *later))
            n_in = n_out
        d_frames = n_in * n_bands
        self.attention = ChannelAttention(d_frames) if config.pooling == "attentive" else None
        self.seg_1 = nn.Linear(2 * d_frames, config.d_embedding)
        self.classifier = nn.Linear(config.d_embedding, 2)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def embed(self, waveform: Tensor) -> Tensor:
        """Return utterance vectors (batch, d_embedding) of waveforms (batch, time)."""
        return self._embed(self._log_bands(waveform))

    def _log_bands(self, waveform: Tensor) -> Tensor:
        """Return what the network sees, (batch, n_bands, n_frames)."""
        # Two steps must be left after three strides of two, for a deviation over time.
        check_waveform_batch(waveform, 8 * self.bands.hop_length)
        bands = self.bands(waveform)
        return bands - bands.mean(dim=-1, keepdim=True)

    def _embed(self, bands: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(bands[:, None])))
        for k in range(4):
            x = self.get_submodule(f"layer{k + 1}")(x)
        return self.seg_1(self._pool(x))

    def _pool(self, image: Tensor) -> Tensor:
        """Return mean and deviation over time, (batch, 2 · d), of (batch, channels, bands, …)."""
        image = image.to(torch.promote_types(image.dtype, torch.float32))
        frames = image.permute(0, 3, 1, 2).flatten(2)
        if self.attention is not None:
            return attentive_statistics(frames, self.attention(frames))
        deviation = (frames.var(dim=1) + 1e-7).sqrt()
        return torch.cat([frames.mean(dim=1), deviation], dim=1)
