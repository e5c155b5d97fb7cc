"""What an object is, as plain values: for the record of a run, and to compare it with another."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_DEPTH = 8


def describe(value: Any, depth: int = _DEPTH) -> Any:
    """Return plain values that differ where two losses, transforms or orders do.

    Numbers, strings, lists and dicts stay what they are, an array becomes its hash, a function its
    name and what it closes over, any other object its class and its attributes.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if depth == 0:
        return _name(type(value))
    deeper = functools.partial(describe, depth=depth - 1)
    if isinstance(value, Mapping):
        return {str(key): deeper(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [deeper(item) for item in value]
    if isinstance(value, Set):
        return sorted(map(str, value))
    if inspect.isfunction(value):
        return _function(value, deeper)
    if inspect.ismethod(value):
        return {"type": value.__name__, "of": deeper(value.__self__)}
    if inspect.isclass(value) or inspect.isroutine(value):
        return _name(value)
    if isinstance(value, functools.partial):
        content = {"function": value.func, "args": value.args, "keywords": value.keywords}
        return {"type": "partial", **{k: deeper(item) for k, item in content.items() if item}}
    if hasattr(value, "__array__"):
        return f"{_name(type(value))} {digest(np.asarray(value))[:16]}"
    if is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
        return {"type": _name(type(value)), **{k: deeper(item) for k, item in attributes.items()}}
    attributes = getattr(value, "__dict__", {})
    shown = repr(value)
    if not shown.endswith(f" at {id(value):#x}>"):  # a torch module shows what it is made of
        hidden = {k for k in attributes if k.startswith("_")} | {"training"}
        attributes = {k: item for k, item in attributes.items() if k not in hidden}
        attributes["shown"] = shown
    return {"type": _name(type(value)), **{k: deeper(item) for k, item in attributes.items()}}


def digest(*columns: Any) -> str:
    """Return a hash of arrays or strings: their values, dtypes and shapes."""
    result = hashlib.sha256()
    for column in columns:
        array = np.ascontiguousarray(column)
        if array.dtype.kind in "UTO":  # the width of a string array is no part of its content
            content = "\n".join(map(str, array.ravel().tolist())).encode("utf-8", "replace")
            result.update(f"text {array.shape}".encode() + content)
        else:
            result.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return result.hexdigest()


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}".removeprefix("builtins.")


def _function(function: Any, deeper: Any) -> Any:
    closed = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    content = {
        "defaults": [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()],
        "closure": closed,
    }
    kept = {name: deeper(item) for name, item in content.items() if item}
    if "<" in function.__qualname__:  # a lambda or an inner function: several have one name
        code = function.__code__
        kept["code"] = digest([code.co_code.hex(), *map(str, code.co_names)])[:16]
        kept["constants"] = [deeper(item) for item in code.co_consts if not inspect.iscode(item)]
    elif kept.keys() <= {"defaults"}:
        return _name(function)
    return {"type": _name(function), **kept}
