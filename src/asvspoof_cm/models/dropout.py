"""Dropout and attention with dropout, as fast on a CPU as the matrix products around them.

PyTorch draws one random number an element, on one thread: in a training step of TFPARN on a CPU
that takes longer than all the arithmetic. Here eight elements share one 64-bit draw, a byte each,
and the attention weights are made, dropped and used one utterance at a time, so that they stay in
the cache and are computed again in the backward pass instead of being kept.

Note:
    A byte makes the probability a multiple of 1/256: 0.1 becomes 26/256 ≈ 0.102. What is kept is
    scaled by the probability really used, so expectations are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__: list[str] = []

_LEVELS = 256


def dropout(x: Tensor, p: float, *, training: bool) -> Tensor:
    """Zero each element with probability `p` and scale the rest by 1 / (1 − p)."""
    threshold = round(p * _LEVELS)
    if not training or not 0 < threshold < _LEVELS or not _is_fast(x):
        return functional.dropout(x, p, training)
    return _apply(_Dropout, x, random_bytes(x.shape), threshold)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Return softmax(query · keyᵀ / √d) · value, with dropout on the weights in training.

    Args:
        query: Tensor of shape (batch, heads, n_frames, d), as `key` and `value`.
        key: See `query`.
        value: See `query`.
        mask: True where a key may be attended to, broadcastable to (batch, heads, n_frames,
            n_frames).
        dropout_p: The probability with which a weight is dropped.
        training: Whether anything is dropped.

    Returns:
        Tensor of shape (batch, heads, n_frames, d).
    """
    threshold = round(dropout_p * _LEVELS) if training else 0
    if not 0 < threshold < _LEVELS or mask is not None or not _is_fast(query):
        p = dropout_p if training else 0.0
        return functional.scaled_dot_product_attention(query, key, value, mask, dropout_p=p)
    n_frames = query.shape[-2]
    noise = random_bytes((*query.shape[:-1], n_frames))
    return _apply(_Attention, query, key, value, noise, threshold)


def random_bytes(shape: Sequence[int]) -> Tensor:
    """Return uniform bytes from PyTorch's default generator, as its own dropout does."""
    n = 1
    for size in shape:
        n *= size
    words = torch.empty(-(-n // 8), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.uint8)[:n].view(*shape)


def _is_fast(x: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
    )


def _apply(function: Any, *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)
    return result


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
        kept, weights = _scratch(noise, value)
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
        kept, weights = _scratch(noise, value)
        grad_weights = torch.empty_like(weights)
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


def _scratch(noise: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    return like.new_empty(noise.shape[1:]), like.new_empty(noise.shape[1:])


def _softmax(query: Tensor, key: Tensor, out: Tensor) -> None:
    torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2), out=out)
    torch.softmax(out, dim=-1, out=out)
