"""What microphones, rooms, lines and networks do, against closed forms and SciPy."""

import math

import numpy as np
import pytest
import scipy.signal
import torch

from asvspoof_cm import augmentation as aug

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
    drawn = aug.Gain().draw(2000, 50, seeded())
    measured = 20 * torch.log10(aug.Gain().apply(x, drawn).norm(dim=1) / x.norm(dim=1))
    torch.testing.assert_close(measured, drawn["gain_db"])


def test_equalizer_response_runs_through_the_points():
    x = noise(1, 160000)
    gain_db = torch.tensor([[0.0, 12.0, -6.0, 3.0]], dtype=torch.float64)
    y = replay(aug.RandomEqualizer(n_points=4), x, gain_db=gain_db)
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
    y = aug.RandomEqualizer()(x, generator=seeded())
    assert torch.allclose(y.square().sum(dim=1), x.square().sum(dim=1))
    assert torch.equal(y[1], x[1])


# Band limit


def limited(x, high_hz):
    return aug.RandomBandLimit(high_hz=(high_hz, high_hz))(x)


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


# Rooms


def responses(n_rows, n_taps, decay_s, direct_db):
    clicks = torch.zeros(n_rows, n_taps, dtype=torch.float64)
    drawn = {"decay_s": decay_s, "direct_db": direct_db, "seed": torch.arange(n_rows)}
    return aug.RandomRoom()._response(clicks, drawn, n_taps)


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
    heard = aug.RandomRoom(direct_db=(20.0, 20.0))(waveform, generator=seeded())
    torch.testing.assert_close(heard.square().sum(1), waveform.square().sum(1))
    similarity = torch.nn.functional.cosine_similarity(heard, waveform)
    torch.testing.assert_close(similarity, torch.full((4,), 1 / math.sqrt(1.01)), atol=5e-3, rtol=0)
    assert (aug.RandomRoom()(torch.zeros(2, 500)) == 0).all()


# Noise


@pytest.mark.parametrize("slope_db", [0.0, -3.0, -6.0, 2.0])
def test_noise_has_its_slope(slope_db):
    waveform = torch.ones(64, 2**14, dtype=torch.float64)
    made = aug.ColouredNoise(slope_db=(slope_db, slope_db))(waveform, generator=seeded()) - waveform
    power = torch.fft.rfft(made).abs().square().mean(0).numpy()
    octaves_db = [10 * np.log10(power[2**k : 2 ** (k + 1)].mean()) for k in range(4, 13)]
    assert np.diff(octaves_db).mean() == pytest.approx(slope_db, abs=0.15)


def test_recordings_are_excerpts_at_one_level():
    clips = [torch.randn(n, generator=seeded(n)).double() for n in (5000, 7000, 9001)]
    augment, x = aug.RecordedNoise(clips=clips, n_clips=(1, 3)), noise(50, 8000)
    drawn = augment.draw(50, 8000, seeded())
    added = (augment.apply(x, drawn) - x).numpy()
    n_used = (drawn["clip"] >= 0).sum(1)
    assert n_used.unique().tolist() == [1, 2, 3]
    for row, places, offsets in zip(added, drawn["clip"], drawn["offset"], strict=True):
        expected = 0
        for clip, offset in zip(places.tolist(), offsets.tolist(), strict=True):
            if clip >= 0:
                source = clips[clip].numpy()
                excerpt = np.resize(np.roll(source, -int(offset * len(source))), 8000)
                expected = expected + excerpt / np.linalg.norm(excerpt)
        cosine = expected @ row / np.linalg.norm(expected) / np.linalg.norm(row)
        assert cosine == pytest.approx(1, abs=1e-9)


# Levels


@pytest.mark.parametrize("is_soft", [False, True])
def test_clipping_has_its_limit(is_soft):
    x = noise(4, 1000)
    below_db = torch.tensor([0.0, 3.0, 6.0, 20.0])
    soft = torch.full((4,), is_soft)
    y = replay(aug.Clipping(), x, below_peak_db=below_db, is_soft=soft).numpy()
    x = x.numpy()
    limit = np.abs(x).max(1, keepdims=True) * 10 ** (-below_db.numpy()[:, None] / 20)
    expected = limit * np.tanh(x / limit) if is_soft else np.clip(x, -limit, limit)
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_automatic_gain_follows_the_level(monkeypatch):
    x = tone(200, 4 * RATE)[None] * torch.where(torch.arange(4 * RATE) < 2 * RATE, 1.0, 0.1)
    strength = torch.tensor([0.5])
    y = replay(aug.AutomaticGain(), x, time_s=torch.tensor([0.1]), strength=strength)
    # Far from the step, the level is the tone's: half of the 20 dB between the parts is left.
    loud, quiet = (y[0, n : n + 8000].square().mean().sqrt() for n in (20_000, 54_000))
    assert 20 * math.log10(loud / quiet) == pytest.approx(10, abs=0.1)
    none = replay(aug.AutomaticGain(), x, time_s=torch.tensor([0.1]), strength=torch.zeros(1))
    torch.testing.assert_close(none, x)
    monkeypatch.setattr(aug.channel, "_MAX_GAIN_DB", 3.0)
    limited_gain = replay(aug.AutomaticGain(), x, strength=torch.ones(1))
    assert (20 * torch.log10(limited_gain.abs() / x.abs().clamp_min(1e-9))).max() < 3.01


# Networks


def test_lost_packets_are_the_last_one_that_came_ever_softer(monkeypatch):
    x = noise(1, 10, dtype=torch.float32)
    is_lost = torch.tensor([[False, True, True, False, True]])
    monkeypatch.setattr(aug.channel, "_N_PACKET", 2)
    y = replay(aug.PacketLoss(), x, is_lost=is_lost, fade=torch.tensor([0.5]))[0].tolist()
    v = x[0].tolist()
    expected = [*v[:2], v[0] / 2, v[1] / 2, v[0] / 4, v[1] / 4, *v[6:8], v[6] / 2, v[7] / 2]
    assert y == pytest.approx(expected)


def test_the_share_of_lost_packets_and_their_bursts(monkeypatch):
    monkeypatch.setattr(aug.channel, "_BURST", (2, 2))
    augment = aug.PacketLoss(share=(0.1, 0.1))
    lost = augment.draw(200, 1000 * 320, seeded())["is_lost"][:, 1:]
    assert lost.double().mean() == pytest.approx(0.1, abs=0.005)
    alone = lost[:, 2:-2] & ~lost[:, 1:-3] & ~lost[:, 3:-1]
    assert not alone[:, 1:].any()
    assert not aug.PacketLoss(share=(0.0, 0.0)).draw(9, 9999)["is_lost"].any()


def test_gaps_delay_what_follows():
    x = torch.arange(1.0, 11.0)[None]
    starts, lengths = torch.tensor([[2, 3, 8]]), torch.tensor([[3, 1, 1]])
    y = replay(aug.Gaps(n_gaps=(0, 3)), x, start=starts, n_samples=lengths)
    assert y.tolist() == [[1, 2, 0, 0, 0, 3, 4, 5, 0, 6]]
    late = aug.Gaps(n_gaps=(1, 1), duration_s=(0.0, 0.5), at_start=True)
    first = (late(torch.ones(50, RATE), generator=seeded()) > 0).double().argmax(dim=1)
    assert 0 <= first.min() < 1000
    assert 7000 < first.max() <= 8000


# Speed


def at_speed(waveform, percent):
    return aug.RandomSpeed(percent=(percent, percent))(waveform)


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


def test_channels_change_nearly_every_row_and_take_recordings():
    waveform = 0.1 * noise(128, 4000, dtype=torch.float32)
    augment = aug.augmentation("channels", noises=[torch.randn(2000, generator=seeded())])
    changed = (augment(waveform, generator=seeded(1)) != waveform).any(dim=1).double().mean()
    assert 0.9 < changed < 1
    assert "RecordedNoise" in repr(augment)
    assert "RecordedNoise" not in repr(aug.augmentation("channels"))
