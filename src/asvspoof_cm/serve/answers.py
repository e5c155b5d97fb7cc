"""The parameters and the answers of the service, of which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from asvspoof_cm.metrics import ASVSPOOF5

LIMITS: Final = ("max_body_bytes", "max_duration_s", "max_windows")
"""The settings that clients are told."""


def about(text: str, **limits: Any) -> Any:
    """Return a field with a description and its limits."""
    return Field(description=text, **limits)


Prior = Annotated[float, about("The prior probability of spoof.", ge=1e-6, le=1 - 1e-6)]
Cost = Annotated[float, Field(ge=1e-3, le=1e6)]
Channel = Annotated[
    Literal["mix"] | Annotated[int, Field(ge=0, le=63)] | None,
    about('A channel, counted from 0, or "mix", their average.'),
]
Llr = Annotated[float | None, about("The log-likelihood ratio of human against synthetic speech.")]
Window_s = Annotated[float | None, about("The length; a crop's unless given.", ge=0.1, le=60)]


class ScoreQuery(BaseModel, extra="forbid"):
    """The parameters of ``POST /v1/score``."""

    prior: Prior = ASVSPOOF5.p_spoof
    c_miss: Annotated[Cost, about("What it costs to refuse a human.")] = ASVSPOOF5.c_miss
    c_fa: Annotated[Cost, about("What it costs to accept a spoof.")] = ASVSPOOF5.c_fa
    channel: Channel = None


class TimelineQuery(BaseModel, extra="forbid"):
    """The parameters of ``POST /v1/timeline``."""

    window_s: Window_s = None
    hop_s: Annotated[float, about("From start to start.", ge=0.05, le=60)] = 1.0
    channel: Channel = None


class Identity(BaseModel):
    """The model that scored, by its weights and its configuration."""

    name: str
    sha256: str | None
    calibration: Annotated[dict[str, str] | None, about("Its name, if any, and its hash.")]


class _About(BaseModel):
    duration_s: Annotated[float, Field(gt=0)]
    resampled_from: Annotated[int | None, about("The file's rate where it is not the model's.")]
    n_channels: int
    model: Identity


class ScoreAnswer(_About):
    """The score of a recording; without a calibration there is no LLR and no verdict."""

    score: Annotated[float, about("Higher means human.")]
    unit: Literal["llr", "log-odds"]
    llr: Llr
    lowest_llr: Annotated[float | None, about("That of the worst passage.")]
    crop_scores: Annotated[list[float], Field(min_length=1)]
    prior: Annotated[float, about("The prior probability of spoof that was assumed.")]
    probability: Annotated[float | None, about("Of human speech.", ge=0, le=1)]
    threshold: Annotated[float, about("The least LLR whose verdict is bonafide.")]
    verdict: Annotated[
        Literal["bonafide", "spoof", "abstain"] | None,
        about("The cheapest, given prior and costs; it abstains without speech to judge."),
    ]
    warnings: Annotated[list[str], about("What makes the score doubtful.")]


class Window(BaseModel):
    """The score of one window."""

    start_s: float
    end_s: float
    score: float
    llr: Llr
    has_speech: Annotated[bool, about("Without speech the score means nothing.")]
    warnings: list[str]


class TimelineAnswer(_About):
    """The scores of a recording along time."""

    window_s: float
    hop_s: float
    windows: Annotated[list[Window], Field(min_length=1)]


class ModelAnswer(Identity):
    """The model in use, its costs and the limits of the service."""

    note: Annotated[str, about("What to know about the model.")]
    sample_rate: int
    crop_s: float
    costs: Annotated[dict[str, float], about("And the prior, unless a request says otherwise.")]
    limits: Annotated[dict[str, int | float], about("Of a request.")]


class Problem(BaseModel):
    """What is wrong: a word for programs, a sentence for people."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """The request is not answered."""

    error: Problem


def _refused(description: str, *headers: str) -> dict[str, Any]:
    sent = {name: {"required": True, "schema": {"type": "string"}} for name in headers}
    return {"model": ErrorAnswer, "description": description, **({"headers": sent} if sent else {})}


UNAUTHORIZED: Final = _refused("The service asks for a token.", "WWW-Authenticate")
BUSY: Final = _refused("The service can't take another request now.", "Retry-After")
SCORING: Final[dict[int | str, dict[str, Any]]] = {
    **{status: _refused("The message says why.") for status in (408, 413, 422, 504)},
    401: UNAUTHORIZED,
    503: BUSY,
}
_FILE: Final = {"schema": {"type": "string", "format": "binary"}}
_FORM: Final = {"type": "object", "properties": {"file": _FILE["schema"]}, "required": ["file"]}
AUDIO: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": _FILE,
            "audio/*": _FILE,
            "multipart/form-data": {"schema": {**_FORM, "additionalProperties": False}},
        },
    }
}
"""A body that is a file, or a form with one."""
