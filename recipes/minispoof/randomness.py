"""Every random thing has a name, and its randomness depends on the seed and that name alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def generator(seed: int, *name: str | int) -> np.random.Generator:
    """Return the generator of the thing called `name`.

    Clips can so be made in any order, and an interrupted build ends with the bytes of one that was
    not.

    Example:
        >>> bool(generator(5, "A01").random() == generator(5, "A01").random())
        True
    """
    text = "/".join(str(part) for part in (seed, *name))
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))


def choose(items: Sequence[T], rng: np.random.Generator) -> T:
    """Return one of `items`, whatever their type."""
    return items[int(rng.integers(len(items)))]
