"""Scoring on Ray Data with an actor for each GPU or core, and `fit` on Ray Train."""

from __future__ import annotations

import json
import math
import os
import pickle
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asvspoof_cm._util import atomic_path, check_between, import_extra
from asvspoof_cm.data.folder import AudioPath, Entry, find_audio
from asvspoof_cm.engines.cells import ScoreCells, cell_entry
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.scorer.scorer import Scorer
from asvspoof_cm.training import FitResult

_CORE_STEP = 1e-4  # what Ray counts cores in
# A block of rows is what an actor gets at a time, and what it does again if it dies.
_BATCHES_IN_BLOCK = 4


def score_ray(
    source: Any,
    *,
    model: Countermeasure | AudioPath | None = None,
    concurrency: int | None = None,
    cores_per_actor: float | None = None,
    column: str = "audio",
    n_rows: int = 64,
    root: AudioPath | None = None,
    **options: Any,
) -> Any:
    """Return a Ray dataset with the scores of another one, or of files in any format.

    The rows have the score in a column named by its unit, `llr` with a calibration and else
    `log-odds` (see `Scorer`), and `cm_error`, empty where all is well.
    Audio that can't be scored has the score NaN. Rows may come in another order. Nothing is
    computed until the result is used, as always in Ray Data. An actor that dies is replaced and
    its rows are scored again; Ray does so without end, whatever the reason.

    Args:
        source: A ``ray.data.Dataset`` with the audio in `column`, as in `score_batch_function`;
            the other columns are kept. Or files as `Scorer.score_files` takes them, at a place
            that every node sees; the rows then have the column `utterance`, and the actors read
            the audio themselves.
        model: A checkpoint that every node sees, or a model; None is the one that comes with the
            package.
        concurrency: The number of actors; None is one for each GPU of the cluster, or one for each
            core where there is none.
        cores_per_actor: What an actor reserves; None is one core, or less where the tasks that
            read and write would get none.
        column: The column of the audio.
        n_rows: Rows that an actor decodes and scores at a time.
        root: See `Scorer.score_files`.
        **options: Arguments of `Scorer`.

    Raises:
        ValueError: The actors need more GPUs than there are, or leave no core to the tasks that
            read and write: all would wait for ever.
    """
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init()
    check_between("n_rows", n_rows, 1)
    n_actors, n_gpus, n_cores = _sizes(ray, concurrency, cores_per_actor)
    as_entry: Callable[[Any], Entry] = cell_entry
    if not isinstance(source, ray.data.Dataset):
        rows = _rows(source, root)
        n_actors = min(n_actors, len(rows))
        n_blocks = max(n_actors, -(-len(rows) // (_BATCHES_IN_BLOCK * n_rows)))
        source = ray.data.from_items(rows, override_num_blocks=n_blocks)
        column, as_entry = "entry", pickle.loads
    options = {"device": "auto" if n_gpus else "cpu", **options}
    n_threads = None if n_gpus else max(1, int(n_cores))
    return source.map_batches(
        _Actor,
        fn_constructor_args=(model, options, column, as_entry, n_threads),
        compute=ray.data.ActorPoolStrategy(size=n_actors),
        batch_size=n_rows,
        batch_format="numpy",
        num_cpus=n_cores,
        num_gpus=n_gpus,
    )


class _Actor:
    """Holds a scorer in a process of its own."""

    def __init__(
        self,
        model: Countermeasure | AudioPath | None,
        options: dict[str, Any],
        column: str,
        as_entry: Callable[[Any], Entry],
        n_threads: int | None,
    ) -> None:
        if n_threads is not None:
            torch.set_num_threads(n_threads)
        if isinstance(model, torch.nn.Module):
            scorer = Scorer(model, **options)
        elif model is None:
            scorer = Scorer.from_pretrained(**options)
        else:
            scorer = Scorer.from_checkpoint(model, **options)
        self.score = ScoreCells(scorer, column, as_entry, n_threads)

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        kept = {name: values for name, values in batch.items() if name != self.score.column}
        return kept | self.score(batch)


def _sizes(
    ray: Any, concurrency: int | None, cores_per_actor: float | None
) -> tuple[int, int, float]:
    """Return the number of actors, and the GPUs and cores of each.

    A task that reads needs a whole core of one node. Where actors leave as many cores as there are
    nodes, at least one node has a whole core left, however the actors are placed.
    """
    resources = ray.cluster_resources()
    n_cores, n_gpus = resources.get("CPU", 0.0), int(resources.get("GPU", 0))
    n_nodes = sum(node["Alive"] for node in ray.nodes())
    n_actors = max(1, n_gpus or int(n_cores)) if concurrency is None else concurrency
    check_between("concurrency", n_actors, 1)
    if n_gpus and n_actors > n_gpus:
        raise ValueError(
            f"`concurrency` must be at most {n_gpus}, one actor for each GPU; got {concurrency}. "
            "More would wait for ever."
        )
    n_left = max(0.0, n_cores - n_nodes)
    if cores_per_actor is None:
        share = min(1.0, n_left / n_actors)
        return n_actors, min(1, n_gpus), math.floor(share / _CORE_STEP) * _CORE_STEP
    if n_actors * cores_per_actor > n_left:
        raise ValueError(
            f"`concurrency` × `cores_per_actor` must be at most {n_left:g}; got {n_actors} × "
            f"{cores_per_actor:g}. The tasks that read and write need one of the {n_cores:g} cores "
            "on each node, or all would wait for ever. Leave `cores_per_actor` out, or "
            "give Ray more cores: ray.init(num_cpus=…)."
        )
    return n_actors, min(1, n_gpus), cores_per_actor


def _rows(source: AudioPath | Iterable[AudioPath], root: AudioPath | None) -> list[dict[str, Any]]:
    """Return the names and places of a source's files; no audio is read."""
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    rows = [
        {"utterance": entry.name, "entry": pickle.dumps(entry)}
        for entry in find_audio([Path(path).absolute() for path in paths], root=root)
    ]
    if not rows:
        raise ValueError(f"`source` must hold audio; there is none in {source}.")
    return rows


def fit_ray(
    function: Callable[[], FitResult],
    *,
    n_workers: int,
    storage_path: AudioPath,
    use_gpu: bool = False,
) -> FitResult:
    """Run a function that calls `fit` in several workers of Ray Train, and return its result.

    Ray starts the workers and their process group; what `fit` does in a process group, under
    torchrun or here, is the same. The function makes its data, its model and its loaders and
    returns what `fit` does. The same call resumes a run after an interruption.

    Args:
        function: Called without arguments in every worker. The folder of its run must be one that
            all workers see.
        n_workers: The number of workers.
        storage_path: Where Ray Train keeps its records, a folder that all workers see.
        use_gpu: Whether each worker gets a GPU.
    """
    _import_ray()
    from ray import train
    from ray.train.torch import TorchTrainer

    storage = Path(storage_path).absolute()
    # Ray hands back what belongs to its own checkpoints only, so the result goes by a file.
    returned = storage / f"result-{secrets.token_hex(8)}.json"

    def work() -> None:
        result = function()
        if train.get_context().get_world_rank() == 0:
            content = {**asdict(result), "best_path": str(result.best_path)}
            with atomic_path(returned) as temporary:
                temporary.write_text(json.dumps(content), encoding="utf-8")

    TorchTrainer(
        work,
        scaling_config=train.ScalingConfig(num_workers=n_workers, use_gpu=use_gpu),
        run_config=train.RunConfig(storage_path=str(storage)),
    ).fit()
    content = json.loads(returned.read_text(encoding="utf-8"))
    returned.unlink()
    return FitResult(**{**content, "best_path": Path(content["best_path"])})


def _import_ray() -> Any:
    import_extra("ray.data", "ray")
    return import_extra("ray", "ray")
