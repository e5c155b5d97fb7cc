"""The two classes, in one place.

Everywhere in this library 0 is spoof and 1 is bonafide, and a higher score means bonafide.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["BONAFIDE", "SPOOF", "LABELS", "LABEL_NAMES"]

SPOOF: Final = 0
BONAFIDE: Final = 1

LABEL_NAMES: Final[tuple[str, str]] = ("spoof", "bonafide")
"""The word for each label: ``LABEL_NAMES[SPOOF] == "spoof"``."""

LABELS: Final[Mapping[str, int]] = MappingProxyType(
    {"spoof": SPOOF, "bonafide": BONAFIDE, "bona-fide": BONAFIDE}
)
"""The label for each word that public protocols use."""
