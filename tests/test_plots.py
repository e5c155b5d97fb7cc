"""The figures show what they claim: positions on the axes, labels, and no global state."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtri

from asvspoof_cm import metrics, plots


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    return rng.normal(1, 1, 4000), rng.normal(-1, 1, 9000)


def test_gaussian_scores_are_a_straight_det_line(scores):
    ax = plots.det(*scores, label="system")
    x, y = ax.lines[0].get_data()
    inside = (np.abs(x) < 2) & (np.abs(y) < 2)
    # Φ⁻¹(P_miss) = −2 − Φ⁻¹(P_fa) for unit variances two apart.
    assert np.abs(x[inside] + y[inside] + 2).max() < 0.15
    assert len(x) < 5000
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    eer = 100 * metrics.eer(*scores).value
    assert labels == [f"system, EER {eer:.2f} %", "EER", "minDCF", "actDCF"]
    assert [t.get_text() for t in ax.get_xticklabels()][:3] == ["0.1", "0.5", "1"]


def test_operating_points_lie_on_the_det_curve(scores):
    ax = plots.det(*scores)
    markers = {line.get_label(): line.get_data() for line in ax.lines[1:4]}
    bonafide, spoof = scores
    x, y = (float(v[0]) for v in markers["EER"])
    assert x == pytest.approx(ndtri(metrics.eer(*scores).value), abs=0.01)
    assert x == pytest.approx(y, abs=0.01)
    x, y = (float(v[0]) for v in markers["actDCF"])
    threshold = metrics.ASVSPOOF5.threshold
    assert x == pytest.approx(ndtri((spoof >= threshold).mean()))
    assert y == pytest.approx(ndtri((bonafide < threshold).mean()))
    x, y = (float(v[0]) for v in markers["minDCF"])
    from scipy.stats import norm

    cost = 1.9 * norm.cdf(y) + norm.cdf(x)
    assert cost == pytest.approx(metrics.min_dcf(*scores).value)


def test_two_systems_share_axes_and_marker_legend(scores):
    ax = plots.det(*scores, label="A")
    assert plots.det(scores[0] * 0.5, scores[1], ax, label="B") is ax
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [label[:1] for label in labels[:2]] == ["A", "B"]
    assert labels[2:] == ["EER", "minDCF", "actDCF"]


def test_separable_and_tiny_sets_can_be_drawn():
    ax = plots.det([2.0, 3.0], [0.0])
    assert all(np.isfinite(line.get_data()).all() for line in ax.lines)
    plots.scores([1.0], [1.0])
    plots.calibration([1.0], [0.0])


def test_histogram_is_a_density_with_the_threshold(scores):
    ax = plots.scores(*scores, n_bins=40)
    for patch in ax.patches:
        values, edges, _ = patch.get_data()
        assert (values * np.diff(edges)).sum() == pytest.approx(1.0)
    assert ax.lines[0].get_xdata()[0] == pytest.approx(-np.log(1.9))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["spoof (9,000)", "bonafide (4,000)", "Bayes threshold −0.64"]


def test_calibration_plot_shows_both_costs(scores):
    ax = plots.calibration(*scores)
    x, actual = ax.lines[0].get_data()
    _, minimum = ax.lines[1].get_data()
    assert (minimum <= actual + 1e-12).all()
    assert minimum.max() <= 1 + 1e-12
    costs = metrics.DetectionCosts(p_spoof=0.5, c_miss=1, c_fa=1)
    at = int(np.argmin(np.abs(x)))
    assert actual[at] == pytest.approx(metrics.act_dcf(*scores, costs).value)
    assert minimum[at] == pytest.approx(metrics.min_dcf(*scores, costs).value)
    # Scaled by two these scores are true log-likelihood ratios: the gap closes.
    ax = plots.calibration(2 * scores[0], 2 * scores[1], log_odds=(-2, 2))
    assert np.abs(ax.lines[0].get_ydata() - ax.lines[1].get_ydata()).max() < 0.03


def test_breakdown_bars_and_intervals(scores):
    values, labels = np.concatenate(scores), np.repeat([1, 0], [4000, 9000])
    attack = np.where(labels == 1, "-", np.resize(["A09", "A10", "A11"], 13000))
    result = metrics.breakdown(values, labels, {"attack": attack}, n_bootstrap=20)
    ax = plots.breakdown(result)
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == pytest.approx([100 * row.values["eer"] for row in result.rows[:-1]])
    segments = ax.collections[0].get_segments()
    for row, segment in zip(result.rows, segments, strict=False):
        interval = row.intervals["eer"]
        assert segment[:, 1] == pytest.approx([100 * interval.low, 100 * interval.high])
    assert ax.get_xlabel() == "attack"
    assert ax.get_ylabel() == "EER (%)"
    assert plots.breakdown(result, plots.new_axes(), metric="cllr").get_ylabel() == ("Cllr (bits)")


def test_save_figure_writes_the_named_format(tmp_path, scores):
    ax = plots.scores(*scores)
    plots.save_figure(ax, tmp_path / "new" / "scores.png")
    assert (tmp_path / "new" / "scores.png").read_bytes()[:4] == b"\x89PNG"
    plots.save_figure(ax, tmp_path / "scores.svg")
    assert b"<svg" in (tmp_path / "scores.svg").read_bytes()


def test_without_matplotlib_the_extra_is_named():
    code = """
import sys
sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None
from asvspoof_cm import plots
try:
    plots.scores([1.0], [0.0])
except ImportError as error:
    sys.exit("pip install 'asvspoof-cm[plots]'" not in str(error))
sys.exit(2)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pyplot_is_never_loaded(scores):
    code = """
import sys
from asvspoof_cm import plots
assert "matplotlib" not in sys.modules
plots.det([1.0, 2.0], [0.0, 1.5])
sys.exit("matplotlib.pyplot" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("bonafide", "spoof"), [([1e17, 1e17 + 16], [1e17]), ([1e300], [1e300]), ([1e300], [-1e300])]
)
def test_enormous_scores_can_be_binned(bonafide, spoof):
    ax = plots.scores(bonafide, spoof)
    _, edges, _ = ax.patches[0].get_data()
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= min(bonafide + spoof)
    assert edges[-1] >= max(bonafide + spoof)


def test_det_curves_take_the_colours_of_the_module(scores):
    ax = plots.det(*scores, label="A")
    plots.det(scores[0] * 0.5, scores[1], ax, label="B")
    curves = [line.get_color() for line in ax.lines if line.get_linestyle() == "-"]
    assert curves == [plots.BONAFIDE_COLOR, plots.SPOOF_COLOR]


def test_crossed_columns_are_a_map_of_a_page_width():
    rng = np.random.default_rng(0)
    attacks, codecs = [f"A{i}" for i in range(17, 33)], [f"C{i:02d}" for i in range(12)]
    attack = np.array(["-"] * 600 + attacks * 96)
    codec = np.concatenate([rng.choice(codecs[1:], 600), np.repeat(codecs, 128)])
    labels = np.where(attack == "-", 1, 0)
    values = rng.normal(labels)
    groups = {"attack": attack, "codec": codec}
    result = metrics.breakdown(values, labels, groups, match=["codec"])
    ax = plots.breakdown(result)
    assert ax.figure.get_size_inches()[0] == plots.PAGE_WIDTH_IN
    drawn = np.asarray(ax.images[0].get_array().filled(np.nan))
    assert drawn.shape == (16, 12)
    assert np.isnan(drawn[:, 0]).all()
    row = next(row for row in result.rows if row.group == ("A18", "C03"))
    assert drawn[1, 3] == pytest.approx(100 * row.values["eer"])
    texts = [text.get_text() for text in ax.texts]
    assert texts.count("–") == 16
    assert texts[12 + 3] == f"{100 * row.values['eer']:.1f}"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("codec", "attack")


def test_bars_of_groups_without_bonafide_are_marked():
    labels, codec = [1, 1, 0, 0], ["C00", "C00", "C00", "C01"]
    result = metrics.breakdown([1.0, 2.0, 0.0, -1.0], labels, {"codec": codec}, match=["codec"])
    ax = plots.breakdown(result)
    assert [(text.get_text(), text.get_position()[0]) for text in ax.texts] == [("–", 1)]
