"""Source-filter synthesis: pitch, pulses and envelope against signals whose own are known."""

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import (
    PulseSynthesis,
    cepstral_envelope,
    estimate_pitch,
    pulse_excitation,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def voice(pitch_hz=120.0, n_samples=16000):
    """Harmonics of one pitch through a resonance at 1,500 Hz."""
    t = torch.arange(n_samples, dtype=torch.float64) / 16000
    tones = (
        torch.cos(2 * torch.pi * k * pitch_hz * t) / (1 + ((k * pitch_hz - 1500) / 300) ** 2)
        for k in range(1, int(8000 / pitch_hz))
    )
    return sum(tones)[None]


@pytest.mark.parametrize("pitch_hz", [70.0, 120.0, 210.0, 390.0])
def test_pitch_of_harmonics(pitch_hz):
    found = estimate_pitch(voice(pitch_hz))[0, 5:-5]
    assert found.median().item() == pytest.approx(pitch_hz, rel=0.02)
    assert (found > 0).all()


def test_noise_and_silence_have_no_pitch():
    noise = torch.randn(1, 32000, generator=seeded())
    assert (estimate_pitch(noise) > 0).float().mean() < 0.02
    assert (estimate_pitch(torch.zeros(1, 4000)) == 0).all()


def test_source_has_unit_power_and_pulses_at_the_pitch():
    noise = torch.randn(1, 32000, generator=seeded())
    pitch_hz = torch.full((1, 251), 125.0)
    for breath in (0.0, 0.4, 1.0):
        source = pulse_excitation(noise, pitch_hz, torch.tensor([breath]))
        assert source.square().mean().item() == pytest.approx(1, abs=0.05)
    pulses = pulse_excitation(noise, pitch_hz, torch.zeros(1))[0].nonzero()[:, 0]
    assert set(pulses.diff().tolist()) == {128}
    unvoiced = pulse_excitation(noise, torch.zeros_like(pitch_hz), torch.zeros(1))
    assert torch.equal(unvoiced, noise)


def test_envelope_keeps_the_resonance_and_loses_the_harmonics():
    _, _, spectrum = scipy.signal.stft(voice(120.0).numpy(), fs=16000, nperseg=1024)
    magnitude = torch.from_numpy(np.abs(spectrum))
    envelope = cepstral_envelope(magnitude, torch.tensor([40]))[0, :, 10]
    assert abs(envelope.argmax().item() * 16000 / 1024 - 1500) < 150

    def ripple(x):
        return x[: 513 // 4].log().diff().abs().mean()

    assert ripple(envelope) < 0.3 * ripple(magnitude[0, :, 10])


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.25])
def test_copies_have_the_level_the_envelope_and_the_new_pitch(factor):
    x = voice(160.0, 32000)
    augment = PulseSynthesis(pitch_factor=(factor, factor), breath=(0.0, 0.1))
    y = augment(x, generator=seeded())
    assert y.square().mean().item() == pytest.approx(x.square().mean().item())
    found = estimate_pitch(y)[0, 5:-5]
    assert found.median().item() == pytest.approx(factor * 160, rel=0.03)
    frequency, power = scipy.signal.welch(y[0], fs=16000, nperseg=1024)
    assert abs(frequency[power.argmax()] - 1500) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pitch_factor": (0.0, 1.0)}, "`pitch_factor` must"),
        ({"breath": (0.0, 1.5)}, "`breath` must"),
        ({"order": (0, 40)}, "`order` must"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        PulseSynthesis(**options)
