"""Training in several processes: joining them, and the batch of all as one.

In a single process these functions return at once.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only


def rank_and_size() -> tuple[int, int]:
    """Return this process's number and how many there are: (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if it did, and yield this process's device.

    NCCL for CUDA, each process on its own card; gloo otherwise. Blocks may be nested.

    Example:
        >>> with process_group(torch.device("cpu")) as device:
        ...     rank_and_size()
        (0, 1)
    """
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if device.type == "cuda" and not is_alone:
        local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if is_alone or dist.is_initialized():
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


def gather_batch(value: Any) -> Any:
    """Return the rows (global batch, ...) of all processes, in order, of tensors (batch, ...).

    Gradients flow into this process's rows only. Multiply a mean over the global batch by the
    number of processes before calling backward: DistributedDataParallel divides by it.
    """
    return value if rank_and_size()[1] == 1 else tree_map_only(Tensor, _gather_rows, value)


def _gather_rows(column: Tensor) -> Tensor:
    # Augmentation may add rows to one process's batch: pad all to one length.
    counts = [int(n) for n in gather_objects(len(column))]
    padded = column.new_zeros(max(counts), *column.shape[1:])
    padded[: len(column)] = column.detach()
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    parts = [rows[:n] for rows, n in zip(gathered, counts, strict=True)]
    parts[rank_and_size()[0]] = column
    return torch.cat(parts)


def gather_objects(value: Any) -> list[Any]:
    """Return the `value` of every process, in rank order."""
    values: list[Any] = [value] * rank_and_size()[1]
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def wait_for_all() -> None:
    """Return when every process has called this."""
    if rank_and_size()[1] > 1:
        dist.barrier()
