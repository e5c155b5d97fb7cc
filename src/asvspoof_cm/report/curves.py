"""How each metric falls with training time: the curves of the paper's figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from asvspoof_cm.report.runs import METRICS, SPLITS, Run, group_by_system
from asvspoof_cm.utils.checks import FloatArray

__all__ = ["Curve", "SeedCurve", "training_efficiency"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedCurve:
    """One seed's raw records of one metric, to its last epoch.

    Attributes:
        seed: The seed.
        time_s: Cumulative training and validation time after each epoch, shape (n_epochs,).
        values: The metric, shape (n_epochs,).
        is_finished: Whether the run has come to its end.

    Example:
        >>> time_s, values = np.array([60.0, 120.0, 180.0]), np.array([0.5, 0.3, 0.4])
        >>> SeedCurve(seed=42, time_s=time_s, values=values, is_finished=True).best
        (120.0, 0.3)
    """

    seed: int
    time_s: FloatArray
    values: FloatArray
    is_finished: bool

    @property
    def best(self) -> tuple[float, float]:
        """Time and value of the lowest record, the first of equals."""
        index = int(np.argmin(self.values))
        return float(self.time_s[index]), float(self.values[index])


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric of one system on one set, over training time.

    Attributes:
        system: The name of the system.
        split: "train" or "dev".
        metric: One of "min_dcf", "eer" (a fraction), "cllr" and "act_dcf".
        n_runs: How many seeds there are, those without an epoch included.
        time_s: Points in time, shape (n_points,); none where the finished seeds share no range.
        mean: The mean over finished seeds at these points, shape (n_points,).
        std: Their sample standard deviation, shape (n_points,); None with one finished seed.
        seeds: The records of each seed that has an epoch.

    Example:
        >>> none = np.empty(0)
        >>> Curve(system="6", split="dev", metric="eer", n_runs=3, time_s=none, mean=none, std=None,
        ...       seeds=()).n_finished
        0
    """

    system: str
    split: str
    metric: str
    n_runs: int
    time_s: FloatArray
    mean: FloatArray
    std: FloatArray | None
    seeds: tuple[SeedCurve, ...]

    @property
    def n_finished(self) -> int:
        """How many seeds the mean is of."""
        return sum(seed.is_finished for seed in self.seeds)


def training_efficiency(runs: Iterable[Run], *, n_points: int = 30) -> list[Curve]:
    """Return the curves of the paper's figure: each system, set and metric over training time.

    For each system, `n_points` log-spaced points in time are chosen in the range that all its
    seeds share, from the latest first epoch to the earliest last one, and each seed's metric is
    interpolated onto them, linearly in time. No value is extrapolated.

    Args:
        runs: What `read_run` returned, seeds and systems mixed.
        n_points: Points of the mean.

    Note:
        The paper averages "within the range shared by all three seeds" and also draws each curve
        "all the way to its early-stopping point", but seeds stop at different times. Here the mean
        and its band cover the shared range, and each seed's own records (`Curve.seeds`) go on to
        its own early stop. The deviation is the sample one, with n − 1; the paper does not say.

        A run that is unfinished has its records only: it is left out of the mean and the band.

    Raises:
        ValueError: There is no epoch at all, or the runs can't be averaged; see `summarize`.

    Example:
        >>> from pathlib import Path
        >>> def record(epoch):
        ...     metrics = dict.fromkeys(("min_dcf", "eer", "cllr", "act_dcf"), 1 / epoch)
        ...     return {"train": metrics, "dev": metrics, "cumulative_s": 60.0 * epoch}
        >>> run = Run(path=Path("6-42"), system={"name": "6"}, seed=42, n_parameters=1, data={},
        ...           history=tuple(map(record, (1, 2, 4))), final={})
        >>> curve = training_efficiency([run])[0]
        >>> curve.split, curve.metric, curve.time_s[[0, -1]].tolist(), curve.seeds[0].best
        ('train', 'min_dcf', [60.0, 240.0], (240.0, 0.25))
    """
    if n_points < 2:
        raise ValueError(f"`n_points` must be at least 2; got {n_points}.")
    groups = group_by_system(runs)
    if not any(run.history for group in groups.values() for run in group):
        raise ValueError("`runs` must hold an epoch to draw; no run has finished its first one.")
    return [
        _curve(name, group, split, metric, n_points)
        for name, group in groups.items()
        for split in SPLITS
        for metric in METRICS
    ]


def _curve(name: str, runs: Sequence[Run], split: str, metric: str, n_points: int) -> Curve:
    seeds = tuple(
        SeedCurve(
            seed=run.seed,
            time_s=np.array([record["cumulative_s"] for record in run.history], dtype=float),
            values=np.array([record[split][metric] for record in run.history], dtype=float),
            is_finished=run.is_finished,
        )
        for run in runs
        if run.history
    )
    finished = [seed for seed in seeds if seed.is_finished]
    time_s = _shared_times(finished, n_points)
    # A row a seed; without a seed there is no point either.
    values = np.array([np.interp(time_s, seed.time_s, seed.values) for seed in finished])
    return Curve(
        system=name,
        split=split,
        metric=metric,
        n_runs=len(runs),
        time_s=time_s,
        mean=values.mean(axis=0) if finished else time_s,
        std=values.std(axis=0, ddof=1) if len(finished) > 1 else None,
        seeds=seeds,
    )


def _shared_times(seeds: Sequence[SeedCurve], n_points: int) -> FloatArray:
    if not seeds:
        return np.empty(0)
    first_s = max(seed.time_s[0] for seed in seeds)
    last_s = min(seed.time_s[-1] for seed in seeds)
    return np.geomspace(first_s, last_s, n_points) if first_s < last_s else np.empty(0)
