"""Audio decoded in processes of their own, which may die on a hostile file; the service lives on.

A decoder imports no PyTorch, can write no file, and its memory is limited.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from asvspoof_cm._util import one_line
from asvspoof_cm.audio import AudioFile, InMemory
from asvspoof_cm.serve.settings import RefusedError

T = TypeVar("T")

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
        self.running: set[_Decoder] = set()
        self._idle: asyncio.Queue[_Decoder] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start the processes and wait until they are ready."""
        for decoder in await asyncio.gather(*(self._launch() for _ in range(self.n_processes))):
            self._idle.put_nowait(decoder)

    async def close(self) -> None:
        """End the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(decoder.end() for decoder in self.running))

    async def decode(self, content: bytes, channel: int | None = None) -> InMemory:
        """Decode a file in the next idle process; it gets 422 also where that process died."""
        while not (decoder := await self._idle.get()).is_alive:
            self._spawn(self._replace(decoder))  # it died idle: this file is not to blame
        # A caller that is cancelled must not leave a process in the middle of a file.
        return await asyncio.shield(self._spawn(self._decode(decoder, content, channel)))

    async def _decode(self, decoder: _Decoder, content: bytes, channel: int | None) -> InMemory:
        work = decoder.pool.schedule(
            decode, (content, self.sample_rate, self.max_duration_s, channel)
        )
        try:
            decoded = await asyncio.wait_for(asyncio.wrap_future(work), self.limit_s)
        except RefusedError:
            self._idle.put_nowait(decoder)
            raise
        except Exception as error:
            self._spawn(self._replace(decoder))
            late = isinstance(error, TimeoutError)
            why = f" within {self.limit_s:g} s." if late else ": the decoder died on it."
            raise _undecodable(f"the audio can't be decoded{why}") from None
        self._idle.put_nowait(decoder)
        return decoded

    async def _replace(self, decoder: _Decoder) -> None:
        self.n_replaced += 1
        logger.warning("a decoder is replaced")
        await decoder.end()
        self.running.discard(decoder)
        delay_s = 1.0
        while True:
            try:
                self._idle.put_nowait(await self._launch())
                return
            except (OSError, RuntimeError) as error:
                logger.error("%s Trying again.", error)
            await asyncio.sleep(delay_s)
            delay_s = min(60.0, 2 * delay_s)

    async def _launch(self) -> _Decoder:
        decoder = _Decoder()
        self.running.add(decoder)
        try:
            await decoder.start()
        except BaseException:
            self.running.discard(decoder)
            await decoder.end()
            raise
        return decoder

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone


class _Decoder:
    """A pool of one process."""

    def __init__(self) -> None:
        from pebble import ProcessPool

        self.pool = ProcessPool(1, initializer=_prepare, context=_Context())
        self.pid = 0

    async def start(self) -> None:
        """Wait until the process is ready."""
        try:
            self.pid = await asyncio.wrap_future(self.pool.schedule(os.getpid))
        except RuntimeError as error:
            raise RuntimeError(f"a decoder can't be started ({error}).") from error

    @property
    def is_alive(self) -> bool:
        """Whether the process lives; the pool finds out a little later."""
        return any(child.pid == self.pid for child in multiprocessing.active_children())

    async def end(self) -> None:
        """Kill the process."""
        self.pool.stop()  # type: ignore[no-untyped-call]
        for child in multiprocessing.active_children():
            if child.pid == self.pid:
                child.kill()
        await asyncio.to_thread(self.pool.join)


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
