"""Progress of long work: tqdm's bar on a terminal, a line on standard error elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Self, TypeVar

T = TypeVar("T")
LINE_EVERY_S = 5.0


class Progress:
    """Shows how far a task of `total` steps is, and a few figures beside it.

    With tqdm installed and standard error a terminal this is a bar; otherwise it is a line on
    standard error every 5 seconds. `enabled=False` shows nothing.
    """

    def __init__(
        self,
        *,
        total: int | None = None,
        description: str = "",
        unit: str = "it",
        enabled: bool = True,
    ) -> None:
        self.total, self.description, self.unit = total, description, unit
        self.n_done = 0
        self._enabled = enabled
        self._start_s = self._shown_s = time.monotonic()
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
        shown = {k: v if isinstance(v, str) else f"{v:.4g}" for k, v in figures.items()}
        if self._bar is not None:
            if shown:
                self._bar.set_postfix(shown, refresh=False)
            self._bar.update(n)
        elif self._enabled and time.monotonic() - self._shown_s >= LINE_EVERY_S:
            self._shown_s = time.monotonic()
            sys.stderr.write(self._line(shown) + "\n")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _line(self, figures: dict[str, str]) -> str:
        rate = self.n_done / max(time.monotonic() - self._start_s, 1e-9)
        parts = [f"{self.n_done}/{self.total}" if self.total else str(self.n_done)]
        parts.append(f"{rate:.3g} {self.unit}/s")
        if self.total:
            parts.append(f"{max(0, self.total - self.n_done) / rate:.0f} s left")
        parts += [f"{name} {value}" for name, value in figures.items()]
        return f"{self.description}: {', '.join(parts)}" if self.description else ", ".join(parts)


def track(
    iterable: Iterable[T],
    *,
    total: int | None = None,
    description: str = "",
    unit: str = "it",
    enabled: bool = True,
) -> Iterator[T]:
    """Yield the items of `iterable` while showing progress."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Progress(total=total, description=description, unit=unit, enabled=enabled) as progress:
        for item in iterable:
            yield item
            progress.update()
