"""How much memory this process has, without torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["peak_resident_bytes", "resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the memory that this process has now; without /proc, the most it ever had.

    Example:
        >>> resident_bytes() > 1_000_000
        True
    """
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the most memory that this process ever had; 0 on Windows, which does not say.

    Example:
        >>> peak_resident_bytes() > 1_000_000
        True
    """
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
