"""The comparison of objectives: its runs, its figures and its table, at a tiny size."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from asvspoof_cm import metrics
from asvspoof_cm.data import write_miniature

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def compare_losses(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compare_losses

    return compare_losses


def test_draws_are_of_whole_clusters(compare_losses):
    clusters = np.array(["a", "b", "a", "c", "b"])
    labels = np.array([0, 1, 1, 0, 0])
    everything, *draws = compare_losses.draw(clusters, labels, 50, seed=1)
    assert everything.tolist() == [0, 1, 2, 3, 4]
    assert len(draws) == 50
    for trials in draws:
        counts = np.bincount(trials, minlength=5)
        assert counts[0] == counts[2]
        assert counts[1] == counts[4]
        assert 0 < labels[trials].sum() < len(trials)
        assert counts[0] + counts[1] + counts[3] == 3


def test_figures_are_means_over_seeds(compare_losses):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 40)
    runs = [labels + rng.normal(0, 0.5, 80) for _ in range(2)]
    draws = list(compare_losses.draw(np.arange(80).astype(str), labels, 100, seed=0))
    figures = compare_losses.summarise(compare_losses.measure(runs, labels, draws))
    expected = np.mean([metrics.eer(run[labels == 1], run[labels == 0]).value for run in runs])
    assert figures["eer"]["value"] == pytest.approx(expected)
    assert figures["eer"]["low"] <= expected <= figures["eer"]["high"]
    assert figures.keys() == {"eer", "min_dcf", "act_dcf", "cllr"}


def test_sources_weigh_alike_within(compare_losses):
    labels = np.array([1, 0, 1, 0, 0, 1])
    sources = np.array(["a", "a", "b", "b", "b", "c"])
    scores = np.array([1.0, 0.0, 0.0, 1.0, 2.0, 9.0])
    draws = [np.arange(6), np.array([0, 1, 0, 1, 2, 3, 4]), np.array([0, 1, 5, 5])]
    figures = compare_losses.measure([scores], labels, draws, sources)
    np.testing.assert_allclose(figures["within_eer"], [1 / 2, 1 / 3, 0.0])


def test_from_protocols_to_the_table(compare_losses, tmp_path, monkeypatch):
    paths = write_miniature(tmp_path, n_train=8, n_dev=8, duration_s=(0.5, 0.6))
    figures, page = tmp_path / "figures.json", tmp_path / "losses.md"
    size = {"TFPARN": {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}}
    command = [
        *("compare_losses.py", "train", "--work", str(tmp_path / "runs")),
        *("--train", str(paths.train_protocol), "--audio", str(paths.audio_dir)),
        *("--dev", str(paths.dev_protocol), "--eval", str(paths.dev_protocol)),
        *("--models", "TFPARN", "--config", json.dumps(size), "--seeds", "1"),
        *("--objectives", compare_losses.REFERENCE, "soft_dcf", "--epochs", "1"),
        *("--batch-size", "4", "--crop-s", "0.5", "--augment", "none", "--crops", "1"),
        *("--replicates", "20", "--figures", str(figures), "--workers", "0", "--quiet"),
    ]
    monkeypatch.setattr(sys, "argv", [*command, "--shard", "1/2", "--device", "cpu"])
    compare_losses.main()
    assert [row["objective"] for row in json.loads(figures.read_text())["rows"]] == ["soft_dcf"]
    monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu"])
    compare_losses.main()
    content = json.loads(figures.read_text())
    first, second = content["rows"]
    assert (first["objective"], first["differences"]) == (compare_losses.REFERENCE, None)
    assert second["differences"]["eer"]["low"] <= second["differences"]["eer"]["high"]
    assert second["seeds"][0]["n_epochs"] == 1
    assert second["figures"]["eer"]["value"] == second["seeds"][0]["eval"]["eer"]
    assert content["data"]["train"]["bonafide"] == 4

    page.write_text(
        "Before.\n<!-- compare_losses -->\nold\n<!-- end of compare_losses -->\nAfter.\n"
    )
    table = ["compare_losses.py", "table", "--page", str(page), "--figures", str(figures)]
    monkeypatch.setattr(sys, "argv", table)
    compare_losses.main()
    text = page.read_text()
    assert text.startswith("Before.\n<!-- compare_losses -->\n\nEach run: 1 epochs of 8 clips")
    assert "| TFPARN | `soft_dcf` | " in text
    assert text.endswith("|\n\n<!-- end of compare_losses -->\nAfter.\n")
    assert "old" not in text


def test_a_shard_is_checked(compare_losses):
    assert compare_losses.shard("1/2") == (1, 2)
    with pytest.raises(Exception, match="must be k/n with k below n"):
        compare_losses.shard("2/2")
