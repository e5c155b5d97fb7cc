"""The few things that several processes must do together; one process needs none of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "gather_batch",
    "gather_objects",
    "process_group",
    "rank_and_size",
    "share_buffers",
    "wait_for_all",
]


def rank_and_size() -> tuple[int, int]:
    """Return this process's number and how many there are: (0, 1) outside a process group.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
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
        ...     device
        device(type='cpu')
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    if device.type == "cuda":
        local_rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
        device = torch.device("cuda", int(local_rank) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if dist.is_initialized():
        yield device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def gather_batch(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (global batch, 2) and labels (global batch,) of all processes, in rank order.

    Gradients flow into this process's rows only. With a loss that is a mean over the global batch,
    multiply it by the number of processes before calling backward: DistributedDataParallel divides
    the sum of the gradients by that number. Outside a process group this returns its arguments.

    Example:
        >>> logits, labels = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
        >>> gather_batch(logits, labels)[0] is logits
        True
    """
    rank, size = rank_and_size()
    if size == 1:
        return logits, labels
    n_rows = [torch.zeros(1, dtype=torch.int64, device=logits.device) for _ in range(size)]
    dist.all_gather(n_rows, torch.tensor([len(logits)], device=logits.device))
    # Processes may have batches of different lengths where files could not be read: pad to one.
    n_most = max(int(n) for n in n_rows)
    all_logits = _gather_padded(logits.detach(), n_most, size)
    all_labels = _gather_padded(labels, n_most, size)
    rows = [logits if k == rank else all_logits[k][: int(n_rows[k])] for k in range(size)]
    return torch.cat(rows), torch.cat([all_labels[k][: int(n_rows[k])] for k in range(size)])


def _gather_padded(values: Tensor, n_rows: int, size: int) -> list[Tensor]:
    padded = values.new_zeros(n_rows, *values.shape[1:])
    padded[: len(values)] = values
    gathered = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(gathered, padded)
    return gathered


def share_buffers(model: torch.nn.Module) -> None:
    """Give every process the first one's buffers: batch statistics drift apart in training.

    Example:
        >>> share_buffers(torch.nn.BatchNorm1d(3))
    """
    if rank_and_size()[1] > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def wait_for_all() -> None:
    """Return when every process has called this.

    Example:
        >>> wait_for_all()
    """
    if rank_and_size()[1] > 1:
        dist.barrier()


def gather_objects(value: Any) -> list[Any]:
    """Return the `value` of every process, in rank order.

    Example:
        >>> gather_objects("scores")
        ['scores']
    """
    size = rank_and_size()[1]
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value)
    return values
