"""Progress of long work: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import Self

__all__ = ["Progress", "track"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
LOG_EVERY_S = 30.0


class Progress:
    """Shows how far a task of `total` steps is, and a few figures beside it.

    With tqdm installed and standard error a terminal this is a bar; otherwise it is a line of
    the ``asvspoof_cm.progress`` logger every 30 seconds. `enabled=False` shows nothing.

    Example:
        >>> with Progress(total=3, description="epoch 1", enabled=False) as progress:
        ...     for loss in (0.9, 0.7, 0.6):
        ...         progress.update(loss=loss)
        >>> progress.n_done
        3
    """

    def __init__(
        self,
        *,
        total: int | None = None,
        description: str = "",
        unit: str = "it",
        enabled: bool = True,
    ) -> None:
        self.total = total
        self.description = description
        self.unit = unit
        self.enabled = enabled
        self.n_done = 0
        self._start_s = time.monotonic()
        self._logged_s = self._start_s
        self._bar: Any = None
        if enabled and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=description, unit=unit, dynamic_ncols=True)

    def update(self, n: int = 1, **figures: float | str) -> None:
        """Count `n` more steps as done and show the newest `figures`."""
        self.n_done += n
        if self._bar is not None:
            if figures:
                self._bar.set_postfix({k: _format(v) for k, v in figures.items()}, refresh=False)
            self._bar.update(n)
        elif self.enabled and time.monotonic() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = time.monotonic()
            logger.info("%s", self._line(figures))

    def close(self) -> None:
        """Finish the bar."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _line(self, figures: dict[str, float | str]) -> str:
        elapsed_s = time.monotonic() - self._start_s
        rate = self.n_done / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{self.n_done}/{self.total}" if self.total else str(self.n_done)]
        parts.append(f"{rate:.3g} {self.unit}/s")
        if self.total and rate > 0:
            parts.append(f"{(self.total - self.n_done) / rate:.0f} s left")
        parts += [f"{name} {_format(value)}" for name, value in figures.items()]
        return f"{self.description}: {', '.join(parts)}" if self.description else ", ".join(parts)


def track(
    iterable: Iterable[T],
    *,
    total: int | None = None,
    description: str = "",
    unit: str = "it",
    enabled: bool = True,
) -> Iterator[T]:
    """Yield the items of `iterable` while showing progress.

    Example:
        >>> sum(track([1, 2, 3], enabled=False))
        6
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(total=total, description=description, unit=unit, enabled=enabled) as progress:
        for item in iterable:
            yield item
            progress.update()


def _format(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
