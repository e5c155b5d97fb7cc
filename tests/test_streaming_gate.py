"""The gate that decides while the caller speaks, and its time-to-decision curve."""

import numpy as np
import pytest
import torch

import streaming_gate
from asvspoof_cm import Scorer, load_audio
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.metrics import ASVSPOOF5
from streaming_gate import (
    PrefixScores,
    StreamingGate,
    fit_times,
    listen,
    score_prefixes,
    time_to_decision,
)


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


@pytest.mark.parametrize("n_chunk", [160, 1600, 16001, 160_000])
def test_clear_evidence_decides_at_the_first_time(scorer, n_chunk):
    decision = feed(StreamingGate(scorer), tone(0.5, 8.0), n_chunk)
    assert (decision.accept, decision.reason, decision.heard_s) == (True, "clear", 1.0)
    assert decision.llr == pytest.approx(5.0, abs=0.01)


def test_unclear_evidence_decides_at_the_last_time(scorer):
    # 10 × 0.1 lies 1.6 above the threshold of −0.64: less than the margin of 2.
    gate = StreamingGate(scorer)
    decisions = [gate.push(chunk) for chunk in np.split(tone(0.1, 8.0), 80)]
    assert decisions[:49] == [None] * 49
    assert decisions[49].reason == "time is up"
    assert (decisions[49].accept, decisions[49].heard_s) == (True, 5.0)
    assert decisions[79] is decisions[49] is gate.stop()


def test_spoofs_are_rejected_early_too(scorer):
    decision = feed(StreamingGate(scorer), -tone(0.5, 3.0), 800)
    assert (decision.accept, decision.reason) == (False, "clear")


def test_silence_before_the_first_sound_does_not_count(scorer):
    samples = np.concatenate([np.full(30_000, 0.001), tone(0.5, 1.0)])
    gate = StreamingGate(scorer)
    assert [gate.push(chunk) for chunk in np.split(samples[:45_000], 9)] == [None] * 9
    assert gate.push(samples[45_000:]).heard_s == 1.0


def test_a_caller_who_stops_is_decided_on(scorer):
    gate = StreamingGate(scorer, sample_rate=8000)
    assert gate.push(tone(0.5, 0.6, rate=8000)) is None
    decision = gate.stop()
    assert (decision.accept, decision.reason, decision.heard_s) == (True, "caller stopped", 0.6)
    empty = StreamingGate(scorer)
    assert empty.push(np.zeros(1000)) is None
    assert (empty.stop().accept, empty.stop().reason) == (False, "no speech")


def test_calibrations_have_their_times(scorer):
    calibrations = {0.5: Calibration(offset=-9.0), 1.5: Calibration(offset=4.0)}
    gate = StreamingGate(scorer, calibrations=calibrations, margin=5.0)
    decision = feed(gate, tone(0.5, 3.0), 400)
    assert (decision.heard_s, decision.reason) == (1.5, "time is up")
    assert decision.llr == pytest.approx(9.0, abs=0.01)


def test_what_a_gate_needs(scorer):
    with pytest.raises(ValueError, match="`calibrations` must be given for a scorer without"):
        StreamingGate(Scorer(level))
    with pytest.raises(ValueError, match="`margin` must not be negative; got -1"):
        StreamingGate(scorer, margin=-1)


def test_curve_is_the_replay_of_gates():
    rng = np.random.default_rng(0)
    label = np.arange(400) % 2
    at_s = np.array([1.0, 2.0, 3.0])
    # Evidence grows with time: 1, 2 and 4 standard deviations apart.
    score = rng.normal(np.outer(2 * label - 1, [0.5, 1.0, 2.0]), 1.0)
    duration_s = rng.uniform(0.5, 6.0, 400)
    scores = PrefixScores(at_s=at_s, score=score, duration_s=duration_s, label=label)
    calibrations = fit_times(scores)
    curve = time_to_decision(scores, calibrations, margin=1.0)
    assert curve.eer == pytest.approx((0.309, 0.159, 0.023), abs=0.04)  # Φ(−d'/2)
    assert curve.decided[-1] == 1.0
    assert list(curve.decided) == sorted(curve.decided)
    assert curve.lasting == tuple((duration_s >= time).mean() for time in at_s)
    threshold, n_rejected, times = ASVSPOOF5.threshold, 0, []
    for row in range(400):
        for k, time in enumerate(at_s):
            llr = float(calibrations[time].apply(score[row, k]))
            if abs(llr - threshold) >= 1.0 or duration_s[row] <= time or k == 2:
                n_rejected += label[row] == 1 and llr < threshold
                times.append(min(time, duration_s[row]))
                break
    assert curve.rejected[-1] == pytest.approx(n_rejected / 200)
    assert curve.mean_s == pytest.approx(np.mean(times))
    table = curve.markdown().splitlines()
    assert table[2].startswith(f"| 1 s | {100 * curve.eer[0]:.1f} |")
    assert table[-1] == f"Mean time of a decision: {curve.mean_s:.2f} s."


def test_scores_of_beginnings_are_what_a_gate_hears(scorer, tmp_path):
    paths = write_miniature(tmp_path, n_train=2, n_dev=4)
    protocol = read_protocol(paths.dev_protocol)
    found = score_prefixes(protocol, paths.audio_dir, scorer, (0.5, 60.0))
    assert found.score.shape == (4, 2)
    assert found.label.tolist() == protocol.label.tolist()
    whole = load_audio(next(paths.audio_dir.rglob(f"{protocol.utterance[0]}.flac")))
    first = int((whole.abs() >= 0.01).nonzero()[0])
    assert found.duration_s[0] == pytest.approx((len(whole) - first) / 16000)
    assert found.score[0, 0] == pytest.approx(scorer.score(whole[first : first + 8000]))
    assert found.score[0, 1] == pytest.approx(scorer.score(whole[first:]))


@pytest.mark.filterwarnings("ignore:the EER is")
def test_the_command(tmp_path, capsys, monkeypatch):
    paths = write_miniature(tmp_path / "corpus", n_train=2, n_dev=8)
    for part in ("dev", "eval"):
        target = paths.audio_dir / f"ASVspoof5.{part}.track_1.tsv"
        target.write_text(paths.dev_protocol.read_text())
    clip = min(paths.audio_dir.rglob("*.flac"))
    small = Scorer(level, n_crops=1, crop_s=0.5, calibration=Calibration())
    monkeypatch.setattr(streaming_gate.Scorer, "from_pretrained", lambda: small)
    monkeypatch.setattr(streaming_gate, "fit_times", lambda _: dict.fromkeys(
        streaming_gate.AT_S, Calibration()))  # fmt: skip
    page = tmp_path / "page.md"
    page.write_text("Before\n" + "old\n".join(streaming_gate.MARKERS) + "After\n")
    options = {"corpus": paths.audio_dir, "markdown": page, "limit": 6}
    streaming_gate.main([str(clip), *(f"--{name}={value}" for name, value in options.items())])
    out = capsys.readouterr().out
    decision = listen(clip, small)
    word = "accept" if decision.accept else "reject"
    assert f"{clip}: {word} after {decision.heard_s:.1f} s, {decision.reason}\n" in out
    text = page.read_text()
    assert text.startswith("Before\n<!-- gate: begin -->\nCountermeasure: ")
    assert "margin 2; calibrated on dev, measured on eval (6 of dev and 6 of eval)." in text
    assert text.endswith("<!-- gate: end -->\nAfter\n")
    assert "| 5 s | " in text
