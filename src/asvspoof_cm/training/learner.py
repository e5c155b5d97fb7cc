"""What learns: a model and its loss, with their optimiser."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from asvspoof_cm.models import Countermeasure
from asvspoof_cm.training.objective import BatchLoss
from asvspoof_cm.training.recipe import Recipe
from asvspoof_cm.utils.processes import rank_and_size, resolve_precision

Loss: TypeAlias = Callable[..., Tensor]


class Learner:
    """What learns: a model and its loss, with their optimiser and a moving average of the weights.

    Args:
        model: Maps waveforms (batch, time) to logits (batch, 2), on the device to train on.
            `Countermeasure.parameter_groups` says what learns how fast. Under torchrun it is
            wrapped in DistributedDataParallel, with synchronised batch normalisation on CUDA.
        loss: Maps logits (batch, 2) and labels (batch,) to a scalar; a `BatchLoss` is given more.
            The parameters of a module are trained with the model's.
        recipe: How to optimise.
        optimizer: One of your own, of parameters of both; None makes the recipe's. Its learning
            rates follow the recipe's schedule, times a group's ``lr_scale``.

    Attributes:
        optimizer: Of the parameters of both.
        precision: What the recipe's "auto" stands for on this device.

    Example:
        >>> from asvspoof_cm.data import Batch
        >>> from asvspoof_cm.losses import focal_pairwise_loss
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> from asvspoof_cm.training import train_epoch
        >>> model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
        >>> learner = Learner(model, focal_pairwise_loss, Recipe(lr=1e-3))
        >>> batch = Batch(torch.randn(4, 8000), torch.tensor([0, 1, 0, 1]), torch.arange(4))
        >>> train_epoch(learner, [batch]).scores.shape
        (4,)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        recipe: Recipe,
        *,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.recipe = recipe
        self.device = next(model.parameters()).device
        self.precision, self.precision_reason = resolve_precision(recipe.precision, self.device)
        self.loss_parameters: list[Tensor] = []
        if isinstance(loss, nn.Module):
            loss.to(self.device)
            self.loss_parameters = [p for p in loss.parameters() if p.requires_grad]
        self.optimizer = self._make_optimizer() if optimizer is None else optimizer
        groups = self.optimizer.param_groups
        self.parameters: list[Tensor] = [p for group in groups for p in group["params"]]
        self.n_steps = 0
        self.average: list[Tensor] | None = None
        if recipe.ema_decay is not None:
            self.average = [p.detach().clone() for p in self.parameters]
        norms = nn.modules.batchnorm._BatchNorm
        self.has_batch_norm = any(isinstance(module, norms) for module in model.modules())
        self.network = self._wrap()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        if isinstance(self.model, Countermeasure):
            groups = self.model.parameter_groups()
        else:
            groups = [{"params": [p for p in self.model.parameters() if p.requires_grad]}]
        if self.loss_parameters:
            groups = [*groups, {"params": self.loss_parameters}]
        kind = torch.optim.AdamW if self.recipe.optimizer == "adamw" else torch.optim.Adam
        return kind(
            [{"lr_scale": 1.0, **group} for group in groups],
            lr=self.recipe.lr,
            weight_decay=self.recipe.weight_decay,
        )

    def _wrap(self) -> nn.Module:
        network: nn.Module = Network(self.model, self.loss)
        if rank_and_size()[1] > 1:
            cuda = self.device.type == "cuda"
            if cuda:
                network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
            unused = isinstance(self.model, Countermeasure) and not self.model.all_parameters_used
            network = nn.parallel.DistributedDataParallel(
                network, device_ids=[self.device] if cuda else None, find_unused_parameters=unused
            )
        if self.recipe.compile:
            network.compile()
        return network

    def set_learning_rate(self, epoch: float) -> None:
        """Set the learning rates of a point of training, in epochs."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(epoch) * group.get("lr_scale", 1.0)

    @contextlib.contextmanager
    def without_sync(self, wanted: bool) -> Iterator[None]:
        """Leave gradients in this process inside the block, until a step needs those of all."""
        if wanted and isinstance(self.network, nn.parallel.DistributedDataParallel):
            with self.network.no_sync():
                yield
        else:
            yield

    def step(self, *, scale: float = 1.0) -> None:
        """Change the weights by their gradients, multiplied by `scale`."""
        # Each process has the whole gradient of the loss's own parameters, times their number.
        share = 1.0 / rank_and_size()[1]
        for parameters, factor in ((self.parameters, scale), (self.loss_parameters, share)):
            if factor != 1.0:
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor)
        if self.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.n_steps += 1
        if self.average is not None and self.recipe.ema_decay is not None:
            # Lower at first, when the weights that it began with are worth nothing.
            decay = min(self.recipe.ema_decay, (1 + self.n_steps) / (10 + self.n_steps))
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the moving average of its weights inside the block, if there is one."""
        if self.average is None:
            yield
            return
        kept = [p.detach().clone() for p in self.parameters]
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training goes on from."""
        return {
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict() if isinstance(self.loss, nn.Module) else {},
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "n_steps": self.n_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        if isinstance(self.loss, nn.Module):
            self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.n_steps = state["n_steps"]
        if self.average is not None:
            torch._foreach_copy_(self.average, [t.to(self.device) for t in state["average"]])


class Network(nn.Module):
    """A model whose logits come with the vectors they were made of, where its loss wants them."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model = model
        self.with_embedding = "embedding" in needs(loss)
        if self.with_embedding and not isinstance(model, Countermeasure):
            raise TypeError(
                "a loss on embeddings needs a Countermeasure, with `embed` and `classify`; got "
                f"{type(model).__name__}."
            )

    def forward(self, waveform: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits (batch, 2), and vectors (batch, d) or None."""
        embedding: Tensor | None = None
        if self.with_embedding and isinstance(self.model, Countermeasure):
            embedding = self.model.embed(waveform)
            logits = self.model.classify(embedding)
        else:
            logits = self.model(waveform)
        if not isinstance(logits, Tensor) or logits.shape != (len(waveform), 2):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"{type(self.model).__name__} must return logits (batch, 2), of spoof and "
                f"bonafide; got {got} for {len(waveform)} waveforms."
            )
        return logits, embedding


def needs(loss: Loss | None) -> frozenset[str]:
    """Return what a loss wants beside logits and labels."""
    return loss.needs if isinstance(loss, BatchLoss) else frozenset()


def loss_of(
    loss: Loss, logits: Tensor, labels: Tensor, group: Tensor, embedding: Tensor | None
) -> Tensor:
    """Return the loss of a batch, given what it needs."""
    given = {"embedding": embedding, "group": group}
    return loss(logits, labels, **{name: given[name] for name in needs(loss)})
