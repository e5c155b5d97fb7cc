"""Scores along time: from memory, from disk and live, the same numbers."""

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import load_audio, peak_normalize, resample
from asvspoof_cm.models import AASIST, TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer, timelines as timelines_module
from asvspoof_cm.streams import StreamingScorer, _StreamResampler

SMALL = TFPARNConfig(d_model=32, n_layers=1, n_heads=2, d_feedforward=32, d_classifier=16)


@pytest.fixture(scope="module")
def scorer():
    torch.manual_seed(0)
    return Scorer(TFPARN(SMALL), device="cpu", batch_size=4)


def sound(seconds, rate=16000, seed=0):
    generator = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * 200 * t) * (0.2 + 0.15 * np.sin(2 * np.pi * 0.4 * t))
    return (tone + 0.02 * generator.standard_normal(len(t))).astype(np.float32)


def test_each_window_is_an_utterance_of_its_own(scorer):
    waveform = sound(9.3)
    line = scorer.timeline(waveform)
    alone = Scorer(scorer.model, device="cpu", n_crops=1)
    assert line.start_s.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert line.end_s.tolist() == [4, 5, 6, 7, 8, 9, 9.3]
    assert line.duration_s == 9.3
    assert len(line) == 7
    for window in line:
        part = waveform[round(16000 * window.start_s) : round(16000 * window.end_s)]
        assert window.score == pytest.approx(alone.score(part), abs=1e-5)


@pytest.mark.parametrize(
    ("seconds", "window_s", "hop_s", "expected"),
    [
        (4, 4, 1, [(0, 4)]),
        (5, 4, 1, [(0, 4), (1, 5)]),
        (5.5, 4, 1, [(0, 4), (1, 5), (2, 5.5)]),
        (1, 4, 1, [(0, 1)]),
        (6, 4, 4, [(0, 4), (4, 6)]),
        (8, 4, 4, [(0, 4), (4, 8)]),
        (9, 2, 5, [(0, 2), (5, 7)]),
        (11, 2, 5, [(0, 2), (5, 7), (10, 11)]),
        (3, 0.5, 1, [(0, 0.5), (1, 1.5), (2, 2.5)]),
    ],
)
def test_which_windows_there_are(scorer, seconds, window_s, hop_s, expected):
    line = scorer.timeline(sound(seconds), window_s=window_s, hop_s=hop_s)
    assert [(window.start_s, window.end_s) for window in line] == expected
    stream = StreamingScorer(scorer, window_s=window_s, hop_s=hop_s)
    windows = stream.push(sound(seconds)) + stream.flush()
    assert [(window.start_s, window.end_s) for window in windows] == expected


@pytest.mark.parametrize("rate", [16000, 8000, 44100, 48000])
@pytest.mark.parametrize("block", [timelines_module.BLOCK_SAMPLES, 30_000])
def test_from_disk(scorer, tmp_path, monkeypatch, rate, block):
    monkeypatch.setattr(timelines_module, "BLOCK_SAMPLES", block)
    path = tmp_path / "sound.flac"
    soundfile.write(path, sound(10.2, rate), rate)
    line = scorer.timeline(path)
    np.testing.assert_allclose(line.score, scorer.timeline(load_audio(path)).score, atol=1e-5)
    assert line.duration_s == pytest.approx(10.2)


@pytest.mark.parametrize("rate", [16000, 8000, 11025, 44100])
@pytest.mark.parametrize("n_chunk", [7, 160, 12_345, 10**7])
def test_live_gives_the_same_numbers(scorer, rate, n_chunk):
    waveform, windowing = sound(6.3, rate), {}
    if n_chunk == 7:
        waveform, windowing = waveform[: int(0.9 * rate)], {"window_s": 0.5, "hop_s": 0.25}
    line = scorer.timeline(waveform, rate, **windowing)
    stream = StreamingScorer(scorer, sample_rate=rate, **windowing)
    for _ in range(2):  # a stream may begin anew after its end
        windows = []
        for start in range(0, len(waveform), n_chunk):
            windows += stream.push(waveform[start : start + n_chunk])
        windows += stream.push(np.zeros(0))
        windows += stream.flush()
        assert [(w.start_s, w.end_s) for w in windows] == [(w.start_s, w.end_s) for w in line]
        np.testing.assert_allclose([w.score for w in windows], line.score, atol=1e-5)


def test_a_stream_at_an_odd_rate_is_the_whole_resampled_at_once():
    """16,000 to 767,999 is rounded to 1 to 48, and a stream must round as a file does."""
    rate, noise = 767_999, torch.from_numpy(sound(2.5, 767_999))
    resampler = _StreamResampler(rate, 16000)
    parts = [resampler.push(chunk.numpy()) for chunk in noise.split(300_000)]
    parts = torch.from_numpy(np.concatenate([*parts, resampler.flush()]))
    torch.testing.assert_close(parts, resample(noise, rate, 16000), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("rate", "late_s"), [(16000, 0.0), (8000, 0.006), (44100, 0.006)])
def test_latency_is_bounded(scorer, rate, late_s):
    """Each window comes with its last sample, or the reach of the resampling filter later."""
    stream = StreamingScorer(scorer, sample_rate=rate)
    n_chunk = rate // 500
    waveform = sound(5.5, rate)
    for start in range(0, len(waveform), n_chunk):
        heard_s = min(start + n_chunk, len(waveform)) / rate
        for window in stream.push(waveform[start : start + n_chunk]):
            assert window.end_s <= heard_s <= window.end_s + late_s + 0.0021  # a chunk


def test_live_memory_is_bounded(scorer):
    stream = StreamingScorer(scorer, sample_rate=8000, window_s=1, hop_s=3)
    for _ in range(50):
        stream.push(sound(0.5, 8000))
        assert len(stream._windows._buffer) <= 16000
        assert len(stream._resampler._buffer) <= 200


def test_live_chunks_of_any_kind(scorer):
    waveform = sound(4.5)
    expected = scorer.timeline(np.round(waveform * 32767).astype(np.int16)).score
    stream = StreamingScorer(scorer)
    stereo = np.round(np.stack([waveform, waveform]) * 32767).astype(np.int16)
    windows = stream.push(stereo[:, :30000]) + stream.push(torch.tensor(stereo[:, 30000:]))
    windows += stream.flush()
    np.testing.assert_allclose([w.score for w in windows], expected, atol=1e-5)


def test_a_bad_chunk_changes_nothing(scorer):
    waveform = sound(4)
    stream = StreamingScorer(scorer)
    stream.push(waveform[:1000])
    with pytest.raises(ValueError, match="1 of its 3 samples are NaN or infinite"):
        stream.push(np.array([0.0, np.nan, 0.0]))
    (window,) = stream.push(waveform[1000:])
    assert window.score == pytest.approx(scorer.timeline(waveform).score[0], abs=1e-5)
    assert stream.flush() == []
    assert StreamingScorer(scorer).flush() == []


def test_silence_has_a_score(scorer):
    assert np.isfinite(scorer.timeline(np.zeros(100_000)).score).all()


def test_wrong_arguments(scorer, tmp_path):
    for name in ("window_s", "hop_s"):
        for value in (0, -1, float("inf"), float("nan"), 1e-9):
            with pytest.raises(ValueError, match=f"`{name}` must be a positive number of seconds"):
                scorer.timeline(sound(1), **{name: value})
    with pytest.raises(ValueError, match="`sample_rate` must be a whole number"):
        StreamingScorer(scorer, sample_rate=0)
    with pytest.raises(ValueError, match="must hold at least one sample"):
        scorer.timeline(np.zeros(0))
    with pytest.raises(FileNotFoundError):
        scorer.timeline(tmp_path / "missing.wav")
    rough = Scorer(lambda waveform: torch.full((len(waveform), 2), torch.inf))
    with pytest.raises(ValueError, match=r"logits from 0.0 s to 1.0 s are not finite"):
        rough.timeline(sound(1))


# Attention


def test_attention_is_that_of_the_model(scorer):
    waveform = sound(7)
    found = scorer.attention(waveform, start_s=1.5)
    crop = peak_normalize(torch.tensor(waveform)[None, 24000 : 24000 + 64000])
    with torch.inference_mode():
        logits, weight, *_ = scorer.model.attend(crop)
    np.testing.assert_allclose(found.weight, weight[0], atol=1e-6)
    assert found.weight.sum() == pytest.approx(1.0, abs=1e-5)
    assert found.score == pytest.approx((logits[0, 1] - logits[0, 0]).item(), abs=1e-5)
    assert found.features.shape == (160, 401)
    assert found.time_s[0] == 1.5
    assert found.time_s[-1] == 5.5
    assert scorer.attention(waveform).time_s[0] == 1.5  # the centre


def test_attention_has_the_precision_of_the_scores(scorer):
    half = Scorer(scorer.model, device="cpu", n_crops=1, precision="bf16")
    waveform = sound(4)
    assert half.score(waveform) != scorer.score(waveform)
    assert half.attention(waveform).score == half.score(waveform)


def test_attention_of_a_short_utterance(scorer):
    assert scorer.attention(sound(1)).time_s[0] == 0.0


def test_attention_errors(scorer):
    with pytest.raises(ValueError, match=r"`start_s` must lie inside the utterance of 1.000 s"):
        scorer.attention(sound(1), start_s=1.0)
    with pytest.raises(ValueError, match="the model must pool with weights; AASIST does not"):
        Scorer(AASIST(), device="cpu").attention(sound(1))


# Figures


def test_figures_show_the_numbers(scorer):
    pytest.importorskip("matplotlib")
    from asvspoof_cm import plots

    waveform = sound(9.3)
    line = scorer.timeline(waveform)
    ax = plots.timeline(line, threshold=float(np.median(line.score)))
    np.testing.assert_allclose(ax.lines[0].get_xdata(), (line.start_s + line.end_s) / 2)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), line.score)
    assert ax.get_xlim() == (0.0, 9.3)
    ax = plots.timeline(line, truth=[(0.0, 4.0, "human"), (4.0, 9.3, "synthetic")])
    assert [(text.get_text(), text.get_position()[0]) for text in ax.texts] == [
        ("human", 2.0),
        ("synthetic", 6.65),
    ]
    found = scorer.attention(waveform)
    ax = plots.attention(found)
    _, right = ax.figure.axes
    np.testing.assert_allclose(right.lines[0].get_xdata(), found.time_s)
    np.testing.assert_allclose(right.lines[0].get_ydata(), found.weight * len(found.weight))
    np.testing.assert_allclose(ax.images[0].get_array(), found.features)
    assert ax.images[0].get_extent()[:2] == pytest.approx([2.645, 6.655])
