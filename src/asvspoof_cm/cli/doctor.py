"""``asvspoof-cm doctor``: what a report of a problem needs to say about this machine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from pathlib import Path

SUMMARY = "show versions, devices and extras, and test the installation"
EXTRAS = {
    "onnx": ("onnxscript", "onnxruntime"),
    "plots": ("matplotlib",),
    "train": ("tqdm",),
    "serve": ("starlette", "uvicorn"),
    "datasets": ("datasets", "pyarrow"),
    "ray": ("ray",),
    "transformers": ("transformers",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = (
        "Show versions, devices, threads, extras and folders, and score two seconds of synthetic "
        "sound with the default model. Put its output into a report of a problem. The exit code "
        "is 1 where the test fails."
    )


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    for name, value in _about().items():
        sys.stdout.write(f"{name:12} {value}\n")
    sys.stdout.flush()
    try:
        said, is_well = _self_test(), True
    except Exception as error:  # whatever it is, it belongs into the report
        said, is_well = f"failed: {type(error).__name__}: {error}", False
    sys.stdout.write(f"{'self-test':12} {said}\n")
    return 0 if is_well else 1


def _about() -> dict[str, str]:
    import numpy as np
    import scipy
    import soundfile
    import torch

    from asvspoof_cm import __version__
    from asvspoof_cm.checkpoint import PRETRAINED, SHIPPED
    from asvspoof_cm.models.base import cache_folders
    from asvspoof_cm.utils.processes import resolve_device, resolve_precision

    found = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    found += ["MPS"] if torch.backends.mps.is_available() else []
    present = {extra: all(map(_is_there, names)) for extra, names in EXTRAS.items()}
    return {
        "asvspoof-cm": f"{__version__} in {SHIPPED.parent}",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}",
        "numpy": f"{np.__version__}, scipy {scipy.__version__}",
        "soundfile": f"{soundfile.__version__}, {soundfile.__libsndfile_version__}",
        "devices": ", ".join(["CPU", *found]),
        "threads": f"{torch.get_num_threads()} of PyTorch, {os.cpu_count()} cores",
        "bf16": resolve_precision("auto", resolve_device())[1],
        "extras": ", ".join(name for name, is_in in present.items() if is_in) or "none",
        "not there": ", ".join(name for name, is_in in present.items() if not is_in) or "none",
        "models": ", ".join(PRETRAINED),
        "cache": f"{cache_folders()[0]}, where weights of encoders are looked for",
    }


def _self_test() -> str:
    """Score two seconds of a synthetic vowel, from a file, with the default model."""
    import tempfile

    import numpy as np
    import soundfile

    from asvspoof_cm.checkpoint import DEFAULT_NAME
    from asvspoof_cm.scorer import Scorer

    place_s = np.arange(2 * 16000) / 16000
    level = 0.3 * (1 + np.sin(2 * np.pi * 3 * place_s))
    vowel = level * sum(np.sin(2 * np.pi * 120 * k * place_s) / k for k in range(1, 20))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vowel.flac")
        soundfile.write(path, vowel / np.abs(vowel).max(), 16000)
        scorer = Scorer.from_pretrained(DEFAULT_NAME)
        (scored,) = scorer.score_files([path])
    if scored.result is None:
        raise ValueError(scored.error)
    took_s = time.perf_counter() - start
    score = f"{scored.result.unit} {scored.result.score:.2f}"
    return f"well: {score} on {scorer.device}, {took_s:.1f} s"


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
