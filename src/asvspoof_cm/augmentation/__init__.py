"""Random changes of waveforms: each draws, then applies what it drew.

The paper's three algorithms, RawBoost 1-8, shuffled segments (B12), copy synthesis, codecs, noise
and rooms (recorded or made up), gain, an equalizer, band limits, other speeds, masks for log-Mel
features, and what combines them. `Augmentation` states the contract; `augmentation` and
`extra_spoof` know the named combinations.
"""

from asvspoof_cm.augmentation.band import RandomBandLimit as RandomBandLimit
from asvspoof_cm.augmentation.base import Augmentation as Augmentation
from asvspoof_cm.augmentation.codecs import (
    CODECS as CODECS,
    Codec as Codec,
    available_codecs as available_codecs,
    transcode as transcode,
)
from asvspoof_cm.augmentation.colour import ColouredNoise as ColouredNoise
from asvspoof_cm.augmentation.compose import (
    Compose as Compose,
    OneOf as OneOf,
    RandomApply as RandomApply,
)
from asvspoof_cm.augmentation.equalizer import Gain as Gain, RandomEqualizer as RandomEqualizer
from asvspoof_cm.augmentation.folders import (
    FolderNoise as FolderNoise,
    FolderReverb as FolderReverb,
)
from asvspoof_cm.augmentation.notch import NotchBands as NotchBands
from asvspoof_cm.augmentation.rawboost import (
    ConvolutiveNoise as ConvolutiveNoise,
    ImpulsiveNoise as ImpulsiveNoise,
    RawBoost as RawBoost,
    StationaryNoise as StationaryNoise,
)
from asvspoof_cm.augmentation.recipes import (
    augmentation as augmentation,
    extra_spoof as extra_spoof,
)
from asvspoof_cm.augmentation.resynthesis import (
    CopySynthesis as CopySynthesis,
    MelVocoder as MelVocoder,
)
from asvspoof_cm.augmentation.rooms import RandomRoom as RandomRoom
from asvspoof_cm.augmentation.segments import ShuffleSegments as ShuffleSegments
from asvspoof_cm.augmentation.speed import RandomSpeed as RandomSpeed
from asvspoof_cm.augmentation.spoofed_copies import as_extra_spoof as as_extra_spoof
from asvspoof_cm.augmentation.tfparn_augment import (
    RandomButterworth as RandomButterworth,
    RandomFIR as RandomFIR,
    TFPARNAugment as TFPARNAugment,
    WhiteNoise as WhiteNoise,
)
