"""Batches: the same whatever the number of workers, shared between processes, failures left out."""

import itertools
import logging

import numpy as np
import pytest
import soundfile
import torch
from torch.utils.data import DataLoader

from asvspoof_cm.data import Protocol, SpoofDataset, make_loader, shuffled
from asvspoof_cm.data.loader import _default_workers, _ShareSampler

# Python 3.12 warns of every fork of a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

N_ITEMS = 10
N_SAMPLES = 400


@pytest.fixture(scope="module")
def audio_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    rng = np.random.default_rng(7)
    for k in range(N_ITEMS):
        soundfile.write(folder / f"u{k}.flac", 0.3 * rng.uniform(-1, 1, 900), 16000)
    return folder


def noisy(waveform, *, generator):
    return waveform + torch.rand(waveform.shape, generator=generator)


def make(audio_dir, **options):
    options = {"crop": "random", "augment": noisy, "seed": 3, "n_samples": N_SAMPLES, **options}
    protocol = Protocol.from_columns(
        [f"u{k}" for k in range(N_ITEMS)], [k % 2 for k in range(N_ITEMS)]
    )
    return SpoofDataset(protocol, audio_dir, **options)


def epochs(loader, numbers):
    found = []
    for number in numbers:
        loader.set_epoch(number)
        found.append([(b.waveform, b.label, b.index) for b in loader])
    return found


@pytest.mark.parametrize("n_workers", [1, 2])
def test_epochs_do_not_depend_on_workers(audio_dir, n_workers):
    """Workers persist, so the epoch must reach processes that are already running."""
    numbers = [0, 1, 0, 7]
    expected = epochs(
        make_loader(make(audio_dir), shuffle=True, batch_size=4, n_workers=0), numbers
    )
    loader = make_loader(make(audio_dir), shuffle=True, batch_size=4, n_workers=n_workers)
    for epoch, reference in zip(epochs(loader, numbers), expected, strict=True):
        for batch, expected_batch in zip(epoch, reference, strict=True):
            assert all(map(torch.equal, batch, expected_batch))
    assert not torch.equal(expected[0][0][2], expected[1][0][2])
    assert torch.equal(expected[0][0][0], expected[2][0][0])


def test_an_abandoned_epoch_does_not_leak_into_the_next(audio_dir):
    loader = make_loader(make(audio_dir), shuffle=True, batch_size=2, n_workers=1)
    [expected] = epochs(loader, [5])
    loader.set_epoch(4)
    next(iter(loader))
    [found] = epochs(loader, [5])
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))


def test_batches(audio_dir):
    loader = make_loader(make(audio_dir), shuffle=False, batch_size=4, n_workers=0)
    batches = list(loader)
    assert [tuple(batch.waveform.shape) for batch in batches] == [(4, 400), (4, 400), (2, 400)]
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(N_ITEMS))
    assert torch.cat([batch.label for batch in batches]).tolist() == [k % 2 for k in range(N_ITEMS)]
    assert batches[0].label.dtype == batches[0].index.dtype == torch.int64
    assert len(loader) == 3


def test_order_follows_from_seed_and_epoch(audio_dir):
    def order(seed, epoch):
        loader = make_loader(make(audio_dir), shuffle=True, seed=seed, n_workers=0)
        loader.set_epoch(epoch)
        return next(iter(loader)).index.tolist()

    assert order(1, 0) == order(1, 0)
    assert sorted(order(1, 0)) == list(range(N_ITEMS))
    assert len({tuple(order(s, e)) for s, e in itertools.product((1, 2), (0, 1))}) == 4


def test_global_generator_is_left_alone(audio_dir):
    before = torch.get_rng_state()
    list(make_loader(make(audio_dir), shuffle=True, n_workers=0))
    assert torch.equal(before, torch.get_rng_state())


def test_plain_dataloader_of_torch_works(audio_dir):
    dataset = make(audio_dir)
    plain = DataLoader(dataset, batch_size=5, num_workers=1, persistent_workers=True)
    ours = make_loader(dataset, shuffle=False, batch_size=5, n_workers=0)
    for epoch in (0, 1):
        ours.set_epoch(epoch)
        for (waveform, label, index), batch in zip(plain, ours, strict=True):
            assert torch.equal(waveform, batch.waveform)
            assert torch.equal(label, batch.label)
            assert torch.equal(index, batch.index)


def test_device_moves_waveforms_and_labels(audio_dir):
    loader = make_loader(make(audio_dir), shuffle=False, n_workers=0, device="meta")
    batch = next(iter(loader))
    assert (batch.waveform.device.type, batch.label.device.type) == ("meta", "cpu")
    assert batch.index.device.type == "cpu"
    assert not loader._batches.pin_memory


@pytest.fixture
def damaged_dir(audio_dir, tmp_path):
    for path in audio_dir.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name in ("u2", "u4", "u5"):
        (tmp_path / f"{name}.flac").unlink()
    (tmp_path / "u2.flac").write_bytes(b"fLaC, but no more")
    return tmp_path


@pytest.mark.parametrize("n_workers", [0, 2])
def test_failures_are_left_out_counted_and_reported(damaged_dir, caplog, n_workers):
    dataset = make(damaged_dir, on_error="skip")
    loader = make_loader(dataset, shuffle=False, batch_size=2, n_workers=n_workers)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            batches = list(loader)
        # Batch 2 holds u4 and u5 only: it is not there at all.
        assert [batch.index.tolist() for batch in batches] == [[0, 1], [3], [6, 7], [8, 9]]
        assert [failure.utterance for failure in loader.failures] == ["u2", "u4", "u5"]
        assert "skipped 3 of 10 utterances that could not be read, such as u2 (" in caplog.text


@pytest.mark.parametrize("n_workers", [0, 1])
def test_failures_raise_by_default(damaged_dir, n_workers):
    loader = make_loader(make(damaged_dir), shuffle=False, n_workers=n_workers)
    with pytest.raises(ValueError, match=r"u2\.flac is not an audio file"):
        list(loader)


def test_an_epoch_of_failures_only_raises(audio_dir, damaged_dir):
    dataset = make(audio_dir, on_error="skip")
    for path in damaged_dir.iterdir():
        path.unlink()
    dataset.audio.folder = damaged_dir
    with pytest.raises(ValueError, match="none of 10 utterances could be read: u0"):
        list(make_loader(dataset, shuffle=False, n_workers=0))


# Several processes


def shares(n_items, world_size, *, shuffle, epoch=0):
    found = []
    for rank in range(world_size):
        order = shuffled([None] * n_items) if shuffle else None
        sampler = _ShareSampler(n_items, order, 1, rank, world_size)
        sampler.set_epoch(epoch)
        assert len(list(sampler)) == len(sampler)
        found.append(list(sampler))
    return found


@pytest.mark.parametrize("n_items", [8, 9, 10, 11])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_shares_hold_each_item_once(n_items, world_size):
    found = shares(n_items, world_size, shuffle=False)
    assert sorted(itertools.chain(*found)) == list(range(n_items))


@pytest.mark.parametrize("n_items", [8, 9, 10, 11])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_training_shares_are_equal_and_disjoint(n_items, world_size):
    found = shares(n_items, world_size, shuffle=True)
    assert {len(share) for share in found} == {n_items // world_size}
    items = list(itertools.chain(*found))
    assert len(set(items)) == len(items) == n_items - n_items % world_size


def test_joint_batch_of_the_processes_is_that_of_one():
    [alone] = shares(12, 1, shuffle=True, epoch=2)
    together = shares(12, 2, shuffle=True, epoch=2)
    for start in (0, 3):
        joint = together[0][start : start + 3] + together[1][start : start + 3]
        assert set(joint) == set(alone[2 * start : 2 * start + 6])


@pytest.fixture
def two_processes(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


@pytest.mark.usefixtures("two_processes")
def test_loader_takes_the_share_of_its_process(audio_dir):
    loader = make_loader(make(audio_dir), shuffle=False, batch_size=4, n_workers=0)
    assert torch.cat([batch.index for batch in loader]).tolist() == [1, 3, 5, 7, 9]


def epoch_order(loader, epoch):
    loader.set_epoch(epoch)
    return list(loader._sampler)


@pytest.mark.usefixtures("two_processes")
def test_processes_never_train_on_different_numbers_of_batches(damaged_dir):
    dataset = make(damaged_dir, on_error="skip")
    loader = make_loader(dataset, shuffle=True, batch_size=1, n_workers=0)
    failed = next(e for e in range(20) if {2, 4, 5} & set(epoch_order(loader, e)))
    loader.set_epoch(failed)
    with pytest.raises(ValueError, match="no utterance of a batch could be read, and 2 processes"):
        list(loader)
    evaluation = make_loader(dataset, shuffle=False, batch_size=1, n_workers=0)
    assert [batch.index.item() for batch in evaluation] == [1, 3, 7, 9]


def test_wrong_arguments(audio_dir):
    with pytest.raises(ValueError, match="`batch_size` must be at least 1; got 0"):
        make_loader(make(audio_dir), shuffle=True, batch_size=0)
    dataset = make(audio_dir)
    dataset.protocol = dataset.protocol.select(slice(0))
    with pytest.raises(ValueError, match="`dataset` must hold an utterance"):
        make_loader(dataset, shuffle=False)


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
    loader = make_loader(make(audio_dir), order=twice_backwards, batch_size=4, n_workers=0)
    (first, second) = epochs(loader, [0, 1])
    assert torch.cat([index for _, _, index in first]).tolist() == twice_backwards(0, None)
    assert torch.cat([index for _, _, index in second]).tolist() == twice_backwards(1, None)
    assert len(loader) == len(second) == 5


def test_an_order_is_seeded_by_the_epoch(audio_dir):
    def draw(epoch, generator):
        return torch.randint(N_ITEMS, (6,), generator=generator)

    loader = make_loader(make(audio_dir), order=draw, batch_size=6, n_workers=0, seed=1)
    found = [epoch[0][2].tolist() for epoch in epochs(loader, [0, 1, 0])]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_processes_share_an_order(world_size):
    def backwards(epoch, generator):
        return torch.arange(11).flip(0)

    shares = [list(_ShareSampler(11, backwards, 1, k, world_size)) for k in range(world_size)]
    assert {len(share) for share in shares} == {11 // world_size}
    joint = [row for rows in zip(*shares, strict=True) for row in rows]
    assert joint == list(range(11))[::-1][: len(joint)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, N_ITEMS], "all from 0 to 9; got 2 from 0 to 10"),
        ([-1, 2], "all from 0 to 9; got 2 from -1 to 2"),
        (torch.empty(0, dtype=torch.int64), "at least 1 indices, all from 0 to 9; got 0"),
        ([0.5], r"must return indices of shape \(n,\); got torch.float32"),
        ([[0, 1]], r"must return indices of shape \(n,\); got torch.int64 of shape \(1, 2\)"),
    ],
)
def test_an_order_that_is_none(audio_dir, rows, message):
    with pytest.raises(ValueError, match=message):
        make_loader(make(audio_dir), order=lambda epoch, generator: rows)
    with pytest.raises(ValueError, match="`shuffle` must be False where `order` is given"):
        make_loader(make(audio_dir), order=twice_backwards, shuffle=True)
