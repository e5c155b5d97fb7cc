"""From a corpus on disk to batches: protocols, the dataset, its loader and the packed cache.

Names are imported when first used: reading a protocol needs NumPy only, not torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asvspoof_cm.data.dataset import Failure, Item, SpoofDataset
    from asvspoof_cm.data.folder import AudioFolder
    from asvspoof_cm.data.formats import audio_entries
    from asvspoof_cm.data.loader import Batch, Loader, Order, make_loader
    from asvspoof_cm.data.miniature import MiniaturePaths, write_miniature
    from asvspoof_cm.data.orders import group_balanced, matched_pairs
    from asvspoof_cm.data.packed import PackedAudio, pack
    from asvspoof_cm.data.protocol import OFFICIAL_COUNTS, UNLABELLED, Protocol, read_protocol
    from asvspoof_cm.data.sources import AudioSource, open_audio

__all__ = [
    "OFFICIAL_COUNTS",
    "UNLABELLED",
    "Protocol",
    "read_protocol",
    "SpoofDataset",
    "Item",
    "Failure",
    "make_loader",
    "Loader",
    "Batch",
    "group_balanced",
    "matched_pairs",
    "audio_entries",
    "Order",
    "open_audio",
    "AudioSource",
    "AudioFolder",
    "PackedAudio",
    "pack",
    "MiniaturePaths",
    "write_miniature",
]

_HOMES = {
    "dataset": ("Failure", "Item", "SpoofDataset"),
    "folder": ("AudioFolder",),
    "formats": ("audio_entries",),
    "loader": ("Batch", "Loader", "Order", "make_loader"),
    "miniature": ("MiniaturePaths", "write_miniature"),
    "orders": ("group_balanced", "matched_pairs"),
    "packed": ("PackedAudio", "pack"),
    "protocol": ("OFFICIAL_COUNTS", "UNLABELLED", "Protocol", "read_protocol"),
    "sources": ("AudioSource", "open_audio"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
