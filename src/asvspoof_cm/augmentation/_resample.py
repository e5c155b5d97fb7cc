"""The one place where this package changes a sample rate."""

from __future__ import annotations

import math

import numpy as np
import scipy.signal
from numpy.typing import NDArray

Samples = NDArray[np.float32]


def resample(samples: Samples, sample_rate_in: int, sample_rate_out: int) -> Samples:
    """Resample `(time,)` with a linear-phase filter and no delay."""
    if sample_rate_in == sample_rate_out:
        return samples
    common = math.gcd(sample_rate_in, sample_rate_out)
    up, down = sample_rate_out // common, sample_rate_in // common
    return np.asarray(scipy.signal.resample_poly(samples, up, down), dtype=np.float32)
