"""Choose how frames become segments, on recordings with a synthetic part, and measure them.

    python recipes/measure_segments.py best.pt --splices DIR/splices --out with_segments.pt

DIR/splices is what ``splices.py`` made. The frames' log-odds are calibrated, and the settings of
`Scorer.segments` chosen by F1 over time; the checkpoint is written again with both. The figures go
to ``model_card/segments.json``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asvspoof_cm import Scorer, fit_calibration, load_checkpoint, save_checkpoint
from asvspoof_cm.audio import AudioFile
from asvspoof_cm.data.segments import read_segments
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.metrics import bootstrap, evaluate_segments
from asvspoof_cm.scorer.timeline import (
    SegmentSettings,
    hysteresis,
    moving_average,
    without_short,
)

FIGURES = Path(__file__).parent / "model_card" / "segments.json"
GRID = {
    "smooth_s": (0.3, 0.5, 0.8, 1.2),
    "enter": (-3.0, -2.0, -1.0, -0.5, 0.0),
    "leave": (-0.5, 0.0, 1.0),
    "shortest_s": (0.3, 0.5, 0.8),
}
Array = np.ndarray[Any, Any]
Along = Mapping[str, tuple[Array, Array, float]]


def measure(checkpoint: Path, splices: Path) -> tuple[SegmentSettings, dict[str, Any]]:
    """Return the settings that find the most, and the figures with them."""
    model = load_checkpoint(checkpoint)
    model.meta.pop("segments", None)
    scorer = Scorer(model, device="cpu", precision="bf16", batch_size=8, calibration=None)
    with (splices / "corpus.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    truth = read_segments(splices / "key.csv")
    along: dict[str, tuple[Array, Array, float]] = {}
    whole, lowest = [], []
    for row in rows:
        path = splices / row["path"]
        whole.append(scorer.score_file(path).score)
        with AudioFile(path) as source:
            values, heard, hop_s = along[row["utterance"]] = scorer.cells(source)
        lowest.append(np.nanmin(moving_average(values, heard, _n(1.0, hop_s))))
    fitted = _calibrated(truth, along)
    along = {
        name: (fitted.scale * values + fitted.offset, heard, hop_s)
        for name, (values, heard, hop_s) in along.items()
    }
    settings = _chosen(truth, along)
    settings = replace(settings, scale=fitted.scale, offset=fitted.offset)
    with_hysteresis = evaluate_segments(truth, _found(along, settings), n_bootstrap=200)
    smooth = evaluate_segments(truth, _smooth(along, settings), n_bootstrap=200)
    human = np.array([row["label"] == "bonafide" for row in rows])
    sources = np.array([row["source"] for row in rows])
    eers = {
        name: bootstrap(
            "eer", values[human], values[~human], 1000, clusters=(sources[human], sources[~human])
        ).as_dict()
        for name, values in (("whole", np.array(whole)), ("worst second", np.array(lowest)))
    }
    return settings, {
        "n_recordings": len(rows),
        "settings": asdict(settings),
        "utterances": eers,
        "frames": smooth.as_dict(),
        "found": with_hysteresis.as_dict(),
    }


def _calibrated(truth: Mapping[str, Any], along: Along) -> Any:
    """Return the calibration of single frames; every tenth, as neighbours say the same."""
    scores, labels = [], []
    for name, (values, heard, hop_s) in along.items():
        middle_s = (np.arange(len(values)) + 0.5) * hop_s
        label = np.full(len(values), BONAFIDE)
        for start_s, end_s, kind, _ in truth[name]:
            label[(middle_s >= start_s) & (middle_s < end_s)] = kind
        chosen = np.flatnonzero(heard & np.isfinite(values))[::10]
        scores.append(values[chosen])
        labels.append(label[chosen])
    return fit_calibration(np.concatenate(scores), np.concatenate(labels), prior=0.5)


def _chosen(truth: Mapping[str, Any], along: Along) -> SegmentSettings:
    """Return the settings with the highest F1."""
    candidates = [
        SegmentSettings(**dict(zip(GRID, values, strict=True)))
        for values in itertools.product(*GRID.values())
    ]
    candidates = [c for c in candidates if c.enter <= c.leave]

    def f1(settings: SegmentSettings) -> float:
        values = evaluate_segments(truth, _found(along, settings)).values
        return float(np.nan_to_num(values["f1"]))  # type: ignore[arg-type]

    return max(candidates, key=f1)


def _smooth(along: Along, settings: SegmentSettings) -> dict[str, list[tuple[float, float, float]]]:
    """Return the moving average of each cell's LLR; time without speech is human."""
    return {
        name: _rows(
            np.nan_to_num(moving_average(values, heard, _n(settings.smooth_s, hop_s)), nan=9.0),
            hop_s,
        )
        for name, (values, heard, hop_s) in along.items()
    }


def _found(along: Along, settings: SegmentSettings) -> dict[str, list[tuple[float, float, float]]]:
    """Return −1 where a segment is synthetic and 1 elsewhere, as `Scorer.segments` decides."""
    found = {}
    for name, (values, heard, hop_s) in along.items():
        smooth = moving_average(values, heard, _n(settings.smooth_s, hop_s))
        state = np.where(heard, hysteresis(smooth, settings.enter, settings.leave), BONAFIDE)
        state = without_short(state, _n(settings.shortest_s, hop_s))
        found[name] = _rows(np.where(state == SPOOF, -1.0, 1.0), hop_s)
    return found


def _n(seconds: float, hop_s: float) -> int:
    return max(1, round(seconds / hop_s))


def _rows(values: Array, hop_s: float) -> list[tuple[float, float, float]]:
    return [(k * hop_s, (k + 1) * hop_s, float(value)) for k, value in enumerate(values)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--splices", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings, figures = measure(args.checkpoint, args.splices)
    model = load_checkpoint(args.checkpoint)
    save_checkpoint(args.out, model, segments=asdict(settings))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
