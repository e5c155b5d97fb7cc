"""A speaker encoder: speech in, a voice vector of unit length out.

The network is that of generalised end-to-end training (GE2E; Wan et al., 2018, arXiv:1710.10467),
three LSTM layers and a projection; the weights are those that the PyPI package ``resemblyzer``
carries (Apache-2.0). Only that file is used:

    pip install --no-deps resemblyzer==0.1.4

Its code isn't imported. It needs librosa, numba, a compiler for webrtcvad, and ``typing``, which
puts an outdated copy of a module of the standard library into site-packages. It also leaves
``weights_only`` to the default of the installed torch.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asvspoof_cm.audio import SAMPLE_RATE
from asvspoof_cm.checkpoint import load_tensors

N_MELS, N_FFT, HOP_LENGTH = 40, 400, 160
N_FRAMES = 160
"""Frames of a window, 1.6 s: what the network was trained on."""

FRAME_STEP = 77
"""Frames from window to window."""

LEVEL_DB = -30.0
"""Speech that is quieter than this (RMS, re full scale) is amplified to it: the features are
powers, not their logarithms."""

PAUSE_S, PAUSE_DB = 0.2, 35.0
"""Pauses are shortened to this length; a pause lies this far below the loudest 30 ms."""


class SpeakerEncoder(nn.Module):
    """Maps 16 kHz speech to a vector of unit length; voices are compared by cosine.

    Args:
        weights: The file of weights; None is that of the installed ``resemblyzer``.

    Raises:
        ImportError: There is no such package.
    """

    filterbank: Tensor
    window: Tensor

    def __init__(self, weights: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.lstm = nn.LSTM(N_MELS, 256, num_layers=3, batch_first=True)
        self.linear = nn.Linear(256, 256)
        self.register_buffer("filterbank", slaney_filterbank(), persistent=False)
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)
        stored = load_tensors(packaged_weights() if weights is None else weights)["model_state"]
        # The file also holds the two numbers of the training loss.
        self.load_state_dict({name: stored[name] for name in self.state_dict()})
        self.eval()

    def forward(self, mel: Tensor) -> Tensor:
        """Return unit vectors (batch, 256) of Mel powers (batch, n_frames, n_mels)."""
        _, (hidden, _) = self.lstm(mel)
        return nn.functional.normalize(self.linear(hidden[-1]).relu(), dim=-1)

    def embed(self, speech: Tensor) -> NDArray[np.float32]:
        """Return the unit vector (256,) of 16 kHz speech (time,): the mean over its windows.

        Levels and pauses are left as they are; see `prepare_speech`.
        """
        starts = window_starts(len(speech))
        n_needed = (starts[-1] + N_FRAMES) * HOP_LENGTH
        padded = nn.functional.pad(speech, (0, max(0, n_needed - len(speech))))
        with torch.inference_mode():
            spectrum = torch.stft(
                padded,
                N_FFT,
                HOP_LENGTH,
                window=self.window,
                pad_mode="constant",
                return_complex=True,
            )
            mel = (self.filterbank @ spectrum.abs().square()).T
            windows = torch.stack([mel[start : start + N_FRAMES] for start in starts])
            return nn.functional.normalize(self(windows).mean(dim=0), dim=0).numpy()


def mean_voice(vectors: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the mean direction (d,) of unit vectors (d,) of one speaker."""
    mean = np.mean(vectors, axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def packaged_weights() -> Path:
    """Return the file of weights inside the installed package, which is not imported."""
    try:
        package = importlib.metadata.distribution("resemblyzer")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(
            "the speaker encoder needs the weights inside the package resemblyzer: "
            "pip install --no-deps resemblyzer==0.1.4"
        ) from None
    return Path(str(package.locate_file("resemblyzer/pretrained.pt")))


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


def window_starts(n_samples: int) -> list[int]:
    """Return the first frame of each window; the last one has at least 75 % of speech."""
    n_frames = math.ceil((n_samples + 1) / HOP_LENGTH)
    starts = list(range(0, max(1, n_frames - N_FRAMES + FRAME_STEP + 1), FRAME_STEP))
    covered = (n_samples / HOP_LENGTH - starts[-1]) / N_FRAMES
    return starts[:-1] if covered < 0.75 and len(starts) > 1 else starts


def slaney_filterbank() -> Tensor:
    """Return triangular filters (n_mels, n_fft // 2 + 1) of area 1 on Slaney's Mel scale.

    The scale is linear up to 1 kHz, 15 bands, and logarithmic above, 27 bands to 6.4 kHz. The
    library's own `mel_filterbank` is another: triangles of height 1 on the scale of HTK.
    """
    log_step = math.log(6.4) / 27.0
    highest = 15.0 + math.log(SAMPLE_RATE / 2 / 1000.0) / log_step
    mels = np.linspace(0.0, highest, N_MELS + 2)
    corners = np.where(mels < 15.0, mels * 200.0 / 3.0, 1000.0 * np.exp(log_step * (mels - 15.0)))
    bins = np.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    left, centre, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    triangles = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre))
    return torch.from_numpy(triangles.clip(0.0) * 2.0 / (right - left)).float()
