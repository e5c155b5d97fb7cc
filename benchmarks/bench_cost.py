"""What the shipped detector costs on one core: latency, files per second, memory, requests.

PyTorch and ONNX Runtime run in turn, each time in a new process that may use one core. The clips
are those of ``examples/audio``, two to four seconds of speech.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from asvspoof_cm import Encoder, Scorer, export_onnx, load_pretrained
from asvspoof_cm.checkpoint import DEFAULT_NAME, pretrained_path
from harness import Options, Row, interleave
from service import load, serve

AUDIO = Path(__file__).parents[1] / "examples" / "audio"
N_FILES = 200
CHILD = """
import json, os, re, sys, time
from pathlib import Path
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
start = time.perf_counter()
from asvspoof_cm import Scorer
model, n_files, *clips = sys.argv[1:]
scorer = Scorer.from_onnx(model) if model.endswith(".onnx") else Scorer.from_checkpoint(model)
score = scorer.score_file(clips[0]).score
first_s = time.perf_counter() - start
seconds = []
for _ in range(5):
    start = time.perf_counter()
    scorer.score_file(clips[0])
    seconds.append(time.perf_counter() - start)
start = time.perf_counter()
files = [clips[k % len(clips)] for k in range(int(n_files))]
scores = [found.score for found in scorer.score_files(files, n_threads=1)][: len(clips)]
rate = len(files) / (time.perf_counter() - start)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)
told = {"first": first_s, "latency": sorted(seconds)[2], "rate": rate}
print(json.dumps({**told, "peak": 1024 * int(peak), "scores": scores}))
"""


def run(options: Options) -> list[Row]:
    """Measure both backends in turn, then the service."""
    clips = sorted(AUDIO.glob("*.flac"))
    n_rounds, n_files = (1, 12) if options.quick else (3, N_FILES)
    with tempfile.TemporaryDirectory() as folder:
        onnx = Path(folder) / "model.onnx"
        export_onnx(load_pretrained(DEFAULT_NAME), onnx)
        models = {"PyTorch": pretrained_path(DEFAULT_NAME), "ONNX Runtime": onnx}
        told = {name: [] for name in models}
        for _ in range(n_rounds):
            for name, model in models.items():
                command = [sys.executable, "-c", CHILD, str(model), str(n_files), *map(str, clips)]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, env=environment, capture_output=True, check=True)
                told[name].append(json.loads(done.stdout))
        rows = [Row(case="size of the ONNX file", ours=onnx.stat().st_size, unit="B")]
    rows.append(Row(case="size of the checkpoint", ours=models["PyTorch"].stat().st_size, unit="B"))
    scores = {name: np.array(of[0]["scores"], dtype=float) for name, of in told.items()}
    deviation = float(np.abs(scores["PyTorch"] - scores["ONNX Runtime"]).max())
    for key, case, unit in (
        ("first", "imports, loading and the first score", "s"),
        ("latency", f"latency of {clips[0].name}", "s"),
        ("rate", f"{n_files} files of 2 to 4 s", "files/s"),
        ("peak", f"peak memory of {n_files} files, the whole process", "B"),
    ):
        torch_value, onnx_value = (
            statistics.median(round_[key] for round_ in told[name]) for name in models
        )
        case, about = f"{case}, one core, ONNX Runtime", {"unit": unit, "deviation": deviation}
        rows.append(Row.beside(case, onnx_value, torch_value, "PyTorch", **about))
    rows.append(heads_row(clips[0], n_rounds=2 if options.quick else 15))
    return rows + service_rows(clips, n_requests=2 if options.quick else 20)


def heads_row(clip: Path, n_rounds: int) -> Row:
    """The shipped detector beside the same one without the heads of frames and of speech."""
    torch.set_num_threads(1)
    model = load_pretrained(DEFAULT_NAME)
    bare = Encoder(replace(model.config, frame_head=False, speech_head=False))
    bare.load_state_dict({name: model.state_dict()[name] for name in bare.state_dict()})
    bare.input = model.input
    scorers = {
        name: Scorer(each, device="cpu", score="log-odds", calibration=None)
        for name, each in (("heads", model), ("bare", bare))
    }
    seconds = interleave(
        {name: partial(scorer.score_file, clip) for name, scorer in scorers.items()},
        n_rounds=n_rounds,
    )
    with_heads, without = (scorer.score(clip) for scorer in scorers.values())
    case, deviation = f"latency of {clip.name}, one thread, all heads", abs(with_heads - without)
    about = {"times": 1 / 1.2, "deviation": deviation, "within": 1e-4}
    return Row.beside(case, *seconds.values(), "without those of frames and speech", **about)


def service_rows(clips: list[Path], n_requests: int) -> list[Row]:
    """Requests per second of eight clients, beside a service without batches; and one client."""
    bodies = [path.read_bytes() for path in clips]
    rates = []
    for options in ((), ("--max-batch", "1")):
        with serve(pretrained_path(DEFAULT_NAME), *options) as server:
            asyncio.run(load(server, bodies, n_clients=1, n_requests=2))
            seconds, answers = asyncio.run(load(server, bodies, n_clients=8, n_requests=n_requests))
            rates.append(len(answers) / seconds)
            if not options:
                _, alone = asyncio.run(load(server, bodies, n_clients=1, n_requests=n_requests))
                memory = server.memory()
    return [
        Row.beside("service, 8 clients", *rates, "a batch for each", unit="requests/s"),
        Row(case="service, latency of one client, p50", ours=statistics.median(alone), unit="s"),
        Row(case="service, resident memory, decoders included", ours=memory, unit="B"),
    ]
