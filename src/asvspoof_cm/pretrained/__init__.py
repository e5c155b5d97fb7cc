"""The trained checkpoints that come with the package."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.utils.files import sha256

__all__ = ["DEFAULT_NAME", "available", "card", "checkpoint_path", "load_pretrained"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Shipped:
    file: str
    sha256: str


_SHIPPED: Final = {
    "tfparn-small-corpus": _Shipped(
        file="tfparn-small-corpus.pt",
        sha256="ef131925cdf3effa7d88421d5a5d92a86e5697f7a24613df88747b002cd484cc",
    ),
}

DEFAULT_NAME: Final = "tfparn-small-corpus"
"""The checkpoint that is used where none is named."""

_said = False


def available() -> tuple[str, ...]:
    """Return the names of the checkpoints that come with the package.

    Example:
        >>> available()
        ('tfparn-small-corpus',)
    """
    return tuple(_SHIPPED)


def checkpoint_path(name: str = DEFAULT_NAME) -> Path:
    """Return where a checkpoint of the package lies.

    Example:
        >>> checkpoint_path().suffix
        '.pt'
    """
    return Path(__file__).with_name(_shipped(name).file)


def load_pretrained(name: str | None = None) -> Countermeasure:
    """Return a model of the package, after checking that its file is the one that was shipped.

    Args:
        name: One of `available`. None takes `DEFAULT_NAME` and logs once that it does.

    Raises:
        ValueError: The file's SHA-256 is another: it was damaged or replaced.

    Example:
        >>> model = load_pretrained("tfparn-small-corpus")
        >>> sorted(set(model.meta) & {"calibration", "card"})
        ['calibration', 'card']
    """
    if name is None:
        name = DEFAULT_NAME
        _say_once()
    path, expected = checkpoint_path(name), _shipped(name).sha256
    found = sha256(path)
    if found != expected:
        raise ValueError(
            f"{path} is not the file that was shipped: its SHA-256 is {found}, not {expected}. "
            "Install asvspoof-cm again, or load a file of your own with load_checkpoint."
        )
    return load_checkpoint(path)


def card(name: str = DEFAULT_NAME) -> dict[str, Any]:
    """Return what is known about a checkpoint: data, recipe, figures, limits.

    Example:
        >>> card()["use"]
        'for trying things out, not for deciding about people'
    """
    return dict(load_pretrained(name).meta["card"])


def _shipped(name: str) -> _Shipped:
    if name not in _SHIPPED:
        raise ValueError(
            f"`name` must be one of {', '.join(_SHIPPED)}; got {name!r}. A checkpoint of your own "
            "is loaded with load_checkpoint or Scorer.from_checkpoint."
        )
    return _SHIPPED[name]


def _say_once() -> None:
    global _said
    if not _said:
        _said = True
        logger.warning(
            "asvspoof-cm: no checkpoint was named, so %r is used. It learned from 2,046 clips and "
            "is for trying things out, not for deciding about people; see "
            "asvspoof_cm.pretrained.card().",
            DEFAULT_NAME,
        )
