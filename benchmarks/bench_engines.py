"""Bulk scoring by shards, Ray Data and datasets: two workers against one, overhead and memory.

Every measurement is a process of its own with all that it starts. Its model notes the time of each
batch, so that starting and ending count neither for nor against an engine.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from asvspoof_cm.data import Protocol
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.models import TFPARN
from asvspoof_cm.scorer import Scorer, merge_scores
from harness import Options, Row

ENGINES = {
    "shards": "shards as processes",
    "ray": "Ray Data",
    "datasets": "Hugging Face datasets",
}
PARTS = tuple(f"{kind}-{engine}" for kind in ("workers", "size") for engine in ENGINES)
RATE = 16000
CROP_S = 0.5
BATCH = 32
OPTIONS: Mapping[str, Any] = {"n_crops": 1, "crop_s": CROP_S, "batch_size": BATCH}
N_CLIPS = 50


def run(options: Options) -> list[Row]:
    """Measure on clips of half a second, made here: ``--part workers-shards size-ray …``."""
    n_work = 320 if options.quick else 1_500
    few, many = (100, 500) if options.quick else (1_000, 20_000)
    work = [engine for engine in ENGINES if options.wants(f"workers-{engine}")]
    size = [engine for engine in ENGINES if options.wants(f"size-{engine}")]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        if work:
            corpus = write_corpus(Path(name) / "work", n_work)
            rows += worker_rows(work, corpus, n_rounds=1 if options.quick else 2)
        if size:
            corpora = [write_corpus(Path(name) / str(n), n) for n in (few, many)]
            rows += size_rows(size, *corpora)
    return rows


def worker_rows(engines: Sequence[str], corpus: Corpus, n_rounds: int) -> list[Row]:
    """One and two workers in turn, with a model that keeps a core busy.

    The better round of each counts: whatever else the machine does hurts two workers most.
    """
    expected = loop_scores(corpus, busy_model())
    rows = []
    for engine in engines:
        rounds = [measure(engine, corpus, "busy", n) for _ in range(n_rounds) for n in (1, 2)]
        one, two = (max(rounds[k::2], key=lambda each: each.per_s) for k in (0, 1))
        ratio = two.per_s / one.per_s
        unhindered = two.unhindered_per_s / one.unhindered_per_s
        deviation = max(largest_difference(each.scores, expected) for each in rounds)
        rows.append(
            Row(
                case=f"{ENGINES[engine]}, two workers, {len(corpus.names):,} utterances",
                ours=two.per_s,
                unit="utterances/s",
                reference=one.per_s,
                reference_name="one worker",
                ratio=ratio,
                deviation=deviation,
                goal="≥ 1.8×",
                met=ratio >= 1.8 and deviation <= 1e-5,
                note=f"{unhindered:.2f}× where waits for a core are left out",
            )
        )
    return rows


def size_rows(engines: Sequence[str], small: Corpus, large: Corpus) -> list[Row]:
    """What an utterance costs beside its model in one worker, and memory as the corpus grows."""
    start = time.perf_counter()
    expected = loop_scores(large, Light())
    loop_s = (time.perf_counter() - start) / len(large.names)
    rows = []
    for engine in engines:
        title = ENGINES[engine]
        few, many = (measure(engine, corpus, "light", 1) for corpus in (small, large))
        each_s = 1 / many.per_s
        rows += [
            Row(
                case=f"{title}, one worker, time per utterance with a model that takes none",
                ours=each_s,
                unit="s",
                reference=loop_s,
                reference_name="plain loop",
                ratio=loop_s / each_s,
                deviation=largest_difference(many.scores, expected),
                note=f"overhead {1e6 * (each_s - loop_s):.0f} µs",
            ),
            Row(
                case=f"{title}, peak memory, {len(large.names):,} utterances",
                ours=many.peak_bytes,
                unit="B",
                reference=few.peak_bytes,
                reference_name=f"{len(small.names):,} utterances",
                ratio=few.peak_bytes / many.peak_bytes,
                goal="≥ 0.9×",
                met=few.peak_bytes >= 0.9 * many.peak_bytes,
                note="all processes, mapped files left out",
            ),
        ]
    return rows


# A corpus ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """A folder and a dataset on disk with the same clips."""

    folder: Path
    names: Sequence[str]


def write_corpus(folder: Path, n_clips: int) -> Corpus:
    """Write clips of noise under different names; a few sound alike."""
    import datasets

    folder.mkdir()
    rng = np.random.default_rng(0)
    contents = []
    for _ in range(N_CLIPS):
        file = io.BytesIO()
        noise = rng.uniform(0.05, 0.3) * rng.standard_normal(round(CROP_S * RATE))
        soundfile.write(file, noise, RATE, format="FLAC")
        contents.append(file.getvalue())
    names = [f"u{k:06}" for k in range(n_clips)]
    audio = [
        {"bytes": contents[k % N_CLIPS], "path": f"{name}.flac"} for k, name in enumerate(names)
    ]
    (folder / "clips").mkdir()
    for cell in audio:
        (folder / "clips" / cell["path"]).write_bytes(cell["bytes"])
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"utterance": names, "audio": audio}).save_to_disk(folder / "rows")
    (folder / "names.txt").write_text("\n".join(names))
    return Corpus(folder, names)


def loop_scores(corpus: Corpus, model: nn.Module) -> dict[str, float]:
    """Score clip after clip, as one writes it down first."""
    scores = {}
    with torch.inference_mode():
        for name in corpus.names:
            samples, _ = soundfile.read(corpus.folder / "clips" / f"{name}.flac", dtype="float32")
            waveform = torch.from_numpy(samples / np.abs(samples).max())
            spoof, bonafide = model(waveform[None])[0].tolist()
            scores[name] = bonafide - spoof
    return scores


def largest_difference(found: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """Return the largest difference of two lists of scores, infinite where a name is missing."""
    if found.keys() != expected.keys():
        return float("inf")
    return max(abs(found[name] - expected[name]) for name in expected)


# One measurement --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What one process and its children did."""

    scores: dict[str, float]
    per_s: float
    unhindered_per_s: float
    peak_bytes: int


def measure(engine: str, corpus: Corpus, model: str, n_workers: int) -> Measured:
    """Score a corpus in a new process and watch it."""
    with tempfile.TemporaryDirectory(prefix="e") as name:
        work = Path(name)
        (work / "times").mkdir()
        command = [sys.executable, __file__, engine, str(corpus.folder), str(work), model]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        process = subprocess.Popen(
            [*command, str(n_workers)], env=environment, stdout=subprocess.DEVNULL
        )
        peak_bytes = watch(process)
        if process.returncode:
            raise RuntimeError(f"{engine} ended with {process.returncode}")
        scores = json.loads((work / "scores.json").read_text())
        return Measured(scores, *throughput(work / "times", n_workers), peak_bytes)


def watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; return the most memory that it and all below it had (Linux)."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(_memory, _tree(process.pid))))
        time.sleep(0.3)
    return peak


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:  # it has ended
        return


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    kept = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kept))


def throughput(folder: Path, n_workers: int) -> tuple[float, float]:
    """Return utterances per second while all workers were at work, their first batches left out.

    The second figure also leaves out the time that workers waited for a core.
    """
    times = [np.loadtxt(path, ndmin=2) for path in folder.iterdir()]
    if len(times) != n_workers:
        raise RuntimeError(f"{len(times)} processes scored, not {n_workers}")
    begin, end = max(each[0, 0] for each in times), min(each[-1, 0] for each in times)
    rates = np.zeros(2)
    for each in times:
        inside = each[(each[:, 0] >= begin) & (each[:, 0] <= end)]
        wall_s, _, waited = inside[-1] - inside[0]
        rates += inside[1:, 1].sum() / np.array([wall_s, wall_s - waited])
    return float(rates[0]), float(rates[1])


# In the process that is measured ------------------------------------------------------------------


class Light(nn.Module):
    """A model that takes next to no time."""

    def forward(self, waveform: Tensor) -> Tensor:
        """Return logits (batch, 2)."""
        return torch.stack([waveform[:, ::37].mean(1), waveform[:, ::41].abs().mean(1)], dim=1)


def busy_model() -> nn.Module:
    """Return a TFPARN of random weights."""
    torch.manual_seed(0)
    return TFPARN().eval()


class Clocked(nn.Module):
    """A model that writes down when each batch was done, a file for each process."""

    def __init__(self, model: nn.Module, folder: Path) -> None:
        super().__init__()
        self.model, self.folder = model, folder

    def forward(self, waveform: Tensor) -> Tensor:
        """Return logits (batch, 2)."""
        logits = self.model(waveform)
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(f"{time.monotonic()} {len(waveform)} {waited_s()}\n")
        return logits


def waited_s() -> float:
    """Return how long this thread was ready to run and other processes had the cores (Linux)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def score_shards(job: Job) -> dict[str, float]:
    """Score shards in a process each, and merge them."""
    command = [sys.executable, *sys.argv]
    shards = [subprocess.Popen([*command, f"{k}"]) for k in range(job.n_workers)]
    codes = [shard.wait() for shard in shards]
    if any(codes):
        raise RuntimeError("a shard failed")
    parts = [job.work / f"scores-{k}.tsv" for k in range(job.n_workers)]
    merged = read_scores(merge_scores(parts, job.work / "scores.tsv").output)
    return dict(zip(merged.filename.tolist(), merged.cm.tolist(), strict=True))


def score_shard(job: Job, k: int) -> None:
    """Score one shard."""
    scorer = Scorer(job.model, device="cpu", **OPTIONS)
    scorer.score_protocol(
        *(job.protocol(), job.corpus / "clips", job.work / f"scores-{k}.tsv"),
        shard=(k, job.n_workers),
        n_threads=1,
    )


def score_on_ray(job: Job) -> dict[str, float]:
    """Score on a Ray of two cores, started here."""
    import ray

    from asvspoof_cm.engines import score_ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        _temp_dir=str(job.work / "ray"),
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [
        {"utterance": name, "audio": str(job.corpus / "clips" / f"{name}.flac")}
        for name in job.protocol().utterance.tolist()
    ]
    scored = score_ray(
        ray.data.from_items(rows, override_num_blocks=max(2, len(rows) // (4 * BATCH))),
        model=job.model,
        concurrency=job.n_workers,
        n_rows=BATCH,
        **OPTIONS,
    )
    return {row["utterance"]: row["log-odds"] for row in scored.iter_rows()}


def score_with_datasets(job: Job) -> dict[str, float]:
    """Score in ``dataset.map``."""
    import datasets

    from asvspoof_cm.engines import score_batch_function

    datasets.disable_progress_bars()
    rows = datasets.load_from_disk(job.corpus / "rows")
    rows = rows.cast_column("audio", datasets.Audio(decode=False))
    scorer = Scorer(job.model, device="cpu", **OPTIONS)
    scored = rows.map(
        score_batch_function(scorer, n_threads=1),
        batched=True,
        batch_size=4 * BATCH,
        num_proc=job.n_workers if job.n_workers > 1 else None,
        cache_file_name=str(job.work / "scored.arrow"),
    )
    return dict(zip(scored["utterance"], scored["log-odds"], strict=True))


@dataclass(frozen=True)
class Job:
    """What is scored, where the results go, and with what."""

    corpus: Path
    work: Path
    model: nn.Module
    n_workers: int

    def protocol(self) -> Protocol:
        """The utterances."""
        return Protocol.from_columns((self.corpus / "names.txt").read_text().split())


def main(
    engine: str, corpus: str, work: str, model: str, n_workers: str, shard: str | None = None
) -> None:
    """Score a corpus, or one shard of it, with an engine."""
    torch.set_num_threads(1)
    clocked = Clocked(Light() if model == "light" else busy_model(), Path(work) / "times")
    job = Job(Path(corpus), Path(work), clocked, int(n_workers))
    if shard is not None:
        score_shard(job, int(shard))
        return
    functions = {"shards": score_shards, "ray": score_on_ray, "datasets": score_with_datasets}
    (job.work / "scores.json").write_text(json.dumps(functions[engine](job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
