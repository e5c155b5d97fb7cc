"""Augmentation: RawBoost beside the published NumPy code, batches beside single calls, rates.

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
import scipy.signal
import torch

from asvspoof_cm.augmentation import (
    Augmentation,
    Codec,
    ConvolutiveNoise,
    RandomButterworth,
    RandomFIR,
    RawBoost,
    StationaryNoise,
    TFPARNAugment,
    WhiteNoise,
    augmentation,
    available_codecs,
)
from asvspoof_cm.augmentation.base import row_noise
from asvspoof_cm.augmentation.filters import sos_filter
from asvspoof_cm.augmentation.tfparn import butterworth_sos
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.models import TFPARN, Encoder, EncoderConfig, ResNet
from harness import Options, Row, interleave

N_CLIPS, N_SAMPLES = 64, 64000
PARTS = ("peer", "rates", "batches", "recipes")
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
        if options.wants("batches"):
            rows += [*_batched(waveform, n_rounds), _recursive(waveform, n_rounds)]
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


def _one_by_one(augment: Augmentation, waveform: torch.Tensor) -> Callable[[], object]:
    generator = _seeded()
    return lambda: [augment(row, generator=generator) for row in waveform]


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
    deviations = {
        1: _lnl_deviation(peer, waveform[:8]),
        3: _ssi_deviation(peer, waveform[:8]),
    }
    notes = {1: "; deviation with the same draws, the peer's one-sample lead taken out"}
    notes[3] = notes[1] + ", of the noise added"
    clips = list(waveform.numpy())
    rows = []
    for algorithm, function in published.items():

        def theirs(function: Callable[[Any], Any] = function) -> object:
            return [function(clip) for clip in clips]

        ours = _augmenting(RawBoost(algorithm), waveform)
        seconds = interleave({"ours": ours, "peer": theirs}, n_rounds=n_rounds)
        ratio, goal = seconds["peer"] / seconds["ours"], goals.get(algorithm)
        rows.append(
            Row(
                case=f"RawBoost {algorithm}, {BATCH}",
                ours=seconds["ours"],
                unit="s",
                reference=seconds["peer"],
                reference_name="published NumPy code",
                ratio=ratio,
                deviation=deviations.get(algorithm),
                goal=f"≥ {goal:g}×" if goal else "",
                met=ratio >= goal if goal else None,
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
    goal = 1000.0
    cases: dict[str, tuple[Augmentation, float | None]] = {
        "the paper's FIR, tanh on half the clips": (RandomFIR(), goal),
        "the paper's white noise": (WhiteNoise(), goal),
        "the paper's Butterworth": (RandomButterworth(), None),
        "TFPARNAugment(p=1)": (TFPARNAugment(p=1.0), None),
    }
    rows = []
    for name, (augment, least) in cases.items():
        seconds = interleave({"": _augmenting(augment, waveform)}, n_rounds=n_rounds)[""]
        rows.append(_rate(f"{name}, {BATCH}", N_CLIPS / seconds, least))
    few = waveform[:4]
    for codec in available_codecs():
        augmenting = _augmenting(Codec(codecs=(codec,)), few)
        seconds = interleave({"": augmenting}, n_rounds=min(3, n_rounds))[""]
        rows.append(_rate(f"codec {codec}, 4 clips of 4 s", len(few) / seconds, None))
    return rows


def _rate(case: str, clips_per_second: float, goal: float | None) -> Row:
    return Row(
        case=case,
        ours=clips_per_second,
        unit="clips/s",
        goal=f"≥ {goal:g} clips/s" if goal else "",
        met=clips_per_second >= goal if goal else None,
    )


def _batched(waveform: torch.Tensor, n_rounds: int) -> list[Row]:
    cases: dict[str, Augmentation] = {
        **{f"RawBoost {algorithm}": RawBoost(algorithm) for algorithm in range(1, 9)},
        "RandomFIR": RandomFIR(),
        "RandomButterworth": RandomButterworth(),
        "WhiteNoise": WhiteNoise(),
        "TFPARNAugment(p=1)": TFPARNAugment(p=1.0),
    }
    rows = []
    for name, augment in cases.items():
        functions = {
            "batch": _augmenting(augment, waveform),
            "single": _one_by_one(augment, waveform),
        }
        seconds = interleave(functions, n_rounds=n_rounds)
        ratio = seconds["single"] / seconds["batch"]
        rows.append(
            Row(
                case=f"{name}, {BATCH}",
                ours=seconds["batch"],
                unit="s",
                reference=seconds["single"],
                reference_name=f"{N_CLIPS} single calls",
                ratio=ratio,
                goal="> 1×",
                met=ratio > 1,
            )
        )
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
            augment = augmentation(name)
            if augment is None:
                raise ValueError(f"{name} is no augmentation")
            functions = {"ours": _augmenting(augment, batch), "step": step}
            seconds = interleave(functions, n_rounds=n_rounds)
            ratio = seconds["ours"] / seconds["step"]
            rows.append(
                Row(
                    case=f"recipe {name} beside {type(model).__name__}, 32 clips of 2.5 s",
                    ours=seconds["ours"],
                    unit="s",
                    reference=seconds["step"],
                    reference_name="forward, backward and AdamW",
                    ratio=ratio,
                    goal="< 0.2×" if name == "channels" else "",
                    met=ratio < 0.2 if name == "channels" else None,
                )
            )
    return rows


def _recursive(waveform: torch.Tensor, n_rounds: int) -> Row:
    drawn = RandomButterworth().draw(N_CLIPS, N_SAMPLES, _seeded())
    cut_offs = zip(drawn["low_hz"].tolist(), drawn["high_hz"].tolist(), strict=True)
    sos = torch.stack([butterworth_sos("bandpass", *pair) for pair in cut_offs])

    def by_fft() -> torch.Tensor:
        return sos_filter(waveform, sos)

    def by_sosfilt() -> torch.Tensor:
        rows = zip(sos.numpy(), waveform.double().numpy(), strict=True)
        return torch.from_numpy(np.stack([scipy.signal.sosfilt(*row) for row in rows])).float()

    seconds = interleave({"fft": by_fft, "sosfilt": by_sosfilt}, n_rounds=n_rounds)
    deviation = float((by_fft() - by_sosfilt()).abs().max())
    return Row(
        case=f"sos_filter, {BATCH}",
        ours=seconds["fft"],
        unit="s",
        reference=seconds["sosfilt"],
        reference_name="scipy.signal.sosfilt",
        ratio=seconds["sosfilt"] / seconds["fft"],
        deviation=deviation,
        goal="deviation < 1e-4",
        met=deviation < 1e-4,
    )
