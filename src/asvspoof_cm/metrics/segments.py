"""Where in a recording: measures of the stretches that a detector takes for synthetic. NumPy only.

Conventions, as in mir_eval: an annotation is rows of time, in seconds, sorted and without overlap.

- `truth` has rows (start_s, end_s, label), such as `Segment` of `asvspoof_cm.data`, with the labels
  0 (spoof), 1 (bonafide) and 2 (no speech). Time without speech is not measured.
- `found` has such rows too; what no row of it names is bonafide.
- `scores` has rows (start_s, end_s, score): frames or windows; a higher score means bonafide. Where
  windows overlap, each covers the time up to the middle of the overlap. Where the truth ends later
  than the last window, that window covers the rest, if the rest is shorter than the window.

Each is one recording, shape (n, 3), or several by name: rates are shares of the time of the whole
set. What is found are spoofs, so precision, recall and F1 are those of synthetic time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm._tables import Quantity, Report, Table
from asvspoof_cm._util import FloatArray, IntArray, as_scores, check_positive_finite
from asvspoof_cm.labels import BONAFIDE, NO_SPEECH, SPOOF
from asvspoof_cm.metrics.costs import ASVSPOOF5
from asvspoof_cm.metrics.intervals import Interval, draws, with_intervals
from asvspoof_cm.metrics.track1 import Curve, OperatingPoint, eer_of

Recordings: TypeAlias = NDArray[Any] | Sequence[Any] | Mapping[str, Any]

RESOLUTIONS_S: Final = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""The lengths of a frame at which `evaluate_segments` gives the segment EER."""

# Times closer than this are one: what rounding leaves.
_SAME_S = 1e-6


@dataclass(frozen=True)
class _Pieces:
    """Stretches of time of one label and one value, over all recordings: (n_pieces,) each."""

    recording: IntArray
    start_s: FloatArray
    end_s: FloatArray
    label: IntArray
    value: FloatArray

    @property
    def duration_s(self) -> FloatArray:
        """The measured time of each piece: 0 where there is no speech."""
        return np.where(self.label == NO_SPEECH, 0.0, self.end_s - self.start_s)

    @property
    def n_recordings(self) -> int:
        return int(self.recording[-1]) + 1


def range_eer(truth: Recordings, scores: Recordings) -> OperatingPoint:
    """Return the range-based equal error rate, as a fraction, and its threshold.

    The errors are shares of time: P_miss of the bonafide time is refused, P_fa of the synthetic
    time passes (Zhang et al., 2023). The value is their mean at the threshold where they are
    closest, of all thresholds; accept s ≥ τ.

    Note:
        The published program bisects percentiles of the scores and stops within 1e-5; here every
        score is tried.

    Example:
        >>> truth = [(0.0, 4.0, 1), (4.0, 6.0, 0)]
        >>> scores = [(0.0, 3.0, 1.0), (3.0, 5.5, -1.0), (5.5, 6.0, 2.0)]
        >>> range_eer(truth, scores)
        OperatingPoint(value=0.25, threshold=1.0)
    """
    pieces = _pieces(truth, scores)
    return _range_eer(pieces)(np.ones(pieces.n_recordings))


def segment_eer(
    truth: Recordings, scores: Recordings, resolution_s: float = 0.16
) -> OperatingPoint:
    """Return the equal error rate of frames of `resolution_s`, as a fraction, and its threshold.

    A frame is spoofed if any of it is, and its score is the lowest in it, as in PartialSpoof.
    Frames without speech are left out. Ties are official: see `eer`.

    Example:
        >>> truth = [(0.0, 0.32, 1), (0.32, 0.64, 0)]
        >>> scores = [(0.0, 0.16, 2.0), (0.16, 0.32, 0.5), (0.32, 0.48, -1.0), (0.48, 0.64, 1.0)]
        >>> segment_eer(truth, scores, 0.16).value
        0.5
    """
    check_positive_finite(resolution_s=resolution_s)
    return eer_of(_frames(_pieces(truth, scores), resolution_s)[0])


def segments_below(
    scores: Recordings, threshold: float
) -> dict[str, list[tuple[float, float, int]]]:
    """Return the segments of each recording where the score is below or at least `threshold`.

    Example:
        >>> segments_below({"a": [(0, 1, 2.0), (1, 2, 3.0), (2, 4, -1.0)]}, 0.0)
        {'a': [(0.0, 2.0, 1), (2.0, 4.0, 0)]}
    """
    found = {}
    for name, rows in _by_name(scores).items():
        starts, ends, values = _columns("scores", name, rows)
        labels = np.where(values < threshold, SPOOF, BONAFIDE)
        first = np.flatnonzero(np.diff(labels, prepend=-1))
        ends = np.append(starts[first[1:]], ends[-1])
        columns = starts[first].tolist(), ends.tolist(), labels[first].tolist()
        found[name] = [*zip(*columns, strict=True)]
    return found


def segment_rates(truth: Recordings, found: Recordings) -> dict[str, float]:
    """Return precision, recall and F1 by time, and the mean intersection over union of segments.

    The intersection over union of a true synthetic segment is that with the found one that overlaps
    it best, 0 where there is none. Rates without time in their denominator are NaN.

    Example:
        >>> rates = segment_rates([(0, 4, 1), (4, 6, 0)], [(0, 5, 1), (5, 6, 0)])
        >>> rates["precision"], rates["recall"], rates["iou"]
        (1.0, 0.5, 0.5)
    """
    return _rates(_sums(_pieces(truth, found, "found")).sum(axis=0))


def boundary_errors(truth: Recordings, found: Recordings) -> FloatArray:
    """Return the distance in seconds from each found boundary to the nearest true one.

    A boundary is where bonafide and synthetic speech meet. Where nobody speaks between the two, the
    true boundary is the whole pause. Recordings without a true boundary are left out: what is found
    there costs precision.

    Example:
        >>> boundary_errors([(0, 4, 1), (4, 6, 0)], [(0, 4.25, 1), (4.25, 6, 0)])
        array([0.25])
    """
    return _boundary_errors(_pieces(truth, found, "found"))[0]


def _eer_name(resolution_s: float) -> str:
    return f"segment_eer_{1000 * resolution_s:.0f}ms"


_RATES = {
    "range_eer": "range EER",
    **{_eer_name(s): f"EER of {1000 * s:.0f} ms" for s in RESOLUTIONS_S},
    "precision": "precision",
    "recall": "recall",
}
SEGMENT_METRICS: Final[dict[str, Quantity]] = {
    **{name: Quantity(name, title, "%", 100.0, 2) for name, title in _RATES.items()},
    "f1": Quantity("f1", "F1"),
    "iou": Quantity("iou", "intersection over union"),
    "boundary_median_s": Quantity("boundary_median_s", "boundary error, median", "s", 1.0, 3),
    "boundary_90_s": Quantity("boundary_90_s", "boundary error, 90 %", "s", 1.0, 3),
}
"""What `evaluate_segments` gives, by name, and how it is printed."""


@dataclass(frozen=True, kw_only=True)
class SegmentResult(Report):
    """What `evaluate_segments` returns; ``print`` shows a table."""

    n_recordings: int
    bonafide_s: float
    spoof_s: float
    threshold: float
    """Of precision, recall, F1, intersection over union and boundaries."""
    values: Mapping[str, Interval | float]
    """By the names of `SEGMENT_METRICS`."""

    def table(self) -> Table:
        """Return the table that ``print`` shows."""
        rows: list[Sequence[Any]] = [
            ("recordings", self.n_recordings),
            (Quantity("bonafide_s", "bonafide", "s", 1.0, 1), self.bonafide_s),
            (Quantity("spoof_s", "synthetic", "s", 1.0, 1), self.spoof_s),
        ]
        rows += [(SEGMENT_METRICS[name], value) for name, value in self.values.items()]
        return Table((f"segments, threshold {self.threshold:.4f}", "value"), rows)


def evaluate_segments(
    truth: Recordings,
    scores: Recordings,
    threshold: float = ASVSPOOF5.threshold,
    *,
    n_bootstrap: int = 0,
    seed: int = 0,
) -> SegmentResult:
    """Return every measure of the segments of recordings, with intervals over recordings.

    Args:
        truth: Rows (start_s, end_s, label) of one recording, or of several by name.
        scores: Rows (start_s, end_s, score), of the same recordings.
        threshold: Frames below it are taken for synthetic.
        n_bootstrap: Replicates, in which whole recordings are drawn; 0 for no intervals.
        seed: Seed of the draws.

    Example:
        >>> truth = {"a": [(0.0, 3.0, 1), (3.0, 4.0, 0)], "b": [(0.0, 4.0, 1)]}
        >>> scores = {name: [(k / 2, k / 2 + 0.5, 2.0 - k) for k in range(8)] for name in "ab"}
        >>> result = evaluate_segments(truth, scores, 0.0)
        >>> round(result.values["precision"], 3), result.values["recall"]
        (0.2, 1.0)
    """
    pieces = _pieces(truth, scores)
    found = replace(pieces, value=np.where(pieces.value < threshold, SPOOF, BONAFIDE))
    sums, of_range, (errors, of_error) = _sums(found), _range_eer(pieces), _boundary_errors(found)
    frames = {_eer_name(length_s): _frames(pieces, length_s) for length_s in RESOLUTIONS_S}

    def values_of(counts: NDArray[Any]) -> dict[str, float]:
        found = {"range_eer": of_range(counts).value}
        for name, (curve, of_frame) in frames.items():
            curve = curve.drawn((counts[of_frame[0]], counts[of_frame[1]]))
            found[name] = eer_of(curve).value if all(curve.n_trials) else math.nan
        found |= _rates(counts @ sums)
        drawn = np.repeat(errors, counts[of_error])
        for name, share in (("boundary_median_s", 0.5), ("boundary_90_s", 0.9)):
            found[name] = float(np.quantile(drawn, share)) if len(drawn) else math.nan
        return found

    n = pieces.n_recordings
    values = values_of(np.ones(n, dtype=np.int32))
    drawn = np.empty((n_bootstrap if n > 1 else 0, len(values)))
    for k, (counts,) in enumerate(draws([n], len(drawn), seed)):
        drawn[k] = [*values_of(counts).values()]
    return SegmentResult(
        n_recordings=n,
        bonafide_s=float(pieces.duration_s[pieces.label == BONAFIDE].sum()),
        spoof_s=float(pieces.duration_s[pieces.label == SPOOF].sum()),
        threshold=float(threshold),
        values=with_intervals(values, drawn),
    )


def _by_name(recordings: Recordings) -> Mapping[str, Any]:
    return recordings if isinstance(recordings, Mapping) else {"": recordings}


def _columns(argument: str, name: str, rows: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return starts, ends and values of a recording's rows, (n,) each; overlaps are shared."""
    where = f"`{argument}` of {name!r}" if name else f"`{argument}`"
    if not isinstance(rows, np.ndarray):
        rows = [tuple(row[:3]) for row in rows]
    table = np.array(rows, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 3 or not len(table):
        raise ValueError(
            f"{where} must be rows of (start_s, end_s, value), at least one; got {table.shape}."
        )
    starts, ends, values = table.T
    steps = np.concatenate([ends - starts, np.diff(starts), np.diff(ends)])
    if np.isnan(table).any() or not (steps > 0).all():
        raise ValueError(f"{where} must have rows that rise in time, each of them longer than 0.")
    gap = starts[1:] - ends[:-1]
    is_gap, is_overlap = gap > _SAME_S, gap < -_SAME_S
    wrong = {"truth": is_gap | is_overlap, "scores": is_gap, "found": is_overlap}[argument]
    if wrong.any():
        first = int(np.argmax(wrong))
        what = "a gap" if gap[first] > 0 else "an overlap"
        raise ValueError(
            f"{where} must have one row for every time; there is {what} between {ends[first]:g} "
            f"and {starts[first + 1]:g} s."
        )
    if argument != "found":
        starts[1:] = ends[:-1] = (ends[:-1] + starts[1:]) / 2
    return starts, ends, values


def _pieces(truth: Recordings, scores: Recordings, argument: str = "scores") -> _Pieces:
    """Return the pieces of time that have one true label and one score, or one found label."""
    annotated, scored = _by_name(truth), _by_name(scores)
    if annotated.keys() != scored.keys():
        missing, more = (sorted({*a} - {*b}) for a, b in ((annotated, scored), (scored, annotated)))
        raise ValueError(
            f"`{argument}` must have the recordings of `truth`; {len(missing)} are missing "
            f"{missing[:3]}, {len(more)} are not in `truth` {more[:3]}."
        )
    parts: list[tuple[Any, ...]] = []
    for index, name in enumerate(annotated):
        true_starts, true_ends, labels = _columns("truth", name, annotated[name])
        if not np.isin(labels, (SPOOF, BONAFIDE, NO_SPEECH)).all():
            raise ValueError(f"`truth` of {name!r} must have the labels 0, 1 and 2.")
        starts, ends, values = _columns(argument, name, scored[name])
        first, last = true_starts[0], true_ends[-1]
        if argument == "scores":
            last = ends[-1] if np.isinf(last) else last
            if starts[0] > first + _SAME_S or last >= 2 * ends[-1] - starts[-1]:
                raise ValueError(
                    f"`scores` of {name!r} must cover its `truth`, {first:g} to {last:g} s; they "
                    f"go from {starts[0]:g} to {ends[-1]:g} s."
                )
            starts[0], ends[-1] = min(starts[0], first), max(ends[-1], last)
        cuts = np.unique(np.concatenate([true_starts, true_ends, starts, ends]).clip(first, last))
        cuts = cuts[np.append(True, np.diff(cuts) > _SAME_S)]
        middle = (cuts[:-1] + cuts[1:]) / 2
        label = labels[np.searchsorted(true_starts, middle, "right") - 1]
        row = np.searchsorted(starts, middle, "right") - 1
        is_named = (row >= 0) & (middle < ends[row])
        value = np.where(is_named, values[row], BONAFIDE)
        parts.append((np.full(len(middle), index), cuts[:-1], cuts[1:], label, value))
    return _Pieces(*map(np.concatenate, zip(*parts, strict=True)))


def _range_eer(pieces: _Pieces) -> Callable[[NDArray[Any]], OperatingPoint]:
    """Return the range EER, NaN without a class, of how often each recording comes."""
    order = np.argsort(pieces.value, kind="stable")
    duration_s, recording = pieces.duration_s[order], pieces.recording[order]
    is_spoof = pieces.label[order] == SPOOF
    thresholds, first = np.unique(pieces.value[order], return_index=True)
    at, thresholds = np.append(first, len(order)), np.append(thresholds, math.inf)

    def eer(counts: NDArray[Any]) -> OperatingPoint:
        time = duration_s * counts[recording]
        bonafide_s, spoof_s = (
            np.append(0.0, np.cumsum(np.where(chosen, time, 0.0)))[at]
            for chosen in (~is_spoof, is_spoof)
        )
        if not bonafide_s[-1] or not spoof_s[-1]:
            return OperatingPoint(math.nan, math.nan)
        p_miss, p_fa = bonafide_s / bonafide_s[-1], 1.0 - spoof_s / spoof_s[-1]
        best = int(np.argmin(np.abs(p_miss - p_fa)))
        return OperatingPoint(float(p_miss[best] + p_fa[best]) / 2, float(thresholds[best]))

    return eer


def _frames(pieces: _Pieces, resolution_s: float) -> tuple[Curve, list[IntArray]]:
    """Return the curve of bonafide and spoofed frames, and their recordings in its order."""
    kept = pieces.label != NO_SPEECH
    # Frames of a recording are counted from its start; a boundary on an edge belongs to one frame.
    start = pieces.start_s - pieces.start_s[np.searchsorted(pieces.recording, pieces.recording)]
    end = start + pieces.end_s - pieces.start_s
    first = np.floor((start + _SAME_S) / resolution_s).astype(np.int64)[kept]
    last = np.ceil((end - _SAME_S) / resolution_s).astype(np.int64)[kept]
    n_frames = last - first
    piece = np.repeat(np.flatnonzero(kept), n_frames)
    within = np.arange(len(piece)) - np.repeat(np.cumsum(n_frames) - n_frames, n_frames)
    frame = np.repeat(first, n_frames) + within
    starts = _starts(frame, pieces.recording[piece])
    score = np.minimum.reduceat(pieces.value[piece], starts)
    is_bonafide = np.minimum.reduceat(pieces.label[piece], starts) == BONAFIDE
    order = np.argsort(score, kind="stable")
    classes = [order[is_bonafide[order]], order[~is_bonafide[order]]]
    curve = Curve((as_scores("bonafide", score[classes[0]]), as_scores("spoof", score[classes[1]])))
    return curve, [pieces.recording[piece[starts[of_class]]] for of_class in classes]


def _starts(*columns: NDArray[Any]) -> IntArray:
    """Return the rows in which one of the columns differs from the row before."""
    changes = [np.diff(column, prepend=column[:1] - 1) != 0 for column in columns]
    return np.flatnonzero(np.any(changes, axis=0))


def _runs(pieces: _Pieces, values: NDArray[Any]) -> IntArray:
    """Number the stretches of one value in one recording: (n_pieces,)."""
    starts = _starts(values, pieces.recording)
    return np.searchsorted(starts, np.arange(len(values)), "right") - 1


def _sums(pieces: _Pieces) -> FloatArray:
    """Return what the rates of each recording are made of: (n_recordings, 5).

    Seconds of TP, FP and FN; the sum of the true segments' intersections over unions; their number.
    """
    time, is_found = pieces.duration_s, pieces.value == SPOOF
    # A pause belongs to the speech before it.
    speech = np.maximum.accumulate(np.where(time > 0, np.arange(len(time)), 0))
    same = pieces.recording[speech] == pieces.recording
    label = np.where(same, pieces.label[speech], BONAFIDE)
    is_spoof = (label == SPOOF) & (time > 0)
    true_run, found_run = _runs(pieces, label), _runs(pieces, is_found)
    true_s = np.bincount(true_run, np.where(is_spoof, time, 0.0))
    found_s = np.bincount(found_run, np.where(is_found, time, 0.0))
    both = is_spoof & is_found
    pairs, which = np.unique((true_run * len(found_s) + found_run)[both], return_inverse=True)
    shared_s = np.bincount(which, time[both], len(pairs))
    true, found = np.divmod(pairs, len(found_s))
    best = np.zeros(len(true_s))
    np.maximum.at(best, true, shared_s / (true_s[true] + found_s[found] - shared_s))
    first = np.unique(true_run, return_index=True)[1]
    n, of_run = pieces.n_recordings, pieces.recording[first]
    outcomes = (both, ~is_spoof & is_found, is_spoof & ~is_found)
    seconds = [np.bincount(pieces.recording, np.where(chosen, time, 0.0), n) for chosen in outcomes]
    segments = [np.bincount(of_run, weights, n) for weights in (best, true_s > 0)]
    return np.stack(seconds + segments, axis=1)


def _rates(sums: FloatArray) -> dict[str, float]:
    tp, fp, fn, overlap, n_segments = sums.tolist()
    shares = {
        "precision": (tp, tp + fp),
        "recall": (tp, tp + fn),
        "f1": (2 * tp, 2 * tp + fp + fn),
        "iou": (overlap, n_segments),
    }
    return {name: part / whole if whole else math.nan for name, (part, whole) in shares.items()}


def _boundary_errors(pieces: _Pieces) -> tuple[FloatArray, IntArray]:
    """Return the error of each found boundary in seconds, and its recording."""
    speech = np.flatnonzero(pieces.label != NO_SPEECH)
    before, after = speech[:-1], speech[1:]
    changed = pieces.label[before] != pieces.label[after]
    changed &= pieces.recording[before] == pieces.recording[after]
    before, after = before[changed], after[changed]
    found = 1 + np.flatnonzero((np.diff(pieces.value) != 0) & (np.diff(pieces.recording) == 0))
    errors, of_recording = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for recording in np.intersect1d(pieces.recording[before], pieces.recording[found]):
        at = pieces.start_s[found[pieces.recording[found] == recording]]
        true = pieces.recording[before] == recording
        start, end = pieces.end_s[before[true]], pieces.start_s[after[true]]
        distance = np.maximum(np.maximum(start - at[:, None], at[:, None] - end), 0.0)
        errors.append(distance.min(axis=1))
        of_recording.append(np.full(len(at), recording))
    return np.concatenate(errors), np.concatenate(of_recording)
