"""Scoring inside ``dataset.map`` of Hugging Face datasets, and protocols from datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from asvspoof_cm._util import import_extra
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.engines.cells import ScoreCells, cell_entry
from asvspoof_cm.labels import LABELS
from asvspoof_cm.scorer.scorer import Scorer


def score_batch_function(
    scorer: Scorer, *, column: str = "audio", n_threads: int | None = None
) -> Callable[[Mapping[str, Iterable[Any]]], dict[str, list[Any]]]:
    """Return the function to give to ``dataset.map(…, batched=True)``.

    It adds two columns: the score, named by its unit (``scorer.unit``: `llr`, `log-odds` or
    `bonafide-logit`), and `cm_error`, empty where all is well.
    Audio that can't be scored has the score NaN, which no metric takes for a score, and the error
    says why; the rest goes on. Streaming datasets and several processes (``num_proc=``) work too.

    Args:
        scorer: The scorer.
        column: The column of the audio. Its values are ``{"array": …, "sampling_rate": …}``;
            ``{"bytes": …, "path": …}`` as ``Audio(decode=False)`` gives them, which needs no codec
            package; or bytes.
        n_threads: Threads that decode; None is one for each core, up to four.

    Example:
        >>> import math
        >>> import numpy as np
        >>> from asvspoof_cm.models import TFPARN
        >>> score = score_batch_function(Scorer(TFPARN(), device="cpu"))
        >>> batch = score({"audio": [{"array": np.zeros(16000), "sampling_rate": 16000}, b"?"]})
        >>> math.isnan(batch["log-odds"][1]), batch["cm_error"][0]
        (True, '')
        >>> batch["cm_error"][1]
        'the audio is not an audio file that libsndfile reads (Format not recognised.)'
    """
    return ScoreCells(scorer, column, cell_entry, n_threads)


def protocol_from_dataset(
    dataset: Any,
    *,
    utterance: str,
    label: str | None = None,
    words: Mapping[Any, str] | None = None,
    **columns: str,
) -> Protocol:
    """Return the protocol of a dataset's rows; streaming datasets are read to their end.

    Args:
        dataset: A ``Dataset`` or ``IterableDataset`` of Hugging Face datasets.
        utterance: The column of the names, or that of the audio, whose paths are then the names,
            without the extension, as `asvspoof_cm.data.audio_entries` names them in a Parquet file.
        label: The column of the labels: words of the protocols, or a ``ClassLabel`` whose names are
            such words. None makes the protocol unlabelled.
        words: What each value of that column means, such as ``{0: "bonafide", 1: "spoof"}``.
            Numbers without names have no meaning that could be guessed: they need this.
        **columns: Other columns of a `Protocol`, such as ``speaker="client_id"``.

    Raises:
        ValueError: A column is not there, or the meaning of a label is not known.

    Example:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"file": ["a", "b"], "fake": [True, False]})
        >>> words = {True: "spoof", False: "bonafide"}
        >>> protocol_from_dataset(rows, utterance="file", label="fake", words=words)
        Protocol(datasets: 2 utterances, 1 bonafide, 1 spoof)
    """
    datasets = import_extra("datasets", "datasets")
    features = dataset.features or {}
    wanted = [utterance, *([] if label is None else [label]), *columns.values()]
    missing = [name for name in wanted if features and name not in features]
    if missing:
        raise ValueError(f"the dataset has no column {missing[0]!r}; it has {[*features]}.")
    dataset = dataset.select_columns(list(dict.fromkeys(wanted)))
    if isinstance(features.get(utterance), datasets.Audio):
        dataset = dataset.cast_column(utterance, datasets.Audio(decode=False))
    if words is None:
        meaning: Any = features.get(label)
        is_named = isinstance(meaning, datasets.ClassLabel)
        words = dict(enumerate(meaning.names)) if is_named else {word: word for word in LABELS}
    found: dict[str, list[Any]] = {name: [] for name in wanted}
    for batch in dataset.iter(batch_size=1000):
        for name in found:
            found[name].extend(batch[name])
    labels = None
    if label is not None:
        unknown = [value for value in found[label] if value not in words]
        if unknown:
            raise ValueError(
                f"`words` must say what each label means, such as {{0: 'bonafide', 1: 'spoof'}}; "
                f"got the label {unknown[0]!r}, and {dict(words)}."
            )
        labels = [words[value] for value in found[label]]
    others: dict[str, Any] = {
        field: [str(value) for value in found[name]] for field, name in columns.items()
    }
    names = [_name(value) for value in found[utterance]]
    return Protocol.from_columns(names, labels, format="datasets", **others)


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        if value.get("path") is None:
            raise ValueError("`utterance`: the audio has no path; name another column.")
        return str(Path(value["path"]).with_suffix(""))
    return str(value)
