"""The service under load: what batches gain, what they cost one client, and a long run."""

from __future__ import annotations

import asyncio
import io
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soundfile
import torch

from asvspoof_cm import Calibration, save_checkpoint
from asvspoof_cm.models import TFPARN, TFPARNConfig
from harness import Options, Row

PARTS = ("batches", "small-batches", "load")
N_CLIENTS = 8
BAD_SHARE = 0.01
RATE = 16000


@dataclass
class Server:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    def memory(self) -> int:
        """Resident bytes of the service and its decoders (Linux)."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(_resident(each) for each in (str(pid), *children))


@dataclass
class Load:
    """What clients saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    n_wrong: int = 0
    memory: list[int] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """The latency that a share of the requests did not exceed."""
        return float(np.quantile(self.latencies, share))


def run(options: Options) -> list[Row]:
    """Measure batches against one by one in turn, then a long run: ``--part …``."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        n_rounds, n_requests = (1, 2) if options.quick else (3, 4)
        if options.wants("batches"):
            model = write_model(Path(name) / "tfparn.pt", n_crops=1)
            rows += batch_rows(model, "TFPARN", n_rounds, n_requests)
        tiny = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
        small = write_model(Path(name) / "small.pt", tiny, crop_s=0.5, n_crops=1)
        if options.wants("small-batches"):
            rows += batch_rows(small, "a small model", n_rounds, 10 * n_requests)
        if options.wants("load"):
            rows += load_rows(small, 20 if options.quick else 2000)
    return rows


def write_model(path: Path, config: TFPARNConfig | None = None, **settings: Any) -> Path:
    """Write a TFPARN of random weights with a calibration."""
    torch.manual_seed(0)
    model = TFPARN(config)
    model.input = replace(model.input, **settings)
    save_checkpoint(path, model, calibration=Calibration().as_dict())
    return path


def batch_rows(model: Path, title: str, n_rounds: int, n_requests: int) -> list[Row]:
    """Eight clients and one, with batches and without, in turn; one crop of each clip."""
    clips = [make_clip(2.0, seed) for seed in range(16)]
    rates: dict[str, list[float]] = {"batches": [], "one by one": []}
    alone: dict[str, list[float]] = {"batches": [], "one by one": []}
    with serve(model) as batches, serve(model, "--max-batch", "1") as single:
        servers = {"batches": batches, "one by one": single}
        for server in servers.values():
            asyncio.run(load(server, clips, n_clients=N_CLIENTS, n_requests=1))
        for _ in range(n_rounds):
            for name, server in servers.items():
                many = asyncio.run(load(server, clips, n_clients=N_CLIENTS, n_requests=n_requests))
                rates[name].append(N_CLIENTS * n_requests / many.seconds)
                one = asyncio.run(load(server, clips, n_clients=1, n_requests=n_requests))
                alone[name].append(statistics.median(one.latencies))
    rate = {name: statistics.median(values) for name, values in rates.items()}
    latency = {name: statistics.median(values) for name, values in alone.items()}
    return [
        Row(
            case=f"requests per second of {N_CLIENTS} clients, {title}",
            ours=rate["batches"],
            unit="1/s",
            reference=rate["one by one"],
            reference_name="a batch for each",
            ratio=rate["batches"] / rate["one by one"],
            goal="≥ 3×",
            met=rate["batches"] >= 3 * rate["one by one"],
        ),
        Row(
            case=f"latency of one client, {title}",
            ours=latency["batches"],
            unit="s",
            reference=latency["one by one"],
            reference_name="a batch for each",
            ratio=latency["one by one"] / latency["batches"],
            goal="≥ 0.91×",
            met=latency["batches"] <= 1.1 * latency["one by one"],
        ),
    ]


def load_rows(model: Path, n_requests: int) -> list[Row]:
    """Eight clients, one body in a hundred bad, a model that takes little time."""
    clips = [make_clip(1.0 + 0.05 * k, k) for k in range(60)]
    with serve(model) as server:
        asyncio.run(load(server, clips, n_clients=N_CLIENTS, n_requests=max(4, n_requests // 20)))
        before = counted(server)
        seen = asyncio.run(
            load(server, clips, n_clients=N_CLIENTS, n_requests=n_requests, bad=True)
        )
        answered = counted(server) - before
    n_all = N_CLIENTS * n_requests
    n_bad = seen.statuses[422]
    growth = seen.memory[-1] / seen.memory[0]
    told = f"{n_all:,} requests of {N_CLIENTS} clients, {n_bad} bad bodies"
    rows = [
        Row(
            case=f"answers: {told}",
            ours=sum(seen.statuses.values()),
            unit="",
            reference=answered,
            reference_name="the service's own count",
            deviation=float(seen.n_wrong),
            goal="each once, none wrong",
            met=set(seen.statuses) == {200, 422}
            and seen.n_wrong == 0
            and sum(seen.statuses.values()) == answered == n_all,
        ),
        Row(case="requests per second", ours=n_all / seen.seconds, unit="1/s"),
        Row(
            case="resident memory at the end, decoders included",
            ours=seen.memory[-1],
            unit="B",
            reference=seen.memory[0],
            reference_name="at the start",
            ratio=1 / growth,
            goal="≥ 0.95×",
            met=growth <= 1 / 0.95,
        ),
    ]
    for share in (0.5, 0.95, 0.99):
        title = f"latency, p{round(100 * share)}"
        rows.append(Row(case=title, ours=seen.percentile(share), unit="s"))
    return rows


async def load(
    server: Server,
    clips: Sequence[tuple[bytes, float]],
    *,
    n_clients: int,
    n_requests: int,
    bad: bool = False,
) -> Load:
    """Let every client send its requests one after another; a 503 is waited out."""
    seen = Load(memory=[server.memory()])

    async def client(number: int) -> None:
        rng = np.random.default_rng(number)
        async with httpx.AsyncClient(base_url=server.address, timeout=None) as http:
            for _ in range(n_requests):
                content, duration_s = clips[rng.integers(len(clips))]
                is_bad = bad and rng.random() < BAD_SHARE
                if is_bad:
                    content = content[: rng.integers(len(content) // 2)]
                start = time.perf_counter()
                answer = await http.post("/v1/score", content=content)
                while answer.status_code == 503:
                    await asyncio.sleep(int(answer.headers["retry-after"]))
                    answer = await http.post("/v1/score", content=content)
                seen.latencies.append(time.perf_counter() - start)
                seen.statuses[answer.status_code] += 1
                told = answer.json()
                is_right = "error" in told if is_bad else told.get("duration_s") == duration_s
                seen.n_wrong += not is_right

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(n_clients)))
    seen.seconds = time.perf_counter() - start
    seen.memory.append(server.memory())
    return seen


@contextmanager
def serve(model: Path, *options: str) -> Iterator[Server]:
    """Start ``asvspoof-cm serve`` with a free port."""
    command = [sys.executable, "-m", "asvspoof_cm", "serve", "--port", "0", *options]
    command += ["--model", str(model), "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in process.stderr or ():
            lines.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                yield Server(process, found.group(1))
                return
        raise RuntimeError("".join(lines))
    finally:
        process.terminate()
        process.communicate()


def make_clip(duration_s: float, seed: int) -> tuple[bytes, float]:
    """Return a WAV of noise that swells like speech, and its exact length."""
    n_samples = round(duration_s * RATE)
    rng = np.random.default_rng(seed)
    swell = np.abs(np.sin(np.arange(n_samples) * (2 * np.pi * 3 / RATE)))
    file = io.BytesIO()
    soundfile.write(file, 0.1 * swell * rng.standard_normal(n_samples), RATE, format="WAV")
    return file.getvalue(), n_samples / RATE


def counted(server: Server) -> int:
    """How many requests for a score the service says that it has answered."""
    text = httpx.get(f"{server.address}/metrics").text
    found = re.findall(r'requests_total\{path="/v1/score",status="(?:200|422)"\} (\d+)', text)
    return sum(map(int, found))


def _resident(pid: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return 0 if found is None else int(found.group(1)) * 1024
