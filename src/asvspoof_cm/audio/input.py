"""What a model must be given: rate, length and number of crops, level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from asvspoof_cm.audio.reading import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_between, check_choice, check_positive, check_rate

Normalization = Literal["crop", "utterance", "none"]
"""What crops are divided by: their own peak, that of the whole utterance, or nothing."""


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """What a model needs to know about its input: stored in its checkpoint, read where it runs.

    Attributes:
        sample_rate: The sampling rate of the waveforms, in Hz.
        crop_s: The length of a crop, in seconds.
        n_crops: The crops of an utterance whose logits are averaged.
        one_crop: Where that crop lies if it is the only one: in the "center" or at the "start".
        normalization: What a crop is divided by: "crop", its own peak; "utterance", the peak of the
            whole utterance, which must then be read as a whole; "none", nothing.

    Example:
        >>> InputSettings(crop_s=1.5).n_samples
        24000
    """

    sample_rate: int = SAMPLE_RATE
    crop_s: float = 4.0
    n_crops: int = 5
    one_crop: Literal["center", "start"] = "center"
    normalization: Normalization = "crop"

    def __post_init__(self) -> None:
        check_rate(self.sample_rate)
        if not 1 / self.sample_rate <= self.crop_s <= 3600.0:
            raise ValueError(
                "`crop_s` must be a number of seconds from one sample to an hour; "
                f"got {self.crop_s}."
            )
        check_positive(self, "n_crops")
        check_between("n_crops", self.n_crops, 1, 1000)
        check_choice("one_crop", self.one_crop, ("center", "start"))
        check_choice("normalization", self.normalization, ("crop", "utterance", "none"))

    @property
    def n_samples(self) -> int:
        """The samples of a crop."""
        return round(self.crop_s * self.sample_rate)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> InputSettings:
        """Return the settings that `dataclasses.asdict` made a dict of."""
        unknown = sorted(content.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(
                f"the input settings have unknown fields {', '.join(unknown)}; they may come from "
                "a newer version of asvspoof-cm."
            )
        return cls(**content)
