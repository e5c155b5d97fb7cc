"""Gain, equalizer, band limit, rooms, coloured noise and speed against closed forms and SciPy."""

import math

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm.augmentation import (
    ColouredNoise,
    Gain,
    RandomBandLimit,
    RandomEqualizer,
    RandomRoom,
    RandomSpeed,
    augmentation,
)
from asvspoof_cm.augmentation.colour import coloured_noise
from asvspoof_cm.augmentation.recipes import AUGMENTATIONS

RATE = 16_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=seeded(), dtype=dtype)


def tone(frequency, n_samples=RATE):
    return torch.sin(2 * math.pi * frequency * torch.arange(n_samples, dtype=torch.float64) / RATE)


def replay(augment, waveform, **values):
    """Apply an augmentation with values of our own."""
    return augment.apply(waveform, {**augment.draw(len(waveform), waveform.shape[1]), **values})


# Gain and equalizer


def test_gain_is_the_drawn_one():
    x = noise(2000, 50)
    drawn = Gain().draw(2000, 50, seeded())
    measured = 20 * torch.log10(Gain().apply(x, drawn).norm(dim=1) / x.norm(dim=1))
    torch.testing.assert_close(measured, drawn["gain_db"])
    assert -12 <= float(measured.min()) < -11.9
    assert 5.9 < float(measured.max()) <= 6.001
    assert torch.equal(Gain(gain_db=(0.0, 0.0))(x), x)


def test_equalizer_response_runs_through_the_points():
    x = noise(1, 160000)
    gain_db = torch.tensor([[0.0, 12.0, -6.0, 3.0]], dtype=torch.float64)
    y = replay(RandomEqualizer(n_points=4), x, gain_db=gain_db)
    frequency, cross = scipy.signal.csd(x[0], y[0], fs=RATE, nperseg=4096)
    _, power = scipy.signal.welch(x[0], fs=RATE, nperseg=4096)
    response = cross / power
    corners = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 4) / 2595) - 1)
    found_db = [
        20 * np.log10(np.abs(response[np.argmin(np.abs(frequency - f))])) for f in corners[1:3]
    ]
    assert found_db[0] - found_db[1] == pytest.approx(18, abs=0.5)
    assert np.abs(np.angle(response[10:-10])).max() < 0.05  # no delay


def test_equalizer_keeps_power_and_silence():
    x = noise(3, 8000)
    x[1] = 0
    y = RandomEqualizer()(x, generator=seeded())
    assert torch.allclose(y.square().sum(dim=1), x.square().sum(dim=1))
    assert torch.equal(y[1], x[1])


# Band limit


def limited(x, high_hz):
    return RandomBandLimit(high_hz=(high_hz, high_hz))(x)


def impulse_response(high_hz):
    return limited(torch.eye(1001, dtype=torch.float64)[500], high_hz)


@pytest.mark.parametrize("high_hz", [3000.0, 5512.5, 7500.0])
def test_band_limit_is_flat_then_6_db_then_nothing(high_hz):
    around = [high_hz + offset for offset in (-200, 0, 200, 400)]
    _, response = scipy.signal.freqz(impulse_response(high_hz).numpy(), worN=around, fs=RATE)
    below, at, above, far = 20 * np.log10(np.abs(response))
    assert below == pytest.approx(0, abs=0.01)
    assert at == pytest.approx(-6.02, abs=0.1)
    assert above < -60
    assert far < -70


def test_band_limit_delays_nothing_and_half_the_sample_rate_changes_nothing():
    response = impulse_response(4000.0)
    assert response.argmax() == 500
    assert torch.allclose(response, response.flip(0), atol=1e-12)
    x = noise(2, 4000)
    assert torch.allclose(limited(x, 8000.0), x, atol=1e-9)


def test_each_row_has_its_own_limit_from_the_range():
    x = torch.stack([tone(5000), tone(5000)])
    y = replay(RandomBandLimit(), x, high_hz=torch.tensor([6000.0, 4000.0]))[:, 200:-200]
    assert torch.allclose(y[0], x[0, 200:-200], atol=1e-3)
    assert y[1].abs().max() < 1e-3
    drawn = RandomBandLimit(high_hz=(3500.0, 7000.0)).draw(1000, 8000, seeded())
    assert 3500 <= drawn["high_hz"].min() < 3600
    assert 6900 < drawn["high_hz"].max() <= 7000


# Rooms


def responses(n_rows, n_taps, decay_s, direct_db):
    clicks = torch.zeros(n_rows, n_taps, dtype=torch.float64)
    drawn = {"decay_s": decay_s, "direct_db": direct_db, "seed": torch.arange(n_rows)}
    return RandomRoom()._response(clicks, drawn, n_taps)


@pytest.mark.parametrize("decay_s", [0.2, 0.5])
def test_a_room_decays_by_60_db_in_its_time(decay_s):
    """The slope of Schroeder's integral, averaged over rooms."""
    response = responses(64, RATE, torch.full((64,), decay_s), torch.zeros(64))
    energy = response[:, 1:].square().mean(0).flip(0).cumsum(0).flip(0)
    decay_db = 10 * torch.log10(energy / energy[0])
    fifth = int(decay_s / 5 * RATE)
    slope = float(decay_db[2 * fifth] - decay_db[fifth]) / (decay_s / 5)
    assert slope * decay_s == pytest.approx(-60, abs=1.5)


def test_the_direct_sound_has_its_share():
    direct_db = torch.linspace(-6, 12, 8, dtype=torch.float64)
    response = responses(8, 4800, torch.full((8,), 0.3), direct_db)
    assert (response[:, 0] == 1).all()
    ratio_db = -10 * torch.log10(response[:, 1:].square().sum(1))
    torch.testing.assert_close(ratio_db, direct_db, atol=1e-4, rtol=0)


def test_a_room_keeps_power_and_place():
    waveform = noise(4, RATE, dtype=torch.float32)
    heard = RandomRoom(direct_db=(20.0, 20.0))(waveform, generator=seeded())
    torch.testing.assert_close(heard.square().sum(1), waveform.square().sum(1))
    similarity = torch.nn.functional.cosine_similarity(heard, waveform)
    torch.testing.assert_close(similarity, torch.full((4,), 1 / math.sqrt(1.01)), atol=5e-3, rtol=0)
    assert (RandomRoom()(torch.zeros(2, 500)) == 0).all()


# Coloured noise


@pytest.mark.parametrize("slope_db", [0.0, -3.0, -6.0, 2.0])
def test_noise_has_its_slope(slope_db):
    n_rows, n_samples = 64, 2**14
    slope = torch.full((n_rows,), slope_db, dtype=torch.float64)
    like = torch.empty(n_rows, n_samples, dtype=torch.float64)
    made = coloured_noise(like, slope, torch.arange(n_rows))
    power = torch.fft.rfft(made).abs().square().mean(0).numpy()
    octaves_db = [10 * np.log10(power[2**k : 2 ** (k + 1)].mean()) for k in range(4, 13)]
    assert np.diff(octaves_db).mean() == pytest.approx(slope_db, abs=0.15)


def test_the_ratio_is_exact():
    waveform = noise(8, 5003)
    augment = ColouredNoise(snr_db=(-5.0, 30.0))
    drawn = augment.draw(8, 5003, seeded(1))
    added = augment.apply(waveform, drawn) - waveform
    ratio_db = 10 * torch.log10(waveform.square().sum(1) / added.square().sum(1))
    torch.testing.assert_close(ratio_db, drawn["snr_db"])


# Speed


def at_speed(waveform, percent):
    return RandomSpeed(percent=(percent, percent))(waveform)


@pytest.mark.parametrize("percent", [90, 97, 103, 110, 200])
def test_tone_moves_by_the_percentage(percent):
    n_kept = min(RATE, RATE * 100 // percent)
    difference = at_speed(tone(1000.0), percent) - tone(10.0 * percent)
    assert difference[500 : n_kept - 500].abs().max() < 1e-3


def test_what_ends_early_begins_again_and_no_change_is_exact():
    x = noise(2, 1000, dtype=torch.float32)
    changed = at_speed(x, 125)
    assert torch.equal(changed[:, 800:], changed[:, :200])
    assert torch.equal(at_speed(x, 100), x)


def test_all_speeds_of_the_range_are_drawn():
    drawn = RandomSpeed(percent=(98, 102)).draw(500, 10, seeded())
    assert drawn["percent"].unique().tolist() == [98, 99, 100, 101, 102]


def test_robust_changes_most_rows_and_keeps_the_rest():
    waveform = 0.1 * noise(128, 4000, dtype=torch.float32)
    augment = augmentation("robust")
    changed = (augment(waveform, generator=seeded(3)) != waveform).any(dim=1).double().mean()
    # All six stages pass a row by with probability 0.6 · 0.3 · 0.75 · 0.5 · 0.6 · 0.875 = 3.5 %.
    assert 0.85 < changed < 1
    assert "robust" in AUGMENTATIONS
