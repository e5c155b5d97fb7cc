"""``asvspoof-cm evaluate`` prints what the functions compute, and one line on bad input."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from asvspoof_cm import metrics
from asvspoof_cm.cli import main
from asvspoof_cm.data import Segment, write_segments


@pytest.fixture
def trials(tmp_path):
    """A score file in another order than its key, and the columns of a protocol."""
    rng = np.random.default_rng(0)
    n = 400
    names = np.array([f"D_{i:04d}" for i in range(n)])
    attack = rng.choice(["-", "A09", "A10"], n)
    labels = np.where(attack == "-", 1, 0)
    scores = np.where(labels == 1, 1.5, -1.5) + rng.normal(0, 1, n)
    order = rng.permutation(n)
    metrics.write_scores(tmp_path / "scores.tsv", names[order], scores[order])
    words = np.where(labels == 1, "bonafide", "spoof")
    key = "".join(f"{name}\t{word}\n" for name, word in zip(names, words, strict=True))
    (tmp_path / "key.tsv").write_text("filename\tcm-label\n" + key)
    columns = {
        "attack": attack,
        "codec": rng.choice(["C00", "C01"], n),
        "speaker": np.array([f"S_{i}" for i in rng.integers(0, 20, n)]),
        "gender": rng.choice(["F", "M"], n),
    }
    return SimpleNamespace(
        names=names, labels=labels, words=words, scores=scores, folder=tmp_path, columns=columns
    )


@pytest.fixture
def protocol(trials):
    """The arguments that name a protocol of ASVspoof 5 with these trials in another order."""
    c = trials.columns
    rows = [
        f"{speaker} {name} {gender} {codec} - - AC1 {attack} {word} -\n".replace(
            "AC1 - bonafide", "- bonafide bonafide"
        )
        for speaker, name, gender, codec, attack, word in zip(
            c["speaker"],
            trials.names,
            c["gender"],
            c["codec"],
            c["attack"],
            trials.words,
            strict=True,
        )
    ]
    order = np.random.default_rng(1).permutation(len(rows))
    path = trials.folder / "protocol.tsv"
    path.write_text("".join(rows[i] for i in order))
    return ["--protocol", str(path)]


def arguments(trials, *more):
    scores, key = trials.folder / "scores.tsv", trials.folder / "key.tsv"
    return ["evaluate", "--scores", str(scores), "--key", str(key), *more]


def test_table(trials, capsys):
    assert main(arguments(trials)) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{metrics.evaluate(trials.scores, trials.labels)}\n"
    assert captured.err == ""


def test_json_with_breakdown_and_clustered_intervals(trials, protocol, capsys):
    more = ["--by", "attack,codec", "attack", "--match", "codec", "--bootstrap", "100"]
    assert main(arguments(trials, *protocol, *more, "--cluster", "speaker", "--json")) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["track1"] == metrics.evaluate(trials.scores, trials.labels).as_dict()
    columns = trials.columns
    is_bonafide = trials.labels == 1
    expected = metrics.bootstrap(
        metrics.METRICS,
        trials.scores[is_bonafide],
        trials.scores[~is_bonafide],
        100,
        clusters=(columns["speaker"][is_bonafide], columns["speaker"][~is_bonafide]),
    )
    assert content["intervals"] == {name: item.as_dict() for name, item in expected.items()}
    crossed = metrics.breakdown(
        trials.scores,
        trials.labels,
        {"attack": columns["attack"], "codec": columns["codec"]},
        match=["codec"],
        n_bootstrap=100,
        clusters=columns["speaker"],
    )
    assert content["by_attack_codec"] == crossed.as_dict()
    assert [row["group"] for row in content["by_attack"]["rows"]] == [["A09"], ["A10"], ["pooled"]]


def test_protocol_can_be_the_key(trials, protocol, capsys):
    scores = str(trials.folder / "scores.tsv")
    assert main(["evaluate", "--scores", scores, *protocol]) == 0
    assert capsys.readouterr().out == f"{metrics.evaluate(trials.scores, trials.labels)}\n"


def test_sources_are_measured_within_and_pooled(trials, other, capsys):
    path = trials.folder / "sources.tsv"
    sources = np.where(np.arange(400) < 200, "page", "call")
    rows = zip(trials.names, trials.words, sources, strict=True)
    lines = ["utterance\tlabel\tsource", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    files = ["evaluate", "--protocol", str(path), "--bootstrap", "100", "--scores"]
    first = str(trials.folder / "scores.tsv")
    assert main([*files, first, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    expected = metrics.within_sources(trials.scores, trials.labels, sources, n_bootstrap=100)
    assert content["within_source"] == expected.as_dict()
    assert main([*files, first]) == 0
    assert str(expected) in capsys.readouterr().out
    assert main([*files, first, other.path]) == 0
    second = metrics.within_sources(other.scores, trials.labels, sources)
    errors = [100 * float(result.mean.values["eer"]) for result in (expected, second)]
    lines = capsys.readouterr().out.splitlines()
    cells = next(line for line in lines if "mean within sources" in line).split()[-3:]
    assert cells == [f"{value:.3f}" for value in (*errors, errors[0] - errors[1])]


def test_plots_and_their_paths(trials, protocol, capsys):
    figures = trials.folder / "figures"
    command = arguments(trials, *protocol, "--by", "attack", "--plots", str(figures))
    assert main(command) == 0
    names = ["det.png", "scores.png", "calibration.png", "by_attack.png"]
    assert sorted(path.name for path in figures.iterdir()) == sorted(names)
    printed = capsys.readouterr().out.split("\n\n")[-1]
    assert printed.split() == [str(figures / name) for name in names]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == printed.split()


@pytest.fixture
def other(trials):
    """The score file of a second system, worse than the first, without a header."""
    scores = trials.scores + np.random.default_rng(5).normal(0, 2, 400)
    lines = [f"{name};{score}\n" for name, score in zip(trials.names, scores, strict=True)]
    path = trials.folder / "other.csv"
    path.write_text("".join(lines))
    return SimpleNamespace(path=str(path), scores=scores)


def test_several_score_files_are_compared(trials, protocol, other, capsys):
    first = str(trials.folder / "scores.tsv")
    third = trials.folder / "third.tsv"
    metrics.write_scores(third, trials.names, trials.scores / 2, column="llr")
    command = arguments(trials, *protocol, "--scores", first, other.path, str(third))
    figures = trials.folder / "figures"
    more = ["--by", "attack", "--threshold", "0", "--cluster", "speaker"]
    assert main([*command, *more, "--json", "--plots", str(figures)]) == 0
    content = json.loads(capsys.readouterr().out)
    systems = [trials.scores, other.scores, trials.scores / 2]
    speaker = trials.columns["speaker"]
    for part, path, scores in zip(
        content["systems"], [first, other.path, str(third)], systems, strict=True
    ):
        assert part["scores"] == path
        assert part["track1"] == metrics.evaluate(scores, trials.labels).as_dict()
        expected = metrics.breakdown(scores, trials.labels, {"attack": trials.columns["attack"]})
        assert part["by_attack"] == expected.as_dict()
        assert (
            part["decisions"]
            == metrics.decisions(scores, trials.labels, 0.0, clusters=speaker).as_dict()
        )
    assert list(content["differences"]) == ["other", "third"]
    for name, scores in zip(("other", "third"), systems[1:], strict=True):
        expected = metrics.compare(
            trials.scores, scores, trials.labels, metrics.METRICS, clusters=speaker
        )
        assert content["differences"][name] == {k: v.as_dict() for k, v in expected.items()}
    assert content["pictures"] == [str(figures / "det.png")]

    assert main([*command, "--by", "attack", "gender", "--bootstrap", "200"]) == 0
    table, *groups = capsys.readouterr().out.strip().split("\n\n")
    expected = metrics.compare(trials.scores, other.scores, trials.labels, "eer", 200)
    line = next(line for line in table.splitlines() if line.startswith("EER"))
    assert metrics.METRICS["eer"].text(expected) in line
    assert f"{100 * metrics.evaluate(other.scores, trials.labels).eer.value:.3f}" in line
    assert [part for part in groups if "\n" not in part] == ["scores", "other", "third"]
    assert [part.split()[0] for part in groups if "\n" in part] == ["attack", "gender"] * 3


def test_different_units_are_not_compared(trials, capsys):
    paths = [trials.folder / f"{unit}.tsv" for unit in ("llr", "log-odds")]
    for path in paths:
        metrics.write_scores(path, trials.names, trials.scores, column=path.stem)
    assert main(arguments(trials, "--scores", *map(str, paths))) == 2
    error = capsys.readouterr().err
    assert "--scores must be in one unit to be compared" in error
    assert "llr.tsv holds llr and" in error


def test_trials_without_a_score_are_left_out_and_counted(trials, protocol, capsys):
    kept = np.arange(400) >= 7
    metrics.write_scores(trials.folder / "scores.tsv", trials.names[kept], trials.scores[kept])
    assert main(arguments(trials, *protocol)) == 2
    assert "7 are missing (D_0000, D_0001, D_0002, …)" in capsys.readouterr().err
    command = arguments(trials, *protocol, "--skip-missing", "--by", "codec", "--json")
    assert main(command) == 0
    content = json.loads(capsys.readouterr().out)
    n_bonafide = int((trials.labels[:7] == 1).sum())
    assert content["left_out"] == {"bonafide": n_bonafide, "spoof": 7 - n_bonafide}
    expected = metrics.evaluate(trials.scores[kept], trials.labels[kept])
    assert content["track1"] == expected.as_dict()
    groups = {"codec": trials.columns["codec"][kept]}
    expected = metrics.breakdown(trials.scores[kept], trials.labels[kept], groups)
    assert content["by_codec"] == expected.as_dict()
    assert main(command[:-1]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head == f"left out, without a score: {n_bonafide} bonafide, {7 - n_bonafide} spoof"


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_tables_in_other_forms(trials, protocol, capsys, form):
    assert main(arguments(trials, *protocol, "--by", "attack", "--form", form)) == 0
    expected = [
        metrics.evaluate(trials.scores, trials.labels),
        metrics.breakdown(trials.scores, trials.labels, {"attack": trials.columns["attack"]}),
    ]
    texts = [result.table().text(form) for result in expected]
    assert capsys.readouterr().out == "\n\n".join(texts) + "\n"


def test_decisions_at_a_threshold(trials, protocol, capsys):
    command = arguments(trials, *protocol, "--threshold", "0.5", "--by", "gender")
    assert main(command) == 0
    *_, decided, _, groups = capsys.readouterr().out.strip().split("\n\n")
    found = metrics.decisions(trials.scores, trials.labels, 0.5)
    assert decided == str(found)
    gender = {"gender": trials.columns["gender"]}
    assert groups == str(metrics.decisions(trials.scores, trials.labels, 0.5, groups=gender))


def test_the_protocol_must_be_the_subset_that_is_expected(trials, protocol, capsys):
    assert main(arguments(trials, *protocol, "--expect", "dev")) == 2
    assert "is not the whole dev set of ASVspoof 5: expected" in capsys.readouterr().err


def test_segments(tmp_path, capsys):
    names = "abcde"
    truth = {
        name: [Segment(0.0, 3.5 - k / 2, 1), Segment(3.5 - k / 2, 4.0, 0)]
        for k, name in enumerate(names)
    }
    write_segments(tmp_path / "key.csv", truth)
    (tmp_path / "spoof.rttm").write_text("SPEAKER a 1 3.5 0.5 <NA> <NA> spoof <NA> <NA>\n")
    scores = {name: [(k / 2, k / 2 + 0.5, 2.0 - k) for k in range(8)] for name in names}
    rows = [f"{name},{','.join(map(str, row))}\n" for name in names for row in scores[name]]
    (tmp_path / "frames.csv").write_text("filename,start_s,end_s,llr\n" + "".join(rows))
    command = ["evaluate", "--scores", str(tmp_path / "frames.csv"), "--segments"]
    more = ["--threshold", "0", "--bootstrap", "100", "--plots", str(tmp_path)]
    assert main([*command, str(tmp_path / "key.csv"), *more]) == 0
    expected = metrics.evaluate_segments(truth, scores, 0.0, n_bootstrap=100)
    pictures = "\n".join(str(tmp_path / f"{name}.png") for name in "abcd")  # by rising F1
    assert capsys.readouterr().out == f"{expected}\n\n{pictures}\n"
    assert (tmp_path / "a.png").is_file()
    (tmp_path / "frames.csv").write_text("filename,start_s,end_s,llr\n" + "".join(rows[:8]))
    assert main([*command, str(tmp_path / "spoof.rttm"), "--gaps", "bonafide", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["segments"]
    assert found == metrics.evaluate_segments({"a": truth["a"]}, {"a": scores["a"]}).as_dict()
    assert main([*command, str(tmp_path / "key.csv"), "--by", "attack"]) == 2
    assert "--by has no effect with --segments" in capsys.readouterr().err


def test_pictures_of_names_that_look_alike_are_apart(tmp_path, capsys):
    truth = {name: [Segment(0.0, 1.0, 1), Segment(1.0, 2.0, 0)] for name in ("a/b", "a_b", "A_b")}
    write_segments(tmp_path / "key.csv", truth)
    rows = [f"{name},0,1,2\n{name},1,2,-2\n" for name in truth]
    (tmp_path / "frames.csv").write_text("filename,start_s,end_s,llr\n" + "".join(rows))
    files = ["--scores", str(tmp_path / "frames.csv"), "--segments", str(tmp_path / "key.csv")]
    figures = tmp_path / "figures"
    assert main(["evaluate", *files, "--plots", str(figures)]) == 0
    names = ["a_b.png", "a_b_2.png", "A_b_3.png"]
    assert sorted(path.name for path in figures.iterdir()) == sorted(names)
    printed = capsys.readouterr().out.split()[-3:]
    assert printed == [str(figures / name) for name in names]


def test_names_with_an_extension_are_joined_and_it_is_said(trials, protocol, capsys):
    names = [f"{name}.flac" for name in trials.names]
    metrics.write_scores(trials.folder / "scores.tsv", names, trials.scores)
    for more in ([], protocol):
        assert main(arguments(trials, *more)) == 0
        captured = capsys.readouterr()
        assert captured.out == f"{metrics.evaluate(trials.scores, trials.labels)}\n"
        assert captured.err == (
            "asvspoof-cm evaluate: warning: only one of the files has names with an extension, "
            "such as D_0000.flac; they were joined without it.\n"
        )


def test_a_protocol_in_the_place_of_another_file_is_recognised(trials, protocol, capsys):
    scores, key = trials.folder / "scores.tsv", trials.folder / "key.tsv"
    for arguments, hint in (
        (["--scores", scores, "--key", protocol[1]], "It looks like a protocol."),
        (["--scores", protocol[1], "--key", key], "It has labels: it is a key."),
        (["--scores", key, "--key", key], "It has labels: it is a key."),
        (["--scores", scores, "--key", scores], "It looks like a score file."),
    ):
        assert main(["evaluate", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert hint in error


def test_warnings_are_lines_on_standard_error(trials, capsys):
    metrics.write_scores(trials.folder / "scores.tsv", trials.names, -trials.scores)
    assert main(arguments(trials)) == 0
    error = capsys.readouterr().err
    assert error.startswith("asvspoof-cm evaluate: warning: the EER is ")
    assert error.count("\n") == 1


def test_track2(tmp_path, capsys):
    rng = np.random.default_rng(0)
    labels = np.repeat(["target", "nontarget", "spoof"], [40, 60, 80])
    names = np.array([f"E_{i}" for i in range(180)])
    speakers = np.array([f"S_{i % 7}" for i in range(180)])
    asv = rng.normal(np.repeat([2, -2, 1], [40, 60, 80]), 1)
    cm = rng.normal(np.repeat([2, 2, -1], [40, 60, 80]), 1)
    lines = [
        f"{s} {f} {'spoof' if a == 'spoof' else 'bonafide'} {a}\n"
        for s, f, a in zip(speakers, names, labels, strict=True)
    ]
    (tmp_path / "key.tsv").write_text("".join(lines))
    path = tmp_path / "scores.tsv"
    columns = zip(speakers, names, cm, asv, asv + cm, strict=True)
    rows = ["\t".join(map(str, row)) for row in columns]
    path.write_text("\n".join(rows[::-1]))
    command = ["evaluate", "--track", "2", "--scores", str(path), "--key"]
    assert main([*command, str(tmp_path / "key.tsv"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)["track2"]
    parts = [labels == name for name in ("target", "nontarget", "spoof")]
    sasv = asv + cm
    assert content["n_spoof"] == 80
    assert content["a_dcf"] == metrics.a_dcf(*(sasv[p] for p in parts)).value
    bonafide, spoof = cm[~parts[2]], cm[parts[2]]
    assert content["min_t_dcf"] == metrics.min_t_dcf(bonafide, spoof).value
    asv_scores = tuple(asv[p] for p in parts)
    t_eer = metrics.t_eer(asv_scores, (bonafide, spoof))
    assert content["t_eer"] == t_eer.value
    assert content["t_eer_asv_threshold"] == t_eer.asv_threshold
    assert content["t_eer_cm_threshold"] == t_eer.cm_threshold
    assert content["a_dcf_threshold"] == metrics.a_dcf(*(sasv[p] for p in parts)).threshold
    assert content["min_t_dcf_threshold"] == metrics.min_t_dcf(bonafide, spoof).threshold
    assert content["min_t_dcf_asv"] == "error rates of the organisers' speaker verification"

    only = [f"{s} {f} - - {score}" for s, f, score in zip(speakers, names, sasv, strict=True)]
    path.write_text("\n".join(only))
    assert main([*command, str(tmp_path / "key.tsv")]) == 0
    assert "a_dcf" in (out := capsys.readouterr().out)
    assert "t_eer" not in out
    assert main([*command, str(tmp_path / "key.tsv"), "--bootstrap", "5"]) == 2
    assert "--bootstrap must be at least 100 replicates" in capsys.readouterr().err


def test_key_or_protocol_is_needed(trials, capsys):
    assert main(["evaluate", "--scores", str(trials.folder / "scores.tsv")]) == 2
    assert "--key or --protocol must be given" in capsys.readouterr().err


def test_columns_that_are_none(trials, protocol, capsys):
    assert main(arguments(trials, *protocol, "--by", "atack")) == 2
    assert "must be one of 'speaker', 'gender', 'codec'" in capsys.readouterr().err
    assert main(arguments(trials, *protocol, "--cluster", "speaker")) == 2
    assert "--cluster is for intervals; add --bootstrap N" in capsys.readouterr().err


def test_intervals_stand_in_the_table(trials, protocol, capsys):
    more = ["--bootstrap", "100", "--by", "attack"]
    assert main(arguments(trials, *protocol, *more)) == 0
    table, groups = capsys.readouterr().out.strip().split("\n\n")
    pair = trials.scores[trials.labels == 1], trials.scores[trials.labels == 0]
    eer = metrics.METRICS["eer"].text(metrics.bootstrap("eer", *pair, 100))
    assert eer in next(line for line in table.splitlines() if line.startswith("EER (%)"))
    assert eer in groups.splitlines()[-1]


def test_json_of_a_constant_scorer_is_json(trials, capsys):
    metrics.write_scores(trials.folder / "scores.tsv", trials.names, np.zeros(400))
    assert main(arguments(trials, "--json")) == 0
    out = capsys.readouterr().out
    assert "Infinity" not in out
    assert "NaN" not in out
    assert json.loads(out)["track1"]["eer"] == {"value": 1.0, "threshold": 0.0}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--by", "attack"], "--by has no effect without --protocol"),
        (["--track", "2"], "Track 2 needs the columns spk filename cm-label asv-label"),
        (["--key", "nowhere.tsv"], "nowhere.tsv: No such file or directory."),
        (["--cluster", "speaker"], "--cluster has no effect without --protocol"),
        (["--match", "codec"], "--match must name columns of --by; got codec"),
        (["--bootstrap", "-1"], "--bootstrap must be at least 100 replicates, or 0 for none"),
        (["--bootstrap", "99"], "fewer say nothing about the ends of an interval; got 99"),
        (["--gaps", "bonafide"], "--gaps has no effect without --segments"),
        (["--scores", "a", "b", "--track", "2"], "one file of --scores must be given with"),
        (["--track", "2", "--threshold", "0"], "--threshold has no effect with --track 2"),
        (["--track", "2", "--match", "codec"], "--match has no effect with --track 2"),
        (["--segments", "k"], "--key has no effect with --segments"),
    ],
)
def test_bad_options_are_one_line(trials, capsys, more, message):
    assert main(arguments(trials, *more)) == 2
    error = capsys.readouterr().err
    assert error.startswith("asvspoof-cm evaluate: ")
    assert error.count("\n") == 1
    assert message in error


def test_plots_without_matplotlib_fail_first(trials, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(metrics, "bootstrap", lambda *_, **__: pytest.fail("bootstrapped first"))
    figures = trials.folder / "figures"
    assert main(arguments(trials, "--bootstrap", "100", "--plots", str(figures))) == 2
    assert "this needs matplotlib.figure, an extra" in capsys.readouterr().err


@pytest.mark.parametrize("system", ["cm", "asv"])
def test_track2_needs_sasv_or_both(tmp_path, capsys, system):
    (tmp_path / "key.tsv").write_text("S E_1 bonafide target\nS E_2 spoof spoof\n")
    score = {"cm": "1 - -", "asv": "- 1 -"}[system]
    (tmp_path / "scores.tsv").write_text(f"S E_1 {score}\nS E_2 {score}\n")
    files = ["--scores", str(tmp_path / "scores.tsv"), "--key", str(tmp_path / "key.tsv")]
    assert main(["evaluate", "--track", "2", *files]) == 2
    message = f"needs sasv-score, or cm-score and asv-score; it holds {system}-score only"
    assert message in capsys.readouterr().err
