"""Protocols of every public format, and what is wrong with a bad one."""

import os

import numpy as np
import pytest
from hypothesis import given, strategies as st

import asvspoof_cm.data
from asvspoof_cm import _util as table_module
from asvspoof_cm._util import read_table
from asvspoof_cm.data.protocol import (
    OFFICIAL_COUNTS,
    UNLABELLED,
    Protocol,
    read_protocol,
    write_protocol,
)
from asvspoof_cm.labels import BONAFIDE, SPOOF

ROWS = {  # the first word of a name is the format
    "asvspoof5": (
        "D_0062 D_0000000001 F - - - AC1 A11 spoof -\n"
        "D_0461 D_0000000190 M - - - - bonafide bonafide -\n"
        "E_1607 E_0009538969 M C05 2 E_0009486171 AC1 A26 spoof -\n"
    ),
    "asvspoof5-6": (
        "T_4850 T_0000000000 F - A05 spoof\nT_4850 T_0000000001 F - bonafide bonafide\n"
    ),
    "asvspoof2019": "LA_0069 LA_D_1047731 - - bonafide\nLA_0070 LA_D_1047732 - A01 spoof\n",
    "asvspoof2021-la": (
        "LA_0009 LA_E_9332881 alaw ita_tx A07 spoof notrim eval\n"
        "LA_0020 LA_E_6866159 none loc_tx bonafide bonafide notrim eval\n"
    ),
    "asvspoof2021-df": (
        "LA_0023 DF_E_2000011 nocodec asvspoof A14 spoof notrim progress traditional_vocoder "
        "- - - -\n"
    ),
    "csv": 'file,speaker,label\n0.wav,Alec Guinness,spoof\n"a, b.wav",Ada,bona-fide\n',
    "csv with both": "utterance,label,generator,attack\na,spoof,GAN,A01\n",
    "tsv": "path\tlabel\tnote\nsub/x y.flac\tspoof\t-\n",
    "tsv of clips": (
        "utterance\tpath\tlabel\tgenerator\tspeaker\tsource\tsplit\tparent\n"
        "a\taudio/1.flac\tbonafide\t-\tAda\tpage\ttrain\t-\n"
        "a-gan\taudio/2.flac\tspoof\tcopy-gan\tAda\tpage\ttrain\ta\n"
    ),
    "tsv with an empty head": "\tfilename\tlabel\n0\ta\tspoof\n1\tb\tbonafide\n",
    "tsv of the challenge": "filename\tcm-label\nE_1\tbonafide\nE_2\tspoof\n",
    "key": "E_1\tbonafide\nE_2\tspoof\n",
    "table": "SPEAKER_ID FLAC_FILE_NAME KEY\ns1 u1 spoof\n",
}
COLUMNS = {
    "asvspoof5": {
        "speaker": ["D_0062", "D_0461", "E_1607"],
        "utterance": ["D_0000000001", "D_0000000190", "E_0009538969"],
        "gender": ["F", "M", "M"],
        "codec": ["-", "-", "C05"],
        "codec_seed": ["-", "-", "E_0009486171"],
        "attack": ["A11", "-", "A26"],
        "label": [SPOOF, BONAFIDE, SPOOF],
    },
    "asvspoof5-6": {"gender": ["F", "F"], "attack": ["A05", "-"], "codec": ["-", "-"]},
    "asvspoof2019": {"speaker": ["LA_0069", "LA_0070"], "attack": ["-", "A01"]},
    "asvspoof2021-la": {"codec": ["alaw", "none"], "attack": ["A07", "-"]},
    "asvspoof2021-df": {"codec": ["nocodec"], "attack": ["A14"], "source": ["asvspoof"]},
    "csv": {
        "utterance": ["0.wav", "a, b.wav"],
        "speaker": ["Alec Guinness", "Ada"],
        "label": [SPOOF, BONAFIDE],
    },
    "csv with both": {"attack": ["A01"]},
    "tsv": {"utterance": ["sub/x y.flac"]},
    "tsv of clips": {
        "utterance": ["a", "a-gan"],
        "file": ["audio/1.flac", "audio/2.flac"],
        "attack": ["-", "copy-gan"],
        "source": ["page", "page"],
        "codec_seed": ["-", "a"],
    },
    "tsv with an empty head": {"utterance": ["a", "b"], "label": [SPOOF, BONAFIDE]},
    "tsv of the challenge": {"utterance": ["E_1", "E_2"], "label": [BONAFIDE, SPOOF]},
    "key": {"utterance": ["E_1", "E_2"], "label": [BONAFIDE, SPOOF]},
    "table": {"speaker": ["s1"], "utterance": ["u1"], "label": [SPOOF]},
}


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "protocol"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize("name", ROWS)
def test_format_and_columns_are_recognised_by_content(write, name):
    path = write(ROWS[name])
    protocol = read_protocol(path)
    assert (protocol.format, protocol.path) == (name.split()[0], path)
    assert protocol.label.dtype == np.int8
    for column, values in COLUMNS[name].items():
        assert getattr(protocol, column).tolist() == values


@pytest.mark.parametrize("name", ["asvspoof5", "csv", "tsv"])
@pytest.mark.parametrize("change", ["crlf", "cr", "bom", "blank lines", "no last newline"])
def test_text_conventions_do_not_matter(write, name, change):
    expected = read_protocol(write(ROWS[name]))
    content = ROWS[name].encode()
    content = {
        "crlf": content.replace(b"\n", b"\r\n"),
        "cr": content.replace(b"\n", b"\r"),
        "bom": b"\xef\xbb\xbf" + content,
        "blank lines": b"\n" + content.replace(b"\n", b"\n \n\n").replace(b" \n", b"\n"),
        "no last newline": content.rstrip(b"\n"),
    }[change]
    protocol = read_protocol(write(content))
    assert protocol.utterance.tolist() == expected.utterance.tolist()
    assert protocol.label.tolist() == expected.label.tolist()


GOOD = "D_1 u{} F - - - - bonafide bonafide -\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD.format(1) + "\n" + GOOD.format(2).replace("bonafide -", "genuine -"), "line 3: a la"),
        (GOOD.format(1) + "D_1 u2 F - - - - spoof -\n", "line 2: each line must have 10 columns"),
        (GOOD.format(1) + GOOD.format(2) + GOOD.format(1), "line 3: .* 'u1' is also on line 1"),
        (GOOD.format("é") + GOOD.format("é"), "line 2: .* 'ué' is also on line 1"),
        (GOOD.format("é") + "a b\n", "line 2: each line must have 10 columns, .* got 2"),
        ("", "the file is empty"),
        (" \n\n", "the file is empty"),
        ("filename,label\n", "holds a header but no utterance"),
        ("filename,label\nx.wav,Spoof\n", r"line 2: a label must be one of .*; got 'Spoof'"),
        ("filename,label\nx.wav,spoof\ny.wav\n", "line 3: each line must have 2 columns"),
        ("filename,label\n,spoof\n", "line 2: the name of the utterance is empty"),
        ('filename,label\n"x.wav,spoof\n', "line 2: not valid CSV"),
        ("path,filename,label\nx,y,spoof\n", r"several columns give the utterance: \['path', 'fi"),
        ("a b c\n", "unknown format: the first line has 3 columns"),
        ("a.wav,spoof\n", r"unknown format: the first line has 1 columns, \['a.wav,spoof'\]"),
        ("filename\nx.wav\n", r"there are no labels \(recognised as 'table'\)"),
        ("D_0062 D_0000000001 F A11 spoof\n", "Track 2 trials"),
        ("D_0062 D_0000000001 - - target\n", "Track 2 trials"),
        ("D_4205 D_A0000000562,D_A0000000898\n", "the first line has 2 columns"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_bad_protocols(write, content, message, newline):
    if isinstance(content, str):
        content = content.replace("\n", newline)
    with pytest.raises(ValueError, match=message) as error:
        read_protocol(write(content))
    assert "protocol" in str(error.value)


def test_what_is_written_is_read(tmp_path, write):
    for content in ROWS.values():
        protocol = read_protocol(write(content))
        write_protocol(tmp_path / "again.csv", protocol)
        again = read_protocol(tmp_path / "again.csv")
        for name, column in vars(protocol).items():
            if isinstance(column, np.ndarray):
                assert column.tolist() == getattr(again, name).tolist()
    files = Protocol.from_columns(["a", "b"], file=["x/a.wav", "x/b.wav"])
    write_protocol(tmp_path / "files.csv", files)
    again = read_protocol(tmp_path / "files.csv", require_labels=False)
    assert again.file.tolist() == ["x/a.wav", "x/b.wav"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe")
def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        read_protocol(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="must be a regular file"):
            read_protocol(path)


@pytest.mark.parametrize(
    ("content", "kind"), [("E_1\nE_2\n", "names"), ("filename,speaker\nE_1,a\nE_2,b\n", "csv")]
)
def test_unlabelled_list_is_read_only_on_request(write, content, kind):
    with pytest.raises(ValueError, match="require_labels=False"):
        read_protocol(write(content))
    protocol = read_protocol(write(content), require_labels=False)
    assert protocol.format == kind
    assert protocol.label.tolist() == [UNLABELLED, UNLABELLED]
    assert protocol.counts() == {"bonafide": 0, "spoof": 0, "unlabelled": 2}


def test_expect_checks_the_official_subset(write):
    totals = {name: sum(counts.values()) for name, counts in OFFICIAL_COUNTS.items()}
    assert totals == {"train": 182_357, "dev": 140_950, "eval": 680_774}
    classes = ["bonafide"] * 31_334 + ["spoof"] * 109_616
    text = "".join(
        f"D_{k % 785} D_{k} F - - - - {f'A{9 + k % 8:02d}' if word == 'spoof' else word} {word} -\n"
        for k, word in enumerate(classes)
    )
    protocol = read_protocol(write(text), expect="dev")
    assert protocol.utterance[-1] == "D_140949"
    n_bytes = sum(v.nbytes for v in vars(protocol).values() if isinstance(v, np.ndarray))
    assert n_bytes < 110 * len(protocol)
    for wrong, message in (
        (ROWS["asvspoof5"], r"expected utterances .*31334.*; got .*: 1, .*: 2"),
        (text.replace(" A12 ", " A99 "), r"expected attacks .'A09', .* 'A16'.; got .* 'A99'"),
        (text.replace("\nD_784 ", "\nD_783 "), "expected speakers 785; got 784"),
    ):
        with pytest.raises(ValueError, match=message):
            read_protocol(write(wrong), expect="dev")
    with pytest.raises(ValueError, match="`expect` must be one of"):
        read_protocol(write(text), expect="test")


MLAAD = (
    "path|original_file|language|duration|model_name|transcript\n"
    'en/a.wav|x.wav|en|2.5|bark|He said: "no, never"; so\nen/b.wav|y.wav|en|1.0|vits|"quoted\n'
)


def test_a_table_of_bars_is_no_list_of_names(write):
    """The header of MLAAD was taken for a name."""
    protocol = read_protocol(write(MLAAD), require_labels=False)
    assert protocol.utterance.tolist() == ["en/a.wav", "en/b.wav"]
    named = {"attack": "model_name", "source": "language"}
    protocol = read_protocol(write(MLAAD), require_labels=False, columns=named)
    assert protocol.attack.tolist() == ["bark", "vits"]
    assert protocol.source.tolist() == ["en", "en"]


def test_unknown_tables_are_mapped_by_columns_and_labels(write):
    path = write("Clip;Who;is_real;note\na.wav;S1;genuine;x\nb.wav;S2;fake;y\nc.wav;S2;0;z\n")
    with pytest.raises(ValueError, match=r"unknown format: .* \(--columns path=… label=…\)"):
        read_protocol(path)
    named = {"path": "clip", "label": "is_real", "speaker": "Who"}
    with pytest.raises(ValueError, match=r"line 2: .* got 'genuine'.*--labels real=bonafide"):
        read_protocol(path, columns=named)
    meant = {"genuine": "bonafide", "fake": "spoof", "0": "spoof"}
    protocol = read_protocol(path, columns=named, labels=meant)
    assert protocol.utterance.tolist() == ["a.wav", "b.wav", "c.wav"]
    assert protocol.label.tolist() == [BONAFIDE, SPOOF, SPOOF]
    assert protocol.speaker.tolist() == ["S1", "S2", "S2"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"path": "file"}, "must name a column of the header, clip, label; got 'file'"),
        ({"pitch": "clip"}, "`columns` must name columns of a protocol, attack, .*; got 'pitch'"),
        ({"speaker": "clip"}, "`columns` must say which column is the path: clip, label"),
    ],
)
def test_columns_that_are_not_there(write, columns, message):
    with pytest.raises(ValueError, match=message):
        read_protocol(write("clip,label\na,spoof\n"), columns=columns)


WORDS = st.text(st.sampled_from("ab-_é.0"), min_size=1, max_size=5)
LINES = st.lists(
    st.one_of(st.just([]), st.lists(WORDS, min_size=3, max_size=3), st.lists(WORDS, max_size=4)),
    max_size=12,
)


@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from([" ", "\t", "  \x1c"]))
def test_both_ways_of_splitting_agree(lines, newline, space):
    """Blocks of bytes, used for ASCII, against Python's own splitting of lines and words."""
    text = newline.join(space.join(line) for line in lines).replace("é", "e")
    columns, results = {"first": 0, "third": 2}, []
    for split in (read_table, table_module._from_rows):
        content = text.encode() if split is read_table else text
        try:
            table, numbers = split(content, None, columns, 3)
        except ValueError as error:
            results.append(str(error))
        else:
            results.append([table["first"].tolist(), table["third"].tolist(), numbers.tolist()])
    assert results[0] == results[1]


def test_blocks_meet_without_a_seam(monkeypatch):
    text = "".join(f"u{k} {'x' * (k % 7 + 1)}\n" + "\n" * (k % 3) for k in range(500)).encode()
    whole, lines = read_table(text, None, {"a": 0, "b": 1}, 2)
    monkeypatch.setattr(table_module, "_BLOCK_BYTES", 64)
    parts, part_lines = read_table(text, None, {"a": 0, "b": 1}, 2)
    assert whole["a"].tolist() == parts["a"].tolist() == [f"u{k}" for k in range(500)]
    assert whole["b"].tolist() == parts["b"].tolist()
    assert lines.tolist() == part_lines.tolist()


def test_select_takes_masks_indexes_and_slices(write):
    protocol = read_protocol(write(ROWS["asvspoof5"]))
    spoof = protocol.select(protocol.label == SPOOF)
    assert spoof.attack.tolist() == ["A11", "A26"]
    assert (spoof.format, spoof.path) == (protocol.format, protocol.path)
    assert protocol.select([2, 0]).utterance.tolist() == ["E_0009538969", "D_0000000001"]
    assert len(protocol.select(slice(1))) == 1


def test_lazy_names_are_all_there():
    names = asvspoof_cm.data.__all__
    assert {"Protocol", "SpoofDataset", "make_loader"} <= set(names) <= set(dir(asvspoof_cm.data))
    assert all(getattr(asvspoof_cm.data, name) is not None for name in names)


@pytest.mark.parametrize(
    "labels", [["bonafide", "spoof"], [1, 0], [1.0, 0.0], np.array([1, "spoof"], dtype=object)]
)
def test_labels_may_be_words(labels):
    protocol = Protocol.from_columns(["a", "b"], labels)
    assert protocol.label.tolist() == [BONAFIDE, SPOOF]
    assert protocol.label.dtype == np.int8


@pytest.mark.parametrize(
    ("names", "labels", "message"),
    [
        (["a", "b"], [0.9, 1.0], r"row 0: .* as a number 0 \(spoof\), .*; got 0.9\."),
        (["a", "b"], [0, 256], "row 1: a label must be .* got 256"),
        (["a", "b"], ["spoof", "fake"], "row 1: a label must be one of spoof, .* got 'fake'"),
        (["a", "b"], [[0], [1]], r"must have shape \(2,\); got \{'label': \(2, 1\)\}"),
        ([["a"], ["b"]], [0, 1], r"shape \(2,\); got \{'utterance': \(2, 1\)\}"),
        (["a", "b", "a"], [0, 1, 1], "row 2: an utterance must stand once; 'a' is also on row 0"),
        (["a", ""], [0, 1], "row 1: the name of the utterance is empty"),
    ],
)
def test_columns_that_would_change_silently(names, labels, message):
    with pytest.raises(ValueError, match=message):
        Protocol.from_columns(names, labels)


def test_columns_are_known_and_equally_long():
    with pytest.raises(ValueError, match=r"must have shape \(2,\); got \{'speaker': \(1,\)\}"):
        Protocol.from_columns(["a", "b"], speaker=["x"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'speakers'"):
        Protocol.from_columns(["a"], speakers=["x"])


def test_clusters_are_the_column_or_the_utterance():
    protocol = Protocol.from_columns(
        ["a", "b", "c"], codec_seed=["-", "a", "-"], speaker=["-", "-", "S"]
    )
    assert protocol.clusters("codec_seed").tolist() == ["a", "a", "c"]
    assert protocol.clusters("speaker").tolist() == ["a", "b", "S"]
    with pytest.raises(
        ValueError, match=r"`column` must be one of 'speaker', 'gender', .* got 'label'"
    ):
        protocol.clusters("label")
    assert protocol.parents().tolist() == [0, 0, 2]
