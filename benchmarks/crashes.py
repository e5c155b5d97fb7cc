"""Commands killed at random moments: the same command must finish, with the undisturbed result.

    nice -n 19 python benchmarks/crashes.py                # 50 kills per command, with record
    python benchmarks/crashes.py --only score --n 3 --dry

A command starts in a new process group, and SIGKILL ends all of it: half of the times after a
random share of the time that it takes, half of the times before a random one of its file operations
(open, rename, remove, …), where a kill is most likely to hurt. The same command is started again,
and killed again, until it gets through. Then its result is compared with that of a run that nobody
disturbed, and no temporary file may be left. The record is ``results/crashes.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch

from asvspoof_cm import cli, save_checkpoint
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.data import write_miniature
from asvspoof_cm.models import TFPARN, TFPARNConfig
from harness import Row, write_results

N_EPOCHS = 4
TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_feedforward": 8, "n_mels": 16}
_TIMES = {
    "clips_per_s",
    "dev_peak_memory_bytes",
    "peak_memory_bytes",
    "seconds",
    "started",
    "finished",
}
_OPERATIONS = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"),
}


@dataclass(frozen=True)
class Command:
    """A command that writes to a folder, and what of that folder must not depend on kills."""

    run: Callable[[Path], int]
    result: Callable[[Path], Any]


@dataclass
class Outcome:
    """What the kills of one command came to."""

    n_kills: int = 0
    n_by_operation: int = 0
    n_finished: int = 0
    seconds: float = 0.0
    n_operations: int = 0
    findings: list[str] = field(default_factory=list)


# Commands --------------------------------------------------------------------------------------


def _tiny(data: Path) -> Path:
    torch.manual_seed(0)
    model = TFPARN(TFPARNConfig(**TINY))
    model.input = InputSettings(crop_s=0.3, n_crops=2)
    save_checkpoint(data / "tiny.pt", model)
    return data / "tiny.pt"


def train(data: Path) -> Command:
    """``asvspoof-cm train`` of a tiny model."""
    paths = write_miniature(data, n_train=12, n_dev=6, duration_s=(0.4, 0.6))
    command = ["train", "--model", _tiny(data), "--train-protocol", paths.train_protocol]
    command += ["--dev-protocol", paths.dev_protocol, "--audio", paths.audio_dir]
    command += ["--epochs", N_EPOCHS, "--batch-size", 4, "--augment", "none", "--crops", 1]
    command += ["--workers", 0, "--device", "cpu", "--quiet"]

    def run(out: Path) -> int:
        return cli.main([*map(str, command), "--out", str(out / "run")])

    def result(out: Path) -> Any:
        lines = (out / "run" / "history.jsonl").read_text().splitlines()
        weights = {}
        for name in ("best.pt", "last.pt"):
            content = torch.load(out / "run" / name, weights_only=True)
            weights[name] = {k: tensor.tolist() for k, tensor in content["state_dict"].items()}
        scores = (out / "run" / "dev_scores.tsv").read_text()
        return [_plain(json.loads(line)) for line in lines], weights, scores

    return Command(run, result)


def score(data: Path) -> Command:
    """``asvspoof-cm score --protocol`` with a tiny model, and an utterance that is not there."""
    paths = write_miniature(data, n_train=2, n_dev=30, duration_s=(0.4, 0.8))
    next((paths.audio_dir / "flac_D").iterdir()).write_bytes(b"no audio")
    command: list[object] = ["score", "--model", _tiny(data), "--protocol", paths.dev_protocol]
    command += ["--audio", paths.audio_dir, "--device", "cpu"]

    def run(out: Path) -> int:
        status = cli.main([*map(str, command), "--out", str(out / "dev.tsv")])
        return 0 if status == 1 else status  # 1: an utterance failed, as it must

    return Command(run, lambda out: _files(out))


COMMANDS: dict[str, Callable[[Path], Command]] = {"train": train, "score": score}


def _plain(value: Any) -> Any:
    """Return a record without what time and place decide."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k not in _TIMES and not k.endswith("_s")}
    return value


def _files(out: Path) -> dict[str, str]:
    """Return a hash of each file; what a temporary file would be called is there too."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


# Kills -----------------------------------------------------------------------------------------


def start(command: Command, out: Path, die_before: int | None = None) -> int:
    """Run a command in a child of its own group; return its process id.

    `die_before` is the number of the file operation that the child is killed before.
    """
    if (child := os.fork()) != 0:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    status = 70
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        log = os.open(f"{out}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        out.mkdir(parents=True, exist_ok=True)
        _watch(out, die_before)
        status = command.run(out)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        Path(f"{out}.operations").write_text(str(_COUNT[0]))
        os._exit(status)


_COUNT = [0]


def _watch(out: Path, die_before: int | None) -> None:
    """Count what is done to files below `out`, and die before a certain one."""
    prefix = str(out)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _OPERATIONS or not str(args[0] if args else "").startswith(prefix + "/"):
            return
        _COUNT[0] += 1
        if _COUNT[0] == die_before:
            os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)


def wait(child: int, limit_s: float | None = None) -> int | None:
    """Return how a child ended; kill its group and return None where it takes longer."""
    end = time.monotonic() + (limit_s if limit_s is not None else 3600)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.002)


def torment(name: str, n_kills: int, seed: int, work: Path) -> Outcome:
    """Kill a command so often, at least, and compare every result that it comes to."""
    rng, outcome = random.Random(f"{name} {seed}"), Outcome()
    data = work / "data"
    data.mkdir(parents=True)
    command = COMMANDS[name](data)
    began = time.monotonic()
    if (status := wait(start(command, work / "whole"))) != 0:
        raise RuntimeError(f"{name} failed undisturbed ({status}): {_log(work / 'whole')}")
    outcome.seconds = time.monotonic() - began
    outcome.n_operations = int((work / "whole.operations").read_text())
    expected = command.result(work / "whole")
    number = 0
    while outcome.n_kills < n_kills:
        out = work / f"disturbed-{number}"
        number += 1
        shutil.rmtree(out, ignore_errors=True)
        _until_done(command, out, outcome, rng, n_kills)
        try:
            if (found := command.result(out)) != expected:
                outcome.findings.append(f"{out.name}: {_difference(expected, found)}")
        except (OSError, ValueError) as error:
            outcome.findings.append(f"{out.name}: {error!r}; {_log(out)}")
        outcome.findings += [
            f"{out.name}: {path.name} is left" for path in out.rglob("*.tmp") if path.is_file()
        ]
        shutil.rmtree(out, ignore_errors=True)
    return outcome


def _until_done(
    command: Command, out: Path, outcome: Outcome, rng: random.Random, n_kills: int
) -> None:
    """Start and kill a command until it ends by itself; after the last kill, let it end."""
    while outcome.n_kills < n_kills:
        if rng.random() < 0.5:
            last = rng.randint(1, outcome.n_operations)
            status = wait(start(command, out, die_before=last))
            was_killed = status == -signal.SIGKILL
            outcome.n_by_operation += was_killed
        else:
            status = wait(start(command, out), rng.uniform(0, outcome.seconds))
            was_killed = status is None
        outcome.n_kills += was_killed
        if not was_killed:
            break
    else:
        status = wait(start(command, out))
    outcome.n_finished += 1
    if status != 0:
        outcome.findings.append(f"{out.name} ended with {status}: {_log(out)}")


def _log(out: Path) -> str:
    return Path(f"{out}.log").read_text()[-600:]


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict):
        keys = expected.keys() | found.keys()
        return f"other: {sorted(k for k in keys if expected.get(k) != found.get(k))[:5]}"
    parts = zip(expected, found, strict=False)
    return f"other: parts {[k for k, (a, b) in enumerate(parts) if a != b]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Torment the chosen commands; 1 where there are findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=[*COMMANDS])
    parser.add_argument("--n", type=int, default=50, help="kills per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="write no record")
    args = parser.parse_args(arguments)
    rows = []
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="crashes-") as work:
            outcome = torment(name, args.n, args.seed, Path(work))
        note = (
            f"{outcome.n_by_operation} of them right before a file operation; "
            f"{outcome.n_finished} results, all as undisturbed"
        )
        if outcome.findings:
            note = "; ".join(outcome.findings)[:2000]
        print(
            f"{name}: {outcome.n_kills} kills: {note} ({outcome.seconds:.1f} s whole)", flush=True
        )
        rows.append(
            Row(
                case=f"{name}: {outcome.n_kills} kills",
                ours=len(outcome.findings),
                unit="findings",
                goal="none",
                met=not outcome.findings,
                note=note,
            )
        )
    if not args.dry:
        write_results("crashes", rows, seed=args.seed)
    return int(any(not row.met for row in rows))


if __name__ == "__main__":
    sys.exit(main())
