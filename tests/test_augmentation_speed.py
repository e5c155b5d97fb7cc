"""Speed perturbation against tones, whose new frequency is known."""

import pytest
import torch

from asvspoof_cm.augmentation import RandomSpeed
from asvspoof_cm.augmentation.speed import change_speed


def tone(frequency, n_samples=16000):
    return torch.sin(
        2 * torch.pi * frequency * torch.arange(n_samples, dtype=torch.float64) / 16000
    )


@pytest.mark.parametrize("percent", [90, 97, 103, 110, 200])
def test_tone_moves_by_the_percentage(percent):
    n_kept = min(16000, 16000 * 100 // percent)
    changed = change_speed(tone(1000.0)[None], percent)[0]
    expected = tone(10.0 * percent)
    inside = slice(500, n_kept - 500)
    assert (changed - expected)[inside].abs().max() < 1e-3


def test_what_ends_early_begins_again():
    changed = change_speed(torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)), 125)
    assert changed.shape == (2, 1000)
    assert torch.equal(changed[:, 800:], changed[:, :200])


def test_no_change_is_exact():
    waveform = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(change_speed(waveform, 100), waveform)


def test_all_speeds_of_the_range_are_drawn():
    drawn = RandomSpeed(percent=(98, 102)).draw(500, 10, torch.Generator().manual_seed(0))
    assert drawn["percent"].unique().tolist() == [98, 99, 100, 101, 102]


@pytest.mark.parametrize(
    ("percent", "message"),
    [
        ((40, 110), "`percent` must be whole numbers from 50 to 200; got 40"),
        ((90.5, 110), "`percent` must be whole numbers from 50 to 200; got 90.5"),
        ((110, 90), r"`percent` must be \(low, high\); got \(110, 90\)"),
    ],
)
def test_errors(percent, message):
    with pytest.raises(ValueError, match=message):
        RandomSpeed(percent=percent)
