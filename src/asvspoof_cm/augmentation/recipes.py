"""Augmentations by name, so that a recipe is plain text."""

from __future__ import annotations

from collections.abc import Callable

from asvspoof_cm.augmentation.band import RandomBandLimit
from asvspoof_cm.augmentation.base import Augmentation
from asvspoof_cm.augmentation.codecs import Codec
from asvspoof_cm.augmentation.colour import ColouredNoise
from asvspoof_cm.augmentation.compose import Compose, OneOf, RandomApply
from asvspoof_cm.augmentation.equalizer import RandomEqualizer
from asvspoof_cm.augmentation.rawboost import RawBoost
from asvspoof_cm.augmentation.resynthesis import CopySynthesis
from asvspoof_cm.augmentation.rooms import RandomRoom
from asvspoof_cm.augmentation.segments import ShuffleSegments
from asvspoof_cm.augmentation.speed import RandomSpeed
from asvspoof_cm.augmentation.tfparn_augment import (
    RandomButterworth,
    RandomFIR,
    TFPARNAugment,
    WhiteNoise,
)
from asvspoof_cm.utils.checks import check_choice


def _some(p: float, *choices: Augmentation, weights: list[float] | None = None) -> Augmentation:
    """Return one of several augmentations for a share `p` of the rows."""
    chosen = choices[0] if len(choices) == 1 else OneOf(choices, weights=weights)
    return RandomApply(chosen, p=p)


def _codec() -> Augmentation:
    # The others encode fewer than 30 four-second clips per second on one core.
    quick = ("mu-law", "a-law", "ima-adpcm", "mp3", "vorbis")
    return _some(0.5, Codec(codecs=quick, narrowband_p=0.25))


def _light(p: float) -> Augmentation:
    telephone = Codec(codecs=("mu-law", "a-law"))
    return _some(p, WhiteNoise(snr_db=(15.0, 45.0)), RandomButterworth(), telephone)


def _equalizer() -> Augmentation:
    return _some(0.7, RandomEqualizer(gain_db=(-8.0, 8.0)))


def _telephone() -> Augmentation:
    codecs = ("mu-law", "a-law", "gsm", "g721", "ima-adpcm", "mp3", "vorbis", "opus")
    noise, codec = WhiteNoise(snr_db=(5.0, 40.0)), Codec(codecs=codecs, narrowband_p=0.35)
    return Compose([_equalizer(), _some(0.6, noise, RandomButterworth(), codec, weights=[2, 1, 3])])


def _wide() -> Augmentation:
    channel = _some(0.5, RandomFIR(), RandomButterworth(), RawBoost(algorithm=5))
    return Compose([channel, _codec(), _some(0.33, WhiteNoise())])


def _robust() -> Augmentation:
    codecs = Codec(codecs=("mp3", "vorbis", "opus", "gsm", "mu-law"), compression_level=(0.2, 0.9))
    return Compose(
        [
            _some(0.4, RandomSpeed(percent=(88, 112))),
            _equalizer(),
            _some(0.25, RandomRoom()),
            _some(0.5, ColouredNoise(), WhiteNoise(snr_db=(5.0, 35.0)), RawBoost(algorithm=5)),
            _some(
                0.4,
                RandomBandLimit(high_hz=(3200.0, 4000.0)),
                RandomBandLimit(high_hz=(4000.0, 7600.0)),
            ),
            _some(0.125, codecs),  # they are slow
        ]
    )


AUGMENTATIONS: dict[str, Callable[[], Augmentation]] = {
    "tfparn": lambda: TFPARNAugment(p=0.5),
    "rawboost": lambda: RawBoost(algorithm=4, p=0.5),
    "codec": _codec,
    "speed": lambda: _some(0.5, RandomSpeed(percent=(88, 112))),
    "band": lambda: _some(0.4, RandomBandLimit()),
    "light": lambda: _light(0.5),
    "channel": lambda: Compose([_equalizer(), _light(0.4)]),
    "telephone": _telephone,
    "wide": _wide,
    "robust": _robust,
}


def augmentation(name: str) -> Augmentation | None:
    """Return the augmentation of a name, or of names joined by "+", in turn; None for "none".

    "tfparn" is the paper's, "robust" is for detectors that meet any channel; docs/training.md has
    the table of all names.

    Example:
        >>> type(augmentation("tfparn")).__name__
        'TFPARNAugment'
        >>> type(augmentation("speed+telephone")).__name__
        'Compose'
    """
    if name == "none":
        return None
    # Earlier runs call it "voices".
    stages = ["speed" if stage == "voices" else stage for stage in name.split("+")]
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
