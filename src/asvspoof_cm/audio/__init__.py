"""From a file to crops of a fixed length.

A waveform is a float tensor of shape (time,), mono, at 16 kHz unless said otherwise. Sections
III-B.1 and III-C of the TFPARN paper define how it becomes 4 s crops:

- longer than a crop: cut one out, at random in training, from the centre in evaluation;
- shorter: repeat the whole waveform until it exceeds the crop, then cut;
- test-time augmentation: several crops, their starts evenly spaced from the first to the last.
"""

from asvspoof_cm.audio.crops import (
    CROP_SAMPLES,
    crop_start,
    crop_starts,
    cut,
    fix_length,
    last_start,
    tta_crops,
)
from asvspoof_cm.audio.files import AUDIO_EXTENSIONS, AudioFile, load_audio
from asvspoof_cm.audio.waveforms import (
    SAMPLE_RATE,
    Normalization,
    peak_normalize,
    peak_or_one,
    resample,
    resampling_reach,
    set_level,
    to_mono,
)

__all__ = [
    "AUDIO_EXTENSIONS",
    "CROP_SAMPLES",
    "SAMPLE_RATE",
    "AudioFile",
    "Normalization",
    "crop_start",
    "crop_starts",
    "cut",
    "fix_length",
    "last_start",
    "load_audio",
    "peak_normalize",
    "peak_or_one",
    "resample",
    "resampling_reach",
    "set_level",
    "to_mono",
    "tta_crops",
]
