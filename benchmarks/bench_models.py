"""Forward and training time and memory of the models."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asvspoof_cm import AASIST, TFPARN, focal_pairwise_loss
from asvspoof_cm.models import build_model
from asvspoof_cm.training.loop import resolve_precision
from harness import Options, Row, interleave, peak_memory

N_SAMPLES = 64000
# What a row calls a model, its name and its configuration; weights are random.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "TFPARN": ("TFPARN", {}),
    "AASIST": ("AASIST", {}),
    "RawNet2": ("RawNet2", {}),
    "ResNet18": ("ResNet", {}),
    "ResNet34": ("ResNet", {"n_blocks": (3, 4, 6, 3)}),
    "LCNN": ("LCNN", {}),
    "DistillMOS convolutions": ("Encoder", {"encoder": "distillmos"}),
    "Whisper base, 3 layers": ("Encoder", {"encoder": "whisper-base", "n_layers": 3}),
}
# The settings of the published AASIST, under the names of its own configuration file.
PUBLISHED_AASIST = {
    "nb_samp": 64600,
    "first_conv": 128,
    "filts": [70, [1, 32], [32, 32], [32, 64], [64, 64]],
    "gat_dims": [64, 32],
    "pool_ratios": [0.5, 0.7, 0.5, 0.5],
    "temperatures": [2.0, 2.0, 100.0, 100.0],
}
PARTS = ("forward", "memory", "training", "bf16", "published")


def run(options: Options) -> list[Row]:
    """Measure the models; AASIST also against the published code where ``--peer aasist=…``."""
    n_rounds = 3 if options.quick else 7
    tasks: dict[str, Callable[[], list[Row]]] = {
        "forward": lambda: forward_rows(n_rounds),
        "memory": memory_rows,
        "training": lambda: training_rows(n_rounds),
        "bf16": lambda: half_rows(n_rounds),
    }
    peer = options.peer("aasist")
    if peer is not None:
        tasks["published"] = lambda: published_rows(peer, n_rounds)
    return [row for part, task in tasks.items() if options.wants(part) for row in task()]


def forward_rows(n_rounds: int) -> list[Row]:
    """Seconds per 4 s crop in evaluation, the models in turn."""
    models = {name: build_model(*MODELS[name]).eval() for name in MODELS}
    rows = []
    for batch in (1, 32):
        waveform = waveforms(batch)
        tasks = {name: forward(model, waveform) for name, model in models.items()}
        seconds = interleave(tasks, n_rounds=3 if batch == 32 else n_rounds)
        rows += [
            Row(case=f"{name}, seconds per crop, batch {batch}", ours=value / batch, unit="s")
            for name, value in seconds.items()
        ]
    return rows


def memory_rows() -> list[Row]:
    """Peak memory of a forward pass and of a training step, beyond model and input."""
    rows = []
    for name in MODELS:
        for batch in (1, 32):
            peak = peak_memory(prepare_forward, name, batch)
            rows.append(Row(case=f"{name}, peak memory, batch {batch}", ours=peak, unit="B"))
        peak = peak_memory(prepare_training, name, 16)
        rows.append(Row(case=f"{name}, peak memory, training, batch 16", ours=peak, unit="B"))
    return rows


def training_rows(n_rounds: int) -> list[Row]:
    """A training step with dropout against the same model on torch.nn.TransformerEncoder."""
    ours = TFPARN()
    theirs = TorchTFPARN(ours)
    waveform = waveforms(16)
    with torch.no_grad():
        deviation = (ours.eval()(waveform) - theirs.eval()(waveform)).abs().max().item()
    steps = training_step(ours, waveform), training_step(theirs, waveform)
    about = {"times": 1.6, "deviation": deviation}
    case = "TFPARN, training step, batch 16"
    return [step_row(case, *steps, "nn.TransformerEncoder", n_rounds, **about)]


def step_row(
    case: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    reference: str,
    n_rounds: int,
    **about: Any,
) -> Row:
    """Measure two training steps in turn."""
    seconds = interleave({"ours": ours, "theirs": theirs}, n_rounds=max(3, n_rounds // 2))
    note = "deviation of the logits in evaluation"
    return Row.beside(case, *seconds.values(), reference, note=note, **about)


def half_rows(n_rounds: int) -> list[Row]:
    """A training step in bfloat16 against float32, where the processor has bfloat16."""
    if resolve_precision("auto", torch.device("cpu")) != "bf16":
        return []
    rows = []
    for name in ("TFPARN", "DistillMOS convolutions", "Whisper base, 3 layers"):
        model, waveform = build_model(*MODELS[name]), waveforms(16)
        step = training_step(model, waveform)

        def half(step: Callable[[], object] = step) -> object:
            with torch.autocast("cpu", torch.bfloat16):
                return step()

        with torch.no_grad():
            logits = model.eval()(waveform)
            with torch.autocast("cpu", torch.bfloat16):
                deviation = (model(waveform).float() - logits).abs().max().item()
        case = f"{name}, training step in bfloat16, batch 16"
        about = {"times": 1.6, "deviation": deviation}
        rows.append(step_row(case, half, step, "float32", n_rounds, **about))
    return rows


def published_rows(peer: Path, n_rounds: int) -> list[Row]:
    """AASIST against the published code: same weights, same input, evaluation mode."""
    ours, theirs = AASIST().eval(), load_published(peer)
    ours.load_state_dict(theirs.state_dict())
    waveform = waveforms(5)
    with torch.inference_mode():
        deviation = (ours(waveform) - theirs(waveform)[1]).abs().max().item()
    seconds = interleave(
        {"ours": forward(ours, waveform), "theirs": forward(theirs, waveform)}, n_rounds=n_rounds
    )
    memory = peak_memory(prepare_forward, "AASIST", 32), peak_memory(prepare_published, peer, 32)
    about = {"times": 2, "deviation": deviation, "within": 1e-4}
    return [
        Row.beside("AASIST, forward, batch 5", *seconds.values(), "published", **about),
        Row.beside("AASIST, peak memory, batch 32", *memory, "published", unit="B", **about),
    ]


def waveforms(batch: int) -> Tensor:
    """Return noise at speech level, shape (batch, N_SAMPLES)."""
    return 0.1 * torch.randn(batch, N_SAMPLES, generator=torch.Generator().manual_seed(batch))


def forward(model: nn.Module, waveform: Tensor) -> Callable[[], object]:
    """Return a task that runs `model` in inference mode."""

    def task() -> object:
        model.eval()
        with torch.inference_mode():
            return model(waveform)

    return task


def training_step(model: nn.Module, waveform: Tensor) -> Callable[[], object]:
    """Return a task that runs forward and backward with dropout on."""
    labels = torch.arange(len(waveform)) % 2

    def task() -> object:
        model.train()
        model.zero_grad(set_to_none=False)
        return focal_pairwise_loss(model(waveform), labels).backward()

    return task


class TorchTFPARN(nn.Module):
    """TFPARN with torch.nn.TransformerEncoder in place of our layers, of the same weights."""

    def __init__(self, ours: TFPARN) -> None:
        super().__init__()
        config = ours.config
        self.front = nn.Sequential(ours.log_mel)
        self.norm, self.projection = ours.norm, ours.projection
        self.pooling, self.classifier = ours.pooling, ours.classifier
        layer = nn.TransformerEncoderLayer(
            config.d_model, config.n_heads, config.d_feedforward, config.dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=False)
        for theirs, mine in zip(self.encoder.layers, ours.layers, strict=True):
            theirs.self_attn.in_proj_weight.data.copy_(mine.qkv.weight)
            theirs.self_attn.in_proj_bias.data.copy_(mine.qkv.bias)
            theirs.self_attn.out_proj.load_state_dict(mine.out.state_dict())
            theirs.linear1.load_state_dict(mine.expand.state_dict())
            theirs.linear2.load_state_dict(mine.contract.state_dict())
            theirs.norm1.load_state_dict(mine.norm1.state_dict())
            theirs.norm2.load_state_dict(mine.norm2.state_dict())

    def forward(self, waveform: Tensor) -> Tensor:
        """Return logits (batch, 2)."""
        from asvspoof_cm.models.layers import sinusoidal_positions

        frames = self.projection(self.norm(self.front(waveform).mT))
        frames = frames + sinusoidal_positions(*frames.shape[1:], like=frames)
        frames = self.encoder(frames)
        weights = self.pooling(frames)
        logits: Tensor = self.classifier((weights[..., None] * frames).sum(dim=1))
        return logits


def load_published(peer: Path) -> Any:
    """Return the published AASIST from its own code, found by path and never copied here."""
    sys.path.insert(0, str(peer))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from models.AASIST import Model

            return Model(PUBLISHED_AASIST).eval()
    finally:
        sys.path.remove(str(peer))


def prepare_forward(name: str, batch: int) -> Callable[[], object]:
    """Build a model and its input in a new process; see harness.peak_memory."""
    return warmed(build_model(*MODELS[name]).eval(), batch)


def prepare_training(name: str, batch: int) -> Callable[[], object]:
    """Build a model, its gradients and its input in a new process."""
    model = build_model(*MODELS[name])
    training_step(model, waveforms(2)[:, :16000])()
    return training_step(model, waveforms(batch))


def prepare_published(peer: Path, batch: int) -> Callable[[], object]:
    """Build the published AASIST and its input in a new process."""
    return warmed(load_published(peer), batch)


def warmed(model: nn.Module, batch: int) -> Callable[[], object]:
    """Run the shortest input once, so that one-time allocations are not counted."""
    forward(model, waveforms(1)[:, :4000])()
    return forward(model, waveforms(batch))
