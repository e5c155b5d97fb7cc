"""Requests read, replies written: the form of what the service and its clients tell each other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; media-src blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "prior": (1e-6, 1 - 1e-6),
    "c_miss": (1e-3, 1e6),
    "c_fa": (1e-3, 1e6),
    "window_s": (0.1, 60.0),
    "hop_s": (0.05, 60.0),
}
"""The lowest and the highest value of each parameter of a query."""

CLIENT_GONE: Final = 499
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class RefusedError(Exception):
    """A request that gets no score: its HTTP status, a word for programs, a sentence for people."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = headers or {}


def read_parameters(given: Sequence[tuple[str, str]], names: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a query; unknown and repeated names and wild values get 422."""
    parameters: dict[str, float] = {}
    for name, text in given:
        if name not in names:
            raise bad_parameter(f"the parameters are {', '.join(names)}; got {name[:40]!r}.")
        if name in parameters:
            raise bad_parameter(f"`{name}` must be given once.")
        low, high = BOUNDS[name]
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not low <= value <= high:
            raise bad_parameter(
                f"`{name}` must be a number from {low:g} to {high:g}; got {text[:40]!r}."
            )
        parameters[name] = value
    return parameters


async def read_body(request: Request, limit: int) -> bytes:
    """Return the audio of a request, its body or the file of a form, in memory whatever its size.

    A body above the limit gets 413, a form that can't be read 422.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _read_form(request, limit)
    return b"".join([chunk async for chunk in _limited(request, limit)])


async def _read_form(request: Request, limit: int) -> bytes:
    """Return the part ``file`` of a form."""
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    class InMemory(MultiPartParser):
        spool_max_size = limit + 1

    parser = InMemory(request.headers, _limited(request, limit), max_files=1, max_fields=0)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RefusedError(422, "bad_form", f"the form can't be read: {error.message}") from None
    try:
        found = form.get("file")
        if not isinstance(found, UploadFile):
            raise RefusedError(422, "bad_form", "the form must have one part, the file `file`.")
        return await found.read()
    finally:
        await form.close()


async def _limited(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    n_bytes = 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes > limit:
            raise _too_large(limit)
        yield chunk


def bad_parameter(message: str) -> RefusedError:
    """Return the refusal of a query."""
    return RefusedError(422, "bad_parameter", message)


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, "too_large", f"the body must have at most {limit} bytes.")


def client_gone() -> RefusedError:
    """Return what ends a request whose client hung up; nobody receives it, but it is counted."""
    return RefusedError(CLIENT_GONE, "client_gone", "the client hung up.")


def json_reply(content: dict[str, Any], status: int = 200, **headers: str) -> Response:
    """Return a reply of JSON."""
    from starlette.responses import Response

    text = json.dumps(content, allow_nan=False)
    headers = {**HEADERS, "Content-Type": "application/json", **headers}
    return Response(text, status, headers=headers)


def refusal_reply(error: RefusedError) -> Response:
    """Return the reply to a request that is refused."""
    content = {"error": {"code": error.code, "message": error.message}}
    return json_reply(content, error.status, **error.headers)


def file_reply(path: Path, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with a file, read once."""
    from starlette.responses import Response

    content = path.read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, headers={**HEADERS, "Content-Type": kind})

    return answer
