"""Files are written whole or not at all, and known by their SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    The temporary file lies in the same folder, so the replacement is atomic; its contents reach
    the disk before its name does. After an error `path` is what it was before.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"`path` must name a file; {path} is a directory.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Yield whether this process alone holds the lock file `path`; it is gone after the block.

    The system releases the lock of a process that dies, so what an interruption leaves is no
    obstacle.
    """
    path = Path(path)
    while True:
        file = path.open("ab")
        try:
            if not _try_lock(file.fileno()):
                yield False
                return
            # Another process may have removed the file between opening and locking it.
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            file.close()


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        lock: Any = msvcrt
        try:
            lock.locking(descriptor, lock.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
