"""Run the benchmarks: ``python benchmarks/run.py [--only models] [--peer aasist=PATH]``.

Each suite is a module ``bench_<suite>.py`` with ``run(options) -> list[Row]``. Results go to
``benchmarks/results/<suite>.json``; ``benchmarks/RESULTS.md`` is generated from all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from harness import Options, to_markdown, write_results  # noqa: E402


def main() -> None:
    """Run the chosen suites and write their tables."""
    suites = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=suites, default=suites, metavar="SUITE")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="where a public package is checked out; see benchmarks/README.md for the names",
    )
    parser.add_argument(
        "--part", nargs="+", default=[], help="parts of a suite that has some; other rows are kept"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a smoke test")
    args = parser.parse_args()
    peers = {}
    for item in args.peer:
        name, _, path = item.partition("=")
        if not Path(path).is_dir():
            parser.error(f"--peer {item}: {path or 'no path'} is not a directory")
        peers[name] = Path(path).resolve()
    options = Options(peers=peers, quick=args.quick, parts=args.part)
    modules = {suite: import_module(f"bench_{suite}") for suite in args.only}
    for suite, module in modules.items():
        known = getattr(module, "PARTS", ())
        unknown = [part for part in args.part if part not in known]
        if unknown:
            parser.error(f"--part {unknown[0]}: {suite} has {', '.join(known) or 'no parts'}")
    for suite, module in modules.items():
        print(f"{suite} …", flush=True)
        rows = module.run(options)
        path = write_results(suite, rows, keep=bool(args.part))
        print(to_markdown(json.loads(path.read_text())), flush=True)


if __name__ == "__main__":
    main()
