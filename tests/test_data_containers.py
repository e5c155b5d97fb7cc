"""One reader of folders, tars, Parquet, Kaldi's lists and JSONL: (name, opener)."""

import io
import json
import pickle
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.audio import load_audio
from asvspoof_cm.data import Protocol, SpoofDataset, audio_entries, open_audio

NAMES = ["a", "b", "c.1"]


@pytest.fixture(scope="module")
def waves():
    rng = np.random.default_rng(3)
    return {name: 0.1 * rng.standard_normal(16000 + 4000 * k) for k, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path, waves):
    (tmp_path / "wav" / "sub").mkdir(parents=True)
    for name, wave in waves.items():
        soundfile.write(tmp_path / "wav" / f"{name}.wav", wave, 16000, subtype="FLOAT")
    return tmp_path / "wav"


def encode(wave, rate=16000):
    file = io.BytesIO()
    soundfile.write(file, wave, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def write_parquet(path, columns, **options):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    parquet.write_table(pa.table(columns), path, **options)
    return path


def make(kind, folder, waves):
    """Write the three utterances as one source."""
    out = folder.parent
    contents = {name: encode(wave) for name, wave in waves.items()}
    if kind == "folder":
        return folder
    if kind == "parquet of structs":
        cells = [{"bytes": data, "path": f"{name}.wav"} for name, data in contents.items()]
        return write_parquet(out / "s.parquet", {"audio": cells, "label": [0, 1, 1]})
    if kind == "parquet of bytes":
        columns = {"id": [*contents], "audio": [*contents.values()]}
        return write_parquet(out / "s.parquet", columns, row_group_size=1)
    if kind == "scp":
        lines = [f"{name} {name}.wav\n" for name in contents]
        (folder / "wav.scp").write_text("".join(lines))
        return folder / "wav.scp"
    if kind == "jsonl":
        lines = [json.dumps({"audio_filepath": f"{name}.wav", "duration": 9}) for name in contents]
        (folder / "m.jsonl").write_text("\n".join(lines) + "\n\n")
        return folder / "m.jsonl"
    members = [(f"{name}.wav", content) for name, content in contents.items()]
    members += [("a.json", b"{}"), ("._a.wav", b"Mac"), ("a.cls", b"1")]
    return write_tar(out / f"s{kind}", members, f"w:{'' if kind == '.tar' else 'gz'}")


KINDS = ["folder", ".tar", ".tar.gz", "parquet of structs", "parquet of bytes", "scp", "jsonl"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_audio(folder, waves, kind):
    entries = dict(audio_entries(make(kind, folder, waves)))
    assert [*entries] == NAMES
    for name in reversed(NAMES):  # in any order
        opener = pickle.loads(pickle.dumps(entries[name]))
        with opener() as audio, opener(8000) as slower:
            assert audio.native_rate == 16000
            np.testing.assert_allclose(audio.read(), waves[name].astype(np.float32))
            assert slower.n_samples * 2 == audio.n_samples


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("folder", ".tar.gz")])
def test_a_dataset_reads_every_format(folder, waves, kind):
    protocol = Protocol.from_columns(["c.1", "a.wav"], [1, 0])
    dataset = SpoofDataset(protocol, make(kind, folder, waves), n_samples=8000)
    for index, name in enumerate(["c.1", "a"]):
        wave = torch.from_numpy(waves[name]).float()
        start = (len(wave) - 8000) // 2
        crop = wave[start : start + 8000]
        torch.testing.assert_close(dataset[index].waveform, crop / crop.abs().max())


def test_utterances_that_a_container_lacks(folder, waves):
    source = make(".tar", folder, waves)
    audio = open_audio(Protocol.from_columns(["a", "x"]), source)
    with audio.open(0) as utterance:
        assert utterance.n_samples == 16000
    with pytest.raises(FileNotFoundError, match=r"s\.tar holds no 'x'"):
        audio.open(1)
    with pytest.raises(FileNotFoundError, match="holds none of the 1 utterances, such as 'x'"):
        open_audio(Protocol.from_columns(["x"]), source)
    with pytest.raises(ValueError, match="is compressed, and utterances can't be picked"):
        open_audio(Protocol.from_columns(["a"]), make(".tar.gz", folder, waves))
    with pytest.raises(NotADirectoryError, match="must be a folder, or a tar"):
        open_audio(Protocol.from_columns(["a"]), folder / "a.wav")


def test_several_sources_are_one(tmp_path, waves):
    shards = [
        write_tar(tmp_path / f"{name}.tar", [(f"x/{name}.wav", encode(wave))])
        for name, wave in waves.items()
    ]
    assert [name for name, _ in audio_entries(shards)] == [f"x/{name}" for name in NAMES]
    with pytest.raises(ValueError, match=r"'x/a' is also in .*a\.tar"):
        list(audio_entries([shards[0], write_tar(tmp_path / "d.tar", [("x/a.ogg", b"")])]))
    with pytest.raises(ValueError, match=r"'x/a' occurs twice"):
        list(audio_entries([shards[0], shards[0]]))


def test_folders_are_read_in_order_and_depth(folder, waves):
    soundfile.write(folder / "sub" / "z.FLAC", waves["a"], 16000, format="FLAC")
    (folder / "notes.txt").touch()
    names = [name for name, _ in audio_entries(folder)]
    assert names == [*NAMES, "sub/z"]


def test_a_member_outside_is_only_a_name(tmp_path, waves):
    members = [("../x.wav", encode(waves["a"])), ("/etc/y.wav", encode(waves["b"]))]
    source = write_tar(tmp_path / "s.tar", members)
    before = sorted(tmp_path.rglob("*"))
    entries = dict(audio_entries(source))
    assert [*entries] == ["../x", "/etc/y"]
    with entries["../x"]() as audio:
        assert audio.n_samples == 16000
    assert sorted(tmp_path.rglob("*")) == before


def test_links_and_devices_in_a_tar_are_passed_over(tmp_path, waves):
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name, kind in [("a.wav", tarfile.SYMTYPE), ("b.wav", tarfile.FIFOTYPE)]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    assert list(audio_entries(tmp_path / "s.tar")) == []


def test_segments_are_parts_of_their_recording(folder, waves):
    (folder / "wav.scp").write_text("rec-a a.wav\nrec-b b.wav\n")
    (folder / "segments").write_text(
        "rec-a-1 rec-a 0.25 0.75\nrec-a-2 rec-a 0.5 1.4\nrec-b-1 rec-b 1 -1\n"
    )
    entries = dict(audio_entries(folder / "wav.scp"))
    assert [*entries] == ["rec-a-1", "rec-a-2", "rec-b-1"]
    expected = {"rec-a-1": ("a", 4000, 12000), "rec-a-2": ("a", 8000, 16000)}
    for name, (recording, first, last) in {**expected, "rec-b-1": ("b", 16000, 20000)}.items():
        with entries[name]() as audio:
            part = torch.from_numpy(waves[recording][first:last]).float()
            torch.testing.assert_close(torch.from_numpy(audio.read()), part)
            torch.testing.assert_close(torch.from_numpy(audio.read(100, 10**6)), part[100:])
            assert audio.n_samples == len(part)


def test_offsets_of_a_manifest(folder, waves):
    rows = [
        {"audio_filepath": "a.wav", "offset": 0.25, "duration": 0.5, "label": "spoof"},
        {"audio_filepath": "a.wav", "offset": 0.5},
        {"audio_filepath": "b.wav", "id": 7, "offset": 0},
        {"audio_filepath": str(folder / "b.wav"), "duration": 0.1},
    ]
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    entries = dict(audio_entries(folder / "m.jsonl"))
    assert [*entries] == ["a@0.250", "a@0.500", "7", str(folder / "b")]
    lengths = [8000, 8000, 20000, 20000]
    for opener, n_samples in zip(entries.values(), lengths, strict=True):
        with opener() as audio:
            assert audio.read().shape == (n_samples,)
    resampled = load_audio(folder / "a.wav", sample_rate=11025)
    with entries["a@0.250"](11025) as audio:
        torch.testing.assert_close(torch.from_numpy(audio.read()), resampled[2756:8269])


@pytest.mark.parametrize(
    ("scp", "segments", "message"),
    [
        ("a sox a.wav -t wav - |\n", None, r"line 1: a is a command, and a list must not run"),
        ("a | cat a.wav\n", None, r"line 1: a is a command"),
        ("a -\n", None, r"line 1: a must be an audio file; got '-'"),
        ("a x.ark:42\n", None, r"line 1: a must be an audio file; got 'x\.ark:42'"),
        ("a a.wav\nb ../b.wav\n", None, r"line 2: a file must lie below `root`.*'\.\./b\.wav'"),
        ("a /etc/a.wav\n", None, r"line 1: a file must lie below `root`"),
        ("a\n", None, r"line 1: a line must have 2 columns; got \['a'\]"),
        ("a a.wav\na b.wav\n", None, r"line 2: a recording must occur once; 'a' occurs twice"),
        ("a a.wav\n", "s x 0 1\n", r"segments, line 1: wav\.scp has no recording 'x'"),
        ("a a.wav\n", "s a 0\n", r"line 1: a line must have 4 columns"),
        ("a a.wav\n", "s a 0 1 A\n", r"a time must be a number of seconds; got '1 A'"),
        ("a a.wav\n", "s a 1 0.5\n", r"must start at 0 s or later and have a positive duration"),
        ("a a.wav\n", "s a nan 1\n", r"a time must be a number of seconds; got 'nan'"),
    ],
)
def test_bad_kaldi_lists(folder, scp, segments, message):
    (folder / "wav.scp").write_text(scp)
    if segments is not None:
        (folder / "segments").write_text(segments)
    with pytest.raises(ValueError, match=message):
        next(audio_entries(folder / "wav.scp"))


def test_root_says_where_files_may_lie(folder, waves):
    (folder / "sub" / "wav.scp").write_text(f"a {folder / 'a.wav'}\nb b.wav\n")
    with pytest.raises(ValueError, match="below `root`"):
        next(audio_entries(folder / "sub" / "wav.scp"))
    entries = dict(audio_entries(folder / "sub" / "wav.scp", root=folder))
    for name in "ab":
        with entries[name]() as audio:
            assert audio.n_samples == len(waves[name])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 1: a line must be a JSON object with .audio_filepath. or .path.; got '\{'"),
        ("[1]", "a JSON object"),
        ('{"sound": "a.wav"}', "a JSON object"),
        ('{"audio_filepath": 3}', "a JSON object"),
        ('{"audio_filepath": "../a.wav"}', "below `root`"),
        ('{"audio_filepath": "a.wav", "offset": "x"}', "a number of seconds; got 'x'"),
        ('{"audio_filepath": "a.wav", "offset": -1}', "must start at 0 s or later"),
        ('{"audio_filepath": "a.wav", "offset": 0, "duration": 0}', "a positive duration"),
        ('{"audio_filepath": "a.wav", "offset": 0, "duration": NaN}', "number of seconds; got nan"),
    ],
)
def test_bad_manifests(folder, line, message):
    (folder / "m.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        next(audio_entries(folder / "m.jsonl"))


@pytest.mark.parametrize(("start", "duration"), [(1.0, 0.1), (2.0, None), (0.0, 1.6), (0.9, 1.0)])
def test_parts_beyond_the_end(folder, start, duration):
    row = {"audio_filepath": "a.wav", "offset": start, "duration": duration}
    (folder / "m.jsonl").write_text(json.dumps(row))
    ((_, opener),) = audio_entries(folder / "m.jsonl")
    message = r"a\.wav ends at 1\.000 s; a part of it must not go"
    with pytest.raises(ValueError, match=message), opener():
        pass


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a"]}, r"must have a column \"audio\"; it has \['id'\]"),
        ({"audio": [b"x"]}, "must have one of the columns id, utterance"),
        (
            {"audio": [{"bytes": b"x", "path": None}]},
            "row 0 has no name in the column 'audio.path'",
        ),
    ],
)
def test_bad_parquet(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        list(audio_entries(write_parquet(tmp_path / "s.parquet", columns)))


def test_parquet_rows_without_bytes_or_with_bad_ones(tmp_path):
    columns = {"id": ["a", "b"], "audio": [None, b"RIFF"]}
    entries = dict(audio_entries(write_parquet(tmp_path / "s.parquet", columns)))
    with pytest.raises(ValueError, match=r"s\.parquet, row 0 has no bytes of audio"):
        entries["a"]()
    with pytest.raises(ValueError, match=r"s\.parquet, row 1 is not an audio file"):
        entries["b"]()


def test_parquet_in_any_order_and_from_many_threads(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(0)
    waves = 0.1 * rng.standard_normal((300, 40)).astype(np.float32)
    columns = {"id": [f"u{k}" for k in range(300)], "audio": [encode(wave) for wave in waves]}
    source = write_parquet(tmp_path / "s.parquet", columns, row_group_size=130)
    openers = [opener for _, opener in audio_entries(source)]
    rows = [*range(300), *rng.permutation(300), *reversed(range(300))]

    def first_samples(row):
        with openers[row]() as audio:
            return torch.from_numpy(audio.read())

    with ThreadPoolExecutor(4) as pool:
        found = torch.stack(list(pool.map(first_samples, rows)))
    torch.testing.assert_close(found, torch.from_numpy(waves[rows]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.tar", b"not a tar at all", "s.tar is not a whole tar file"),
        ("s.tar.gz", b"not a tar at all", "s.tar.gz is not a whole tar file"),
        ("s.zip", b"PK", r"`source` must be a folder, an audio file or one that ends in \.tar"),
        ("m.jsonl", b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(audio_entries(tmp_path / name))


def test_truncated_tar(folder, waves):
    source = make(".tar", folder, waves)
    source.write_bytes(source.read_bytes()[:100_000])
    with pytest.raises(ValueError, match="is not a whole tar file"):
        list(audio_entries(source))


def test_empty_folders_say_what_else_is_there(tmp_path, waves):
    with pytest.raises(ValueError, match=r"holds no audio file\.$"):
        list(audio_entries(tmp_path))
    write_tar(tmp_path / "s.tar", [])
    with pytest.raises(ValueError, match=r"holds no audio file, but s\.tar: name that"):
        list(audio_entries(tmp_path))


def test_pyarrow_is_imported_by_parquet_alone():
    code = "import sys, asvspoof_cm.data.audio_sources; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "one.wav\n\nsub/two.flac\n"),
        ("list.csv", "label,path\nspoof,one.wav\nspoof,sub/two.flac\n"),
        ("list.tsv", "\ufefffile\tlabel\none.wav\tspoof\nsub/two.flac\tspoof\n"),
        ("quoted.csv", 'file_name;note\n"one.wav";"a;b"\nsub/two.flac;\n'),
        ("list.jsonl", '{"path": "one.wav"}\n{"path": "sub/two.flac"}\n'),
    ],
)
def test_lists_of_paths(tmp_path, name, text):
    (tmp_path / "sub").mkdir()
    for k, audio in enumerate(("one.wav", "sub/two.flac")):
        soundfile.write(tmp_path / audio, np.full(100 + k, 0.1), 16000)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / name).write_text(text, encoding="utf-8")
    entries = list(audio_entries(tmp_path / "lists" / name, root=tmp_path))
    assert [name for name, _ in entries] == ["one", "sub/two"]
    for k, (_, opener) in enumerate(entries):
        with opener() as audio:
            assert audio.n_samples == 100 + k


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label\nspoof\n", "must have one of the columns audio_filepath.*; it has .'label'"),
        ("path,id\n,3\n", "row 2: there is no path in the column 'path'"),
        ("path\n../a.wav\n", "below `root`"),
    ],
)
def test_bad_tables_of_paths(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        list(audio_entries(tmp_path / "a.csv"))


@pytest.mark.parametrize("size", [10**6, 2**62])
def test_a_tar_whose_member_would_end_beyond_it(tmp_path, size):
    member = tarfile.TarInfo("a.wav")
    member.size = size
    content = member.tobuf(tarfile.GNU_FORMAT) + bytes(20 * 512)
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.tar is not a whole tar file \(a\.wav would end"):
        next(audio_entries(tmp_path / "a.tar"))
