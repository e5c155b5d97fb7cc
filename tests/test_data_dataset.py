"""Items of the dataset: what is read, from where, and what is random in it."""

import pickle

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import AudioFile, InputSettings, fix_length, load_audio, peak_normalize
from asvspoof_cm.data import (
    AudioFolder,
    Protocol,
    SpoofDataset,
    read_protocol,
    write_miniature,
)
from asvspoof_cm.data.dataset import Failure
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.utils.seeds import derive_seed

NAMES = ["short", "exact", "long"]
N_SAMPLES = 1000


@pytest.fixture(scope="module")
def audio_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(7)
    for name, length in zip(NAMES, (300, N_SAMPLES, 5000), strict=True):
        soundfile.write(folder / f"{name}.flac", 0.3 * rng.uniform(-1, 1, length), 16000)
    return folder


@pytest.fixture(scope="module")
def protocol():
    return Protocol.from_columns(NAMES, [SPOOF, BONAFIDE, SPOOF])


def make(protocol, audio_dir, **options):
    return SpoofDataset(protocol, audio_dir, n_samples=N_SAMPLES, **options)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("crop", ["center", "random"])
def test_item_is_the_crop_of_the_whole_file(protocol, audio_dir, index, crop):
    dataset = make(protocol, audio_dir, crop=crop, seed=5)
    dataset.set_epoch(3)
    waveform, label, item_index = dataset[index]
    generator = torch.Generator().manual_seed(derive_seed(5, 3, index))
    whole = load_audio(audio_dir / f"{NAMES[index]}.flac")
    expected = peak_normalize(fix_length(whole, N_SAMPLES, crop=crop, generator=generator))
    assert torch.equal(waveform, expected)
    assert (label, item_index) == (int(protocol.label[index]), index)


def test_only_the_crop_is_read(protocol, audio_dir, monkeypatch):
    read = []
    original = AudioFile._read_frames
    monkeypatch.setattr(
        AudioFile,
        "_read_frames",
        lambda self, first, last: read.append((first, last)) or original(self, first, last),
    )
    _ = make(protocol, audio_dir)[2]
    assert read == [(2000, 3000)]


def test_the_level_is_that_of_the_crop_of_the_utterance_or_as_it_was(protocol, audio_dir):
    crop, utterance, raw = (
        make(protocol, audio_dir, input=InputSettings(normalization=normalization))[2].waveform
        for normalization in ("crop", "utterance", "none")
    )
    peak = load_audio(audio_dir / f"{NAMES[2]}.flac").abs().max()
    assert crop.abs().max() == 1
    torch.testing.assert_close(utterance, raw / peak)
    raw = make(protocol, audio_dir, input=InputSettings(normalization="none"))[1].waveform
    assert torch.equal(raw, load_audio(audio_dir / "exact.flac"))
    assert make(protocol, audio_dir)[1].waveform.abs().max() == 1


def test_epochs_differ_and_repeat(protocol, audio_dir):
    dataset = make(protocol, audio_dir, crop="random")
    first = dataset[2].waveform
    assert torch.equal(dataset[2].waveform, first)
    dataset.set_epoch(1)
    assert dataset.epoch == 1
    assert not torch.equal(dataset[2].waveform, first)
    dataset.set_epoch(0)
    assert torch.equal(dataset[2].waveform, first)
    assert not torch.equal(make(protocol, audio_dir, crop="random", seed=1)[2].waveform, first)


def test_global_generators_are_left_alone(protocol, audio_dir):
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    _ = make(protocol, audio_dir, crop="random")[2]
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state())  # noqa: NPY002


def test_augment_gets_the_normalised_crop_and_a_generator(protocol, audio_dir):
    seen = []

    def augment(waveform, *, generator):
        seen.append(waveform)
        return waveform + torch.rand(waveform.shape, generator=generator)

    plain = make(protocol, audio_dir)[2].waveform
    dataset = make(protocol, audio_dir, augment=augment)
    first = dataset[2].waveform
    assert torch.equal(seen[0], plain)
    assert not torch.equal(first, plain)
    assert torch.equal(first, dataset[2].waveform)
    dataset.set_epoch(1)
    assert not torch.equal(first, dataset[2].waveform)


def test_seeds_depend_on_every_number():
    keys = [(), (0,), (0, 0), (1, 0), (0, 1), (0, 0, 0)]
    seeds = {derive_seed(seed, *key) for seed in (0, 1) for key in keys}
    assert len(seeds) == 2 * len(keys)


@pytest.mark.parametrize(
    "name",
    [
        "../long",
        "/etc/passwd",
        "a/../../long",
        "..",
        "C:\\x",
        "C:x",
        "\\\\host\\share\\x",
        "a\\..\\..\\x",
    ],
)
def test_names_never_leave_the_folder(audio_dir, name):
    with pytest.raises(ValueError, match="must stay below `audio_dir`; got") as error:
        make(Protocol.from_columns(["long", name]), audio_dir)
    assert repr(name) in str(error.value)


def test_names_below_the_folder_and_links_are_read(audio_dir, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x..y.flac").symlink_to(audio_dir / "long.flac")
    dataset = make(Protocol.from_columns(["sub/x..y"]), tmp_path)
    assert dataset[0].waveform.shape == (N_SAMPLES,)


def test_extension_is_added_where_there_is_none(audio_dir):
    folder = AudioFolder(Protocol.from_columns(["long", "x.WAV", "a.b", "y.flac"]), audio_dir)
    names = [folder.path(k).name for k in range(4)]
    assert names == ["long.flac", "x.WAV", "a.b.flac", "y.flac"]
    assert folder.missing() == [1, 2, 3]


def test_official_folders_are_found_below_the_root(tmp_path):
    paths = write_miniature(tmp_path, n_train=2, n_dev=2)
    for protocol, folder in ((paths.train_protocol, "flac_T"), (paths.dev_protocol, "flac_D")):
        dataset = SpoofDataset(read_protocol(protocol), tmp_path)
        assert dataset.audio.folder == tmp_path / folder
        direct = SpoofDataset(read_protocol(protocol), tmp_path / folder)
        assert torch.equal(dataset[0].waveform, direct[0].waveform)


def test_wrong_folders(protocol, tmp_path):
    with pytest.raises(ValueError, match="`protocol` must hold at least one utterance"):
        make(protocol.select([]), tmp_path)
    with pytest.raises(NotADirectoryError, match="`audio_dir` must be a folder"):
        make(protocol, tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"hold any of the first 3 .*such as short\.flac"):
        make(protocol, tmp_path)


def test_unreadable_file_raises_with_its_name_or_is_a_failure(audio_dir, tmp_path):
    (tmp_path / "good.flac").symlink_to(audio_dir / "long.flac")
    (tmp_path / "bad.flac").write_bytes(b"not audio")
    protocol = Protocol.from_columns(["good", "bad", "absent"])
    dataset = make(protocol, tmp_path)
    with pytest.raises(ValueError, match=r"bad\.flac is not an audio file"):
        dataset[1]
    with pytest.raises(FileNotFoundError, match=r"absent\.flac"):
        dataset[2]
    dataset = make(protocol, tmp_path, on_error="skip")
    failure = dataset[1]
    assert isinstance(failure, Failure)
    assert (failure.index, failure.utterance) == (1, "bad")
    assert "bad.flac is not an audio file" in failure.message
    assert isinstance(dataset[2], Failure)


def test_an_error_of_the_augmentation_is_never_skipped(protocol, audio_dir):
    def augment(waveform, *, generator):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        make(protocol, audio_dir, augment=augment, on_error="skip")[0]


def test_wrong_arguments(protocol, audio_dir):
    for options, message in (
        ({"crop": "middle"}, "`crop` must be one of .center., .random."),
        ({"on_error": "ignore"}, "`on_error` must be one of .raise., .skip."),
        ({"seed": -1}, "`seed` must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            make(protocol, audio_dir, **options)
    with pytest.raises(ValueError, match="`n_samples` must be at least 1"):
        SpoofDataset(protocol, audio_dir, n_samples=0)
    dataset = make(protocol, audio_dir)
    with pytest.raises(ValueError, match="`epoch` must not be negative"):
        dataset.set_epoch(-1)
    with pytest.raises(IndexError, match="`index` must be from 0 to 2; got 3"):
        dataset[3]


def test_dataset_survives_pickling(protocol, audio_dir):
    dataset = make(protocol, audio_dir, crop="random")
    dataset.set_epoch(4)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.epoch == 4
    assert torch.equal(copy[2].waveform, dataset[2].waveform)


def test_an_extension_starts_with_a_dot(audio_dir):
    with pytest.raises(ValueError, match="`extension` must start with a dot; got 'flac'"):
        AudioFolder(Protocol.from_columns(["long"]), audio_dir, extension="flac")


def test_the_extension_is_that_of_the_files(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 16000)
    protocol = Protocol.from_columns(["a", "b"])
    assert AudioFolder(protocol, tmp_path).path(1).name == "b.wav"
    (tmp_path / "b.flac").touch()
    assert AudioFolder(protocol, tmp_path).path(0).name == "a.flac"
    with pytest.raises(FileNotFoundError, match=r"any of the first 2 utterances, such as a\.mp3"):
        AudioFolder(protocol, tmp_path, extension=".mp3")
