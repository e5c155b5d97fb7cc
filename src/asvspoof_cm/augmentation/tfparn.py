r"""The three algorithms of the TFPARN paper, section III-B.2.

The paper calls them RawBoost; they are not those of Tak et al. (2022), which `rawboost` has.
It gives the formulas, the SNR range and the probability, and leaves the other ranges open: the
defaults here are ours, and each class documents its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.signal
import torch
from torch import Tensor

from asvspoof_cm.augmentation.base import Augmentation, Drawn, integers, row_noise, seeds, uniform
from asvspoof_cm.augmentation.compose import OneOf, RandomApply
from asvspoof_cm.augmentation.filters import add_noise, fir_filter, sos_filter
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.utils.checks import check_between, check_range, check_snr

_PASS_BANDS = ("lowpass", "highpass", "bandpass")


@dataclass(frozen=True, kw_only=True)
class RandomFIR(Augmentation):
    """Algorithm 1: x̃ = x ∗ h with a random short FIR h, then tanh(αx̃) for some of the rows.

    The filter is a direct path and a Gaussian tail of falling level,
    h[k] = δ[k] + spread · g[k] · exp(−3k / n_taps), scaled to unit energy so that the level of a
    white signal is kept. The output stays aligned with the input.

    Args:
        n_taps: Range of the number of taps, both ends included.
        spread: Standard deviation of the first tap of the tail; 0 makes the filter an identity.
        tanh_p: Probability of the tanh.
        alpha: Range of α.

    Example:
        >>> RandomFIR(n_taps=(8, 8)).draw(2, 16000)["taps"].shape
        torch.Size([2, 8])
    """

    n_taps: tuple[int, int] = (8, 32)
    spread: float = 0.5
    tanh_p: float = 0.5
    alpha: tuple[float, float] = (1.0, 4.0)

    def __post_init__(self) -> None:
        check_range("n_taps", self.n_taps, 1)
        check_between("spread", self.spread, 0)
        check_between("tanh_p", self.tanh_p, 0, 1)
        check_range("alpha", self.alpha, 0)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        n_taps = integers((n_rows, 1), self.n_taps, generator)
        k = torch.arange(int(n_taps.max()))
        tail = torch.randn(n_rows, len(k), dtype=torch.float64, generator=generator)
        taps = self.spread * tail * torch.exp(-3 * k / n_taps) * (k < n_taps)
        taps[:, 0] += 1
        taps /= taps.norm(dim=1, keepdim=True)
        with_tanh = uniform((n_rows,), (0, 1), generator) < self.tanh_p
        # An α of 0 leaves x̃ as it is.
        return {"taps": taps, "alpha": uniform((n_rows,), self.alpha, generator) * with_tanh}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        filtered = fir_filter(waveform, drawn["taps"]).contiguous()
        for row, alpha in enumerate(drawn["alpha"].tolist()):
            if alpha > 0:  # tanh costs as much as the filter: only where it is wanted
                filtered[row].mul_(alpha).tanh_()
        return filtered


@dataclass(frozen=True, kw_only=True)
class RandomButterworth(Augmentation):
    """Algorithm 2: a random low-, high- or band-pass Butterworth filter, as stable sections.

    The kind is uniform over the three; a band-pass takes both cut-offs. A band-pass of order n
    has n poles at either edge, as in `scipy.signal.butter`.

    Args:
        order: Range of the order, both ends included.
        low_hz: Range of the lower cut-off.
        high_hz: Range of the upper cut-off, above that of the lower one.
        sample_rate: Of the waveforms, in Hz.

    Example:
        >>> RandomButterworth()(torch.randn(16000)).shape
        torch.Size([16000])
    """

    order: tuple[int, int] = (1, 6)
    low_hz: tuple[float, float] = (50.0, 1000.0)
    high_hz: tuple[float, float] = (2000.0, 7500.0)
    sample_rate: int = SAMPLE_RATE

    def __post_init__(self) -> None:
        check_range("order", self.order, 1, 12)
        check_range("low_hz", self.low_hz, 1)
        if not self.low_hz[1] < self.high_hz[0] <= self.high_hz[1] < self.sample_rate / 2:
            raise ValueError(
                "`high_hz` must lie above `low_hz` and below half the sample rate, "
                f"{self.sample_rate / 2:g} Hz; got low_hz={self.low_hz}, high_hz={self.high_hz}."
            )

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        kinds = integers((n_rows,), (0, len(_PASS_BANDS) - 1), generator)
        return {
            "kind": tuple(_PASS_BANDS[kind] for kind in kinds.tolist()),
            "order": integers((n_rows,), self.order, generator),
            "low_hz": uniform((n_rows,), self.low_hz, generator),
            "high_hz": uniform((n_rows,), self.high_hz, generator),
        }

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        return sos_filter(waveform, butterworth_sos(drawn, self.sample_rate))


def butterworth_sos(drawn: Drawn, sample_rate: int = SAMPLE_RATE) -> Tensor:
    """Return the drawn filters as second-order sections, `(n_rows, n_sections, 6)`.

    Rows with fewer sections than the longest end in sections that pass everything.
    """
    rows = []
    columns = (drawn[name].tolist() for name in ("order", "low_hz", "high_hz"))
    for kind, order, low, high in zip(drawn["kind"], *columns, strict=True):
        cut_offs = {"lowpass": high, "highpass": low, "bandpass": [low, high]}
        if kind not in cut_offs:
            raise ValueError(f"`kind` must hold {', '.join(cut_offs)}; got {kind!r}.")
        rows.append(scipy.signal.butter(order, cut_offs[kind], kind, output="sos", fs=sample_rate))
    n_sections = max(len(row) for row in rows)
    sos = np.tile([1.0, 0, 0, 1, 0, 0], (len(rows), n_sections, 1))
    for padded, row in zip(sos, rows, strict=True):
        padded[: len(row)] = row
    return torch.from_numpy(sos)


@dataclass(frozen=True, kw_only=True)
class WhiteNoise(Augmentation):
    """Algorithm 3: white Gaussian noise at an SNR uniform in `snr_db`, met exactly.

    Args:
        snr_db: Range of the SNR; ``(inf, inf)`` adds nothing.

    Example:
        >>> x = torch.sin(torch.arange(16000) / 10)
        >>> noisy = WhiteNoise(snr_db=(20, 20))(x)
        >>> round(float(10 * torch.log10(x.square().sum() / (noisy - x).square().sum())), 3)
        20.0
    """

    snr_db: tuple[float, float] = (10.0, 40.0)

    def __post_init__(self) -> None:
        check_snr("snr_db", self.snr_db)

    def _draw(self, n_rows: int, n_samples: int, generator: torch.Generator) -> Drawn:
        snr_db = uniform((n_rows,), self.snr_db, generator)
        return {"snr_db": snr_db, "seed": seeds(n_rows, generator)}

    def _apply(self, waveform: Tensor, drawn: Drawn) -> Tensor:
        return add_noise(waveform, row_noise(waveform, drawn["seed"]), drawn["snr_db"])


class TFPARNAugment(RandomApply):
    """The paper's augmentation: with probability `p`, one of its three algorithms per row.

    Args:
        p: Probability that a row is augmented.
        sample_rate: Of the waveforms, in Hz.

    Example:
        >>> TFPARNAugment(p=0.5)(torch.randn(4, 16000)).shape
        torch.Size([4, 16000])
    """

    def __init__(self, p: float = 0.5, *, sample_rate: int = SAMPLE_RATE) -> None:
        butterworth = RandomButterworth(sample_rate=sample_rate)
        super().__init__(OneOf([RandomFIR(), butterworth, WhiteNoise()]), p)
