"""The corpus builder of recipes/manyvoices, without its repositories, weights and engines."""

import csv
import hashlib
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm import SpoofDataset, read_protocol
from asvspoof_cm.augmentation import transcode
from channels import CHANNELS, DEV, HELD_OUT, TRAINED, coded as through
from manyvoices import (
    channel,
    clips,
    coded,
    copies,
    debian,
    engines,
    find,
    fingerprints,
    folder,
    gather,
    nospeech,
    packages,
    report,
    table,
    vocoders,
    voices,
)
from manyvoices.__main__ import main as run_step
from manyvoices.table import Row, read_lines
from minispoof.randomness import generator
from minispoof.speech import mean_spectrum

RATE = 16_000


def voice(seed, duration_s=2.0):
    """Noise in syllables under a few resonances: no two seconds are alike."""
    rng = np.random.default_rng(seed)
    n_samples = int(duration_s * RATE)
    knots = rng.uniform(0.1, 1, int(duration_s * 8) + 2)
    envelope = np.interp(np.arange(n_samples) / RATE * 8, np.arange(len(knots)), knots)
    waveform = envelope * np.convolve(rng.standard_normal(n_samples), np.ones(4) / 4, "same")
    for _ in range(4):
        at, hz = rng.integers(n_samples - 4000), rng.uniform(300, 3000)
        waveform[at : at + 4000] += np.sin(2 * np.pi * hz * np.arange(4000) / RATE)
    return waveform * 0.5 / np.abs(waveform).max()


def write_wav(path, waveform, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, waveform, rate, subtype="PCM_16")


def row(name, *, label="bonafide", source="page", split="train", **more):
    more = {"generator": "-" if label == "bonafide" else "gan", "speaker": "Ada", **more}
    path = f"audio/{name}.flac"
    return Row(utterance=name, path=path, label=label, source=source, split=split, **more)


def corpus(out, rows):
    """Write clips and table of a corpus."""
    for number, of in enumerate(rows):
        write_wav(out / of.path, 0.9 / 0.5 * voice(number))
    table.write_table(out / table.TABLE, rows)
    return out


def digests(out):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.rglob("*.flac"))}


def git(place, *arguments):
    settings = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *settings, "-C", str(place), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repositories(tmp_path):
    """Two repositories in two layouts, and an index that names a third, which is not there."""
    lines = [["split", "repo", "blob", "path", "label", "generator", "speaker"]]
    for number, (name, place) in enumerate(
        [("ada/page", "ada/page"), ("bob/talk", "bob+talk/repo")], start=1
    ):
        work = tmp_path / "repos" / place
        for k in range(3):
            write_wav(work / f"sound/{k} é.wav", voice(10 * number + k, 2 + 3 * k))
        (work / "notes.wav").write_text("no sound")
        git(tmp_path, "init", "--quiet", str(work))
        git(work, "add", ".")
        git(work, "commit", "--quiet", "--message", "clips")
        for k, label in enumerate(["bonafide", "spoof", "spoof"]):
            blob = git(work, "rev-parse", f"HEAD:sound/{k} é.wav")
            generator_name = "-" if label == "bonafide" else f"G{k}"
            path = f"sound/{k} é.wav"
            lines.append(["train", name, blob, path, label, generator_name, "Ada"])
        blob = git(work, "rev-parse", "HEAD:notes.wav")
        lines.append(["dev", name, blob, "notes.wav", "spoof", "G9", "-"])
    lines.append(["dev", "bob/talk", "0" * 40, "gone.wav", "spoof", "G9", "-"])
    lines.append(["train", "eve/gone", "0" * 40, "a.wav", "bonafide", "-", "Eve"])
    path = tmp_path / "index.tsv"
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    return path, tmp_path / "repos"


def test_gather_finds_clips_by_blob_and_reports_the_rest(repositories, tmp_path):
    index, repos = repositories
    rows, problems = gather.gather(gather.read_index(index), repos, tmp_path / "out")
    assert [of.generator for of in rows] == ["-", "G1", "G2"] * 2
    assert {of.source for of in rows} == {"ada/page", "bob/talk"}
    assert problems[("eve/gone", "*")] == "the repository is not here"
    assert problems[("bob/talk", "gone.wav")] == "the blob is missing"
    assert "Format not recognised" in problems[("ada/page", "notes.wav")]
    assert table.read_table(tmp_path / "out" / table.TABLE) == rows
    skipped = (tmp_path / "out" / "skipped.tsv").read_text().splitlines()
    assert len(skipped) == len(problems) == 4
    protocol = read_protocol(tmp_path / "out" / table.TABLE)
    assert protocol.counts() == {"bonafide": 2, "spoof": 4}
    dataset = SpoofDataset(protocol, tmp_path / "out")
    assert dataset[0][0].shape[-1] == 64000


def test_gather_has_equal_bytes_twice_in_parallel_and_after_an_interruption(
    repositories, tmp_path, monkeypatch
):
    index, repos = repositories
    entries = gather.read_index(index)
    first = gather.gather(entries, repos, tmp_path / "a")
    assert gather.gather(entries, repos, tmp_path / "b", n_jobs=2)[0] == first[0]

    made, make_clip = [], gather.make_clip

    def stop_at_the_third(data, name):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(name)
        return make_clip(data, name)

    monkeypatch.setattr(gather, "make_clip", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        gather.gather(entries, repos, tmp_path / "c")
    assert len(digests(tmp_path / "c")) == 2
    monkeypatch.setattr(gather, "make_clip", lambda *a: made.append(a) or make_clip(*a))
    gather.gather(entries, repos, tmp_path / "c")
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == digests(tmp_path / "c")
    tables = [(tmp_path / name / table.TABLE).read_bytes() for name in "abc"]
    assert tables[0] == tables[1] == tables[2]


def test_gather_fetches_what_is_not_there(repositories, tmp_path):
    index, repos = repositories
    commits = {"ada/page": git(repos / "ada/page", "rev-parse", "HEAD"), "eve/gone": "0" * 40}
    entries = [e for e in gather.read_index(index, split="train") if e.row.source != "bob/talk"]
    host, clones = f"{repos}/", tmp_path / "clones"
    rows, problems = gather.gather(entries, clones, tmp_path / "out", commits=commits, host=host)
    assert len(rows) == 3
    assert problems[("eve/gone", "*")].startswith("not fetched: ")
    assert gather.find_repository(clones, "ada/page") == clones / "ada/page"
    assert gather.find_repository(clones, "eve/gone") is None


def test_the_index_that_ships():
    entries = gather.read_index()
    counts = {
        split: [
            sum(e.row.is_human == human for e in entries if e.row.split == split)
            for human in (1, 0)
        ]
        for split in ("train", "dev")
    }
    assert counts == {"train": [4483, 6097], "dev": [2062, 995]}
    assert len({e.row.utterance for e in entries}) == len(entries) == 13_637
    train, dev = ({e.row.source for e in entries if e.row.split == s} for s in ("train", "dev"))
    assert (len(train), len(dev), len(train & dev)) == (133, 31, 0)
    with gather.REPOSITORIES.open(newline="") as file:
        known = {line["repo"] for line in csv.DictReader(file, delimiter="\t")}
    assert train | dev == known


def test_find_makes_an_index_from_rules(repositories, tmp_path):
    _, repos = repositories
    rules = tmp_path / "rules.tsv"
    lines = [
        ["repo", "path", "label", "generator", "speaker"],
        ["ada/page", r"sound/0", "bonafide", "-", "Ada"],
        ["ada/page", r"sound/1", "-", "-", "-"],
        ["ada/page", r"sound/(\d) ", "spoof", r"G\1", "Ada"],
    ]
    rules.write_text("".join("\t".join(line) + "\n" for line in lines))
    (tmp_path / "sources.tsv").write_text(
        "split\trepo\tabout\ntrain\tada/page\tpage; English\ndev\tbob/talk\tno rule fits\n"
    )
    index, table = tmp_path / "found.tsv", tmp_path / "table.tsv"
    step = ["find", "--repos", repos, "--sources", tmp_path / "sources.tsv", "--rules", rules]
    step += ["--known", "--index", index, "--repositories", table]
    assert run_step([*map(str, step)]) == 0
    entries = gather.read_index(index)
    assert [(e.row.label, e.row.generator, e.row.origin) for e in entries] == [
        ("bonafide", "-", "sound/0 é.wav"),
        ("spoof", "G2", "sound/2 é.wav"),
    ]
    rows, problems = gather.gather(entries, repos, tmp_path / "out")
    assert (len(rows), problems) == (2, {})
    assert "ada/page" in table.read_text()
    assert "bob/talk" not in table.read_text()
    known = {entry.blob for entry in entries}
    sources, of = read_lines(tmp_path / "sources.tsv"), read_lines(rules)
    assert find.find(repos, sources, of, known=known)[0] == []
    without = {("ada/page", "sound/0 é.wav")}
    assert len(find.find(repos, sources, of, without=without)[0]) == 1
    with pytest.raises(ValueError, match="`label` must be bonafide, spoof or -; got 'human'"):
        find.find(repos, sources, [{**of[0], "label": "human"}])


def test_the_cap_of_a_repository_keeps_both_labels_and_every_generator():
    names = ["-"] * 20 + ["A"] * 200 + ["B"] * 5
    rows = [
        {"repo": "a/b", "path": str(k), "generator": name, "speaker": "?"}
        | {"label": "bonafide" if name == "-" else "spoof"}
        for k, name in enumerate(names)
    ]
    chosen = [row["generator"] for row in find._balanced(rows)]
    assert [chosen.count(name) for name in "-AB"] == [20, 125, 5]


def test_the_second_index_that_ships():
    folder_of = gather.INDEX.parent
    entries = gather.read_index(folder_of / "index2.tsv")
    first = gather.read_index()
    assert len({e.row.utterance for e in [*entries, *first]}) == len(entries) + len(first)
    assert not {e.blob for e in entries} & {e.blob for e in first}
    train, dev = ({e.row.source for e in entries if e.row.split == s} for s in ("train", "dev"))
    assert train
    assert dev
    assert not (train | dev) & {e.row.source for e in first}
    assert not train & dev
    with (folder_of / "repositories2.tsv").open(newline="") as file:
        known = {line["repo"] for line in csv.DictReader(file, delimiter="\t")}
    assert train | dev == known
    assert {e.row.label for e in entries} == {"bonafide", "spoof"}


def test_a_clip_is_trimmed_and_at_most_six_seconds():
    def recorded(waveform):
        file = io.BytesIO()
        soundfile.write(file, waveform, RATE, format="WAV", subtype="FLOAT")
        return file.getvalue()

    silence = np.zeros(RATE)
    clip = clips.make_clip(recorded(np.concatenate([silence, voice(1), silence])), "a")
    assert clip.dtype == np.int16
    assert np.abs(clip).max() == round(0.9 * 32767)
    assert 2.0 * RATE <= len(clip) <= 2.3 * RATE
    long = recorded(voice(2, 9.0))
    assert len(clips.make_clip(long, "a")) == 6 * RATE
    assert (clips.make_clip(long, "a") == clips.make_clip(long, "a")).all()
    assert (clips.make_clip(long, "a") != clips.make_clip(long, "b")).any()
    for waveform, why in [
        (voice(1, 0.5), "too short"),
        (np.concatenate([silence, voice(1, 0.5), silence]), "too short without its silence"),
        (silence, "silent or not finite"),
    ]:
        with pytest.raises(ValueError, match=why):
            clips.make_clip(recorded(waveform), "a")


@pytest.mark.parametrize("name", ["copy-griffin-lim", "copy-phases"])
def test_a_copy_keeps_length_level_and_band(name):
    """Of a recording from the telephone: nothing above 3.4 kHz comes back."""
    waveform = transcode(torch.from_numpy(voice(3)), "mu-law", narrowband=True).numpy()
    waveform = 0.88 * waveform / np.abs(waveform).max() + 0.01  # a cheap converter
    known = {**vocoders.COPIERS, **vocoders.HELD_OUT}
    vocoder = known[name].make(Path("weights"))
    copied = copies.copy(waveform, vocoder, "call.wav", generator(5, "x"))
    assert copied.shape == waveform.shape
    assert np.abs(copied).max() == pytest.approx(0.9)
    assert copied.mean() == pytest.approx(waveform.mean(), rel=0.05)
    correlation = np.corrcoef(copied, waveform)[0, 1]
    assert correlation < 0.9  # it is not the recording
    spectra_db = [10 * np.log10(mean_spectrum(x / x.std(), 0, 100)) for x in (copied, waveform)]
    below = slice(6, 105)  # up to 3.3 kHz
    assert np.abs(spectra_db[0] - spectra_db[1])[below].mean() < 1.5
    assert spectra_db[0][140:].max() < spectra_db[0][below].max() - 40


def test_a_band_that_a_vocoder_loses_is_filled():
    waveform = np.random.default_rng(0).standard_normal(RATE)
    dull = np.convolve(waveform, np.ones(8) / 8, "same")  # zeros at 2, 4, 6 and 8 kHz
    matched = channel.match_spectrum(dull, waveform, generator(5, "x"))
    wanted, power = (mean_spectrum(x, 0, 100) for x in (waveform, matched))
    assert np.abs(10 * np.log10(power / wanted)).max() < 3


@pytest.mark.parametrize(
    ("origin", "codec"), [("a.mp3", "mp3"), ("b.OGG", "vorbis"), ("c.wav", None)]
)
def test_a_copy_goes_through_the_codec_of_its_recording(origin, codec, monkeypatch):
    used = []

    def spy(waveform, name, **options):
        used.append(name)
        return waveform

    monkeypatch.setattr(channel, "transcode", spy)
    channel.recode(voice(4), origin, generator(5, "x"))
    assert used == ([] if codec is None else [codec])


def test_digital_silence_stays():
    recorded, copied = voice(1)[:1600], voice(2)[:1600]
    recorded[100:108] = recorded[300:307] = 0.25
    recorded[-50:] = 0
    kept = channel.keep_silence(copied, recorded)
    changed = np.flatnonzero(kept != copied)
    assert changed.tolist() == [*range(100, 108), *range(1550, 1600)]
    assert (kept[changed] == recorded[changed]).all()


def test_silence_has_no_copy():
    with pytest.raises(ValueError, match=r"must have a finite peak above 0; got 0\.0"):
        copies.copy(voice(1), lambda waveform, rng: 0 * waveform, "a.wav", generator(5, "x"))


def planned(rows, **options):
    jobs = copies.plan([(Path("here"), rows)], **options)
    return jobs, [job.row for job in jobs]


def test_every_source_of_humans_gets_copies_of_half_its_clips():
    alone = [row(f"a{k}", source="alone") for k in range(200)]
    mixed = [row(f"m{k}", source="mixed") for k in range(200)]
    mixed += [row("fake", source="mixed", label="spoof")]
    dev = [row(f"d{k}", source="dev", split="dev") for k in range(200)]
    other = [row("e", source="eval", split="eval")]
    jobs, rows = planned([*mixed, *dev, *alone, *other])
    of = {source: [r for r in rows if r.source == source] for source in ("alone", "mixed", "dev")}
    per_clip = np.unique([r.parent for r in of["alone"]], return_counts=True)[1]
    assert len(per_clip) == 200
    assert per_clip.max() == 2
    assert 30 < (per_clip == 2).sum() < 90
    assert 50 < len(of["mixed"]) < 110
    assert len(of["dev"]) == 12
    assert {r.generator for r in of["dev"]} <= set(vocoders.HELD_OUT)
    assert {r.generator for r in rows if r.split == "train"} == set(vocoders.COPIERS)
    assert {r.split for r in rows} == {"train", "dev"}
    assert all(r.label == "spoof" and r.speaker == "Ada" for r in rows)
    assert len({r.utterance for r in rows}) == len(rows)
    assert [r.source for r in rows[:200]] == ["alone"] * 200
    assert planned([*reversed(alone), *mixed, *dev])[0] == jobs
    assert planned(alone, seed=6)[1] != of["alone"]


def test_copies_go_on_after_an_interruption(tmp_path, monkeypatch, caplog):
    source = corpus(tmp_path / "human", [row(f"u{k}", source="alone") for k in range(6)])
    fakes = {
        "copy-a": vocoders.Copier(lambda weights: lambda x, rng: x[::-1], 1.0),
        "copy-b": vocoders.Copier(lambda weights: lambda x, rng: x / 0, 1.0),
    }
    monkeypatch.setattr(copies, "COPIERS", fakes)
    jobs = copies.plan([(source, table.read_table(source / table.TABLE))], copiers=fakes)
    assert {job.row.generator for job in jobs} == set(fakes)
    good = [job.row for job in jobs if job.row.generator == "copy-a"]
    with np.errstate(divide="ignore", invalid="ignore"):
        assert copies.make_copies(jobs, tmp_path / "out", tmp_path) == good
        first = digests(tmp_path / "out")
        (tmp_path / "out" / good[1].path).unlink()
        assert copies.make_copies(jobs, tmp_path / "out", tmp_path) == good
    assert digests(tmp_path / "out") == first
    assert "no copy: `waveform` must have a finite peak" in caplog.text
    failed = (tmp_path / "out" / "failed.tsv").read_text().splitlines()
    assert len(failed) == len(jobs) - len(good)
    assert table.read_table(tmp_path / "out" / table.TABLE) == good


def test_vocoders_without_packages_or_weights_are_left_out(tmp_path):
    train, dev, lacking = vocoders.available(tmp_path / "nowhere")
    assert "copy-griffin-lim" in train
    assert [*dev] == ["copy-phases"]
    assert "copy-hifigan-universal" in lacking
    assert set(train).isdisjoint(lacking)


def test_a_conversion_scales_the_frequencies_and_smooths_them(monkeypatch):
    bands = np.full((80, 60), np.log(1e-5))
    bands[20, 10:50] = 0.0  # one harmonic
    drawn = {"scale": 0.2, "error": 0.0}

    class Draws:
        uniform = staticmethod(lambda low, high: drawn["scale"] if low < 0 else drawn["error"])
        standard_normal = staticmethod(np.zeros)

    higher = vocoders.converted(bands, Draws())
    assert higher.shape == bands.shape
    assert higher[:, 30].argmax() == round(20 / np.exp(0.2))  # read at a place further up
    drawn["scale"] = 0.0
    np.testing.assert_allclose(vocoders.converted(bands, Draws()), bands)
    drawn["error"] = 1.0
    smooth = vocoders.converted(bands, Draws())
    assert np.log(1e-5) < smooth[20, 8] < 0
    assert smooth.min() >= np.log(1e-5)
    first, second = (vocoders.converted(bands, generator(5, name)) for name in "ab")
    assert not np.array_equal(first, second)


def test_conversions_are_for_train_alone(tmp_path, capsys):
    rows = [row("a", source="alone"), row("d", source="dev", split="dev")]
    options = {"shares": copies.CONVERTED, "copiers": vocoders.CONVERTERS}
    assert [r.parent for r in planned(rows, **options)[1]] == ["a"]
    human = str(corpus(tmp_path / "human", rows))
    nowhere = str(tmp_path / "nowhere")
    out = str(tmp_path / "out")
    with pytest.raises(SystemExit):
        run_step(["conversions", human, "--out", out, "--weights", nowhere])
    said = capsys.readouterr()
    assert "copy-converted-small needs" in said.out
    assert "no vocoder can be used" in said.err


def test_hifigan_has_the_published_shape():
    """13.9 million weights; a frame of 256 samples for each of the analysis."""
    model = vocoders.HiFiGAN().eval()
    n_weights = sum(weight.numel() for weight in model.parameters())
    assert n_weights == 13_926_017
    bands = vocoders.log_mel(voice(5, 0.5)[: 256 * 20])
    assert bands.shape == (80, 20)
    with torch.inference_mode():
        waveform = model(torch.from_numpy(bands).float()[None])
    assert waveform.shape == (1, 256 * 20)


def test_weight_normalisation_is_folded_in(tmp_path):
    model = vocoders.HiFiGAN()
    stored = {}
    for name, value in model.state_dict().items():
        if name.endswith("weight"):
            stored[f"{name}_g"] = value.flatten(1).norm(dim=1).view(-1, 1, 1)
            stored[f"{name}_v"] = 3 * value
        else:
            stored[name] = value
    torch.save({"generator": stored}, tmp_path / "generator.pt")
    loaded = vocoders._hifigan(tmp_path / "generator.pt").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded[name], value)


def fake_voice(name="joe", split="train", n_clips=14):
    def make(weights):
        def speak(texts, seed):
            return (voice(seed + k, 3.0) for k, _ in enumerate(texts))

        return speak

    return engines.Voice(
        name=name, generator="tts", language="en", make=make, n_clips=n_clips, split=split
    )


def test_new_voices_take_the_channel_and_the_source_of_a_human_clip(tmp_path):
    rows = [row(f"u{k}", source=f"s{k % 3}") for k in range(6)]
    rows += [row(f"d{k}", source="sd", split="dev") for k in range(2)]
    source = corpus(tmp_path / "human", rows)
    tables = [(source, rows)]
    chosen = [fake_voice(), fake_voice("sue", split="dev", n_clips=3)]
    parts = voices.plan_voices(tables, voices=chosen)
    assert [(part.name, len(part.rows)) for part in parts] == [
        ("joe-0", 10),
        ("sue-0", 3),
        ("joe-1", 4),
    ]
    made = voices.make_voices(parts, tmp_path / "out", tmp_path)
    assert len(made) == 17
    parents = {of.utterance: of for of in rows}
    for of in made:
        donor = parents[of.parent]
        assert (of.source, of.split) == (donor.source, donor.split)
        assert soundfile.info(tmp_path / "out" / of.path).frames <= 2 * RATE
    first = digests(tmp_path / "out")
    (tmp_path / "out" / made[12].path).unlink()
    assert voices.make_voices(parts, tmp_path / "out", tmp_path) == made
    assert digests(tmp_path / "out") == first


def test_a_voice_that_fails_is_left_out(tmp_path, caplog):
    source = corpus(tmp_path / "human", [row("u")])

    def broken(weights):
        raise FileNotFoundError("no weights")

    parts = voices.plan_voices(
        [(source, [row("u")])], voices=[replace(fake_voice(), make=broken), fake_voice("sue")]
    )
    made = voices.make_voices(parts, tmp_path / "out", tmp_path)
    assert {of.speaker for of in made} == {"tts:sue"}
    assert "joe-0 is left out: FileNotFoundError: no weights" in caplog.text


def test_the_catalogue_of_voices():
    names = [(v.generator, v.name) for v in engines.VOICES]
    assert len(set(names)) == len(names) == 60
    assert [v.name for v in engines.VOICES if v.split == "dev"] == ["joe", "bm_lewis"]
    sentences = voices.read_sentences()
    assert {v.language for v in engines.VOICES} == set(sentences)
    assert len(sentences["en"]) > 90
    assert sum(map(len, sentences.values())) == len({t for s in sentences.values() for t in s})


def test_fingerprints_know_a_recording_by_level_codec_and_cut():
    first = {f"u{k}": fingerprints.fingerprint(voice(k)) for k in range(30)}
    second = {}
    for k in range(0, 30, 3):
        waveform = torch.from_numpy(0.2 * voice(k)[501 + 40 * k :])
        codec, narrowband = [("mp3", False), ("mu-law", True)][k % 2]
        coded = transcode(waveform, codec, narrowband=narrowband).numpy()
        second[f"v{k}"] = fingerprints.fingerprint(coded)
    second["other"] = fingerprints.fingerprint(voice(99))
    found = fingerprints.shared_recordings(first, second)
    assert {(m.first, m.second) for m in found} == {(f"u{k}", f"v{k}") for k in range(0, 30, 3)}
    assert max(match.error for match in found) < 0.3
    assert fingerprints.shared_recordings(first, {}) == []


def test_a_source_that_gives_the_label_away():
    words = ["bonafide", "spoof"]
    balanced = [row(f"{k}", source="ab"[k // 2 % 2], label=words[k % 2]) for k in range(400)]
    one_class = [row(f"x{k}", source="cd"[k % 2], label=words[k % 2]) for k in range(400)]
    assert report.source_floor(balanced) == pytest.approx(0.5, abs=0.05)
    assert report.source_floor(one_class) == 0.0
    assert report.source_floor([*balanced, *one_class]) == pytest.approx(0.25, abs=0.05)


def test_report(tmp_path):
    rows = [row(f"u{k}", source=f"s{k % 2}") for k in range(8)]
    rows += [row(f"f{k}", source="s0", label="spoof") for k in range(6)]
    rows += [
        row(f"d{k}", source="sd", split="dev", label=["bonafide", "spoof"][k % 2]) for k in range(4)
    ]
    source = corpus(tmp_path, rows)
    write_wav(source / rows[-1].path, 0.3 * voice(2)[1000:])  # a recording of train
    made = report.make_report([(source, rows)], problems={"the blob is missing": 3})
    assert made.counts["train"]["human clips"] == 8
    assert made.counts["train"]["sources with both classes"] == 1
    assert [(match.first, match.second) for match in made.shared] == [("d3", "u2")]
    text = str(made)
    assert "1 recordings are in two splits" in text
    assert "| the blob is missing | 3 |" in text
    assert "EER of the source alone" in text


def test_a_folder_of_ones_own_becomes_train_and_dev(tmp_path):
    for speaker in range(12):
        for k in range(2):
            write_wav(
                tmp_path / "calls" / f"speaker{speaker}" / f"{k}.wav", voice(20 * speaker + k)
            )
    write_wav(tmp_path / "calls" / "short.wav", voice(1, 0.3))
    rows, problems = folder.add_folder(tmp_path / "calls", tmp_path / "mine")
    assert len(rows) == 24
    assert problems == {"short.wav": "too short"}
    assert {of.source for of in rows} == {"calls"}
    splits = {}
    for of in rows:
        splits.setdefault(of.speaker, set()).add(of.split)
    assert all(len(found) == 1 for found in splits.values())
    assert {split for found in splits.values() for split in found} == {"train", "dev"}
    with pytest.raises(FileNotFoundError, match="`folder` must hold recordings"):
        folder.add_folder(tmp_path / "nothing", tmp_path / "mine")


def spoken(seed, duration_s):
    """Pulses at the pitch of a voice, in three syllables a second."""
    n_samples = int(duration_s * RATE)
    pulses = np.zeros(n_samples)
    pulses[:: RATE // (110 + 10 * seed)] = 1.0
    syllables = np.maximum(np.sin(2 * np.pi * 3 * np.arange(n_samples) / RATE), 0)
    ringing = np.exp(-np.arange(200) / 30) * np.sin(2 * np.pi * 700 * np.arange(200) / RATE)
    noise = 1e-3 * np.random.default_rng(seed).standard_normal(n_samples)
    return 0.5 * np.convolve(pulses * syllables, ringing)[:n_samples] + noise


def as_bytes(waveform, **options):
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform, options.pop("rate", RATE), **options)
    return buffer.getvalue()


def as_tar(files, mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tarred:
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tarred.addfile(about, io.BytesIO(data))
    return buffer.getvalue()


def as_deb(files):
    archive = b"!<arch>\n"
    parts = {"debian-binary": b"2.0\n", "data.tar.xz": lzma.compress(as_tar(files, "w"))}
    for name, data in parts.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n"
        archive += header.encode() + data + b"\n" * (len(data) % 2)
    return archive


def recordings(registry, package, file, pattern, speaker):
    about = dict.fromkeys(("language", "kind", "licence", "evidence"), "-")
    names = {"registry": registry, "package": package, "source": f"{registry}/{package}"}
    return packages.Recordings(**names, file=file, pattern=pattern, speaker=speaker, **about)


def test_packages_become_clips_without_being_installed(tmp_path):
    pytest.importorskip("pyworld")
    telephone = {"format": "RAW", "subtype": "ALAW", "rate": 8000}
    prompts = {f"./sounds/{k}.alaw": as_bytes(spoken(k, 0.9)[::2], **telephone) for k in range(6)}
    prompts["./sounds/beep.alaw"] = as_bytes(np.sin(np.arange(20_000)), **telephone)
    prompts["./sounds/silence.alaw"] = as_bytes(np.zeros(8000), **telephone)
    game = io.BytesIO()
    with zipfile.ZipFile(game, "w") as zipped:
        for role in ("hero", "king"):
            zipped.writestr(f"{role}/1.wav", as_bytes(spoken(7, 20.0), format="WAV"))
            zipped.writestr(f"{role}/2.wav", as_bytes(spoken(7, 20.0), format="WAV"))
        zipped.writestr("hero/sword.txt", "clang")
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / "prompts_1.0-1_all.deb").write_bytes(as_deb(prompts))
    (downloads / "game-2.0.tgz").write_bytes(as_tar({"package/a.pk3": game.getvalue()}, "w:gz"))
    lines = [
        recordings("debian", "prompts", "pool/p/prompts_1.0-1_all.deb", r"\.alaw$", "Ada"),
        recordings("npm", "@studio/game", "2.0", r"(hero|king)/\d\.wav$", "cast"),
    ]
    rows, problems = packages.add_packages(lines, tmp_path / "out", downloads)
    made = digests(tmp_path / "out")
    assert {of.source for of in rows} == {"debian/prompts", "npm/@studio/game"}
    assert {of.speaker for of in rows} == {"Ada", "cast:hero"}  # the king is the hero again
    assert {(of.split, of.label, of.generator) for of in rows} == {("train", "bonafide", "-")}
    assert "debian:prompts_1.0-1:sounds/2.alaw" in {of.origin for of in rows}
    durations = [soundfile.info(tmp_path / "out" / of.path).duration for of in rows]
    assert len(rows) == len(made) == 5  # three prompts to a clip, three clips to a speech
    assert all(2.0 < duration_s < 8.0 for duration_s in durations)
    assert problems == {
        "debian:prompts_1.0-1:sounds/beep.alaw": "does not sound like speech",
        "debian:prompts_1.0-1:sounds/silence.alaw": "silent",
    }
    (downloads / "prompts_1.0-1_all.deb").unlink()
    again, _ = packages.add_packages(lines, tmp_path / "out", downloads)
    assert again == rows
    assert digests(tmp_path / "out") == made


def test_a_package_that_is_gone_costs_its_clips(tmp_path, monkeypatch):
    asked = []

    def gone(url):
        asked.append(url)
        raise FileNotFoundError(url)

    monkeypatch.setattr(packages, "_get", gone)
    lines = [
        recordings("debian", "prompts", "pool/p/prompts_1.0+b1_all.deb", r"\.wav$", "Ada"),
        recordings("pypi", "speech", "speech-1.0.tar.gz", r"\.wav$", "Bob"),
        recordings("npm", "@studio/game", "2.0", r"\.wav$", "Eve"),
    ]
    rows, problems = packages.add_packages(lines, tmp_path / "out", tmp_path)
    assert rows == []
    assert len(problems) == 3
    assert asked == [
        "https://deb.debian.org/debian/pool/p/prompts_1.0%2Bb1_all.deb",
        "https://pypi.org/simple/speech/",
        "https://registry.npmjs.org/@studio/game/-/game-2.0.tgz",
    ]


def test_the_list_of_packages():
    lines = packages.read_packages()
    assert {line.registry for line in lines} == {"debian", "npm", "pypi"}
    assert all(line.evidence and line.licence and line.speaker for line in lines)
    assert all(line.source.startswith(f"{line.registry}/{line.package}") for line in lines)


def test_steps_on_the_command_line(tmp_path, repositories, capsys):
    index, repos = repositories
    pages, copied = str(tmp_path / "data/pages"), str(tmp_path / "data/copies")
    gathering = ["gather", "--repos", str(repos), "--index", str(index), "--out", pages]
    assert run_step(gathering) == 0
    assert "6 of 10 clips" in capsys.readouterr().out
    assert run_step(["copies", pages, "--out", copied, "--weights", str(tmp_path)]) == 0
    assert "left out: copy-hifigan-universal needs" in capsys.readouterr().out
    assert run_step(["join", pages, "--root", str(tmp_path / "data")]) == 0
    protocol = read_protocol(tmp_path / "data" / "train.tsv")
    assert protocol.file[0].startswith("pages/audio/")
    assert set(protocol.source) == {"ada/page", "bob/talk"}
    assert run_step(["report", pages, "--out", str(tmp_path / "report.md")]) == 0
    assert "sources with both classes" in (tmp_path / "report.md").read_text()
    with pytest.raises(SystemExit):
        run_step(["join", pages, "--root", str(tmp_path / "elsewhere")])
    assert "must lie below" in capsys.readouterr().err


def test_a_corpus_in_the_layout_of_asvspoof5(tmp_path, capsys):
    lines = [
        "T_1 T_0001 F - - - - bonafide bonafide -",
        "T_1 T_0002 F - - - AC1 A01 spoof -",
        "T_2 T_0003 - - - - AC1 A02 spoof -",
    ]
    path = tmp_path / "mini" / "ASVspoof5.train.tsv"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    assert run_step(["layout", str(path.parent), "--by-speaker"]) == 0
    assert "3 clips, 2 sources" in capsys.readouterr().out
    rows = table.read_table(path.parent / table.TABLE)
    assert [of.source for of in rows] == ["mini/T_1", "mini/T_1", "mini"]
    assert rows[1].path == "flac_T/T_0002.flac"
    assert (rows[0].generator, rows[1].generator) == ("-", "A01")
    with pytest.raises(FileNotFoundError, match=r"`corpus` must hold ASVspoof5\.train\.tsv"):
        table.add_layout(tmp_path)


def test_a_layout_takes_generators_and_sources_from_its_metadata(tmp_path):
    lines = [
        "T_1 T_0001 F - - - - bonafide bonafide -",
        "T_2 T_0002 F - - - - bonafide bonafide -",
        "T_3 T_0003 F - - - AC1 A01 spoof -",
        "T_4 T_0004 - - - - AC1 A02 spoof -",
        "T_5 T_0005 - - - - AC1 A02 spoof -",
    ]
    known = [
        ("T_0001", "-", "reader-1", "owner/speech:a.wav"),
        ("T_0002", "-", "prompts", "some package"),
        ("T_0003", "copy-world", "reader-1", "owner/speech:a.wav"),
        ("T_0004", "tacotron", "page-1", "owner/page:b.wav"),
        ("T_0005", "tts", "prompts", "some package"),
    ]
    (tmp_path / "ASVspoof5.train.tsv").write_text("\n".join(lines) + "\n")
    header = "utterance\tgenerator\tsource_speaker\torigin"
    rows = [header, *("\t".join(of) for of in known)]
    (tmp_path / "metadata.tsv").write_text("\n".join(rows) + "\n")
    found = table.add_layout(tmp_path, source="mini", by_speaker=True)
    assert [of.generator for of in found] == ["-", "-", "copy-world", "tacotron", "tts"]
    assert [of.source for of in found] == [
        "owner/speech",
        "mini/prompts",
        "owner/speech",
        "owner/page/page-1",
        "mini/prompts",
    ]
    assert [of.origin for of in found] == [origin for *_, origin in known]
    assert {of.source for of in table.add_layout(tmp_path, source="mini")} == {"mini"}


def test_a_copy_counts_to_the_source_of_its_parent(tmp_path):
    for name, rows in {
        "a": [row("u", source="new")],
        "b": [row("v", source="old", parent="u")],
    }.items():
        (tmp_path / name).mkdir()
        table.write_table(tmp_path / name / table.TABLE, rows)
    joined = table.join(tmp_path, [tmp_path / "a", tmp_path / "b"])["train"]
    assert [of.source for of in joined] == ["new", "new"]


def test_tables_say_what_they_miss(tmp_path):
    (tmp_path / "corpus.tsv").write_text("utterance\tlabel\na\tspoof\n")
    with pytest.raises(ValueError, match="must have a column path"):
        table.read_table(tmp_path / "corpus.tsv")
    for name in "ab":
        (tmp_path / name).mkdir()
        table.write_table(tmp_path / name / table.TABLE, [row("same")])
    with pytest.raises(ValueError, match="an utterance must stand once; got 'same'"):
        table.join(tmp_path, [tmp_path / "a", tmp_path / "b"])


def speaker(name="joe", engine="talker", **more):
    return debian.Speaker(voice=name, engine=engine, languages=("en",), n_clips=6, **more)


@pytest.fixture
def talker(monkeypatch):
    def speak(of, language, text, rng, path):
        write_wav(path, spoken(int(rng.integers(9)), 2.5), 16_000)

    engines = {"talker": debian.Engine("python3", speak), "gone": debian.Engine("no-such", speak)}
    monkeypatch.setattr(debian, "ENGINES", engines)


def test_voices_of_debian_are_dry_until_there_are_human_clips(tmp_path, talker):
    pytest.importorskip("soxr")
    source = corpus(tmp_path / "human", [row("u"), row("d", source="other", split="dev")])
    crew = [speaker(), speaker("eve", split="dev"), speaker("gone", "gone")]
    dry = debian.make_debian([], tmp_path / "out", speakers=crew)
    assert 0 < len(dry) < 12
    assert {(of.source, of.parent) for of in dry} == {("debian/talker", "-")}
    tables = [(source, table.read_table(source / table.TABLE))]
    made = debian.make_debian(tables, tmp_path / "out", speakers=crew)
    assert len(made) == 12
    assert {(of.split, of.source, of.parent) for of in made if of.parent != "-"} == {
        ("train", "page", "u"),
        ("dev", "other", "d"),
    }
    assert {of.generator for of in made} == {"talker:joe", "talker:eve"}
    assert debian.make_debian([], tmp_path / "out", speakers=crew) == made
    assert soundfile.info(tmp_path / "out" / made[0].path).samplerate == RATE


def test_the_catalogue_of_debian():
    splits = {}
    speakers = debian.read_speakers()
    assert {of.engine for of in speakers} == set(debian.ENGINES)
    for of in speakers:
        splits.setdefault(of.split, set()).add(of.generator)
    assert not splits["train"] & splits["dev"]
    dev_engines = {name.split(":")[0] for name in splits["dev"]}
    assert dev_engines == {"espeak-ng", "festival", "pico", "rhvoice"}
    assert {"pico", "rhvoice"}.isdisjoint(name.split(":")[0] for name in splits["train"])
    sentences = {**voices.read_sentences(), **voices.read_sentences(debian._WORLD)}
    assert {language for of in speakers for language in of.languages} <= set(sentences)


def test_what_was_made_of_a_recording_gets_its_channel(tmp_path):
    rows = [row(f"u{k}", source=f"s{k % 5}") for k in range(40)]
    rows += [row(f"c{k}", source=f"s{k % 5}", label="spoof", parent=f"u{k}") for k in range(40)]
    rows += [row("d", split="dev")]
    jobs = coded.plan_coded([(tmp_path / "page", rows)], tmp_path / "out")
    made = {job.row.original: job.row for job in jobs}
    assert len(made) == 80
    for k in range(40):
        human, copy = made[f"u{k}"], made[f"c{k}"]
        assert human.channel == copy.channel
        assert copy.parent == human.utterance
        assert copy.source == human.source == f"s{k % 5}@{human.channel}"
    per_source = [{made[f"u{k}"].channel for k in range(s, 40, 5)} for s in range(5)]
    assert max(map(len, per_source)) == 3
    assert {job.row.channel for job in jobs} <= set(TRAINED)
    again = coded.plan_coded([(tmp_path / "page", rows)], tmp_path / "out", seed=6)
    assert {job.row.utterance for job in jobs}.isdisjoint(job.row.utterance for job in again)


def test_coded_corpora_of_dev(tmp_path):
    rows = [row(f"u{k}", split="dev", label=["bonafide", "spoof"][k % 2]) for k in range(8)]
    source = corpus(tmp_path / "page", [*rows, row("t")])
    arguments = ["channels", str(source), "--dev", "--most", "2", "--out", str(tmp_path / "out")]
    assert run_step([*arguments, "--only", "white20", "room05"]) == 0
    before = digests(tmp_path / "out")
    found = table.read_table(tmp_path / "out/white20" / table.TABLE)
    assert len(found) == 4
    assert {of.source for of in found} == {"page"}
    header = (tmp_path / "out/room05" / table.TABLE).read_text().splitlines()[0]
    assert header.endswith("channel\tcorpus\toriginal")
    assert run_step([*arguments, "--only", "white20", "room05"]) == 0
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize(("name", "db"), [("white20", 20), ("white10", 10), ("street5", 5)])
def test_noise_at_a_ratio(name, db):
    clip = 0.3 * voice(1)
    (noisy,) = through([clip], name)
    clip = clip * (noisy @ clip / (clip @ clip))
    ratio = 10 * np.log10(np.square(clip).sum() / np.square(noisy - clip).sum())
    assert ratio == pytest.approx(db, abs=1.5)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
@pytest.mark.parametrize("name", ["g711u", "g722", "g726_32", "mp3_32", "aac_32", "g711a_band"])
def test_coded_clips_stay_in_step(name):
    clips_in = [0.6 * voice(k, 1.0 + k / 3) for k in range(4)]
    out = through(clips_in, name)
    assert [len(of) for of in out] == [len(of) for of in clips_in]
    for before, after in zip(clips_in, out, strict=True):
        lags = np.arange(-40, 41)
        likeness = [np.dot(before[100:-100], np.roll(after, -lag)[100:-100]) for lag in lags]
        assert abs(lags[int(np.argmax(likeness))]) <= 12


def test_the_list_of_channels():
    assert set(DEV) <= set(CHANNELS)
    assert set(HELD_OUT) <= set(DEV)
    assert set(TRAINED).isdisjoint(HELD_OUT)
    for name in TRAINED:
        assert set(HELD_OUT).isdisjoint(name.split("+"))


def test_what_is_no_speech(tmp_path):
    pytest.importorskip("soxr")
    human = [row(f"u{k}", split=split) for split in ("train", "dev") for k in range(2)]
    files = {f"./usr/share/a/{k}.wav": as_bytes(voice(k, 0.3 + k), format="WAV") for k in range(4)}
    (tmp_path / "debs").mkdir()
    (tmp_path / "debs/noises_1_all.deb").write_bytes(as_deb(files))
    line = nospeech.Sounds(
        package="noises",
        file="pool/noises_1_all.deb",
        pattern=r"\.wav$",
        kind="things",
        split="dev",
    )
    made = nospeech.make_nospeech(
        [(tmp_path, human)], tmp_path / "out", tmp_path / "debs", sounds=[line]
    )
    assert {of.label for of in made} == {"nospeech"}
    assert {of.speaker for of in made if of.source == "debian/noises"} == {"things"}
    sources = {of.source: of.split for of in made}
    assert sources["synthesis/siren"] == "dev"
    assert sources["synthesis/tone"] == sources["mixture"] == "train"
    assert len({of.utterance for of in made}) == len(made)
    durations = [soundfile.info(tmp_path / "out" / of.path).duration for of in made]
    assert 0.9 < min(durations) <= max(durations) < 7.5
    before = digests(tmp_path / "out")
    nospeech.make_nospeech([], tmp_path / "out", tmp_path / "debs", sounds=[line])
    assert digests(tmp_path / "out") == before


def test_the_list_of_sounds():
    lines = nospeech.read_sounds()
    assert len({line.package for line in lines}) == len(lines)
    assert {line.split for line in lines} == {"train", "dev"}
    assert set(nospeech.SYNTHESES["train"]).isdisjoint(nospeech.SYNTHESES["dev"])
