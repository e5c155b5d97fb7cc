"""Model, loss and recipe by name: the paper's six systems, other models, training further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from asvspoof_cm._util import check_between, check_choice
from asvspoof_cm.augmentation import Augmentation, augmentation
from asvspoof_cm.data.protocol import OFFICIAL_COUNTS
from asvspoof_cm.losses import LOSSES, cross_entropy_loss
from asvspoof_cm.models import Countermeasure, TFPARNConfig, build_model
from asvspoof_cm.models.base import describe_model
from asvspoof_cm.training.loop import Loss
from asvspoof_cm.training.recipe import Recipe

SEEDS = (42, 63, 2026)
"""The seeds of the paper's tables."""

BATCH_SIZE = 64

# Of each system its name, its model, its pooling, its loss, and the batch size for which its model
# was published with a learning rate of 1e-4.
_SYSTEMS: dict[int, tuple[str, str, str | None, str, int]] = {
    1: ("1 AASIST", "AASIST", None, "cross_entropy", 24),
    2: ("2 RawNet2", "RawNet2", None, "cross_entropy", 128),
    3: ("3 TFPARN, CE", "TFPARN", "mean", "cross_entropy", 64),
    4: ("4 TFPARN, CE + pairwise", "TFPARN", "mean", "cross_entropy_pairwise", 64),
    5: ("5 TFPARN, focal + pairwise", "TFPARN", "mean", "focal_pairwise", 64),
    6: ("6 TFPARN, focal + pairwise, attention", "TFPARN", "attention", "focal_pairwise", 64),
}
_AUTHORS_LR = {"AASIST": 2.667e-4, "RawNet2": 5e-5, "TFPARN": 0.667e-4}  # at a batch size of 64

# Other models by name: the class, its configuration and a learning rate at a batch size of 64.
_NAMED: dict[str, tuple[str, dict[str, Any], float]] = {
    "tfparn": ("TFPARN", {}, 1e-4),
    "aasist": ("AASIST", {}, 2.667e-4),
    "rawnet2": ("RawNet2", {}, 5e-5),
    "resnet18": ("ResNet", {"n_blocks": [2, 2, 2, 2]}, 1e-3),
    "resnet34": ("ResNet", {"n_blocks": [3, 4, 6, 3]}, 1e-3),
    "lcnn": ("LCNN", {}, 3e-4),
    "encoder": ("Encoder", {}, 1e-3),
}
MODELS = tuple(_NAMED)
"""The names that `model_system` knows beside those of the models' classes."""


class System(NamedTuple):
    """What `fit` needs; `about` says the same in names, for `fit`'s `known`."""

    model: Countermeasure
    loss: Loss
    recipe: Recipe
    augment: Augmentation | None
    about: dict[str, Any]


def system(
    number: int,
    *,
    version: Literal["text", "authors"] = "text",
    config: Mapping[str, Any] | None = None,
    seed: int = 42,
    batch_size: int = BATCH_SIZE,
    counts: Mapping[str, int] = OFFICIAL_COUNTS["train"],
) -> System:
    """Return one of the paper's six systems (its table V).

    1 AASIST, 2 RawNet2, 3 TFPARN with cross-entropy and mean pooling, 4 adds the pairwise ranking
    loss, 5 the focal loss, 6 attention pooling. Learning rates are in proportion to the batch size.

    Args:
        number: 1 to 6.
        version: "text" is what the paper says and, where it is silent, what its authors' code does;
            "authors" is that code throughout: see the table in docs/differences.md.
        config: Fields of the model's configuration that differ.
        seed: The seed of the initial weights.
        batch_size: Utterances per step; 64 in the paper.
        counts: Utterances of each class in training, as `Protocol.counts` says, by which the
            authors weigh the classes in RawNet2's loss.

    Example:
        >>> model, loss, recipe, augment, about = system(6)
        >>> type(model).__name__, loss.__name__, recipe.lr, type(augment).__name__
        ('TFPARN', 'focal_pairwise_loss', 0.0001, 'TFPARNAugment')
        >>> system(2, version="authors").recipe.optimizer
        'adamw'
    """
    check_between("number", number, 1, len(_SYSTEMS))
    check_choice("version", version, ("text", "authors"))
    name, kind, pooling, loss_name, published_batch = _SYSTEMS[number]
    values = {**({"pooling": pooling} if pooling else {}), **(config or {})}
    loss, is_authors = LOSSES[loss_name], version == "authors"
    recipe = Recipe(lr=1e-4 * batch_size / published_batch)
    if is_authors:
        recipe = Recipe(lr=_AUTHORS_LR[kind] * batch_size / BATCH_SIZE, by_epoch=True)
        if kind == "TFPARN":
            values = asdict(TFPARNConfig.authors(**values))
        if kind == "RawNet2":
            most = max(counts.values())
            weights = (most / counts["spoof"], most / counts["bonafide"])
            loss = partial(cross_entropy_loss, class_weights=weights)
    elif kind != "TFPARN":
        final_lr = 5e-6 if kind == "AASIST" else recipe.final_lr
        recipe = replace(recipe, optimizer="adam", weight_decay=1e-4, final_lr=final_lr)
    model = _new_model(kind, values, seed)
    if is_authors:
        model.input = replace(model.input, normalization="utterance")
    about = {"name": name, "version": version, "loss": loss_name, "augment": "tfparn"}
    return System(model, loss, recipe, augmentation("tfparn"), about)


def model_system(
    model: str | Countermeasure,
    config: Mapping[str, Any] | None = None,
    *,
    loss: str = "focal_pairwise",
    seed: int = 42,
    batch_size: int = BATCH_SIZE,
) -> System:
    """Return what `fit` needs to train a new model by name, or a trained one further.

    A new model gets the paper's recipe. A trained one gets a gentle recipe for little data: ten
    epochs at a learning rate of 2e-4 for an `Encoder` and 2e-5 for other models, whatever the batch
    size, and the augmentation "channels".

    Args:
        model: A name, one of `MODELS` or that of a class; or a trained model, such as
            ``load_pretrained()``.
        config: Fields of the model's configuration that differ: from the defaults or, for a trained
            model, from its own, such as what an `Encoder` does not train, ``{"freeze": 3}``.
        loss: One of `LOSSES`.
        seed: The seed of the initial weights.
        batch_size: Utterances per step.

    Example:
        >>> model, loss, recipe, augment, about = model_system("resnet18")
        >>> type(model).__name__, recipe.lr, about["name"]
        ('ResNet', 0.001, 'resnet18')
    """
    check_choice("loss", loss, tuple(LOSSES))
    if isinstance(model, Countermeasure):
        kind, known = describe_model(model)
        name, augment = f"{kind}, trained further", "channels"
        recipe = Recipe(n_epochs=10, lr=2e-4 if kind == "Encoder" else 2e-5, warmup_epochs=0.5)
        begun = model
        if config:
            with torch.random.fork_rng(devices=[]):
                begun = build_model(kind, {**known, **config})
            begun.load_state_dict(model.state_dict())
            begun.input = model.input
    else:
        name, augment = model, "tfparn"
        kind, defaults, lr = _NAMED.get(model, (model, {}, 1e-4))
        recipe = Recipe(lr=lr * batch_size / BATCH_SIZE)
        begun = _new_model(kind, {**defaults, **(config or {})}, seed)
    about = {"name": name, "version": "-", "loss": loss, "augment": augment}
    return System(begun, LOSSES[loss], recipe, augmentation(augment), about)


def _new_model(kind: str, config: Mapping[str, Any], seed: int) -> Countermeasure:
    """Return a model with weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = build_model(kind, config)
        model.load_published()
    return model
