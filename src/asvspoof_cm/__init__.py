"""Speech anti-spoofing countermeasures in PyTorch.

Names are imported when first used, so ``asvspoof_cm.metrics`` needs NumPy and SciPy only.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asvspoof_cm.audio import fix_length, load_audio, peak_normalize, resample, tta_crops
    from asvspoof_cm.checkpoint import load_checkpoint, load_published_aasist, save_checkpoint
    from asvspoof_cm.labels import BONAFIDE, SPOOF
    from asvspoof_cm.losses import focal_loss, focal_pairwise_loss, pairwise_ranking_loss
    from asvspoof_cm.models import (
        AASIST,
        TFPARN,
        AASISTConfig,
        RawNet2,
        RawNet2Config,
        TFPARNConfig,
    )

__all__ = [
    "BONAFIDE",
    "SPOOF",
    "__version__",
    # models
    "AASIST",
    "AASISTConfig",
    "RawNet2",
    "RawNet2Config",
    "TFPARN",
    "TFPARNConfig",
    # losses
    "focal_loss",
    "focal_pairwise_loss",
    "pairwise_ranking_loss",
    # audio
    "fix_length",
    "load_audio",
    "peak_normalize",
    "resample",
    "tta_crops",
    # checkpoints
    "load_checkpoint",
    "load_published_aasist",
    "save_checkpoint",
]

__version__ = _version("asvspoof-cm")

_HOMES = {
    "audio": ("fix_length", "load_audio", "peak_normalize", "resample", "tta_crops"),
    "checkpoint": ("load_checkpoint", "load_published_aasist", "save_checkpoint"),
    "labels": ("BONAFIDE", "SPOOF"),
    "losses": ("focal_loss", "focal_pairwise_loss", "pairwise_ranking_loss"),
    "models": (
        *("AASIST", "AASISTConfig", "RawNet2", "RawNet2Config"),
        *("TFPARN", "TFPARNConfig"),
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
