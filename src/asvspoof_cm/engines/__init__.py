"""Joints to what runs a scorer elsewhere: a service, arrays of jobs, Ray, datasets."""

from __future__ import annotations

from asvspoof_cm.engines.hugging_face import protocol_from_dataset, score_batch_function
from asvspoof_cm.engines.on_ray import fit_ray, score_ray

__all__ = ["fit_ray", "protocol_from_dataset", "score_batch_function", "score_ray"]
