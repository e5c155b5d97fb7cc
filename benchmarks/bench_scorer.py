"""Utterances a second: the scorer beside a plain loop, and beside the published AASIST."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from asvspoof_cm.audio import load_audio, tta_crops
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.models import TFPARN
from asvspoof_cm.scorer import Scorer
from bench_models import load_published
from harness import Options, Row, interleave

RATE = 16000


def run(options: Options) -> list[Row]:
    """Measure the scorer; the published AASIST only where ``--peer aasist=…``."""
    n_rounds = 2 if options.quick else 3
    with tempfile.TemporaryDirectory() as folder:
        rows = loop_rows(Path(folder), n_rounds, n_files=4 if options.quick else 12)
    peer = options.peer("aasist")
    return rows if peer is None else rows + published_rows(peer, 1 if options.quick else 3)


def loop_rows(folder: Path, n_rounds: int, n_files: int) -> list[Row]:
    """Files with test-time augmentation against a plain loop over them with the same model."""
    model = seeded_model()
    scorer = Scorer(model, device="cpu")
    mixes = {
        "mixed lengths, 1-20 s": np.linspace(1, 20, n_files),
        "1-4 s, crops repeat": np.linspace(1, 4, n_files),
        "4 s, all crops equal": np.full(n_files, 4.0),
    }
    rows = []
    for k, (name, seconds) in enumerate(mixes.items()):
        paths = write_files(folder / f"mix{k}", seconds)
        expected = plain_loop(model, paths)
        deviation = float(np.abs(np.subtract(expected, files_scored(scorer, paths))).max())
        time_s = interleave(
            {
                "ours": lambda paths=paths: files_scored(scorer, paths),
                "loop": lambda paths=paths: plain_loop(model, paths),
            },
            n_rounds=n_rounds,
        )
        rates = (n_files / each for each in time_s.values())
        about = {"times": 1.3, "deviation": deviation, "within": 1e-5, "unit": "utterances/s"}
        rows.append(Row.beside(f"files, {name}", *rates, "plain loop", **about))
    return rows


def published_rows(peer: Path, n_rounds: int) -> list[Row]:
    """TFPARN in the scorer against the published AASIST in a loop, on the same crops."""
    theirs = load_published(peer)
    scorer = Scorer(seeded_model(), device="cpu")
    waveforms = [speech(seconds, k) for k, seconds in enumerate((1.5, 6.0, 13.0))]

    def published() -> list[float]:
        with torch.inference_mode():
            return [difference(theirs(crops_of(waveform))[1]) for waveform in waveforms]

    time_s = interleave(
        {"ours": lambda: scorer.score_batch(waveforms), "theirs": published}, n_rounds=n_rounds
    )
    case = "TFPARN against the published AASIST, five crops each"
    rates = (len(waveforms) / each for each in time_s.values())
    note = "two models: the ratio that the paper measured on a GPU"
    about = {"times": 13, "unit": "utterances/s", "note": note}
    return [Row.beside(case, *rates, "published AASIST", **about)]


def plain_loop(model: nn.Module, paths: Sequence[Path]) -> list[float]:
    """Score file after file, as one writes it down first."""
    with torch.inference_mode():
        return [difference(model(crops_of(load_audio(path)))) for path in paths]


def files_scored(scorer: Scorer, paths: Sequence[Path]) -> list[float]:
    """Score the files with the scorer."""
    return [scored.result.score for scored in scorer.score_files(paths)]


def crops_of(waveform: Tensor) -> Tensor:
    """Return the five crops of the paper."""
    return tta_crops(normalized(waveform))


def normalized(waveform: Tensor) -> Tensor:
    """Return a waveform whose largest magnitude is 1."""
    return waveform / waveform.abs().max()


def difference(logits: Tensor) -> float:
    """Return the score of averaged logits."""
    mean = logits.mean(dim=0)
    return float(mean[BONAFIDE] - mean[SPOOF])


def seeded_model() -> TFPARN:
    """Return a TFPARN of random weights."""
    torch.manual_seed(0)
    return TFPARN().eval()


def speech(seconds: float, seed: int) -> Tensor:
    """Return a tone with slow level changes and noise, shape (time,)."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(int(seconds * RATE)) / RATE
    tone = torch.sin(2 * torch.pi * (150 + 30 * (seed % 7)) * t) * (0.3 + 0.2 * torch.sin(9 * t))
    return tone + 0.02 * torch.randn(len(t), generator=generator)


def write_files(folder: Path, seconds: Sequence[float]) -> list[Path]:
    """Write a FLAC of each length."""
    folder.mkdir()
    paths = []
    for k, value in enumerate(seconds):
        paths.append(folder / f"{k:03d}.flac")
        samples = speech(float(value), k).numpy()
        samples[[0, -1]] = 0.1  # the scorer leaves out digital silence at the ends
        soundfile.write(paths[-1], samples, RATE)
    return paths
