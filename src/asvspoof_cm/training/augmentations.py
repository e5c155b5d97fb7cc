"""Augmentations by name, so that a recipe is plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asvspoof_cm.augmentation import (
    Augmentation,
    Codec,
    Compose,
    OneOf,
    RandomApply,
    RandomButterworth,
    RandomFIR,
    RawBoost,
    TFPARNAugment,
    WhiteNoise,
)

__all__ = ["AUGMENTATIONS", "augmentation"]

# The others encode fewer than 25 four-second clips a second on one core.
_FAST_CODECS = ("mu-law", "a-law", "ima-adpcm", "mp3", "vorbis")


def _wide() -> Augmentation[Any]:
    """Half of the rows get a channel (filter, RawBoost), then half a codec, then a third noise."""
    channel = OneOf([RandomFIR(), RandomButterworth(), RawBoost(algorithm=5)])
    return Compose(
        [
            RandomApply(channel, p=0.5),
            RandomApply(Codec(codecs=_FAST_CODECS, narrowband_p=0.25), p=0.5),
            RandomApply(WhiteNoise(), p=0.33),
        ]
    )


AUGMENTATIONS: dict[str, Callable[[], Augmentation[Any]]] = {
    "tfparn": lambda: TFPARNAugment(p=0.5),
    "rawboost": lambda: RawBoost(algorithm=4, p=0.5),
    "codec": lambda: RandomApply(Codec(codecs=_FAST_CODECS, narrowband_p=0.25), p=0.5),
    "wide": _wide,
}


def augmentation(name: str) -> Augmentation[Any] | None:
    """Return the augmentation of a name; None for "none".

    "tfparn" is the paper's: one of its three algorithms with probability 0.5. "rawboost" is
    RawBoost 4 and "codec" a random codec, each with probability 0.5. "wide" mixes channels, codecs
    and noise.

    Example:
        >>> type(augmentation("tfparn")).__name__
        'TFPARNAugment'
    """
    if name == "none":
        return None
    if name not in AUGMENTATIONS:
        names = ", ".join(["none", *AUGMENTATIONS])
        raise ValueError(f"`augmentation` must be one of {names}; got {name!r}.")
    return AUGMENTATIONS[name]()
