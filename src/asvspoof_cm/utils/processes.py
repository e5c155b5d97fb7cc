"""Processes: which of how many this one is, its device and memory, and what several do together.

In a single process these return at once.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

R = TypeVar("R")
_STATM = Path("/proc/self/statm")
_CPUINFO = Path("/proc/cpuinfo")
# Processes wait for the slowest one; a process that dies is noticed at once.
_PATIENCE = timedelta(days=30)


def rank_and_size() -> tuple[int, int]:
    """Return this process's number and how many there are: (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    """Return (k, n) if it names part k of n, counted from 0."""
    k, n = shard
    if not 0 <= k < n:
        raise ValueError(f"`shard` must be (k, n) with 0 <= k < n; got {shard}.")
    return k, n


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device that a name stands for; "auto" is CUDA, else MPS, else the CPU."""
    if device != "auto":
        try:
            chosen = torch.device(device)
        except RuntimeError:
            raise ValueError(
                f"`device` must be auto, cpu, cuda, cuda:1, mps or another of PyTorch's; "
                f"got {device!r}."
            ) from None
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"`device` must be one that is here; got {device!r}, without CUDA.")
        if chosen.type == "mps" and not torch.backends.mps.is_available():
            raise ValueError(f"`device` must be one that is here; got {device!r}, without MPS.")
        return chosen
    if torch.cuda.is_available():
        return _own_cuda() if _is_torchrun() else torch.device("cuda", 0)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def resolve_precision(precision: str, device: torch.device) -> tuple[Literal["fp32", "bf16"], str]:
    """Return the precision that a name stands for, and why; "auto" is bf16 where it is faster."""
    if precision != "auto":
        return ("bf16" if precision == "bf16" else "fp32"), "as asked for"
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "the GPU has it") if has_bf16 else ("fp32", "the GPU has no bf16")
    if device.type != "cpu":
        return "fp32", f"bf16 is not known to be faster on {device.type}"
    # Without these instructions bf16 is emulated, several times slower than fp32.
    found = sorted(_cpu_flags() & {"avx512_bf16", "amx_bf16"})
    if found:
        return "bf16", f"the CPU has {' and '.join(found)}"
    return "fp32", "the CPU has neither avx512_bf16 nor amx_bf16"


def _cpu_flags() -> set[str]:
    """Return the features of the CPU as Linux lists them; none elsewhere."""
    if not _CPUINFO.exists():
        return set()
    lines = _CPUINFO.read_text().splitlines()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()[2:]}


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if it did, and yield this process's device.

    NCCL for CUDA, each process on its own card; gloo otherwise. Inside another such block nothing
    is joined again.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        device = _own_cuda()
        torch.cuda.set_device(device)
    if dist.is_initialized():
        yield device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        # A DistributedDataParallel that is only held by a cycle would keep gloo's threads alive
        # until the interpreter ends, and a thread that drops a tensor then aborts the process.
        gc.collect()
        dist.destroy_process_group()


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Workers:
    """One process alone; `share_work` yields those of a group."""

    rank = 0
    n_processes = 1

    def first(self, task: Callable[[], R]) -> R:
        """Run a task in the first process, and return or raise its outcome in all."""
        return task()

    def wait(self) -> None:
        """Wait for all processes."""


class _GroupWorkers(Workers):
    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.n_processes = dist.get_world_size(group)

    def first(self, task: Callable[[], R]) -> R:
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = task()
            except Exception as error:  # it must reach the others, or they would wait for ever
                outcome[1] = error
        dist.broadcast_object_list(outcome, src=0, group=self._group)
        if outcome[1] is not None:
            raise outcome[1]
        result: R = outcome[0]
        return result

    def wait(self) -> None:
        dist.barrier(self._group)


@contextlib.contextmanager
def share_work() -> Iterator[Workers]:
    """Yield the processes that share the work; a group that is made for it is taken down again."""
    available = dist.is_available()
    is_ours = available and not dist.is_initialized()
    if not available or (is_ours and not _is_torchrun()):
        yield Workers()
        return
    if is_ours:
        dist.init_process_group("gloo")
    # Of its own: NCCL carries no objects of the CPU, and others have their own patience.
    group = dist.new_group(backend="gloo", timeout=_PATIENCE)
    try:
        yield _GroupWorkers(group)
    finally:
        dist.destroy_process_group(None if is_ours else group)


def gather_batch(*columns: Tensor | None) -> tuple[Any, ...]:
    """Return the rows (global batch, ...) of all processes for each column (batch, ...), in order.

    Gradients flow into this process's rows only. With a loss that is a mean over the global batch,
    multiply it by the number of processes before calling backward: DistributedDataParallel divides
    the sum of the gradients by that number. Outside a process group this returns its arguments.
    """
    rank, size = rank_and_size()
    first = next(column for column in columns if column is not None)
    if size == 1:
        return columns
    n_rows = [torch.zeros(1, dtype=torch.int64, device=first.device) for _ in range(size)]
    dist.all_gather(n_rows, torch.tensor([len(first)], device=first.device))
    # Processes may have batches of different lengths where files could not be read: pad to one.
    counts = [int(n) for n in n_rows]
    return tuple(
        None if column is None else _gather_rows(column, counts, rank) for column in columns
    )


def _gather_rows(column: Tensor, counts: list[int], rank: int) -> Tensor:
    padded = column.new_zeros(max(counts), *column.shape[1:])
    padded[: len(column)] = column.detach()
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    return torch.cat([column if k == rank else gathered[k][:n] for k, n in enumerate(counts)])


def share_gradients(model: torch.nn.Module) -> None:
    """Give every process the mean of all gradients, as DistributedDataParallel does."""
    n_processes = rank_and_size()[1]
    if n_processes > 1:
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad.div_(n_processes)


def share_buffers(model: torch.nn.Module) -> None:
    """Give every process the first one's buffers: batch statistics drift apart in training."""
    if rank_and_size()[1] > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def wait_for_all() -> None:
    """Return when every process has called this."""
    if rank_and_size()[1] > 1:
        dist.barrier()


def gather_objects(value: Any) -> list[Any]:
    """Return the `value` of every process, in rank order."""
    size = rank_and_size()[1]
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value)
    return values


def resident_bytes() -> int:
    """Return the memory that this process has now; without /proc, the most it ever had."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """Return the most memory that this process ever had; 0 on Windows, which does not say."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _own_cuda() -> torch.device:
    """Return the card of this process among those of its machine."""
    local_rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    return torch.device("cuda", int(local_rank) % torch.cuda.device_count())


def _is_torchrun() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched()
