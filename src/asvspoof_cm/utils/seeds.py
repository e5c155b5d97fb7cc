"""Seeds that follow from other seeds."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *key: int) -> int:
    """Return a seed for `torch.Generator` that depends on `seed` and on every number of `key`."""
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
