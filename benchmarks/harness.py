"""What every benchmark shares: interleaved timing, peak memory in a child, rows and their table."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a benchmark: what was measured, beside what, and how far the results differ.

    `ratio` is always "how many times better": reference / ours for seconds and bytes. `deviation`
    is the largest absolute difference of the two results, None where there is nothing to compare.
    """

    case: str
    ours: float
    unit: str
    reference: float | None = None
    reference_name: str = ""
    ratio: float | None = None
    deviation: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""

    @classmethod
    def beside(
        cls,
        case: str,
        ours: float,
        reference: float,
        reference_name: str,
        *,
        times: float | None = None,
        deviation: float | None = None,
        within: float | None = None,
        unit: str = "s",
        note: str = "",
    ) -> Row:
        """Return a row of seconds, bytes or rates beside a reference.

        Its goals are to be so many `times` better, and to differ by no more than `within`.
        """
        better = reference / ours if unit in ("s", "B") else ours / reference
        goals = [] if times is None else [f"≥ {times:g}×"]
        goals += [] if within is None else [f"≤ {within:g}"]
        met = better >= (times or 0) and (within is None or deviation <= within)
        return cls(
            case=case,
            ours=ours,
            unit=unit,
            reference=reference,
            reference_name=reference_name,
            ratio=better,
            deviation=deviation,
            goal=", ".join(goals),
            met=met if goals else None,
            note=note,
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line of ``run.py`` gives each suite."""

    peers: Mapping[str, Path]
    quick: bool = False
    parts: Sequence[str] = ()

    def wants(self, part: str) -> bool:
        """Whether to measure this part of a suite; all unless some were named."""
        return not self.parts or part in self.parts

    def peer(self, name: str) -> Path | None:
        """Where the public package `name` is checked out, or None: then its rows are left out."""
        return self.peers.get(name)


def interleave(
    functions: Mapping[str, Callable[[], object]], *, n_rounds: int = 7, warm_up: int = 1
) -> dict[str, float]:
    """Return the median seconds of each function, run in turn so that drift hits all alike."""
    for function in functions.values():
        for _ in range(warm_up):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(n_rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_memory(function: Callable[..., object], *args: Any) -> int:
    """Return the peak resident bytes that `function(*args)` adds in a new process (Linux only).

    `function` is a top-level function of an importable module that returns a callable: what it
    does before returning (imports, weights, inputs) is not counted, what the callable does is.
    """
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=_measure, args=(child, function, args))
    process.start()
    child.close()
    try:
        peak: int = parent.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function.__name__}{args} died with code {process.exitcode}") from None
    process.join()
    return peak


def _measure(pipe: Any, function: Callable[..., Callable[[], object]], args: Sequence[Any]) -> None:
    task = function(*args)
    # What building the model left free would be used first, and not be counted.
    ctypes.CDLL(None).malloc_trim(0)
    # Writing 5 resets the peak to the present size (Linux); getrusage would keep the parent's.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    task()
    pipe.send(resident("VmHWM") - before)


def resident(field: str, process: int | str = "self") -> int:
    """Return a figure of a process's memory in bytes (Linux); 0 where there is none."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return 0 if found is None else int(found.group(1)) * 1024


def environment() -> dict[str, Any]:
    """Return the versions, threads and processor that the figures depend on."""
    packages = ("asvspoof-cm", "torch", "numpy", "scipy", "soundfile", "onnxruntime")
    installed = {distribution.name for distribution in distributions()}
    versions = {name: version(name) for name in packages if name in installed}
    import torch

    return {
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "n_cores": os.cpu_count(),
        "n_threads": torch.get_num_threads(),
    }


def write_results(suite: str, rows: Sequence[Row], *, keep: bool = False, **details: Any) -> Path:
    """Write one suite's rows, and what else it found, as JSON, and ``RESULTS.md`` of all suites.

    `keep` keeps the rows of other cases.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{suite}.json"
    found = [asdict(row) for row in rows]
    if keep and path.is_file():
        measured = {(row["case"], row["reference_name"]) for row in found}
        kept = json.loads(path.read_text())["rows"]
        found = [r for r in kept if (r["case"], r["reference_name"]) not in measured] + found
    content = {
        "suite": suite,
        "environment": environment(),
        "rows": found,
        **details,
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (RESULTS.parent / "RESULTS.md").write_text(render_results())
    return path


def render_results() -> str:
    """Return ``RESULTS.md``: the table of every suite that has results."""
    header = "# Benchmark results\n\nGenerated by `make bench`; benchmarks/README.md says how.\n\n"
    paths = sorted(RESULTS.glob("*.json"))
    return header + "\n".join(to_markdown(json.loads(path.read_text())) for path in paths)


def to_markdown(content: Mapping[str, Any]) -> str:
    """Return one suite's JSON content as a Markdown section."""
    machine = content["environment"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    cpu = (
        f"{machine['machine']} ({machine['processor']}), "
        f"{machine['n_threads']} threads of {machine['n_cores']} cores"
    )
    lines = [
        f"## {content['suite']}",
        "",
        f"Python {machine['python']}, {packages}; {cpu}.",
        "",
        "| case | ours | reference | ratio | deviation | goal | met |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in content["rows"]:
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        reference = ""
        if row["reference"] is not None:
            reference = f"{_figure(row['reference'], row['unit'])} ({row['reference_name']})"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}×"
        deviation = "" if row["deviation"] is None else f"{row['deviation']:.1e}"
        case = row["case"] + (f" — {row['note']}" if row["note"] else "")
        ours = _figure(row["ours"], row["unit"])
        lines.append(
            f"| {case} | {ours} | {reference} | {ratio} | {deviation} | {row['goal']} | {met} |"
        )
    return "\n".join(lines) + "\n"


def _figure(value: float, unit: str) -> str:
    if unit == "s":
        for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= scale:
                return f"{value / scale:.3g} {name}"
        return f"{value * 1e6:.3g} µs"
    if unit == "B":
        return f"{value / 2**20:.4g} MiB"
    if value >= 10_000:
        return f"{value:,.0f} {unit}".rstrip()
    return f"{value:.4g} {unit}".rstrip()
