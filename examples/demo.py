"""The three models at a glance: their size beside the paper's, and clips going through TFPARN.

Run it with ``make demo``. The weights are untrained here, so the scores mean nothing yet.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from asvspoof_cm import (
    AASIST,
    BONAFIDE,
    SPOOF,
    TFPARN,
    AASISTConfig,
    RawNet2,
    TFPARNConfig,
    peak_normalize,
    tta_crops,
)

# Tables III and IV of the TFPARN paper; AASIST-L from its own paper.
PAPER = {
    "TFPARN, attention pooling": (lambda: TFPARN(), "4,846,275"),
    "TFPARN, mean pooling": (lambda: TFPARN(TFPARNConfig(pooling="mean")), "4,813,250"),
    "AASIST": (lambda: AASIST(), "0.30M"),
    "AASIST-L": (lambda: AASIST(AASISTConfig.light()), "85,306"),
    "RawNet2": (lambda: RawNet2(), "17.62M"),
}


def n_parameters(module: nn.Module) -> int:
    """Count the trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def synthesise(duration_s: float, pitch_hz: float) -> Tensor:
    """Return a vowel-like harmonic sound of shape (time,) at 16 kHz."""
    t = torch.arange(round(16000 * duration_s)) / 16000
    vibrato = pitch_hz * t + 2.0 * torch.sin(2 * math.pi * 5 * t)
    harmonics = [torch.sin(2 * math.pi * k * vibrato) / k for k in range(1, 20)]
    return torch.stack(harmonics).sum(dim=0)


def main() -> None:
    """Print the parameter table, then score a few clips and show the shapes."""
    print(f"{'model':28}{'the paper':>12}{'ours':>14}")
    for name, (build, expected) in PAPER.items():
        print(f"{name:28}{expected:>12}{n_parameters(build()):>14,}")

    torch.manual_seed(0)
    model = TFPARN().eval()
    print("\nTFPARN, line by line:")
    for name, module in model.named_children():
        print(f"  {name:12}{n_parameters(module):>12,}")

    print("\nfrom a waveform to a score (untrained weights):")
    for duration_s, pitch_hz in [(1.3, 110.0), (4.0, 180.0), (9.7, 240.0)]:
        waveform = peak_normalize(synthesise(duration_s, pitch_hz))
        crops = tta_crops(waveform)
        with torch.inference_mode():
            features = model.log_mel(crops)
            logits, attention = model(crops, return_attention=True)
        mean = logits.mean(dim=0)
        score = (mean[BONAFIDE] - mean[SPOOF]).item()
        print(
            f"  {duration_s:4.1f} s  waveform {tuple(waveform.shape)} → crops {tuple(crops.shape)}"
            f" → log-Mel {tuple(features.shape)} → attention {tuple(attention.shape)}"
            f" → logits {tuple(logits.shape)} → score {score:+.4f}"
        )


if __name__ == "__main__":
    main()
