"""Acoustic fingerprints: is one recording on both sides of a split?

After Haitsma and Kalker (2002): a bit says whether the difference of energy between two adjacent
bands rises from one frame to the next. Level changes no bit, a codec few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.fft
import scipy.signal

from asvspoof_cm.labels import SAMPLE_RATE
from minispoof.speech import Array

Words = np.ndarray[Any, np.dtype[np.uint32]]

N_FFT: Final = 2048
HOP: Final = 128
_CORNERS_HZ: Final = np.geomspace(300, 3400, 34)
_FEWEST_FRAMES: Final = 30
_LARGEST_ERROR: Final = 0.35
_MOST_OCCURRENCES: Final = 50


class Match(NamedTuple):
    """Two clips of one recording, and the share of their bits that differ."""

    first: str
    second: str
    error: float


def fingerprint(waveform: Array) -> Words:
    """Return 32 bits for every 16 ms of a waveform of shape (time,) at 16 kHz."""
    narrow = scipy.signal.resample_poly(waveform, 1, 2).astype(np.float32)
    padded = np.pad(narrow, (0, max(0, N_FFT + HOP - len(narrow))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    spectrum = scipy.fft.rfft(frames * np.hanning(N_FFT).astype(np.float32), axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    edges = np.round(_CORNERS_HZ / (SAMPLE_RATE // 2) * N_FFT).astype(int)
    energy = np.add.reduceat(power, edges, axis=1)[:, :-1]
    slope = np.diff(np.log(energy + 1e-10), axis=1)
    bits = np.diff(slope, axis=0) > 0
    words = np.packbits(bits, axis=1).astype(np.uint32) @ (256 ** np.arange(3, -1, -1))
    return words.astype(np.uint32)


def shared_recordings(first: Mapping[str, Words], second: Mapping[str, Words]) -> list[Match]:
    """Return the pairs of clips, one of each side, that hold the same recording.

    Clips that share a word are laid over each other there: the same recording differs in less than
    35 % of the bits, others in more than 40 %. Of recordings that went through MP3, Opus or the
    telephone's mu-law all are found, through GSM about every second.
    """
    names, prints = [*second], [*second.values()]
    words = np.concatenate([*prints, np.empty(0, np.uint32)])
    owner = np.repeat(np.arange(len(prints)), [len(print_) for print_ in prints])
    place = np.concatenate([*(np.arange(len(print_)) for print_ in prints), np.empty(0, int)])
    order = np.argsort(words, kind="stable")
    words, owner, place = words[order], owner[order], place[order]
    matches = []
    for name, print_ in first.items():
        low, high = (np.searchsorted(words, print_, side) for side in ("left", "right"))
        # Words of silence and of hum stand everywhere and say nothing.
        counts = np.where(high - low > _MOST_OCCURRENCES, 0, high - low)
        at = np.repeat(np.arange(len(print_)), counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        hits = np.repeat(low, counts) + np.arange(len(at)) - starts
        candidates = np.stack([owner[hits], place[hits] - at], axis=1)
        best: dict[int, float] = {}
        for number, shift in np.unique(candidates, axis=0).tolist():
            error = _bit_error(print_, prints[number], shift)
            best[number] = min(error, best.get(number, 1.0))
        matches += [
            Match(name, names[number], error)
            for number, error in best.items()
            if error < _LARGEST_ERROR
        ]
    return matches


def _bit_error(first: Words, second: Words, shift: int) -> float:
    """Return the share of bits that differ where `first` lies `shift` frames into `second`."""
    overlap = slice(max(0, -shift), min(len(first), len(second) - shift))
    n_frames = overlap.stop - overlap.start
    if n_frames < _FEWEST_FRAMES:
        return 1.0
    other = second[overlap.start + shift : overlap.stop + shift]
    return float(np.bitwise_count(first[overlap] ^ other).mean()) / 32
