"""LCNN on LFCC (Wang and Yamagishi, Interspeech 2021): light convolutions and two LSTMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm.frontends import LFCC
from asvspoof_cm.models.base import Countermeasure, check_config, check_waveform_batch

_N_BANDS, _HOP = 20, 160


@dataclass(frozen=True, kw_only=True)
class LCNNConfig:
    """The variant of an LCNN; the defaults are the published "LSTM-sum" model's.

    Attributes:
        head: "sigmoid", the logits 0 and one of the mean over time; or "cosine", the cosines of a
            64-vector, from the sum over time, to a vector for each class (trained with P2SGrad).
        dropout: Before the LSTMs.

    Example:
        >>> LCNNConfig().head
        'sigmoid'
    """

    head: Literal["sigmoid", "cosine"] = "sigmoid"
    dropout: float = 0.7

    def __post_init__(self) -> None:
        check_config(self)


class MaxFeatureMap(nn.Module):
    """The larger of the first and the second `n` channels."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, n, …) of (batch, 2 · n, …)."""
        return torch.maximum(x[:, : self.n], x[:, self.n :])


class LCNN(Countermeasure):
    """A light convolutional network on LFCC, two bidirectional LSTMs and a skip around them.

    Example:
        >>> model = LCNN().eval()
        >>> model(torch.randn(2, 64600)).shape
        torch.Size([2, 2])
        >>> sum(p.numel() for p in model.parameters())
        269729
    """

    config_type = LCNNConfig
    any_length = False  # a graph has each step of the LSTMs

    def __init__(self, config: LCNNConfig | None = None) -> None:
        super().__init__()
        self.config = config = LCNNConfig() if config is None else config
        self.lfcc = LFCC(n_bands=_N_BANDS, hop_length=_HOP)

        def convolution(n_in: int, n_out: int, size: int) -> list[nn.Module]:
            return [nn.Conv2d(n_in, n_out, size, padding=size // 2), MaxFeatureMap(n_out // 2)]

        def norm(n: int) -> nn.Module:
            return nn.BatchNorm2d(n, affine=False)

        pool = nn.MaxPool2d(2)
        self.convolutions = nn.Sequential(
            *convolution(1, 64, 5),
            pool,
            *convolution(32, 64, 1),
            norm(32),
            *convolution(32, 96, 3),
            pool,
            norm(48),
            *convolution(48, 96, 1),
            norm(48),
            *convolution(48, 128, 3),
            pool,
            *convolution(64, 128, 1),
            norm(64),
            *convolution(64, 64, 3),
            norm(32),
            *convolution(32, 64, 1),
            norm(32),
            *convolution(32, 64, 3),
            pool,
            nn.Dropout(config.dropout),
        )
        d_frames = 32 * (3 * _N_BANDS // 16)
        self.lstm1 = nn.LSTM(d_frames, d_frames // 2, batch_first=True, bidirectional=True)
        self.lstm2 = nn.LSTM(d_frames, d_frames // 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(d_frames, 1 if config.head == "sigmoid" else 64)
        if config.head == "cosine":
            self.classes = nn.Parameter(torch.randn(64, 2) / 8)

    def embed(self, waveform: Tensor) -> Tensor:
        """Return utterance vectors of waveforms (batch, time): (batch, 96), or (batch, 64)."""
        # One step must be left after four poolings by two.
        check_waveform_batch(waveform, 15 * _HOP)
        image = self.convolutions(self.lfcc(waveform).transpose(1, 2)[:, None])
        frames = image.transpose(1, 2).flatten(2)
        summed = frames + self.lstm2(self.lstm1(frames)[0])[0]
        if self.config.head == "sigmoid":
            return summed.mean(dim=1)
        return self.output(summed.sum(dim=1))

    def classify(self, embedding: Tensor) -> Tensor:
        """Return logits (batch, 2) of utterance vectors."""
        if self.config.head == "sigmoid":
            bonafide = self.output(embedding)
            return torch.cat([torch.zeros_like(bonafide), bonafide], dim=1)
        return functional.normalize(embedding, dim=1) @ functional.normalize(self.classes, dim=0)
