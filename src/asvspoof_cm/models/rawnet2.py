"""RawNet2: residual convolutions and a GRU on the raw waveform (Tak et al., 2021)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm.frontends import SincConv
from asvspoof_cm.models.base import Countermeasure, check_config, check_waveform_batch

_SLOPE = 0.3


@dataclass(frozen=True, kw_only=True)
class RawNet2Config:
    """The size of a RawNet2; the defaults are the published anti-spoofing baseline's.

    Note:
        The TFPARN paper lists "Global Max" as RawNet2's pooling: ``pooling="max"`` takes the
        maximum over the steps of the GRU, the published model the last one.

    Example:
        >>> RawNet2Config().pooling
        'last'
    """

    n_sinc_filters: int = 20
    sinc_kernel_size: int = 1024
    n_first_channels: int = 20
    n_channels: int = 128
    d_gru: int = 1024
    n_gru_layers: int = 3
    d_embedding: int = 1024
    pooling: Literal["last", "max"] = "last"

    def __post_init__(self) -> None:
        check_config(self)


class ResidualBlock(nn.Module):
    """A pre-activation block of two convolutions over time, then max-pooling by 3."""

    def __init__(self, n_in: int, n_out: int, *, first: bool = False) -> None:
        super().__init__()
        self.bn1 = None if first else nn.BatchNorm1d(n_in)
        self.conv1 = nn.Conv1d(n_in, n_out, 3, padding=1)
        self.bn2 = nn.BatchNorm1d(n_out)
        self.conv2 = nn.Conv1d(n_out, n_out, 3, padding=1)
        self.conv_downsample = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, n_out, time // 3) of (batch, n_in, time)."""
        y = x if self.bn1 is None else functional.leaky_relu(self.bn1(x), _SLOPE)
        y = self.conv2(functional.leaky_relu(self.bn2(self.conv1(y)), _SLOPE))
        shortcut = x if self.conv_downsample is None else self.conv_downsample(x)
        return functional.max_pool1d(y + shortcut, 3)


class RawNet2(Countermeasure):
    """The RawNet2 countermeasure.

    Example:
        >>> model = RawNet2().eval()
        >>> model(torch.randn(1, 64000)).shape
        torch.Size([1, 2])
        >>> sum(p.numel() for p in model.parameters())
        17621410
    """

    config_type = RawNet2Config
    any_length = False  # a graph has each step of the GRU
    removed_fields = {"sinc_trainable": False}  # noqa: RUF012 - declared in the base class

    def __init__(self, config: RawNet2Config | None = None) -> None:
        super().__init__()
        self.config = config = RawNet2Config() if config is None else config
        first, n_channels = config.n_first_channels, config.n_channels
        self.sinc = SincConv(config.n_sinc_filters, config.sinc_kernel_size)
        self.first_bn = nn.BatchNorm1d(config.n_sinc_filters)
        widths = [config.n_sinc_filters, first, first, *[n_channels] * 4]
        for k, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
            block = ResidualBlock(n_in, n_out, first=k == 0)
            self.add_module(f"block{k}", nn.Sequential(block))
        for k, n_out in enumerate(widths[1:]):
            self.add_module(f"fc_attention{k}", nn.Sequential(nn.Linear(n_out, n_out)))
        self.bn_before_gru = nn.BatchNorm1d(n_channels)
        self.gru = nn.GRU(n_channels, config.d_gru, config.n_gru_layers, batch_first=True)
        self.fc1_gru = nn.Linear(config.d_gru, config.d_embedding)
        self.fc2_gru = nn.Linear(config.d_embedding, 2)

    def classify(self, embedding: Tensor) -> Tensor:
        """Return logits (batch, 2) of utterance vectors (batch, d_embedding)."""
        return self.fc2_gru(embedding)

    def embed(self, waveform: Tensor) -> Tensor:
        """Return the utterance vectors (batch, d_embedding) of waveforms (batch, time)."""
        # One step must be left after the sinc convolution and seven poolings by three.
        check_waveform_batch(waveform, self.sinc.kernel_size - 1 + 3**7)
        x = functional.max_pool1d(self.sinc(waveform).abs(), 3)
        x = functional.selu(self.first_bn(x))
        for k in range(6):
            x = self.get_submodule(f"block{k}")(x)
            gate = torch.sigmoid(self.get_submodule(f"fc_attention{k}")(x.mean(dim=-1)))
            x = x * gate[..., None] + gate[..., None]
        x = functional.selu(self.bn_before_gru(x))
        steps, _ = self.gru(x.transpose(1, 2))
        pooled = steps[:, -1] if self.config.pooling == "last" else steps.amax(dim=1)
        return self.fc1_gru(pooled)
