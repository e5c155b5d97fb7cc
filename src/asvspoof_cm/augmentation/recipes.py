"""Augmentations by name, so that a recipe is plain text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from asvspoof_cm.augmentation import channel
from asvspoof_cm.augmentation.base import Augmentation
from asvspoof_cm.augmentation.codecs import Codec, SpeechCoder, available_codecs
from asvspoof_cm.augmentation.compose import Compose, OneOf
from asvspoof_cm.augmentation.rawboost import RawBoost
from asvspoof_cm.augmentation.tfparn import TFPARNAugment, WhiteNoise

_SPEED = channel.RandomSpeed(percent=(88, 112))


def _replay() -> Augmentation:
    """A loudspeaker, a small room and a microphone."""
    return Compose(
        [
            channel.RandomBandLimit(low_hz=(80.0, 400.0), high_hz=(4500.0, 8000.0)),
            channel.RandomEqualizer(gain_db=(-8.0, 8.0), n_points=12),
            channel.Clipping(below_peak_db=(0.0, 10.0), soft_p=1.0),
            channel.RandomRoom(decay_s=(0.05, 0.4), direct_db=(-3.0, 15.0)),
            channel.ColouredNoise(snr_db=(15.0, 45.0)),
        ]
    )


def _line() -> Augmentation:
    """What a call or a message goes through: one coder, or two in tandem."""
    narrow = channel.RandomBandLimit(low_hz=(200.0, 350.0), high_hz=(3200.0, 3900.0))
    wide = channel.RandomBandLimit(low_hz=(0.0, 100.0), high_hz=(6000.0, 7800.0))
    coder = SpeechCoder()
    quick = Codec(codecs=("mu-law", "a-law"), narrowband_p=0.8)
    adaptive = Codec(codecs=("gsm", "g721", "ima-adpcm"), narrowband_p=1.0)
    music = Codec(codecs=("mp3", "vorbis"), compression_level=(0.4, 0.99))
    lines = [
        Compose([narrow, OneOf([coder, quick], p=0.5)]),
        Compose([coder, narrow]),
        Compose([coder, wide]),
        Compose([narrow, adaptive]),
        Compose([quick, wide, coder]),
        music,
    ]
    return OneOf(lines, weights=[2, 2, 3, 2, 1, 1], p=0.55)


def _channels(noises: Sequence[Tensor] = ()) -> Augmentation:
    noise: list[Augmentation] = [
        WhiteNoise(snr_db=(0.0, 30.0)),
        channel.ColouredNoise(snr_db=(0.0, 30.0)),
    ]
    if len(noises):
        noise += [channel.RecordedNoise(clips=noises, n_clips=n) for n in ((1, 1), (3, 6))]
    levels = [channel.Clipping(), channel.AutomaticGain(), channel.Gain(gain_db=(-30.0, 6.0))]
    late_start = channel.Gaps(n_gaps=(1, 1), duration_s=(0.0, 0.5), at_start=True)
    return Compose(
        [
            channel.Polarity(),
            OneOf([_SPEED], p=0.3),
            OneOf([channel.RandomRoom(), _replay()], p=0.3),
            OneOf(noise, p=0.35),
            OneOf([channel.RandomEqualizer(gain_db=(-8.0, 8.0))], p=0.5),
            OneOf(levels, weights=[1, 2, 2], p=0.3),
            _line(),
            OneOf([channel.PacketLoss(), channel.Gaps()], p=0.15),
            OneOf([late_start], p=0.1),
        ]
    )


def _coders() -> Augmentation:
    """Real coders of telephones and messages, at all their bit rates."""
    own_rate = {"amr-nb", "g722", "g723.1", "g726", "opus-voip", "aac"}
    missing = own_rate.difference(available_codecs())
    if missing:
        raise ImportError(
            f"the coders {', '.join(sorted(missing))} need PyAV: pip install 'asvspoof-cm[av]'."
        )
    mobile = Codec(codecs=("amr-nb", "opus-voip"), compression_level=(0.0, 1.0))
    others = Codec(codecs=("g722", "g723.1", "g726", "aac"), compression_level=(0.0, 1.0))
    older = Codec(codecs=("mu-law", "a-law", "gsm"), narrowband_p=1.0)
    coders = [mobile, others, older, Compose([older, mobile])]
    return OneOf(coders, weights=[4, 2, 2, 1], p=0.4)


AUGMENTATIONS: dict[str, Callable[[], Augmentation]] = {
    "tfparn": TFPARNAugment,
    "rawboost": lambda: RawBoost(algorithm=4, p=0.5),
    "speed": lambda: OneOf([_SPEED], p=0.5),
    "channels": _channels,
    "coders": _coders,
}


def augmentation(name: str, *, noises: Sequence[Tensor] = ()) -> Augmentation | None:
    """Return the augmentation of a name, or of names joined by "+", in turn; None for "none".

    "tfparn" is the paper's, "rawboost" that of Tak et al., "speed" another speed. "channels" is
    what voices go through today: rooms, loudspeakers, noise, microphones, telephones and networks.
    "coders" passes two clips of five through real coders; it needs the extra ``av``.

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
    names = name.split("+")
    if not set(names) <= set(AUGMENTATIONS):
        raise ValueError(
            f"`augmentation` must be none, one of {', '.join(AUGMENTATIONS)}, or several of them "
            f"joined by +; got {name!r}."
        )
    made = [_channels(noises) if each == "channels" else AUGMENTATIONS[each]() for each in names]
    return made[0] if len(made) == 1 else Compose(made)
