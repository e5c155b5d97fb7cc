"""From crops to logits to scores: the model, its device and its batches."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any, Literal, Protocol as Interface, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asvspoof_cm.calibration import Calibration
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.models import InputSettings
from asvspoof_cm.scorer.results import ScoreResult
from asvspoof_cm.scorer.utterances import Utterance
from asvspoof_cm.utils.checks import check_choice
from asvspoof_cm.utils.processes import resolve_device

ScoreKind = Literal["logit_difference", "bonafide_logit", "llr"]
Precision = Literal["fp32", "bf16"]
FloatArray = NDArray[np.float64]
T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class Described(Interface):
    """A model that says what it needs to know about its input, and what is known about it."""

    input: InputSettings
    meta: dict[str, Any]


class Inference:
    """A model in evaluation mode on its device, and what its logits mean; see `Scorer`."""

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        *,
        device: str | torch.device = "auto",
        n_crops: int | None = None,
        crop_s: float | None = None,
        batch_size: int = 32,
        score: ScoreKind = "logit_difference",
        precision: Precision = "fp32",
        calibration: Calibration | None = None,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(
                f"`batch_size` must be a whole number of at least 1; got {batch_size!r}."
            )
        changes = {"n_crops": n_crops, "crop_s": crop_s}
        self.input = replace(
            model.input if isinstance(model, Described) else InputSettings(),
            **{name: value for name, value in changes.items() if value is not None},  # type: ignore[arg-type]
        )
        check_choice("score", score, ("logit_difference", "bonafide_logit", "llr"))
        check_choice("precision", precision, ("fp32", "bf16"))
        if score == "llr" and calibration is None:
            raise ValueError('`calibration` must be given with score="llr"; got None.')
        if isinstance(model, nn.Module):
            self.device = resolve_device(device)
            self.model: Callable[[Tensor], Tensor] = copy.deepcopy(model).to(self.device).eval()
        else:
            self.device, self.model = torch.device("cpu"), model
            if str(device) not in ("auto", "cpu") or precision != "fp32":
                raise ValueError(
                    '`device` must be "auto" or "cpu" and `precision` "fp32" for a model that is '
                    f"not a torch module; got {str(device)!r} and {precision!r}."
                )
        self.batch_size = batch_size
        self.score_kind: ScoreKind = score
        self.precision: Precision = precision
        self.calibration = calibration
        if calibration is not None:
            self._check_calibration(calibration)

    def conditions(self) -> dict[str, Any]:
        """Return how scores are made, for `fit_calibration`: rate, crops, level and precision."""
        return conditions_of(self.input, self.precision)

    def settings(self) -> dict[str, Any]:
        """Return what scores depend on, the model's weights as a hash, as plain values."""
        return {
            "model": type(self.model).__name__,
            "sha256": _digest(self.model),
            "score": self.score_kind,
            **self.conditions(),
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
        }

    def score_utterances(
        self, utterances: Iterable[tuple[T, Utterance | str]]
    ) -> Iterator[tuple[T, ScoreResult | str]]:
        """Score prepared utterances in full batches; an error message passes through in order.

        This is what every other way to score ends in. A score that is not finite becomes an error.
        """
        none = torch.empty(0)
        items = (
            ((tag, found), none if isinstance(found, str) else found.crops)
            for tag, found in utterances
        )
        for (tag, found), logits in map_packed(items, self.logits, self.batch_size):
            yield tag, found if isinstance(found, str) else self._result(found, logits)

    def logits(self, waveforms: Tensor) -> Tensor:
        """Return the model's logits (batch, 2) of prepared waveforms (batch, time), on the CPU."""
        return self.run(self.model, waveforms)

    def scores(self, logits: FloatArray) -> FloatArray:
        """Return the kind of score that was asked for, shape (...), of logits (..., 2)."""
        if self.score_kind == "bonafide_logit":
            return np.asarray(logits[..., BONAFIDE])
        difference = np.asarray(logits[..., BONAFIDE] - logits[..., SPOOF])
        if self.score_kind == "llr" and self.calibration is not None:
            return self.calibration.apply(difference)
        return difference

    def _check_calibration(self, calibration: Calibration) -> None:
        now = self.conditions()
        fitted = calibration.fitted_for
        changed = [
            f"{name} {fitted[name]!r}, not {now[name]!r}"
            for name in now
            if name in fitted and fitted[name] != now[name]
        ]
        if changed:
            warnings.warn(
                f"the calibration was fitted for {'; '.join(changed)}: log-likelihood ratios, "
                "probabilities and decisions may be off. Fit one on scores of this scorer.",
                stacklevel=4,
            )

    def run(self, function: Callable[[Tensor], Tensor], waveforms: Tensor) -> Tensor:
        """Return what a function of the model makes of prepared waveforms, on the CPU."""
        with torch.inference_mode(), self._autocast():
            return function(waveforms.to(self.device)).float().cpu()

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _result(self, utterance: Utterance, logits: Sequence[Tensor]) -> ScoreResult | str:
        of_crop = torch.stack([logits[k] for k in utterance.which]).double().numpy()
        if not np.isfinite(of_crop).all():
            return "the model's logits are not finite."
        score = self.scores(of_crop.mean(axis=0))
        llr = None
        if self.calibration is not None:
            llr = float(score if self.score_kind == "llr" else self.calibration.apply(score))
        return ScoreResult(
            score=float(score),
            crop_scores=tuple(self.scores(of_crop).tolist()),
            llr=llr,
            duration_s=utterance.duration_s,
            resampled_from=utterance.resampled_from,
            warnings=utterance.warnings,
        )


def conditions_of(settings: InputSettings, precision: str) -> dict[str, Any]:
    """Return how scores are made, as plain values."""
    return {**asdict(settings), "precision": precision}


def _digest(model: Any) -> str | None:
    if not isinstance(model, nn.Module):
        return getattr(model, "sha256", None)
    digest = hashlib.sha256(repr(getattr(model, "config", None)).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def map_packed(
    items: Iterable[tuple[T, Tensor]], function: Callable[[Tensor], Tensor], batch_size: int
) -> Iterator[tuple[T, list[Tensor]]]:
    """Apply `function` to the rows of all items, `batch_size` rows of any items at a time.

    Args:
        items: Pairs of a tag and rows of shape (n_rows, ...); n_rows may differ and be 0.
        function: Maps (batch, ...) to (batch, ...), row by row.
        batch_size: Rows in each call; the last call may have fewer.

    Yields:
        Each tag, in the order of `items`, with the list of what its rows became. No more than
        `batch_size` rows and those of one item wait at any time.

    Example:
        >>> items = [("a", torch.ones(3)), ("b", torch.ones(0)), ("c", torch.ones(1))]
        >>> [(tag, len(rows)) for tag, rows in map_packed(items, torch.neg, batch_size=2)]
        [('a', 3), ('b', 0), ('c', 1)]
    """
    waiting: deque[tuple[T, int]] = deque()
    rows: list[Tensor] = []
    done: deque[Tensor] = deque()

    def compute(n_rows: int) -> None:
        done.extend(function(torch.stack(rows[:n_rows])))
        del rows[:n_rows]

    def finished() -> Iterator[tuple[T, list[Tensor]]]:
        while waiting and waiting[0][1] <= len(done):
            tag, n_rows = waiting.popleft()
            yield tag, [done.popleft() for _ in range(n_rows)]

    for tag, new_rows in items:
        waiting.append((tag, len(new_rows)))
        rows.extend(new_rows)
        while len(rows) >= batch_size:
            compute(batch_size)
        yield from finished()
    if rows:
        compute(len(rows))
    yield from finished()


def map_ahead(
    function: Callable[[T], R], items: Iterable[T], *, n_threads: int, n_ahead: int
) -> Iterator[R]:
    """Apply `function` to the items in threads, in order, at most `n_ahead` of them in advance.

    `items` is read only as far as needed. What is not wanted any more is not started.

    Example:
        >>> list(map_ahead(abs, [-1, 2, -3], n_threads=2, n_ahead=2))
        [1, 2, 3]
    """
    futures: deque[Future[R]] = deque()
    with ThreadPoolExecutor(n_threads, thread_name_prefix="asvspoof-cm") as pool:
        try:
            for item in items:
                futures.append(pool.submit(function, item))
                if len(futures) > n_ahead:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
