"""Augmentations by name, so that a recipe is plain text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation
from asvspoof_cm.augmentation.channel import (
    AutomaticGain,
    Clipping,
    ColouredNoise,
    Gain,
    Gaps,
    PacketLoss,
    Polarity,
    RandomBandLimit,
    RandomEqualizer,
    RandomRoom,
    RandomSpeed,
    RecordedNoise,
)
from asvspoof_cm.augmentation.codecs import Codec, SpeechCoder, available_codecs
from asvspoof_cm.augmentation.compose import Compose, OneOf, RandomApply
from asvspoof_cm.augmentation.rawboost import RawBoost
from asvspoof_cm.augmentation.tfparn import TFPARNAugment, WhiteNoise


def _some(p: float, *choices: Augmentation, weights: list[float] | None = None) -> Augmentation:
    """Return one of several augmentations for a share `p` of the rows."""
    chosen = choices[0] if len(choices) == 1 else OneOf(choices, weights=weights)
    return RandomApply(chosen, p=p)


def _speed() -> Augmentation:
    return RandomSpeed(percent=(88, 112))


def _replay() -> Augmentation:
    """A loudspeaker, a small room and a microphone."""
    return Compose(
        [
            RandomBandLimit(low_hz=(80.0, 400.0), high_hz=(4500.0, 8000.0)),
            RandomEqualizer(gain_db=(-8.0, 8.0), n_points=12),
            Clipping(below_peak_db=(0.0, 10.0), soft_p=1.0),
            RandomRoom(decay_s=(0.05, 0.4), direct_db=(-3.0, 15.0)),
            ColouredNoise(snr_db=(15.0, 45.0)),
        ]
    )


def _line() -> Augmentation:
    """What a call or a message goes through: one coder, or two in tandem."""
    narrow = RandomBandLimit(low_hz=(200.0, 350.0), high_hz=(3200.0, 3900.0))
    wide = RandomBandLimit(low_hz=(0.0, 100.0), high_hz=(6000.0, 7800.0))
    coder = SpeechCoder()
    quick = Codec(codecs=("mu-law", "a-law"), narrowband_p=0.8)
    adaptive = Codec(codecs=("gsm", "g721", "ima-adpcm"), narrowband_p=1.0)
    music = Codec(codecs=("mp3", "vorbis"), compression_level=(0.4, 0.99))
    return OneOf(
        [
            Compose([narrow, _some(0.5, coder, quick)]),
            Compose([coder, narrow]),
            Compose([coder, wide]),
            Compose([narrow, adaptive]),
            Compose([quick, wide, coder]),
            music,
        ],
        weights=[2, 2, 3, 2, 1, 1],
    )


def _channels(noises: Sequence[Tensor] = ()) -> Augmentation:
    noise: list[Augmentation] = [WhiteNoise(snr_db=(0.0, 30.0)), ColouredNoise(snr_db=(0.0, 30.0))]
    if len(noises):
        noise += [RecordedNoise(clips=noises), RecordedNoise(clips=noises, n_clips=(3, 6))]
    return Compose(
        [
            Polarity(),
            _some(0.3, _speed()),
            _some(0.3, RandomRoom(), _replay()),
            _some(0.35, *noise),
            _some(0.5, RandomEqualizer(gain_db=(-8.0, 8.0))),
            _some(0.3, Clipping(), AutomaticGain(), Gain(gain_db=(-30.0, 6.0)), weights=[1, 2, 2]),
            _some(0.55, _line()),
            _some(0.15, PacketLoss(), Gaps()),
            _some(0.1, Gaps(n_gaps=(1, 1), duration_s=(0.0, 0.5), at_start=True)),
        ]
    )


def _coders() -> Augmentation:
    """Real coders of telephones and messages, at all their bit rates."""
    levels = (0.0, 1.0)
    own_rate = ("amr-nb", "g722", "g723.1", "g726", "opus-voip", "aac")
    missing = set(own_rate).difference(available_codecs())
    if missing:
        raise ImportError(
            f"the coders {', '.join(sorted(missing))} need PyAV: pip install 'asvspoof-cm[av]'."
        )
    mobile = Codec(codecs=("amr-nb", "opus-voip"), compression_level=levels)
    others = Codec(codecs=("g722", "g723.1", "g726", "aac"), compression_level=levels)
    older = Codec(codecs=("mu-law", "a-law", "gsm"), narrowband_p=1.0)
    return _some(0.4, mobile, others, older, Compose([older, mobile]), weights=[4, 2, 2, 1])


AUGMENTATIONS: dict[str, Callable[[], Augmentation]] = {
    "tfparn": TFPARNAugment,
    "rawboost": lambda: RawBoost(algorithm=4, p=0.5),
    "speed": lambda: _some(0.5, _speed()),
    "channels": _channels,
    "coders": _coders,
}


def augmentation(name: str, *, noises: Sequence[Tensor] = ()) -> Augmentation | None:
    """Return the augmentation of a name, or of names joined by "+", in turn; None for "none".

    "tfparn" is the paper's, "rawboost" that of Tak et al., "speed" another speed. "channels" is
    what voices go through today: rooms, loudspeakers, noise, microphones, telephones and networks.
    "coders" passes two clips of five through real coders, for which it needs PyAV, the extra
    ``av``.

    Args:
        name: The name, or the names.
        noises: Recordings (time,) of street noise, music and voices, which "channels" adds one at
            a time, or several as babble.

    Example:
        >>> type(augmentation("tfparn")).__name__
        'TFPARNAugment'
        >>> type(augmentation("speed+rawboost")).__name__
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
    made = [
        _channels(noises) if stage == "channels" else AUGMENTATIONS[stage]() for stage in stages
    ]
    return made[0] if len(made) == 1 else Compose(made)
