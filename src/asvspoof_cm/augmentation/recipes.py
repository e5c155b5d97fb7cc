"""Augmentations by name, so that a recipe is plain text."""

from __future__ import annotations

from collections.abc import Callable

from asvspoof_cm.augmentation.band import RandomBandLimit
from asvspoof_cm.augmentation.base import Augmentation
from asvspoof_cm.augmentation.codecs import Codec
from asvspoof_cm.augmentation.colour import ColouredNoise
from asvspoof_cm.augmentation.compose import Compose, OneOf, RandomApply
from asvspoof_cm.augmentation.equalizer import RandomEqualizer
from asvspoof_cm.augmentation.paper import (
    RandomButterworth,
    RandomFIR,
    TFPARNAugment,
    WhiteNoise,
)
from asvspoof_cm.augmentation.rawboost import RawBoost
from asvspoof_cm.augmentation.resynthesis import CopySynthesis
from asvspoof_cm.augmentation.rooms import RandomRoom
from asvspoof_cm.augmentation.segments import ShuffleSegments
from asvspoof_cm.augmentation.speed import RandomSpeed
from asvspoof_cm.utils.checks import check_choice

# The others encode fewer than 25 four-second clips per second on one core.
_FAST_CODECS = ("mu-law", "a-law", "ima-adpcm", "mp3", "vorbis")


def _wide() -> Augmentation:
    """Half of the rows get a channel (filter, RawBoost), then half a codec, then a third noise."""
    channel = OneOf([RandomFIR(), RandomButterworth(), RawBoost(algorithm=5)])
    return Compose(
        [
            RandomApply(channel, p=0.5),
            RandomApply(Codec(codecs=_FAST_CODECS, narrowband_p=0.25), p=0.5),
            RandomApply(WhiteNoise(), p=0.33),
        ]
    )


def _light(p: float = 0.5) -> Augmentation:
    """A share of the rows gets one mild change: noise, a filter or a telephone codec."""
    noise, telephone = WhiteNoise(snr_db=(15.0, 45.0)), Codec(codecs=("mu-law", "a-law"))
    return RandomApply(OneOf([noise, RandomButterworth(), telephone]), p=p)


def _channel(then: Augmentation) -> Augmentation:
    """Most rows get another frequency response, then `then`."""
    return Compose([RandomApply(RandomEqualizer(gain_db=(-8.0, 8.0)), p=0.7), then])


def _telephone(p: float = 0.6) -> Augmentation:
    """A share of the rows gets noise, a filter or any codec, a third of these at 8 kHz."""
    noise, codec = WhiteNoise(snr_db=(5.0, 40.0)), Codec(narrowband_p=0.35)
    return RandomApply(OneOf([noise, RandomButterworth(), codec], weights=[2, 1, 3]), p=p)


def _voices() -> Augmentation:
    """Half of the rows get another speed, and with it another voice."""
    return RandomApply(RandomSpeed(percent=(88, 112)), p=0.5)


def _robust() -> Augmentation:
    """Each row may get another microphone, room, noise floor, band, speed, and a codec.

    Codecs are slow, so one row in eight gets one.
    """
    codecs = Codec(codecs=("mp3", "vorbis", "opus", "gsm", "mu-law"), compression_level=(0.2, 0.9))
    return Compose(
        [
            RandomApply(RandomSpeed(percent=(90, 112)), p=0.3),
            RandomApply(RandomEqualizer(gain_db=(-8.0, 8.0)), p=0.7),
            RandomApply(RandomRoom(), p=0.25),
            RandomApply(ColouredNoise(), p=0.5),
            RandomApply(RandomBandLimit(high_hz=(3200.0, 7600.0)), p=0.4),
            RandomApply(codecs, p=0.125),
        ]
    )


AUGMENTATIONS: dict[str, Callable[[], Augmentation]] = {
    "tfparn": lambda: TFPARNAugment(p=0.5),
    "rawboost": lambda: RawBoost(algorithm=4, p=0.5),
    "codec": lambda: RandomApply(Codec(codecs=_FAST_CODECS, narrowband_p=0.25), p=0.5),
    "voices": _voices,
    "band": lambda: RandomApply(RandomBandLimit(), p=0.4),
    "light": _light,
    "channel": lambda: _channel(_light(p=0.4)),
    "telephone": lambda: _channel(_telephone()),
    "wide": _wide,
    "robust": _robust,
}


def augmentation(name: str) -> Augmentation | None:
    """Return the augmentation of a name, or of names joined by "+", in turn; None for "none".

    "tfparn" is the paper's: one of its three algorithms with probability 0.5. "rawboost" is
    RawBoost 4 and "codec" a random codec, each with probability 0.5. "voices" changes the speed of
    half of the clips, "band" ends the spectrum of two fifths at 3 to 8 kHz. "light" is one of
    noise, a filter and a telephone codec with probability 0.5; "channel" is a random equalizer for
    most clips and that for two fifths; "telephone" the same equalizer, then noise, a filter or any
    codec for three fifths; "wide" mixes channels, codecs and noise more strongly. "robust" is for
    detectors that meet any channel: speed, equalizer, room, coloured noise, band limit and codec,
    each for a share of the clips.

    Example:
        >>> type(augmentation("tfparn")).__name__
        'TFPARNAugment'
        >>> type(augmentation("voices+telephone")).__name__
        'Compose'
    """
    if name == "none":
        return None
    stages = name.split("+")
    if not set(stages) <= set(AUGMENTATIONS):
        names = ", ".join(AUGMENTATIONS)
        raise ValueError(
            f"`augmentation` must be none, one of {names}, or several of them joined by +; got "
            f"{name!r}."
        )
    made = [AUGMENTATIONS[stage]() for stage in stages]
    return made[0] if len(made) == 1 else Compose(made)


EXTRA_SPOOF: dict[str, Callable[[], Augmentation]] = {
    "segments": ShuffleSegments,
    "vocoder": CopySynthesis,
    "both": lambda: OneOf([ShuffleSegments(), CopySynthesis()], weights=[1, 3]),
}


def extra_spoof(name: str) -> Augmentation:
    """Return what turns a bona fide clip into an additional spoof one, by name.

    "segments" shuffles it (B12), "vocoder" analyses and synthesises it, "both" does the second for
    three clips of four and the first for the others.

    Example:
        >>> type(extra_spoof("segments")).__name__
        'ShuffleSegments'
    """
    check_choice("extra_spoof_kind", name, tuple(EXTRA_SPOOF))
    return EXTRA_SPOOF[name]()
