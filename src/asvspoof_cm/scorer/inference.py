"""From crops to logits to scores: the model, its device and its batches."""

from __future__ import annotations

import copy
import functools
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Literal, Protocol as Interface, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.checkpoint import hash_tensors
from asvspoof_cm.labels import BONAFIDE, SPOOF, UNITS, Unit
from asvspoof_cm.scorer.results import ScoreResult
from asvspoof_cm.scorer.utterances import Utterance
from asvspoof_cm.utils.checks import check_choice, check_positive
from asvspoof_cm.utils.processes import resolve_device

Precision = Literal["fp32", "bf16", "fp16"]
FloatArray = NDArray[np.float64]
T = TypeVar("T")
R = TypeVar("R")


def run(
    function: Callable[[Tensor], R],
    waveforms: Tensor | NDArray[np.float32],
    *,
    device: str | torch.device = "cpu",
    precision: Precision = "fp32",
    batch_size: int = 32,
) -> R:
    """Return what a function of a model makes of waveforms, computed in batches without gradients.

    Every inference goes through here: scores, embeddings, attention, validation.

    Args:
        function: Maps waveforms (batch, time) on `device` to a tensor whose first axis is the
            batch, or to a tuple of such tensors and of plain values. A model must be in evaluation
            mode and on `device`.
        waveforms: Of shape (n, time), n at least 1.
        device: Where the function computes.
        precision: "bf16" and "fp16" run the function under autocast.
        batch_size: Waveforms in a batch.

    Returns:
        What `function` returned for all n, floating-point tensors as float32 on the CPU.

    Example:
        >>> run(lambda batch: batch.mean(dim=1), torch.ones(5, 100), batch_size=2).shape
        torch.Size([5])
    """
    batches = torch.as_tensor(waveforms).split(batch_size)
    results = [*run_batches(function, batches, device=device, precision=precision)]
    return results[0] if len(results) == 1 else _join(results)


def run_batches(
    function: Callable[[Tensor], R],
    batches: Iterable[Tensor],
    *,
    device: str | torch.device = "cpu",
    precision: Precision = "fp32",
) -> Iterator[R]:
    """Yield what `run` does for each batch, one batch late: the device works while others arrive.

    Args:
        function: As in `run`.
        batches: Waveforms of shape (batch, time), read as they are needed.
        device: As in `run`.
        precision: As in `run`.
    """
    device = torch.device(device)
    is_cuda = device.type == "cuda"
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    waiting: deque[tuple[Any, Any]] = deque()
    for batch in batches:
        placed = (batch.pin_memory() if is_cuda else batch).to(device, non_blocking=is_cuda)
        with torch.no_grad(), torch.autocast(device.type, dtype=lower, enabled=lower is not None):
            result = _to_cpu(function(placed), non_blocking=is_cuda)
        event = torch.cuda.Event() if is_cuda else None
        if event is not None:
            event.record(torch.cuda.current_stream(device))
        waiting.append((result, event))
        if len(waiting) > 1:
            yield _finished(*waiting.popleft())
    while waiting:
        yield _finished(*waiting.popleft())


def _to_cpu(result: Any, *, non_blocking: bool) -> Any:
    """Return a result with its tensors on their way to the CPU, floats as float32."""
    if isinstance(result, Tensor):
        result = result.float() if result.is_floating_point() else result
        return result.to("cpu", non_blocking=non_blocking)
    if isinstance(result, tuple):
        return _like(result, [_to_cpu(part, non_blocking=non_blocking) for part in result])
    return result


def _finished(result: Any, event: Any) -> Any:
    """Return a result once its copy to the CPU is complete."""
    if event is not None:
        event.synchronize()
    return result


def _join(results: Sequence[Any]) -> Any:
    """Return the results of several batches as one; a plain value must be the same in all."""
    first = results[0]
    if isinstance(first, Tensor):
        return torch.cat([*results])
    if isinstance(first, tuple):
        return _like(first, [_join(parts) for parts in zip(*results, strict=True)])
    return first


def _like(of: tuple[Any, ...], parts: Sequence[Any]) -> Any:
    """Return the parts as a tuple of the same type, named or not."""
    return type(of)(*parts) if hasattr(of, "_fields") else tuple(parts)


@runtime_checkable
class Described(Interface):
    """A model that says what it needs to know about its input, and what is known about it."""

    input: InputSettings
    meta: dict[str, Any]


@runtime_checkable
class Configured(Interface):
    """A model that was built from a configuration."""

    config: object


@runtime_checkable
class Hashed(Interface):
    """A model that is no torch module and knows the hash of its file."""

    sha256: str


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
        score: Unit | None = None,
        precision: Precision = "fp32",
        calibration: Calibration | Literal["model"] | None = "model",
    ) -> None:
        changes: dict[str, Any] = {"n_crops": n_crops, "crop_s": crop_s}
        self.input = replace(
            model.input if isinstance(model, Described) else InputSettings(),
            **{name: value for name, value in changes.items() if value is not None},
        )
        check_choice("precision", precision, ("fp32", "bf16", "fp16"))
        self.batch_size = batch_size
        check_positive(self, "batch_size")
        self.precision: Precision = precision
        self.calibration = _stored_calibration(model) if calibration == "model" else calibration
        self.unit: Unit = score or ("log-odds" if self.calibration is None else "llr")
        check_choice("score", self.unit, UNITS)
        if self.unit == "llr" and self.calibration is None:
            raise ValueError(
                '`calibration` must be given with score="llr"; the model brings none along.'
            )
        if self.calibration is not None:
            self._check_calibration(self.calibration)
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
        _fork_safely()

    def __repr__(self) -> str:
        crops = f"{self.input.n_crops} crops of {self.input.crop_s:g} s"
        name = type(self.model).__name__
        return f"{type(self).__name__}({name} on {self.device}, {crops}, score: {self.unit})"

    def conditions(self) -> dict[str, Any]:
        """Return how scores are made, for `fit_calibration`: unit, rate, crops, level, precision.

        A calibration maps log-odds: fit it on scores of a scorer with ``score="log-odds"``.
        """
        return {"score": self.unit, **_conditions(self.input, self.precision)}

    def settings(self) -> dict[str, Any]:
        """Return what scores depend on, the model's weights as a hash, as plain values."""
        return {
            "model": type(self.model).__name__,
            "sha256": _digest(self.model),
            **self.conditions(),
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
        }

    def score_utterances(
        self, utterances: Iterable[tuple[T, Utterance | str]]
    ) -> Iterator[tuple[T, ScoreResult | str]]:
        """Yield the result of each prepared utterance, in order; an error message passes through.

        Crops of all utterances share batches. A score that is not finite becomes an error.
        """
        none = torch.empty(0)
        items = (
            ((tag, found), none if isinstance(found, str) else found.crops)
            for tag, found in utterances
        )
        for (tag, found), logits in map_packed(items, self.logits, self.batch_size):
            yield tag, found if isinstance(found, str) else self._result(found, logits)

    def score_utterance(self, utterance: Utterance, name: str) -> ScoreResult:
        """Return the result of one prepared utterance; errors call it `name`."""
        ((_, result),) = self.score_utterances([(None, utterance)])
        if isinstance(result, str):
            raise ValueError(f"{name} can't be scored: {result}")
        return result

    def logits(self, waveforms: Tensor) -> Tensor:
        """Return the model's logits (batch, 2) of prepared waveforms (batch, time), on the CPU."""
        found, shape = self.run(self.model, waveforms), (len(waveforms), 2)
        if not isinstance(found, Tensor) or found.shape != shape:
            came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(
                f"`model` must map waveforms (batch, time) to logits (batch, 2), a tensor of shape "
                f"{shape} here; got {came}. Wrap it in a function that returns these alone."
            )
        return found

    def scores(self, logits: FloatArray, unit: Unit | None = None) -> FloatArray:
        """Return the scores, shape (...), of logits (..., 2), in `unit`; None is `self.unit`."""
        unit = unit or self.unit
        if unit == "bonafide-logit":
            return np.asarray(logits[..., BONAFIDE])
        difference = np.asarray(logits[..., BONAFIDE] - logits[..., SPOOF])
        if unit == "llr" and self.calibration is not None:
            return self.calibration.apply(difference)
        return difference

    def run(self, function: Callable[[Tensor], R], waveforms: Tensor) -> R:
        """Return what a function of the model makes of prepared waveforms, on its device."""
        return run(
            function,
            waveforms,
            device=self.device,
            precision=self.precision,
            batch_size=self.batch_size,
        )

    def _check_calibration(self, calibration: Calibration) -> None:
        now = {"score": "log-odds", **_conditions(self.input, self.precision)}
        fitted = calibration.fitted_for
        changed = [
            f"{name} {fitted[name]!r}, not {now[name]!r}"
            for name in now
            if name in fitted and fitted[name] != now[name]
        ]
        if changed:
            warnings.warn(
                f"the calibration was fitted for {'; '.join(changed)}: log-likelihood ratios, "
                "probabilities and decisions may be off. Fit one on log-odds of this scorer.",
                stacklevel=3,
            )

    def _result(self, utterance: Utterance, logits: Sequence[Tensor]) -> ScoreResult | str:
        of_crop = torch.stack([logits[k] for k in utterance.which]).double().numpy()
        if not np.isfinite(of_crop).all():
            return "the model's logits are not finite."
        mean = of_crop.mean(axis=0)
        return ScoreResult(
            score=float(self.scores(mean)),
            unit=self.unit,
            crop_scores=tuple(self.scores(of_crop).tolist()),
            llr=None if self.calibration is None else float(self.scores(mean, "llr")),
            duration_s=utterance.duration_s,
            resampled_from=utterance.resampled_from,
            warnings=utterance.warnings,
        )


@functools.cache
def _fork_safely() -> None:
    """Let forked children work in one thread: those of the pool stay behind in the parent."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def _conditions(settings: InputSettings, precision: str) -> dict[str, Any]:
    return {**asdict(settings), "precision": precision}


def _stored_calibration(model: object) -> Calibration | None:
    """Return the calibration that a model brings along, one of log-odds."""
    stored = model.meta.get("calibration") if isinstance(model, Described) else None
    if stored is None or not isinstance(model, Described):
        return None
    try:
        calibration = Calibration.from_dict(stored)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f'`model.meta["calibration"]` is not a calibration ({error}). Pass calibration=None, '
            "or one that fit_calibration made."
        ) from error
    if calibration.fitted_for:
        return calibration
    # One of version 0.1.0 belongs to the model's own settings.
    return replace(calibration, fitted_for=_conditions(model.input, "fp32"))


def _digest(model: object) -> str | None:
    if isinstance(model, nn.Module):
        config = model.config if isinstance(model, Configured) else None
        return hash_tensors(model.state_dict(), repr(config))
    return model.sha256 if isinstance(model, Hashed) else None


def map_packed(
    items: Iterable[tuple[T, Tensor]], function: Callable[[Tensor], Tensor], batch_size: int
) -> Iterator[tuple[T, list[Tensor]]]:
    """Apply `function` to the rows of all items, `batch_size` rows of any items at a time.

    Items are pairs of a tag and any number of rows, (n_rows, ...). Yields each tag, in order, with
    the list of what its rows became; no more than a batch and the rows of one item wait.
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
