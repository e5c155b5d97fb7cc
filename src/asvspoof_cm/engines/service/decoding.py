"""Audio decoded in processes of their own, which may die on a hostile file; the service lives on.

A decoder reads frames from its standard input (a length, then the bytes of a file) and answers
each on its standard output (two lengths, a JSON object, then float32 samples). It can write no
file, and its memory is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm.audio import AudioFile
from asvspoof_cm.engines.service.messages import RefusedError

T = TypeVar("T")

logger = logging.getLogger("asvspoof_cm.service")

_BLOCK_VALUES = 1 << 22
_EXTRA_MEMORY = 1 << 30
_REQUEST, _ANSWER = struct.Struct("<Q"), struct.Struct("<IQ")


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoded:
    """A waveform (time,), resampled, and the sampling rate that it had."""

    waveform: NDArray[np.float32]
    native_rate: int


def decode(content: bytes, sample_rate: int, max_duration_s: float) -> Decoded:
    """Decode a file of any format that libsndfile reads, mono and resampled, block by block.

    What can't be decoded gets 422, what is too long 413.
    """
    try:
        with AudioFile(content, sample_rate=sample_rate) as file:
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
            blocks = [file.read(start, n_block) for start in starts]
            return Decoded(waveform=np.concatenate(blocks), native_rate=file.native_rate)
    except ValueError as error:
        raise _undecodable(str(error)) from error
    except MemoryError:
        raise _undecodable("the audio can't be decoded in the memory of a decoder.") from None


def _undecodable(message: str) -> RefusedError:
    return RefusedError(422, "not_decodable", message)


class Decoders:
    """A few decoding processes, each busy with one file at a time.

    A process that dies or takes longer than `limit_s` is replaced; the file that it had is refused.
    """

    def __init__(
        self, n_processes: int, *, sample_rate: int, limit_s: float, max_duration_s: float
    ) -> None:
        self.n_processes, self.limit_s = n_processes, limit_s
        self.sample_rate, self.max_duration_s = sample_rate, max_duration_s
        self.n_replaced = 0
        self.processes: set[Process] = set()
        self._idle: asyncio.Queue[Process] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start the processes and wait until they are ready."""
        for process in await asyncio.gather(*(self._launch() for _ in range(self.n_processes))):
            self._idle.put_nowait(process)

    async def close(self) -> None:
        """End the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(process) for process in list(self.processes)))

    async def decode(self, content: bytes) -> Decoded:
        """Decode a file in the next idle process; it gets 422 also where that process died."""
        while (process := await self._idle.get()).returncode is not None:
            self._spawn(self._replace(process))  # it died idle: this file is not to blame
        # A caller that is cancelled must not leave a process in the middle of an answer.
        task = self._spawn(self._exchange(process, content))
        return await asyncio.shield(task)

    async def _exchange(self, process: Process, content: bytes) -> Decoded:
        try:
            decoded = await asyncio.wait_for(_ask(process, content), self.limit_s)
        except RefusedError:
            self._idle.put_nowait(process)
            raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self._spawn(self._replace(process))
            late = isinstance(error, asyncio.TimeoutError)
            why = f" within {self.limit_s:g} s." if late else ": the decoder died on it."
            raise _undecodable(f"the audio can't be decoded{why}") from None
        self._idle.put_nowait(process)
        return decoded

    async def _replace(self, process: Process) -> None:
        await self._end(process)
        self.n_replaced += 1
        logger.warning("a decoder is replaced (exit code %s)", process.returncode)
        delay_s = 1.0
        while True:
            try:
                self._idle.put_nowait(await self._launch())
                return
            except (OSError, RuntimeError) as error:
                logger.error("a decoder can't be started (%s); trying again", error)
            await asyncio.sleep(delay_s)
            delay_s = min(60.0, 2 * delay_s)

    async def _launch(self) -> Process:
        code = f"from {__name__} import main; main({self.sample_rate!r}, {self.max_duration_s!r})"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=PIPE, stdout=PIPE, env=environment, limit=1 << 20
        )
        self.processes.add(process)
        try:
            await _receive(process)
        except asyncio.IncompleteReadError:
            self.processes.discard(process)
            raise RuntimeError("a decoder ended before it was ready.") from None
        return process

    async def _end(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self.processes.discard(process)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone


async def _ask(process: Process, content: bytes) -> Decoded:
    stdin = process.stdin
    if stdin is None:
        raise OSError("no pipe")
    stdin.write(_REQUEST.pack(len(content)))
    stdin.write(content)
    await stdin.drain()
    head, samples = await _receive(process)
    if "status" in head:
        raise RefusedError(head["status"], head["code"], head["message"])
    # A copy, because PyTorch wants memory that it may write to.
    waveform = np.frombuffer(samples, dtype=np.float32).copy()
    return Decoded(waveform=waveform, native_rate=head["native_rate"])


async def _receive(process: Process) -> tuple[dict[str, Any], bytes]:
    stdout = process.stdout
    if stdout is None:
        raise OSError("no pipe")
    n_head, n_samples = _ANSWER.unpack(await stdout.readexactly(_ANSWER.size))
    head = json.loads(await stdout.readexactly(n_head))
    return head, await stdout.readexactly(n_samples)


# In the decoder --------------------------------------------------------------------------------


def main(sample_rate: int, max_duration_s: float) -> None:
    """Answer until standard input ends: the life of a decoder."""
    for name in (signal.SIGINT, signal.SIGTERM):  # the service says when to end
        signal.signal(name, signal.SIG_IGN)
    # Libraries that print must not disturb the answers, nor tell what is in a file.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    _limit_resources()
    _send(sink, {})
    while len(head := source.read(_REQUEST.size)) == _REQUEST.size:
        content = source.read(_REQUEST.unpack(head)[0])
        try:
            decoded = decode(content, sample_rate, max_duration_s)
        except RefusedError as error:
            _send(sink, {"status": error.status, "code": error.code, "message": error.message})
        else:
            _send(sink, {"native_rate": decoded.native_rate}, decoded.waveform.tobytes())


def _send(sink: BinaryIO, head: dict[str, Any], samples: bytes = b"") -> None:
    encoded = json.dumps(head).encode()
    sink.write(_ANSWER.pack(len(encoded), len(samples)) + encoded)
    sink.write(samples)
    sink.flush()


def _limit_resources() -> None:
    """Allow no files, no core dump, and some memory beyond what is in use."""
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
