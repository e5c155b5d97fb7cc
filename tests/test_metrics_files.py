"""Score and key files: every allowed form, what is said of the others, how they are joined."""

import os
import zipfile

import numpy as np
import pytest

from asvspoof_cm import metrics


@pytest.fixture
def write(tmp_path):
    path = tmp_path / "file.tsv"

    def write(text):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def scores_of(names, values=None):
    values = np.ones(len(names)) if values is None else np.array(values)
    return metrics.Scores(filename=np.array(names), cm=values)


def key_of(names):
    return metrics.Key(filename=np.array(names), cm_label=np.zeros(len(names), dtype=int))


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("E_1\t0.5\nE_2\t-1e-3\n", None),
        ("E_1 0.5\nE_2   -1e-3", None),
        ("\ufefffilename\tcm-score\r\nE_1\t0.5\r\nE_2\t-1e-3\r\n", None),
        ("cm-score\tfilename\n0.5\tE_1\n\n-1e-3\tE_2\n\n", None),
        ("filename,cm-score\nE_1,0.5\nE_2,-1e-3\n", None),
        ('filename; llr\n"E_1";0.5\n\nE_2; -1e-3\n', "llr"),
        ('"utterance","log-odds","note"\n"E_1","0.5","a, b"\n"E_2","-1e-3",""\n', "log-odds"),
        ("filename\tllr\tdecision\twarnings\nE_1\t0.5\tbonafide\t\nE_2\t-1e-3\t\tno\n", "llr"),
        ("path\tutterance\tdecision\tscore\nx/1.wav\tE_1\tspoof\t0.5\nx\tE_2\t-\t-1e-3\n", None),
    ],
)
def test_track1_scores_in_every_form(write, text, unit):
    scores = metrics.read_scores(write(text))
    assert scores.filename.tolist() == ["E_1", "E_2"]
    assert scores.cm.tolist() == [0.5, -1e-3]
    assert (scores.asv, scores.sasv, scores.unit) == (None, None, unit)


def test_track2_names_a_trial_by_speaker_and_file(write):
    header = "spk\tfilename\tcm-score\tasv-score\tsasv-score\n"
    scores = metrics.read_scores(write(header + "S_2\tE_1\t-\t-\t0.04\nS_1\tE_1\t-\t-\t0.05\n"))
    assert scores.filename.tolist() == ["S_2 E_1", "S_1 E_1"]
    assert (scores.cm, scores.asv, scores.sasv.tolist()) == (None, None, [0.04, 0.05])
    text = "S_1 E_1 bonafide target\nS_2 E_1 bonafide nontarget\n"
    key = metrics.read_key(write(text))
    assert key.cm_label.tolist() == [1, 1]
    assert key.asv_label.tolist() == ["target", "nontarget"]
    assert scores.for_key(key).sasv.tolist() == [0.05, 0.04]
    with pytest.raises(ValueError, match=r"2 are missing \(S_1 E_1, S_2 E_1\), 1 are not in the"):
        scores_of(["E_1"]).for_key(key)


@pytest.mark.parametrize(
    "text",
    [
        "filename\tcm-label\nE_1\tbonafide\nE_2\tspoof\n",
        'file;label;note\n"E_1";bonafide;"a;b"\nE_2;spoof;\n',
        "E_1,bonafide\nE_2,spoof\n",
        "spk filename cm-label\nS E_1 bonafide\nS E_2 spoof\n",
    ],
)
def test_keys_of_track1(write, text):
    key = metrics.read_key(write(text))
    assert key.filename.tolist() == ["E_1", "E_2"]
    assert key.cm_label.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("scored", "wanted", "joined"),
    [
        (["a.wav", "b.flac"], ["b", "a"], True),
        (["a", "b"], ["b.MP3", "a.ogg"], True),
        (["x/a.wav", "y z/b.wav"], ["b.wav", "a.wav"], True),
        (["a", "b"], ["c:\\x\\b.wav", "c:\\x\\a.wav"], True),
        (["x/a", "x/b"], ["y/b", "y/a"], False),
        (["x/a", "y/a"], ["a", "b"], False),
        (["a.wav", "b.wav"], ["b.flac", "a.flac"], False),
        (["a.wav", "a.flac"], ["a", "b"], False),  # two become one
    ],
)
def test_extensions_and_folders_on_one_side_only(scored, wanted, joined):
    scores, key = scores_of(scored, [1.0, 2.0]), key_of(wanted)
    if not joined:
        with pytest.raises(ValueError, match="the scores must cover the trials of the key"):
            scores.for_key(key)
        return
    with pytest.warns(UserWarning, match="only one of the files has names with "):
        found = scores.for_key(key)
    assert found.cm.tolist() == [2.0, 1.0]
    assert found.filename.tolist() == wanted


@pytest.mark.parametrize(
    ("scored", "message"),
    [
        (["E_1", "E_2"], r"1 are missing \(E_3\), 0 are not in the key"),
        (["E_1", "E_2", "E_3", "E_4"], r"0 are missing, 1 are not in the key \(E_4\)"),
        (["a", "b", "c", "d", "E_3"], r"2 .* \(E_1, E_2\), 4 are not in the key \(a, b, c, …\)"),
    ],
)
def test_trials_that_do_not_match(scored, message):
    scores, key = scores_of(scored), key_of(["E_1", "E_2", "E_3"])
    with pytest.raises(ValueError, match=message):
        scores.for_key(key)
    found = scores.for_key(key, skip_missing=True)
    assert (~np.isnan(found.cm)).tolist() == [name in scored for name in key.filename]


def test_repeated_trials_are_refused():
    once, twice = ["E_1"], ["E_1", "E_1"]
    for sides, where in (((twice, once), "the scores"), ((once, twice), "the key")):
        message = rf"{where}: every trial must occur once; 1 .*\(E_1\)"
        with pytest.raises(ValueError, match=message):
            scores_of(sides[0]).for_key(key_of(sides[1]))


FINITE = "cm-score must be a finite number; "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file holds no trial"),
        ("filename\tcm-score\n", "the file holds no trial"),
        ("E_1 1 2\n", r"must have 2 columns \(filename cm-score\) or 5 .*; the first has 3"),
        ("filename cm-score\nE_1 1\nE_2\n", "line 3: each line must have 2 columns, as the first"),
        ("E_1 1\nE_2 nan\nE_3 x\n", f"{FINITE}2 of 3 are not, the first "),
        ("E_1 1\n\nE_2 inf\n", "in line 3: 'inf'"),
        ("E_1 1\nE_2 1_0\n", f"{FINITE}1 of 2 .* in line 2: '1_0'"),
        ("E_1 \u0661\n", f"{FINITE}1 of 1 .* in line 1"),
        ("E_1;0,5\n", f"{FINITE}.* '0,5'. Write a decimal point"),
        ("name,points\nE_1,1\n", "'points'. If that is a header, call the columns filename and c"),
        ("E_1 1\nE_2 1\nE_1 2\n", r"every trial must occur once; 1 are repeated \(E_1\)"),
        ("filename\nE_1\n", "the header must name filename and cm-score or asv-score"),
        ("filename llr log-odds\nE_1 1 2\n", "the header must name every column once; got f"),
        ("S E_1 - - -\n", "every score is absent"),
        ("S E_1 1 1 1\nS E_2 - 1 1\n", f"{FINITE}1 of 2 .* in line 2: '-'"),
        ("E_1 - - A09 spoof\n", "the first has 5: E_1 - - A09 spoof. It has labels: it is a key"),
        ('"E_1,0.5\n', "not valid CSV"),
        (",1\n", "line 1: the file name is empty"),
        (b"PK\x03\x04\xff\xfe", r"file\.tsv is not UTF-8 text \(invalid start byte\)"),
    ],
)
def test_bad_score_files(write, text, message):
    with pytest.raises(ValueError, match=message):
        metrics.read_scores(write(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E_1 genuine\n", "line 1: a label must be one of spoof, bonafide, .*; got 'genuine'"),
        ("S E_1 spoof attacker\n", "must be one of target, nontarget, spoof; got 'attacker'"),
        ("S E_1 spoof spoof\nS E_2 spoof target\n", "line 2: cm-label and .* got spoof target"),
        ("E_1 0.5\n", "got '0.5'. It looks like a score file"),
    ],
)
def test_bad_keys(write, text, message):
    with pytest.raises(ValueError, match=message):
        metrics.read_key(write(text))


def test_written_scores_come_back_exactly(tmp_path):
    rng = np.random.default_rng(0)
    odd = ["a\xa0b", "a\x0bb", "a\u2028b", "a\x85b", "a b\xa0c", "a\x1cb", "my file.wav"]
    names = [*odd, *(f"E_{i:04d}" for i in range(200))]
    values = rng.normal(size=len(names)) * 10.0 ** rng.integers(-12, 12, len(names))
    metrics.write_scores(tmp_path / "s.tsv", names, values, column="llr")
    back = metrics.read_scores(tmp_path / "s.tsv")
    assert (back.filename.tolist(), back.unit) == (names, "llr")
    np.testing.assert_array_equal(back.cm, values)


def test_a_submission_is_a_zip_of_score_tsv_and_repeatable(tmp_path):
    for name in ("a.zip", "b.zip"):
        metrics.write_scores(tmp_path / name, ["E_1", "E_2"], [0.5, -1.0])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["score.tsv"]
        assert archive.read("score.tsv") == b"filename\tcm-score\nE_1\t0.5\nE_2\t-1.0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "a"], [1.0, 2.0]), r"`filename`: every trial must occur once; 1 are repeated \(a"),
        ((["a"], [1.0, 2.0]), r"`scores` must have one value per trial, shape \(1,\)"),
        ((["a"], [np.nan]), "`scores` must be finite; got 1 NaN"),
        (([], []), "`scores` must hold at least one score"),
        *(
            (([name], [1.0]), "`filename` must be neither")
            for name in ("a\tb", "E_1\xa0", "E\r1", "")
        ),
    ],
)
def test_bad_scores_write_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics.write_scores(tmp_path / "s.tsv", *arguments)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="`column` must be one of 'cm-score', 'llr', 'log-odds', "):
        metrics.write_scores(tmp_path / "s.tsv", ["E_1"], [0.5], column="points")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are those of POSIX")
def test_a_pipe_does_not_make_it_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    for read in (metrics.read_scores, metrics.read_key, metrics.read_frame_scores):
        with pytest.raises(ValueError, match=r"pipe\.tsv must be a regular file"):
            read(tmp_path / "pipe.tsv")
