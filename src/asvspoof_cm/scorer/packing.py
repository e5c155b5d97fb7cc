"""Work done ahead and work done together: decoding in threads, crops in full batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["map_ahead", "map_packed"]

T = TypeVar("T")
R = TypeVar("R")


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
