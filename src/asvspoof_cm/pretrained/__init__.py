"""The trained models that come with the package; ``models.json`` lists them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.utils.files import sha256
from asvspoof_cm.utils.tables import render

__all__ = ["DEFAULT_NAME", "available", "card", "checkpoint_path", "load_pretrained", "overview"]

logger = logging.getLogger(__name__)

INDEX: Final = "models.json"
_INDEX: Final[dict[str, Any]] = json.loads(Path(__file__).with_name(INDEX).read_text("utf-8"))

DEFAULT_NAME: Final[str] = _INDEX["default"]
"""The model that is used where none is named."""

_said = False


def available() -> tuple[str, ...]:
    """Return the names of the models that come with the package, the default first.

    Example:
        >>> available()[0] == DEFAULT_NAME
        True
    """
    return tuple(dict.fromkeys([DEFAULT_NAME, *_INDEX["models"]]))


def overview() -> str:
    """Return a table of the models: size, errors, licence, and what each is for.

    The errors are EERs in %, pooled over all clips of a set and as a mean within its sources.
    """
    rows = []
    for name in available():
        entry = _entry(name)
        errors = "; ".join(
            f"{title} {100 * found['eer']:.1f}"
            + ("" if found["within"] is None else f" / {100 * found['within']:.1f}")
            for title, found in entry["figures"].items()
        )
        size = f"{entry['n_bytes'] / 1e6:.1f} MB"
        rows.append([name, size, errors, entry["licence"], entry["use"]])
    return render(("model", "size", "EER % / within sources", "licence", "use"), rows, n_names=5)


def checkpoint_path(name: str = DEFAULT_NAME) -> Path:
    """Return where a model of the package lies."""
    return Path(__file__).with_name(_entry(name)["file"])


def load_pretrained(name: str | None = None) -> Countermeasure:
    """Return a model of the package, after checking that its file is the one that was shipped.

    Args:
        name: One of `available`. None takes `DEFAULT_NAME` and logs once that it does.

    Raises:
        ValueError: No model has that name, or the file's SHA-256 is another: it was damaged or
            replaced.

    Example:
        >>> model = load_pretrained(DEFAULT_NAME)
        >>> sorted(set(model.meta) & {"calibration", "card"})
        ['calibration', 'card']
    """
    if name is None:
        name = DEFAULT_NAME
        _say_once(name)
    path, expected = checkpoint_path(name), _entry(name)["sha256"]
    found = sha256(path)
    if found != expected:
        raise ValueError(
            f"{path} is not the file that was shipped: its SHA-256 is {found}, not {expected}. "
            "Install asvspoof-cm again, or load a file of your own with load_checkpoint."
        )
    return load_checkpoint(path)


def card(name: str = DEFAULT_NAME) -> dict[str, Any]:
    """Return what is known about a model: data, recipe, figures, licences, use."""
    return dict(load_pretrained(name).meta["card"])


def _entry(name: str) -> dict[str, Any]:
    models, replaced = _INDEX["models"], _INDEX["replaced"]
    if name in replaced:
        raise ValueError(
            f"`name`: {name!r} was replaced by {replaced[name]!r} in this version. Its file, "
            "from an earlier version of asvspoof-cm, still loads with load_checkpoint."
        )
    if name not in models:
        raise ValueError(
            f"`name` must be one of {', '.join(models)}; got {name!r}. A checkpoint of your own is "
            "loaded with load_checkpoint or Scorer.from_checkpoint."
        )
    entry: dict[str, Any] = models[name]
    return entry


def _say_once(name: str) -> None:
    global _said
    if not _said:
        _said = True
        logger.warning(
            "asvspoof-cm: no model was named, so %r is used: %s. See `asvspoof-cm models`.",
            name,
            _entry(name)["use"],
        )
