"""Scores along time: from memory, from disk and live, the same numbers; segments, attention."""

import io

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import InputSettings, load_audio, resample
from asvspoof_cm.calibration import Calibration, Verdict
from asvspoof_cm.labels import BONAFIDE, NO_SPEECH, SPOOF
from asvspoof_cm.models import TFPARN, Encoder, EncoderConfig, TFPARNConfig
from asvspoof_cm.models.encoder import Frames, Outputs
from asvspoof_cm.scorer import Scorer, SegmentSettings, StreamingScorer, timeline as timeline_module
from asvspoof_cm.scorer.timeline import Windows, hysteresis, without_short

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


def scores(windows):
    return [window.score for window in windows]


# Windows


def test_each_window_is_an_utterance_of_its_own(scorer):
    waveform = sound(9.3)
    waveform[16000:22000] = 0  # digital silence at the edge of a window is left out of it
    line = scorer.timeline(waveform)
    alone = Scorer(scorer.model, device="cpu", n_crops=1)
    assert [window.start_s for window in line] == [0, 1, 2, 3, 4, 5, 6]
    assert [window.end_s for window in line] == [4, 5, 6, 7, 8, 9, 9.3]
    for window in line:
        part = waveform[round(16000 * window.start_s) : round(16000 * window.end_s)]
        assert window.score == pytest.approx(alone.score(part), abs=1e-5)
        assert window.unit == "log-odds"


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


def test_silence_in_a_window_is_no_spoof(scorer):
    """It has a score, which means nothing: `has_speech` and the warnings say so, live too."""
    waveform = np.concatenate([sound(4), np.zeros(64000, np.float32), sound(4)])
    line = scorer.timeline(waveform, hop_s=4.0)
    assert [window.has_speech for window in line] == [True, False, True]
    assert line[1].warnings == ("no speech to judge", "silent")
    assert np.isfinite(scores(line)).all()
    stream = StreamingScorer(scorer, hop_s=4.0)
    assert stream.push(waveform) == list(line)


@pytest.mark.parametrize("rate", [16000, 44100])
@pytest.mark.parametrize("block", [timeline_module.BLOCK_SAMPLES, 30_000])
def test_from_disk(scorer, tmp_path, monkeypatch, rate, block):
    monkeypatch.setattr(timeline_module, "BLOCK_SAMPLES", block)
    path = tmp_path / "sound.flac"
    soundfile.write(path, sound(10.2, rate), rate)
    line = scorer.timeline(path)
    np.testing.assert_allclose(scores(line), scores(scorer.timeline(load_audio(path))), atol=1e-5)
    assert line[-1].end_s == pytest.approx(10.2)
    again = scorer.timeline(io.BytesIO(path.read_bytes()))
    np.testing.assert_allclose(scores(line), scores(again), atol=1e-5)


# Live


@pytest.mark.parametrize("rate", [16000, 8000, 44100])
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
        np.testing.assert_allclose(scores(windows), scores(line), atol=1e-5)


def test_a_stream_at_an_odd_rate_is_the_whole_resampled_at_once():
    """16,000 to 767,999 is rounded to 1 to 48, and a stream must round as a file does."""
    rate, noise = 767_999, sound(2.5, 767_999)
    windows = Windows(InputSettings(), 0.25, 0.25, rate)
    parts = [part for chunk in np.array_split(noise, 7) for part in windows.push(chunk)]
    parts += windows.push(np.zeros(0, np.float32), is_last=True)
    parts = np.concatenate([samples for _, _, samples in parts])
    np.testing.assert_allclose(parts, resample(noise, rate, 16000), atol=1e-6)


@pytest.mark.parametrize(("rate", "late_s"), [(16000, 0.0), (8000, 0.006), (44100, 0.006)])
def test_latency_and_memory_are_bounded(scorer, rate, late_s):
    """Each window comes with its last sample, or the reach of the resampling filter later."""
    stream = StreamingScorer(scorer, sample_rate=rate)
    n_chunk = rate // 500
    waveform = sound(5.5, rate)
    for start in range(0, len(waveform), n_chunk):
        heard_s = min(start + n_chunk, len(waveform)) / rate
        for window in stream.push(waveform[start : start + n_chunk]):
            assert window.end_s <= heard_s <= window.end_s + late_s + 0.0021  # a chunk
        assert len(stream._windows._buffer) <= 4.02 * rate


def test_live_chunks_of_any_kind(scorer):
    waveform = sound(4.5)
    stereo = np.round(np.stack([waveform, waveform]) * 32767).astype(np.int16)
    expected = scores(scorer.timeline(stereo[0]))
    for chosen in (scorer, Scorer(scorer.model, device="cpu", channel=1)):
        stream = StreamingScorer(chosen)
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
    assert window.score == pytest.approx(scorer.timeline(waveform)[0].score, abs=1e-5)
    assert stream.flush() == StreamingScorer(scorer).flush() == []


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
    with pytest.raises(ValueError, match=r"from 0.0 s to 1.0 s, the model's logits are not finite"):
        rough.timeline(sound(1))


# Segments


class ByLoudness(torch.nn.Module):
    """Takes what is quiet for synthetic; its frames of 20 ms do as well, if it has any."""

    def __init__(self, has_frames):
        super().__init__()
        self.frame_head = has_frames

    def forward(self, waveform):
        return self.outputs(waveform).logits

    def outputs(self, waveform):
        def logit(level):
            return 4 * torch.sign(level - 0.05)

        frames = waveform[:, : waveform.shape[1] // 320 * 320].unfold(1, 320, 320)
        level = frames.square().mean(-1).sqrt()
        whole = logit(waveform.square().mean(-1).sqrt())
        found = Frames(logit(level), 0.02, level - 1e-3) if self.frame_head else None
        return Outputs(None, torch.stack([-whole, whole], dim=1) / 2, found, None)


def spliced():
    """4 s loud, 2 s quiet, 3 s loud, 2 s of nothing, 1 s loud; a peak sets the level of each."""
    parts = [sound(4), 0.05 * sound(2), sound(3), np.zeros(32000, np.float32), sound(1)]
    waveform = np.concatenate(parts)
    waveform[4000::8000] = np.where(waveform[4000::8000] == 0, 0, 0.9)
    return waveform


@pytest.mark.parametrize(("has_frames", "tolerance_s"), [(True, 0.15), (False, 0.8)])
def test_segments(has_frames, tolerance_s):
    model = ByLoudness(has_frames)
    model.meta = {"segments": {"scale": 2.0, "offset": 1.0}}
    scorer = Scorer(model, device="cpu", calibration=Calibration(), crop_s=3.0)
    assert scorer.segment_settings == SegmentSettings(scale=2.0, offset=1.0)
    found = scorer.segments(spliced())
    labels = [segment.label for segment in found]
    assert labels == [BONAFIDE, SPOOF, BONAFIDE, NO_SPEECH, BONAFIDE]
    assert found[0].start_s == 0
    assert found[-1].end_s == 12
    for before, after, edge_s in zip(found, found[1:], (4, 6, 9, 11), strict=False):
        assert before.end_s == after.start_s == pytest.approx(edge_s, abs=tolerance_s)
    assert found[3].llr is None
    assert found[1].llr < 0 < found[0].llr


def test_a_score_warns_of_parts_that_differ():
    scorer = Scorer(ByLoudness(True), device="cpu", calibration=Calibration(), crop_s=3.0)
    assert scorer.score_file(sound(9)).warnings == ()
    result = scorer.score_file(spliced()[: 9 * 16000])
    assert result.llr > 0 > result.lowest_llr
    assert any(warning.startswith("parts differ: the worst has") for warning in result.warnings)
    assert (result.verdict(), result.verdict(worst=True)) == (Verdict.BONAFIDE, Verdict.SPOOF)
    assert result.as_dict(worst=True)["verdict"] == "spoof"


def test_frames_follow_a_calibration_that_moves():
    model = ByLoudness(True)
    model.input = InputSettings(crop_s=3.0)
    model.meta = {
        "calibration": Calibration(scale=2.0, offset=1.0).as_dict(),
        "segments": {"scale": 0.5, "offset": 0.1},
    }
    own = Scorer(model, device="cpu")
    moved = Scorer(model, device="cpu", calibration=Calibration(scale=3.0, offset=4.5))
    # What was an LLR of 0, log-odds of -0.5, is 3 now.
    assert moved.segment_settings.offset == pytest.approx(3.1)
    before, after = own.score_file(spliced()), moved.score_file(spliced())
    assert after.lowest_llr == pytest.approx(before.lowest_llr + 3)
    adapted = own.adapt([("a", sound(2))], [("b", 0.02 * sound(2))])
    shift = adapted.calibration.offset - own.calibration.offset
    assert adapted.segment_settings.offset == pytest.approx(0.1 + shift)


def test_the_parts_of_segments(scorer):
    values = np.array([1.0, -1, -3, -1, -1, 1, -1, -3])
    assert hysteresis(values, -2.0, 0.0).tolist() == [1, 1, 0, 0, 0, 1, 1, 0]
    assert hysteresis(-np.ones(2), -2.0, 0.0).tolist() == [1, 1]
    assert without_short(np.array([0, 1, 1, 0, 1, 1, 0]), 2).tolist() == [1] * 7
    assert without_short(np.array([1]), 2).tolist() == [1]
    with pytest.raises(ValueError, match="`calibration` must be there for segments"):
        scorer.segments(sound(1))


def test_all_heads_of_an_encoder_are_heard():
    torch.manual_seed(0)
    model = Encoder(EncoderConfig(frame_head=True, speech_head=True, d_projection=8)).eval()
    scorer = Scorer(model, device="cpu", calibration=Calibration())
    plain = Scorer(lambda w: model(w).detach(), calibration=Calibration())
    result = scorer.score_file(sound(5))
    assert result.score == pytest.approx(plain.score(sound(5)), abs=1e-5)
    for bias, has_speech in ((50.0, True), (-50.0, False)):
        with torch.no_grad():
            scorer.model.speech_head.bias.fill_(bias)
        assert scorer.score_file(sound(5)).has_speech is has_speech
        line = scorer.timeline(sound(5))
        assert {window.has_speech for window in line} == {has_speech}
    assert scorer.segments(sound(5))[-1].end_s == 5


# Explanations


class ByTone(torch.nn.Module):
    """Takes power around 3 kHz for synthetic."""

    def forward(self, waveform):
        spectrum = torch.fft.rfft(waveform).abs().square()
        hz = torch.linspace(0, 8000, spectrum.shape[1])
        share = spectrum[:, (hz > 2900) & (hz < 3100)].sum(1) / spectrum.sum(1)
        return torch.stack([share, -share], dim=1)


@pytest.mark.parametrize("seconds", [3, 9])
def test_what_differs_between_twins_is_what_the_explanation_shows(seconds):
    """A recording, and the same with a tone from 1.5 s to 2 s."""
    waveform = sound(seconds)
    place = slice(24000, 32000)
    waveform[place] += 0.3 * np.sin(2 * np.pi * 3000 * np.arange(8000) / 16000)
    scorer = Scorer(ByTone(), device="cpu")
    found = scorer.explain(waveform, n_bands=6)
    assert found.edges_s[[3, 4]].tolist() == [1.5, 2.0]
    assert found.of_time.argmax() == 3
    others = np.delete(found.of_time, 3)
    assert others.max() < 0.2 * found.of_time[3]  # what is masked elsewhere counts for the human
    band, stretch = np.unravel_index(found.of_band.argmax(), found.of_band.shape)
    assert stretch == 3
    assert found.edges_hz[band] < 3000 < found.edges_hz[band + 1]
    with pytest.raises(ValueError, match=r"`stretch_s` must be at least 0\.032; got 0"):
        scorer.explain(waveform, stretch_s=0)


def test_what_is_too_short_or_too_long_to_be_explained():
    short = Scorer(ByTone(), device="cpu", crop_s=0.1)
    message = r"`audio` must last from 0\.032 to 100 s to be explained; it lasts"
    for n_samples in (300, 1_600_001):
        with pytest.raises(ValueError, match=message):
            short.explain(np.ones(n_samples))
    assert short.explain(sound(0.04), stretch_s=0.04).of_time.shape == (1,)
