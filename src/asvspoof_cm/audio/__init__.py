"""From a file to crops of a fixed length.

A waveform is a float tensor of shape (time,), mono, at 16 kHz unless said otherwise. Sections
III-B.1 and III-C of the TFPARN paper define how it becomes 4 s crops:

- longer than a crop: cut one out, at random in training, from the centre in evaluation;
- shorter: repeat the whole waveform until it exceeds the crop, then cut;
- test-time augmentation: several crops, their starts evenly spaced from the first to the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asvspoof_cm.utils.lazy import lazy_exports

if TYPE_CHECKING:
    from asvspoof_cm.audio.crops import cut as cut, fix_length as fix_length, tta_crops as tta_crops
    from asvspoof_cm.audio.input import InputSettings as InputSettings
    from asvspoof_cm.audio.level import peak_normalize as peak_normalize, set_level as set_level
    from asvspoof_cm.audio.reading import (
        AUDIO_EXTENSIONS as AUDIO_EXTENSIONS,
        SAMPLE_RATE as SAMPLE_RATE,
        AudioFile as AudioFile,
        load_audio as load_audio,
    )
    from asvspoof_cm.audio.resampling import resample as resample

__getattr__, __dir__, __all__ = lazy_exports(__name__)
