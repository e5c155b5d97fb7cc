"""Score and key files: every allowed form, and what is said about the others."""

import zipfile

import numpy as np
import pytest

from asvspoof_cm import metrics


@pytest.fixture
def write(tmp_path):
    def write(text, name="file.tsv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        "filename\tcm-score\nE_1\t0.5\nE_2\t-1e-3\n",
        "E_1\t0.5\nE_2\t-1e-3\n",
        "E_1 0.5\nE_2   -1e-3",
        "\ufefffilename\tcm-score\r\nE_1\t0.5\r\nE_2\t-1e-3\r\n",
        "cm-score\tfilename\n0.5\tE_1\n\n-1e-3\t\tE_2\n\n",
        "filename,cm-score\nE_1,0.5\nE_2,-1e-3\n",
        "E_1,0.5\nE_2,-1e-3\n",
        'filename; llr\n"E_1";0.5\n\nE_2; -1e-3\n',
        '"utterance","log-odds","note"\n"E_1","0.5","a, b"\n"E_2","-1e-3",""\n',
        "filename\tllr\tdecision\twarnings\nE_1\t0.5\tbonafide\t\nE_2\t-1e-3\t\tno speech\n",
        "path\tutterance\tdecision\tscore\nx/1.wav\tE_1\tspoof\t0.5\nx\tE_2\tbonafide\t-1e-3\n",
    ],
)
def test_track1_scores_in_every_form(write, text):
    scores = metrics.read_scores(write(text))
    assert scores.filename.tolist() == ["E_1", "E_2"]
    assert scores.cm.tolist() == [0.5, -1e-3]
    assert scores.speaker is None
    assert scores.asv is None
    assert scores.sasv is None


def test_names_with_spaces_need_tabs(write):
    assert metrics.read_scores(write("my file.wav\t1\n")).filename.tolist() == ["my file.wav"]


def test_track2_scores_with_absent_columns(write):
    header = "spk\tfilename\tcm-score\tasv-score\tsasv-score\n"
    scores = metrics.read_scores(write(header + "S_1\tE_1\t-\t-\t0.04\nS_2\tE_1\t-\t-\t0.05\n"))
    assert scores.speaker.tolist() == ["S_1", "S_2"]
    assert scores.cm is None
    assert scores.asv is None
    assert scores.sasv.tolist() == [0.04, 0.05]


def test_keys_of_both_tracks(write):
    key = metrics.read_key(write("filename\tcm-label\nE_1\tbonafide\nE_2\tspoof\n"))
    assert key.cm_label.tolist() == [1, 0]
    text = "S_1 E_1 bonafide target\nS_2 E_1 bonafide nontarget\nS_1 E_2 spoof spoof\n"
    key = metrics.read_key(write(text))
    assert key.cm_label.tolist() == [1, 1, 0]
    assert key.asv_label.tolist() == ["target", "nontarget", "spoof"]


@pytest.mark.parametrize(
    "text", ['file;label;note\n"E_1";bonafide;"a;b"\nE_2;spoof;\n', "E_1,bonafide\nE_2,spoof\n"]
)
def test_keys_in_csv(write, text):
    key = metrics.read_key(write(text))
    assert key.filename.tolist() == ["E_1", "E_2"]
    assert key.cm_label.tolist() == [1, 0]
    assert repr(key) == "Key(2 trials: filename, cm_label)"


def test_the_column_can_say_the_unit(tmp_path):
    metrics.write_scores(tmp_path / "s.tsv", ["E_1"], [0.5], column="llr")
    assert (tmp_path / "s.tsv").read_text() == "filename\tllr\nE_1\t0.5\n"
    assert metrics.read_scores(tmp_path / "s.tsv").cm.tolist() == [0.5]
    with pytest.raises(ValueError, match="`column` must be one of 'cm-score', 'llr', 'log-odds', "):
        metrics.write_scores(tmp_path / "s.tsv", ["E_1"], [0.5], column="points")


@pytest.mark.parametrize(
    ("scored", "wanted", "joined"),
    [
        (["a.wav", "b.flac"], ["b", "a"], True),
        (["a", "b"], ["b.MP3", "a.ogg"], True),
        (["x/a.wav", "y z/b.wav"], ["b.wav", "a.wav"], True),
        (["a", "b"], ["c:\\x\\b.wav", "c:\\x\\a.wav"], True),
        (["x/a", "x/b"], ["y/b", "y/a"], False),
        (["x/a", "y/a"], ["a", "b"], False),
        (["a.wav", "b.wav"], ["b.flac", "a.flac"], False),  # both have one
        (["a.wav", "a.flac"], ["a", "b"], False),  # two become one
        (["a.x", "b.x"], ["a", "b"], False),
    ],
)
def test_extensions_on_one_side_only(scored, wanted, joined):
    scores = metrics.Scores(filename=np.array(scored), cm=np.array([1.0, 2.0]))
    key = metrics.Key(filename=np.array(wanted), cm_label=np.array([0, 1]))
    if not joined:
        with pytest.raises(ValueError, match="the scores must cover the trials of the key"):
            scores.for_key(key)
        return
    with pytest.warns(UserWarning, match="only one of the files has names with "):
        found = scores.for_key(key)
    assert found.cm.tolist() == [2.0, 1.0]
    assert found.filename.tolist() == wanted


def test_join_does_not_depend_on_the_order(write):
    rng = np.random.default_rng(0)
    names, values = [f"E_{i}" for i in range(50)], rng.normal(size=50)
    key = metrics.read_key(write("".join(f"{n} spoof\n" for n in names), "key"))
    order = rng.permutation(50)
    scores = metrics.read_scores(write("".join(f"{names[i]} {values[i]}\n" for i in order)))
    joined = scores.for_key(key)
    assert joined.filename.tolist() == names
    np.testing.assert_array_equal(joined.cm, values)


def test_track2_trials_are_pairs(write):
    key = metrics.read_key(write("S_1 E_1 bonafide target\nS_2 E_1 bonafide nontarget\n", "key"))
    scores = metrics.read_scores(write("S_2 E_1 - - 2.0\nS_1 E_1 - - 1.0\n"))
    assert scores.for_key(key).sasv.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (["E_1", "E_2"], r"1 are missing \(E_3\), 0 are not in the key"),
        (["E_1", "E_2", "E_3", "E_4"], r"0 are missing, 1 are not in the key \(E_4\)"),
        (
            ["a", "b", "c", "d", "E_3"],
            r"2 are missing \(E_1, E_2\), 4 are not in the key \(a, b, c, …\)",
        ),
    ],
)
def test_trials_that_do_not_match(write, scores, message):
    key = metrics.read_key(write("E_1 spoof\nE_2 spoof\nE_3 bonafide\n", "key"))
    table = metrics.read_scores(write("".join(f"{name} 1\n" for name in scores)))
    with pytest.raises(ValueError, match=message):
        table.for_key(key)


def test_tracks_do_not_mix(write):
    key = metrics.read_key(write("S_1 E_1 bonafide target\n", "key"))
    with pytest.raises(ValueError, match="of the same track; only the key have a speaker column"):
        metrics.read_scores(write("E_1 1\n")).for_key(key)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file holds no trial"),
        ("filename\tcm-score\n", "the file holds no trial"),
        ("E_1 1 2\n", r"must have 2 \(filename cm-score\) or 5 .* columns; the first has 3"),
        (
            "filename cm-score\nE_1 1\nE_2\n",
            r"line 3: each line must have 2 columns, as the first; got 1",
        ),
        ("E_1 1\nE_2 nan\nE_3 x\n", "cm-score must be a finite number; 2 of 3 are not, the first "),
        ("E_1 1\n\nE_2 inf\n", "in line 3: 'inf'"),
        ("E_1 1\nE_2 1\nE_1 2\n", r"every trial must occur once; 1 are repeated \(E_1\)"),
        ("filename\nE_1\n", "the header must name filename and cm-score or asv-score"),
        ("S E_1 - - -\n", "every score is absent"),
        (
            "S E_1 1 1 1\nS E_2 - 1 1\n",
            "cm-score must be a finite number; 1 of 2 .* in line 2: '-'",
        ),
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
    ],
)
def test_bad_keys(write, text, message):
    with pytest.raises(ValueError, match=message):
        metrics.read_key(write(text))


def test_written_scores_come_back_exactly(tmp_path):
    rng = np.random.default_rng(0)
    names = [f"E_{i:04d}" for i in range(200)]
    values = rng.normal(size=200) * 10.0 ** rng.integers(-12, 12, 200)
    metrics.write_scores(tmp_path / "s.tsv", names, values)
    back = metrics.read_scores(tmp_path / "s.tsv")
    assert back.filename.tolist() == names
    np.testing.assert_array_equal(back.cm, values)
    metrics.write_scores(
        tmp_path / "t2.tsv", names, None, speaker=["S_1"] * 200, asv=None, sasv=values
    )
    back = metrics.read_scores(tmp_path / "t2.tsv")
    assert back.cm is None
    assert back.asv is None
    np.testing.assert_array_equal(back.sasv, values)


def test_submission_is_a_zip_of_score_tsv_and_repeatable(tmp_path):
    for name in ("a.zip", "b.zip"):
        metrics.write_submission(tmp_path / name, ["E_1", "E_2"], [0.5, -1.0])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["score.tsv"]
        assert archive.read("score.tsv") == b"filename\tcm-score\nE_1\t0.5\nE_2\t-1.0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filename": ["a", "a"], "cm": [1.0, 2.0]}, "`filename` must name every trial once"),
        (
            {"filename": ["a"], "cm": [1.0, 2.0]},
            r"`cm` must have one value per trial, shape \(1,\)",
        ),
        ({"filename": ["a"], "cm": [np.nan]}, "`cm` must be finite; got 1 NaN"),
        ({"filename": ["a\tb"], "cm": [1.0]}, "`filename` must be neither empty nor hold tabs"),
        ({"filename": [], "cm": []}, r"`filename` must have shape \(n_trials,\), n ≥ 1"),
        ({"filename": ["a"], "cm": [1.0], "asv": [1.0]}, "`speaker` must be given with `asv`"),
        ({"filename": ["a"], "cm": None}, "`cm` must be given where there is no `sasv` score"),
    ],
)
def test_bad_scores_write_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics.write_scores(tmp_path / "s.tsv", **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\xa0b", "a\x0bb", "a\u2028b", "a\x85b", "a b\xa0c", "a\x1cb"])
def test_names_with_odd_white_space_come_back(tmp_path, name):
    metrics.write_scores(tmp_path / "s.tsv", [name, "E_2"], [1.0, 2.0])
    assert metrics.read_scores(tmp_path / "s.tsv").filename.tolist() == [name, "E_2"]


def test_repeated_trials_in_arrays_are_refused():
    names, labels = np.array(["E_1", "E_1"]), np.array([1, 0])
    scores = metrics.Scores(filename=names, cm=np.array([1.0, 2.0]))
    key = metrics.Key(filename=np.array(["E_1"]), cm_label=labels[:1])
    with pytest.raises(ValueError, match=r"the scores: every trial must occur once; 1 .*\(E_1\)"):
        scores.for_key(key)
    single = metrics.Scores(filename=names[:1], cm=np.array([1.0]))
    with pytest.raises(ValueError, match=r"the key: every trial must occur once; 1 .*\(E_1\)"):
        single.for_key(metrics.Key(filename=names, cm_label=labels))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("filename cm-score cm-score\nE_1 1 2\n", "the header must name every column once; got f"),
        ("E_1 1\nE_2 1_0\n", "cm-score must be a finite number; 1 of 2 .* in line 2: '1_0'"),
        ("filename llr log-odds\nE_1 1 2\n", "the header must name every column once; got f"),
        ("E_1;0,5\n", "cm-score must be a finite number; .* '0,5'. Write a decimal point"),
        ("name,points\nE_1,1\n", "'points'. If that is a header, call the columns filename and c"),
        ("E_1 - - A09 spoof\n", "the first has 5: E_1 - - A09 spoof. It has labels, as a key"),
        ('"E_1,0.5\n', "not valid CSV"),
        (",1\n", "line 1: the file name is empty"),
        ("E_1 \u0661\n", "cm-score must be a finite number; 1 of 1 .* in line 1"),
    ],
)
def test_more_bad_score_files(tmp_path, text, message):
    (tmp_path / "s.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        metrics.read_scores(tmp_path / "s.tsv")


@pytest.mark.parametrize("labels", ["spoof target", "bonafide spoof"])
def test_contradicting_labels_are_refused(write, labels):
    with pytest.raises(ValueError, match=f"line 2: cm-label and asv-label .* got {labels}"):
        metrics.read_key(write(f"S E_1 spoof spoof\nS E_2 {labels}\n"))


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "scores.zip").write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(ValueError, match=r"scores\.zip is not UTF-8 text \(invalid start byte\)"):
        metrics.read_scores(tmp_path / "scores.zip")


@pytest.mark.parametrize("name", [" E_1", "E_1\xa0", "E\r1", ""])
@pytest.mark.parametrize("argument", ["filename", "speaker"])
def test_names_that_would_not_come_back(tmp_path, argument, name):
    names = {"filename": ["E_1"], "speaker": ["S_1"], argument: [name]}
    with pytest.raises(ValueError, match=f"`{argument}` must be neither empty nor hold tabs"):
        metrics.write_scores(tmp_path / "s.tsv", cm=[1.0], **names)
