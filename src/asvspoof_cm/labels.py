"""The classes and the words for them, and the sampling rate, in one place.

Everywhere in this library 0 is spoof and 1 is bonafide, and a higher score means bonafide.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

__all__ = [
    "ABSENT",
    "BONAFIDE",
    "NO_SPEECH",
    "SPOOF",
    "LABELS",
    "LABEL_NAMES",
    "SAMPLE_RATE",
    "SASV_CLASSES",
]

SAMPLE_RATE: Final = 16000
"""The rate of waveforms, in Hz, where nothing else is said."""

SPOOF: Final = 0
BONAFIDE: Final = 1

NO_SPEECH: Final = 2
"""The label of a stretch of time in which nobody speaks."""

LABEL_NAMES: Final[tuple[str, str]] = ("spoof", "bonafide")
"""The word for each label: ``LABEL_NAMES[SPOOF] == "spoof"``."""

LABELS: Final[Mapping[str, int]] = MappingProxyType(
    {"spoof": SPOOF, "bonafide": BONAFIDE, "bona-fide": BONAFIDE}
)
"""The label for each word that public protocols use."""

SASV_CLASSES: Final = ("target", "nontarget", "spoof")
"""The three classes of Track 2: the claimed speaker, another speaker, and an attack."""

ABSENT: Final = "-"
"""What the challenge's files hold where there is nothing to say."""

NAME_COLUMNS: Final = ("utterance", "filename", "file_name", "file", "path", "flac_file_name")
"""What the column of names is called in the header of a table; the first that is there counts."""

LABEL_COLUMNS: Final = ("cm-label", "label", "key")
"""What the column of labels is called."""

Unit = Literal["llr", "log-odds"]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
"""What a score can be: calibrated log-likelihood ratio, or logit difference z1 − z0."""
