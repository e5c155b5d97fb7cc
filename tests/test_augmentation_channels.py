"""Rooms and coloured noise without recordings, and the recipe that is made of them."""

import math

import numpy as np
import pytest
import torch

from asvspoof_cm.augmentation import AUGMENTATIONS, ColouredNoise, RandomRoom, augmentation
from asvspoof_cm.augmentation.colour import coloured_noise
from asvspoof_cm.augmentation.rooms import impulse_response

RATE = 16_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("decay_s", [0.2, 0.5])
def test_a_room_decays_by_60_db_in_its_time(decay_s):
    """The slope of Schroeder's integral, averaged over rooms."""
    n_rows, n_taps = 64, RATE
    values = torch.full((n_rows,), decay_s), torch.zeros(n_rows)
    response = impulse_response(
        torch.empty(n_rows, n_taps), *values, torch.arange(n_rows), sample_rate=RATE
    )
    energy = response[:, 1:].double().square().mean(0).flip(0).cumsum(0).flip(0)
    decay_db = 10 * torch.log10(energy / energy[0])
    fifth = int(decay_s / 5 * RATE)
    slope = float(decay_db[2 * fifth] - decay_db[fifth]) / (decay_s / 5)
    assert slope * decay_s == pytest.approx(-60, abs=1.5)


def test_the_direct_sound_has_its_share():
    values = torch.full((8,), 0.3), torch.linspace(-6, 12, 8)
    response = impulse_response(
        torch.empty(8, 4800), *values, torch.arange(8), sample_rate=RATE
    ).double()
    assert (response[:, 0] == 1).all()
    ratio_db = -10 * torch.log10(response[:, 1:].square().sum(1))
    torch.testing.assert_close(ratio_db, values[1].double(), atol=1e-4, rtol=0)


def test_a_room_keeps_power_and_place():
    waveform = torch.randn(4, RATE, generator=seeded())
    augment = RandomRoom(direct_db=(20.0, 20.0))
    heard = augment(waveform, generator=seeded())
    torch.testing.assert_close(heard.square().sum(1), waveform.square().sum(1))
    similarity = torch.nn.functional.cosine_similarity(heard, waveform)
    torch.testing.assert_close(similarity, torch.full((4,), 1 / math.sqrt(1.01)), atol=5e-3, rtol=0)
    assert (RandomRoom()(torch.zeros(2, 500), generator=seeded()) == 0).all()


@pytest.mark.parametrize("slope_db", [0.0, -3.0, -6.0, 2.0])
def test_noise_has_its_slope(slope_db):
    n_rows, n_samples = 64, 2**14
    slope = torch.full((n_rows,), slope_db, dtype=torch.float64)
    like = torch.empty(n_rows, n_samples, dtype=torch.float64)
    noise = coloured_noise(like, slope, torch.arange(n_rows))
    power = torch.fft.rfft(noise).abs().square().mean(0).numpy()
    octaves_db = [10 * np.log10(power[2**k : 2 ** (k + 1)].mean()) for k in range(4, 13)]
    assert np.diff(octaves_db).mean() == pytest.approx(slope_db, abs=0.15)


def test_the_ratio_is_exact():
    waveform = torch.randn(8, 5003, generator=seeded(), dtype=torch.float64)
    augment = ColouredNoise(snr_db=(-5.0, 30.0))
    drawn = augment.draw(8, 5003, seeded(1))
    noise = augment.apply(waveform, drawn) - waveform
    ratio_db = 10 * torch.log10(waveform.square().sum(1) / noise.square().sum(1))
    torch.testing.assert_close(ratio_db, drawn["snr_db"])


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"`decay_s` must .*got"):
        RandomRoom(decay_s=(0.0, 0.5))
    with pytest.raises(ValueError, match=r"`direct_db` must .*got"):
        RandomRoom(direct_db=(3.0, -3.0))
    with pytest.raises(ValueError, match=r"`snr_db` must .*got"):
        ColouredNoise(snr_db=(20.0, 10.0))
    with pytest.raises(ValueError, match=r"`slope_db` must .*got"):
        ColouredNoise(slope_db=(500.0, 600.0))


def test_robust_changes_most_rows_and_keeps_the_rest():
    waveform = 0.1 * torch.randn(128, 4000, generator=seeded())
    augment = augmentation("robust")
    changed = (augment(waveform, generator=seeded(2)) != waveform).any(dim=1).double().mean()
    # All six stages pass a row by with probability 0.7 · 0.3 · 0.75 · 0.5 · 0.6 · 0.875 = 4 %.
    assert 0.85 < changed < 1
    assert "robust" in AUGMENTATIONS
