"""Speech anti-spoofing countermeasures in PyTorch.

Names are imported when first used, so ``asvspoof_cm.metrics`` needs NumPy and SciPy only.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asvspoof_cm.labels import BONAFIDE, SPOOF

__all__ = ["BONAFIDE", "SPOOF", "__version__"]

__version__ = _version("asvspoof-cm")

_HOMES = {"labels": ("BONAFIDE", "SPOOF")}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
