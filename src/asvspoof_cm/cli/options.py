"""Options that several subcommands share, and options made from the fields of a dataclass."""

from __future__ import annotations

import argparse
import inspect
import re
import types
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from asvspoof_cm.models import Countermeasure
    from asvspoof_cm.scorer import Scorer


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``."""
    parser.add_argument(
        "--device", default="auto", help="auto (CUDA, then MPS, then CPU), cpu, cuda, cuda:1, mps"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``."""
    parser.add_argument(
        "--model",
        metavar="M",
        help="a checkpoint (.pt), an exported model (.onnx), owner/name or owner/name@COMMIT on "
        "the Hugging Face hub, or a model of the package by its name (default: the first that "
        "`models` lists)",
    )


def load_model(name: str | None) -> Countermeasure:
    """Return the model that ``--model`` names."""
    from asvspoof_cm.checkpoint import load_checkpoint, load_pretrained

    if name is not None and is_file(name):
        return load_checkpoint(name)
    name, _, revision = (name or "").partition("@")
    return load_pretrained(name or None, revision=revision or None)


def load_scorer(name: str | None, **options: Any) -> Scorer:
    """Return a scorer of the model that ``--model`` names; PyTorch is not imported for ONNX."""
    from asvspoof_cm.scorer import Scorer

    if name is not None and name.lower().endswith(".onnx"):
        return Scorer.from_onnx(name, **options)
    return Scorer(load_model(name), **options)


def is_file(text: str) -> bool:
    """Whether ``--model`` names a file and not a model of the package or of the hub."""
    from asvspoof_cm._hub import is_hub_name

    path = Path(text)
    is_path = len(path.parts) > 1 and not is_hub_name(text.partition("@")[0])
    return path.exists() or path.suffix == ".pt" or is_path


def find_checkpoint(text: str) -> Path:
    """Return the file that `text` names, or that of the trained model of that name."""
    from asvspoof_cm.checkpoint import pretrained_path

    return Path(text) if is_file(text) else pretrained_path(text)


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add ``--seed``."""
    parser.add_argument(
        "--seed", type=int, default=42, help="seed of everything random (default: 42)"
    )


def add_fields(
    parser: Any,
    kind: type,
    texts: Mapping[str, str] | None = None,
    *,
    skip: Collection[str] = (),
) -> None:
    """Add an option for each field of a dataclass that holds one plain value.

    The field's type is that of the option, its line in the docstring the help; `texts` replaces
    some of these. An option that is not given is None.
    """
    hints, documented = get_type_hints(kind), {**_documented(kind), **(texts or {})}
    for field in fields(kind):
        plain = [part for part in _alternatives(hints[field.name]) if part is not type(None)]
        if (
            field.name in skip
            or len(plain) != 1
            or not (plain[0] in (int, float, str, bool) or _choices(plain[0]))
        ):
            continue
        text = documented[field.name].replace("%", "%%")
        options: dict[str, Any] = {"dest": field.name}
        if plain[0] is bool:
            options |= {"action": "store_const", "const": True}
        elif choices := _choices(plain[0]):
            options |= {"metavar": "|".join(choices)}  # the dataclass says what is wrong
        else:
            options |= {"type": plain[0], "metavar": "S" if field.name.endswith("_s") else "X"}
        has_default = isinstance(field.default, int | float | str) and "(default" not in text
        if plain[0] is not bool and has_default:
            shown = f"{field.default:g}" if plain[0] is float else field.default
            text += f" (default: {shown})"
        parser.add_argument(option_name(field.name), help=text, **options)


def given_fields(
    args: argparse.Namespace, *kinds: type, skip: Collection[str] = ()
) -> dict[str, Any]:
    """Return the fields of the dataclasses that options gave a value."""
    names = [field.name for kind in kinds for field in fields(kind) if field.name not in skip]
    return {name: args.__dict__[name] for name in names if args.__dict__.get(name) is not None}


def option_name(field: str) -> str:
    """Return what a field is called on the command line: ``--epochs`` for ``n_epochs``."""
    return "--" + field.removeprefix("n_").replace("_", "-")


def _documented(kind: type) -> dict[str, str]:
    """Return the first sentence about each attribute in a class's docstring, without its dot."""
    section = re.search(r"Attributes:\n((?:    .*\n|\n)+)", (inspect.getdoc(kind) or "") + "\n")
    found: dict[str, str] = {}
    for name, text in re.findall(
        r"^    (\w+): (.*(?:\n {8}.*)*)", section.group(1) if section else "", re.MULTILINE
    ):
        sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()).replace("`", ""))[0]
        found[name] = sentence if sentence[:2].isupper() else sentence[:1].lower() + sentence[1:]
    return found


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _choices(hint: Any) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()
