"""Random changes of waveforms: each draws, then applies what it drew.

The paper's three algorithms, RawBoost 1-8, channels (rooms, noise, microphones, lines, networks),
codecs, vocoded copies of speech, and what combines them. `Augmentation` states the contract,
`augmentation` knows the named combinations.
"""

from asvspoof_cm.augmentation.base import Augmentation as Augmentation
from asvspoof_cm.augmentation.channel import (
    AutomaticGain as AutomaticGain,
    Clipping as Clipping,
    ColouredNoise as ColouredNoise,
    Gain as Gain,
    Gaps as Gaps,
    PacketLoss as PacketLoss,
    Polarity as Polarity,
    RandomBandLimit as RandomBandLimit,
    RandomEqualizer as RandomEqualizer,
    RandomRoom as RandomRoom,
    RandomSpeed as RandomSpeed,
    RecordedNoise as RecordedNoise,
)
from asvspoof_cm.augmentation.codecs import (
    CODECS as CODECS,
    Codec as Codec,
    SpeechCoder as SpeechCoder,
    available_codecs as available_codecs,
    transcode as transcode,
)
from asvspoof_cm.augmentation.compose import (
    Compose as Compose,
    OneOf as OneOf,
    RandomApply as RandomApply,
)
from asvspoof_cm.augmentation.rawboost import (
    ConvolutiveNoise as ConvolutiveNoise,
    ImpulsiveNoise as ImpulsiveNoise,
    RawBoost as RawBoost,
    StationaryNoise as StationaryNoise,
)
from asvspoof_cm.augmentation.recipes import augmentation as augmentation
from asvspoof_cm.augmentation.spoof import CopySynthesis as CopySynthesis
from asvspoof_cm.augmentation.tfparn import (
    RandomButterworth as RandomButterworth,
    RandomFIR as RandomFIR,
    TFPARNAugment as TFPARNAugment,
    WhiteNoise as WhiteNoise,
)
