"""From a waveform to what a model looks at: log-Mel and linear bands, LFCC, the sinc filterbank."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LFCC", "LogMel", "SincConv", "mel_filterbank"]

Padding = Literal["reflect", "constant"] | None
Scale = Literal["mel", "linear"]


def hz_to_mel(frequency: Tensor) -> Tensor:
    """Map Hz to the Mel scale, 2595 · log10(1 + f / 700)."""
    return 2595.0 * torch.log10(1.0 + frequency / 700.0)


def _mel_points(low_hz: float, high_hz: float, n: int) -> Tensor:
    """Return n frequencies in Hz, equally spaced on the Mel scale."""
    low, high = hz_to_mel(torch.tensor([low_hz, high_hz], dtype=torch.float64)).tolist()
    return 700.0 * (10.0 ** (torch.linspace(low, high, n, dtype=torch.float64) / 2595.0) - 1.0)


def mel_filterbank(
    n_mels: int = 160,
    n_fft: int = 1024,
    *,
    sample_rate: int = 16000,
    f_min: float = 0.0,
    f_max: float | None = None,
    scale: Scale = "mel",
) -> Tensor:
    """Return triangular filters of height 1, float32 of shape (n_mels, n_fft // 2 + 1).

    The corners of the triangles are equally spaced on the scale from `f_min` to `f_max`.

    Args:
        n_mels: The number of bands.
        n_fft: The FFT size of the spectrogram.
        sample_rate: In Hz.
        f_min: The lower edge of the lowest band, in Hz.
        f_max: The upper edge of the highest band, in Hz; None is half the sample rate.
        scale: "mel", or "linear" for that of Hz.

    Example:
        >>> mel_filterbank().shape
        torch.Size([160, 513])
    """
    f_max = sample_rate / 2 if f_max is None else f_max
    if not 0 <= f_min < f_max <= sample_rate / 2:
        raise ValueError(
            "`f_min` and `f_max` must satisfy 0 ≤ f_min < f_max ≤ sample_rate / 2; "
            f"got {f_min}, {f_max} at {sample_rate} Hz."
        )
    corners = torch.linspace(f_min, f_max, n_mels + 2, dtype=torch.float64)
    if scale == "mel":
        corners = _mel_points(f_min, f_max, n_mels + 2)
    return _triangles(corners, n_fft, sample_rate).float()


def slaney_filterbank(n_mels: int, n_fft: int) -> Tensor:
    """Return Whisper's filters: triangles of equal area on Slaney's Mel scale up to 8 kHz.

    The scale has 3 Mel for each 200 Hz below 1000 Hz, and 27 for each factor of 6.4 above.
    """
    rate = math.log(6.4) / 27
    mel = torch.linspace(0, 15 + math.log(8) / rate, n_mels + 2, dtype=torch.float64)
    corners = torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp(rate * (mel - 15)))
    filters = _triangles(corners, n_fft, 16000)
    return (filters * 2 / (corners[2:] - corners[:-2])[:, None]).float()


def _triangles(corners: Tensor, n_fft: int, sample_rate: int) -> Tensor:
    """Return triangles of height 1 between each corner in Hz and the next but one."""
    bins = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    left, centre, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising = (bins - left) / (centre - left)
    falling = (right - bins) / (right - centre)
    filters = torch.minimum(rising, falling).clamp(min=0)
    empty = (filters.sum(dim=1) == 0).sum().item()
    if empty:
        raise ValueError(
            f"{len(filters)} bands are too many for `n_fft` = {n_fft}: {empty} hold no FFT bin. "
            "Use fewer bands or a larger FFT."
        )
    return filters


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off: powers overflow in half precision."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def stft(
    waveform: Tensor,
    window: Tensor,
    *,
    hop_length: int,
    n_fft: int | None = None,
    padding: Padding = "reflect",
) -> Tensor:
    """Return the complex short-time Fourier transform (..., n_fft // 2 + 1, n_frames).

    In float32 at least, also under autocast. The window lies in the middle of the FFT where that is
    longer. Its middle is at sample t · hop_length of the waveform, which is reflected or zero
    beyond its ends; without padding, frame t begins at that sample.
    """
    with no_autocast(waveform.device.type):
        if waveform.dtype in (torch.float16, torch.bfloat16):
            waveform = waveform.float()
        spectrum = torch.stft(
            waveform.reshape(-1, waveform.shape[-1]),
            n_fft or len(window),
            hop_length,
            win_length=len(window),
            window=window.to(waveform.dtype),
            center=padding is not None,
            pad_mode=padding or "constant",
            return_complex=True,
        )
        return spectrum.reshape(*waveform.shape[:-1], *spectrum.shape[-2:])


def power_spectrogram(waveform: Tensor, window: Tensor, **framing: Any) -> Tensor:
    """Return |X|² of the `stft` X, with its arguments."""
    spectrum = stft(waveform, window, **framing)
    return spectrum.real.square() + spectrum.imag.square()


class LogMel(nn.Module):
    """The natural logarithm of the Mel power spectrogram, or of that in linear bands.

    The STFT is centred: frame t is at sample t · hop_length, and the ends are reflected. Power
    below `floor` counts as `floor`, by default 108 dB below a full-scale tone.

    Args:
        sample_rate: In Hz.
        n_fft: The FFT size.
        hop_length: Samples from frame to frame.
        n_mels: The number of bands.
        f_min: The lower edge of the lowest band, in Hz.
        f_max: The upper edge of the highest band, in Hz; None is half the sample rate.
        floor: The least power.
        n_window: The samples of the window; None is `n_fft`.
        window: What makes it.
        scale: Bands equally spaced in "mel" or in Hz, "linear".

    Example:
        >>> LogMel()(torch.randn(2, 64000)).shape
        torch.Size([2, 160, 401])
    """

    window: Tensor
    filterbank: Tensor

    def __init__(
        self,
        *,
        sample_rate: int = 16000,
        n_fft: int = 1024,
        hop_length: int = 160,
        n_mels: int = 160,
        f_min: float = 0.0,
        f_max: float | None = None,
        floor: float = 1e-6,
        n_window: int | None = None,
        window: Callable[[int], Tensor] = torch.hann_window,
        scale: Scale = "mel",
    ) -> None:
        super().__init__()
        if floor <= 0:
            raise ValueError(f"`floor` must be positive; got {floor}.")
        self.n_fft, self.hop_length, self.floor = n_fft, hop_length, floor
        self.register_buffer("window", window(n_window or n_fft), persistent=False)
        filterbank = mel_filterbank(
            n_mels, n_fft, sample_rate=sample_rate, f_min=f_min, f_max=f_max, scale=scale
        )
        self.register_buffer("filterbank", filterbank, persistent=False)

    def forward(self, waveform: Tensor) -> Tensor:
        """Return (..., n_mels, time // hop_length + 1) of (..., time), in float32 at least."""
        if waveform.shape[-1] < self.n_fft:
            raise ValueError(
                f"`waveform` must be at least one window ({self.n_fft} samples) long; got "
                f"{waveform.shape[-1]}. Repeat it first: fix_length(waveform)."
            )
        with no_autocast(waveform.device.type):
            power = power_spectrogram(
                waveform, self.window, hop_length=self.hop_length, n_fft=self.n_fft
            )
            return (self.filterbank.to(power.dtype) @ power).clamp(min=self.floor).log()


class LFCC(nn.Module):
    """Linear-frequency cepstral coefficients with deltas; the defaults are NII's.

    The waveform x[n] − 0.97 · x[n − 1] is transformed, centred and padded with zeros; the decimal
    logarithm of each band's energy e + ε, ε = 2⁻²³, goes through an orthonormal DCT-II, and
    coefficient 0 is replaced by the logarithm of the frame's energy. The differences f[t + 1] −
    f[t − 1] of that, the ends repeated, and their own are appended.

    Note:
        The LFCC of Wang and Yamagishi (arXiv:2103.11326); the window that they use is a periodic
        Hamming window.

    Example:
        >>> LFCC()(torch.randn(2, 64600)).shape
        torch.Size([2, 60, 404])
    """

    window: Tensor
    filterbank: Tensor

    def __init__(
        self,
        *,
        sample_rate: int = 16000,
        n_fft: int = 512,
        n_window: int = 320,
        hop_length: int = 160,
        n_bands: int = 20,
    ) -> None:
        super().__init__()
        self.n_fft, self.hop_length = n_fft, hop_length
        self.register_buffer("window", torch.hamming_window(n_window), persistent=False)
        filterbank = mel_filterbank(n_bands, n_fft, sample_rate=sample_rate, scale="linear")
        self.register_buffer("filterbank", filterbank, persistent=False)

    def forward(self, waveform: Tensor) -> Tensor:
        """Return (..., 3 · n_bands, time // hop_length + 1) of (..., time), as `LogMel` does."""
        floor = 2.0**-23
        with no_autocast(waveform.device.type):
            if waveform.dtype in (torch.float16, torch.bfloat16):
                waveform = waveform.float()
            emphasized = waveform[..., 1:] - 0.97 * waveform[..., :-1]
            power = power_spectrogram(
                torch.cat([waveform[..., :1], emphasized], dim=-1),
                self.window,
                hop_length=self.hop_length,
                n_fft=self.n_fft,
                padding="constant",
            )
            bands = (self.filterbank.to(power.dtype) @ power + floor).log10()
            energy = (power.sum(dim=-2, keepdim=True) / self.n_fft + floor).log10()
            static = torch.cat([energy, _dct(bands.shape[-2], like=bands)[1:] @ bands], dim=-2)
            return torch.cat([static, _delta(static), _delta(_delta(static))], dim=-2)


def _delta(features: Tensor) -> Tensor:
    padded = torch.cat([features[..., :1], features, features[..., -1:]], dim=-1)
    return padded[..., 2:] - padded[..., :-2]


def _dct(n: int, *, like: Tensor) -> Tensor:
    """Return the orthonormal DCT-II, (coefficient, band)."""
    steps = torch.arange(n, device=like.device, dtype=like.dtype)
    matrix = torch.cos(math.pi / n * (steps + 0.5) * steps[:, None]) * math.sqrt(2 / n)
    return torch.cat([matrix[:1] / math.sqrt(2), matrix[1:]])


class SincConv(nn.Module):
    """The sinc filterbank of AASIST and RawNet2: a valid convolution, stride 1, nothing trained.

    Its bands are equally spaced in Mel from 0 Hz to half the sample rate. A filter is h[n] =
    w[n] · (2 f_high / sr · sinc(2 f_high n / sr) − 2 f_low / sr · sinc(2 f_low n / sr)), sinc(x) =
    sin(πx) / (πx), w the symmetric Hamming window.

    Note:
        An even `kernel_size` is raised by one, as in the published models.

    Example:
        >>> SincConv(70, 128)(torch.randn(2, 64000)).shape
        torch.Size([2, 70, 63872])
    """

    filters: Tensor

    def __init__(self, n_filters: int, kernel_size: int, *, sample_rate: int = 16000) -> None:
        super().__init__()
        self.kernel_size = kernel_size + 1 - kernel_size % 2
        n = torch.arange(self.kernel_size, dtype=torch.float64) - self.kernel_size // 2
        window = torch.hamming_window(self.kernel_size, False, dtype=torch.float64)
        edges = 2.0 * _mel_points(0, sample_rate / 2, n_filters + 1)[:, None] / sample_rate
        low_passes = edges * torch.sinc(edges * n)
        filters = window * (low_passes[1:] - low_passes[:-1])
        self.register_buffer("filters", filters.float(), persistent=False)

    def forward(self, waveform: Tensor) -> Tensor:
        """Return band signals (batch, n_filters, time − kernel_size + 1) of (batch, time)."""
        return functional.conv1d(waveform[:, None], self.filters[:, None])
