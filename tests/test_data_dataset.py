"""Items and batches: what is read, from where, in which order, and what is random in it."""

import itertools
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch.utils.data import DataLoader

from asvspoof_cm._util import derive_seed
from asvspoof_cm.audio import (
    AudioFile,
    InputSettings,
    cut,
    fix_length,
    load_audio,
    random_start,
)
from asvspoof_cm.data import (
    AudioFolder,
    Protocol,
    SpoofDataset,
    find_audio,
    make_loader,
    shuffled,
    write_miniature,
)
from asvspoof_cm.data.dataset import EpochSampler, Place, _default_workers
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.scorer import Scorer

# Python 3.12 warns of every fork of a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

NAMES = ["short", "exact", "long"]
N_SAMPLES = 1000
N_ITEMS = 10


@pytest.fixture(scope="module")
def audio_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(7)
    lengths = dict(zip(NAMES, (300, N_SAMPLES, 5000), strict=True))
    for name, length in {**lengths, **{f"u{k}": 1900 for k in range(N_ITEMS)}}.items():
        soundfile.write(folder / f"{name}.flac", 0.3 * rng.uniform(-1, 1, length), 16000)
    return folder


@pytest.fixture(scope="module")
def protocol():
    return Protocol.from_columns(NAMES, [SPOOF, BONAFIDE, SPOOF])


def make(protocol, audio_dir, **options):
    level = options.pop("normalization", "crop")
    settings = InputSettings(crop_s=N_SAMPLES / 16000, normalization=level)
    return SpoofDataset(protocol, audio_dir, input=settings, **options)


def many(audio_dir, **options):
    names, labels = [f"u{k}" for k in range(N_ITEMS)], [k % 2 for k in range(N_ITEMS)]
    return make(Protocol.from_columns(names, labels), audio_dir, crop="random", seed=3, **options)


def peak_normalize(waveform):
    return waveform / waveform.abs().amax(dim=-1, keepdim=True)


def random_starts(dataset, row, n_epochs=1):
    """Where the crops of several epochs lie in an utterance, which no two samples are alike in."""
    with dataset.audio[row].open(16000) as file:
        windows = np.lib.stride_tricks.sliding_window_view(file.read(), N_SAMPLES)
    levelled = windows / np.abs(windows).max(axis=1, keepdims=True)
    crops = [dataset[Place(row, epoch)][0].numpy() for epoch in range(n_epochs)]
    return [int(np.argmin(np.abs(levelled - crop).max(axis=1))) for crop in crops]


# Items


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("crop", ["center", "random"])
def test_item_is_the_crop_of_the_whole_file(protocol, audio_dir, row, crop, in_memory):
    dataset = make(protocol, audio_dir, crop=crop, seed=5, in_memory=in_memory)
    whole = load_audio(audio_dir / f"{NAMES[row]}.flac")
    for n_samples, crop_s in ((N_SAMPLES, None), (700, 700 / 16000)):
        waveform, label, found = dataset[Place(row, 3, crop_s)]
        expected = fix_length(whole, n_samples)
        if crop == "random":
            generator = torch.Generator().manual_seed(derive_seed(5, 3, row))
            expected = cut(whole, random_start(len(whole), n_samples, generator), n_samples)
        torch.testing.assert_close(waveform, peak_normalize(expected), rtol=0, atol=1e-7)
        assert (label, found) == (int(protocol.label[row]), row)


def test_only_the_crop_is_read(protocol, audio_dir, monkeypatch):
    read = []
    original = AudioFile._read_frames
    monkeypatch.setattr(
        AudioFile,
        "_read_frames",
        lambda self, first, last: read.append((first, last)) or original(self, first, last),
    )
    (first,) = random_starts(make(protocol, audio_dir, crop="random"), 2)
    assert read == [(0, 5000), (first, first + 1000)]
    dataset = make(protocol, audio_dir, in_memory=True)
    _ = dataset[2], dataset[2]
    assert read[2:] == [(0, 5000)]


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_level_is_that_of_the_crop_of_the_utterance_or_as_it_was(
    protocol, audio_dir, in_memory
):
    def item(normalization):
        return make(protocol, audio_dir, normalization=normalization, in_memory=in_memory)[2][0]

    whole = load_audio(audio_dir / f"{NAMES[2]}.flac")
    assert item("crop").abs().max() == 1
    torch.testing.assert_close(item("utterance"), item("none") / whole.abs().max())
    assert torch.equal(item("none"), fix_length(whole, N_SAMPLES))


@pytest.mark.parametrize("one_crop", ["center", "start"])
@pytest.mark.parametrize("n_crops", [None, 3])
def test_an_evaluation_hears_what_a_scorer_hears(tmp_path, one_crop, n_crops):
    """Without the digital silence at its ends, and from where the settings say."""
    noise = 0.3 * np.random.default_rng(0).uniform(-1, 1, 30_000)
    soundfile.write(tmp_path / "a.flac", np.pad(noise, (50_000, 9_000)), 16000)
    settings = InputSettings(one_crop=one_crop, crop_s=1.0, n_crops=n_crops or 1)
    dataset = SpoofDataset(Protocol.from_columns(["a"]), tmp_path, input=settings, n_crops=n_crops)
    heard = []

    def model(waveform):
        heard.append(waveform.clone())
        return waveform[:, :2]

    model.input, model.meta = settings, {}
    Scorer(model).score(tmp_path / "a.flac")
    assert torch.equal(dataset[0][0].reshape(-1, 16000), heard[0])


def test_epochs_and_seeds_differ_and_repeat_without_the_global_generators(protocol, audio_dir):
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    dataset = make(protocol, audio_dir, crop="random")
    first = dataset[2][0]
    assert torch.equal(dataset[Place(2, 0)][0], first)
    assert not torch.equal(dataset[Place(2, 1)][0], first)
    assert not torch.equal(make(protocol, audio_dir, crop="random", seed=1)[2][0], first)
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[2][0], first)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == str(np.random.get_state())  # noqa: NPY002


def test_a_copy_is_cut_where_its_recording_is(audio_dir):
    table = Protocol.from_columns(["u0", "u1", "u2"], codec_seed=["-", "u0", "-"])
    dataset = make(table, audio_dir, crop="random")
    recording, copy, other = (random_starts(dataset, row, 4) for row in range(3))
    assert recording == copy != other
    assert len(set(recording)) > 1


def test_seeds_depend_on_every_number():
    keys = [(seed, *key) for seed in (0, 1) for key in ((), (0,), (0, 0), (1, 0), (0, 1))]
    assert len({derive_seed(*key) for key in keys}) == len(keys)


@pytest.mark.parametrize("column", ["utterance", "file"])
@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "..", "C:\\x", "C:x", "\\\\h\\s\\x"])
def test_names_never_leave_the_folder(audio_dir, name, column):
    names = {"utterance": ["long", "b"], column: ["long", name]}
    with pytest.raises(ValueError, match="must stay below `audio_dir`; got") as error:
        make(Protocol.from_columns(**names), audio_dir)
    assert repr(name) in str(error.value)


def test_names_below_the_folder_and_links_are_read(audio_dir, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x..y.flac").symlink_to(audio_dir / "long.flac")
    dataset = make(Protocol.from_columns(["sub/x..y"]), tmp_path)
    assert dataset[0][0].shape == (N_SAMPLES,)


def test_extension_is_added_where_there_is_none(audio_dir, tmp_path):
    files = ["-", "-", "-", "sub/y.flac"]
    table = Protocol.from_columns(["long", "x.WAV", "a.b", "y"], file=files)
    folder = AudioFolder(table, audio_dir)
    names = [folder.path(k).relative_to(audio_dir).as_posix() for k in range(4)]
    assert names == ["long.flac", "x.WAV", "a.b.flac", "sub/y.flac"]
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 16000)
    protocol = Protocol.from_columns(["a", "b"])
    assert AudioFolder(protocol, tmp_path).path(1).name == "b.wav"
    (tmp_path / "b.flac").touch()
    assert AudioFolder(protocol, tmp_path).path(0).name == "a.flac"


def test_official_folders_are_found_below_the_root(tmp_path):
    paths = write_miniature(tmp_path, n_train=2, n_dev=2)
    for protocol, folder in ((paths.train_protocol, "flac_T"), (paths.dev_protocol, "flac_D")):
        for root in (tmp_path, tmp_path / folder):
            assert SpoofDataset(protocol, root).audio.folder == tmp_path / folder


LISTS = {
    "list.txt": "u1.flac\n\nsub/long.flac\n",
    "list.csv": "label,path\nspoof,u1.flac\nspoof,sub/long.flac\n",
    "list.tsv": "\ufefffile\tlabel\nu1.flac\tspoof\nsub/long.flac\tspoof\n",
    "quoted.csv": 'file_name;note\n"u1.flac";"a;b"\nsub/long.flac;\n',
    "named.csv": "utterance,path,label\nu1,u1.flac,spoof\nsub/long.flac,sub/long.flac,spoof\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_files_are_read_by_name(audio_dir, tmp_path, name):
    (tmp_path / "sub").mkdir()
    for file in ("u1.flac", "sub/long.flac"):
        shutil.copy(audio_dir / Path(file).name, tmp_path / file)
    (tmp_path / name).write_text(LISTS[name], encoding="utf-8")
    dataset = make(Protocol.from_columns(["sub/long", "u1.wav", "absent"]), tmp_path / name)
    folder = make(Protocol.from_columns(["long", "u1"]), audio_dir)
    for row in range(2):
        assert torch.equal(dataset[row][0], folder[row][0])
    with pytest.raises(FileNotFoundError, match="`audio_dir` has no audio of the name 'absent'"):
        dataset[2]


def test_pairs_of_a_name_and_its_audio(audio_dir):
    wave = np.random.default_rng(0).uniform(-1, 1, 4000).astype(np.float32)
    path = audio_dir / "long.flac"
    items = [("a", wave), ("b", path.read_bytes()), ("c", path), ("d", wave, 8000)]
    dataset = make(Protocol.from_columns([*"abcd"]), items)
    crops = [dataset[row][0] for row in range(4)]
    torch.testing.assert_close(crops[0], peak_normalize(torch.from_numpy(wave[1500:2500])))
    assert torch.equal(crops[1], crops[2])
    assert not torch.equal(crops[0], crops[3])
    with pytest.raises(ValueError, match="`audio_dir` must have each name once; 'a' occurs twice"):
        make(Protocol.from_columns(["a"]), [("a", wave), ("a.wav", wave)])
    message = r"holds none of the 1 utterances, such as 'x'; it has 4 others, such as 'a'"
    with pytest.raises(FileNotFoundError, match=message):
        make(Protocol.from_columns(["x"]), items)


def test_a_list_leads_nowhere_else(audio_dir, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "link.flac").symlink_to(audio_dir / "long.flac")
    lines = ["link.flac", "../long.flac", "/etc/x.flac", "a\\..\\..\\x.flac"]
    (folder / "list.txt").write_text("\n".join(lines))
    entries = list(find_audio([folder / "list.txt"]))
    assert [entry.name for entry in entries] == lines
    messages = ["a link that leads out", *["must lie below"] * 3]
    assert list(find_audio([folder / "list.txt"], root="/"))[2].audio == Path("/etc/x.flac")
    os.mkfifo(folder / "pipe.txt")
    (folder / "latin.txt").write_bytes("é.flac".encode("latin-1"))
    lists = [folder / name for name in ("pipe.txt", "absent.csv", "latin.txt")]
    messages += ["must be a regular file", "No such file", r"latin\.txt is not UTF-8 text"]
    *wrong, right = find_audio([*lists, audio_dir / "u1.flac"])
    for entry, message in zip(entries + wrong, messages, strict=True):
        with pytest.raises((ValueError, OSError), match=message):
            entry.open(16000)
    with right.open(16000) as audio:
        assert audio.n_samples == 1900


def test_what_a_folder_does_not_give_is_counted(audio_dir, tmp_path):
    for name in ("a.flac", "a.wav", "b.FLAC", "sub/c.flac"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("._a.wav", "notes.txt"):
        (tmp_path / name).touch()
    message = r"2 of 6 files are no audio by their names and are not read: \._a\.wav, notes\.txt\."
    with pytest.warns(UserWarning, match=message):
        names = [entry.name for entry in find_audio([tmp_path])]
    assert names == ["a.flac", "a.wav", "b", "sub/c"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "middle"}, "`crop` must be one of .center., .random."),
        ({"seed": -1}, "`seed` must not be negative"),
        ({"n_crops": 0}, "`n_crops` must be at least 1"),
        ({"n_crops": 2, "crop": "random"}, "`n_crops` must be None with crop=.random."),
        ({"protocol": Protocol.from_columns([])}, "`protocol` must hold at least one utterance"),
        ({"audio_dir": "absent"}, "`audio_dir` must be a folder"),
        ({"audio_dir": "."}, r"hold any of the first 3 .*such as 'short'"),
    ],
)
def test_wrong_arguments_and_folders(protocol, audio_dir, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError), match=message):
        SpoofDataset(**{"protocol": protocol, "audio_dir": audio_dir, **options})


def test_wrong_rows_and_loaders(protocol, audio_dir):
    with pytest.raises(IndexError, match="`row` must be from 0 to 2; got 3"):
        make(protocol, audio_dir)[3]
    for options in ({"batch_size": 0}, {"crop_s": [0.0]}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            make_loader(many(audio_dir), shuffle=True, **options)


# Batches


def epochs(loader, numbers):
    found = []
    for number in numbers:
        loader.sampler.set_epoch(number)
        found.append([(b.waveform, b.label, b.index) for b in loader])
    return found


def test_what_is_in_memory_is_there_once(audio_dir, monkeypatch):
    monkeypatch.setattr("asvspoof_cm.data.dataset._default_workers", lambda _: 2)
    dataset = many(audio_dir, in_memory=True)
    assert make_loader(dataset).num_workers == 0
    with pytest.raises(ValueError, match="`n_workers` must be 0 for a dataset with in_memory=True"):
        make_loader(dataset, n_workers=1)


def test_a_daemon_process_has_no_workers_by_default(monkeypatch):
    monkeypatch.setattr("asvspoof_cm.data.dataset.n_cores", lambda: 4)
    assert _default_workers(1) > 0
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert _default_workers(1) == 0


@pytest.mark.parametrize("n_workers", [1, 2])
def test_epochs_do_not_depend_on_workers(audio_dir, n_workers):
    """Workers persist, so the epoch must reach processes that are already running."""
    options = {"shuffle": True, "batch_size": 3, "crop_s": (0.05, 0.02, 0.03)}
    numbers = [0, 1, 0, 7]
    expected = epochs(make_loader(many(audio_dir), n_workers=0, **options), numbers)
    loader = make_loader(many(audio_dir), n_workers=n_workers, **options)
    for epoch, reference in zip(epochs(loader, numbers), expected, strict=True):
        for batch, expected_batch in zip(epoch, reference, strict=True):
            assert all(map(torch.equal, batch, expected_batch))
    assert not torch.equal(expected[0][0][2], expected[1][0][2])
    assert torch.equal(expected[0][0][0], expected[2][0][0])
    assert len({batch[0].shape[1] for epoch in expected for batch in epoch}) > 1
    next(iter(loader))  # an epoch that is given up leaves nothing to the next
    [again] = epochs(loader, [1])
    assert all(map(torch.equal, again[0], expected[1][0]))


def test_batches_of_an_evaluation_hold_all_and_those_of_training_are_whole(audio_dir):
    loader = make_loader(many(audio_dir), batch_size=4, n_workers=0)
    batches = list(loader)
    assert [tuple(batch.waveform.shape) for batch in batches] == [(4, 1000), (4, 1000), (2, 1000)]
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(N_ITEMS))
    assert torch.cat([batch.label for batch in batches]).tolist() == [k % 2 for k in range(N_ITEMS)]
    assert batches[0].label.dtype == batches[0].index.dtype == torch.int64
    assert len(loader) == 3
    assert [len(b) for b in make_loader(many(audio_dir), shuffle=True, batch_size=4)] == [4, 4]
    assert [len(b) for b in make_loader(many(audio_dir), shuffle=True, batch_size=16)] == [10]
    assert next(iter(loader)).to("meta").waveform.device.type == "meta"


def test_order_follows_from_seed_and_epoch(audio_dir):
    def order(seed, epoch):
        loader = make_loader(many(audio_dir), shuffle=True, seed=seed, n_workers=0)
        loader.sampler.set_epoch(epoch)
        return tuple(next(iter(loader)).index.tolist())

    orders = {key: order(*key) for key in itertools.product((1, 2), (0, 1))}
    assert order(1, 0) == orders[1, 0]
    assert len(set(orders.values())) == 4
    assert {tuple(sorted(rows)) for rows in orders.values()} == {tuple(range(N_ITEMS))}


def test_plain_dataloader_of_torch_works(audio_dir):
    ours = make_loader(many(audio_dir), batch_size=5, n_workers=0)
    plain = DataLoader(many(audio_dir), batch_size=5, num_workers=1)
    for batch, columns in zip(ours, plain, strict=True):
        assert all(map(torch.equal, columns, (batch.waveform, batch.label, batch.index)))


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_file_that_cannot_be_read_is_named(audio_dir, tmp_path, n_workers):
    (tmp_path / "good.flac").symlink_to(audio_dir / "long.flac")
    (tmp_path / "bad.flac").write_bytes(b"fLaC, but no more")
    dataset = make(Protocol.from_columns(["good", "bad", "absent"]), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"absent\.flac"):
        dataset[2]
    with pytest.raises(ValueError, match=r"bad\.flac is not an audio file"):
        list(make_loader(dataset, n_workers=n_workers))


# Several processes


@pytest.fixture
def in_process(monkeypatch):
    def pretend(rank, world_size):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world_size)

    return pretend


def shares(in_process, n_items, world_size, *, order=None, epoch=0, batch_size=1):
    found = []
    for rank in range(world_size):
        in_process(rank, world_size)
        sampler = EpochSampler(n_items, batch_size, order, (), 1)
        sampler.set_epoch(epoch)
        found.append([place.row for place in sampler])
        assert len(found[-1]) == len(sampler)
    return found


@pytest.mark.parametrize("n_items", [8, 9, 10, 11])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shares_of_processes(in_process, n_items, world_size):
    found = shares(in_process, n_items, world_size)
    assert sorted(itertools.chain(*found)) == list(range(n_items))
    found = shares(in_process, n_items, world_size, order=shuffled([None] * n_items))
    assert {len(share) for share in found} == {n_items // world_size}
    items = list(itertools.chain(*found))
    assert len(set(items)) == len(items) == n_items - n_items % world_size


def test_joint_batch_of_the_processes_is_that_of_one(in_process, audio_dir):
    order = shuffled([None] * 12)
    [alone] = shares(in_process, 12, 1, order=order, epoch=2, batch_size=6)
    for world_size in (1, 2, 3):
        found = shares(in_process, 12, world_size, order=order, epoch=2, batch_size=6 // world_size)
        assert [row for rows in zip(*found, strict=True) for row in rows] == alone
    in_process(1, 2)
    loader = make_loader(many(audio_dir), batch_size=4, n_workers=0)
    assert torch.cat([batch.index for batch in loader]).tolist() == [1, 3, 5, 7, 9]


def test_default_workers_leave_a_core_and_share_the_machine(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert [_default_workers(n) for n in (1, 2, 4, 12, 24)] == [8, 5, 2, 0, 0]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _default_workers(16) == 5


# An order of one's own


def twice_backwards(epoch, generator):
    return list(range(N_ITEMS))[::-1] * (1 + epoch)


def test_rows_come_in_the_order_asked_for(audio_dir):
    loader = make_loader(many(audio_dir), order=twice_backwards, batch_size=5, n_workers=0)
    (first, second) = epochs(loader, [0, 1])
    assert torch.cat([index for _, _, index in first]).tolist() == twice_backwards(0, None)
    assert torch.cat([index for _, _, index in second]).tolist() == twice_backwards(1, None)
    assert len(loader) == len(second) == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, N_ITEMS], r"from 0 to 9, shape \(n,\); got int64 of shape \(2,\) from 0 to 10"),
        ([-1, 2], r"got int64 of shape \(2,\) from -1 to 2"),
        (torch.empty(0, dtype=torch.int64), r"at least 1 indices .* got int64 of shape \(0,\)\."),
        ([0.5], r"got float64 of shape \(1,\)"),
        ([[0, 1]], r"got int64 of shape \(1, 2\)"),
    ],
)
def test_an_order_that_is_none(audio_dir, rows, message):
    with pytest.raises(ValueError, match=message):
        make_loader(many(audio_dir), order=lambda epoch, generator: rows)
    with pytest.raises(ValueError, match="`shuffle` must be False where `order` is given"):
        make_loader(many(audio_dir), order=twice_backwards, shuffle=True)
