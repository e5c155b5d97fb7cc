"""Files of published weights: where they are, and CTranslate2's format."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def cache_folders() -> list[Path]:
    """Return where weights are looked for: ASVSPOOF_CM_WEIGHTS if set, and the user's cache."""
    chosen = os.environ.get("ASVSPOOF_CM_WEIGHTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [*([Path(chosen)] if chosen else []), cache / "asvspoof-cm", cache]


def find_weights(
    name: str, *, packages: Iterable[Sequence[str]], patterns: Iterable[str], advice: str
) -> list[Path]:
    """Return the file of an encoder's weights, or its parts.

    Args:
        name: The encoder's, for the message.
        packages: Alternatives, each the parts of one file as ``package/path``.
        patterns: Globs within `cache_folders`.
        advice: Where to get the weights.

    Raises:
        FileNotFoundError: They are nowhere.
    """
    for parts in packages:
        found = [_in_package(part) for part in parts]
        if found and all(path is not None for path in found):
            return [path for path in found if path is not None]
    for folder in cache_folders():
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                return [path]
    raise FileNotFoundError(
        f"No weights of {name} were found. {advice}, put the file in {cache_folders()[-2]}, or set "
        "ASVSPOOF_CM_WEIGHTS to its folder."
    )


def _in_package(part: str) -> Path | None:
    package, _, rest = part.partition("/")
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / rest
        if path.is_file():
            return path
    return None


def read_ctranslate2(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the variables of a CTranslate2 model, ``model.bin``, whole or in parts.

    The file holds a version, the name and revision of the model's specification and the number of
    variables; each variable a name, its shape, a type, the number of bytes and the bytes.

    Raises:
        ValueError: The file is damaged or something else.
    """
    content = memoryview(b"".join(path.read_bytes() for path in paths))
    position = 0

    def take(n_bytes: int) -> memoryview:
        nonlocal position
        if position + n_bytes > len(content):
            raise ValueError("it ends too early")
        position += n_bytes
        return content[position - n_bytes : position]

    def number(kind: str) -> int:
        return int(struct.unpack(f"<{kind}", take(struct.calcsize(f"<{kind}")))[0])

    def text() -> str:
        return bytes(take(number("H"))).rstrip(b"\0").decode()

    variables = {}
    try:
        if not 4 <= (version := number("I")) <= 6:
            raise ValueError(f"its version is {version}, not 4 to 6")
        text()
        number("I")
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            kind = number("B")
            data = take(number("I"))
            if kind not in _TYPES:
                raise ValueError(f"the type {kind} of {name} is unknown")
            array = np.frombuffer(data, _TYPES[kind]).reshape(shape)
            variables[name] = torch.from_numpy(array.copy())
    except ValueError as error:
        names = ", ".join(map(str, paths))
        raise ValueError(f"{names} is not a CTranslate2 model: {error}.") from error
    return variables
