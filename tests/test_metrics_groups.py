"""Results per group and within sources, against evaluating each by hand; forms of the table."""

import csv
import io
import json

import numpy as np
import pytest

from asvspoof_cm import metrics
from asvspoof_cm.metrics import breakdown, within_sources


@pytest.fixture(scope="module")
def trials():
    rng = np.random.default_rng(0)
    n = 1200
    attack = rng.choice(["-", "A09", "A10", "A_11"], n)
    labels = np.where(attack == "-", "bonafide", "spoof")
    scores = np.where(attack == "-", 1.5, -1.5) + (attack == "A10") * 1.2 + rng.normal(0, 1, n)
    return {
        "scores": scores,
        "labels": labels,
        "attack": attack,
        "codec": rng.choice(["C00", "C01"], n),
        "speaker": rng.integers(0, 30, n),
    }


def of(trials, *columns, **options):
    groups = {name: trials[name] for name in columns}
    return breakdown(trials["scores"], trials["labels"], groups, **options)


def check(row, trials, chosen):
    expected = metrics.evaluate(trials["scores"][chosen], trials["labels"][chosen])
    assert (row.n_bonafide, row.n_spoof) == (expected.n_bonafide, expected.n_spoof)
    assert row.values == pytest.approx(expected.values())


def test_each_attack_stands_against_all_bonafide(trials):
    *rows, pooled = of(trials, "attack").rows
    assert [row.group for row in rows] == [("A09",), ("A10",), ("A_11",)]
    for row in rows:
        check(row, trials, np.isin(trials["attack"], ["-", row.group[0]]))
    assert pooled.group == ("pooled",)
    check(pooled, trials, slice(None))


def test_crossed_columns_with_matching_bonafide(trials):
    result = of(trials, "attack", "codec", match=["codec"])
    *rows, pooled = result.rows
    assert len(rows) == 3 * 2
    for row in rows:
        attack, codec = row.group
        chosen = np.isin(trials["attack"], ["-", attack]) & (trials["codec"] == codec)
        check(row, trials, chosen)
    check(pooled, trials, slice(None))
    assert result.mean is None  # groups that share trials have none
    result = of(trials, "codec", match=["codec"])
    assert result.mean.n_spoof == result.rows[-1].n_spoof


def test_a_group_without_matching_bonafide_has_counts_only():
    labels, codec = [1, 1, 0, 0], ["C00", "C00", "C00", "C01"]
    result = breakdown([1.0, 2.0, 0.0, -1.0], labels, {"codec": codec}, match=["codec"])
    lonely = result.rows[1]
    assert (lonely.group, lonely.n_bonafide, lonely.n_spoof) == (("C01",), 0, 1)
    assert np.isnan(lonely.values["eer"])
    assert lonely.as_dict()["values"]["eer"] is None
    assert "C01            0      1       –" in str(result)
    assert result.table().text("csv").splitlines()[2] == "C01,0,1,,,,"


def test_intervals_are_those_of_the_bootstrap(trials):
    result = of(trials, "attack", n_bootstrap=40, clusters=trials["speaker"], seed=4)
    chosen = trials["labels"] == "bonafide", trials["attack"] == "A10"
    pair, clusters = (tuple(trials[k][own] for own in chosen) for k in ("scores", "speaker"))
    expected = metrics.bootstrap("eer", *pair, 40, clusters=clusters, seed=4)
    assert result.rows[1].values["eer"] == expected
    assert f"[{100 * expected.low:.3f}, {100 * expected.high:.3f}]" in str(result)
    assert json.loads(json.dumps(result.as_dict()))["rows"][1]["values"]["eer"]["n_replicates"]
    row = next(csv.DictReader(io.StringIO(result.table().text("csv"))))
    assert float(row["eer_low"]) <= float(row["eer"]) <= float(row["eer_high"])


def test_forms_of_the_table(trials):
    result = of(trials, "attack")
    rows = list(csv.DictReader(io.StringIO(result.table().text("csv"))))
    assert [row["attack"] for row in rows] == ["A09", "A10", "A_11", "pooled"]
    assert float(rows[1]["eer"]) == result.rows[1].values["eer"]
    head = "| attack | bonafide | spoof | minDCF | actDCF | EER (%) | Cllr (bits) |"
    assert result.table().text("markdown").startswith(head)
    escaped = breakdown([1.0, 0.0], [1, 0], {"attack": ["-", "a^b~c\\d{e}"]}).table().text("latex")
    assert r"a\textasciicircum{}b\textasciitilde{}c\textbackslash{}d\{e\} & 1" in escaped


def test_groups_in_few_clusters_do_not_stop_the_table():
    rng = np.random.default_rng(0)
    labels, codec = np.repeat([1, 0, 1, 0], 20), np.repeat(["C00", "C01"], 40)
    speaker = np.where(codec == "C00", "S_0", rng.integers(1, 9, 80).astype(str))
    options = {"match": ["codec"], "n_bootstrap": 20, "clusters": speaker}
    with pytest.warns(UserWarning, match="1 of 2 groups lie in so few `clusters`"):
        result = breakdown(rng.normal(labels), labels, {"codec": codec}, **options)
    assert type(result.rows[0].values["eer"]) is float
    assert not np.isnan(result.rows[0].values["eer"])
    assert all(row.values["eer"].n_replicates for row in result.rows[1:])
    # A group that some replicates drew; the pooled trials are not counted among the groups.
    labels, attack = (
        np.repeat([1, 0, 0], [40, 20, 20]),
        np.repeat(["-", "A09", "A10"], [40, 20, 20]),
    )
    options = {"n_bootstrap": 60, "clusters": np.repeat([0, 1, 2, 3, 4], [14, 13, 13, 20, 20])}
    with pytest.warns(UserWarning, match="2 of 2 groups lie in so few `clusters`"):
        breakdown(rng.normal(labels), labels, {"attack": attack}, **options)


# Within sources


def sources_of(n_sources=12, n=40, seed=0):
    """Sources that differ in offset: pooled they are hard, within a source easier."""
    rng = np.random.default_rng(seed)
    source = np.repeat([f"s{k:02d}" for k in range(n_sources)], 2 * n)
    label = np.tile(np.repeat([1, 0], n), n_sources)
    offset = np.repeat(rng.normal(0, 3, n_sources), 2 * n)
    return offset + label * 2.0 + rng.normal(0, 1, len(label)), label, source


def test_rows_are_the_metrics_of_each_source():
    scores, labels, sources = sources_of()
    result = within_sources(scores, labels, sources)
    for row in result.rows[:-1]:
        check(row, {"scores": scores, "labels": labels}, sources == row.group[0])
    mean = np.mean([row.values["eer"] for row in result.rows[:-1]])
    assert result.mean.values["eer"] == pytest.approx(mean)
    whole = metrics.eer(scores[labels == 1], scores[labels == 0]).value
    assert result.rows[-1].values["eer"] == whole > 2 * mean
    assert result.table().rows[-2][:3] == ("mean", 480, 480)
    assert f"{100 * mean:.3f}" in str(result)


def test_sources_that_are_unknown_or_of_one_class_are_left_out():
    scores, labels, sources = sources_of(n_sources=4)
    sources = np.where(sources == "s03", "-", sources)
    kept = ((sources != "s01") | (labels == 1)) & (sources != "-")
    result = within_sources(scores[kept], labels[kept], sources[kept], n_bootstrap=20)
    assert [row.group for row in result.rows] == [("s00",), ("s02",), ("pooled",)]
    kept |= sources == "-"
    again = within_sources(scores[kept], labels[kept], sources[kept], n_bootstrap=20)
    assert again == result
    assert within_sources(scores, labels, ["-"] * len(labels)) is None
    assert within_sources(scores, labels, np.where(labels == 1, "a", "b")) is None


def test_intervals_cover_the_value_of_the_population():
    """95 % intervals of the mean, where each source's true EER is Φ(−1) = 15.9 %."""
    truth, n_covered = 0.15866, 0
    for seed in range(24):
        result = within_sources(*sources_of(seed=seed), n_bootstrap=100, seed=seed)
        interval = result.mean.values["eer"]
        n_covered += interval.low <= truth <= interval.high
    assert n_covered >= 20


def test_a_metric_in_one_line_reaches_every_table(trials, monkeypatch):
    metric = metrics.Metric(
        "eer_grouped", "EER, ties", "%", 100.0, 1,
        function=lambda curve, _: metrics.eer(*curve.trials(), ties="grouped"),
    )  # fmt: skip
    monkeypatch.setitem(metrics.METRICS, metric.name, metric)
    scores = trials["scores"]
    result = metrics.evaluate(scores, trials["labels"])
    assert result.eer_grouped.value == result.eer.value == result.values()["eer_grouped"]
    assert result.as_dict()["eer_grouped"]["value"] == result.eer.value
    table = of(trials, "attack", n_bootstrap=10)
    for row in table.rows:
        assert row.values["eer_grouped"].low == pytest.approx(row.values["eer"].low)
    assert "EER, ties (%)" in str(result)
    assert "EER, ties (%)" in str(table)
    assert metrics.compare(scores, scores / 2, trials["labels"], metric.name, 9).value == 0.0
    assert not hasattr(result, "f1")
