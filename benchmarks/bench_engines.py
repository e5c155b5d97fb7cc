"""Bulk scoring by shards, Ray Data and datasets: two workers beside one, with a busy model.

Every measurement is a process of its own with all that it starts. Its model notes the time of each
batch, so that starting and ending count neither for nor against an engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

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
PARTS = tuple(ENGINES)
CROP_S, BATCH = 0.5, 32
OPTIONS = {"n_crops": 1, "crop_s": CROP_S, "batch_size": BATCH}


def run(options: Options) -> list[Row]:
    """One and two workers in turn on clips of half a second; the better round of each counts."""
    n_clips, n_rounds = (320, 1) if options.quick else (1_500, 2)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = write_corpus(Path(name) / "clips", n_clips)
        scorer = Scorer(busy_model(), device="cpu", **OPTIONS)
        paths = sorted(folder.iterdir())
        found = scorer.score_files(paths)
        expected = {path.stem: of.score for path, of in zip(paths, found, strict=True)}
        for engine in (name for name in ENGINES if options.wants(name)):
            rounds = [measure(engine, folder, n) for _ in range(n_rounds) for n in (1, 2)]
            one, two = (max(rate for _, rate in rounds[k::2]) for k in (0, 1))
            deviation = max(largest_difference(scores, expected) for scores, _ in rounds)
            rows.append(
                Row(
                    case=f"{ENGINES[engine]}, two workers, {n_clips:,} utterances",
                    ours=two,
                    unit="utterances/s",
                    reference=one,
                    reference_name="one worker",
                    ratio=two / one,
                    deviation=deviation,
                    goal="≥ 1.8×",
                    met=two >= 1.8 * one and deviation <= 1e-5,
                )
            )
    return rows


def write_corpus(folder: Path, n_clips: int) -> Path:
    """Write clips of noise."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(n_clips):
        noise = rng.uniform(0.05, 0.3) * rng.standard_normal(round(CROP_S * 16000))
        soundfile.write(folder / f"u{k:06}.flac", noise, 16000)
    return folder


def busy_model() -> nn.Module:
    """Return a TFPARN of random weights."""
    torch.manual_seed(0)
    return TFPARN().eval()


def largest_difference(found: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """Return the largest difference of two lists of scores, infinite where a name is missing."""
    if found.keys() != expected.keys():
        return float("inf")
    return max(abs(found[name] - expected[name]) for name in expected)


def measure(engine: str, folder: Path, n_workers: int) -> tuple[dict[str, float], float]:
    """Score a folder in a new process; return the scores and the utterances per second."""
    with tempfile.TemporaryDirectory(prefix="e") as work:
        command = [sys.executable, __file__, engine, str(folder), work, str(n_workers)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        times = [np.loadtxt(path, ndmin=2) for path in Path(work).glob("times-*")]
        if len(times) != n_workers:
            raise RuntimeError(f"{len(times)} processes scored, not {n_workers}")
        scores = json.loads((Path(work) / "scores.json").read_text())
    # While all workers were at work, their first batches left out.
    begin, end = max(each[0, 0] for each in times), min(each[-1, 0] for each in times)
    inside = [each[(each[:, 0] >= begin) & (each[:, 0] <= end)] for each in times]
    return scores, sum(float(e[1:, 1].sum() / (e[-1, 0] - e[0, 0])) for e in inside)


# In the process that is measured ------------------------------------------------------------------


class Clocked(nn.Module):
    """The busy model, which writes down when each batch was done, a file for each process."""

    def __init__(self, work: Path) -> None:
        super().__init__()
        self.model, self.work = busy_model(), work

    def forward(self, waveform: Tensor) -> Tensor:
        """Return logits (batch, 2)."""
        logits: Tensor = self.model(waveform)
        with (self.work / f"times-{os.getpid()}").open("a") as file:
            file.write(f"{time.monotonic()} {len(waveform)}\n")
        return logits


def score_shards(folder: Path, work: Path, n_workers: int) -> dict[str, float]:
    """Score shards in a process each, and merge them."""
    command = [sys.executable, *sys.argv]
    shards = [subprocess.Popen([*command, str(k)]) for k in range(n_workers)]
    codes = [shard.wait() for shard in shards]
    if any(codes):
        raise RuntimeError("a shard failed")
    parts = [work / f"scores-{k}.tsv" for k in range(n_workers)]
    merged = read_scores(merge_scores(parts, work / "scores.tsv").output)
    return dict(zip(merged.filename.tolist(), merged.cm.tolist(), strict=True))


def score_on_ray(folder: Path, work: Path, n_workers: int) -> dict[str, float]:
    """Score on a Ray of two cores, started here."""
    import ray

    from asvspoof_cm.engines import score_ray

    temporary = str(work / "ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=temporary)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"utterance": path.stem, "audio": str(path)} for path in sorted(folder.iterdir())]
    n_blocks = max(2, len(rows) // (4 * BATCH))
    dataset = ray.data.from_items(rows, override_num_blocks=n_blocks)
    sizes = {"concurrency": n_workers, "n_rows": BATCH}
    scored = score_ray(dataset, model=Clocked(work), **sizes, **OPTIONS)
    return {row["utterance"]: row["log-odds"] for row in scored.iter_rows()}


def score_with_datasets(folder: Path, work: Path, n_workers: int) -> dict[str, float]:
    """Score in ``dataset.map``."""
    import datasets

    from asvspoof_cm.engines import score_batch_function

    datasets.disable_progress_bars()
    paths = sorted(folder.iterdir())
    columns = {"utterance": [path.stem for path in paths], "audio": list(map(str, paths))}
    scored = datasets.Dataset.from_dict(columns).map(
        score_batch_function(Scorer(Clocked(work), device="cpu", **OPTIONS), n_threads=1),
        batched=True,
        batch_size=4 * BATCH,
        num_proc=n_workers if n_workers > 1 else None,
        cache_file_name=str(work / "scored.arrow"),
    )
    return dict(zip(scored["utterance"], scored["log-odds"], strict=True))


def main(engine: str, folder: str, work: str, n_workers: str, shard: str | None = None) -> None:
    """Score a folder, or one shard of it, with an engine."""
    torch.set_num_threads(1)
    clips, out, n = Path(folder), Path(work), int(n_workers)
    if shard is not None:
        protocol = Protocol.from_columns([path.stem for path in sorted(clips.iterdir())])
        scorer = Scorer(Clocked(out), device="cpu", **OPTIONS)
        output, part = out / f"scores-{shard}.tsv", (int(shard), n)
        scorer.score_protocol(protocol, clips, output, shard=part, n_threads=1)
        return
    functions = {"shards": score_shards, "ray": score_on_ray, "datasets": score_with_datasets}
    (out / "scores.json").write_text(json.dumps(functions[engine](clips, out, n)))


if __name__ == "__main__":
    main(*sys.argv[1:])
