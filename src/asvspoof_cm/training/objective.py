"""Losses by name, weighed and joined: what a recipe, a command and a run folder write down."""

from __future__ import annotations

import ast
import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from asvspoof_cm.labels import BONAFIDE, SPOOF
from asvspoof_cm.losses import LOSSES


class Objective(nn.Module):
    """A weighted sum of losses, written as text: ``Objective("focal + 0.3 * pairwise")``.

    Args:
        text: Terms joined by ``+``, each the name of a loss in `LOSSES`, with settings in brackets
            where they differ from the defaults, and a weight before it:
            ``"focal(gamma=1) + 0.3 * partial_auc(fraction=0.1)"``.

    Attributes:
        text: The same, written in one way, so that equal objectives have equal texts.

    Example:
        >>> from asvspoof_cm import focal_pairwise_loss
        >>> logits, labels = torch.tensor([[2.0, -1.0], [0.5, 0.5]]), torch.tensor([0, 1])
        >>> Objective("focal+.3*pairwise")(logits, labels) == focal_pairwise_loss(logits, labels)
        tensor(True)
        >>> Objective("focal+.3*pairwise").text
        'focal + 0.3 * pairwise'
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.terms = tuple(_parse(text))
        self.text = " + ".join(_write(*term) for term in self.terms)
        self(torch.zeros(2, 2), torch.tensor([SPOOF, BONAFIDE]))  # checks the settings

    @property
    def is_of_cosines(self) -> bool:
        """Whether a loss with margins is among the terms: it is for the logits of a CosineHead."""
        return bool(self.head)

    @property
    def head(self) -> dict[str, Any]:
        """What a loss with margins asks of its CosineHead: the number of vectors, its scale."""
        head: dict[str, Any] = {}
        for _, name, settings in self.terms:
            if name in _OF_COSINES:
                head["n_vectors"] = 1 if name == "oc_softmax" else 2
                head |= {key: value for key, value in settings.items() if key == "scale"}
        return head

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum for logits (batch, 2) and labels (batch,)."""
        total = torch.zeros((), device=logits.device)
        for weight, name, settings in self.terms:
            total = total + weight * LOSSES[name](logits, labels, **settings)
        return total

    def extra_repr(self) -> str:
        """Show the text."""
        return repr(self.text)


_OF_COSINES = ("am_softmax", "oc_softmax", "p2sgrad")


def _parse(text: str) -> list[tuple[float, str, dict[str, Any]]]:
    """Return (weight, name, settings) of each term."""
    try:
        return [_term(node) for node in _summands(ast.parse(text.strip(), mode="eval").body)]
    except (SyntaxError, TypeError) as error:
        raise ValueError(
            f'`text` must be losses joined by "+", such as "focal + 0.3 * pairwise"; got {text!r}.'
        ) from error


def _summands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _summands(node.left) + _summands(node.right)
    return [node]


def _term(node: ast.expr) -> tuple[float, str, dict[str, Any]]:
    weight = 1.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        weight, node = _number(node.left), node.right
    settings = {}
    if isinstance(node, ast.Call) and not node.args:
        settings = {str(keyword.arg): _number(keyword.value) for keyword in node.keywords}
        node = node.func
    if not isinstance(node, ast.Name):
        raise TypeError("a term is a name, or a number times a name")
    if node.id not in LOSSES:
        raise ValueError(f"a loss must be one of {', '.join(LOSSES)}; got {node.id!r}.")
    if not 0 < weight < math.inf:
        raise ValueError(f"the weight of {node.id} must be positive and finite; got {weight}.")
    parameters = inspect.signature(LOSSES[node.id]).parameters.values()
    known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    unknown = settings.keys() - known
    if unknown:
        raise ValueError(
            f"{node.id} has no setting {min(unknown)!r}; it has "
            f"{', '.join(sorted(known)) or 'none'}."
        )
    return weight, node.id, settings


def _number(node: ast.expr) -> float:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    raise TypeError("weights and settings are numbers")


def _write(weight: float, name: str, settings: dict[str, Any]) -> str:
    """Return a term in the one way of writing it."""
    values = ", ".join(f"{key}={_short(value)}" for key, value in sorted(settings.items()))
    term = f"{name}({values})" if values else name
    return term if weight == 1.0 else f"{_short(weight)} * {term}"


def _short(value: float) -> str:
    return repr(value).removesuffix(".0")
