"""The paper's study, its tables and its figure: from protocols to files, and from made-up runs."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from asvspoof_cm.data import write_miniature

PAPER = Path(__file__).resolve().parents[1] / "examples" / "paper"
sys.path.insert(0, str(PAPER))

import figure as figure_module  # noqa: E402
import study  # noqa: E402
import tables  # noqa: E402
from figure import mean_curve, training_efficiency  # noqa: E402
from tables import TABLE_6, TABLE_7, read_run, summarize  # noqa: E402

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_feedforward": 16}
OWN = """
import torch
from asvspoof_cm.augmentation import WhiteNoise
from asvspoof_cm.augmentation.recipes import AUGMENTATIONS
from asvspoof_cm.losses import LOSSES, focal_loss
from asvspoof_cm.models import TFPARN

class Mine(TFPARN):
    pass

LOSSES["mine"] = lambda logits, labels: focal_loss(logits, labels, gamma=1.0)
AUGMENTATIONS["mine"] = WhiteNoise
"""


def test_one_command_makes_both_tables_and_the_figure(tmp_path, monkeypatch, capsys):
    settings = tmp_path / "tiny.json"
    settings.write_text(json.dumps({"model_config": TINY, "crop_s": 0.5, "recipe": {"lr": 1e-3}}))
    out = tmp_path / "runs"
    common = ["--miniature", "--out", str(out), "--workers", "0", "--quiet", "--device", "cpu"]
    common += ["--epochs", "2", "--seeds", "1", "2"]
    command = [*common, "--config", str(settings), "--systems", "3", "6"]
    assert study.main(command) == 0
    stamp = (out / "6-2" / "last.pt").stat().st_mtime_ns
    assert study.main([*command, "--versions", "text", "authors"]) == 0
    assert (out / "6-2" / "last.pt").stat().st_mtime_ns == stamp  # finished runs are skipped
    # A row of one's own: a model, a loss and an augmentation of another module.
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.write_text(
        json.dumps({"model": "Mine", "loss": "mine", "augment": "mine", "model_config": TINY})
    )
    own = [*common, "--config", str(settings), "--import", "own", "--name", "my ablation"]
    capsys.readouterr()
    assert study.main([*own, "--minutes", "0.002", "--dev-clips", "8"]) == 0
    written = capsys.readouterr().out.split()
    assert sorted(Path(path).name for path in written) == sorted(
        [f"table_{n}.{suffix}" for n in (1, 6, 7) for suffix in ("md", "csv", "tex")]
        + ["figure.pdf"]
    )
    assert all(Path(path).stat().st_size > 100 for path in written)
    rows = (out / "table_6.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| 3 TFPARN, CE", "2"],
        ["| 3 TFPARN, CE (authors)", "2"],
        ["| 6 TFPARN, focal + pairwise, attention", "2"],
        ["| 6 TFPARN, focal + pairwise, attention (authors)", "2"],
        ["| my ablation", "2"],
    ]
    assert (
        "| train (ASVspoof5.train.tsv) | 24 | 24 | 8 | 3 | no: bonafide 18,797, "
        in (out / "table_1.md").read_text()
    )
    run = read_run(out / "my_ablation-1")
    assert run.settings["known"]["data"]["dev"]["spoof"] == 4
    assert sum(record["train_s"] for record in run.history) >= 0.12
    assert run.values()["n_clips"] == run.history[-1]["n_clips"]
    assert run.values()["memory_bytes"] > 10**7


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a run folder as training does."""

    def write(
        folder, name="6 TFPARN", seed=42, times=(60, 120, 180), dev=(0.5, 0.25, 0.3), **about
    ):
        path = tmp_path / folder
        path.mkdir()
        content = {
            "recipe": {"lr": 1e-4},
            "seed": seed,
            "n_parameters": 4_846_275,
            "known": {"system": {"name": name, "version": "text"}},
            "is_finished": True,
            **about,
        }
        (path / "run.json").write_text(json.dumps(content))
        lines, previous_s = [], 0.0
        for epoch, (time_s, value) in enumerate(zip(times, dev, strict=True), start=1):
            figures = {"min_dcf": value, "eer": value / 2, "cllr": 3 * value, "act_dcf": 2 * value}
            record = {
                "epoch": epoch,
                "n_clips": 100 * epoch,
                "train": {name: 2 * value for name, value in figures.items()},
                "dev": figures,
                "n_dev": 50,
                "train_s": 0.75 * (time_s - previous_s),
                "dev_s": 0.25 * (time_s - previous_s),
                "dev_peak_memory_bytes": 10**9,
                "cumulative_s": time_s,
                "is_best": value < min(dev[: epoch - 1], default=2.0),
            }
            lines.append(json.dumps(record) + "\n")
            previous_s = time_s
        (path / "history.jsonl").write_text("".join(lines))
        return read_run(path)

    return write


@pytest.fixture
def three(write):
    lowest = (0.25, 0.26, 0.3)
    return [
        write(str(seed), seed=seed, dev=(0.5, value, 0.4))
        for seed, value in zip((42, 63, 2026), lowest, strict=True)
    ]


def test_cells_are_means_and_sample_deviations_of_the_best_epochs(three):
    _, printed, names, exact = summarize(three, TABLE_6)
    assert printed == [
        [
            "6 TFPARN",
            "3",
            "13.50 ± 1.32",
            "0.2700 ± 0.0265",
            "0.8100 ± 0.0794",
            "0.5400 ± 0.0529",
        ]
    ]
    numbers = dict(zip(names, exact[0], strict=True))
    assert numbers["min_dcf_mean"] == pytest.approx(0.27)
    assert numbers["min_dcf_std"] == pytest.approx(np.std([0.25, 0.26, 0.3], ddof=1))
    header, printed, _, _ = summarize(three, TABLE_7)
    assert dict(zip(header, printed[0], strict=True)) == {
        "System": "6 TFPARN",
        "Seeds": "3",
        "Parameters (M)": "4.85",
        "Memory (GB)": "1.00 ± 0.00",
        "Training (s/epoch)": "45.0 ± 0.0",
        "Time to best (min)": "2.00 ± 0.00",
        "Latency (ms/utterance)": "300.0000 ± 0.0000",
        "Clips seen": "300 ± 0",
    }


def test_unfinished_runs_are_counted_and_not_averaged(three, write, tmp_path, capsys):
    started = write("cut", seed=7, dev=(9.0, 9.0, 9.0), is_finished=False)
    only = write("2", name="2 RawNet2", is_finished=False)
    _, printed, _, _ = summarize([*three, started, only], TABLE_6)
    assert [row[:3] for row in printed] == [
        ["6 TFPARN", "3 of 4", "13.50 ± 1.32"],
        ["2 RawNet2", "0 of 1", "–"],
    ]
    alone = [three[0], started]
    assert summarize(alone, TABLE_6)[1][0][1:3] == ["1 of 2", "12.50"]
    for run in alone:
        run.settings["known"]["data"] = {
            part: {"protocol": "p.tsv", **paper} for part, paper in tables.TABLE_1.items()
        }
        (run.path / "run.json").write_text(json.dumps(run.settings))
    assert tables.main([*(str(run.path) for run in alone), "--out", str(tmp_path / "t")]) == 0
    assert "cut is unfinished (3 epochs): not averaged." in capsys.readouterr().err
    assert (tmp_path / "t" / "table_1.md").read_text().count("| yes |") == 2
    assert r"12.50" in (tmp_path / "t" / "table_6.tex").read_text()


def test_runs_that_can_not_be_averaged_are_refused(write):
    run = write("a")
    for other, message in (
        (write("b"), "must have each seed of a system once"),
        (write("c", seed=1, recipe={"lr": 2e-4}), "but differ in recipe of run.json"),
    ):
        with pytest.raises(ValueError, match=message):
            summarize([run, other], TABLE_6)
    with pytest.raises(ValueError, match="`runs` must hold at least one run"):
        summarize([], TABLE_6)


def test_damaged_folders_are_named(write, tmp_path):
    path = write("a").path
    history = path / "history.jsonl"
    for text, message in (
        ("{", "history.jsonl, line 1: not JSON"),
        ("[]\n", "line 1: must be a JSON object"),
        ('{"dev": {"eer": 1}, "cumulative_s": 1}', "line 1: must have cumulative_s and eer, "),
    ):
        history.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_run(path)
    (path / "run.json").write_text('{"seed": 1}')
    history.unlink()
    with pytest.raises(ValueError, match="it names no system"):
        read_run(path)
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path / "nothing")


def test_straight_lines_are_interpolated_exactly_in_the_shared_range(write):
    runs = []
    for seed, (step_s, n_epochs, slope) in enumerate(
        ((50, 40, 1e-4), (70, 20, 2e-4), (60, 25, 3e-4))
    ):
        times = tuple(step_s * k for k in range(1, n_epochs + 1))
        values = tuple(1 - slope * time_s for time_s in times)
        runs.append(write(str(seed), seed=seed, times=times, dev=values))
    curve = mean_curve(runs, "dev", "min_dcf")
    assert len(curve.time_s) == 30
    assert (curve.time_s[0], curve.time_s[-1]) == (70.0, 1400.0)
    np.testing.assert_allclose(curve.time_s[1:] / curve.time_s[:-1], 20 ** (1 / 29), rtol=1e-12)
    np.testing.assert_allclose(curve.mean, 1 - 2e-4 * curve.time_s, atol=1e-12)
    # Slopes 1, 2, 3 have the sample deviation 1.
    np.testing.assert_allclose(curve.std, 1e-4 * curve.time_s, atol=1e-12)
    # Every seed goes on to its own last epoch.
    assert [time_s[-1] for time_s, _, _ in curve.seeds] == [2000.0, 1400.0, 1500.0]
    apart = [write("x", times=(10, 20, 30)), write("y", seed=1, times=(40, 50, 60))]
    assert mean_curve(apart, "dev", "eer").mean.shape == (0,)
    training_efficiency(apart)
    one = mean_curve(runs[:1], "train", "eer")
    assert (len(one.mean), one.std) == (40, None)


def test_figure_shows_means_bands_seeds_and_stars(three, write):
    started = write("2-42", name="2 RawNet2", is_finished=False)
    axes = training_efficiency([*three, started])
    assert axes.shape == (4, 2)
    assert axes[0, 0].figure.get_size_inches()[0] == pytest.approx(7.16)
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["minDCF", "EER (%)", "Cllr (bits)", "actDCF"]
    assert [ax.get_title() for ax in axes[0]] == ["training set", "development set"]
    assert all(ax.get_xscale() == "log" for ax in axes.flat)
    assert [ax.get_xlabel() for ax in axes[3]] == ["training time (min)"] * 2
    curve, eer = mean_curve(three, "dev", "eer"), axes[1, 1]
    thick = [line for line in eer.lines if line.get_linewidth() > 1 and line.get_marker() != "*"]
    np.testing.assert_allclose(thick[0].get_xdata(), curve.time_s / 60)
    np.testing.assert_allclose(thick[0].get_ydata(), 100 * curve.mean)
    band = eer.collections[0].get_paths()[0].get_extents()
    np.testing.assert_allclose(band.y1, 100 * (curve.mean + curve.std).max())
    stars = [line.get_xydata()[0] for line in eer.lines if line.get_marker() == "*"]
    np.testing.assert_allclose(stars, [(2.0, 12.5), (2.0, 13.0), (2.0, 15.0)])
    assert not [line for line in axes[1, 0].lines if line.get_marker() == "*"]
    dashed = [line.get_xydata() for line in eer.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(dashed, [[(1.0, 25.0), (2.0, 12.5), (3.0, 15.0)]])
    (legend,) = axes[0, 0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "6 TFPARN (3 seeds)",
        "2 RawNet2 (0 of 1 seed)",
        "one seed",
        "± 1 std",
        "lowest of a seed",
    ]


@pytest.mark.parametrize("times", [(60.0,), (60.0, 64.0), (60.0, 2e5), (60.0, 6e5)])
def test_time_axis_has_numbers_however_long_the_run(write, times):
    axes = training_efficiency([write("a", times=times, dev=(0.5, 0.25)[: len(times)])])
    axes[0, 0].figure.draw_without_rendering()
    for ax in axes[-1]:
        low, high = ax.get_xlim()
        shown = [t for t in ax.get_xticklabels() if low <= t.get_position()[0] <= high]
        assert 2 <= len(shown) <= 12
        assert all(float(text.get_text()) > 0 for text in shown)
        boxes = sorted((t.get_window_extent() for t in shown), key=lambda box: box.x0)
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_nine_systems_look_different_and_no_epoch_is_an_error(write, tmp_path):
    runs = [write(f"r{k}", name=f"system {k}") for k in range(9)]
    lines = training_efficiency(runs)[0, 0].figure.legends[0].legend_handles[:9]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9
    assert figure_module.main([str(runs[0].path), "--out", str(tmp_path / "f.svg")]) == 0
    (runs[0].path / "history.jsonl").unlink()
    with pytest.raises(ValueError, match="`runs` must hold an epoch to draw"):
        training_efficiency([read_run(runs[0].path)])


def test_a_failing_run_is_reported_and_the_rest_goes_on(tmp_path, capsys):
    paths = write_miniature(tmp_path / "data", n_train=4, n_dev=4, duration_s=(0.3, 0.4))
    command = ["--out", str(tmp_path), "--train", str(paths.train_protocol), "--dev", "none.tsv"]
    with pytest.raises(ValueError, match="at least one run"):
        study.main([*command, "--audio", "x", "--systems", "6", "--seeds", "1", "2", "--quiet"])
    error = capsys.readouterr().err
    assert error.count("failed: ") == 2
