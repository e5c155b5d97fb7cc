"""Speech anti-spoofing countermeasures in PyTorch.

Names are imported when first used, so ``asvspoof_cm.metrics`` needs NumPy and SciPy only.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asvspoof_cm.audio import fix_length, load_audio, peak_normalize, resample, tta_crops
    from asvspoof_cm.augmentation import RawBoost, TFPARNAugment
    from asvspoof_cm.calibration import Calibration, fit_calibration
    from asvspoof_cm.checkpoint import load_checkpoint, load_published_aasist, save_checkpoint
    from asvspoof_cm.data.dataset import SpoofDataset
    from asvspoof_cm.data.loader import make_loader
    from asvspoof_cm.data.protocol import read_protocol
    from asvspoof_cm.export import export_onnx, load_onnx
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
    from asvspoof_cm.scorer import Scorer, StreamingScorer
    from asvspoof_cm.training import fit, system

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
    # augmentation
    "RawBoost",
    "TFPARNAugment",
    # checkpoints and calibration
    "Calibration",
    "fit_calibration",
    "load_checkpoint",
    "load_published_aasist",
    "save_checkpoint",
    # scoring
    "Scorer",
    "StreamingScorer",
    "export_onnx",
    "load_onnx",
    # data and training
    "SpoofDataset",
    "fit",
    "make_loader",
    "read_protocol",
    "system",
]

__version__ = _version("asvspoof-cm")

_HOMES = {
    "audio": ("fix_length", "load_audio", "peak_normalize", "resample", "tta_crops"),
    "augmentation": ("RawBoost", "TFPARNAugment"),
    "calibration": ("Calibration", "fit_calibration"),
    "checkpoint": ("load_checkpoint", "load_published_aasist", "save_checkpoint"),
    "data.dataset": ("SpoofDataset",),
    "data.loader": ("make_loader",),
    "data.protocol": ("read_protocol",),
    "export": ("export_onnx", "load_onnx"),
    "labels": ("BONAFIDE", "SPOOF"),
    "losses": ("focal_loss", "focal_pairwise_loss", "pairwise_ranking_loss"),
    "models": (
        *("AASIST", "AASISTConfig", "RawNet2", "RawNet2Config"),
        *("TFPARN", "TFPARNConfig"),
    ),
    "scorer": ("Scorer", "StreamingScorer"),
    "training": ("fit", "system"),
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
