"""A service in a process of its own, and clients that load it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from harness import resident


@dataclass
class Server:
    """Where a service listens, and its process."""

    process: subprocess.Popen[str]
    address: str

    def memory(self) -> int:
        """Resident bytes of the service and its decoders (Linux)."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(resident("VmRSS", each) for each in (pid, *children))

    def n_answered(self) -> int:
        """How many requests for a score the service says that it has answered."""
        text = httpx.get(f"{self.address}/metrics").text
        found = re.findall(r'requests_total\{path="/v1/score",status="(?:200|422)"\} (\d+)', text)
        return sum(map(int, found))


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


async def load(
    server: Server, bodies: Sequence[bytes], *, n_clients: int, n_requests: int
) -> tuple[float, list[float]]:
    """Let every client send its requests one after another; return all seconds, and each one's."""
    latencies = []

    async def client(number: int) -> None:
        rng = np.random.default_rng(number)
        async with httpx.AsyncClient(base_url=server.address, timeout=None) as http:
            for _ in range(n_requests):
                start = time.perf_counter()
                answer = await http.post("/v1/score", content=bodies[rng.integers(len(bodies))])
                answer.raise_for_status()
                latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(n_clients)))
    return time.perf_counter() - start, latencies
