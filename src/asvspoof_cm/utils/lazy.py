"""Names that are imported on first use: those of a package, listed once, and those of an extra."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    Its exports are the imports under ``if TYPE_CHECKING:`` in its own source, which type checkers
    read as they stand; here they are made when a name is first asked for.
    """
    spec = find_spec(package)
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(package) or ""
    homes = {
        alias.name: str(node.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*homes, *vars(sys.modules[package])}), sorted(homes)


def import_extra(module: str, extra: str) -> Any:
    """Return a module that comes with an extra of the package, or say how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {error.name or module}, an extra: pip install 'asvspoof-cm[{extra}]'."
        ) from error
