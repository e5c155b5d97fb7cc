"""The six systems of the paper, each one object: model, objective and recipe."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch

from asvspoof_cm.augmentation.recipes import augmentation, extra_spoof
from asvspoof_cm.models import TFPARN, Countermeasure, build_model
from asvspoof_cm.training.objective import Objective
from asvspoof_cm.training.schedule import linear_scaling
from asvspoof_cm.utils.checks import check_choice

__all__ = ["MODELS", "SEEDS", "Recipe", "System", "model_system", "system"]

SEEDS = (42, 63, 2026)
"""The seeds of the paper's tables."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to optimise; the defaults are the paper's (section V-A).

    Attributes:
        n_epochs: The most epochs.
        batch_size: Utterances a step, over all processes together.
        optimizer: "adamw" or "adam" (weight decay added to the gradient).
        lr: The learning rate after the warm-up.
        weight_decay: Of the optimiser.
        warmup_epochs: Of linear warm-up.
        final_lr: Where the cosine ends.
        patience: Epochs without a significant decrease of Dev minDCF before stopping.
        tolerance: What counts as significant.
        crop_s: The length of training and validation crops, in seconds.
        augmentation: A name that `augmentation` knows.
        extra_spoof: Changed copies to add as spoof, a bona fide row.
        extra_spoof_kind: How they are changed: a name that `extra_spoof` knows.
        mask: Mask bands and frames of a TFPARN's features, with the defaults of `LogMelMask`.
        residual_scale: Factor on the first weights of a TFPARN's residual blocks; see
            `TFPARN.scale_residuals`.
        clip_norm: The largest norm of the gradient; None leaves it.
        n_accumulate: Batches whose gradients are averaged before a step.
        precision: "fp32", or "bf16" for autocast.
        compile: Use torch.compile.

    Example:
        >>> Recipe(n_epochs=3).optimizer
        'adamw'
    """

    n_epochs: int = 100
    batch_size: int = 64
    optimizer: Literal["adamw", "adam"] = "adamw"
    lr: float = 1e-4
    weight_decay: float = 1e-2
    warmup_epochs: float = 5.0
    final_lr: float = 1e-6
    patience: int = 15
    tolerance: float = 1e-4
    crop_s: float = 4.0
    augmentation: str = "tfparn"
    extra_spoof: float = 0.0
    extra_spoof_kind: str = "segments"
    mask: bool = False
    residual_scale: float = 1.0
    clip_norm: float | None = None
    n_accumulate: int = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("n_epochs", "batch_size", "patience", "n_accumulate"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be a whole number of at least 1; got {value!r}.")
        positive = {
            "lr": self.lr,
            "final_lr": self.final_lr,
            "crop_s": self.crop_s,
            "residual_scale": self.residual_scale,
        }
        if self.clip_norm is not None:
            positive["clip_norm"] = self.clip_norm
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be positive and finite; got {value}.")
        if self.lr < self.final_lr:
            raise ValueError(
                f"`lr` must not be below `final_lr`; got {self.lr} and {self.final_lr}."
            )
        for name in ("weight_decay", "warmup_epochs", "tolerance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must not be negative; got {getattr(self, name)}.")
        augmentation(self.augmentation)
        extra_spoof(self.extra_spoof_kind)
        if not 0 <= self.extra_spoof <= 1:
            raise ValueError(f"`extra_spoof` must lie in [0, 1]; got {self.extra_spoof}.")
        if self.mask and self.compile:
            raise ValueError("`mask` must be False with `compile`, which can't trace the masks.")
        check_choice("optimizer", self.optimizer, ("adamw", "adam"))
        check_choice("precision", self.precision, ("fp32", "bf16"))

    def make_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser of the model's trainable parameters."""
        kind = torch.optim.AdamW if self.optimizer == "adamw" else torch.optim.Adam
        trainable = [p for p in model.parameters() if p.requires_grad]
        return kind(trainable, lr=self.lr, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class System:
    """A model, its objective and its recipe; plain values that survive JSON.

    Attributes:
        name: What reports call it.
        model: The name of a model.
        model_config: Fields of its configuration that differ from the defaults.
        objective: What to minimise, as `Objective` reads it; the default is TFPARN's.
        recipe: How to optimise.

    Example:
        >>> System.from_json(system(6).to_json()) == system(6)
        True
    """

    name: str
    model: str
    model_config: dict[str, Any] = field(default_factory=dict)
    objective: str = "focal + 0.3 * pairwise"
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        objective = Objective(self.objective)
        if objective.is_of_cosines and self.model != "CosineHead":
            raise ValueError(
                f"`objective` {objective.text} is for cosines; {self.model} has other logits. Take "
                f'the model "CosineHead" with {{"model": "{self.model}"}} as its configuration.'
            )
        object.__setattr__(self, "objective", objective.text)

    def build(self, seed: int) -> Countermeasure:
        """Return a new model with weights drawn from `seed`, those of its encoders published.

        The global generator is untouched.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = build_model(self.model, self.model_config)
        model.load_published()
        if self.recipe.mask and not isinstance(model, TFPARN):
            raise ValueError(f"`mask` must be False for {self.model}, which is no TFPARN.")
        if self.recipe.residual_scale != 1.0:
            if not isinstance(model, TFPARN):
                raise ValueError(
                    f"`residual_scale` must be 1 for {self.model}, which is no TFPARN; got "
                    f"{self.recipe.residual_scale}."
                )
            model.scale_residuals(self.recipe.residual_scale)
        return model

    def with_recipe(self, **changes: Any) -> System:
        """Return this system with some fields of its recipe replaced."""
        return replace(self, recipe=replace(self.recipe, **changes))

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
MODELS = ("tfparn", "aasist", "rawnet2", "resnet18", "resnet34", "lcnn", "encoder")
"""The names that `model_system` knows."""


def model_system(name: str, *, batch_size: int = 64, **model_config: Any) -> System:
    """Return a system of a model by name, with system 6's objective and recipe.

    Args:
        name: One of `MODELS`.
        batch_size: Utterances a step.
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
    if name not in _NAMED:
        return replace(
            system(1 if name == "aasist" else 2, batch_size=batch_size), model_config=model_config
        )
    model, config, lr = _NAMED[name]
    base = system(6, batch_size=batch_size)
    recipe = replace(base.recipe, lr=linear_scaling(lr, 64, batch_size))
    config = {**config, **model_config}
    return replace(base, name=name, model=model, model_config=config, recipe=recipe)


def system(number: int, *, batch_size: int = 64) -> System:
    """Return one of the paper's six systems (its table V).

    1 AASIST, 2 RawNet2, 3 TFPARN with cross-entropy and mean pooling, 4 adds the pairwise ranking
    loss, 5 the focal loss, 6 attention pooling. Learning rates follow the linear scaling rule
    from each model's reference recipe.

    Args:
        number: 1 to 6.
        batch_size: Utterances a step; 64 in the paper.

    Note:
        The reference recipes of the baselines have no warm-up; the paper's schedule is used for all
        systems, down to 5e-6 for AASIST as in its recipe and to 1e-6 for the others.

    Example:
        >>> system(3).objective, system(6).model_config
        ('cross_entropy', {'pooling': 'attention'})
        >>> system(2).recipe.lr
        5e-05
    """
    cross_entropy, ranked = "cross_entropy", "focal + 0.3 * pairwise"
    if number == 1:
        recipe = Recipe(
            optimizer="adam",
            lr=linear_scaling(1e-4, 24, batch_size),
            weight_decay=1e-4,
            final_lr=5e-6,
            batch_size=batch_size,
        )
        return System(name="1 AASIST", model="AASIST", objective=cross_entropy, recipe=recipe)
    if number == 2:
        recipe = Recipe(
            optimizer="adam",
            lr=linear_scaling(1e-4, 128, batch_size),
            weight_decay=1e-4,
            batch_size=batch_size,
        )
        return System(name="2 RawNet2", model="RawNet2", objective=cross_entropy, recipe=recipe)
    variants = {
        3: ("3 TFPARN, CE", cross_entropy, "mean"),
        4: ("4 TFPARN, CE + pairwise", "cross_entropy + 0.3 * pairwise", "mean"),
        5: ("5 TFPARN, focal + pairwise", ranked, "mean"),
        6: ("6 TFPARN, focal + pairwise, attention", ranked, "attention"),
    }
    if number not in variants:
        raise ValueError(f"`number` must be one of the paper's systems, 1 to 6; got {number}.")
    name, objective, pooling = variants[number]
    recipe = Recipe(lr=linear_scaling(1e-4, 64, batch_size), batch_size=batch_size)
    return System(
        name=name,
        model="TFPARN",
        model_config={"pooling": pooling},
        objective=objective,
        recipe=recipe,
    )
