"""Augmentation: RawBoost beside the published NumPy code, and what the others cost.

Everything runs on one thread, on 64 clips of 4 s at 16 kHz. Peer: ``--peer rawboost=PATH``, the
repository that published RawBoost.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from asvspoof_cm.augmentation import (
    Augmentation,
    ConvolutiveNoise,
    RandomButterworth,
    RandomFIR,
    RawBoost,
    StationaryNoise,
    TFPARNAugment,
    WhiteNoise,
    augmentation,
)
from asvspoof_cm.augmentation.base import row_noise
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.models import TFPARN, Encoder, EncoderConfig, ResNet
from harness import Options, Row, interleave

N_CLIPS, N_SAMPLES = 64, 64000
PARTS = ("peer", "rates", "recipes")
BANDS = (5, 20, 8000, 100, 1000, 10, 100, 0, 0)  # the published defaults
BATCH = f"{N_CLIPS} clips of 4 s, one thread"


def run(options: Options) -> list[Row]:
    """Return the rows of the suite."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        waveform = _waveform()
        n_rounds = 2 if options.quick else 7
        path = options.peer("rawboost")
        rows: list[Row] = []
        if path and options.wants("peer"):
            rows += _beside_peer(_load_peer(path), waveform, n_rounds)
        if options.wants("rates"):
            rows += _rates(waveform, n_rounds)
        if options.wants("recipes"):
            rows += _recipes(waveform, n_rounds)
        return rows
    finally:
        torch.set_num_threads(n_threads)


def _waveform() -> torch.Tensor:
    noise = torch.randn(N_CLIPS, N_SAMPLES, generator=_seeded())
    return 0.9 * noise / noise.abs().amax(dim=1, keepdim=True)


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _augmenting(augment: Augmentation, waveform: torch.Tensor) -> Callable[[], object]:
    generator = _seeded()
    return lambda: augment(waveform, generator=generator)


def _load_peer(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("published_rawboost", path / "RawBoost.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{path} has no RawBoost.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)

    def rand_range(low: float, high: float, integer: int) -> float:
        value = low + (high - low) * rng.random()  # low exceeds high for biased gains
        return int(value) if integer else value

    module.randRange = rand_range  # its own raises TypeError on current NumPy
    return module


def _beside_peer(peer: ModuleType, waveform: torch.Tensor, n_rounds: int) -> list[Row]:
    def lnl(x: Any) -> Any:
        return peer.LnL_convolutive_noise(x, 5, *BANDS, 5, 20, 16000)

    def isd(x: Any) -> Any:
        return peer.ISD_additive_noise(x, 10, 2)

    def ssi(x: Any) -> Any:
        return peer.SSI_additive_noise(x, 10, 40, *BANDS, 16000)

    published: dict[int, Callable[[Any], Any]] = {
        1: lnl, 2: isd, 3: ssi, 4: lambda x: ssi(isd(lnl(x)))
    }  # fmt: skip
    goals = {1: 10.0, 3: 4.0, 4: 8.0}
    few = waveform[:8]
    deviations = {1: _lnl_deviation(peer, few), 3: _ssi_deviation(peer, few)}
    notes = {1: "; deviation with the same draws, the peer's one-sample lead taken out"}
    notes[3] = notes[1] + ", of the noise added"
    clips = list(waveform.numpy())
    rows = []
    for algorithm, function in published.items():

        def theirs(function: Callable[[Any], Any] = function) -> object:
            return [function(clip) for clip in clips]

        ours = _augmenting(RawBoost(algorithm), waveform)
        seconds = interleave({"ours": ours, "peer": theirs}, n_rounds=n_rounds)
        rows.append(
            Row.beside(
                f"RawBoost {algorithm}, {BATCH}",
                *seconds.values(),
                "published NumPy code",
                times=goals.get(algorithm),
                deviation=deviations.get(algorithm),
                note="peer's randRange replaced from outside" + notes.get(algorithm, ""),
            )
        )
    return rows


def _replaying(peer: ModuleType, values: Iterator[float], function: Callable[[], Any]) -> Any:
    original, peer.randRange = peer.randRange, lambda low, high, integer: next(values)
    try:
        return function()
    finally:
        peer.randRange = original


def _notch_values(drawn: Any, row: int) -> Iterator[float]:
    """Yield the values of one row in the order in which the published code asks for them."""
    for filter_ in range(drawn["gain_db"].shape[1]):
        for band in range(drawn["centre_hz"].shape[2]):
            yield float(drawn["centre_hz"][row, filter_, band])
            yield float(drawn["width_hz"][row, filter_, band])
            yield int(drawn["n_taps"][row, filter_, band])
        yield float(drawn["gain_db"][row, filter_])


def _lnl_deviation(peer: ModuleType, waveform: torch.Tensor) -> float:
    augment = ConvolutiveNoise()
    drawn = augment.draw(len(waveform), N_SAMPLES, _seeded())
    ours = augment.apply(waveform, drawn).numpy()
    worst = 0.0
    for i, clip in enumerate(waveform.double().numpy()):
        theirs = _replaying(
            peer,
            _notch_values(drawn, i),
            lambda clip=clip: peer.LnL_convolutive_noise(clip, 5, *BANDS, 5, 20, 16000),
        )
        worst = max(worst, float(np.abs(ours[i, 1:] - theirs[:-1]).max()))
    return worst


def _ssi_deviation(peer: ModuleType, waveform: torch.Tensor) -> float:
    augment = StationaryNoise()
    drawn = augment.draw(len(waveform), N_SAMPLES, _seeded())
    ours = (augment.apply(waveform, drawn) - waveform).numpy()
    white = row_noise(waveform, drawn["seed"]).double().numpy()
    worst = 0.0
    for i, clip in enumerate(waveform.double().numpy()):
        taps = _replaying(
            peer,
            _notch_values(drawn["notch"], i),
            lambda: peer.genNotchCoeffs(*BANDS, 16000),
        )
        theirs = peer.filterFIR(white[i], taps)
        scale = (
            np.linalg.norm(clip) / np.linalg.norm(theirs) / 10 ** (drawn["snr_db"][i].item() / 20)
        )
        worst = max(worst, float(np.abs(ours[i, 1:] - scale * theirs[:-1]).max()))
    return worst


def _rates(waveform: torch.Tensor, n_rounds: int) -> list[Row]:
    cases: dict[str, tuple[Augmentation, float | None]] = {
        "the paper's FIR, tanh on half the clips": (RandomFIR(), 1000),
        "the paper's white noise": (WhiteNoise(), 1000),
        "the paper's Butterworth": (RandomButterworth(), None),
        "TFPARNAugment(p=1)": (TFPARNAugment(p=1.0), None),
    }
    rows = []
    for name, (augment, least) in cases.items():
        rate = N_CLIPS / interleave({"": _augmenting(augment, waveform)}, n_rounds=n_rounds)[""]
        goal = f"≥ {least:g} clips/s" if least else ""
        met = rate >= least if least else None
        rows.append(Row(case=f"{name}, {BATCH}", ours=rate, unit="clips/s", goal=goal, met=met))
    return rows


def _recipes(waveform: torch.Tensor, n_rounds: int) -> list[Row]:
    """Return the cost of augmenting a batch as a share of the training step that it feeds."""
    batch = waveform[:32, :40000].contiguous()
    labels = torch.arange(32) % 2
    rows = []
    detector = EncoderConfig(encoder=("distillmos", "whisper-base"), n_layers=(0, 3), freeze=(3, 1))
    for model in (Encoder(detector), ResNet(), TFPARN()):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step(model: torch.nn.Module = model, optimizer: torch.optim.AdamW = optimizer) -> None:
            optimizer.zero_grad()
            focal_pairwise_loss(model(batch), labels).backward()
            optimizer.step()

        for name in ("channels", "coders"):
            functions = {"ours": _augmenting(augmentation(name), batch), "step": step}
            seconds = interleave(functions, n_rounds=n_rounds)
            share = seconds["ours"] / seconds["step"]
            rows.append(
                Row(
                    case=f"recipe {name} beside {type(model).__name__}, 32 clips of 2.5 s",
                    ours=seconds["ours"],
                    unit="s",
                    reference=seconds["step"],
                    reference_name="forward, backward and AdamW",
                    ratio=share,
                    goal="< 0.2×" if name == "channels" else "",
                    met=share < 0.2 if name == "channels" else None,
                )
            )
    return rows
