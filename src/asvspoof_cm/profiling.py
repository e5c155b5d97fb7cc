"""What a model costs: latency, real-time factor and memory on the device at hand."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from asvspoof_cm._util import check_between, peak_resident_bytes, resident_bytes, write_json
from asvspoof_cm.audio import tta_crops
from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.models import Countermeasure
from asvspoof_cm.runs import BEST_NAME, FINAL_NAME, read_final

__all__ = ["Profile", "profile"]

_SAMPLING_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The cost of inference with test-time augmentation.

    The time per utterance includes cutting the crops, not reading a file; the real-time factor is
    that time over the utterance's duration. Memory includes the weights; `n_parameters` are those
    that are trained.
    """

    ms_per_utterance: float
    real_time_factor: float
    peak_memory_bytes: int
    n_parameters: int
    device: str


def profile(
    model: Countermeasure,
    *,
    n_utterances: int = 64,
    duration_s: float = 8.0,
    n_crops: int | None = None,
    n_samples: int | None = None,
    batch_size: int = 16,
    device: torch.device | str | None = None,
) -> Profile:
    """Measure latency and memory of a model on synthetic utterances.

    A batch is `batch_size` utterances, that is `batch_size` × `n_crops` crops at once. One batch
    goes ahead unmeasured, to warm up; its memory counts.

    Args:
        model: A model; it is measured in evaluation mode and left as it was.
        n_utterances: How many to score.
        duration_s: The length of each.
        n_crops: Crops per utterance; None is what the model says.
        n_samples: The length of a crop; None is what the model says.
        batch_size: Utterances per batch; 1 for the latency of a single one.
        device: Where to measure, on a copy of the model; None is where the model is.

    Note:
        On CUDA the memory is the peak of PyTorch's allocator. Elsewhere it is the weights plus the
        growth of the process's resident memory during the call. What the process had freed but kept
        is used again and not seen: measure in a fresh process.

    Example:
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> result = profile(model, n_utterances=2, duration_s=1.0, n_samples=8000)
        >>> result.n_parameters, result.device
        (7171, 'cpu')
        >>> result.ms_per_utterance > 0 and result.peak_memory_bytes >= 4 * result.n_parameters
        True
    """
    n_crops = model.input.n_crops if n_crops is None else n_crops
    length = model.input.n_samples if n_samples is None else n_samples
    rate = model.input.sample_rate
    counts = {"n_utterances": n_utterances, "n_crops": n_crops, "batch_size": batch_size}
    for name, count in counts.items():
        check_between(name, count, 1)
    if not duration_s * rate >= 1:
        raise ValueError(f"`duration_s` must be positive seconds; got {duration_s}.")
    home = next(model.parameters()).device
    place = home if device is None else torch.device(device)
    measured = model if place == home else copy.deepcopy(model).to(place)
    generator = torch.Generator().manual_seed(0)
    waveforms = 0.1 * torch.randn(
        min(n_utterances, batch_size), round(duration_s * rate), generator=generator
    )

    def score(n: int) -> None:
        crops = torch.cat([tta_crops(waveform, n_crops, length) for waveform in waveforms[:n]])
        logits = measured(crops.to(place))
        scores = logits[:, BONAFIDE] - logits[:, SPOOF]
        scores.reshape(n, n_crops).mean(dim=1).cpu()  # waits for the device

    was_training = measured.training
    measured.eval()
    try:
        with torch.inference_mode(), _peak_memory(measured, place) as peak:
            score(len(waveforms))
            start = time.perf_counter()
            for done in range(0, n_utterances, batch_size):
                score(min(batch_size, n_utterances - done))
            seconds = (time.perf_counter() - start) / n_utterances
    finally:
        measured.train(was_training)
    return Profile(
        ms_per_utterance=1000 * seconds,
        real_time_factor=seconds / duration_s,
        peak_memory_bytes=peak[0],
        n_parameters=sum(p.numel() for p in measured.parameters() if p.requires_grad),
        device=str(place),
    )


def profile_run(run: str | os.PathLike[str], **options: Any) -> Profile:
    """Measure the best checkpoint of a run folder, and add what it costs to ``final.json``."""
    final = read_final(run)
    result = profile(load_checkpoint(Path(run) / BEST_NAME), **options)
    write_json(Path(run) / FINAL_NAME, {**final, **asdict(result)})
    return result


@contextmanager
def _peak_memory(model: Countermeasure, device: torch.device) -> Iterator[list[int]]:
    """Yield a list that holds the peak in bytes once the block has ended."""
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.append(torch.cuda.max_memory_allocated(device))
        return
    tensors = [*model.parameters(), *model.buffers()]
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    before = highest = resident_bytes()
    record = peak_resident_bytes()
    stop = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.wait(_SAMPLING_S):
            highest = max(highest, resident_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()
    if peak_resident_bytes() > record:  # then the system saw the peak, however short
        highest = max(highest, peak_resident_bytes())
    peak.append(weights + highest - before)
