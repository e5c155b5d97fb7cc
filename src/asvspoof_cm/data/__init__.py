"""From a corpus on disk to batches: protocols, the audio of them, the dataset and its loader.

Names are imported when first used: reading a protocol needs NumPy only, not torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asvspoof_cm._util import lazy_exports

if TYPE_CHECKING:
    from asvspoof_cm.data.dataset import (
        Batch as Batch,
        SpoofDataset as SpoofDataset,
        make_loader as make_loader,
    )
    from asvspoof_cm.data.folder import AudioFolder as AudioFolder, find_audio as find_audio
    from asvspoof_cm.data.miniature import write_miniature as write_miniature
    from asvspoof_cm.data.orders import (
        group_balanced as group_balanced,
        matched_pairs as matched_pairs,
        shuffled as shuffled,
    )
    from asvspoof_cm.data.protocol import (
        UNLABELLED as UNLABELLED,
        Protocol as Protocol,
        read_protocol as read_protocol,
        write_protocol as write_protocol,
    )
    from asvspoof_cm.data.segments import (
        Segment as Segment,
        read_segments as read_segments,
        write_segments as write_segments,
    )

__getattr__, __dir__, __all__ = lazy_exports(__name__)
