"""Audio decoded in processes of their own, which may die on a hostile file; the service lives on.

A decoder imports no PyTorch, can write no file, and its memory is limited.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from asvspoof_cm._util import one_line
from asvspoof_cm.audio import AudioFile, InMemory
from asvspoof_cm.serve.limits import RefusedError

if TYPE_CHECKING:
    from pebble import ProcessPool

logger = logging.getLogger("asvspoof_cm.serve")

_BLOCK_VALUES = 1 << 22
_EXTRA_MEMORY = 1 << 30


def decode(
    content: bytes, sample_rate: int, max_duration_s: float, channel: int | None
) -> InMemory:
    """Return a file of any format that `AudioFile` reads, resampled, one channel or their mix.

    What can't be decoded gets 422, what is too long 413.
    """
    try:
        with AudioFile(content, sample_rate=sample_rate, channel=channel) as file:
            if file.n_samples > max_duration_s * sample_rate:
                raise RefusedError(
                    413,
                    "too_long",
                    f"the audio must last at most {max_duration_s:g} s; it lasts "
                    f"{file.n_samples / sample_rate:.1f} s.",
                )
            n_frames = _BLOCK_VALUES // file.n_channels
            n_block = max(1, n_frames * sample_rate // file.native_rate)
            starts = range(0, file.n_samples, n_block)
            waveform = np.concatenate([file.read(start, n_block) for start in starts])
            return InMemory(
                waveform,
                file.native_rate,
                n_channels=file.n_channels,
                channels_differ=file.channels_differ,
            )
    except RefusedError:
        raise
    except MemoryError:
        raise _undecodable("the audio can't be decoded in the memory of a decoder.") from None
    except Exception as error:  # whatever a hostile file makes of its reader
        raise _undecodable(one_line(error)) from None


def _undecodable(message: str) -> RefusedError:
    return RefusedError(422, "not_decodable", message)


class Decoders:
    """A few decoding processes, each busy with one file at a time.

    A process that dies or takes longer than `limit_s` is replaced; the file that it had is refused.
    Each has a pool of its own, so that whatever happens to one leaves the others alone.
    """

    def __init__(
        self, n_processes: int, *, sample_rate: int, limit_s: float, max_duration_s: float
    ) -> None:
        self.n_processes, self.limit_s = n_processes, limit_s
        self.sample_rate, self.max_duration_s = sample_rate, max_duration_s
        self.n_replaced = 0
        self.pools: set[ProcessPool] = set()
        self._idle: asyncio.Queue[ProcessPool] = asyncio.Queue()
        self._tasks: set[asyncio.Task[InMemory]] = set()

    async def start(self) -> None:
        """Start the processes and wait until they are ready."""
        pools = [self._new_pool() for _ in range(self.n_processes)]
        await asyncio.gather(*(asyncio.wrap_future(pool.schedule(os.getpid)) for pool in pools))
        for pool in pools:
            self._idle.put_nowait(pool)

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*map(self._end, [*self.pools]))

    async def decode(self, content: bytes, channel: int | None = None) -> InMemory:
        """Decode a file in the next idle process; it gets 422 also where that process died."""
        pool = await self._idle.get()
        task = asyncio.create_task(self._decode(pool, content, channel))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        # A caller that is cancelled must not leave a process in the middle of a file.
        return await asyncio.shield(task)

    async def _decode(self, pool: ProcessPool, content: bytes, channel: int | None) -> InMemory:
        from pebble import ProcessExpired

        arguments = (content, self.sample_rate, self.max_duration_s, channel)
        try:
            for _ in range(2):
                try:
                    work = pool.schedule(decode, arguments, timeout=self.limit_s)
                    return await asyncio.wrap_future(work)
                except (RuntimeError, ProcessExpired) as error:
                    self._count_replaced()
                    await self._end(pool)
                    pool = self._new_pool()
                    if isinstance(error, ProcessExpired):
                        break  # else it died idle, and the file is not to blame
            raise _undecodable("the audio can't be decoded: the decoder died on it.")
        except TimeoutError:
            self._count_replaced()
            message = f"the audio can't be decoded within {self.limit_s:g} s."
            raise _undecodable(message) from None
        finally:
            self._idle.put_nowait(pool)

    def _new_pool(self) -> ProcessPool:
        from pebble import ProcessPool

        pool = ProcessPool(1, initializer=_prepare, context=_Context())
        self.pools.add(pool)
        return pool

    async def _end(self, pool: ProcessPool) -> None:
        self.pools.discard(pool)
        pool.stop()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(pool.join)

    def _count_replaced(self) -> None:
        self.n_replaced += 1
        logger.warning("a decoder is replaced")

    def _forget(self, task: asyncio.Task[InMemory]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone


class _Process(SpawnProcess):
    """A process that does not import the main module, which may load PyTorch or be unguarded."""

    def start(self) -> None:
        """Start with another main module in its place."""
        with _starting:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                super().start()
            finally:
                sys.modules["__main__"] = main


class _Context(SpawnContext):
    Process = _Process


_starting = threading.Lock()


def _prepare() -> None:
    """Make a new process a decoder: no signals, no output, no files, no core dump, some memory."""
    for name in (signal.SIGINT, signal.SIGTERM):  # the service says when to end
        signal.signal(name, signal.SIG_IGN)
    for module in ("soundfile", "scipy.signal"):  # now, and not while the first file waits
        importlib.import_module(module)
    # Libraries that print must not tell what is in a file.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text().splitlines()
        used = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
        limit = used * 1024 + _EXTRA_MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
