"""What runs a scorer inside other systems: Ray, Hugging Face datasets, speech_spoof_bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asvspoof_cm._util import lazy_exports

if TYPE_CHECKING:
    from asvspoof_cm.engines.on_datasets import score_batch_function as score_batch_function
    from asvspoof_cm.engines.on_ray import score_ray as score_ray

__getattr__, __dir__, __all__ = lazy_exports(__name__)
