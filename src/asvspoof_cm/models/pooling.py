"""From frames to one vector for each utterance."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn


def frame_mask(lengths: Tensor, n_frames: int) -> Tensor:
    """Return True where a frame is inside its utterance, shape (batch, n_frames)."""
    return torch.arange(n_frames, device=lengths.device) < lengths[:, None]


def mean_weights(frames: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the weights of a plain average over the frames of `mask`, shape (batch, n_frames)."""
    if mask is None:
        return frames.new_full(frames.shape[:2], 1.0 / frames.shape[1])
    return mask.to(frames.dtype) / mask.sum(dim=-1, keepdim=True)


class AttentionPooling(nn.Module):
    """Score each frame with e_t = w₂ᵀ tanh(W₁ h_t + b₁) + b₂; α_t = exp(e_t) / Σ_j exp(e_j)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_model // 2)
        self.score = nn.Linear(d_model // 2, 1)

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return α (batch, n_frames) of frames (batch, n_frames, d_model); padding gets 0."""
        scores: Tensor = self.score(torch.tanh(self.hidden(frames))).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(dim=-1)


class MeanPooling(nn.Module):
    """Weight the frames of an utterance alike; `d_model` plays no part."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the weights (batch, n_frames) of frames (batch, n_frames, d_model)."""
        return mean_weights(frames, mask)


POOLINGS: Final = {"attention": AttentionPooling, "mean": MeanPooling}
"""What weights the frames of a TFPARN, by the name in its configuration."""


class ChannelAttention(nn.Module):
    """Weight each channel of each frame by the softmax over time of W₂ tanh(W₁ h_t + b₁) + b₂.

    W₂ and b₂ begin with 0: every frame has the same weight before training.
    """

    def __init__(self, d_model: int, d_hidden: int = 128) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, d_hidden)
        self.score = nn.Linear(d_hidden, d_model)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the weights (batch, n_frames, d_model) of frames of that shape."""
        scores: Tensor = self.score(torch.tanh(self.hidden(frames)))
        return scores.softmax(dim=1, dtype=torch.promote_types(scores.dtype, torch.float32))


def attentive_statistics(frames: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean and standard deviation of each channel, (batch, 2 · d).

    μ = Σ_t α_t h_t and σ = √(Σ_t α_t (h_t − μ)² + 1e-5) (Okabe et al., Interspeech 2018).

    Args:
        frames: Tensor h of shape (batch, n_frames, d).
        weights: Tensor α of shape (batch, n_frames, d), or (batch, n_frames, 1); over the frames
            they add up to 1.
    """
    mean = (weights * frames).sum(dim=1)
    variance = (weights * (frames - mean[:, None]).square()).sum(dim=1)
    return torch.cat([mean, (variance + 1e-5).sqrt()], dim=-1)
