"""Random changes of waveforms: each draws its parameters, then applies them.

The paper's three algorithms, RawBoost 1-8, shuffled segments (B12), copy synthesis, codecs,
recorded noise and rooms, gain, an equalizer, band limits, other speeds, masks for log-Mel features,
and what combines them. `base` states the contract.
"""

from __future__ import annotations

from asvspoof_cm.augmentation.band import BandLimitParameters, RandomBandLimit, band_limit
from asvspoof_cm.augmentation.base import Augmentation, Parameters
from asvspoof_cm.augmentation.codecs import (
    CODECS,
    Codec,
    CodecParameters,
    available_codecs,
    transcode,
)
from asvspoof_cm.augmentation.compose import (
    Branch,
    Branches,
    Compose,
    OneOf,
    RandomApply,
    Stages,
)
from asvspoof_cm.augmentation.equalizer import EqualizerParameters, RandomEqualizer, equalize
from asvspoof_cm.augmentation.extra import as_extra_spoof
from asvspoof_cm.augmentation.filters import (
    add_noise,
    fir_filter,
    limit_peak,
    polynomial_filter,
    sos_filter,
)
from asvspoof_cm.augmentation.folders import (
    FolderNoise,
    FolderNoiseParameters,
    FolderReverb,
    FolderReverbParameters,
    reverberate,
)
from asvspoof_cm.augmentation.gain import Gain, GainParameters
from asvspoof_cm.augmentation.masking import LogMelMask, MaskParameters, mask_log_mel
from asvspoof_cm.augmentation.notch import NotchBands, NotchParameters, notch_taps
from asvspoof_cm.augmentation.pulses import (
    PulseParameters,
    PulseSynthesis,
    cepstral_envelope,
    estimate_pitch,
    pulse_excitation,
)
from asvspoof_cm.augmentation.rawboost import (
    ConvolutiveNoise,
    ImpulsiveNoise,
    ImpulsiveParameters,
    RawBoost,
    StationaryNoise,
    StationaryParameters,
    convolutive_noise,
    impulsive_noise,
    rawboost,
    stationary_noise,
)
from asvspoof_cm.augmentation.resynthesis import (
    CopySynthesis,
    MelVocoder,
    ResynthesisParameters,
    mel_magnitude,
    reconstruct_phase,
)
from asvspoof_cm.augmentation.segments import (
    SegmentParameters,
    ShuffleSegments,
    reorder_segments,
    shuffle_segments,
)
from asvspoof_cm.augmentation.speed import RandomSpeed, SpeedParameters, change_speed
from asvspoof_cm.augmentation.tfparn import (
    ButterworthParameters,
    FIRParameters,
    NoiseParameters,
    RandomButterworth,
    RandomFIR,
    TFPARNAugment,
    WhiteNoise,
    butterworth_sos,
    convolve_tanh,
    tfparn_augment,
)

__all__ = [
    # the contract, and combining
    "Augmentation", "Parameters",
    "Compose", "OneOf", "RandomApply", "Branch", "Branches", "Stages",
    # the paper's three
    "TFPARNAugment", "tfparn_augment",
    "RandomFIR", "RandomButterworth", "WhiteNoise", "convolve_tanh", "butterworth_sos",
    "FIRParameters", "ButterworthParameters", "NoiseParameters",
    # RawBoost
    "RawBoost", "rawboost", "NotchBands", "notch_taps",
    "ConvolutiveNoise", "ImpulsiveNoise", "StationaryNoise",
    "convolutive_noise", "impulsive_noise", "stationary_noise",
    "NotchParameters", "ImpulsiveParameters", "StationaryParameters",
    # extra spoof: B12 and copy synthesis
    "as_extra_spoof", "ShuffleSegments", "shuffle_segments", "reorder_segments",
    "SegmentParameters", "CopySynthesis", "MelVocoder", "mel_magnitude", "reconstruct_phase",
    "ResynthesisParameters", "PulseSynthesis", "estimate_pitch", "pulse_excitation",
    "cepstral_envelope", "PulseParameters",
    # codecs
    "CODECS", "Codec", "available_codecs", "transcode", "CodecParameters",
    # folders
    "FolderNoise", "FolderReverb", "reverberate", "FolderNoiseParameters",
    "FolderReverbParameters",
    # gain, equalizer, band limit, speed and masks
    "Gain", "GainParameters", "RandomEqualizer", "equalize", "EqualizerParameters",
    "RandomBandLimit", "band_limit", "BandLimitParameters",
    "RandomSpeed", "change_speed", "SpeedParameters",
    "LogMelMask", "mask_log_mel", "MaskParameters",
    # filters
    "add_noise", "fir_filter", "limit_peak", "polynomial_filter", "sos_filter",
]  # fmt: skip
