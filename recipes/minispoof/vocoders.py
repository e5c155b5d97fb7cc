"""Attacks that start from a recording: analysis and synthesis, and voice conversion.

Each function takes a waveform and a generator and returns a waveform of about the same length.
Packages that only one of them needs are imported inside it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import scipy.linalg
import scipy.signal
import torch

from asvspoof_cm.frontends import mel_filterbank
from asvspoof_cm.labels import SAMPLE_RATE
from minispoof.speech import Array, resample

Vocoder: TypeAlias = Callable[[Array, np.random.Generator], Array]
Spectrum: TypeAlias = np.ndarray[Any, np.dtype[np.complex128]]

HOP: Final = SAMPLE_RATE // 200
"""5 ms, the frame of the parametric vocoders."""
SPTK: Final = Path("/usr/libexec/sptk/bin")
_MELGAN_RATE: Final = 22_050


def pitch(waveform: Array) -> Array:
    """Return the fundamental frequency every 5 ms, 0 where unvoiced, shape (n_frames,)."""
    return _pitch_track(waveform)[0]


def world(waveform: Array, rng: np.random.Generator) -> Array:
    """Analyse and synthesize with WORLD (Morise et al. 2016)."""
    del rng
    return _through_world(waveform, 1.0, 1.0)


def world_conversion(waveform: Array, rng: np.random.Generator) -> Array:
    """Convert the voice with WORLD: pitch and formants up, or both down."""
    if rng.random() < 0.5:
        return _through_world(waveform, rng.uniform(1.25, 1.6), rng.uniform(1.08, 1.18))
    return _through_world(waveform, rng.uniform(0.62, 0.8), rng.uniform(0.85, 0.93))


def mel_griffin_lim(waveform: Array, rng: np.random.Generator) -> Array:
    """Keep 80 Mel bands, and find the phases again."""
    n_fft, hop_length = 1024, 256
    filters = mel_filterbank(80, n_fft).double().numpy()
    mel = np.abs(stft(waveform, n_fft, hop_length)) @ filters.T
    magnitude = np.maximum((mel + 1e-5) @ np.linalg.pinv(filters).T, 1e-7)
    return griffin_lim(magnitude, n_fft, hop_length, len(waveform), rng)


def linear_prediction(waveform: Array, rng: np.random.Generator, order: int = 18) -> Array:
    """Excite an all-pole filter with pulses or noise, as the first digital vocoders did."""
    track = pitch(waveform)
    n_window, emphasis = 6 * HOP, 0.9
    window = np.hanning(n_window)
    padded = np.pad(waveform, (n_window // 2, n_window))
    padded = scipy.signal.lfilter([1, -emphasis], [1], padded)
    excitation = _pulses_and_noise(track, rng)
    state = np.zeros(order)
    synthetic = []
    for number in range(len(track)):
        frame = padded[number * HOP : number * HOP + n_window]
        power = np.abs(np.fft.rfft(frame * window, 1024)) ** 2
        correlation = np.fft.irfft(power)[: order + 1]
        correlation[0] = correlation[0] * 1.0001 + 1e-9
        predictor = scipy.linalg.solve_toeplitz(correlation[:-1], correlation[1:])
        residual = max(correlation[0] - predictor @ correlation[1:], 1e-12)
        gain = np.sqrt(residual / np.square(window).sum())
        part = excitation[number * HOP : (number + 1) * HOP]
        output, state = scipy.signal.lfilter([gain], [1, *-predictor], part, zi=state)
        synthetic.append(output)
    joined = np.concatenate(synthetic)[: len(waveform)]
    return np.asarray(scipy.signal.lfilter([1], [1, -emphasis], joined))


def harmonics_and_noise(waveform: Array, rng: np.random.Generator) -> Array:
    """Add sinusoids at the harmonics up to 5 kHz, and noise of random phase for the rest."""
    n_fft, highest_hz = 1024, 5000.0
    track = pitch(waveform)
    magnitude = np.abs(stft(waveform, n_fft, HOP))
    n_frames = min(len(track), len(magnitude))
    track, magnitude = track[:n_frames], magnitude[:n_frames]
    frames = np.arange(n_frames)
    voiced = track > 0
    if voiced.sum() > 1:
        track = np.interp(frames, frames[voiced], track[voiced])
    else:
        track = np.full(n_frames, 120.0)
    times = np.arange(n_frames * HOP) / HOP
    phase = 2 * np.pi * np.cumsum(np.interp(times, frames, track)) / SAMPLE_RATE
    harmonic = np.zeros(len(times))
    for number in range(1, int(highest_hz / track.min()) + 1):
        bins = np.minimum(number * track / SAMPLE_RATE * n_fft, n_fft // 2 - 1).astype(int)
        amplitude = np.maximum(magnitude[frames, bins], magnitude[frames, bins + 1]) * 4 / n_fft
        amplitude *= voiced & (number * track < highest_hz)
        harmonic += np.interp(times, frames, amplitude) * np.cos(number * (phase + 0.3))
    high = np.fft.rfftfreq(n_fft, 1 / SAMPLE_RATE) > highest_hz
    magnitude[voiced] *= high + 0.08
    noise = istft(magnitude * random_phases(magnitude.shape, rng), n_fft, HOP, len(times))
    return harmonic + 1.6 * noise


def mlsa(waveform: Array, rng: np.random.Generator) -> Array:
    """Synthesize from mel-cepstra and pulses with SPTK's MLSA filter."""
    del rng
    scale = 20_000 / np.abs(waveform).max()
    with tempfile.TemporaryDirectory() as folder:
        np.round(waveform * scale).astype("<i2").tofile(f"{folder}/speech")
        script = """
            set -e -o pipefail
            x2x +sf speech | pitch -a 0 -s 16 -p 80 -L 65 -H 400 > pitch
            x2x +sf speech | frame -l 400 -p 80 | window -l 400 -L 512 -w 1 \
                | mcep -l 512 -m 24 -a 0.42 -e 0.1 > cepstra
            excite -p 80 pitch | mlsadf -m 24 -a 0.42 -p 80 cepstra > synthetic
        """
        environment = {**os.environ, "PATH": f"{SPTK}:{os.environ['PATH']}"}
        command = ["bash", "-c", script]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return np.fromfile(f"{folder}/synthetic", "<f4").astype(np.float64) / scale


def change_gender(waveform: Array, rng: np.random.Generator) -> Array:
    """Move formants and pitch with Praat's "Change gender", a PSOLA method."""
    import parselmouth
    from parselmouth.praat import call, run

    track = pitch(waveform)
    median_hz = float(np.median(track[track > 0])) if (track > 0).any() else 150.0
    if rng.random() < 0.5:
        formants, new_pitch = rng.uniform(1.08, 1.2), median_hz * rng.uniform(1.3, 1.6)
    else:
        formants, new_pitch = rng.uniform(0.83, 0.93), median_hz * rng.uniform(0.65, 0.8)
    pitch_range, duration = rng.uniform(0.7, 1.2), rng.uniform(0.9, 1.12)
    run(f"random_initializeWithSeedUnsafelyButPredictably ({rng.integers(2**31)})")
    sound = parselmouth.Sound(waveform, SAMPLE_RATE)
    shape = [float(value) for value in (formants, new_pitch, pitch_range, duration)]
    return np.asarray(call(sound, "Change gender", 70, 500, *shape).values[0])


def phase_vocoder(waveform: Array, rng: np.random.Generator) -> Array:
    """Shift the pitch by 2.5 to 5 semitones: stretch with a phase vocoder, then resample."""
    n_fft, hop_length = 1024, 256
    semitones = (1 if rng.random() < 0.5 else -1) * rng.uniform(2.5, 5)
    # A multiple of 100 Hz keeps the resampling filter short.
    new_rate = int(round(SAMPLE_RATE / 100 * 2 ** (-semitones / 12)) * 100)
    stretch = SAMPLE_RATE / new_rate
    spectrum = stft(waveform, n_fft, hop_length)
    times = np.arange(0, len(spectrum) - 1.001, 1 / stretch)
    before = times.astype(int)
    share = (times - before)[:, None]
    magnitude = (1 - share) * np.abs(spectrum[before]) + share * np.abs(spectrum[before + 1])
    expected = 2 * np.pi * hop_length * np.arange(n_fft // 2 + 1) / n_fft
    advance = np.angle(spectrum[before + 1]) - np.angle(spectrum[before]) - expected
    advance -= 2 * np.pi * np.round(advance / (2 * np.pi))
    steps = np.concatenate([np.angle(spectrum[:1]), (expected + advance)[:-1]])
    stretched = magnitude * np.exp(1j * np.cumsum(steps, axis=0))
    slow = istft(stretched, n_fft, hop_length, len(times) * hop_length)
    return resample(slow, SAMPLE_RATE, new_rate)


def melgan(waveform: Array, rng: np.random.Generator) -> Array:
    """Resynthesize 80 Mel bands with the MelGAN generator of the ttskit wheel (22.05 kHz)."""
    del rng
    n_fft, hop_length = 1024, 256
    source = resample(waveform, SAMPLE_RATE, _MELGAN_RATE)
    source *= 0.7 / np.abs(source).max()
    padded = np.pad(source, n_fft // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop_length]
    magnitude = np.abs(np.fft.rfft(frames * np.hanning(n_fft + 1)[:-1], axis=1))
    filters = slaney_filterbank(80, n_fft, _MELGAN_RATE, 8000.0)
    mel = np.log(np.maximum(magnitude @ filters.T, 1e-5)).T
    with torch.inference_mode():
        output = _melgan_generator()(torch.from_numpy(mel).float()[None])[0, 0]
    return resample(output.double().numpy()[: len(source)], _MELGAN_RATE, SAMPLE_RATE)


@functools.cache
def _melgan_generator() -> Any:
    spec = importlib.util.find_spec("ttskit")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'ttskit'", name="ttskit")
    folder = Path(spec.origin).parent
    sys.path.insert(0, str(folder))  # the file names its classes from inside the wheel
    try:
        from melgan.model.generator import Generator
        from melgan.model.res_stack import ResStack
    finally:
        sys.path.remove(str(folder))
    layers = "Conv1d ConvTranspose1d ReflectionPad1d LeakyReLU Tanh Sequential ModuleList"
    known = [getattr(torch.nn, name) for name in layers.split()]
    # The file is a pickled module: only these classes may be made from it.
    known += [Generator, ResStack, torch.nn.utils.weight_norm.__globals__["WeightNorm"]]
    with torch.serialization.safe_globals(known):
        path = folder / "resource" / "model" / "melgan.kuangdd.pt"
        generator = torch.load(path, map_location="cpu", weights_only=True)
    torch.nn.Module.eval(generator)
    return generator


def _pitch_track(waveform: Array) -> tuple[Array, Array]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyworld asks for its version in a deprecated way
        import pyworld
    waveform = np.ascontiguousarray(waveform, dtype=np.float64)
    coarse, times = pyworld.dio(waveform, SAMPLE_RATE, f0_floor=65, f0_ceil=500, frame_period=5.0)
    return pyworld.stonemask(waveform, coarse, times, SAMPLE_RATE), times


def _through_world(waveform: Array, pitch_ratio: float, formant_ratio: float) -> Array:
    track, times = _pitch_track(waveform)
    import pyworld

    waveform = np.ascontiguousarray(waveform, dtype=np.float64)
    envelope = pyworld.cheaptrick(waveform, track, times, SAMPLE_RATE)
    aperiodicity = pyworld.d4c(waveform, track, times, SAMPLE_RATE)
    if formant_ratio != 1.0:
        envelope = np.exp(_warp(np.log(envelope + 1e-16), formant_ratio))
        aperiodicity = _warp(aperiodicity, formant_ratio)
    return pyworld.synthesize(track * pitch_ratio, envelope, aperiodicity, SAMPLE_RATE, 5.0)


def _warp(frames: Array, ratio: float) -> Array:
    bins = np.arange(frames.shape[1])
    return np.stack([np.interp(bins / ratio, bins, frame) for frame in frames])


def _pulses_and_noise(track: Array, rng: np.random.Generator) -> Array:
    frequency = np.repeat(track, HOP)
    cycles = np.floor(np.cumsum(frequency / SAMPLE_RATE))
    starts = np.diff(cycles, prepend=0.0) > 0
    pulses = np.where(starts, np.sqrt(SAMPLE_RATE / np.maximum(frequency, 1.0)), 0.0)
    noise = rng.standard_normal(len(frequency))
    low = scipy.signal.butter(3, 3500, "lowpass", fs=SAMPLE_RATE, output="sos")
    high = scipy.signal.butter(3, 3500, "highpass", fs=SAMPLE_RATE, output="sos")
    mixed = scipy.signal.sosfilt(low, pulses) + 0.5 * scipy.signal.sosfilt(high, noise)
    return np.where(frequency > 0, mixed, noise)


# Short-time spectra, and the phases that a magnitude does not have


def stft(waveform: Array, n_fft: int, hop_length: int) -> Spectrum:
    """Return spectra of shape (n_frames, n_fft // 2 + 1), Hann windows, centred on the hops."""
    padded = np.pad(waveform, n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop_length]
    return np.fft.rfft(frames * _window(n_fft), axis=1)


def istft(spectrum: Spectrum, n_fft: int, hop_length: int, n_samples: int) -> Array:
    """Return the waveform whose spectra are the nearest, in the least-squares sense."""
    window = _window(n_fft)
    frames = np.fft.irfft(spectrum, n_fft, axis=1) * window
    total = np.zeros((len(frames) - 1) * hop_length + n_fft)
    weight = np.zeros_like(total)
    for number, frame in enumerate(frames):
        place = slice(number * hop_length, number * hop_length + n_fft)
        total[place] += frame
        weight[place] += window**2
    return (total / np.maximum(weight, 1e-3))[n_fft // 2 : n_fft // 2 + n_samples]


def random_phases(shape: tuple[int, ...], rng: np.random.Generator) -> Spectrum:
    """Return complex numbers of length 1."""
    return np.exp(2j * np.pi * rng.random(shape))


def griffin_lim(
    magnitude: Array,
    n_fft: int,
    hop_length: int,
    n_samples: int,
    rng: np.random.Generator,
    *,
    n_iterations: int = 40,
    momentum: float = 0.99,
) -> Array:
    """Find phases for a magnitude spectrogram (fast Griffin-Lim, Perraudin et al. 2013)."""
    phases = random_phases(magnitude.shape, rng)
    previous = np.zeros_like(phases)
    for _ in range(n_iterations):
        waveform = istft(magnitude * phases, n_fft, hop_length, n_samples)
        consistent = stft(waveform, n_fft, hop_length)[: len(magnitude)]
        accelerated = consistent + momentum * (consistent - previous)
        previous = consistent
        phases = accelerated / np.maximum(np.abs(accelerated), 1e-9)
    return istft(magnitude * phases, n_fft, hop_length, n_samples)


def slaney_filterbank(n_mels: int, n_fft: int, sample_rate: int, f_max: float) -> Array:
    """Return Mel filters of area 1 on Slaney's scale, which neural vocoders were trained with.

    Linear below 1 kHz, logarithmic above. Shape (n_mels, n_fft // 2 + 1).
    """
    step = np.log(6.4) / 27
    highest = 15 + np.log(f_max / 1000) / step
    mels = np.linspace(0, highest, n_mels + 2)
    corners = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    bins = np.fft.rfftfreq(n_fft, 1 / sample_rate)
    left, centre, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (right - left)


def _window(n_fft: int) -> Array:
    return np.hanning(n_fft + 1)[:-1]
