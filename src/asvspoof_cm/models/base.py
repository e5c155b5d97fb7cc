"""The contract of a model, whose subclasses are registered by name, and where weights are found."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from asvspoof_cm._util import check_choice, check_float
from asvspoof_cm.audio import InputSettings


class Countermeasure(nn.Module, ABC):
    """A model that tells human from synthetic speech.

    Calling it maps waveforms (batch, time) to logits (batch, 2), index 0 spoof and 1 bonafide. A
    subclass has `embed`, and a module `classifier` or a method `classify`. It is built as
    ``Model(config)`` from its `config_type`, a frozen dataclass of plain values with defaults, and
    registered by its name when it is defined: checkpoints, training, scoring and export then take
    it like the models of the package.

    Attributes:
        config: The configuration that the model was built from.
        input: What it needs to know about its input.
        meta: What else a checkpoint says about the model: its training, its calibration.
        stored_config: The configuration as its checkpoint has it; None for a new model.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> @dataclass(frozen=True, kw_only=True)
        ... class TinyConfig:
        ...     d: int = 4
        >>> class Tiny(Countermeasure):
        ...     config_type = TinyConfig
        ...     def __init__(self, config=None):
        ...         super().__init__()
        ...         self.config = config or TinyConfig()
        ...         self.linear = torch.nn.Linear(1, self.config.d)
        ...         self.classifier = torch.nn.Linear(self.config.d, 2)
        ...     def embed(self, waveform):
        ...         return self.linear(waveform.std(dim=1, keepdim=True))
        >>> build_model("Tiny", {"d": 8})(torch.randn(2, 16000)).shape
        torch.Size([2, 2])
    """

    config_type: ClassVar[type[Any]]
    any_length: ClassVar[bool] = True
    """Whether an exported graph takes crops of any length."""
    all_parameters_used: bool = True
    """Whether each trainable parameter gets a gradient in every step."""
    added_fields: ClassVar[Mapping[str, Any]] = {}
    """The values that fields had before they existed, where that is not the default."""
    removed_fields: ClassVar[Mapping[str, Any]] = {}
    """The values of fields that are gone with which a stored configuration still loads."""

    config: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        known = _REGISTRY.get(cls.__name__)
        # A cell of a notebook that is run again defines the class again.
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(
                f"a model must have a name of its own; {cls.__name__} of {known.__module__} is "
                f"registered already. Rename that of {cls.__module__}."
            )
        _REGISTRY[cls.__name__] = cls

    def __init__(self) -> None:
        super().__init__()
        self.input = InputSettings()
        self.meta: dict[str, Any] = {}
        self.stored_config: dict[str, Any] | None = None

    @abstractmethod
    def embed(self, waveform: Tensor) -> Tensor:
        """Return utterance vectors (batch, d) of waveforms (batch, time)."""

    def classify(self, embedding: Tensor) -> Tensor:
        """Return logits (batch, 2) of utterance vectors (batch, d)."""
        head: Any = getattr(self, "classifier", None)
        if head is None:
            raise TypeError(f"{type(self).__name__} must have `classifier` or `classify`.")
        return head(embedding)

    def forward(self, waveform: Tensor) -> Tensor:
        """Return logits (batch, 2) of waveforms (batch, time); index 0 spoof, 1 bonafide."""
        return self.classify(self.embed(waveform))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trainable parameters in groups for the optimiser.

        A group has ``params`` and may have ``lr_scale``, a factor on the recipe's learning rate, or
        a ``weight_decay`` of its own.
        """
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def load_published(self) -> None:
        """Load the published weights that training begins with, where a model has any."""


_REGISTRY: dict[str, type[Countermeasure]] = {}


def model_names() -> tuple[str, ...]:
    """Return the names that `build_model` knows: every `Countermeasure` that has been imported."""
    return tuple(name for name, kind in _REGISTRY.items() if not inspect.isabstract(kind))


def build_model(name: str, config: Mapping[str, Any] | None = None) -> Countermeasure:
    """Return a new model from its name and the plain values of its configuration.

    Example:
        >>> type(build_model("TFPARN", {"pooling": "mean"})).__name__
        'TFPARN'
    """
    built = build_config(name, config or {})
    kind: Any = _REGISTRY[name]
    return kind(built)


def build_config(name: str, values: Mapping[str, Any]) -> Any:
    """Return the configuration of a model by name, from its plain values."""
    if name not in model_names():
        raise ValueError(
            f"`name` must be one of {', '.join(model_names())}; got {name!r}. A model of your own "
            "is known once the module that defines it is imported."
        )
    config_type = _config_type(_REGISTRY[name])
    unknown = sorted(values.keys() - {field.name for field in fields(config_type)})
    if unknown:
        raise ValueError(
            f"`config` of {name} has no field {', '.join(unknown)}; it may come from a newer "
            "version of asvspoof-cm."
        )
    return config_type(**values)


def check_config(config: Any) -> None:
    """Raise unless whole numbers, choices and rates of dropout in a configuration are possible.

    Lists, which JSON has in place of tuples, become tuples.
    """
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, list):
            object.__setattr__(config, name, tuple(value))
        if kind is int and (type(value) is not int or value < 1):
            raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}.")
        if kind is bool and type(value) is not bool:
            raise ValueError(f"`{name}` must be True or False; got {value!r}.")
        if get_origin(kind) is Literal:
            check_choice(name, value, get_args(kind))
        if name.endswith("dropout") and not 0 <= value < 1:
            raise ValueError(f"`{name}` must lie in [0, 1); got {value!r}.")


def complete_config(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with the values that its missing fields had then."""
    kind = _REGISTRY.get(name, Countermeasure)
    removed = kind.removed_fields
    left = {k: v for k, v in config.items() if k not in removed or v != removed[k]}
    return {**kind.added_fields, **left}


def describe_model(model: Countermeasure) -> tuple[str, dict[str, Any]]:
    """Return the name and the plain values from which `build_model` builds such a model."""
    if not isinstance(model, Countermeasure):
        raise TypeError(
            f"`model` must be a Countermeasure; got {type(model).__name__}. Derive its class from "
            "asvspoof_cm.models.Countermeasure."
        )
    kind = type(model)
    if _REGISTRY.get(kind.__name__) is not kind:
        raise TypeError(
            f"`model` is of an older class {kind.__name__}, which was defined again since. Build "
            "the model anew."
        )
    if not isinstance(model.config, _config_type(kind)):
        raise TypeError(
            f"`model.config` must be a {_config_type(kind).__name__}, its class's `config_type`; "
            f"got {type(model.config).__name__}."
        )
    return kind.__name__, asdict(model.config)


def _config_type(kind: type[Countermeasure]) -> Any:
    found = getattr(kind, "config_type", None)
    if not is_dataclass(found):
        raise TypeError(f"{kind.__name__} must name its configuration: config_type = a dataclass.")
    return found


def find_weights(
    name: str, path: Path | None, *, parts: Sequence[str], patterns: Iterable[str], advice: str
) -> list[Path]:
    """Return the file of an encoder's weights, `path` where it is given, or its parts.

    They are looked for as ``package/path`` in installed packages, then by the globs `patterns` in
    the folder ASVSPOOF_CM_WEIGHTS and in the user's cache.
    """
    if path is not None:
        return [path]
    installed = []
    for package, _, rest in (part.partition("/") for part in parts):
        spec = find_spec(package)
        folders = (spec.submodule_search_locations if spec is not None else None) or ()
        installed += [path for path in (Path(f) / rest for f in folders) if path.is_file()][:1]
    if parts and len(installed) == len(parts):
        return installed
    chosen = os.environ.get("ASVSPOOF_CM_WEIGHTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (*([Path(chosen)] if chosen else []), cache / "asvspoof-cm", cache):
        for pattern in patterns:
            if found := sorted(folder.glob(pattern)):
                return found[:1]
    raise FileNotFoundError(
        f"No weights of {name} were found. {advice}, put the file in {cache / 'asvspoof-cm'}, or "
        "set ASVSPOOF_CM_WEIGHTS to its folder."
    )


def check_waveform_batch(waveform: Tensor, n_least: int) -> None:
    """Raise unless `waveform` is a float tensor (batch, time) of at least `n_least` samples."""
    if waveform.dim() != 2:
        hint = " Add a batch axis: waveform[None]." if waveform.dim() == 1 else ""
        raise ValueError(
            f"`waveform` must have shape (batch, time); got {tuple(waveform.shape)}.{hint}"
        )
    if waveform.shape[0] == 0:  # len() would fix the batch of a traced graph
        raise ValueError("`waveform` must hold at least one row; got a batch of none.")
    check_float(waveform)
    if waveform.shape[-1] < n_least:
        raise ValueError(
            f"`waveform` must be at least {n_least} samples long; got {waveform.shape[-1]}. "
            "Repeat it first: fix_length(waveform)."
        )
