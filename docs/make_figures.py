"""Draw the pictures of the documentation into ``docs/_static``.

    PYTHONPATH=examples/paper python docs/make_figures.py

Scores are drawn from Gaussians; models are small and trained here, for a few epochs, on the
generated miniature corpus. The pictures show what the plots look like, not how good a system is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from figure import training_efficiency
from matplotlib.figure import Figure
from PIL import Image
from tables import find_runs

from asvspoof_cm import TFPARN, TFPARNConfig, load_audio, metrics, plots, tta_crops
from asvspoof_cm.calibration import fit_calibration
from asvspoof_cm.cli.train import train
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.data.miniature import MiniaturePaths
from asvspoof_cm.labels import BONAFIDE, SAMPLE_RATE, SPOOF
from asvspoof_cm.losses import focal_pairwise_loss
from asvspoof_cm.scorer import Scorer

STATIC = Path(__file__).resolve().parent / "_static"
DPI = 150


def save(ax: object, name: str) -> None:
    """Write one picture and say how large it is."""
    path = STATIC / f"{name}.png"
    plots.save_figure(ax, path, dpi=DPI)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def evaluation_figures() -> None:
    """Draw DET curves, score densities, costs over priors and results per attack."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["bonafide", "spoof"], [2000, 8000])
    attack = np.where(labels == "spoof", rng.choice(["A09", "A10", "A11", "A12"], 10000), "-")
    strength = {"-": 4.0, "A09": -4.0, "A10": -3.0, "A11": -2.0, "A12": 1.0}
    scores = rng.normal([strength[name] for name in attack], 3.0)
    is_spoof = labels == "spoof"

    ax = plots.det(scores[~is_spoof], scores[is_spoof], label="system A")
    better = scores + np.where(is_spoof, -2.0, 0.0)
    save(plots.det(better[~is_spoof], better[is_spoof], ax, label="system B"), "det")
    llr = fit_calibration(scores, labels).apply(scores)
    save(plots.scores(llr[~is_spoof], llr[is_spoof]), "scores")
    figure = Figure(figsize=(plots.PAGE_WIDTH_IN, 2.6), layout="constrained")
    for ax, values, title in zip(
        figure.subplots(1, 2, sharey=True), (3 * scores, llr), ("raw", "calibrated"), strict=True
    ):
        plots.calibration(values[~is_spoof], values[is_spoof], ax)
        ax.set_title(f"{title} scores", fontsize=8)
    ax.set_ylabel("")
    save(ax, "calibration")
    table = metrics.breakdown(scores, labels, {"attack": attack}, n_bootstrap=200)
    save(plots.breakdown(table, metric="eer"), "breakdown")


def scoring_figures(paths: MiniaturePaths) -> None:
    """Train a small TFPARN, then draw a timeline of alternating clips."""
    protocol = read_protocol(paths.train_protocol)
    clips = [load_audio(paths.audio_dir / "flac_T" / f"{name}.flac") for name in protocol.utterance]
    crops = torch.stack([tta_crops(clip, n_crops=1)[0] for clip in clips])
    labels = torch.as_tensor(protocol.label)
    torch.manual_seed(0)
    model = TFPARN(TFPARNConfig(d_model=64, n_layers=2, n_heads=4, d_feedforward=128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(15):
        for rows in torch.randperm(len(labels)).split(16):
            optimizer.zero_grad()
            focal_pairwise_loss(model(crops[rows]), labels[rows]).backward()
            optimizer.step()

    scorer = Scorer(model, device="cpu")
    dev = read_protocol(paths.dev_protocol)
    kinds = {
        label: [dev.utterance[i] for i in np.flatnonzero(dev.label == label)]
        for label in (BONAFIDE, SPOOF)
    }
    order = kinds[BONAFIDE][:5] + kinds[SPOOF][:5] + kinds[BONAFIDE][5:10]
    parts = [load_audio(paths.audio_dir / "flac_D" / f"{name}.flac") for name in order]
    line = scorer.timeline(torch.cat(parts), window_s=4, hop_s=0.5)
    ends_s = (np.cumsum([len(part) for part in parts]) / SAMPLE_RATE).tolist()
    edges_s = [0.0, ends_s[4], ends_s[9], ends_s[-1]]
    names = ["bonafide", "spoofed", "bonafide"]
    known = list(zip(edges_s, edges_s[1:], names, strict=False))
    save(plots.timeline(line, threshold=0.0, truth=known), "timeline")


def training_figure(paths: MiniaturePaths, folder: Path) -> None:
    """Train two systems with two seeds each and draw their metrics over time."""
    settings = {
        "train_protocol": str(paths.train_protocol),
        "dev_protocol": str(paths.dev_protocol),
        "audio": str(paths.audio_dir),
        "model_config": {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_feedforward": 128},
        "recipe": {"warmup_epochs": 1.0},
        "epochs": 15,
        "batch_size": 16,
        "crop_s": 1.0,
        "lr": 1e-3,
    }
    for number in (3, 6):
        for seed in (42, 63):
            own = {"system": number, "seed": seed, "out": str(folder / f"{number}-{seed}")}
            train({**settings, **own}, device="cpu", progress=False)
    save(training_efficiency(find_runs(folder))[0, 0], "training_efficiency")


def main() -> None:
    """Draw them all."""
    STATIC.mkdir(exist_ok=True)
    evaluation_figures()
    with tempfile.TemporaryDirectory() as name:
        paths = write_miniature(Path(name) / "corpus", n_train=64, n_dev=64)
        scoring_figures(paths)
        training_figure(paths, Path(name))


if __name__ == "__main__":
    main()
