"""The countermeasures: a waveform (batch, time) in, logits (batch, 2) out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from asvspoof_cm.models.aasist import AASIST, AASISTConfig
from asvspoof_cm.models.base import Countermeasure
from asvspoof_cm.models.encoder import Encoder, EncoderConfig
from asvspoof_cm.models.rawnet2 import RawNet2, RawNet2Config
from asvspoof_cm.models.tfparn import TFPARN, TFPARNConfig

__all__ = [
    "AASIST",
    "AASISTConfig",
    "Countermeasure",
    "Encoder",
    "EncoderConfig",
    "RawNet2",
    "RawNet2Config",
    "TFPARN",
    "TFPARNConfig",
    "build_model",
    "model_name",
]

_MODELS: dict[str, tuple[Callable[[Any], Countermeasure], type[Any]]] = {
    "TFPARN": (TFPARN, TFPARNConfig),
    "AASIST": (AASIST, AASISTConfig),
    "RawNet2": (RawNet2, RawNet2Config),
    "Encoder": (Encoder, EncoderConfig),
}


def model_name(model: Countermeasure) -> str:
    """Return the name that `build_model` builds a model of the same class from.

    Example:
        >>> model_name(TFPARN())
        'TFPARN'
    """
    for name, (model_class, _) in _MODELS.items():
        if type(model) is model_class:
            return name
    raise TypeError(
        f"`model` must be one of {', '.join(_MODELS)}, not a subclass; got {type(model).__name__}."
    )


def build_model(name: str, config: Mapping[str, Any] | None = None) -> Countermeasure:
    """Return a new model from its name and the plain values of its configuration.

    Example:
        >>> type(build_model("TFPARN", {"pooling": "mean"})).__name__
        'TFPARN'
    """
    if name not in _MODELS:
        raise ValueError(f"`name` must be one of {', '.join(_MODELS)}; got {name!r}.")
    model_class, config_class = _MODELS[name]
    values = dict(config or {})
    unknown = sorted(values.keys() - {field.name for field in fields(config_class)})
    if unknown:
        raise ValueError(
            f"`config` of {name} has no field {', '.join(unknown)}; it may come from a newer "
            "version of asvspoof-cm."
        )
    return model_class(config_class(**values))
