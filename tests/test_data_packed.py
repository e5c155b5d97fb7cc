"""The packed cache: exact, and whole after an interruption."""

import json
import multiprocessing
import os
import pickle
import signal

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import load_audio
from asvspoof_cm.data import (
    AudioFolder,
    Protocol,
    SpoofDataset,
    make_loader,
    pack,
    packed as packed_module,
)
from asvspoof_cm.data.packed import PackedAudio

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

N_ITEMS = 20
SHARD_SAMPLES = 4000
NAMES = [f"u{k}" for k in range(N_ITEMS)]


@pytest.fixture(scope="module")
def audio_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(11)
    for k, name in enumerate(NAMES):
        soundfile.write(folder / f"{name}.flac", rng.uniform(-1, 1, 500 + 37 * k), 16000)
    return folder


@pytest.fixture(scope="module")
def protocol():
    return Protocol.from_columns(NAMES, [k % 2 for k in range(N_ITEMS)])


def run(protocol, audio_dir, out):
    return pack(protocol, audio_dir, out, shard_samples=SHARD_SAMPLES, n_threads=1)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_sixteen_bits_are_kept_exactly(protocol, audio_dir, tmp_path):
    packed = run(protocol, audio_dir, tmp_path)
    assert (len(packed), packed.errors, packed.sample_rate) == (N_ITEMS, {}, 16000)
    assert len(list(tmp_path.glob("shard-*.i16"))) > 2
    for index, name in enumerate(NAMES):
        whole = load_audio(audio_dir / f"{name}.flac")
        with packed.open(index) as utterance:
            assert utterance.n_samples == len(whole)
            assert torch.equal(torch.as_tensor(utterance.read()), whole)
            assert torch.equal(torch.as_tensor(utterance.read(100, 50)), whole[100:150])
            assert torch.equal(torch.as_tensor(utterance.read(400, 10**6)), whole[400:])


@pytest.mark.parametrize("crop", ["center", "random"])
def test_dataset_reads_a_pack_as_it_reads_files(protocol, audio_dir, tmp_path, crop):
    run(protocol, audio_dir, tmp_path)
    files = SpoofDataset(protocol, audio_dir, crop=crop, n_samples=700)
    packed = SpoofDataset(protocol, tmp_path, crop=crop, n_samples=700)
    assert isinstance(packed.audio, PackedAudio)
    for index in range(N_ITEMS):
        assert torch.equal(files[index].waveform, packed[index].waveform)


def test_part_of_a_pack_in_another_order(protocol, audio_dir, tmp_path):
    run(protocol, audio_dir, tmp_path)
    part = protocol.select([7, 2, 19])
    dataset = SpoofDataset(part, tmp_path, n_samples=700)
    files = SpoofDataset(part, audio_dir, n_samples=700)
    for index in range(3):
        assert torch.equal(files[index].waveform, dataset[index].waveform)


def test_workers_read_a_pack(protocol, audio_dir, tmp_path):
    run(protocol, audio_dir, tmp_path)
    dataset = SpoofDataset(protocol, tmp_path, crop="random", n_samples=700)
    _ = dataset[0]
    alone = list(make_loader(dataset, shuffle=True, batch_size=8, n_workers=0))
    shared = list(make_loader(dataset, shuffle=True, batch_size=8, n_workers=2))
    assert all(torch.equal(a.waveform, b.waveform) for a, b in zip(alone, shared, strict=True))


def test_pickling_leaves_the_samples_on_disk(protocol, audio_dir, tmp_path):
    packed = run(protocol, audio_dir, tmp_path)
    with packed.open(3) as utterance:
        expected = torch.as_tensor(utterance.read())
    content = pickle.dumps(packed)
    assert len(content) < 10_000
    with pickle.loads(content).open(3) as utterance:
        assert torch.equal(torch.as_tensor(utterance.read()), expected)


def test_other_audio_is_rounded_and_limited(tmp_path):
    loud = np.array([0.5, 1.5, -1.5, 0.3 / 32768, 0.7 / 32768, -1.0])
    soundfile.write(tmp_path / "a.wav", loud, 16000, subtype="FLOAT")
    rng = np.random.default_rng(1)
    soundfile.write(tmp_path / "b.wav", 0.5 * rng.uniform(-1, 1, 8000), 8000, subtype="PCM_24")
    packed = pack(Protocol.from_columns(["a.wav", "b.wav"]), tmp_path, tmp_path / "out")
    with packed.open(0) as utterance:
        samples = utterance.read() * 32768
        assert samples.tolist() == [
            16384,
            32767,
            -32768,
            0,
            1,
            -32768,
        ]
    with packed.open(1) as utterance:
        assert utterance.n_samples == 16000
        error = (torch.as_tensor(utterance.read()) - load_audio(tmp_path / "b.wav")).abs().max()
    assert error <= 0.5 / 32768 + 1e-7


def test_sample_rate_of_the_pack(protocol, audio_dir, tmp_path):
    packed = pack(protocol, audio_dir, tmp_path, sample_rate=8000)
    with packed.open(0) as utterance:
        assert utterance.n_samples == 250
    with pytest.raises(ValueError, match=r"must be that of the pack .*, 8000; got 16000"):
        SpoofDataset(protocol, tmp_path)


# Interruptions and damage


def _pack_and_die(protocol, audio_dir, out, n_files):
    n_opened = 0
    original = AudioFolder.open

    def open_or_die(self, index):
        nonlocal n_opened
        n_opened += 1
        if n_opened > n_files:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, index)

    AudioFolder.open = open_or_die
    run(protocol, audio_dir, out)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL and fork")
@pytest.mark.parametrize("n_files", [2, 9, 17])
def test_a_killed_pack_goes_on_where_it_was(protocol, audio_dir, tmp_path, n_files):
    run(protocol, audio_dir, tmp_path / "expected")
    out = tmp_path / "out"
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_pack_and_die, args=(protocol, audio_dir, out, n_files))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if n_files > 4:
        with pytest.raises(ValueError, match=r"is packed only in part\. Run pack again"):
            SpoofDataset(protocol, out)
    kept = {path: path.stat().st_ino for path in out.glob("shard-*")}
    assert bool(kept) == (n_files > 4)
    run(protocol, audio_dir, out)
    assert contents(out) == contents(tmp_path / "expected")
    assert all(path.stat().st_ino == number for path, number in kept.items())


def test_a_shard_that_became_shorter_is_an_error_not_a_crash(protocol, audio_dir, tmp_path):
    run(protocol, audio_dir, tmp_path)
    os.truncate(tmp_path / "shard-00000.i16", 100)
    dataset = SpoofDataset(protocol, tmp_path)
    with pytest.raises(ValueError, match=r"shard-00000\.i16 is damaged: its size has changed"):
        dataset[0]


def test_what_cannot_be_decoded_is_recorded(protocol, audio_dir, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for path in audio_dir.iterdir():
        (files / path.name).symlink_to(path)
    (files / "u3.flac").unlink()
    (files / "u3.flac").write_bytes(b"fLaC, but no more")
    (files / "u8.flac").unlink()
    out = tmp_path / "out"
    packed = run(protocol, files, out)
    assert sorted(packed.errors) == ["u3", "u8"]
    assert "u3.flac is not an audio file" in packed.errors["u3"]
    dataset = SpoofDataset(protocol, out, n_samples=700)
    with pytest.raises(
        ValueError, match=r"u3 could not be packed: .*u3\.flac is not an audio file"
    ):
        dataset[3]
    reference = SpoofDataset(protocol, audio_dir, n_samples=700)
    assert torch.equal(dataset[4].waveform, reference[4].waveform)
    skipping = make_loader(
        SpoofDataset(protocol, out, n_samples=700, on_error="skip"), shuffle=False, n_workers=0
    )
    assert len(next(iter(skipping)).index) == N_ITEMS - 2


def test_threads_do_not_change_the_samples(protocol, audio_dir, tmp_path):
    one = pack(protocol, audio_dir, tmp_path / "one", n_threads=1)
    four = pack(protocol, audio_dir, tmp_path / "four", n_threads=4)
    assert len(one) == len(four)
    assert contents(tmp_path / "one") == contents(tmp_path / "four")


def test_a_folder_holds_one_pack(protocol, audio_dir, tmp_path):
    run(protocol, audio_dir, tmp_path)
    before = contents(tmp_path)
    for other in (protocol.select(slice(3, None)), protocol.select(slice(5))):
        with pytest.raises(ValueError, match="holds the pack of other utterances"):
            run(other, audio_dir, tmp_path)
    n_first = len(json.loads((tmp_path / "shard-00000.json").read_text())["utterances"])
    with pytest.raises(ValueError, match="holds the pack of other utterances"):
        run(protocol.select(slice(n_first)), audio_dir, tmp_path)
    with pytest.raises(ValueError, match="or of another rate"):
        pack(protocol, audio_dir, tmp_path, sample_rate=8000)
    assert contents(tmp_path) == before


def test_utterances_that_are_not_in_the_pack(protocol, audio_dir, tmp_path):
    run(protocol.select(slice(5)), audio_dir, tmp_path)
    with pytest.raises(ValueError, match=r"15 of 20 utterances .* not in the pack .*such as 'u5'"):
        SpoofDataset(protocol, tmp_path)


def test_a_pack_of_another_format(protocol, audio_dir, tmp_path):
    run(protocol, audio_dir, tmp_path)
    index = tmp_path / packed_module.INDEX_NAME
    index.write_text(json.dumps({**json.loads(index.read_text()), "format": 99}))
    with pytest.raises(ValueError, match="has format 99 of the packed cache; this version reads 1"):
        PackedAudio(tmp_path)
    index.write_text(json.dumps({"format": 1, "sample_rate": 16000, "n_shards": 50}))
    with pytest.raises(FileNotFoundError, match="lacks the record of shard"):
        PackedAudio(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "packed.json",
            "{",
            r"packed\.json is damaged: Expecting .* Delete its folder and pack again",
        ),
        ("packed.json", "[]", r"packed\.json is damaged: it lacks format, sample_rate, n_shards"),
        ("shard-00000.json", "", r"shard-00000\.json is damaged: Expecting value"),
        ("shard-00000.json", "{}", r"shard-00000\.json is damaged: it lacks sample_rate, utter"),
    ],
)
def test_damaged_records_are_named(protocol, audio_dir, tmp_path, name, content, message):
    run(protocol, audio_dir, tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        PackedAudio(tmp_path)


@pytest.mark.parametrize("argument", ["sample_rate", "n_threads", "shard_samples"])
@pytest.mark.parametrize("value", [0, -1])
def test_pack_needs_positive_numbers(protocol, audio_dir, tmp_path, argument, value):
    with pytest.raises(ValueError, match=f"`{argument}` must be at least 1; got {value}"):
        pack(protocol, audio_dir, tmp_path / "out", **{argument: value})
    assert not (tmp_path / "out").exists()
