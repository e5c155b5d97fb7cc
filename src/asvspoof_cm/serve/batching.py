"""Requests of many clients in common batches, on the one thread that runs the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
R = TypeVar("R")


class Batcher(Generic[Item, Result]):
    """Collects items that arrive one by one and computes them together, one result or error each.

    A batch waits for company no longer than `max_wait_s`, and only where company is to be expected:
    others are on their way (`n_coming`, those that wait included), or the batch before held
    several. A lone client does not wait at all.
    """

    def __init__(
        self,
        function: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        max_wait_s: float,
        n_coming: Callable[[], int],
    ) -> None:
        self._function, self._n_coming = function, n_coming
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        # In order of arrival. Futures are compared by identity; items may hold arrays.
        self._waiting: dict[asyncio.Future[Result], Item] = {}
        self._arrived = asyncio.Event()
        self._n_before = 1
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="asvspoof-cm-model")
        self._worker: asyncio.Task[None] | None = None

    @property
    def n_waiting(self) -> int:
        """Items that wait for the model."""
        return len(self._waiting)

    async def start(self) -> None:
        """Start to work."""
        self._worker = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Stop; what is being computed is completed."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        self._executor.shutdown()

    async def submit(self, item: Item) -> Result:
        """Return the result of an item; cancelling the call takes it out of the queue."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[future] = item
        self._arrived.set()
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    async def run(self, function: Callable[[], R]) -> R:
        """Run something else on the thread of the model, between batches."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await self._wait_for_company()
            chosen = [*islice(self._waiting, self._max_batch)]
            batch = {future: self._waiting.pop(future) for future in chosen}
            batch = {future: item for future, item in batch.items() if not future.done()}
            if not batch:  # all of them went while the batch waited
                continue
            self._n_before = len(batch)
            results: Sequence[Result | Exception]
            try:
                results = await self.run(partial(self._function, [*batch.values()]))
            except Exception as error:  # a bug, told to those whom it hit
                results = [error] * len(batch)
            for future, result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    async def _wait_for_company(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait_s
        while len(self._waiting) < min(self._max_batch, max(self._n_coming(), self._n_before)):
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), deadline - loop.time())
            except TimeoutError:
                return
