"""The limits of a service, and the refusal of a request that exceeds one."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The limits of a service.

    Attributes:
        name: What the model is called in answers; None is the name of its class.
        note: What to know about the model, shown on the page.
        token: The bearer token that clients must send; None asks for none.
        max_requests: Requests whose audio has arrived that are in the service; the next gets 503.
        max_body_bytes: The largest body; a larger one gets 413.
        max_buffered_bytes: The most that all bodies that are arriving or wait to be decoded may
            hold; what is more gets 503.
        max_duration_s: The longest audio; longer audio gets 413.
        max_windows: The most windows of a timeline.
        max_batch: Requests that are scored together.
        max_wait_s: How long a request waits for others to share its batch.
        n_decoders: Processes that decode.
        body_limit_s: How long a client may take to send its body.
        decoding_limit_s: How long the decoding of one file may take.
        time_limit_s: How long a request may take from its last byte to its answer.

    Example:
        >>> ServiceSettings(max_requests=8).max_duration_s
        600.0
    """

    name: str | None = None
    note: str = ""
    token: str | None = field(default=None, repr=False)
    max_requests: int = 32
    max_body_bytes: int = 32 * 2**20
    max_buffered_bytes: int = 256 * 2**20
    max_duration_s: float = 600.0
    max_windows: int = 3600
    max_batch: int = 16
    max_wait_s: float = 0.005
    n_decoders: int = 2
    body_limit_s: float = 30.0
    decoding_limit_s: float = 10.0
    time_limit_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and not (value > 0 or name == "max_wait_s"):
                raise ValueError(f"`{name}` must be positive; got {value}.")
        if self.token is not None and not re.fullmatch(r"[\x21-\x7e]{8,}", self.token):
            raise ValueError(
                "`token` must have at least 8 characters, printable ASCII without spaces."
            )


class RefusedError(Exception):
    """A request that gets no score: its HTTP status, a word for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(status, code, message)  # what a decoder pickles
        self.status, self.code, self.message = status, code, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def __str__(self) -> str:
        return self.message
