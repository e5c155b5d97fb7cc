"""The input pipeline on one core: crops from files, and reading a protocol."""

from __future__ import annotations

import tempfile
from pathlib import Path

import soundfile
import torch
from torch.utils.data import DataLoader, Dataset

from asvspoof_cm._util import derive_seed
from asvspoof_cm.audio import CROP_SAMPLES, InputSettings, random_start
from asvspoof_cm.data import SpoofDataset, make_loader, read_protocol, write_miniature
from asvspoof_cm.data.protocol import OFFICIAL_COUNTS
from harness import Options, Row, interleave

N_CLIPS = 64


class WholeFileDataset(Dataset[tuple[torch.Tensor, int, int]]):
    """The usual loader: decode the whole file, repeat it where it is short, cut a random crop."""

    def __init__(self, paths: list[Path], labels: list[int], *, seed: int) -> None:
        self.paths, self.labels, self.seed = paths, labels, seed

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        samples, _ = soundfile.read(self.paths[index])
        waveform = torch.tensor(samples, dtype=torch.float32)
        if len(waveform) < CROP_SAMPLES:
            waveform = waveform.repeat(CROP_SAMPLES // len(waveform) + 1)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, 0, index))
        start = random_start(len(waveform), CROP_SAMPLES, generator)
        return waveform[start : start + CROP_SAMPLES], self.labels[index], index


def run(options: Options) -> list[Row]:
    """Measure in one process and one thread."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    n_rounds = (2, 1) if options.quick else (15, 3)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [_crops(Path(folder), n_rounds[0]), _protocol(Path(folder), n_rounds[1])]
    finally:
        torch.set_num_threads(n_threads)


def _crops(folder: Path, n_rounds: int) -> Row:
    paths = write_miniature(folder / "files", n_train=N_CLIPS, n_dev=2, duration_s=(12.0, 12.0))
    protocol = read_protocol(paths.train_protocol)
    names = [paths.audio_dir / "flac_T" / f"{name}.flac" for name in protocol.utterance]
    as_they_are = InputSettings(normalization="none")
    ours = SpoofDataset(protocol, paths.audio_dir, crop="random", seed=1, input=as_they_are)
    usual = WholeFileDataset(names, protocol.label.tolist(), seed=1)
    our_loader = make_loader(ours, shuffle=False, batch_size=16, n_workers=0)
    usual_loader = DataLoader(usual, batch_size=16)
    readers = {
        "ours": lambda: [batch.waveform for batch in our_loader],
        "usual": lambda: [waveforms for waveforms, _, _ in usual_loader],
    }
    ours_read, usual_read = (torch.cat(read()) for read in readers.values())
    deviation = float((ours_read - usual_read).abs().max())
    seconds = interleave(readers, n_rounds=n_rounds)
    case, usual_name = "crops of 4 s from 12 s FLAC files", "decode the whole file, tile, crop"
    rates = (N_CLIPS / each for each in seconds.values())
    about = {"times": 2.5, "deviation": deviation, "unit": "clips/s"}
    return Row.beside(case, *rates, usual_name, **about)


def _protocol(folder: Path, n_rounds: int) -> Row:
    path = folder / "ASVspoof5.eval.track_1.tsv"
    counts = OFFICIAL_COUNTS["eval"]
    n_lines = sum(counts.values())
    # A fixed stride visits every utterance once, in an order that is not sorted.
    with path.open("w") as file:
        for k in range(n_lines):
            number = k * 104729 % n_lines
            is_human = k < counts["bonafide"]
            attack = "- bonafide bonafide" if is_human else f"AC1 A{17 + k % 16} spoof"
            file.write(
                f"E_{number % 737:04d} E_{number:010d} M C{number % 12:02d} {number % 5} "
                f"E_{number // 12:010d} {attack} -\n"
            )

    def unchecked() -> object:
        with path.open() as file:
            return [line.split() for line in file]

    readers = {"ours": lambda: read_protocol(path, expect="eval"), "rows": unchecked}
    seconds = interleave(readers, n_rounds=n_rounds, warm_up=0)
    case = f"protocol of {n_lines:,} lines, read and checked"
    return Row.beside(case, *seconds.values(), "lists of strings, unchecked", times=1)
