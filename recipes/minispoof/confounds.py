"""Confounds: how far trivial statistics of the clips tell the classes apart.

A corpus that level, silence or bandwidth give away proves nothing about a detector. A logistic
regression on 15 such statistics, fitted on the train part, is the floor to report beside any
result: ``PYTHONPATH=recipes python -m minispoof.confounds CORPUS``.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.optimize
import scipy.special

from asvspoof_cm import metrics
from asvspoof_cm._util import track
from asvspoof_cm.audio import load_audio
from asvspoof_cm.data import AudioFolder, Protocol, read_protocol
from asvspoof_cm.labels import BONAFIDE, SAMPLE_RATE, SPOOF
from minispoof.clips import FOLDERS
from minispoof.speech import FRAME, Array, frame_powers

PROTOCOLS: Final[Mapping[str, str]] = {
    "T": "ASVspoof5.train.tsv",
    "D": "ASVspoof5.dev.track_1.tsv",
    "E": "ASVspoof5.eval.track_1.tsv",
}
STATISTICS: Final = (
    *("duration", "rms_db", "peak_db", "crest_db", "offset"),
    *("leading_silence", "trailing_silence", "silence", "floor_db", "zeros"),
    *("above_4k", "above_6k", "below_150", "centroid", "zero_crossings"),
)
_TINY: Final = 1e-12
_SILENCE_DB: Final = 30.0


@dataclass(frozen=True)
class Confounds:
    """Equal error rates, as fractions: 0.5 is what a corpus should give."""

    regression: dict[str, float]
    """Of the regression on all statistics, by split."""
    attacks: dict[str, float]
    """Of the same scores, by attack, against the bona fide clips of its split."""
    single: dict[str, dict[str, float]]
    """Of each statistic alone, by split, with the better sign."""


def statistics(waveform: Array) -> Array:
    """Return the 15 statistics of a clip, in the order of `STATISTICS`."""
    levels_db = 10 * np.log10(frame_powers(waveform) + _TINY)
    loud_db = np.percentile(levels_db, 95)
    active = levels_db > loud_db - _SILENCE_DB
    first, last = np.flatnonzero(active)[[0, -1]]
    power, peak = np.square(waveform).mean() + _TINY, np.abs(waveform).max() + _TINY
    spectrum = np.abs(np.fft.rfft(waveform * np.hanning(len(waveform)))) ** 2
    spectrum /= spectrum.sum() + _TINY
    frequency = np.fft.rfftfreq(len(waveform), 1 / SAMPLE_RATE)
    bands = [spectrum[frequency > 4000], spectrum[frequency > 6000], spectrum[frequency < 150]]
    frame_s = FRAME / SAMPLE_RATE
    return np.array(
        [
            len(waveform) / SAMPLE_RATE,
            10 * np.log10(power),
            20 * np.log10(peak),
            20 * np.log10(peak / np.sqrt(power)),
            abs(waveform.mean()) * 1e4,
            first * frame_s,
            (len(active) - 1 - last) * frame_s,
            1 - active.mean(),
            np.percentile(levels_db, 5) - loud_db,
            (waveform == 0).mean(),
            *(np.log10(band.sum() + 1e-9) for band in bands),
            spectrum @ frequency,
            (np.diff(np.sign(waveform)) != 0).mean(),
        ]
    )


def fit_logistic(
    features: Array, labels: np.ndarray[Any, Any], *, penalty: float = 1.0
) -> tuple[Array, float]:
    """Fit a logistic regression with an L2 penalty; both classes weigh the same.

    Args:
        features: Shape (n, n_features); scale them first.
        labels: Shape (n,), of `SPOOF` and `BONAFIDE`.
        penalty: The weight of half the squared length of the coefficients, beside a loss that is
            summed over the clips.

    Returns:
        The coefficients and the intercept: ``features @ coefficients + intercept`` is higher for
        bona fide.
    """
    signs = np.where(labels == BONAFIDE, 1.0, -1.0)
    counts = {label: max(1, int((labels == label).sum())) for label in (SPOOF, BONAFIDE)}
    weights = np.array([len(labels) / 2 / counts[int(label)] for label in labels])

    def loss(parameters: Array) -> tuple[float, Array]:
        coefficients, intercept = parameters[:-1], parameters[-1]
        margins = signs * (features @ coefficients + intercept)
        slopes = -weights * signs * scipy.special.expit(-margins)
        value = weights @ np.logaddexp(0, -margins) + penalty / 2 * coefficients @ coefficients
        return value, np.append(features.T @ slopes + penalty * coefficients, slopes.sum())

    start = np.zeros(features.shape[1] + 1)
    result = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B")
    return result.x[:-1], float(result.x[-1])


def evaluate(features: Mapping[str, Array], protocols: Mapping[str, Protocol]) -> Confounds:
    """Fit on the split T, and return the equal error rates of all splits and attacks.

    Args:
        features: The statistics of each split's clips, shape (n_clips, n_statistics).
        protocols: Of the same splits, in the same order.
    """
    mean, spread = features["T"].mean(axis=0), features["T"].std(axis=0) + _TINY
    coefficients, intercept = fit_logistic((features["T"] - mean) / spread, protocols["T"].label)
    regression, attacks, single = {}, {}, {name: {} for name in STATISTICS}
    for split, protocol in protocols.items():
        is_human = protocol.label == BONAFIDE
        scores = (features[split] - mean) / spread @ coefficients + intercept
        regression[split] = _eer(scores[is_human], scores[~is_human])
        for attack in sorted(set(protocol.attack[~is_human])):
            attacks[attack] = _eer(scores[is_human], scores[protocol.attack == attack])
        for name, column in zip(STATISTICS, features[split].T, strict=True):
            single[name][split] = min(
                _eer(sign * column[is_human], sign * column[~is_human]) for sign in (1, -1)
            )
    return Confounds(regression, attacks, single)


def check(corpus: Path) -> Confounds:
    """Read the clips of a corpus and evaluate their statistics."""
    protocols = {split: read_protocol(corpus / name) for split, name in PROTOCOLS.items()}
    features = {}
    for split, protocol in protocols.items():
        files = AudioFolder(protocol, corpus / FOLDERS[split])
        paths = [files.path(index) for index in range(len(protocol))]
        described = track(paths, description=f"statistics of {split}", unit="clip")
        features[split] = np.array(
            [statistics(load_audio(path).numpy().astype(np.float64)) for path in described]
        )
    return evaluate(features, protocols)


def _eer(bonafide: Array, spoof: Array) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # above 50 % is no mistake here
        return metrics.eer(bonafide, spoof, ties="grouped").value


def main() -> None:
    """Print the floor of one corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    confounds = check(parser.parse_args().corpus)
    for group in (confounds.regression, confounds.attacks):
        print("  ".join(f"{name} {value:.1%}" for name, value in group.items()))


if __name__ == "__main__":
    main()
