"""Systems as plain values, model, objective and recipe in one: the paper's six, and others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from asvspoof_cm._util import check_positive, check_positive_finite
from asvspoof_cm.models import TFPARN, Countermeasure, LogMelMask, build_model
from asvspoof_cm.models.base import describe_model
from asvspoof_cm.training.objective import Objective
from asvspoof_cm.training.recipe import Recipe, linear_scaling
from asvspoof_cm.training.transforms import Augmented

SEEDS = (42, 63, 2026)
"""The seeds of the paper's tables."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A model, its objective, its recipe and what it hears; plain values that survive JSON.

    Attributes:
        name: What reports call it.
        model: The name of a model.
        model_config: Fields of its configuration that differ from the defaults.
        objective: What to minimise, as `Objective` reads it; the default is TFPARN's.
        recipe: How to optimise.
        transform: What is done to training batches.
        batch_size: Utterances per step, over all processes together.
        crop_s: Length of training and validation crops, in seconds.
        mask: Mask bands and frames of a TFPARN's features, with the defaults of `LogMelMask`.
        residual_scale: Factor on the initial weights of the last layer of each residual block of a
            TFPARN; see `TFPARN.scale_residuals`.
    """

    name: str
    model: str
    model_config: dict[str, Any] = field(default_factory=dict)
    objective: str = "focal + 0.3 * pairwise"
    recipe: Recipe = field(default_factory=Recipe)
    transform: Augmented = field(default_factory=Augmented)
    batch_size: int = 64
    crop_s: float = 4.0
    mask: bool = False
    residual_scale: float = 1.0

    def __post_init__(self) -> None:
        objective = Objective(self.objective)
        if objective.is_of_cosines and self.model != "CosineHead":
            raise ValueError(
                f"`objective` {objective.text} is for cosines; {self.model} has other logits. Take "
                f'the model "CosineHead" with {{"model": "{self.model}"}} as its configuration.'
            )
        object.__setattr__(self, "objective", objective.text)
        check_positive(self, "batch_size")
        check_positive_finite(crop_s=self.crop_s, residual_scale=self.residual_scale)

    def build(self, seed: int, *, published: bool = True) -> Countermeasure:
        """Return a new model with weights drawn from `seed`, those of its encoders published.

        `published` False leaves encoders with random weights, for a checkpoint to replace.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = build_model(self.model, self.model_config)
        if published:
            model.load_published()
        for name, default in (("mask", False), ("residual_scale", 1.0)):
            value = getattr(self, name)
            if value != default and not isinstance(model, TFPARN):
                raise ValueError(
                    f"`{name}` must be {default} for {self.model}, which is no TFPARN; got {value}."
                )
        model.input = replace(model.input, crop_s=self.crop_s)
        if isinstance(model, TFPARN):
            model.feature_mask = LogMelMask() if self.mask else None
            if self.residual_scale != 1.0:
                model.scale_residuals(self.residual_scale)
        return model

    def with_changes(self, **changes: Any) -> System:
        """Return this system with some of its fields, its recipe's or its transform's replaced.

        Example:
            >>> changed = system(6).with_changes(crop_s=1.0, n_epochs=3, augmentation="none")
            >>> changed.crop_s, changed.recipe.n_epochs, changed.transform.augmentation
            (1.0, 3, 'none')
        """
        parts: dict[str, Any] = {"recipe": self.recipe, "transform": self.transform}
        own = {entry.name for entry in fields(self)}
        for name, part in parts.items():
            known = {entry.name for entry in fields(part)} - own
            of_part = {key: changes.pop(key) for key in known & changes.keys()}
            if of_part:
                changes[name] = replace(changes.get(name, part), **of_part)
        unknown = changes.keys() - own
        if unknown:
            raise TypeError(
                f"`changes` must be fields of a system, a recipe or a transform; got "
                f"{', '.join(sorted(unknown))}."
            )
        return replace(self, **changes)

    def to_json(self) -> str:
        """Return the system as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> System:
        """Return the system that `to_json` wrote."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.keys() != {entry.name for entry in fields(cls)}:
            raise ValueError("`text` must be what System.to_json wrote; it has other fields.")
        try:
            values["recipe"] = Recipe(**values["recipe"])
            values["transform"] = Augmented(**values["transform"])
        except TypeError as error:
            raise ValueError(f"`text` must be what System.to_json wrote: {error}.") from error
        return cls(**values)


# The models by name: class, configuration and the learning rate at batch size 64.
_NAMED: dict[str, tuple[str, dict[str, Any], float]] = {
    "tfparn": ("TFPARN", {}, 1e-4),
    "resnet18": ("ResNet", {"n_blocks": [2, 2, 2, 2]}, 1e-3),
    "resnet34": ("ResNet", {"n_blocks": [3, 4, 6, 3]}, 1e-3),
    "lcnn": ("LCNN", {}, 3e-4),
    "encoder": ("Encoder", {}, 1e-3),
}
MODELS = (*_NAMED, "aasist", "rawnet2")
"""The names that `model_system` knows."""


def model_system(name: str, *, batch_size: int = 64, **model_config: Any) -> System:
    """Return a system of a model by name, with system 6's objective and recipe.

    Args:
        name: One of `MODELS`.
        batch_size: Utterances per step.
        **model_config: Fields of the model's configuration.

    Note:
        "aasist" and "rawnet2" are the paper's systems 1 and 2. LCNN's learning rate is the
        published one; those of ResNet and Encoder, 1e-3, are ours, and none was searched for.

    Example:
        >>> model_system("encoder", encoder="whisper-base", n_layers=3).model_config
        {'encoder': 'whisper-base', 'n_layers': 3}
        >>> model_system("resnet34").recipe.lr
        0.001
    """
    if name not in MODELS:
        raise ValueError(f"`name` must be one of {', '.join(MODELS)}; got {name!r}.")
    base = system({"aasist": 1, "rawnet2": 2}.get(name, 6), batch_size=batch_size)
    if name not in _NAMED:
        return replace(base, model_config=model_config)
    model, config, lr = _NAMED[name]
    recipe = replace(base.recipe, lr=linear_scaling(lr, 64, batch_size))
    config = {**config, **model_config}
    return replace(base, name=name, model=model, model_config=config, recipe=recipe)


def fine_tuning(
    model: Countermeasure, *, freeze: Any = None, batch_size: int = 16, **changes: Any
) -> System:
    """Return a system that trains a model further, gently: on little data, in minutes.

    Ten epochs at a learning rate of 2e-4 for an `Encoder` and 2e-5 for other models, whatever the
    batch size, crops of the model's own length, and the augmentation "channels". Give
    `train_system` the checkpoint as `start_from`.

    Args:
        model: A trained model, such as ``load_pretrained()``.
        freeze: What an `Encoder` does not train, as in `EncoderConfig`; None is what it was.
        batch_size: Utterances per step.
        **changes: What to change; see `System.with_changes`.

    Note:
        The recipe is ours, and none of its values was searched for.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> tuned = fine_tuning(TFPARN(), n_epochs=3)
        >>> tuned.model, tuned.recipe.n_epochs, tuned.crop_s
        ('TFPARN', 3, 4.0)
    """
    name, config = describe_model(model)
    config = json.loads(json.dumps(config))
    if freeze is not None:
        if "freeze" not in config:
            raise ValueError(f"`freeze` must be None for {name}, which freezes nothing.")
        config["freeze"] = freeze
    return System(
        name=f"{name}, fine-tuned",
        model=name,
        model_config=config,
        recipe=Recipe(n_epochs=10, lr=2e-4 if name == "Encoder" else 2e-5, warmup_epochs=0.5),
        transform=Augmented(augmentation="channels"),
        batch_size=batch_size,
        crop_s=model.input.crop_s,
    ).with_changes(**changes)


def system(number: int, *, batch_size: int = 64) -> System:
    """Return one of the paper's six systems (its table V).

    1 AASIST, 2 RawNet2, 3 TFPARN with cross-entropy and mean pooling, 4 adds the pairwise ranking
    loss, 5 the focal loss, 6 attention pooling. Learning rates follow the linear scaling rule
    from each model's reference recipe.

    Args:
        number: 1 to 6.
        batch_size: Utterances per step; 64 in the paper.

    Note:
        The reference recipes of the baselines have no warm-up; the paper's schedule is used for all
        systems, down to 5e-6 for AASIST as in its recipe and to 1e-6 for the others.

    Example:
        >>> system(3).objective, system(6).model_config
        ('cross_entropy', {'pooling': 'attention'})
        >>> system(2).recipe.lr
        5e-05
    """
    classified, ranked = "cross_entropy", "focal + 0.3 * pairwise"
    name, model, pooling, objective, reference_batch = {
        1: ("1 AASIST", "AASIST", None, classified, 24),
        2: ("2 RawNet2", "RawNet2", None, classified, 128),
        3: ("3 TFPARN, CE", "TFPARN", "mean", classified, 64),
        4: ("4 TFPARN, CE + pairwise", "TFPARN", "mean", "cross_entropy + 0.3 * pairwise", 64),
        5: ("5 TFPARN, focal + pairwise", "TFPARN", "mean", ranked, 64),
        6: ("6 TFPARN, focal + pairwise, attention", "TFPARN", "attention", ranked, 64),
    }.get(number, ("", "", None, "", 0))
    if not name:
        raise ValueError(f"`number` must be one of the paper's systems, 1 to 6; got {number}.")
    recipe = Recipe(lr=linear_scaling(1e-4, reference_batch, batch_size))
    if pooling is None:
        recipe = replace(recipe, optimizer="adam", weight_decay=1e-4)
    if number == 1:
        recipe = replace(recipe, final_lr=5e-6)
    return System(
        name=name,
        model=model,
        model_config={} if pooling is None else {"pooling": pooling},
        objective=objective,
        recipe=recipe,
        batch_size=batch_size,
    )
