"""Pooling, positions, and the Transformer layer with its dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 256


class FramePooling(nn.Module):
    """Weights for the frames of an utterance, which add up to 1.

    "attention" gives softmax_t(w₂ᵀ tanh(W₁ h_t + b₁) + b₂); "mean" weights all frames alike, and
    "top-k" the `share` of them that have the largest norms.
    """

    def __init__(self, kind: str, d_model: int, share: float) -> None:
        super().__init__()
        self.kind, self.share = kind, share
        if kind == "attention":
            self.hidden = nn.Linear(d_model, d_model // 2)
            self.score = nn.Linear(d_model // 2, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Return the weights (batch, n_frames) of frames (batch, n_frames, d_model)."""
        if self.kind == "attention":
            return self.score(torch.tanh(self.hidden(frames))).squeeze(-1).softmax(dim=-1)
        if self.kind == "mean":
            return torch.ones_like(frames[..., 0]) / frames.shape[1]
        norms = frames.detach().norm(dim=-1)
        n_kept = max(int(norms.shape[1] * self.share), 1)
        is_kept = torch.arange(norms.shape[1], device=norms.device) < n_kept
        order = norms.argsort(dim=-1, descending=True)
        weights = (is_kept.to(norms) / n_kept).expand_as(norms)
        return torch.zeros_like(norms).scatter(1, order, weights)


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

    μ = Σ_t α_t h_t and σ = √(Σ_t α_t (h_t − μ)² + 1e-5) of frames h and weights α, both
    (batch, n_frames, d) (Okabe et al., Interspeech 2018).
    """
    mean = (weights * frames).sum(dim=1)
    variance = (weights * (frames - mean[:, None]).square()).sum(dim=1)
    return torch.cat([mean, (variance + 1e-5).sqrt()], dim=-1)


def sinusoidal_positions(n_frames: int, d_model: int, *, like: Tensor) -> Tensor:
    """Return the positional encoding of Vaswani et al. (2017), (n_frames, d_model), any length.

    PE(t, 2i) = sin(t / 10000^(2i/d)), PE(t, 2i+1) = cos(t / 10000^(2i/d)), on the device and in
    the dtype of `like`.
    """
    channels = torch.arange(0, d_model, 2, device=like.device, dtype=torch.float32)
    rates = torch.exp(channels * (-math.log(10000.0) / d_model))
    angles = torch.arange(n_frames, device=like.device, dtype=torch.float32)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like.dtype)


class TransformerLayer(nn.Module):
    """`torch.nn.TransformerEncoderLayer` with post-norm, equal in evaluation, faster on a CPU."""

    def __init__(self, d_model: int, n_heads: int, d_feedforward: int, p_dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.p_dropout = p_dropout
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.expand = nn.Linear(d_model, d_feedforward)
        self.contract = nn.Linear(d_feedforward, d_model)
        self.norm2 = nn.LayerNorm(d_model)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, frames: Tensor) -> Tensor:
        """Return new frames (batch, n_frames, d_model)."""
        frames = self.norm1(frames + self._drop(self._attend(frames)))
        hidden = self._drop(functional.relu(self.expand(frames)))
        return self.norm2(frames + self._drop(self.contract(hidden)))

    def _attend(self, frames: Tensor) -> Tensor:
        heads = self.qkv(frames).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        attended = attention(query, key, value, p=self.p_dropout, training=self.training)
        return self.out(attended.transpose(1, 2).flatten(2))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.p_dropout, training=self.training)


def dropout(x: Tensor, p: float, *, training: bool) -> Tensor:
    """Zero each element with probability `p` and scale the rest by 1 / (1 − p)."""
    threshold = round(p * _LEVELS)
    if not training or not 0 < threshold < _LEVELS or not _is_fast(x):
        return functional.dropout(x, p, training)
    return _Dropout.apply(x, random_bytes(x.shape), threshold)  # type: ignore[no-untyped-call]


def attention(query: Tensor, key: Tensor, value: Tensor, *, p: float, training: bool) -> Tensor:
    """Return softmax(query · keyᵀ / √d) · value, with dropout on the weights in training.

    All have shape (batch, heads, n_frames, d).
    """
    p = p if training else 0.0
    threshold = round(p * _LEVELS)
    if not p and query.device.type == "cpu" and query.dtype == torch.bfloat16:
        # PyTorch's own kernel takes four times as long there, forward and backward.
        weights = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, dim=-1)
        return weights.to(value.dtype) @ value
    if not 0 < threshold < _LEVELS or not _is_fast(query):
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=p)
    noise = random_bytes((*query.shape[:-1], query.shape[-2]))
    return _Attention.apply(query, key, value, noise, threshold)  # type: ignore[no-untyped-call]


def random_bytes(shape: tuple[int, ...]) -> Tensor:
    """Return uniform bytes from PyTorch's default generator, as its own dropout does."""
    n = math.prod(shape)
    words = torch.empty(-(-n // 8), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.uint8)[:n].view(*shape)


def _is_fast(x: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.bfloat16, torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
    )


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: Tensor, threshold: int) -> Tensor:
        ctx.save_for_backward(noise)
        ctx.threshold = threshold
        return _Dropout._drop(x, noise, threshold)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (noise,) = ctx.saved_tensors
        return _Dropout._drop(grads[0], noise, ctx.threshold), None, None

    @staticmethod
    def _drop(x: Tensor, noise: Tensor, threshold: int) -> Tensor:
        kept = torch.empty_like(x)
        torch.ge(noise, threshold, out=kept)
        return kept.mul_(x).mul_(_LEVELS / (_LEVELS - threshold))


class _Attention(torch.autograd.Function):
    """With W = softmax(Q Kᵀ / √d), kept weights M ∈ {0, 1} and r = 1 / (1 − p): O = r (W ∘ M) V.

    Backward: dW = r (dO Vᵀ) ∘ M, and the softmax gives dS = W ∘ (dW − Σ_j dW W), whose row sum is
    dO · O. All dropout scaling is done on (n_frames, d) tensors.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, noise: Tensor, threshold: int
    ) -> Tensor:
        output = torch.empty_like(value)
        kept, weights = (value.new_empty(noise.shape[1:]) for _ in range(2))
        for row in range(len(query)):
            _softmax(query[row], key[row], weights)
            torch.ge(noise[row], threshold, out=kept)
            weights.mul_(kept)
            torch.matmul(weights, value[row], out=output[row])
        output.mul_(_LEVELS / (_LEVELS - threshold))
        ctx.save_for_backward(query, key, value, noise, output)
        ctx.threshold = threshold
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, noise, output = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        row_sums = (grads[0] * output).sum(dim=-1, keepdim=True)
        grad = grads[0] * (_LEVELS / (_LEVELS - ctx.threshold))
        grad_query, grad_key = torch.empty_like(query), torch.empty_like(key)
        grad_value = torch.empty_like(value)
        kept, weights, grad_weights = (value.new_empty(noise.shape[1:]) for _ in range(3))
        for row in range(len(query)):
            _softmax(query[row], key[row], weights)
            torch.ge(noise[row], ctx.threshold, out=kept)
            torch.matmul(grad[row], value[row].transpose(-1, -2), out=grad_weights)
            grad_weights.mul_(kept).sub_(row_sums[row]).mul_(weights)
            torch.matmul(grad_weights, key[row], out=grad_query[row])
            torch.matmul(grad_weights.transpose(-1, -2), query[row], out=grad_key[row])
            weights.mul_(kept)
            torch.matmul(weights.transpose(-1, -2), grad[row], out=grad_value[row])
        return grad_query.mul_(scale), grad_key.mul_(scale), grad_value, None, None


def _softmax(query: Tensor, key: Tensor, out: Tensor) -> None:
    torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2), out=out)
    torch.softmax(out, dim=-1, out=out)
