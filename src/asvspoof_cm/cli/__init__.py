"""The ``asvspoof-cm`` command: a thin layer over the library, one module per subcommand.

Each module has ``add_parser(subparsers)``, which describes the arguments and sets ``run``, and
``run(args) -> int``, which returns the exit code. Bad input is one line on standard error and exit
code 2; a traceback means a bug.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["main"]

COMMANDS: tuple[str, ...] = (
    "score",
    "serve",
    "export",
    "evaluate",
    "protocol",
    "pack",
    "train",
    "study",
    "report",
    "profile",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``asvspoof-cm`` command and return its exit code.

    Example:
        >>> main([])
        2
    """
    parser = _build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return int(args.run(args))
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        sys.stderr.write(f"asvspoof-cm {args.command}: {' '.join(str(error).split())}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _build_parser() -> argparse.ArgumentParser:
    from asvspoof_cm import __version__

    parser = argparse.ArgumentParser(
        prog="asvspoof-cm", description="Tell human speech from synthetic speech."
    )
    parser.add_argument("--version", action="version", version=f"asvspoof-cm {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        import_module(f"{__name__}.{command}").add_parser(subparsers)
    return parser
