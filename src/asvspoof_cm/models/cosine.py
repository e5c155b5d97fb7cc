"""CosineHead: any model's vectors, classified by their angles, for losses with margins."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm._util import check_positive_finite
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.models.base import Attended, Countermeasure, build_model


@dataclass(frozen=True, kw_only=True)
class CosineHeadConfig:
    """The model below a `CosineHead`, and the head's class vectors.

    Attributes:
        model: The name of the model below the head.
        model_config: Fields of its configuration that differ from the defaults.
        n_vectors: 2, one vector for each class, or 1, for bona fide alone.
        scale: Factor on the cosines; that of the loss.

    Example:
        >>> CosineHeadConfig(model="RawNet2", n_vectors=1).scale
        20.0
    """

    model: str = "TFPARN"
    model_config: dict[str, Any] = field(default_factory=dict)
    n_vectors: int = 2
    scale: float = 20.0

    def __post_init__(self) -> None:
        if self.n_vectors not in (1, 2):
            raise ValueError(f"`n_vectors` must be 1 or 2; got {self.n_vectors!r}.")
        check_positive_finite(scale=self.scale)


class CosineHead(Countermeasure):
    """A model whose logits are scaled cosines of its vectors and of trained class vectors.

    What `am_softmax_loss`, `oc_softmax_loss` and `p2sgrad_loss` train. The class vectors are part
    of the model, so they are saved, scored and exported with it. With one vector the spoof logit is
    0 and the score is the scaled cosine to it.

    Example:
        >>> model = CosineHead(CosineHeadConfig(model="RawNet2")).eval()
        >>> logits = model(torch.randn(2, 16000))
        >>> bool((logits.abs() <= 20.001).all())
        True
    """

    config_type = CosineHeadConfig
    all_parameters_used = False  # those of the body's own classifier

    def __init__(self, config: CosineHeadConfig | None = None) -> None:
        super().__init__()
        config = CosineHeadConfig() if config is None else config
        self.body = build_model(config.model, config.model_config)
        # All fields of it: what is left out would mean the defaults of the version that loads.
        self.config = replace(config, model_config=asdict(self.body.config))
        self.any_length = self.body.any_length  # type: ignore[misc]
        with torch.no_grad():
            d_embedding = self.body.eval().embed(torch.zeros(1, SAMPLE_RATE)).shape[-1]
        self.body.train()
        self.vectors = nn.Parameter(torch.empty(config.n_vectors, d_embedding))
        nn.init.kaiming_uniform_(self.vectors, a=math.sqrt(5))

    def embed(self, waveform: Tensor) -> Tensor:
        """Return the body's vectors (batch, d) of waveforms (batch, time)."""
        return self.body.embed(waveform)

    def classify(self, embedding: Tensor) -> Tensor:
        """Return scaled cosines (batch, 2) of vectors (batch, d)."""
        # Not a matrix product, which autocast would round to three digits.
        own = functional.normalize(embedding.to(self.vectors.dtype), dim=-1)
        cosines = (own[:, None] * functional.normalize(self.vectors, dim=-1)).sum(dim=-1)
        logits: Tensor = self.config.scale * cosines
        if self.config.n_vectors == 2:
            return logits
        return torch.cat([torch.zeros_like(logits), logits], dim=-1)

    def attend(self, waveform: Tensor) -> Attended:
        """Return the body's weights of the frames of waveforms (batch, time), and our logits."""
        return self.body.attend(waveform)._replace(logits=self(waveform))

    def load_published(self) -> None:
        """Load the published weights of the body, where it has any."""
        self.body.load_published()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the body's groups, and one with the class vectors."""
        return [*self.body.parameter_groups(), {"params": [self.vectors]}]
