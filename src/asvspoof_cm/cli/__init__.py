"""The ``asvspoof-cm`` command: a thin layer over the library, one module per subcommand.

Each module has ``add_arguments(parser)`` and ``run(args) -> int``, which returns the exit code; the
module of the chosen command alone is imported. Bad input is one line on standard error and exit
code 2, a warning one line; a traceback means a bug.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from asvspoof_cm._util import one_line

BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended

__all__ = ["main"]

COMMANDS: Mapping[str, str] = {
    "score": "score audio files or a protocol",
    "merge": "join the tables of all shards, or make a submission",
    "calibrate": "fit a model's scores to your recordings",
    "serve": "answer requests over HTTP",
    "models": "list the trained models",
    "export": "write a checkpoint as ONNX",
    "evaluate": "compute the official metrics of score files, and compare them",
    "protocol": "say what a protocol holds",
    "train": "train a model, or one of the paper's systems",
}


class _Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, as those of the subcommands are."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``asvspoof-cm`` command and return its exit code.

    Example:
        >>> main([])
        2
    """
    from asvspoof_cm import __version__

    arguments = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in arguments if word in COMMANDS), None)
    parser = _Parser(prog="asvspoof-cm", description="Tell human speech from synthetic speech.")
    parser.add_argument("--version", action="version", version=f"asvspoof-cm {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    of_command = {name: subparsers.add_parser(name, help=text) for name, text in COMMANDS.items()}
    if chosen is not None:
        module = import_module(f"{__name__}.{chosen}")
        module.add_arguments(of_command[chosen])
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2

    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            sys.stderr.write(f"asvspoof-cm {args.command}: warning: {text}\n")
        shown.add(text)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            return int(module.run(args))
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (ValueError, OSError, ImportError, ArithmeticError, RecursionError) as error:
        actions = of_command[args.command]._actions
        # The library's errors name parameters; here they are options.
        option = {a.dest: a.option_strings[-1] for a in actions if a.option_strings}
        option |= {"name": option["model"]} if "model" in option else {}
        text = re.sub(r"`(\w+)`", lambda m: option.get(m[1], m[0]), one_line(error))
        sys.stderr.write(f"asvspoof-cm {args.command}: {text}\n")
        return 2
    except KeyboardInterrupt:
        return 130
