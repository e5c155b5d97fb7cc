"""Tables and curves of run folders with known numbers, and the cost of a known model."""

import csv
import dataclasses
import itertools
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from asvspoof_cm import report
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.profiling import profile
from asvspoof_cm.runs import read_run
from paper.figure import training_efficiency

TIMES_S = (60.0, 120.0, 180.0)


def final(eer=0.125, *, splits=("dev",), memory=1_400_000_000, latency=0.8):
    metrics = {"eer": eer, "min_dcf": 2 * eer, "cllr": 4 * eer, "act_dcf": 3 * eer}
    counts = {"n_bonafide": 10, "n_spoof": 20, "min_cllr": 0.4, "auc": 0.9}
    return {
        "checkpoint": "best.pt",
        "n_crops": 5,
        **{split: {**counts, **metrics} for split in splits},
        "n_parameters": 4_846_275,
        "peak_memory_bytes": memory,
        "ms_per_utterance": latency,
    }


@pytest.fixture
def three_seeds(write_run):
    """EER 12, 14 and 16 %: mean 14, sample deviation 2 (the population's would be 1.63)."""
    seeds = {42: 0.12, 63: 0.14, 2026: 0.16}
    return [
        read_run(
            write_run(
                f"6-{seed}",
                seed=seed,
                cumulative_s=tuple(k * scale for k in TIMES_S),
                final=final(eer, latency=scale),
            )
        )
        for (seed, eer), scale in zip(seeds.items(), (1.0, 1.5, 2.0), strict=True)
    ]


def test_run_has_what_the_folder_holds(write_run):
    path = write_run("6-42", final=final())
    run = read_run(path)
    assert (run.name, run.seed, run.n_parameters) == ("6 TFPARN", 42, 4_846_275)
    assert run.path == path
    assert run.is_finished
    assert [record["epoch"] for record in run.history] == [1, 2, 3]
    assert run.best["epoch"] == 2
    assert run.mean_train_s == 45.0
    assert read_run(str(path)) == run


def test_what_a_run_costs_does_not_finish_it(write_run):
    run = read_run(write_run("6-42", final={"ms_per_utterance": 3.0}))
    assert not run.is_finished
    assert report.summarize([run]).unfinished == (run,)
    evaluated = {"eval": final()["dev"]}
    assert read_run(write_run("6-43", seed=43, final=evaluated)).is_finished


def test_the_first_of_equal_epochs_is_the_best(write_run):
    run = read_run(write_run("6-42", dev=(0.5, 0.25, 0.25)))
    assert run.best["epoch"] == 2
    assert run.best["is_best"]


def test_mean_and_sample_deviation(three_seeds):
    summary = report.summarize(three_seeds)
    (row,) = summary.main.rows
    assert (row.n_runs, row.n_finished, summary.unfinished) == (3, 3, ())
    assert row.values["eer"].mean == pytest.approx(0.14, abs=1e-15)
    assert row.values["eer"].std == pytest.approx(0.02, abs=1e-15)
    assert row.values["min_dcf"].std == pytest.approx(0.04, abs=1e-15)
    # Training takes three quarters of 60, 90 and 120 s per epoch; the second epoch is the best.
    assert row.values["train_s"] == report.MeanStd(mean=67.5, std=22.5)
    assert row.values["best_s"] == report.MeanStd(mean=180.0, std=60.0)
    assert row.values["n_parameters"] == report.MeanStd(mean=4_846_275, std=None)


def test_markdown(three_seeds):
    summary = report.summarize(three_seeds)
    assert summary.main.markdown().splitlines() == [
        "| System | Seeds | EER (%) | minDCF | Cllr | actDCF |",
        "| :-- | --: | --: | --: | --: | --: |",
        "| 6 TFPARN | 3 | 14.00 ± 2.00 | 0.2800 ± 0.0400 | 0.5600 ± 0.0800 | 0.4200 ± 0.0600 |",
    ]
    head, _, row = summary.efficiency.markdown().splitlines()
    assert head == (
        "| System | Seeds | Parameters (M) | Memory (GB) | Training (s/epoch) | "
        "Time to best (min) | Latency (ms/utterance) |"
    )
    assert row == (
        "| 6 TFPARN | 3 | 4.85 | 1.40 ± 0.00 | 67.5 ± 22.5 | 3.00 ± 1.00 | 1.5000 ± 0.5000 |"
    )


def test_latex_escapes_and_uses_booktabs(write_run):
    run = read_run(write_run("a", system=r"6_a & 5 % of \x", final=final()))
    other = read_run(write_run("b", system=r"6_a & 5 % of \x", seed=63, final=final(0.175)))
    name = r"6\_a \& 5 \% of \textbackslash{}x"
    # The sample deviation of 12.5 and 17.5 is 5 / √2.
    pairs = [("15.00", "3.54"), ("0.3000", "0.0707"), ("0.6000", "0.1414"), ("0.4500", "0.1061")]
    values = [f"{value} $\\pm$ {std}" for value, std in pairs]
    assert report.summarize([run, other]).main.latex().splitlines() == [
        r"\begin{tabular}{lrrrrr}",
        r"\toprule",
        r"System & Seeds & EER (\%) & minDCF & Cllr & actDCF \\",
        r"\midrule",
        rf"{name} & 2 & {' & '.join(values)} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv_has_full_precision_in_the_units_of_the_folder(three_seeds, write_run):
    other = read_run(write_run("x", system='a "b", c', final=final(0.1)))
    summary = report.summarize([*three_seeds, other])
    first, second = csv.DictReader(summary.main.csv().splitlines())
    assert float(first["eer_mean"]) == summary.main.rows[0].values["eer"].mean
    assert float(first["eer_std"]) == summary.main.rows[0].values["eer"].std
    assert (first["n_runs"], first["n_finished"]) == ("3", "3")
    assert (second["system"], second["eer_mean"], second["eer_std"]) == ('a "b", c', "0.1", "")
    efficiency = next(csv.DictReader(summary.efficiency.csv().splitlines()))
    assert float(efficiency["best_s_mean"]) == 180.0
    assert efficiency["n_parameters_mean"] == "4846275"


def test_one_seed_has_no_deviation(write_run):
    run = read_run(write_run("a|b", system="a|b", final=final()))
    assert report.summarize([run]).main.markdown().splitlines()[2] == (
        r"| a\|b | 1 | 12.50 | 0.2500 | 0.5000 | 0.3750 |"
    )


def test_unfinished_runs_are_counted_and_named(three_seeds, write_run):
    started = read_run(write_run("1-42", system="1 AASIST", seed=42))
    fresh_path = write_run("1-63", system="1 AASIST", seed=63)
    (fresh_path / "history.jsonl").unlink()
    fresh = read_run(fresh_path)
    assert fresh.history == ()
    cut = dataclasses.replace(three_seeds[2], final=None)
    summary = report.summarize([*three_seeds[:2], cut, started, fresh])
    assert summary.unfinished == (cut, started, fresh)
    _, _, tfparn, aasist = summary.main.markdown().splitlines()
    assert tfparn.startswith("| 6 TFPARN | 2 of 3 | 13.00 ± 1.41 |")
    assert aasist == "| 1 AASIST | 0 of 2 | – | – | – | – |"
    assert r"1 AASIST & 0 of 2 & -- & -- & -- & -- \\" in summary.main.latex()
    assert summary.main.csv().splitlines()[2] == "1 AASIST,2,0,,,,,,,,"


def test_split(write_run):
    both = write_run("a", final=final(splits=("dev", "eval")))
    content = json.loads((both / "final.json").read_text())
    content["eval"]["eer"] = 0.3
    (both / "final.json").write_text(json.dumps(content))
    run = read_run(both)
    assert report.summarize([run]).main.rows[0].values["eer"].mean == 0.125
    assert report.summarize([run], split="eval").main.rows[0].values["eer"].mean == 0.3
    dev_only = read_run(write_run("b", seed=63, final=final()))
    with pytest.raises(ValueError, match=r"every finished run was evaluated on; .*b has no 'eval'"):
        report.summarize([run, dev_only], split="eval")
    with pytest.raises(ValueError, match="`split` must be one of 'dev', 'eval'; got 'train'"):
        report.summarize([run], split="train")


def test_runs_that_have_no_common_mean(write_run):
    a = read_run(write_run("a", final=final()))
    again = read_run(write_run("b", final=final()))
    with pytest.raises(ValueError, match=r"each seed of a system once; .*a and .*b both are"):
        report.summarize([a, again])
    other = read_run(write_run("c", seed=63, recipe={"lr": 3e-4}, final=final()))
    with pytest.raises(ValueError, match=r"differ in recipe\.lr \(0\.0001, 0\.0003\)"):
        report.training_curves([a, other])
    elsewhere = dataclasses.replace(again, seed=63, data={"train": {"bonafide": 11}})
    with pytest.raises(ValueError, match=r"differ in data\.train\.bonafide \(10, 11\)"):
        report.summarize([a, elsewhere])
    with pytest.raises(ValueError, match="`runs` must hold at least one run"):
        report.summarize([])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.json", "{", r"run\.json: not JSON \(Expecting"),
        ("run.json", "[]", r"run\.json: must be a JSON object; got '\[\]'"),
        ("run.json", '{"system": {}}', r"`system` must be an object with a `name`; got {}"),
        ("run.json", '{"system": {"name": "a"}, "seed": "1"}', "`seed` must be a whole number"),
        (
            "final.json",
            '{"dev": {}}',
            r"final\.json: `dev\.min_dcf` must be a finite number; got None",
        ),
        ("history.jsonl", "", r"history\.jsonl must hold an epoch: the run is finished"),
    ],
)
def test_bad_files(write_run, file, content, message):
    path = write_run("a", final=final())
    (path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_run(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line[:40], r"history\.jsonl, line 2: not JSON"),
        (lambda line: "", r"line 2: not JSON"),
        (lambda line: "3", r"line 2: must be a JSON object; got '3'"),
        (
            lambda line: line.replace('"cllr": 0.75', '"cllr": NaN'),
            r"`train\.cllr` must be a finite",
        ),
        (lambda line: line.replace('"dev"', '"test"'), r"line 2: `dev\.min_dcf` must be a finite"),
        (
            lambda line: line.replace("120.0", "60.0"),
            r"line 2: `cumulative_s` must grow .* 60\.0\.",
        ),
    ],
)
def test_bad_history_lines(write_run, change, message):
    path = write_run("a") / "history.jsonl"
    lines = path.read_text().splitlines()
    changed = change(lines[1])
    assert changed != lines[1]
    path.write_text("\n".join([lines[0], changed, lines[2]]) + "\n")
    with pytest.raises(ValueError, match=message):
        read_run(path.parent)


@pytest.mark.parametrize("file", ["run.json", "history.jsonl"])
def test_missing_files_are_named(write_run, file):
    path = write_run("a", final=final())
    (path / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{file} does not exist"):
        read_run(path)


def straight(write_run, name, *, seed, first_s, step_s, n_epochs, slope, **kwargs):
    """A run whose minDCF is a straight line in time: 1 − slope · t."""
    times = tuple(first_s + step_s * k for k in range(n_epochs))
    values = tuple(1.0 - slope * t for t in times)
    return read_run(
        write_run(name, seed=seed, cumulative_s=times, dev=values, final=final(), **kwargs)
    )


def test_straight_lines_are_interpolated_exactly_in_the_shared_range(write_run):
    slopes = (1e-4, 2e-4, 3e-4)
    runs = [
        straight(write_run, "a", seed=1, first_s=50.0, step_s=50.0, n_epochs=40, slope=slopes[0]),
        straight(write_run, "b", seed=2, first_s=70.0, step_s=70.0, n_epochs=20, slope=slopes[1]),
        straight(write_run, "c", seed=3, first_s=60.0, step_s=60.0, n_epochs=25, slope=slopes[2]),
    ]
    curves = report.training_curves(runs)
    assert [(c.split, c.metric) for c in curves] == [
        (split, metric)
        for split in ("train", "dev")
        for metric in ("min_dcf", "eer", "cllr", "act_dcf")
    ]
    curve = curves[4]
    assert len(curve.time_s) == 30
    assert (curve.time_s[0], curve.time_s[-1]) == (70.0, 1400.0)
    ratios = curve.time_s[1:] / curve.time_s[:-1]
    np.testing.assert_allclose(ratios, (1400 / 70) ** (1 / 29), rtol=1e-12)
    np.testing.assert_allclose(curve.mean, 1 - 2e-4 * curve.time_s, atol=1e-12)
    # Slopes 1, 2, 3 have the sample deviation 1.
    np.testing.assert_allclose(curve.std, 1e-4 * curve.time_s, atol=1e-12)
    eer = curves[5]
    np.testing.assert_allclose(eer.mean, curve.mean / 2, atol=1e-12)
    # Every seed goes on to its own last epoch.
    assert [seed.time_s[-1] for seed in curve.seeds] == [2000.0, 1400.0, 1500.0]


def test_best_is_a_raw_record(write_run):
    run = read_run(write_run("a", dev=(0.5, 0.1, 0.4), train=(3, 2, 1), final=final()))
    curves = {(c.split, c.metric): c for c in report.training_curves([run])}
    assert curves["dev", "min_dcf"].seeds[0].best == (120.0, 0.1)
    assert curves["train", "min_dcf"].seeds[0].best == (180.0, 1.0)
    assert curves["dev", "cllr"].seeds[0].best == (120.0, pytest.approx(0.3))


def test_one_seed_has_a_mean_and_no_band(write_run):
    run = read_run(write_run("a", final=final()))
    curve = report.training_curves([run])[4]
    np.testing.assert_allclose(
        curve.mean, np.interp(curve.time_s, TIMES_S, (0.5, 0.25, 0.3)), atol=1e-15
    )
    assert curve.std is None


def test_seeds_without_a_shared_range_have_no_mean(write_run):
    a = read_run(write_run("a", cumulative_s=(10.0, 20.0), dev=(0.5, 0.4), final=final()))
    b = read_run(write_run("b", seed=2, cumulative_s=(30.0, 60.0), dev=(0.5, 0.4), final=final()))
    curve = report.training_curves([a, b])[0]
    assert curve.time_s.shape == curve.mean.shape == (0,)
    assert [len(seed.values) for seed in curve.seeds] == [2, 2]
    training_efficiency([a, b])


def test_unfinished_runs_do_not_shorten_the_mean(write_run):
    runs = [
        straight(write_run, "a", seed=1, first_s=50, step_s=50, n_epochs=9, slope=1e-4),
        read_run(write_run("b", seed=2, cumulative_s=(55.0, 110.0))),
    ]
    fresh = write_run("c", seed=3)
    (fresh / "history.jsonl").unlink()
    curve = report.training_curves([*runs, read_run(fresh)])[4]
    assert curve.time_s[-1] == 450.0
    np.testing.assert_allclose(curve.mean, 1 - 1e-4 * curve.time_s, atol=1e-12)
    assert curve.std is None
    assert (curve.n_runs, [s.is_finished for s in curve.seeds]) == (3, [True, False])
    alone = report.training_curves(runs[1:])[0]
    assert (len(alone.mean), alone.std, alone.seeds[0].is_finished) == (0, None, False)
    with pytest.raises(ValueError, match="`runs` must hold an epoch to draw"):
        report.training_curves([read_run(fresh)])


def test_figure_shows_means_bands_seeds_and_stars(three_seeds, write_run):
    started = read_run(write_run("2-42", system="2 RawNet2"))
    runs = [*three_seeds, started]
    curves, axes = report.training_curves(runs), training_efficiency(runs)
    assert axes.shape == (4, 2)
    assert axes[0, 0].figure.get_size_inches()[0] == pytest.approx(7.16)
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["minDCF", "EER (%)", "Cllr (bits)", "actDCF"]
    assert [ax.get_title() for ax in axes[0]] == ["training set", "development set"]
    assert all(ax.get_xscale() == "log" for ax in axes.flat)
    assert [ax.get_xlabel() for ax in axes[3]] == ["training time (min)"] * 2

    curve = curves[5]
    assert (curve.split, curve.metric) == ("dev", "eer")
    eer = axes[1, 1]
    thick = [line for line in eer.lines if line.get_linewidth() > 1 and line.get_marker() != "*"]
    np.testing.assert_allclose(thick[0].get_xdata(), curve.time_s / 60)
    np.testing.assert_allclose(thick[0].get_ydata(), 100 * curve.mean)
    band = eer.collections[0].get_paths()[0].get_extents()
    np.testing.assert_allclose(band.y1, 100 * (curve.mean + curve.std).max())
    stars = [line.get_xydata()[0] for line in eer.lines if line.get_marker() == "*"]
    np.testing.assert_allclose(stars, [(2.0, 12.5), (3.0, 12.5), (4.0, 12.5)])
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
def test_time_axis_has_numbers_however_long_the_run(write_run, times):
    values = (0.5, 0.25, 0.3)[: len(times)]
    run = read_run(write_run("a", cumulative_s=times, dev=values, final=final()))
    axes = training_efficiency([run])
    figure = axes[0, 0].figure
    figure.draw_without_rendering()
    for ax in axes[-1]:
        low, high = ax.get_xlim()
        shown = [t for t in ax.get_xticklabels() if low <= t.get_position()[0] <= high]
        assert 2 <= len(shown) <= 12
        assert all(float(text.get_text()) > 0 for text in shown)
        boxes = sorted((t.get_window_extent() for t in shown), key=lambda box: box.x0)
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert all(ax.lines[0].get_xdata().size for ax in axes.flat)


def test_nine_systems_look_different(write_run):
    runs = [read_run(write_run(f"r{k}", system=f"system {k}", final=final())) for k in range(9)]
    axes = training_efficiency(runs)
    lines = axes[0, 0].figure.legends[0].legend_handles[:9]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9


def test_folders_are_read_without_torch(write_run):
    path = write_run("a", final=final())
    code = f"""
import sys
from asvspoof_cm import report
from asvspoof_cm.runs import read_run
run = read_run({str(path)!r})
report.summarize([run]), report.training_curves([run])
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Recorder(Countermeasure):
    """Remembers what it is given, and needs 64 MiB for it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1000))
        self.frozen = torch.nn.Parameter(torch.zeros(500), requires_grad=False)
        self.calls = []

    def embed(self, waveform):
        return waveform

    def forward(self, waveform):
        scratch = torch.ones(16 * 2**20)
        time.sleep(0.03)  # long enough to be seen by the sampling of memory
        self.calls.append((tuple(waveform.shape), self.training, torch.is_grad_enabled()))
        return scratch[:2].expand(len(waveform), 2)


def test_profile_measures_batches_of_crops_in_evaluation_mode():
    model = Recorder().train()
    result = profile(model, n_utterances=5, duration_s=0.5, n_crops=3, n_samples=4000, batch_size=2)
    # One batch ahead, then 2, 2 and 1 utterances of three crops.
    assert [shape for shape, _, _ in model.calls] == [(6, 4000)] * 3 + [(3, 4000)]
    assert {(training, grad) for _, training, grad in model.calls} == {(False, False)}
    assert model.training
    assert result.n_parameters == 1000
    assert result.device == "cpu"
    assert result.real_time_factor == pytest.approx(result.ms_per_utterance / 1000 / 0.5)
    assert result.ms_per_utterance > 3 * 30 / 5


MEMORY = """
import time, torch
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.profiling import profile

class Hungry(Countermeasure):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1000))

    def embed(self, waveform):
        return waveform

    def forward(self, waveform):
        scratch = torch.ones(16 * 2**20)
        time.sleep(0.03)
        return scratch[:2].expand(len(waveform), 2)

print(profile(Hungry(), n_utterances=2, duration_s=0.5, n_samples=4000).peak_memory_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_profile_sees_the_memory_of_a_fresh_process():
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    assert 60 * 2**20 < int(done.stdout) < 200 * 2**20


def test_profile_crops_are_four_seconds_by_default():
    model = Recorder().eval()
    profile(model, n_utterances=1, batch_size=8)
    assert [shape for shape, _, _ in model.calls] == [(5, 64000)] * 2
    assert not model.training


def test_profile_on_another_device_leaves_the_model_where_it_is():
    model = Recorder()
    result = profile(model, n_utterances=1, duration_s=0.5, n_samples=4000, device="meta")
    assert result.device == "meta"
    assert model.weight.device.type == "cpu"
    assert model.calls == []


@pytest.mark.parametrize("name", ["n_utterances", "n_crops", "batch_size", "duration_s"])
def test_profile_checks_its_arguments(name):
    with pytest.raises(ValueError, match=f"`{name}` must be "):
        profile(Recorder(), **{name: 0})
