"""The final evaluation of a run: its best checkpoint, with test-time augmentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from asvspoof_cm.checkpoint import load_checkpoint
from asvspoof_cm.data.protocol import Protocol
from asvspoof_cm.metrics import read_scores
from asvspoof_cm.runs import BEST_NAME, FINAL_NAME
from asvspoof_cm.scorer import Scorer
from asvspoof_cm.training.loop import evaluate_quietly, summary
from asvspoof_cm.utils.files import atomic_path
from asvspoof_cm.utils.processes import rank_and_size

__all__ = ["evaluate_run", "read_final"]


def evaluate_run(
    run: str | os.PathLike[str],
    protocol: Protocol,
    audio_dir: str | os.PathLike[str],
    *,
    split: Literal["dev", "eval"] = "dev",
    n_crops: int | None = None,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    """Score a set with the best checkpoint of a run folder, and measure what scoring costs.

    Writes ``<split>_scores.tsv``, the challenge's score file, and ``final.json``: the metrics of
    each split that was evaluated, the number of parameters, the time an utterance and the peak
    memory of inference, measured on synthetic utterances so that reading files does not count.
    Goes on where it was killed; under `torch.distributed` the processes share the scoring.

    Args:
        run: The folder that `fit` wrote.
        protocol: The utterances, with labels.
        audio_dir: Their audio.
        split: What to call the set.
        n_crops: Crops of each utterance; None is what the checkpoint says.
        device: Where to score.
        progress: Show progress.

    Returns:
        The content of ``final.json``; empty in other processes than the first.
    """
    out = Path(run)
    is_first = rank_and_size()[0] == 0
    model = load_checkpoint(out / BEST_NAME)
    scorer = Scorer(model, device=device, n_crops=n_crops)
    done = scorer.score_protocol(
        protocol, audio_dir, out / f"{split}_scores.tsv", progress=progress and is_first
    )
    if not is_first:
        return {}
    scores = read_scores(done.output)
    label_of = dict(zip(protocol.utterance.tolist(), protocol.label.tolist(), strict=True))
    labels = np.array([label_of[name] for name in scores.filename.tolist()])
    result = evaluate_quietly(scores.cm if scores.cm is not None else [], labels)
    final = read_final(out) | {
        "checkpoint": BEST_NAME,
        "n_crops": scorer.input.n_crops,
        split: {
            "n_bonafide": result.n_bonafide,
            "n_spoof": result.n_spoof,
            "n_failed": done.n_failed,
            **summary(result),
            "min_cllr": result.min_cllr,
            "auc": result.auc,
        },
        **_profile(out / BEST_NAME, scorer.input.n_crops, scorer.device),
    }
    with atomic_path(out / FINAL_NAME) as temporary:
        temporary.write_text(json.dumps(final, indent=1) + "\n")
    return final


def read_final(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a run folder's ``final.json``; empty where there is none yet.

    Example:
        >>> read_final("no such run")
        {}
    """
    path = Path(run) / FINAL_NAME
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _profile(checkpoint: Path, n_crops: int, device: torch.device) -> dict[str, Any]:
    """Profile a checkpoint in a new process: training has left this one with memory to reuse."""
    command = [sys.executable, "-m", "asvspoof_cm", "profile", str(checkpoint), "--json"]
    command += ["--crops", str(n_crops), "--device", str(device)]
    # The new process is one of its own, not one of torchrun's.
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{checkpoint} can't be profiled: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))
