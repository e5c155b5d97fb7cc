"""Speech with a synthetic part: rows for training, and a development set with its key.

    python recipes/splices.py --data DIR --out DIR/splices

A part of one recording takes the place of a part of another, of the same source: cut at zero
crossings, at the level of what it replaces, with or without a cross-fade. Half of what is made has
a human part in the middle, so that a joint alone says nothing. The development set is made of
recordings of 4 s + 2 s + 4 s; ``key.csv`` says where the synthetic part lies.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor

from asvspoof_cm import BONAFIDE, SPOOF
from asvspoof_cm.labels import SAMPLE_RATE

HOP = SAMPLE_RATE // 50
"""Samples of a frame that has a label."""
TABLES = ("demopages", "demopages2", "corpus")
Array = np.ndarray[Any, np.dtype[np.float64]]


def zero_crossing(waveform: Array, place: int, reach: int = 80) -> int:
    """Return the change of sign that is closest to a sample, within 5 ms; else that sample.

    Example:
        >>> zero_crossing(np.array([1.0, 1.0, 1.0, -1.0, -1.0]), 1)
        3
    """
    first = max(place - reach, 1)
    near = waveform[first - 1 : place + reach]
    found = np.flatnonzero(np.signbit(near[1:]) != np.signbit(near[:-1]))
    return place if not len(found) else first + int(found[np.argmin(abs(found + first - place))])


def splice(base: Array, part: Array, start: int, *, fade: int = 0) -> tuple[Array, int, int]:
    """Return `base` with `part` from about sample `start` on, and where the part lies.

    Args:
        base: Waveform of shape (time,).
        part: What takes the place of a part of it, shape (n,).
        start: Where it begins.
        fade: Samples of the cross-fade at both ends; 0 for none.
    """
    start = zero_crossing(base, start)
    stop = zero_crossing(base, min(start + len(part), len(base)))
    first = zero_crossing(part, min(80, len(part) - 1))
    inside = part[first : max(first + 1, zero_crossing(part, min(first + stop - start, len(part))))]
    level = np.sqrt(np.mean(base[start:stop] ** 2) / (np.mean(inside**2) + 1e-12))
    inside = inside * np.clip(level, 0.1, 10.0)
    made = np.concatenate([base[:start], inside, base[stop:]])[: len(base)]
    made = np.pad(made, (0, len(base) - len(made)), mode="reflect")
    stop = min(start + len(inside), len(base))
    if fade > 1:
        edge = np.minimum(np.arange(1, stop - start + 1), np.arange(stop - start, 0, -1))
        share = np.minimum(1.0, edge / fade)
        made[start:stop] = share * made[start:stop] + (1 - share) * base[start:stop]
    return made, start, stop


def spliced_rows(
    waveforms: Tensor, labels: Tensor, n_rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return waveforms made of two rows each, and their frame labels.

    A pair is the k-th row of each class, as `matched_pairs` draws them: its rows are of one source
    and often of one recording. A third of the rows get a part of another row of their own class.

    Args:
        waveforms: Shape (batch, time).
        labels: Shape (batch,).
        n_rows: How many to make.
        generator: What decides everything.

    Returns:
        Waveforms (n_rows, time) and labels (n_rows, n_frames) of their frames.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    rng = np.random.default_rng(seed)
    audio, n_samples = waveforms.double().numpy(), waveforms.shape[1]
    of_class = [np.flatnonzero(labels.numpy() == label) for label in (SPOOF, BONAFIDE)]
    made = np.empty((n_rows, n_samples))
    frames = np.empty((n_rows, n_samples // HOP), dtype=np.int64)
    for row in range(n_rows):
        own = int(rng.random() < 0.7)  # more often a synthetic part than a human one
        other = own if rng.random() < 1 / 3 else 1 - own
        k = int(rng.integers(min(map(len, of_class))))
        inside = k if other != own else int(rng.integers(len(of_class[other])))
        length = int(rng.uniform(0.2, 0.65) * n_samples)
        start = int(rng.integers(n_samples - length))
        fade = int(rng.choice([0, 0, 80, 320]))
        base, part = audio[of_class[own][k]], audio[of_class[other][inside]]
        made[row], first, last = splice(base, part[start : start + length], start, fade=fade)
        frames[row] = own
        frames[row, round(first / HOP) : round(last / HOP)] = other
    return torch.from_numpy(made).to(waveforms.dtype), torch.from_numpy(frames)


def make_dev(data: Path, out: Path, most: int = 4, seed: int = 5) -> int:
    """Write the development set: splices and all-human recordings of each source; return how many.

    Args:
        data: The folder of the corpora, each with its table ``corpus.tsv``.
        out: Gets ``audio/``, ``key.csv`` and ``corpus.tsv``.
        most: Recordings of each kind and source.
        seed: What decides parts, places and fades.
    """
    table, key = [], []
    for name in TABLES:
        path = data / name / "corpus.tsv"
        if not path.is_file():
            continue
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        rows = [row for row in rows if row["split"] == "dev"]
        for source in sorted({row["source"] for row in rows}):
            human, fake = (
                sorted(
                    (row for row in rows if row["source"] == source and row["label"] == label),
                    key=lambda row: md5(row["utterance"].encode()).hexdigest(),
                )
                for label in ("bonafide", "spoof")
            )
            for k in range(most if len(human) >= 6 and len(fake) >= 2 else 0):
                digest = md5(f"{seed} {source} {k}".encode()).digest()
                rng = np.random.default_rng(list(digest))
                for kind, parts in (("spliced", fake), ("human", human)):
                    utterance = f"{name}-{source.replace('/', '+')}-{k}-{kind}"
                    made = _recording(data / name, human, parts[k % len(parts)], rng)
                    if made is None:
                        continue
                    waveform, start_s, end_s = made
                    where = out / "audio" / f"{utterance}.flac"
                    where.parent.mkdir(parents=True, exist_ok=True)
                    soundfile.write(where, waveform, SAMPLE_RATE)
                    label = "spoof" if kind == "spliced" else "bonafide"
                    table.append([utterance, f"audio/{where.name}", label, kind, source, "dev"])
                    duration_s = len(waveform) / SAMPLE_RATE
                    key += _segments(utterance, duration_s, start_s, end_s, label)
    _write(out / "corpus.tsv", "\t", [_TABLE, *table])
    _write(out / "key.csv", ",", [["utterance", "start", "end", "label"], *key])
    return len(table)


_TABLE = ["utterance", "path", "label", "generator", "source", "split"]


def _recording(
    folder: Path, human: Sequence[dict[str, str]], part: dict[str, str], rng: np.random.Generator
) -> tuple[Array, float, float] | None:
    """Return 8 s of a source's people with a part of up to 2 s in the middle, and its place."""
    read = [soundfile.read(folder / row["path"])[0] for row in rng.permutation(list(human))[:12]]  # type: ignore[arg-type]
    base = np.concatenate([w / (abs(w).max() + 1e-9) for w in read])[: 8 * SAMPLE_RATE]
    inside = soundfile.read(folder / part["path"])[0]
    if len(base) < 6 * SAMPLE_RATE or len(inside) < SAMPLE_RATE:
        return None
    first = int(rng.integers(max(1, len(inside) - 2 * SAMPLE_RATE)))
    inside = inside[first : first + 2 * SAMPLE_RATE]
    middle = len(base) // 2 + int(rng.integers(-SAMPLE_RATE, SAMPLE_RATE))
    whole = np.insert(base, middle, np.zeros(len(inside)))
    whole[middle : middle + len(inside)] = base[middle - len(inside) : middle]  # a level to match
    made, start, stop = splice(whole, inside, middle, fade=int(rng.choice([0, 160])))
    return 0.9 * made / abs(made).max(), start / SAMPLE_RATE, stop / SAMPLE_RATE


def _segments(
    utterance: str, duration_s: float, start_s: float, end_s: float, label: str
) -> list[list[Any]]:
    if label == "bonafide":
        return [[utterance, 0.0, round(duration_s, 3), "bonafide"]]
    return [
        [utterance, 0.0, round(start_s, 3), "bonafide"],
        [utterance, round(start_s, 3), round(end_s, 3), "spoof"],
        [utterance, round(end_s, 3), round(duration_s, 3), "bonafide"],
    ]


def _write(path: Path, delimiter: str, rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)


def main() -> None:
    """Make the development set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=4, help="of each kind and source (4)")
    args = parser.parse_args()
    print(f"{make_dev(args.data, args.out, args.most)} recordings in {args.out}")


if __name__ == "__main__":
    main()
