"""Forward and training time, memory, and the share of the machine's matrix-product peak."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

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
# The shares of the peak to reach: in evaluation, in a training step.
GOALS = {"TFPARN": (0.7, 0.5)}
# The settings of the published AASIST, under the names of its own configuration file.
PUBLISHED_AASIST = {
    "nb_samp": 64600,
    "first_conv": 128,
    "filts": [70, [1, 32], [32, 32], [32, 64], [64, 64]],
    "gat_dims": [64, 32],
    "pool_ratios": [0.5, 0.7, 0.5, 0.5],
    "temperatures": [2.0, 2.0, 100.0, 100.0],
}


PARTS = ("forward", "memory", "peak", "training", "bf16", "published")


def run(options: Options) -> list[Row]:
    """Measure the models; AASIST also against the published code where ``--peer aasist=…``."""
    n_rounds = 3 if options.quick else 7
    tasks: dict[str, Callable[[], list[Row]]] = {
        "forward": lambda: forward_rows(n_rounds),
        "memory": memory_rows,
        "peak": lambda: peak_rows(n_rounds),
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
    for batch in (1, 5, 32):
        waveform = waveforms(batch)
        seconds = interleave(
            {name: forward(model, waveform) for name, model in models.items()},
            n_rounds=3 if batch == 32 else n_rounds,
        )
        rows += [
            Row(case=f"{name}, seconds per crop, batch {batch}", ours=value / batch, unit="s")
            for name, value in seconds.items()
        ]
    return rows


def memory_rows() -> list[Row]:
    """Peak memory of a forward pass and of a training step, beyond model and input."""
    rows = []
    for name in MODELS:
        for batch in (1, 5, 32):
            peak = peak_memory(prepare_forward, name, batch)
            rows.append(Row(case=f"{name}, peak memory, batch {batch}", ours=peak, unit="B"))
        peak = peak_memory(prepare_training, name, 16)
        rows.append(Row(case=f"{name}, peak memory, training, batch 16", ours=peak, unit="B"))
    return rows


def peak_rows(n_rounds: int) -> list[Row]:
    """Each model's share of the sgemm peak measured in the same rounds."""
    rows = []
    for name in MODELS:
        model = build_model(*MODELS[name])
        in_evaluation, in_training = GOALS.get(name, (None, None))
        for batch in (5, 16, 32):
            waveform = waveforms(batch)
            tasks = {"sgemm": sgemm, "ours": forward(model, waveform)}
            seconds, work = interleave(tasks, n_rounds=n_rounds), n_flops(model, waveform)
            rows.append(share_row(f"{name}, eval, batch {batch}", seconds, work, in_evaluation))
        waveform = waveforms(16)
        tasks = {"sgemm": sgemm, "ours": training_step(model, waveform)}
        seconds = interleave(tasks, n_rounds=n_rounds)
        work = n_flops(model, waveform, training=True)
        rows.append(share_row(f"{name}, training step, batch 16", seconds, work, in_training))
    return rows


def share_row(case: str, seconds: dict[str, float], work: float, goal: float | None) -> Row:
    """Return achieved over measured peak, in floating-point operations a second."""
    peak = 2 * 2048**3 / seconds["sgemm"]
    share = work / seconds["ours"] / peak
    return Row(
        case=f"{case}, share of sgemm peak",
        ours=100 * share,
        unit="%",
        goal="" if goal is None else f"≥ {100 * goal:.0f} %",
        met=None if goal is None else share >= goal,
        note=f"{work / 1e9:.1f} GFLOP in {seconds['ours']:.3g} s, peak {peak / 1e9:.0f} GFLOP/s",
    )


def training_rows(n_rounds: int) -> list[Row]:
    """A training step with dropout against the same model on torch.nn.TransformerEncoder."""
    ours = TFPARN()
    theirs = TorchTFPARN(ours)
    waveform = waveforms(16)
    with torch.no_grad():
        deviation = (ours.eval()(waveform) - theirs.eval()(waveform)).abs().max().item()
    about: dict[str, Any] = {"reference_name": "nn.TransformerEncoder", "deviation": deviation}
    steps = training_step(ours, waveform), training_step(theirs, waveform)
    return [faster_row("TFPARN, training step, batch 16", *steps, n_rounds, times=1.6, **about)]


def faster_row(
    case: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    n_rounds: int,
    **about: Any,
) -> Row:
    """Measure two tasks in turn, and say how many times as fast ours is."""
    seconds = interleave({"ours": ours, "theirs": theirs}, n_rounds=max(3, n_rounds // 2))
    note = "deviation of the logits in evaluation"
    return Row.faster(case, seconds["ours"], seconds["theirs"], note=note, **about)


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
        about: dict[str, Any] = {"reference_name": "float32", "deviation": deviation}
        rows.append(faster_row(case, half, step, n_rounds, times=1.6, **about))
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
    ratio = seconds["theirs"] / seconds["ours"]
    memory = peak_memory(prepare_forward, "AASIST", 32), peak_memory(prepare_published, peer, 32)
    return [
        Row(
            case="AASIST, forward, batch 5",
            ours=seconds["ours"],
            reference=seconds["theirs"],
            reference_name="published",
            ratio=ratio,
            deviation=deviation,
            unit="s",
            goal="≥ 2×",
            met=ratio >= 2 and deviation <= 1e-4,
        ),
        Row(
            case="AASIST, peak memory, batch 32",
            ours=memory[0],
            reference=memory[1],
            reference_name="published",
            ratio=memory[1] / memory[0],
            deviation=deviation,
            unit="B",
            goal="≥ 2×",
            met=memory[0] * 2 <= memory[1] and deviation <= 1e-4,
        ),
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


_LEFT, _RIGHT = torch.randn(2, 2048, 2048).unbind(0)


def sgemm() -> object:
    """Multiply two 2048 × 2048 matrices: what this machine can do at best."""
    return _LEFT @ _RIGHT


def n_flops(model: nn.Module, waveform: Tensor, *, training: bool = False) -> float:
    """Return the operations of the matrix products and convolutions: two per multiply-add."""
    # The counter does not know the CPU's fused attention, nor inference mode.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        if training:
            training_step(model, waveform)()
        else:
            with torch.no_grad():
                model.eval()(waveform)
    return float(counter.get_total_flops())


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
