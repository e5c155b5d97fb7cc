"""Joints to what runs a scorer elsewhere: a service, arrays of jobs, Ray, datasets."""

from __future__ import annotations

from asvspoof_cm.engines.hugging_face import protocol_from_dataset, score_batch_function

__all__ = ["protocol_from_dataset", "score_batch_function"]
