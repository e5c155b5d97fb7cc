"""The public names of the package, each with the one module that documents it."""

from __future__ import annotations

import inspect
import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

PACKAGE = "asvspoof_cm"


@cache
def public_modules() -> tuple[str, ...]:
    """Return the modules whose ``__all__`` is documented, by their full names."""
    top = [module.name for module in pkgutil.iter_modules(import_module(PACKAGE).__path__)]
    return tuple(f"{PACKAGE}.{name}" for name in sorted(top) if name[0] != "_")


@cache
def public_objects() -> dict[str, tuple[str, ...]]:
    """Return, for each public module, the names that it documents.

    A name that several modules export belongs to the public one that defines it, else to the
    first that exports it.
    """
    objects = {
        module: tuple(name for name in exported(module) if _home(module, name))
        for module in public_modules()
    }
    return {module: names for module, names in objects.items() if names}


def exported(module: str) -> list[str]:
    """Return the names that a module exports: its ``__all__``, or all that a package imports."""
    loaded = import_module(module)
    if hasattr(loaded, "__all__"):
        return list(loaded.__all__)
    return sorted(
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and name != "annotations" and not inspect.ismodule(value)
    )


def _home(module: str, name: str) -> bool:
    defined = getattr(getattr(import_module(module), name), "__module__", module)
    return defined == module or defined not in public_modules()


def is_constant(value: Any) -> bool:
    """Return whether a public name is a value rather than a class, function or module."""
    return not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value))
