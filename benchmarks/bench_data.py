"""The input pipeline: crops from files and from memory, and reading a protocol."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import soundfile
import torch
from torch.utils.data import DataLoader, Dataset

from asvspoof_cm._util import derive_seed
from asvspoof_cm.audio import CROP_SAMPLES, InputSettings, random_start
from asvspoof_cm.data import SpoofDataset, make_loader, read_protocol, write_miniature
from asvspoof_cm.data.protocol import OFFICIAL_COUNTS
from harness import Options, Row, interleave, peak_memory

N_CLIPS = 64
DURATION_S = 12.0


class WholeFileDataset(Dataset[tuple[torch.Tensor, int, int]]):
    """The usual loader: decode the whole file, repeat it where it is short, cut a random crop."""

    def __init__(self, paths: list[Path], labels: list[int], *, seed: int, normalize: bool) -> None:
        self.paths, self.labels, self.seed = paths, labels, seed
        self.normalize = normalize

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        samples, _ = soundfile.read(self.paths[index])
        waveform = torch.tensor(samples, dtype=torch.float32)
        if len(waveform) < CROP_SAMPLES:
            waveform = waveform.repeat(CROP_SAMPLES // len(waveform) + 1)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, index))
        start = random_start(len(waveform), CROP_SAMPLES, generator)
        waveform = waveform[start : start + CROP_SAMPLES]
        if self.normalize:
            waveform = waveform / waveform.abs().max()
        return waveform, self.labels[index], index


def run(options: Options) -> list[Row]:
    """Measure on one core, in one process."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            # Memory comes first: a child's peak counts from what its parent held.
            protocol = _protocol(Path(folder), 1 if options.quick else 3)
            return _pipeline(Path(folder), 3 if options.quick else 15) + protocol
    finally:
        torch.set_num_threads(n_threads)


def _pipeline(folder: Path, n_rounds: int) -> list[Row]:
    durations = (DURATION_S, DURATION_S)
    paths = write_miniature(folder / "files", n_train=N_CLIPS, n_dev=2, duration_s=durations)
    protocol = read_protocol(paths.train_protocol)
    names = [paths.audio_dir / "flac_T" / f"{name}.flac" for name in protocol.utterance]
    loaders: dict[tuple[str, bool], Any] = {}
    for normalize in (False, True):
        usual = WholeFileDataset(names, protocol.label.tolist(), seed=1, normalize=normalize)
        loaders["usual", normalize] = DataLoader(usual, batch_size=16)
        level = "crop" if normalize else "none"
        for kind in ("files", "memory"):
            ours = SpoofDataset(
                protocol,
                paths.audio_dir,
                crop="random",
                seed=1,
                input=InputSettings(normalization=level),
                in_memory=kind == "memory",
            )
            loaders[kind, normalize] = make_loader(ours, shuffle=False, batch_size=16, n_workers=0)
    readers = {str(key): _reader(loader) for key, loader in loaders.items()}
    seconds = interleave(readers, n_rounds=n_rounds)
    rows = []
    for kind, goal, case in (
        ("files", 2.5, "crops of 4 s from 12 s FLAC files, one core"),
        ("memory", 8.0, "the same crops from memory (in_memory=True), one core"),
    ):
        for normalize in (False, True):
            ours_s, usual_s = (seconds[str((name, normalize))] for name in (kind, "usual"))
            found, expected = (
                torch.cat([_waveform(batch) for batch in loaders[name, normalize]])
                for name in (kind, "usual")
            )
            rows.append(
                Row(
                    case=case,
                    ours=N_CLIPS / ours_s,
                    unit="clips/s",
                    reference=N_CLIPS / usual_s,
                    reference_name="decode the whole file, tile, crop",
                    ratio=usual_s / ours_s,
                    deviation=float((found - expected).abs().max()),
                    goal=f"≥ {goal}×",
                    met=usual_s / ours_s >= goal,
                    note="both peak-normalise the crop" if normalize else "neither normalises",
                )
            )
    return rows


def _waveform(batch: Any) -> torch.Tensor:
    """Return the waveforms of a `Batch` or of the tuple that torch's own collation gives."""
    return batch[0] if isinstance(batch, list) else batch.waveform


def _reader(loader: Any) -> Callable[[], None]:
    def read() -> None:
        for _ in loader:
            pass

    return read


def _protocol(folder: Path, n_rounds: int) -> list[Row]:
    path = folder / "ASVspoof5.eval.track_1.tsv"
    counts = OFFICIAL_COUNTS["eval"]
    n_lines = sum(counts.values())
    # A fixed stride visits every utterance once, in an order that is not sorted.
    with path.open("w") as file:
        for k in range(n_lines):
            number = k * 104729 % n_lines
            attack = (
                "- bonafide bonafide" if k < counts["bonafide"] else f"AC1 A{17 + k % 16} spoof"
            )
            file.write(
                f"E_{number % 737:04d} E_{number:010d} M C{number % 12:02d} {number % 5} "
                f"E_{number // 12:010d} {attack} -\n"
            )
    memory = {task.__name__: peak_memory(task, path) for task in (read_task, rows_task)}
    seconds = interleave(
        {"ours": lambda: read_protocol(path, expect="eval"), "rows": lambda: _rows(path)},
        n_rounds=n_rounds,
        warm_up=0,
    )
    case = f"protocol of {n_lines:,} lines"
    shared = {"reference_name": "lists of strings, unchecked"}
    return [
        Row(
            case=f"{case}, read and checked",
            ours=seconds["ours"],
            unit="s",
            reference=seconds["rows"],
            ratio=seconds["rows"] / seconds["ours"],
            goal="≤ 2 s",
            met=seconds["ours"] <= 2,
            **shared,
        ),
        Row(
            case=f"{case}, peak memory",
            ours=memory["read_task"],
            unit="B",
            reference=memory["rows_task"],
            ratio=memory["rows_task"] / memory["read_task"],
            **shared,
        ),
    ]


def _rows(path: Path) -> list[list[str]]:
    with path.open() as file:
        return [line.split() for line in file]


def read_task(path: Path) -> Callable[[], object]:
    """Return what `peak_memory` measures of ours."""
    return lambda: read_protocol(path)


def rows_task(path: Path) -> Callable[[], object]:
    """Return what `peak_memory` measures of the reference."""
    return lambda: _rows(path)
