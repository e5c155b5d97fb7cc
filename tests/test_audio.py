"""Files, resampling and crops."""

import os
import struct

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import (
    AudioFile,
    Resampler,
    crop_starts,
    cut,
    fix_length,
    load_audio,
    random_start,
    resample,
    set_level,
    tta_crops,
)


@pytest.fixture
def speechlike():
    rng = np.random.default_rng(5)
    return (0.2 * rng.standard_normal(40000)).astype(np.float32)


def tone(frequency, sample_rate, n_samples):
    return np.sin(2 * np.pi * frequency * np.arange(n_samples) / sample_rate)


# Files


@pytest.mark.parametrize("name", ["a.wav", "ein Wörtchen 音声.flac"])
def test_load_returns_what_was_written(tmp_path, speechlike, name):
    soundfile.write(tmp_path / name, speechlike, 16000, subtype="PCM_16")
    loaded = load_audio(str(tmp_path / name))
    assert loaded.dtype == torch.float32
    np.testing.assert_allclose(loaded.numpy(), speechlike, atol=1 / 32768)


@pytest.mark.parametrize("native_rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
@pytest.mark.parametrize(("start_s", "duration_s"), [(0.0, 0.3), (0.7, 0.5), (1.9, None)])
def test_part_equals_part_of_the_whole(tmp_path, native_rate, start_s, duration_s):
    rng = np.random.default_rng(native_rate)
    soundfile.write(tmp_path / "a.wav", 0.1 * rng.standard_normal(2 * native_rate), native_rate)
    whole = load_audio(tmp_path / "a.wav")
    part = load_audio(tmp_path / "a.wav", start_s=start_s, duration_s=duration_s)
    start = round(16000 * start_s)
    stop = None if duration_s is None else start + round(16000 * duration_s)
    assert part.shape == whole[start:stop].shape
    torch.testing.assert_close(part, whole[start:stop], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["FLAC", "VORBIS", "OPUS", "MP3"])
@pytest.mark.parametrize("rate", [16000, 48000])
def test_seeking_changes_nothing(tmp_path, kind, rate):
    path, t = tmp_path / "a", np.arange(8 * rate) / rate
    noise = np.random.default_rng(0).standard_normal(len(t)) * (t > 4)
    format_, subtype = ("OGG", kind) if kind in ("VORBIS", "OPUS") else (kind, None)
    wave = 0.2 * np.sin(300 * t**2) + 0.05 * noise
    soundfile.write(path, wave, rate, subtype=subtype, format=format_)
    whole = load_audio(path).numpy()
    starts = np.random.default_rng(1).integers(0, len(whole) - 3000, 60).tolist()
    with AudioFile(path) as file:
        for start in starts:
            part = file.read(start, 2000)
            np.testing.assert_allclose(part, whole[start : start + 2000], atol=1e-5)


def test_only_the_part_is_decoded(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "hour.flac", np.zeros(16000 * 600, dtype=np.int16), 16000)
    n_read = []
    original = soundfile.SoundFile.read

    def counting(self, frames=-1, *args, **kwargs):
        result = original(self, frames, *args, **kwargs)
        n_read.append(len(result))
        return result

    monkeypatch.setattr(soundfile.SoundFile, "read", counting)
    assert len(load_audio(tmp_path / "hour.flac", start_s=500, duration_s=4)) == 64000
    assert sum(n_read) == 64000


def flac_of_unknown_length(path, samples):
    soundfile.write(path, samples, 16000)
    content = bytearray(path.read_bytes())
    # STREAMINFO: the low 4 bits of byte 21 and bytes 22-25 hold the number of samples; 0 = unknown.
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    return content


def test_headers_that_do_not_know_the_length(tmp_path, speechlike):
    """A stream, and a WAV that was written to a pipe."""
    flac, wav = tmp_path / "a.flac", tmp_path / "a.wav"
    flac.write_bytes(flac_of_unknown_length(flac, speechlike))
    soundfile.write(wav, speechlike, 16000, subtype="PCM_16")
    content = bytearray(wav.read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    wav.write_bytes(content)
    for path in (flac, wav):
        np.testing.assert_allclose(load_audio(path), speechlike, atol=1 / 32768)


def make_bad(tmp_path, kind):
    path = tmp_path / "bad.wav"
    ones = 0.1 * np.ones(16000)
    if kind == "a directory":
        path.mkdir()
    elif kind == "an empty file":
        path.touch()
    elif kind == "no samples":
        soundfile.write(path, np.zeros(0), 16000)
    elif kind == "not an audio file":
        path.write_text("filename\tcm-score\n")
    elif kind == "truncated":
        soundfile.write(path, ones, 16000)
        path.write_bytes(path.read_bytes()[:9000])
    elif kind == "truncated flac":
        noise = 0.1 * np.random.default_rng(0).standard_normal(16000)
        soundfile.write(path, noise, 16000, format="FLAC")
        path.write_bytes(path.read_bytes()[:9000])
    elif kind == "damaged stream":
        content = flac_of_unknown_length(tmp_path / "a.flac", np.sin(np.arange(40000.0)))
        middle = len(content) // 2
        content[middle : middle + 4000] = bytes(4000)
        path.write_bytes(content)
    elif kind in ("nan", "inf"):
        soundfile.write(path, [0.0, float(kind)] + 98 * [0.0], 16000, subtype="FLOAT")
    elif kind == "not one":
        os.mkfifo(path)
    elif kind == "symbolic links":
        path.symlink_to(path)
    return path


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("missing", FileNotFoundError, "No such file"),
        ("a directory", IsADirectoryError, "Is a directory"),
        ("an empty file", ValueError, "is empty"),
        ("no samples", ValueError, "holds no samples"),
        ("not an audio file", ValueError, "is not an audio file"),
        ("truncated", ValueError, "is truncated: its header announces 32000 bytes"),
        ("truncated flac", ValueError, "(can't be decoded|is truncated)"),
        ("damaged stream", ValueError, r"can't be decoded after sample \d+; it may"),
        ("nan", ValueError, "holds NaN or infinite values in 1 of 100 samples"),
        ("inf", ValueError, "holds NaN or infinite values in 1 of 100 samples"),
        ("not one", ValueError, "must be a regular file"),
        ("symbolic links", OSError, "symbolic links"),
    ],
)
def test_bad_files_and_bytes_are_named(tmp_path, kind, error, message):
    path = make_bad(tmp_path, kind)
    with pytest.raises(error, match=message) as caught:
        load_audio(path)
    assert "bad.wav" in str(caught.value)
    if path.is_file():
        with pytest.raises(error, match=f"^the audio {message}"):
            load_audio(path.read_bytes())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"sample_rate": x}, "`sample_rate` must be a whole") for x in (0, -1, float("nan"))),
        *(({"start_s": x}, "`start_s` must not be negative") for x in (-1.0, float("nan"))),
        ({"duration_s": 0.0}, "`duration_s` must be positive and finite"),
        ({"start_s": 99.0}, r"`start_s` must lie inside the file; got 99\.0 s"),
    ],
)
def test_bad_arguments(tmp_path, speechlike, arguments, message):
    soundfile.write(tmp_path / "a.wav", speechlike, 16000)
    with pytest.raises(ValueError, match=message):
        load_audio(tmp_path / "a.wav", **arguments)


# Resampling


@pytest.mark.parametrize(
    ("orig_rate", "new_rate"), [(44100, 16000), (8000, 16000), (48000, 16000), (16000, 8000)]
)
def test_resampled_tone_is_the_tone(orig_rate, new_rate):
    frequency = 0.4 * min(orig_rate, new_rate)
    wave = torch.from_numpy(tone(frequency, orig_rate, orig_rate // 2))
    resampled = resample(wave, orig_rate, new_rate)
    assert len(resampled) == new_rate // 2
    middle = slice(new_rate // 20, -new_rate // 20)
    expected = torch.from_numpy(tone(frequency, new_rate, new_rate // 2))
    torch.testing.assert_close(resampled[middle], expected[middle], rtol=0, atol=2e-4)


@pytest.mark.parametrize("frequency", [8050, 9000, 12000, 20000])
def test_what_would_alias_is_gone(frequency):
    x = torch.from_numpy(tone(frequency, 44100, 44100))
    middle = resample(x, 44100, 16000)[1000:-1000]
    level_db = 10 * float(torch.log10(middle.square().mean() / 0.5))
    assert level_db < -60


def test_resampling_agrees_with_torchaudio(golden, reference_wave):
    # Samples 1000-1031 of torchaudio.functional.resample with its default filter; the filters
    # differ, so they agree where the signal is inside both pass bands, not to the last digit.
    wave = torch.from_numpy(reference_wave)
    for key, rates, values in (
        ("resample_16k_8k", (16000, 8000), "first32"),
        ("resample_44k1_16k", (44100, 16000), "s"),
    ):
        found, expected = resample(wave, *rates), golden("logmel")[key]
        assert len(found) == expected["len"]
        np.testing.assert_allclose(found[1000:1032], expected[values], atol=1e-3)


def test_resample_keeps_dtype_and_leading_axes_and_refuses_integers():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        resampled = resample(torch.zeros(2, 3, 800, dtype=dtype), 8000, 16000)
        assert (resampled.shape, resampled.dtype) == ((2, 3, 1600), dtype)
    for kind in (np.float16, np.float32, np.float64):
        array = np.random.default_rng(0).standard_normal((2, 800)).astype(kind)
        resampled = resample(array, 8000, 16000)
        assert (resampled.shape, resampled.dtype) == ((2, 1600), kind)
        expected = resample(torch.from_numpy(array), 8000, 16000)
        np.testing.assert_array_equal(resampled, expected)
    for x in (torch.randn(100), np.ones(100)):
        assert resample(x, 16000, 16000) is x
    integers = torch.zeros(100, dtype=torch.int16)
    for rate in (8000, 16000):
        with pytest.raises(TypeError, match="must hold floats; got int16"):
            resample(integers, rate, 16000)
        with pytest.raises(TypeError, match="must hold floats; got int16"):
            resample(integers.numpy(), rate, 16000)


# Levels and channels


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("crop", [[0.5, -1.0], [0.0, 0.0]]),
        ("utterance", [[0.25, -0.5], [0.0, 0.0]]),
        ("none", [[0.125, -0.25], [0.0, 0.0]]),
    ],
)
def test_level(normalization, expected):
    crops = np.array([[0.125, -0.25], [0.0, 0.0]], np.float32)
    kept, wanted = crops.copy(), np.array(expected)
    assert np.array_equal(set_level(crops, normalization, 0.5), wanted)
    assert np.array_equal(crops, kept)


def test_level_needs_the_peak_of_the_utterance():
    with pytest.raises(ValueError, match='`peak` must be that of the utterance with "utterance"'):
        set_level(np.ones(2, np.float32), "utterance")


# Crops


def test_longer_is_cropped_from_the_centre_and_one_crop_is_itself():
    assert fix_length(torch.arange(64001.0))[0] == 0
    assert fix_length(torch.arange(64002.0))[0] == 1
    x = torch.randn(64000)
    assert torch.equal(fix_length(x), x)
    assert torch.equal(tta_crops(x), x.expand(5, -1))


@pytest.mark.parametrize("n_total", [1, 2, 3, 999, 31999, 32000, 32001, 63999])
def test_shorter_is_repeated_until_it_exceeds_the_crop(n_total):
    x = torch.randn(n_total)
    repeated = x
    while len(repeated) <= 64000:
        repeated = torch.cat([repeated, x])
    start = (len(repeated) - 64000) // 2
    assert torch.equal(fix_length(x), repeated[start : start + 64000])
    starts = [(len(repeated) - 64000) * k // 4 for k in range(5)]
    expected = torch.stack([repeated[s : s + 64000] for s in starts])
    assert torch.equal(tta_crops(x), expected)


def test_random_starts_cover_the_whole_range_and_only_it():
    generator = torch.Generator().manual_seed(1)
    starts = [random_start(13, 10, generator) for _ in range(400)]
    assert set(starts) == {0, 1, 2, 3}
    assert all(60 < starts.count(k) < 140 for k in range(4))
    assert random_start(10, 10, generator) == 0
    # A shorter waveform is repeated.
    crops = [cut(torch.arange(7), random_start(7, 10, generator), 10) for _ in range(200)]
    assert {int(crop[0]) for crop in crops} == {0, 1, 2, 3, 4}
    assert all(torch.equal(crop, (crop[0] + torch.arange(10)) % 7) for crop in crops)


def test_tta_spans_from_the_first_to_the_last_sample():
    x = torch.arange(100_000.0)
    crops = tta_crops(x)
    assert crop_starts(len(x)) == crops[:, 0].tolist() == [0, 9000, 18000, 27000, 36000]
    assert crops[-1, -1] == 99_999
    assert crop_starts(32000) == [0, 8000, 16000, 24000, 0]  # equal starts mean equal crops
    for n_total in (10, 64000, 99_999):
        x = torch.randn(n_total)
        assert torch.equal(tta_crops(x, n_crops=1)[0], fix_length(x))
        assert np.array_equal(tta_crops(x.numpy(), 3, 8), tta_crops(x, 3, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fix_length(torch.zeros(0)), "at least one sample"),
        (lambda: fix_length(torch.zeros(2, 100)), r"must have shape \(time,\), .* got \(2, 100\)"),
        (lambda: fix_length(torch.zeros(10), 0), "`n_samples` must be at least 1"),
        (lambda: tta_crops(torch.zeros(0)), "at least one sample"),
        (lambda: tta_crops(torch.zeros(10), n_crops=0), "`n_crops` must be at least 1"),
    ],
)
def test_crops_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (22, "<H", 1000, "at most 64 channels; its header says 8000 Hz and 1000 channels"),
        (24, "<I", 999, "must have 1000 to 768000 Hz .* its header says 999 Hz"),
        (24, "<I", 768_001, "its header says 768001 Hz and 1 channels"),
    ],
)
def test_a_header_that_no_recording_has(tmp_path, at, layout, value, message):
    path = tmp_path / "x.wav"
    soundfile.write(path, np.zeros(64000), 8000, subtype="PCM_16")
    content = bytearray(path.read_bytes())
    struct.pack_into(layout, content, at, value)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} .*{message}"):
        load_audio(path)


def test_a_header_that_lies_about_the_length_costs_no_memory(tmp_path):
    path = tmp_path / "x.flac"
    soundfile.write(path, 0.1 * np.sin(np.arange(20000)), 8000)
    content = bytearray(path.read_bytes())
    content[21] |= 0x0F  # the four highest of 36 bits: 60 billion samples, 240 GB
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.flac (is truncated|can't be decoded)"):
        load_audio(path)


def test_blocks_of_a_long_file_join(tmp_path, monkeypatch):
    path = tmp_path / "x.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-1, 1, (10_001, 2)), 16000)
    whole = load_audio(path)
    monkeypatch.setattr("asvspoof_cm.audio._BLOCK_VALUES", 3000)
    assert torch.equal(load_audio(path), whole)


def test_an_odd_rate_needs_no_endless_filter():
    def ratio(*rates):
        return Resampler(*rates).up, Resampler(*rates).down

    assert ratio(44_101, 16_000) == (16_000, 44_101)
    up, down = ratio(767_999, 16_000)
    assert down <= 50_000
    assert abs(up / down / (16_000 / 767_999) - 1) < 2e-5
    assert ratio(16_000, 767_999) == (down, up)
