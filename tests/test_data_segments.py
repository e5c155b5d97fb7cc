"""Segments in every format, back and forth, and what is said about the others."""

import math

import pytest

from asvspoof_cm.data import Segment, read_segments, write_segments

SEGMENTS = [
    Segment(0.0, 1.25, 1),
    Segment(1.25, 2.0, 0),
    Segment(2.0, 2.5, 2),
    Segment(2.5, 3.0, 1),
]
FORMS = {
    "a.vad": "0.0 1.25 1\n1.25 2.0 0\n\n2.0 2.5 2\n2.5 3.0 1\n",
    "a.txt": "1.25\t2.0\tspoof\n\\\t100\t200\n0\t1.25\tbona-fide\n2\t2.5\tno speech\n2.5\t3\tReal",
    "set.rttm": (
        ";; comment\n"
        "SPEAKER a 1 0.0 1.25 <NA> <NA> bonafide <NA> <NA>\n"
        "SPEAKER a 1 1.25 0.75 <NA> <NA> spoof <NA> <NA>\n"
        "SPEAKER a 1 2.0 0.5 <NA> <NA> nonspeech <NA> <NA>\n"
        "SPEAKER a 1 2.5 0.5 <NA> <NA> bonafide <NA> <NA>\n"
    ),
    "set.csv": (
        "utterance,start,end,label,note\na,0,1.25,bonafide,\na,2.5,3,1,\na,1.25,2,fake,x\n"
        'a,2,2.5,2,"a, b"\n'
    ),
    "set.tsv": "file\tstart\tend\tkey\na\t0\t1.25\t1\na\t1.25\t2\t0\na\t2\t2.5\t2\na\t2.5\t3\t1",
}


@pytest.mark.parametrize("name", FORMS)
def test_every_format_is_recognised_by_its_content(tmp_path, name):
    path = tmp_path / ("a" if name.startswith("a.") else "set")
    path.write_text("\ufeff" + FORMS[name], encoding="utf-8")
    assert read_segments(path, labels={"Real": "bonafide", "fake": "spoof"}) == {"a": SEGMENTS}


@pytest.mark.parametrize("name", ["set.rttm", "set.csv"])
def test_what_is_written_is_read_back(tmp_path, name):
    both = {"b": SEGMENTS[:1], "a": SEGMENTS}
    write_segments(tmp_path / name, both)
    assert read_segments(tmp_path / name) == both


def test_a_detector_s_segments_have_an_llr(tmp_path):
    path = tmp_path / "found.tsv"
    path.write_text(
        "filename\tstart_s\tend_s\tllr\tlabel\na\t0.0\t1.0\t-2.5\tspoof\na\t1\t2\t-\tno speech\n"
    )
    assert read_segments(path) == {"a": [Segment(0.0, 1.0, 0, -2.5), Segment(1.0, 2.0, 2)]}
    write_segments(tmp_path / "a.csv", read_segments(path))
    assert read_segments(tmp_path / "a.csv") == read_segments(path)


def test_a_folder_holds_one_recording_per_file(tmp_path):
    for name in ("x", "y"):
        (tmp_path / f"{name}.txt").write_text(FORMS["a.vad"])
    assert read_segments(tmp_path) == {"x": SEGMENTS, "y": SEGMENTS}


def test_gaps_are_errors_or_have_a_label(tmp_path):
    path = tmp_path / "a.rttm"
    path.write_text(
        "SPEAKER a 1 1.0 0.5 <NA> <NA> spoof <NA> <NA>\nSPEAKER a 1 2 1 x x spoof x x\n"
    )
    with pytest.raises(ValueError, match=r"a: there must be .* none from 0 to 1 s\. Label it, or"):
        read_segments(path)
    found = read_segments(path, gaps="bonafide")["a"]
    assert [tuple(row[:3]) for row in found] == [
        (0, 1, 1), (1, 1.5, 0), (1.5, 2, 1), (2, 3, 0), (3, math.inf, 1)
    ]  # fmt: skip
    with pytest.raises(ValueError, match="`segments` must have finite ends"):
        write_segments(tmp_path / "b.csv", {"a": found})
    # What rounding leaves is no gap.
    path.write_text("0 0.9999 1\n1.0004 2 0\n")
    assert read_segments(path)["a"][1].start_s == 0.9999


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0 2 1\n1 3 0\n",
            r"a.txt: a: segments must not overlap; that from 1 to 3 s starts before 2 s",
        ),
        ("0 1 1\n1.5 2 0\n", "a.txt: a: .* there is none from 1 to 1.5 s"),
        ("0 1 1\n1 1 0\n", r"line 2: a segment must end after it starts; got 1, 1"),
        ("0 1 1\n1 x 0\n", "line 2: could not convert string to float: 'x'"),
        ("0 1 1\n1 nan 0\n", "line 2: a segment must end after it starts"),
        ("0 1 human\n", "line 1: a label must be one of spoof, .*; got 'human'"),
        ("0 1\n", "line 1: a segment must be `start end label`, a line of RTTM, or a row under"),
        ("SPEAKER a 1 0 x <NA> <NA> spoof\n", "line 1: could not convert string to float: 'x'"),
        ("utterance,start,end,label\na,0,1\n", "line 2: each line must have 4 columns"),
        ("", "there is no segment"),
    ],
)
def test_bad_files_name_the_line_or_the_time(tmp_path, text, message):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_segments(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("name", "recording", "message"),
    [
        ("a.json", "a", r"`path` must end with \.rttm or \.csv; got"),
        ("a.rttm", "a b", "must have names without spaces in RTTM; got 'a b'"),
    ],
)
def test_what_cannot_be_written(tmp_path, name, recording, message):
    with pytest.raises(ValueError, match=message):
        write_segments(tmp_path / name, {recording: SEGMENTS})
    assert not list(tmp_path.iterdir())


def test_rttm_of_pyannote_is_read(tmp_path):
    core = pytest.importorskip("pyannote.core")
    annotation = core.Annotation(uri="a")
    for row, word in zip(SEGMENTS, ("bonafide", "spoof", "nonspeech", "bonafide"), strict=True):
        annotation[core.Segment(row.start_s, row.end_s)] = word
    with (tmp_path / "theirs.rttm").open("w") as file:
        annotation.write_rttm(file)
    assert read_segments(tmp_path / "theirs.rttm") == {"a": SEGMENTS}
    # Ours, word by word, is the same table but for the number of digits.
    write_segments(tmp_path / "ours.rttm", {"a": SEGMENTS})
    ours, theirs = (
        [line.split() for line in (tmp_path / name).read_text().splitlines()]
        for name in ("ours.rttm", "theirs.rttm")
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert [*mine[:3], *mine[5:7], *mine[8:]] == [*other[:3], *other[5:7], *other[8:]]
        assert [float(cell) for cell in mine[3:5]] == [float(cell) for cell in other[3:5]]
