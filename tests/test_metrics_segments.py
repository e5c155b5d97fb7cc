"""Measures of segments: what PartialSpoof's programs give, definitions, cases by hand."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asvspoof_cm import metrics
from asvspoof_cm.data import Segment

# Recorded from nii-yamagishilab/PartialSpoof; the file says how.
GOLDEN = json.loads((Path(__file__).parent / "reference" / "golden_segments.json").read_text())


def rates_at(truth, scores, threshold):
    """The share of bonafide time below a threshold and of spoofed time at or above it, by hand."""
    below, total = np.zeros(2), np.zeros(2)
    for name, segments in truth.items():
        for start, end, label in segments:
            for a, b, score in scores[name]:
                shared = max(0.0, min(end, b) - max(start, a))
                total[label] += shared
                below[label] += shared * (score < threshold)
    return below[1] / total[1], 1 - below[0] / total[0]


@pytest.mark.parametrize("case", GOLDEN["range_eer"], ids=lambda case: f"{case['hop_s']}")
def test_range_eer_is_that_of_the_published_program(inputs, case):
    truth, scores = inputs.segmentations(case["seed"], case["hop_s"])
    point = metrics.range_eer(truth, scores)
    assert point.value == pytest.approx(case["eer"], abs=1e-9)
    # Theirs is the highest rejected score, ours the lowest accepted one.
    every = np.unique([row[2] for rows in scores.values() for row in rows])
    assert point.threshold == every[every > case["rejected"]].min()
    for rates in case["rates"]:
        accepted = np.nextafter(rates["threshold"], np.inf)
        expected = pytest.approx((rates["p_miss"], rates["p_fa"]), abs=1e-9)
        assert rates_at(truth, scores, accepted) == expected
        found = metrics.segment_rates(truth, metrics.segments_below(scores, accepted))
        assert found["recall"] == pytest.approx(1 - rates["p_fa"], abs=1e-9)


@pytest.mark.parametrize("case", GOLDEN["segment_eer"], ids=lambda case: f"{case['hop_s']}")
def test_segment_eer_is_that_of_the_published_program(inputs, case):
    # Their boundaries are rounded to frames: here they lie on frames.
    truth, scores = inputs.segmentations(case["seed"], case["hop_s"], case["grid_s"])
    for resolution_ms, expected in case["of_resolution_ms"].items():
        point = metrics.segment_eer(truth, scores, int(resolution_ms) / 1000)
        assert point.value == pytest.approx(expected["eer"], abs=1e-12)
        assert point.threshold == expected["threshold"]


TIMES = st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted)


@given(TIMES, TIMES, st.integers(0, 1), st.randoms(use_true_random=False))
def test_range_eer_is_the_closest_of_all_thresholds(cuts, edges, first, random):
    end = max(cuts[-1], edges[-1]) + 1
    truth = [(a, b, (first + k) % 2) for k, (a, b) in enumerate(pairwise([0, *cuts, end]))]
    scores = [(a, b, random.randint(-2, 2)) for a, b in pairwise([0, *edges, end])]
    point = metrics.range_eer(truth, scores)
    candidates = [rates_at({"": truth}, {"": scores}, t) for t in (-2, -1, 0, 1, 2, 3)]
    gap = min(abs(a - b) for a, b in candidates)
    assert any(
        point.value == pytest.approx((a + b) / 2)
        for a, b in candidates
        if abs(a - b) == pytest.approx(gap)
    )
    at = rates_at({"": truth}, {"": scores}, point.threshold)
    assert sum(at) / 2 == pytest.approx(point.value)
    # Frames as short as the grid of all times have the same error rates.
    for threshold in (-1, 0, 1):
        found = metrics.segments_below(scores, threshold)[""]
        p_miss, p_fa = rates_at({"": truth}, {"": scores}, threshold)
        rates = metrics.segment_rates(truth, found)
        assert rates["recall"] == pytest.approx(1 - p_fa)
        bonafide, spoof = (sum(b - a for a, b, label in truth if label == k) for k in (1, 0))
        tp, fp = (1 - p_fa) * spoof, p_miss * bonafide
        expected = tp / (tp + fp) if tp + fp else np.nan
        assert rates["precision"] == pytest.approx(expected, nan_ok=True)
        assert rates["f1"] == pytest.approx(2 * tp / (2 * tp + fp + spoof - tp))


def test_two_seconds_in_ten_found_one_second_late():
    truth, found = [(0, 4, 1), (4, 6, 0), (6, 10, 1)], [(5, 7, 0)]
    rates = metrics.segment_rates(truth, found)
    assert rates == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "iou": pytest.approx(1 / 3)}
    assert metrics.boundary_errors(truth, found).tolist() == [1.0, 1.0]
    same = metrics.segment_rates(truth, [Segment(*row) for row in truth])
    assert set(same.values()) == {1.0}
    assert metrics.boundary_errors(truth, truth).tolist() == [0.0, 0.0]


def test_each_true_segment_counts_with_its_best_overlap():
    truth = [(0, 1, 1), (1, 3, 0), (3, 4, 1), (4, 8, 0), (8, 9, 1)]
    found = [(0, 3.5, 0), (5, 6, 0), (7, 8, 0)]  # 2 of 3.5 s; 1 of 4 s twice
    assert metrics.segment_rates(truth, found)["iou"] == pytest.approx((2 / 3.5 + 1 / 4) / 2)
    nothing = metrics.segment_rates(truth, [(0, 9, 1)])
    assert (nothing["iou"], nothing["recall"]) == (0.0, 0.0)
    assert np.isnan(nothing["precision"])
    assert len(metrics.boundary_errors(truth, [(0, 9, 1)])) == 0


def test_time_without_speech_is_not_measured():
    truth = [(0, 1, 2), (1, 3, 1), (3, 4, 2), (4, 6, 0), (6, 7, 2), (7, 8, 0), (8, 9, 2)]
    scores = [(0, 1, -5), (1, 3, 1), (3, 4, -9), (4, 6, -1), (6, 7, 8), (7, 8, -1), (8, 9, 7)]
    assert metrics.range_eer(truth, scores).value == 0.0
    assert metrics.segment_eer(truth, scores, 0.5).value == 0.0
    found = metrics.segments_below(scores, 0.0)
    # The pause between two synthetic stretches is part of one segment, and costs nothing.
    assert set(metrics.segment_rates({"": truth}, {"": [(3, 8, 0)]}).values()) == {1.0}
    # A boundary anywhere in the pause is right; the one at 6 s is 2 s after the pause's end.
    assert metrics.boundary_errors({"": truth}, found).tolist() == [2.0, 0.0, 2.0, 3.0, 4.0]


def test_windows_that_overlap_share_the_time_between_their_centres():
    windows = [(k, k + 4, float(k)) for k in range(5)]  # 4 s every second, up to 8 s
    truth = [(0, 3.5, 1), (3.5, 9, 0)]  # as long as nothing is missing beyond a window's length
    assert metrics.segments_below(windows, 2.0) == {"": [(0.0, 3.5, 0), (3.5, 8.0, 1)]}
    inverted = [(a, b, -score) for a, b, score in windows]
    assert metrics.range_eer(truth, inverted).value == 0.0


def test_recordings_are_pooled_and_drawn_whole(inputs):
    truth, scores = inputs.segmentations(1, 0.02)
    result = metrics.evaluate_segments(truth, scores, 0.0, n_bootstrap=50)
    found = metrics.segments_below(scores, 0.0)
    errors = metrics.boundary_errors(truth, found)
    expected = {
        "range_eer": metrics.range_eer(truth, scores).value,
        "segment_eer_160ms": metrics.segment_eer(truth, scores, 0.16).value,
        "boundary_median_s": np.median(errors),
        "boundary_90_s": np.quantile(errors, 0.9),
        **metrics.segment_rates(truth, found),
    }
    for name, value in expected.items():
        interval = result.values[name]
        assert interval.value == pytest.approx(value)
        assert interval.low <= value <= interval.high
        assert interval.n_replicates >= 45
    copies = [
        {f"{k}{name}": rows for k in range(9) for name, rows in recordings.items()}
        for recordings in (truth, scores)
    ]
    narrow = metrics.evaluate_segments(*copies, 0.0, n_bootstrap=50)
    widths = [r.values["recall"].high - r.values["recall"].low for r in (result, narrow)]
    assert widths[0] / widths[1] == pytest.approx(3.0, rel=0.45)
    assert "EER of 160 ms (%)" in str(result)
    json.dumps(result.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("truth", "scores", "message"),
    [
        ([(0, 1, 1), (2, 3, 0)], [(0, 3, 1)], "`truth` must have one row .* a gap between 1 and 2"),
        ([(0, 2, 1), (1, 3, 0)], [(0, 3, 1)], "`truth` must .* an overlap between 2 and 1 s"),
        ([(0, 3, 1)], [(0, 1, 1), (2, 3, 1)], "`scores` must have .* a gap between 1 and 2 s"),
        ([(0, 3, 1)], [(0, 1, 1)], r"`scores` .* must cover its `truth`, 0 to 3 s; they go from 0"),
        ([(0, 3, 1)], [(1, 3, 1)], "must cover its `truth`"),
        ([(0, 3, 5)], [(0, 3, 1)], "must have the labels 0, 1 and 2"),
        ([(1, 1, 1)], [(0, 3, 1)], "`truth` must have rows that rise in time, each .* longer than"),
        ([(0, 1)], [(0, 3, 1)], r"must be rows of \(start_s, end_s, value\), at least one; got"),
        ([(0, 1, 1)], [(0, 1, np.nan)], "`scores` must have rows that rise"),
        ({"a": [(0, 1, 1)]}, {"b": [(0, 1, 1)]}, r"1 are missing \['a'\], 1 are not .* \['b'\]"),
    ],
)
def test_errors_name_the_recording_and_the_time(truth, scores, message):
    with pytest.raises(ValueError, match=message):
        metrics.range_eer(truth, scores)
