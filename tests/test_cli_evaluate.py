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
    columns = c["speaker"], trials.names, c["gender"], c["codec"], c["attack"], trials.words
    rows = [
        f"{speaker} {name} {gender} {codec} - - AC1 {attack} {word} -\n".replace(
            "AC1 - bonafide", "- bonafide bonafide"
        )
        for speaker, name, gender, codec, attack, word in zip(*columns, strict=True)
    ]
    order = np.random.default_rng(1).permutation(len(rows))
    path = trials.folder / "protocol.tsv"
    path.write_text("".join(rows[i] for i in order))
    return ["--protocol", str(path)]


@pytest.fixture
def other(trials):
    """The score file of a second system, worse than the first, without a header."""
    scores = trials.scores + np.random.default_rng(5).normal(0, 2, 400)
    lines = [f"{name};{score}\n" for name, score in zip(trials.names, scores, strict=True)]
    path = trials.folder / "other.csv"
    path.write_text("".join(lines))
    return SimpleNamespace(path=str(path), scores=scores)


@pytest.fixture
def run(trials, capsys):
    """Run the command; return its output, parsed if it is JSON, or the one line of an error."""

    def run(*more, code=0, files=None):
        files = ("--scores", "scores.tsv", "--key", "key.tsv") if files is None else files
        paths = [str(trials.folder / f) if f.endswith(".tsv") else f for f in files]
        assert main(["evaluate", *paths, *map(str, more)]) == code
        out, err = capsys.readouterr()
        if code:
            assert err.startswith("asvspoof-cm evaluate: ")
            assert err.count("\n") == 1
            return err
        return json.loads(out) if "--json" in more else out

    return run


def test_table(trials, protocol, run):
    expected = f"{metrics.evaluate(trials.scores, trials.labels)}\n"
    assert run() == expected
    assert run(*protocol, files=("--scores", "scores.tsv")) == expected  # which is the key too


def test_json_with_breakdown_and_clustered_intervals(trials, protocol, run):
    more = ["--by", "attack,codec", "attack", "--match", "codec", "--bootstrap", "100"]
    content = run(*protocol, *more, "--cluster", "speaker", "--json")
    assert content["track1"] == metrics.evaluate(trials.scores, trials.labels).as_dict()
    columns = trials.columns
    masks = trials.labels == 1, trials.labels == 0
    classes = [trials.scores[mask] for mask in masks]
    clusters = tuple(columns["speaker"][mask] for mask in masks)
    expected = metrics.bootstrap(metrics.METRICS, *classes, 100, clusters=clusters)
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


def test_sources_are_measured_within_and_pooled(trials, other, run):
    path = trials.folder / "sources.tsv"
    sources = np.where(np.arange(400) < 200, "page", "call")
    rows = zip(trials.names, trials.words, sources, strict=True)
    lines = ["utterance\tlabel\tsource", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    files = ["--protocol", str(path), "--bootstrap", "100", "--scores", "scores.tsv"]
    expected = metrics.within_sources(trials.scores, trials.labels, sources, n_bootstrap=100)
    assert run("--json", files=files)["within_source"] == expected.as_dict()
    assert str(expected) in run(files=files)
    lines = run(other.path, files=files).splitlines()
    second = metrics.within_sources(other.scores, trials.labels, sources)
    errors = [100 * float(result.mean.values["eer"]) for result in (expected, second)]
    cells = next(line for line in lines if "mean within sources" in line).split()[-3:]
    assert cells == [f"{value:.3f}" for value in (*errors, errors[0] - errors[1])]


def test_plots_and_their_paths(trials, protocol, run):
    figures = trials.folder / "figures"
    command = [*protocol, "--by", "attack", "--plots", figures]
    printed = run(*command).split("\n\n")[-1].split()
    names = ["det.png", "scores.png", "calibration.png", "by_attack.png"]
    assert sorted(path.name for path in figures.iterdir()) == sorted(names)
    assert printed == [str(figures / name) for name in names]
    assert run(*command, "--json")["pictures"] == printed


def test_several_score_files_are_compared(trials, protocol, other, run):
    third, figures = trials.folder / "third.tsv", trials.folder / "figures"
    metrics.write_scores(third, trials.names, trials.scores / 2, column="llr")
    paths = [str(trials.folder / "scores.tsv"), other.path, str(third)]
    command = [*protocol, "--scores", *paths, "--threshold", "0", "--cluster", "speaker"]
    content = run(*command, "--by", "attack", "--json", "--plots", figures)
    systems = [trials.scores, other.scores, trials.scores / 2]
    speaker, groups = trials.columns["speaker"], {"attack": trials.columns["attack"]}
    for part, path, scores in zip(content["systems"], paths, systems, strict=True):
        assert part["scores"] == path
        given = scores, trials.labels
        assert part["track1"] == metrics.evaluate(*given).as_dict()
        assert part["by_attack"] == metrics.breakdown(*given, groups).as_dict()
        assert part["decisions"] == metrics.decisions(*given, 0.0, clusters=speaker).as_dict()
    assert list(content["differences"]) == ["other", "third"]
    for name, scores in zip(("other", "third"), systems[1:], strict=True):
        given = trials.scores, scores, trials.labels
        expected = metrics.compare(*given, metrics.METRICS, clusters=speaker)
        assert content["differences"][name] == {k: v.as_dict() for k, v in expected.items()}
    assert content["pictures"] == [str(figures / "det.png")]

    out = run(*command, "--by", "attack", "gender", "--bootstrap", "200")
    table, *parts = out.strip().split("\n\n")
    given = trials.scores, other.scores, trials.labels
    expected = metrics.compare(*given, "eer", 200, clusters=speaker)
    line = next(line for line in table.splitlines() if line.startswith("EER"))
    assert metrics.METRICS["eer"].text(expected) in line
    assert f"{100 * metrics.evaluate(other.scores, trials.labels).eer.value:.3f}" in line
    assert [part for part in parts if "\n" not in part] == ["scores", "other", "third"]


def test_different_units_are_not_compared(trials, run):
    names = ("llr.tsv", "log-odds.tsv")
    for name in names:
        column = name.partition(".")[0]
        metrics.write_scores(trials.folder / name, trials.names, trials.scores, column=column)
    error = run(files=("--key", "key.tsv", "--scores", *names), code=2)
    assert "--scores must be in one unit to be compared" in error
    assert "llr.tsv holds llr and" in error


def test_trials_without_a_score_are_left_out_and_counted(trials, protocol, run):
    kept = np.arange(400) >= 7
    metrics.write_scores(trials.folder / "scores.tsv", trials.names[kept], trials.scores[kept])
    assert "7 are missing (D_0000, D_0001, D_0002, …)" in run(*protocol, code=2)
    command = [*protocol, "--skip-missing", "--by", "codec"]
    content = run(*command, "--json")
    n_bonafide = int((trials.labels[:7] == 1).sum())
    assert content["left_out"] == {"bonafide": n_bonafide, "spoof": 7 - n_bonafide}
    scores, labels = trials.scores[kept], trials.labels[kept]
    assert content["track1"] == metrics.evaluate(scores, labels).as_dict()
    expected = metrics.breakdown(scores, labels, {"codec": trials.columns["codec"][kept]})
    assert content["by_codec"] == expected.as_dict()
    head = run(*command).splitlines()[0]
    assert head == f"left out, without a score: {n_bonafide} bonafide, {7 - n_bonafide} spoof"


@pytest.mark.parametrize("form", ["markdown", "csv", "latex"])
def test_tables_in_other_forms(trials, protocol, run, form):
    given = trials.scores, trials.labels
    expected = (
        metrics.evaluate(*given),
        metrics.breakdown(*given, {"attack": trials.columns["attack"]}),
    )
    texts = [result.table().text(form) for result in expected]
    assert run(*protocol, "--by", "attack", "--form", form) == "\n\n".join(texts) + "\n"


def test_decisions_at_a_threshold(trials, protocol, run):
    out = run(*protocol, "--threshold", "0.5", "--by", "gender")
    *_, decided, _, groups = out.strip().split("\n\n")
    given = trials.scores, trials.labels, 0.5
    assert decided == str(metrics.decisions(*given))
    assert groups == str(metrics.decisions(*given, groups={"gender": trials.columns["gender"]}))


def test_intervals_stand_in_the_table(trials, protocol, run):
    table, groups = run(*protocol, "--bootstrap", "100", "--by", "attack").strip().split("\n\n")
    pair = trials.scores[trials.labels == 1], trials.scores[trials.labels == 0]
    eer = metrics.METRICS["eer"].text(metrics.bootstrap("eer", *pair, 100))
    assert eer in next(line for line in table.splitlines() if line.startswith("EER (%)"))
    assert eer in groups.splitlines()[-1]


def test_segments(tmp_path, run):
    names = "abcde"
    truth = {
        name: [Segment(0.0, 3.5 - k / 2, 1), Segment(3.5 - k / 2, 4.0, 0)]
        for k, name in enumerate(names)
    }
    key, frames = tmp_path / "key.csv", tmp_path / "frames.csv"
    write_segments(key, truth)
    (tmp_path / "spoof.rttm").write_text("SPEAKER a 1 3.5 0.5 <NA> <NA> spoof <NA> <NA>\n")
    scores = {name: [(k / 2, k / 2 + 0.5, 2.0 - k) for k in range(8)] for name in names}
    rows = [f"{name},{','.join(map(str, row))}\n" for name in names for row in scores[name]]
    frames.write_text("filename,start_s,end_s,llr\n" + "".join(rows))
    files = ["--scores", str(frames), "--segments"]
    out = run(key, "--threshold", 0, "--bootstrap", 100, "--plots", tmp_path, files=files)
    expected = metrics.evaluate_segments(truth, scores, 0.0, n_bootstrap=100)
    pictures = "\n".join(str(tmp_path / f"{name}.png") for name in "abcd")  # by rising F1
    assert out == f"{expected}\n\n{pictures}\n"
    assert (tmp_path / "a.png").is_file()
    frames.write_text("filename,start_s,end_s,llr\n" + "".join(rows[:8]))
    content = run(tmp_path / "spoof.rttm", "--gaps", "bonafide", "--json", files=files)
    expected = metrics.evaluate_segments({"a": truth["a"]}, {"a": scores["a"]})
    assert content["segments"] == expected.as_dict()
    assert "--by has no effect with --segments" in run(key, "--by", "attack", files=files, code=2)


def test_pictures_of_names_that_look_alike_are_apart(tmp_path, run):
    truth = {name: [Segment(0.0, 1.0, 1), Segment(1.0, 2.0, 0)] for name in ("a/b", "a_b", "A_b")}
    write_segments(tmp_path / "key.csv", truth)
    rows = [f"{name},0,1,2\n{name},1,2,-2\n" for name in truth]
    (tmp_path / "frames.csv").write_text("filename,start_s,end_s,llr\n" + "".join(rows))
    files = ["--scores", str(tmp_path / "frames.csv"), "--segments", str(tmp_path / "key.csv")]
    figures = tmp_path / "figures"
    printed = run("--plots", figures, files=files).split()[-3:]
    assert printed == [str(figures / name) for name in ("a_b.png", "a_b_2.png", "A_b_3.png")]
    assert sorted(map(str, figures.iterdir())) == sorted(printed)


def test_what_is_doubtful_is_a_line_on_standard_error(trials, protocol, capsys):
    path = trials.folder / "scores.tsv"
    command = ["evaluate", "--scores", str(path), "--key", str(trials.folder / "key.tsv")]
    metrics.write_scores(path, trials.names, -trials.scores)
    assert main(command) == 0
    error = capsys.readouterr().err
    assert error.startswith("asvspoof-cm evaluate: warning: the EER is ")
    assert error.count("\n") == 1
    names = [f"{name}.flac" for name in trials.names]
    metrics.write_scores(path, names, trials.scores)
    for more in ([], protocol):
        assert main([*command, *more]) == 0
        captured = capsys.readouterr()
        assert captured.out == f"{metrics.evaluate(trials.scores, trials.labels)}\n"
        assert captured.err == (
            "asvspoof-cm evaluate: warning: only one of the files has names with an extension, "
            "such as D_0000.flac; they were joined without it.\n"
        )


def test_json_of_a_constant_scorer_is_json(trials, capsys, run):
    metrics.write_scores(trials.folder / "scores.tsv", trials.names, np.zeros(400))
    assert run("--json")["track1"]["eer"] == {"value": 1.0, "threshold": 0.0}
    assert "Infinity" not in run()


def test_track2(tmp_path, run):
    rng = np.random.default_rng(0)
    labels = np.repeat(["target", "nontarget", "spoof"], [40, 60, 80])
    trials = [f"S_{i % 7} E_{i}" for i in range(180)]
    asv = rng.normal(np.repeat([2, -2, 1], [40, 60, 80]), 1)
    cm = rng.normal(np.repeat([2, 2, -1], [40, 60, 80]), 1)
    classes = np.where(labels == "spoof", "spoof", "bonafide")
    key, path = tmp_path / "key2.tsv", tmp_path / "scores2.tsv"
    key.write_text("".join(map("{} {} {}\n".format, trials, classes, labels)))
    path.write_text("".join(map("{} {} {} {}\n".format, trials, cm, asv, asv + cm)))
    files = ["--track", "2", "--scores", str(path), "--key", str(key)]
    content = run("--json", files=files)["track2"]
    parts = [labels == name for name in ("target", "nontarget", "spoof")]
    a_dcf = metrics.a_dcf(*((asv + cm)[part] for part in parts))
    countermeasure = cm[~parts[2]], cm[parts[2]]
    t_dcf = metrics.min_t_dcf(*countermeasure)
    t_eer = metrics.t_eer(tuple(asv[part] for part in parts), countermeasure)
    assert content == {
        "n_target": 40,
        "n_nontarget": 60,
        "n_spoof": 80,
        "a_dcf": a_dcf.value,
        "a_dcf_threshold": a_dcf.threshold,
        "min_t_dcf": t_dcf.value,
        "min_t_dcf_threshold": t_dcf.threshold,
        "min_t_dcf_asv": "error rates of the organisers' speaker verification",
        "t_eer": t_eer.value,
        "t_eer_asv_threshold": t_eer.asv_threshold,
        "t_eer_cm_threshold": t_eer.cm_threshold,
    }
    path.write_text("".join(map("{} - - {}\n".format, trials, asv + cm)))
    out = run(files=files)
    assert "a_dcf" in out
    assert "t_eer" not in out
    for only, cells in {"cm": "1 - -", "asv": "- 1 -"}.items():
        path.write_text("".join(f"{trial} {cells}\n" for trial in trials))
        message = f"needs sasv-score, or cm-score and asv-score; it holds {only}-score only"
        assert message in run(files=files, code=2)


def test_a_file_in_the_place_of_another_is_recognised(protocol, run):
    for scores, key, hint in (
        ("scores.tsv", protocol[1], "It looks like a protocol."),
        (protocol[1], "key.tsv", "It has labels: it is a key."),
        ("key.tsv", "key.tsv", "It has labels: it is a key."),
        ("scores.tsv", "scores.tsv", "It looks like a score file."),
    ):
        assert hint in run(files=("--scores", scores, "--key", key), code=2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--by", "attack"], "--by has no effect without --protocol"),
        (["--protocol", "P", "--by", "atack"], "must be one of 'speaker', 'gender', 'codec'"),
        (["--protocol", "P", "--cluster", "speaker"], "--cluster is for intervals; add --bootstr"),
        (
            ["--protocol", "P", "--expect", "dev"],
            "is not the whole dev set of ASVspoof 5: expected",
        ),
        (["--track", "2"], "Track 2 needs the columns spk filename cm-label asv-label"),
        (["--key", "nowhere.csv"], "nowhere.csv: No such file or directory."),
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
def test_bad_options_are_one_line(protocol, run, more, message):
    assert message in run(*(protocol[1] if word == "P" else word for word in more), code=2)


def test_key_or_protocol_is_needed(run):
    error = run(files=("--scores", "scores.tsv"), code=2)
    assert "--key or --protocol must be given" in error


def test_plots_without_matplotlib_fail_first(trials, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(metrics, "bootstrap", lambda *_, **__: pytest.fail("bootstrapped first"))
    error = run("--bootstrap", "100", "--plots", trials.folder / "figures", code=2)
    assert "this needs matplotlib.figure, an extra" in error
