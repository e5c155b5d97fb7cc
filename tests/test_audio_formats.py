"""What libsndfile does not read, damaged Ogg, file objects and channels."""

import io
import struct
import sys

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import AudioFile, as_audio, load_audio

av = pytest.importorskip("av")

RATE = 16000
CODERS = {  # extension: coder, sampling rate, how alike the tone comes back
    "m4a": ("aac", 44100, 0.99),
    "aac": ("aac", 16000, 0.99),
    "webm": ("libopus", 48000, 0.99),
    "wma": ("wmav2", 44100, 0.99),
    "amr": ("libopencore_amrnb", 8000, 0.9),
    "mka": ("flac", 16000, 0.9999),
    "wv": ("wavpack", 16000, 0.9999),
    "mp4": ("aac", 16000, 0.99),
}


def tone(rate, seconds=2.0):
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)


def add_picture(container):
    picture = container.add_stream("mpeg4", rate=5)
    picture.width = picture.height = 32
    picture.pix_fmt = "yuv420p"
    frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
    container.mux(picture.encode(frame))
    container.mux(picture.encode(None))


def encode(path, coder, rate, samples=None, *, layout="mono", video=False):
    """Write samples (time,) or (channels, time) with PyAV."""
    samples = np.atleast_2d(tone(rate) if samples is None else samples)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(coder, rate=rate, layout=layout)
        stream.bit_rate = 12200 if coder == "libopencore_amrnb" else 64000
        if video:
            add_picture(container)
        whole = np.rint(32767 * samples).astype(np.int16).T.reshape(1, -1).copy()
        frame = av.AudioFrame.from_ndarray(whole, format="s16", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(stream.codec_context.format, layout, rate)
        for part in [*resampler.resample(frame), None]:
            container.mux(stream.encode(part))
    return path


@pytest.mark.parametrize("extension", CODERS)
def test_what_pyav_reads(tmp_path, extension):
    coder, rate, likeness = CODERS[extension]
    path = encode(tmp_path / f"a.{extension}", coder, rate, video=extension == "mp4")
    with AudioFile(path) as file:
        assert file.native_rate == rate
        assert file.n_samples == pytest.approx(2 * RATE, abs=0.12 * RATE)
        whole = file.read()
        blocks = [file.read(start, 5000) for start in range(0, file.n_samples, 5000)]
        again = file.read(3000, 700)  # backwards
    np.testing.assert_allclose(np.concatenate(blocks), whole, atol=1e-6)
    np.testing.assert_allclose(again, whole[3000:3700], atol=1e-6)
    # Coders delay: the tone is found by its quadrature.
    middle = slice(4000, 28000)
    phase = 2 * np.pi * 440 * np.arange(len(whole)) / RATE
    found = np.hypot(*(wave[middle] @ whole[middle] for wave in (np.sin(phase), np.cos(phase))))
    assert found / np.linalg.norm(whole[middle]) / np.sqrt(12000) > likeness
    assert np.abs(whole[middle]).max() == pytest.approx(0.5, rel=0.15)
    assert torch.equal(load_audio(path.read_bytes()), torch.from_numpy(whole))


def test_integer_samples_keep_their_scale(tmp_path):
    samples = np.array([[0.5, -0.25, 0.125] * 4000, [0.0, 0.25, -0.125] * 4000])
    path = encode(tmp_path / "a.mka", "flac", RATE, samples, layout="stereo")
    loaded = load_audio(path).numpy()
    np.testing.assert_allclose(loaded, samples.mean(axis=0), atol=1 / 32768)
    np.testing.assert_allclose(load_audio(path, channel=1), samples[1], atol=1 / 32768)


@pytest.mark.parametrize("extension", ["m4a", "webm", "wma", "amr", "mka"])
@pytest.mark.parametrize("share", [0.02, 0.4, 0.8])
def test_cut_files_are_refused(tmp_path, extension, share):
    coder, rate, _ = CODERS[extension]
    path = encode(tmp_path / f"a.{extension}", coder, rate)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=rf"a\.{extension} (is|holds|has|can't)"):
        load_audio(path)


def test_a_header_that_lies_about_the_duration(tmp_path):
    path = encode(tmp_path / "a.mka", "flac", RATE)
    content = bytearray(path.read_bytes())
    at = content.index(b"\x44\x89\x88") + 3  # EBML: the duration in ms, a float of 8 bytes
    assert struct.unpack(">d", content[at : at + 8]) == (2000.0,)
    content[at : at + 8] = struct.pack(">d", 1e9)
    path.write_bytes(content)
    said = r"is truncated: its header says 1000000\.00 s, but only 2\.00 s"
    with pytest.raises(ValueError, match=said):
        load_audio(path)


def test_a_header_of_absurd_size(tmp_path):
    path = encode(tmp_path / "a.m4a", "aac", 44100)
    content = bytearray(path.read_bytes())
    n_entries = content.index(b"stts") + 8
    content[n_entries : n_entries + 4] = b"\x0f\xff\xff\xff"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.m4a is not .*its header asks for too much at once"):
        AudioFile(path)


def test_a_video_without_sound_and_a_playlist(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        add_picture(container)
    with pytest.raises(ValueError, match=r"a\.mp4 has no audio stream"):
        load_audio(tmp_path / "a.mp4")
    encode(tmp_path / "a.aac", "aac", RATE)
    (tmp_path / "a.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{tmp_path}/a.aac\n#EXT-X-ENDLIST\n"
    )
    (tmp_path / "a.ffconcat").write_text("ffconcat version 1.0\nfile a.aac\n")
    for name in ("a.m3u8", "a.ffconcat"):
        with pytest.raises(ValueError, match="is not an audio file that libsndfile"):
            load_audio(tmp_path / name)


def test_without_pyav_the_message_names_the_extra(tmp_path, monkeypatch):
    path = encode(tmp_path / "a.m4a", "aac", RATE)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"a\.m4a is not .* pip install 'asvspoof-cm\[av\]'"):
        load_audio(path)


# Ogg


def ogg_pages(content):
    starts = [k for k in range(len(content)) if content[k : k + 4] == b"OggS"]
    return [content[a:b] for a, b in zip(starts, [*starts[1:], len(content)], strict=True)]


@pytest.fixture(params=["VORBIS", "OPUS"])
def ogg(request, tmp_path):
    noise = 0.1 * np.random.default_rng(0).standard_normal(5 * RATE)
    soundfile.write(tmp_path / "a.ogg", noise, RATE, format="OGG", subtype=request.param)
    assert len(load_audio(tmp_path / "a.ogg")) == 5 * RATE
    return tmp_path / "a.ogg"


def test_damaged_ogg_is_refused(ogg):
    content = ogg.read_bytes()
    pages = ogg_pages(content)
    assert len(pages) > 4
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0x40
    for damaged, message in (
        (flipped, r"a\.ogg is damaged: its page at byte \d+ has a wrong checksum"),
        (b"".join(pages[:3] + pages[4:]), "is damaged: pages are missing before byte"),
        (b"".join(pages[:-1]), "is truncated: its last page does not end the stream"),
        (content[:-10], "is truncated: its last page ends early"),
    ):
        ogg.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            load_audio(ogg)
    ogg.write_bytes(content + b"TAG" + bytes(125))  # what some programs append
    assert len(load_audio(ogg)) == 5 * RATE


# File objects and channels


class Pipe(io.RawIOBase):
    def __init__(self, content):
        self._file = io.BytesIO(content)

    def read(self, size=-1):
        return self._file.read(size)


@pytest.mark.parametrize(
    "extension", ["wav", "flac", "ogg", "mp3", "aiff", "au", "w64", "caf", "m4a"]
)
def test_bytes_and_file_objects_are_read_as_their_file_is(tmp_path, extension):
    path, rate = tmp_path / f"a.{extension}", 22050
    if extension == "m4a":
        encode(path, "aac", rate)
    else:
        soundfile.write(path, tone(rate), rate)
    content, expected = path.read_bytes(), load_audio(path)
    assert len(expected) == pytest.approx(2 * RATE, abs=3000)
    part = load_audio(content, start_s=0.5, duration_s=0.25)
    torch.testing.assert_close(part, expected[8000:12000], atol=1e-6, rtol=0)
    assert torch.equal(load_audio(bytearray(content)), expected)
    with path.open("rb") as file:
        for source in (io.BytesIO(content), file, Pipe(content)):
            assert torch.equal(load_audio(source), expected)
            assert not source.closed


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (io.StringIO("x"), TypeError, "`source` must be open in binary mode; got a text file"),
        (3, TypeError, "`source` must be a path, bytes or a file object; got int"),
        (io.BytesIO(), ValueError, "the audio is empty"),
    ],
)
def test_sources_that_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        load_audio(source)


@pytest.mark.parametrize("extension", ["flac", "wav", "mp3", "m4a"])
def test_text_that_is_named_as_audio(tmp_path, extension):
    path = tmp_path / f"notes.{extension}"
    path.write_text("These are the minutes of a meeting, and no audio.\n" * 20)
    with pytest.raises(ValueError, match=rf"notes\.{extension} is not an audio file that libsnd"):
        load_audio(path)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO])
def test_what_is_no_array_is_not_printed(kind):
    with pytest.raises(TypeError, match="must be an array of samples") as caught:
        as_audio(kind(b"secret" * 1000))
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_channels(tmp_path):
    rng = np.random.default_rng(0)
    left, right = 0.1 * rng.standard_normal((2, RATE))
    path = tmp_path / "a.wav"
    for second, differ in ((left, False), (0.8 * left, False), (right, True), (-left, True)):
        soundfile.write(path, np.stack([left, second], axis=1), RATE, subtype="FLOAT")
        with AudioFile(path) as file:
            np.testing.assert_allclose(file.read(), (left + second) / 2, atol=1e-6)
            assert file.channels_differ == differ
    with AudioFile(path, channel=1) as file:
        np.testing.assert_allclose(file.read(), -left, atol=1e-6)
        assert not file.channels_differ
    with pytest.raises(
        ValueError, match=r"`channel` must be from 0 to 1: .* has 2 channels; got 2"
    ):
        AudioFile(path, channel=2)
