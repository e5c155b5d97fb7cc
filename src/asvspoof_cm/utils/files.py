"""Files are written whole or not at all, and known by their SHA-256."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    The temporary file lies in the same folder, so the replacement is atomic; its contents reach
    the disk before its name does. What a killed process left is taken over. After an error `path`
    is what it was before; where the disk is full, the error says so, whatever the writer made of
    it.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"`path` must name a file; {path} is a directory.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = _temporary(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if (cause := _no_room(error)) is not None:
            raise OSError(
                f"{path} could not be written: {os.strerror(cause)}. What was there before is "
                "intact; make room and run the same command again."
            ) from error
        raise
    finally:
        if lock is not None:
            lock.close()


def _temporary(path: Path) -> tuple[Path, BinaryIO | None]:
    """Return an empty file beside `path` and what holds it, or one with a name of its own."""
    temporary = path.with_name(f".{path.name}.tmp")
    while os.name != "nt":  # where an open file can't be renamed
        file = temporary.open("ab")
        if not _try_lock(file.fileno()):  # another process writes the same file
            file.close()
            break
        # That process may have finished it between opening and locking.
        if temporary.exists() and os.path.samestat(os.fstat(file.fileno()), temporary.stat()):
            file.truncate(0)
            return temporary, file
        file.close()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    temporary.touch(exist_ok=False)
    return temporary, None


def _no_room(error: BaseException | None) -> int | None:
    """Return the number of the error, if a full disk is behind it; torch reports another one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write values as indented JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[str | None]:
    """Yield None if this process alone holds the lock file `path` inside the block, else who does.

    The system releases the lock of a process that dies, so what an interruption leaves is no
    obstacle. The file is gone after the block.
    """
    path = Path(path)
    _forget_locks_in_children()
    while True:
        file = path.open("ab")
        try:
            if not _try_lock(file.fileno()):
                yield _holder(path)
                return
            # Another process may have removed the file between opening and locking it.
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue
            _locked.add(file)
            with contextlib.suppress(OSError):  # a full disk; the name only helps
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}".encode())
                file.flush()
            try:
                yield None
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            _locked.discard(file)
            with contextlib.suppress(OSError):
                file.close()


_locked: set[BinaryIO] = set()


@functools.cache
def _forget_locks_in_children() -> None:
    """Let workers that outlive a killed process not hold its locks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: [file.close() for file in _locked])


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "another process"
    except OSError:
        return "another process"


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
    except OSError as error:  # a file system without locks is no other process
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True
