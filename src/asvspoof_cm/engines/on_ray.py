"""Scoring on Ray Data, with an actor for each GPU or core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from asvspoof_cm._util import check_between, import_extra
from asvspoof_cm.data.folder import AudioPath
from asvspoof_cm.engines.on_datasets import ScoreCells
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.scorer.scorer import Scorer


def score_ray(
    dataset: Any,
    *,
    model: Countermeasure | AudioPath | None = None,
    concurrency: int | None = None,
    column: str = "audio",
    n_rows: int = 64,
    **options: Any,
) -> Any:
    """Return a Ray dataset with the scores of another one.

    The rows lose `column` and get the score, in a column named by its unit, `llr` with a
    calibration and else `log-odds` (see `Scorer`), and `cm_error`, empty where all is well.
    Audio that can't be scored has the score NaN. Rows may come in another order. Nothing is
    computed until the result is used, as always in Ray Data. An actor that dies is replaced and
    its rows are scored again; Ray does so without end, whatever the reason.

    Args:
        dataset: A ``ray.data.Dataset`` with the audio in `column`, as in `score_batch_function`.
            Paths must be of files that every node sees; the actors read them.
        model: A checkpoint that every node sees, or a model; None is the one that comes with the
            package.
        concurrency: The number of actors; None is one for each GPU of the cluster, or one for each
            core where there is none.
        column: The column of the audio.
        n_rows: Rows that an actor decodes and scores at a time.
        **options: Arguments of `Scorer`.

    Raises:
        ValueError: The actors need more GPUs than there are: all would wait for ever.

    Example:
        >>> import ray.data  # doctest: +SKIP
        >>> files = ray.data.from_items([{"audio": "/shared/a.flac"}])  # doctest: +SKIP
        >>> score_ray(files, model="tfparn.pt").write_parquet("scores")  # doctest: +SKIP
    """
    import_extra("ray.data", "ray")
    ray = import_extra("ray", "ray")
    if not ray.is_initialized():
        ray.init()
    check_between("n_rows", n_rows, 1)
    n_actors, n_gpus, n_cores = _sizes(ray, concurrency)
    options = {"device": "auto" if n_gpus else "cpu", **options}
    n_threads = None if n_gpus else max(1, int(n_cores))
    return dataset.map_batches(
        _Actor,
        fn_constructor_args=(model, options, column, n_threads),
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
        self.score = ScoreCells(scorer, column, n_threads)

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        kept = {name: values for name, values in batch.items() if name != self.score.column}
        return kept | self.score(batch)


def _sizes(ray: Any, concurrency: int | None) -> tuple[int, int, float]:
    """Return the number of actors, and the GPUs and cores of each.

    A task that reads needs a whole core of one node, or all would wait for ever. Where actors leave
    as many cores as there are nodes, one node has a whole core left, however they are placed.
    """
    resources = ray.cluster_resources()
    n_cores, n_gpus = resources.get("CPU", 0.0), int(resources.get("GPU", 0))
    n_actors = max(1, n_gpus or int(n_cores)) if concurrency is None else concurrency
    check_between("concurrency", n_actors, 1)
    if n_gpus and n_actors > n_gpus:
        raise ValueError(
            f"`concurrency` must be at most {n_gpus}, one actor for each GPU; got {concurrency}. "
            "More would wait for ever."
        )
    n_left = max(0.0, n_cores - sum(node["Alive"] for node in ray.nodes()))
    share = min(1.0, n_left / n_actors)
    return n_actors, min(1, n_gpus), math.floor(share * 10_000) / 10_000  # Ray counts in these
