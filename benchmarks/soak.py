"""A long run of bulk scoring and of the service, with one bad input in a hundred.

    nice -n 19 python benchmarks/soak.py --minutes 30

One call of `Scorer.score_files` goes through an endless list while requests go to a service in a
process of its own. Every input must be answered once: a good one with the score that it had the
first time, a bad one with an error. The record, ``results/soak.json``, has the memory of both
processes over time. Both use one thread and a small model with random weights.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import httpx
import numpy as np
import soundfile
import torch

from asvspoof_cm import Scorer, save_checkpoint
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.models import TFPARN, TFPARNConfig
from harness import Row, resident, write_results
from service import Server, serve

BAD_SHARE = 0.01
SMALL = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=8, n_mels=40)
TOLERANCE = 1e-4
"""How far a score may move when other crops share its batch."""

SAMPLE_EVERY_S = 15.0


@dataclass
class Tally:
    """What came back from one side."""

    first: dict[Path, float] = field(default_factory=dict)
    n_answers: int = 0
    n_errors: int = 0
    n_wrong: int = 0
    deviation: float = 0.0

    def add(self, path: Path, is_bad: bool, score: float | None) -> None:
        """Count one answer; None is an error."""
        self.n_answers += 1
        if is_bad or score is None:
            self.n_errors += 1
            self.n_wrong += is_bad != (score is None)
            return
        change = abs(score - self.first.setdefault(path, score))
        self.deviation = max(self.deviation, change)
        self.n_wrong += not change <= TOLERANCE


def make_inputs(folder: Path, rng: np.random.Generator) -> tuple[list[Path], list[Path]]:
    """Write good files of several formats, rates and lengths, and bad ones of every kind."""
    good, bad = [], []
    kinds = [("wav", "PCM_16"), ("flac", "PCM_16"), ("ogg", "VORBIS"), ("mp3", "MPEG_LAYER_III")]
    for k, (kind, rate) in enumerate(itertools.product(kinds, (8000, 16000, 44100))):
        for duration_s in (0.6, 1.5, 5.0):
            samples = 0.1 * rng.standard_normal((round(duration_s * rate), 1 + k % 2))
            path = folder / f"{k}-{duration_s}.{kind[0]}"
            soundfile.write(path, samples, rate, subtype=kind[1])
            good.append(path)
    whole = good[1].read_bytes()
    nan = io.BytesIO()
    soundfile.write(nan, np.full(16000, np.nan), 16000, format="WAV", subtype="FLOAT")
    contents = {
        "empty.wav": b"",
        "text.wav": b"this is not audio\n" * 100,
        "cut.wav": whole[: len(whole) // 2],
        "header.wav": whole[:44],
        "noise.flac": b"fLaC" + rng.bytes(5000),
        "noise.mp3": b"\xff\xfb\x90\x00" + bytes(3),
        "nan.wav": nan.getvalue(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        bad.append(folder / name)
    return good, bad


def draw(good: Sequence[Path], bad: Sequence[Path], rng: np.random.Generator) -> Iterator[Path]:
    """Yield inputs for ever, one in a hundred of them bad."""
    while True:
        kind = bad if rng.random() < BAD_SHARE else good
        yield kind[rng.integers(len(kind))]


def ask(http: httpx.Client, path: Path, statuses: Counter[int]) -> float | None:
    """Return the service's score of a file, None where it refuses it."""
    answer = http.post("/v1/score", content=path.read_bytes())
    statuses[answer.status_code] += 1
    return answer.json()["score"] if answer.status_code == 200 else None


def soak(minutes: float, seed: int, n_per_turn: int = 10) -> tuple[list[Row], dict[str, object]]:
    """Run both for so long, and return the rows and the memory over time."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as work:
        good, bad = make_inputs(Path(work), rng)
        checkpoint = Path(work) / "small.pt"
        calibration = Calibration(scale=1.0, offset=0.0).as_dict()
        save_checkpoint(checkpoint, TFPARN(SMALL), calibration=calibration)
        scorer = Scorer.from_checkpoint(checkpoint, device="cpu")
        with serve(checkpoint, "--decoders", "1") as server:
            return _run(scorer, server, good, bad, rng, 60 * minutes, n_per_turn)


def _run(
    scorer: Scorer,
    server: Server,
    good: Sequence[Path],
    bad: Sequence[Path],
    rng: np.random.Generator,
    seconds: float,
    n_per_turn: int,
) -> tuple[list[Row], dict[str, object]]:
    sent, requests = itertools.tee(draw(good, bad, rng))  # the same files to both
    given: list[Path] = []  # to `score_files`, not answered yet

    def paths() -> Iterator[Path]:
        for path in sent:
            given.append(path)
            yield path

    files, service, statuses = Tally(), Tally(), Counter[int]()
    series: list[dict[str, float]] = []
    start, due, n_out_of_order = time.monotonic(), 0.0, 0
    answers = scorer.score_files(paths(), n_threads=1)
    with httpx.Client(base_url=server.address, timeout=120) as http:
        before = server.n_answered()
        while (elapsed := time.monotonic() - start) < seconds:
            if elapsed >= due:
                due += SAMPLE_EVERY_S
                series.append(
                    {
                        "seconds": round(elapsed, 1),
                        "score_files_bytes": resident("VmRSS"),
                        "service_bytes": server.memory(),
                        "n_files": files.n_answers,
                        "n_requests": sum(statuses.values()),
                    }
                )
            for answer in itertools.islice(answers, n_per_turn):
                path = given.pop(0)
                n_out_of_order += answer.name != str(path)
                files.add(path, path in bad, answer.score)
            for path in itertools.islice(requests, n_per_turn):
                service.add(path, path in bad, ask(http, path, statuses))
        answered = server.n_answered() - before
    rows = [
        _answers_row("score_files", files, len(given), n_out_of_order),
        _answers_row("service", service, sum(statuses.values()) - answered, 0),
        *(_memory_row(name, series) for name in ("score_files", "service")),
    ]
    return rows, {"seconds": seconds, "statuses": dict(statuses), "series": series}


def _answers_row(name: str, tally: Tally, n_missing: int, n_out_of_order: int) -> Row:
    """What is waiting in `score_files` when the time is up is bounded, and is not lost."""
    note = f"{tally.n_errors} bad; {tally.n_wrong} wrong, {n_out_of_order} out of order"
    if name == "score_files":
        note += f"; {n_missing} read ahead when the time was up"
    is_complete = n_missing == 0 if name == "service" else n_missing < 200
    return Row(
        case=f"{name}: inputs answered",
        ours=tally.n_answers,
        unit="",
        deviation=tally.deviation,
        goal="each once, as the first time",
        met=tally.n_wrong == n_out_of_order == 0 and is_complete,
        note=note,
    )


def _memory_row(name: str, series: Sequence[dict[str, float]]) -> Row:
    """Compare the last quarter of the time with the second: in the first, caches fill."""
    warm = [s for s in series if s["seconds"] >= series[-1]["seconds"] / 4]
    memory = np.array([sample[f"{name}_bytes"] for sample in warm])
    third = max(1, len(memory) // 3)
    first, last = np.median(memory[:third]), np.median(memory[-third:])
    minutes = np.array([sample["seconds"] for sample in warm]) / 60
    slope = np.polyfit(minutes, memory, 1)[0] / 1024 if len(warm) > 2 else 0.0
    note = f"{slope:+.1f} KiB per minute, peak {memory.max() / 2**20:.1f} MiB"
    case = f"{name}: resident memory, median of the last quarter"
    figures = float(last), float(first)
    return Row.beside(case, *figures, "second quarter", times=0.98, unit="B", note=note)


def main() -> None:
    """Soak, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows, details = soak(args.minutes, args.seed)
    write_results("soak", rows, **details)
    for row in rows:
        print(f"{row.case}: {row.ours:.6g} ({row.note}) {'met' if row.met else 'NOT met'}")


if __name__ == "__main__":
    main()
