"""The figures show what they claim: positions on the axes, labels, and no global state."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import norm

from asvspoof_cm import metrics, plots
from asvspoof_cm.data import Segment
from asvspoof_cm.scorer import Explanation


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    return rng.normal(1, 1, 4000), rng.normal(-1, 1, 9000)


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_gaussian_scores_are_a_straight_det_line_with_its_operating_points(scores):
    ax = plots.det(*scores, label="system")
    x, y = ax.lines[0].get_data()
    inside = (np.abs(x) < 2) & (np.abs(y) < 2)
    # Φ⁻¹(P_miss) = −2 − Φ⁻¹(P_fa) for unit variances two apart.
    assert np.abs(x[inside] + y[inside] + 2).max() < 0.15
    assert len(x) < 5000
    eer = metrics.eer(*scores).value
    assert legend(ax) == [f"system, EER {100 * eer:.2f} %", "EER", "minDCF", "actDCF"]
    assert [t.get_text() for t in ax.get_xticklabels()][:3] == ["0.1", "0.5", "1"]
    points = {line.get_label(): [float(v[0]) for v in line.get_data()] for line in ax.lines[1:4]}
    bonafide, spoof = scores
    assert points["EER"] == pytest.approx([ndtri(eer), ndtri(eer)], abs=0.01)
    threshold = metrics.ASVSPOOF5.threshold
    rates = (spoof >= threshold).mean(), (bonafide < threshold).mean()
    assert points["actDCF"] == pytest.approx(ndtri(rates))
    p_fa, p_miss = norm.cdf(points["minDCF"])
    assert 1.9 * p_miss + p_fa == pytest.approx(metrics.min_dcf(*scores).value)


def test_two_systems_share_axes_colours_and_marker_legend(scores):
    ax = plots.det(*scores, label="A")
    assert plots.det(scores[0] * 0.5, scores[1], ax, label="B") is ax
    assert [label[:1] for label in legend(ax)[:2]] == ["A", "B"]
    assert legend(ax)[2:] == ["EER", "minDCF", "actDCF"]
    curves = [line.get_color() for line in ax.lines if line.get_linestyle() == "-"]
    assert curves == [plots.BONAFIDE_COLOR, plots.SPOOF_COLOR]
    separable = plots.det([2.0, 3.0], [0.0])
    assert all(np.isfinite(line.get_data()).all() for line in separable.lines)


def test_histogram_is_a_density_with_the_threshold(scores):
    ax = plots.scores(*scores, n_bins=40)
    for patch in ax.patches:
        values, edges, _ = patch.get_data()
        assert (values * np.diff(edges)).sum() == pytest.approx(1.0)
    assert ax.lines[0].get_xdata()[0] == pytest.approx(-np.log(1.9))
    assert legend(ax) == ["spoof (9,000)", "bonafide (4,000)", "Bayes threshold −0.64"]


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
    ax = plots.calibration(2 * scores[0], 2 * scores[1])
    gap = np.abs(ax.lines[0].get_ydata() - ax.lines[1].get_ydata())
    assert gap[np.abs(x) < 2].max() < 0.03


def test_breakdown_bars_and_intervals(scores):
    values, labels = np.concatenate(scores), np.repeat([1, 0], [4000, 9000])
    attack = np.where(labels == 1, "-", np.resize(["A09", "A10", "A11"], 13000))
    result = metrics.breakdown(values, labels, {"attack": attack}, n_bootstrap=20)
    ax = plots.breakdown(result)
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == pytest.approx([100 * float(row.values["eer"]) for row in result.rows[:-1]])
    for row, line in zip(result.rows[:-1], ax.lines, strict=False):
        interval = row.values["eer"]
        assert line.get_ydata() == pytest.approx([100 * interval.low, 100 * interval.high])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("attack", "EER (%)")
    assert plots.breakdown(result, plots.new_axes(), metric="cllr").get_ylabel() == "Cllr (bits)"
    # A group without bonafide trials to stand against is marked.
    labels, codec = [1, 1, 0, 0], ["C00", "C00", "C00", "C01"]
    lonely = metrics.breakdown([1.0, 2.0, 0.0, -1.0], labels, {"codec": codec}, match=["codec"])
    texts = [(text.get_text(), text.get_position()[0]) for text in plots.breakdown(lonely).texts]
    assert texts == [("–", 1)]


def test_crossed_columns_are_a_map_of_a_page_width():
    rng = np.random.default_rng(0)
    attacks, codecs = [f"A{i}" for i in range(17, 33)], [f"C{i:02d}" for i in range(12)]
    attack = np.array(["-"] * 600 + attacks * 96)
    codec = np.concatenate([rng.choice(codecs[1:], 600), np.repeat(codecs, 128)])
    labels = np.where(attack == "-", 1, 0)
    groups = {"attack": attack, "codec": codec}
    result = metrics.breakdown(rng.normal(labels), labels, groups, match=["codec"])
    ax = plots.breakdown(result)
    assert ax.figure.get_size_inches()[0] == plots.PAGE_WIDTH_IN
    drawn = np.asarray(ax.images[0].get_array().filled(np.nan))
    assert drawn.shape == (16, 12)
    assert np.isnan(drawn[:, 0]).all()
    row = next(row for row in result.rows if row.group == ("A18", "C03"))
    assert drawn[1, 3] == pytest.approx(100 * row.values["eer"])
    texts = [text.get_text() for text in ax.texts]
    assert (texts.count("–"), texts[12 + 3]) == (16, f"{100 * row.values['eer']:.1f}")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("codec", "attack")


def test_timeline_has_truth_above_the_scores_and_found_segments_behind():
    rows = np.array([[0.0, 1.0, 2.0], [1.0, 2.0, -1.5], [2.0, 3.5, 1.0]])
    truth = [(0.0, 1.2, 1), (1.2, 2.2, 0), (2.2, 3.5, "music")]
    found = [Segment(0.0, 1.0, 1, 2.0), Segment(1.0, 2.0, 0, -1.5)]
    ax = plots.timeline(rows, threshold=0.0, truth=truth, found=found)
    np.testing.assert_allclose(ax.lines[0].get_data(), [[0.5, 1.5, 2.75], [2.0, -1.5, 1.0]])
    assert [text.get_text() for text in ax.texts] == ["bonafide", "spoof", "music"]
    above = [band.get_paths()[0].get_extents() for band in ax.collections[1:]]
    assert [(box.x0, box.x1) for box in above] == [(0.0, 1.2), (1.2, 2.2), (2.2, 3.5)]
    assert all(box.y0 > 1.0 for box in above)
    (span,) = ax.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == (1.0, 2.0)
    below = metrics.segments_below(rows, 0.0)[""]
    (again,) = plots.timeline(rows, found=below).patches
    assert (again.get_x(), again.get_width()) == (1.0, 1.0)
    assert legend(ax) == ["threshold 0", "taken for spoof", "found"]
    assert ax.get_xlim() == (0.0, 3.5)


def test_an_explanation_has_its_changes_at_their_place():
    of_band = np.array([[0.0, 1.0, -0.5], [0.0, 0.0, 2.0]])
    edges = {"edges_s": np.array([0.0, 1.0, 2.0, 2.5]), "edges_hz": np.array([0.0, 1e3, 8e3])}
    whole = np.array([0.0, 0.7, 1.9])
    ax = plots.explanation(Explanation(**edges, of_time=whole, of_band=of_band, score=-1.0))
    np.testing.assert_array_equal(ax.images[0].get_array(), of_band)
    assert ax.images[0].get_extent() == [0.0, 2.5, 0.0, 2.0]
    assert ax.images[0].get_clim() == (-2.0, 2.0)
    (right,) = (axes for axes in ax.figure.axes if axes is not ax)
    np.testing.assert_allclose(right.lines[0].get_data(), [[0.5, 1.5, 2.25], whole])
    edges["edges_hz"] = np.array([0.0, 8e3])
    without_bands = Explanation(**edges, of_time=whole, of_band=np.empty((0, 3)), score=-1.0)
    assert plots.explanation(without_bands).images[0].get_array().shape == (1, 3)


def test_save_figure_writes_the_named_format(tmp_path):
    ax = plots.scores([1.0], [1.0])
    for name, content in (("new/scores.png", b"\x89PNG"), ("scores.svg", b"<svg")):
        plots.save_figure(ax, tmp_path / name)
        assert content in (tmp_path / name).read_bytes()


def test_pictures_of_names_that_collide_have_a_number(tmp_path):
    taken = set()
    paths = [plots.picture_path(tmp_path, name, taken) for name in ("a/b", "A_b", "../c", "..")]
    assert [path.name for path in paths] == ["a_b.png", "A_b_2.png", "c.png", "picture.png"]


WITHOUT = """
sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None
try:
    plots.scores([1.0], [0.0])
except ImportError as error:
    sys.exit("pip install 'asvspoof-cm[plots]'" not in str(error))
sys.exit(2)
"""
WITH = """
assert "matplotlib" not in sys.modules and "torch" not in sys.modules
plots.det([1.0, 2.0], [0.0, 1.5])
sys.exit("matplotlib.pyplot" in sys.modules)
"""


@pytest.mark.parametrize("code", [WITHOUT, WITH], ids=["the extra is named", "no pyplot"])
def test_matplotlib_is_an_extra_and_pyplot_no_part_of_it(code):
    code = f"import sys\nfrom asvspoof_cm import plots\n{code}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
