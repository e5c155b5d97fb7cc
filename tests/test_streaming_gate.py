"""The gate that decides while the caller speaks."""

import numpy as np
import pytest
import torch

import streaming_gate
from asvspoof_cm import Scorer, load_audio
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.data import read_protocol, write_miniature
from streaming_gate import StreamingGate, fit_times, listen, score_prefixes


def level(waveforms):
    """A model whose logit difference is ten times the mean of the peak-normalised audio."""
    return torch.stack([torch.zeros(len(waveforms)), 10 * waveforms.mean(dim=1)], dim=1)


@pytest.fixture
def scorer():
    return Scorer(level, n_crops=1, crop_s=0.5, calibration=Calibration())


def tone(share, duration_s, rate=16000):
    """Audio of which `share` is at 1 and the rest at 0, everywhere: its score is 10 × share."""
    samples = np.zeros(round(duration_s * rate))
    samples[:: round(1 / share)] = 1.0
    return samples


def feed(gate, samples, n_chunk):
    for start in range(0, len(samples), n_chunk):
        if (decision := gate.push(samples[start : start + n_chunk])) is not None:
            return decision
    return gate.stop()


@pytest.mark.parametrize("n_chunk", [160, 16001, 160_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_clear_evidence_decides_at_the_first_time(scorer, n_chunk, sign):
    decision = feed(StreamingGate(scorer), sign * tone(0.5, 8.0), n_chunk)
    assert (decision.accept, decision.reason, decision.heard_s) == (sign > 0, "clear", 1.0)
    assert decision.llr == pytest.approx(sign * 5.0, abs=0.01)


def test_unclear_evidence_decides_at_the_last_time(scorer):
    # 10 × 0.1 lies 1.6 above the threshold of −0.64: less than the margin of 2.
    gate = StreamingGate(scorer)
    decisions = [gate.push(chunk) for chunk in np.split(tone(0.1, 8.0), 80)]
    assert decisions[:49] == [None] * 49
    assert decisions[49].reason == "time is up"
    assert (decisions[49].accept, decisions[49].heard_s) == (True, 5.0)
    assert decisions[79] is decisions[49] is gate.stop()


def test_silence_before_the_first_sound_does_not_count(scorer):
    samples = np.concatenate([np.full(30_000, 0.001), tone(0.5, 1.0)])
    gate = StreamingGate(scorer)
    assert [gate.push(chunk) for chunk in np.split(samples[:45_000], 9)] == [None] * 9
    assert gate.push(samples[45_000:]).heard_s == 1.0


def test_a_caller_who_stops_is_decided_on(scorer):
    gate = StreamingGate(scorer, sample_rate=8000)
    assert gate.push(tone(0.1, 0.8, rate=8000)) is None
    decision = gate.stop()
    assert (decision.accept, decision.reason, decision.heard_s) == (True, "caller stopped", 0.8)
    empty = StreamingGate(scorer)
    assert empty.push(np.zeros(1000)) is None
    assert (empty.stop().accept, empty.stop().reason) == (False, "no speech")


def test_calibrations_have_their_times(scorer):
    calibrations = {0.5: Calibration(offset=-9.0), 1.5: Calibration(offset=4.0)}
    gate = StreamingGate(scorer, calibrations=calibrations, margin=5.0)
    decision = feed(gate, tone(0.5, 3.0), 400)
    assert (decision.heard_s, decision.reason) == (1.5, "time is up")
    assert decision.llr == pytest.approx(9.0, abs=0.01)
    with pytest.raises(ValueError, match="`calibrations` must be given for a scorer without"):
        StreamingGate(Scorer(level))


def test_what_is_known_by_each_time():
    rng = np.random.default_rng(0)
    label = np.arange(2000) % 2
    # Evidence grows with time: 1, 2 and 4 standard deviations apart.
    score = rng.normal(np.outer(2 * label - 1, [0.5, 1.0, 2.0]), 1.0)
    calibrations = fit_times(score, label, (1.0, 2.0, 3.0))
    scales = [calibrations[time].scale for time in (1.0, 2.0, 3.0)]
    assert scales == pytest.approx([1.0, 2.0, 4.0], rel=0.2)  # the LLR of equal Gaussians is d' s


def test_the_command(scorer, tmp_path, capsys, monkeypatch):
    paths = write_miniature(tmp_path / "corpus", n_train=2, n_dev=4)
    protocol = read_protocol(paths.dev_protocol)
    clip = next(paths.audio_dir.rglob(f"{protocol.utterance[0]}.flac"))
    heard = load_audio(clip)
    heard = heard[int((heard.abs() >= 0.01).nonzero()[0]) :]
    found = score_prefixes(protocol, paths.audio_dir, scorer, (0.5, 60.0))
    assert found.shape == (4, 2)
    assert found[0] == pytest.approx([scorer.score(heard[:8000]), scorer.score(heard)])

    monkeypatch.setattr(streaming_gate.Scorer, "from_pretrained", lambda: scorer)
    streaming_gate.main([str(clip)])
    decision = listen(clip, StreamingGate(scorer))
    word = "accept" if decision.accept else "reject"
    assert f"{clip}: {word} after {decision.heard_s:.1f} s" in capsys.readouterr().out
