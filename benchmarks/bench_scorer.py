"""Utterances a second, memory and the price of safety; what makes scoring faster on a CPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from asvspoof_cm.audio import load_audio, tta_crops
from asvspoof_cm.data import Protocol
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.models import TFPARN
from asvspoof_cm.scorer import Scorer
from bench_models import load_published
from harness import Options, Row, interleave

RATE = 16000
PEAK = """
import re, sys
from pathlib import Path
import torch
from asvspoof_cm.scorer import Scorer
scorer = Scorer(lambda w: torch.stack([w[:, ::37].mean(1), w[:, ::41].abs().mean(1)], dim=1))
for scored in scorer.score_files([sys.argv[1]] * int(sys.argv[2])):
    pass
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1))
"""


def run(options: Options) -> list[Row]:
    """Measure the scorer; the published AASIST only where ``--peer aasist=…``."""
    n_rounds = 2 if options.quick else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = loop_rows(folder, n_rounds, n_files=4 if options.quick else 12)
        rows += safety_rows(folder, n_rounds, n_files=4 if options.quick else 12)
        rows += memory_rows(folder, scale=10 if options.quick else 1)
        rows += backend_rows(folder, n_rounds)
        peer = options.peer("aasist")
        if peer is not None:
            rows += published_rows(peer, n_rounds=1 if options.quick else 3)
    return rows


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
        ratio = time_s["loop"] / time_s["ours"]
        rows.append(
            Row(
                case=f"files, {name}",
                ours=n_files / time_s["ours"],
                reference=n_files / time_s["loop"],
                reference_name="plain loop",
                ratio=ratio,
                deviation=deviation,
                unit="utterances/s",
                goal="≥ 1.3×",
                met=ratio >= 1.3 and deviation <= 1e-5,
            )
        )
    return rows


def safety_rows(folder: Path, n_rounds: int, n_files: int) -> list[Row]:
    """A protocol run that survives kills against the same utterances scored from memory."""
    scorer = Scorer(seeded_model(), device="cpu")
    paths = write_files(folder / "safety", np.full(n_files, 4.5))
    protocol = Protocol.from_columns([path.name for path in paths])
    waveforms = [load_audio(path) for path in paths]
    output = folder / "scores.tsv"
    time_s = interleave(
        {
            "ours": lambda: (
                output.unlink(missing_ok=True),
                scorer.score_protocol(protocol, paths[0].parent, output),
            ),
            "memory": lambda: scorer.score_batch(waveforms),
        },
        n_rounds=max(n_rounds, 9),  # the difference sought is small beside the noise
    )
    cost = time_s["ours"] / time_s["memory"] - 1
    return [
        Row(
            case="crash-safe protocol run, cost over scoring from memory",
            ours=100 * cost,
            unit="%",
            goal="< 3 %",
            met=cost < 0.03,
            note="decoding and writing included",
        )
    ]


def memory_rows(folder: Path, scale: int) -> list[Row]:
    """Peak memory of a process that scores many files against one that scores few."""
    path = write_files(folder / "memory", [1.0])[0]
    few, many = (whole_peak(path, n // scale) for n in (1_000, 10_000))
    return [
        Row(
            case=f"peak memory of {10_000 // scale:,} files beside {1_000 // scale:,}",
            ours=many,
            reference=few,
            reference_name="few files",
            ratio=few / many,
            unit="B",
            goal="differ by < 5 %",
            met=abs(many - few) < 0.05 * few,
            note="the whole process, model left out",
        )
    ]


def whole_peak(path: Path, n_files: int) -> int:
    """Return the peak resident bytes of a new process that scores a file `n_files` times."""
    child = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), str(n_files)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(child.stdout) * 1024


def backend_rows(folder: Path, n_rounds: int) -> list[Row]:
    """One batch of crops through what can run the model on a CPU, beside eager PyTorch."""
    model = seeded_model()
    waveform = torch.stack([normalized(speech(4.0, seed)) for seed in range(8)]).numpy()
    backends: dict[str, Callable[[Tensor], Tensor]] = {"eager": model}
    backends["torch.compile"] = torch.compile(model)
    try:
        from asvspoof_cm.export import export_onnx, load_onnx

        export_onnx(model, folder / "model.onnx")
        backends["ONNX Runtime"] = load_onnx(folder / "model.onnx")
    except ImportError:
        pass
    scorers = {name: Scorer(backend, device="cpu") for name, backend in backends.items()}
    scorers["eager, bf16"] = Scorer(model, device="cpu", precision="bf16")
    scores = {name: scorer.scores(scorer.logits(waveform)) for name, scorer in scorers.items()}
    time_s = interleave(
        {name: lambda s=scorer: s.logits(waveform) for name, scorer in scorers.items()},
        n_rounds=n_rounds,
    )
    rows = []
    for name in scorers:
        if name == "eager":
            continue
        ratio = time_s["eager"] / time_s[name]
        deviation = float(np.abs(scores[name] - scores["eager"]).max())
        rows.append(
            Row(
                case=f"TFPARN, {name}, seconds per crop, batch {len(waveform)}",
                ours=time_s[name] / len(waveform),
                reference=time_s["eager"] / len(waveform),
                reference_name="eager",
                ratio=ratio,
                deviation=deviation,
                unit="s",
                goal="≥ 1.5× at ≤ 1e-3",
                met=ratio >= 1.5 and deviation <= 1e-3,
            )
        )
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
    ratio = time_s["theirs"] / time_s["ours"]
    return [
        Row(
            case="TFPARN against the published AASIST, five crops each",
            ours=len(waveforms) / time_s["ours"],
            reference=len(waveforms) / time_s["theirs"],
            reference_name="published AASIST",
            ratio=ratio,
            unit="utterances/s",
            goal="≥ 13×",
            met=ratio >= 13,
            note="two models: the ratio that the paper measured on a GPU",
        )
    ]


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
        soundfile.write(paths[-1], speech(float(value), k).numpy(), RATE)
    return paths
