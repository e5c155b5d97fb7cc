"""What runs a scorer inside other systems: Ray Data and Hugging Face datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asvspoof_cm._util import check_between, import_extra
from asvspoof_cm.data.folder import AudioPath, Entry
from asvspoof_cm.scorer.files import score_entries
from asvspoof_cm.scorer.scorer import Scorer

if TYPE_CHECKING:
    from asvspoof_cm.models import Countermeasure

__all__ = ["score_batch_function", "score_ray"]


def score_batch_function(
    scorer: Scorer, *, column: str = "audio", n_threads: int | None = None
) -> Callable[[Mapping[str, Iterable[Any]]], dict[str, list[Any]]]:
    """Return the function to give to ``dataset.map(…, batched=True)``.

    It adds two columns: the score, named by its unit (``scorer.unit``: `llr` or `log-odds`), and
    `cm_error`, empty where all is well. Audio that can't be scored has the score NaN, which no
    metric takes for a score, and the error says why; the rest goes on.

    Args:
        scorer: The scorer.
        column: The column of the audio. Its values are ``{"array": …, "sampling_rate": …}``;
            ``{"bytes": …, "path": …}`` as ``Audio(decode=False)`` gives them, which needs no codec
            package; bytes; or paths.
        n_threads: Threads that decode; None is one for each core, up to four.

    Example:
        >>> import math
        >>> import numpy as np
        >>> from asvspoof_cm.models import TFPARN
        >>> score = score_batch_function(Scorer(TFPARN(), device="cpu"))
        >>> batch = score({"audio": [{"array": np.zeros(16000), "sampling_rate": 16000}, b"?"]})
        >>> math.isnan(batch["log-odds"][1]), batch["cm_error"][0]
        (True, '')
    """
    return partial(_score_batch, scorer, column, n_threads)


def _score_batch(
    scorer: Scorer, column: str, n_threads: int | None, batch: Mapping[str, Iterable[Any]]
) -> dict[str, list[Any]]:
    if column not in batch:
        raise ValueError(f"`column` must be one of {[*batch]}; got {column!r}.")
    scored = [*score_entries(scorer, map(_entry, batch[column]), n_threads=n_threads)]
    return {
        scorer.unit: [math.nan if each.score is None else each.score for each in scored],
        "cm_error": [each.error or "" for each in scored],
    }


def _entry(cell: Any) -> Entry:
    """Return the audio of one cell as something to score."""
    if isinstance(cell, bytes):
        return Entry("the audio", cell)
    if isinstance(cell, str):
        return Entry(cell, cell)
    if isinstance(cell, Mapping):
        if cell.get("array") is not None:
            return Entry("the audio", np.asarray(cell["array"]), cell["sampling_rate"])
        name = None if cell.get("path") is None else str(cell["path"])
        audio = name if cell.get("bytes") is None else cell["bytes"]
        if audio is not None:
            return Entry(name or "the audio", audio)
    wrong = ValueError(
        'audio must be bytes, a path, {"array", "sampling_rate"} or {"bytes", "path"}; got '
        f"{type(cell).__name__}. Cast the column: dataset.cast_column(name, Audio(decode=False))."
    )
    return Entry("the audio", wrong)


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

    The rows lose `column` and get those of `score_batch_function`; they may come in another order.
    Nothing is computed until the result is used, as always in Ray Data. An actor that dies is
    replaced and its rows are scored again; Ray does so without end, whatever the reason.

    Args:
        dataset: A ``ray.data.Dataset`` with the audio in `column`, as in `score_batch_function`.
            Paths must be of files that every node sees; the actors read them.
        model: A checkpoint that every node sees, or a model; None is that of the package.
        concurrency: The number of actors; None is one for each GPU, or for each core without one.
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
        import torch

        if n_threads is not None:
            torch.set_num_threads(n_threads)
        if model is None:
            scorer = Scorer.from_pretrained(**options)
        elif isinstance(model, torch.nn.Module):
            scorer = Scorer(model, **options)
        else:
            scorer = Scorer.from_checkpoint(model, **options)
        self.column = column
        self.score = score_batch_function(scorer, column=column, n_threads=n_threads)

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        kept = {name: values for name, values in batch.items() if name != self.column}
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
