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
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def rank_and_size() -> tuple[int, int]:
    """Return this process's number and how many there are: (0, 1) outside a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that torchrun started, if it did, and yield this process's device.

    NCCL for CUDA, each process on its own card; gloo otherwise. Inside another such block nothing
    is joined again.

    Example:
        >>> with process_group(torch.device("cpu")) as device:
        ...     rank_and_size()
        (0, 1)
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
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


def gather_batch(value: Any) -> Any:
    """Return the rows (global batch, ...) of all processes, in order, of tensors (batch, ...).

    Gradients flow into this process's rows only. With a loss that is a mean over the global batch,
    multiply it by the number of processes before calling backward: DistributedDataParallel divides
    the sum of the gradients by that number.

    Example:
        >>> gather_batch((torch.ones(2), None))
        (tensor([1., 1.]), None)
    """
    return value if rank_and_size()[1] == 1 else tree_map_only(Tensor, _gather_rows, value)


def _gather_rows(column: Tensor) -> Tensor:
    rank = rank_and_size()[0]
    # Augmentation may add rows to one process's batch: pad all to one length.
    counts = [int(n) for n in gather_objects(len(column))]
    padded = column.new_zeros(max(counts), *column.shape[1:])
    padded[: len(column)] = column.detach()
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    return torch.cat([column if k == rank else gathered[k][:n] for k, n in enumerate(counts)])


def gather_objects(value: Any) -> list[Any]:
    """Return the `value` of every process, in rank order."""
    size = rank_and_size()[1]
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value)
    return values


def share_buffers(module: nn.Module) -> None:
    """Give every process the first one's buffers: batch statistics drift apart in training."""
    if rank_and_size()[1] > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def wait_for_all() -> None:
    """Return when every process has called this."""
    if rank_and_size()[1] > 1:
        dist.barrier()
