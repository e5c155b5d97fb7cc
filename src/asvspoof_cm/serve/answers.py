"""What the service is asked and what it answers; the OpenAPI document is made of these."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from asvspoof_cm.metrics import ASVSPOOF5

Cost = Annotated[float, Field(ge=1e-3, le=1e6)]
Channel = Annotated[
    Literal["mix"] | Annotated[int, Field(ge=0, le=63)] | None,
    Field(description='A channel, counted from 0, or "mix", their average.'),
]
Llr = Annotated[
    float | None,
    Field(
        description="The log-likelihood ratio of human against synthetic speech; null where the "
        "model is not calibrated."
    ),
]


class ScoreQuery(BaseModel):
    """The parameters of ``POST /v1/score``."""

    model_config = ConfigDict(extra="forbid")
    prior: Annotated[
        float,
        Field(ge=1e-6, le=1 - 1e-6, description="The probability of spoof before listening."),
    ] = ASVSPOOF5.p_spoof
    c_miss: Annotated[Cost, Field(description="What it costs to call human speech a spoof.")] = (
        ASVSPOOF5.c_miss
    )
    c_fa: Annotated[Cost, Field(description="What it costs to call a spoof human.")] = (
        ASVSPOOF5.c_fa
    )
    channel: Channel = None


class TimelineQuery(BaseModel):
    """The parameters of ``POST /v1/timeline``."""

    model_config = ConfigDict(extra="forbid")
    window_s: Annotated[
        float | None,
        Field(ge=0.1, le=60, description="The length of a window; that of a crop unless given."),
    ] = None
    hop_s: Annotated[
        float, Field(ge=0.05, le=60, description="From the start of a window to the next.")
    ] = 1.0
    channel: Channel = None


class CalibrationName(BaseModel):
    """Which calibration made the log-likelihood ratios."""

    name: Annotated[str, Field(description="Empty where it has none.")]
    sha256: Annotated[str, Field(description="Of its map and of the conditions it was fitted for.")]


class Identity(BaseModel):
    """What scored."""

    name: str
    sha256: Annotated[str | None, Field(description="Of the weights and the configuration.")]
    calibration: CalibrationName | None


class _About(BaseModel):
    duration_s: Annotated[float, Field(gt=0)]
    resampled_from: Annotated[
        int | None, Field(description="The file's sampling rate where it is not the model's.")
    ]
    n_channels: int
    model: Identity


class ScoreAnswer(_About):
    """The score of a recording."""

    score: Annotated[float, Field(description="Higher means human.")]
    unit: Literal["llr", "log-odds", "bonafide-logit"]
    llr: Llr
    lowest_llr: Annotated[float | None, Field(description="That of the worst passage.")]
    crop_scores: Annotated[
        list[float], Field(min_length=1, description="The score of each crop on its own.")
    ]
    prior: Annotated[float, Field(description="The probability of spoof that was assumed.")]
    probability: Annotated[
        float | None, Field(ge=0, le=1, description="Of human speech, given `llr` and `prior`.")
    ]
    threshold: Annotated[float, Field(description="The least `llr` whose verdict is bonafide.")]
    verdict: Annotated[
        Literal["bonafide", "spoof", "abstain"] | None,
        Field(description="The cheapest, given prior and costs; null without a calibration."),
    ]
    warnings: Annotated[list[str], Field(description="What makes the score doubtful.")]


class Window(BaseModel):
    """The score of one window."""

    start_s: float
    end_s: float
    score: float
    llr: Llr
    has_speech: Annotated[bool, Field(description="Without speech the score means nothing.")]
    warnings: list[str]


class TimelineAnswer(_About):
    """The scores of a recording along time."""

    window_s: float
    hop_s: float
    windows: Annotated[list[Window], Field(min_length=1)]


class Costs(BaseModel):
    """What errors cost, and the prior, unless a request says otherwise."""

    c_miss: float
    c_fa: float
    p_spoof: float


class Limits(BaseModel):
    """What a request may have."""

    max_body_bytes: int
    max_duration_s: float
    max_windows: int


class ModelAnswer(Identity):
    """What scores, and within which limits."""

    note: Annotated[str, Field(description="What to know about the model.")]
    sample_rate: int
    crop_s: float
    costs: Costs
    limits: Limits


class Status(BaseModel):
    """All is well."""

    status: Literal["ok", "ready"]


class Problem(BaseModel):
    """What is wrong: a word for programs, a sentence for people."""

    code: Annotated[
        str,
        Field(
            description="bad_form, bad_parameter, body_timeout, busy, internal, "
            "method_not_allowed, not_decodable, not_found, not_ready, not_scorable, timeout, "
            "too_large, too_long, unauthorized."
        ),
    ]
    message: str


class ErrorAnswer(BaseModel):
    """The request is not answered."""

    error: Problem


_HEADER: Final = {"required": True, "schema": {"type": "string"}}
REFUSED: Final[dict[str, Any]] = {"model": ErrorAnswer, "description": "The message says why."}
UNAUTHORIZED: Final = {
    **REFUSED,
    "description": "The service asks for a token.",
    "headers": {"WWW-Authenticate": _HEADER},
}
BUSY: Final = {
    **REFUSED,
    "description": "The service can't take another request now.",
    "headers": {"Retry-After": {**_HEADER, "description": "Seconds to wait."}},
}
SCORING: Final[dict[int | str, dict[str, Any]]] = {
    **dict.fromkeys((408, 413, 422, 504), REFUSED),
    401: UNAUTHORIZED,
    503: BUSY,
}
_FILE: Final = {"type": "string", "format": "binary"}
_FORM: Final = {
    "type": "object",
    "properties": {"file": _FILE},
    "required": ["file"],
    "additionalProperties": False,
}
AUDIO: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "application/octet-stream": {"schema": _FILE},
            "audio/*": {"schema": _FILE},
            "multipart/form-data": {"schema": _FORM},
        },
    }
}
"""A body that is a file, or a form with one."""
