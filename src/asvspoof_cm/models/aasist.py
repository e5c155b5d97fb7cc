"""AASIST: spectro-temporal graph attention on a raw-waveform encoder (Jung et al., 2022).

The parameters have the names of the published implementation, whose checkpoints load. The encoder
runs in channels-last layout, and in evaluation on a CPU one utterance at a time: its first maps are
a hundred times larger than the waveform. Attention is symmetric, so each pair is scored once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm._util import check_positive_finite
from asvspoof_cm.frontends import SincConv
from asvspoof_cm.models.base import Countermeasure, check_config, check_waveform_batch

# A multiple of 3. At 32 channels and 24 rows, 3,072 columns are 9 MiB.
_TILE_COLUMNS = 3072


@dataclass(frozen=True, kw_only=True)
class AASISTConfig:
    """The size of an AASIST; the defaults are the published AASIST, `light()` is AASIST-L.

    Example:
        >>> AASISTConfig.light().n_channels
        24
    """

    n_sinc_filters: int = 70
    sinc_kernel_size: int = 128
    n_first_channels: int = 32
    n_channels: int = 64
    d_hetero: int = 32
    pool_spectral: float = 0.5
    pool_temporal: float = 0.7
    pool_hetero: float = 0.5
    temperature: float = 2.0
    temperature_hetero: float = 100.0

    def __post_init__(self) -> None:
        check_config(self)
        for name in ("pool_spectral", "pool_temporal", "pool_hetero"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must lie in (0, 1]; got {getattr(self, name)!r}.")
        check_positive_finite(
            temperature=self.temperature, temperature_hetero=self.temperature_hetero
        )

    @classmethod
    def light(cls) -> Self:
        """Return the configuration of AASIST-L, 85,306 parameters."""
        return cls(n_channels=24, pool_spectral=0.4, pool_temporal=0.5, pool_hetero=0.7)


class ResidualBlock(nn.Module):
    """Two convolutions over (frequency, time) around a shortcut, then max-pooling of time by 3."""

    def __init__(self, n_in: int, n_out: int, *, first: bool = False) -> None:
        super().__init__()
        if not first:  # its result is not used in the published code either, whose states hold it
            self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, (2, 3), padding=(1, 1))
        self.bn2 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, (2, 3), padding=(0, 1))
        if n_in != n_out:
            self.conv_downsample = nn.Conv2d(n_in, n_out, (1, 3), padding=(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, n_out, frequency, time // 3) of (batch, n_in, frequency, time)."""
        # A traced graph must not depend on how many tiles its example had.
        if self.training or torch.compiler.is_compiling():
            return functional.max_pool2d(self._convolve(x, self.bn2(self.conv1(x))), (1, 3))
        # In evaluation bn2 is part of conv1, and long maps are computed in tiles that fit the
        # cache, with the two columns to each side that both convolutions reach.
        weight, bias = _fold(self.conv1, self.bn2)
        n_columns = x.shape[-1] // 3 * 3
        pooled = []
        for start in range(0, n_columns, _TILE_COLUMNS):
            stop = min(start + _TILE_COLUMNS, n_columns)
            first = max(0, start - 2)
            tile = x[..., first : stop + 2]
            y = self._convolve(tile, functional.conv2d(tile, weight, bias, padding=1))
            pooled.append(functional.max_pool2d(y[..., start - first : stop - first], (1, 3)))
        return torch.cat(pooled, dim=-1)

    def _convolve(self, x: Tensor, hidden: Tensor) -> Tensor:
        shortcut = self.conv_downsample(x) if hasattr(self, "conv_downsample") else x
        return self.conv2(functional.selu(hidden, inplace=True)) + shortcut


def _fold(conv: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a convolution followed by batch normalisation in evaluation."""
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    shift = (conv.bias - norm.running_mean) * scale + norm.bias
    return conv.weight * scale[:, None, None, None], shift


def pair_scores(nodes: Tensor, projection: nn.Linear, weights: Tensor) -> Tensor:
    """Return s_ij = w_ijᵀ tanh(P (x_i ⊙ x_j) + b) of nodes (batch, n_nodes, d_in).

    The vectors w have shape (n_nodes, n_nodes, d_out), symmetric in i and j, or (d_out,) for all.
    """
    n_nodes = nodes.shape[1]
    i, j = torch.triu_indices(n_nodes, n_nodes, device=nodes.device).unbind(0)
    hidden = torch.tanh(projection(nodes[:, i] * nodes[:, j]))
    if weights.dim() == 1:
        scores = hidden @ weights
    else:
        scores = torch.einsum("bpd,pd->bp", hidden, weights[i, j])
    # Where in the list of pairs (i, j), i ≤ j, each cell of the full matrix finds its score.
    cells = torch.empty(n_nodes, n_nodes, dtype=torch.long, device=nodes.device)
    cells[i, j] = cells[j, i] = torch.arange(len(i), device=nodes.device)
    return scores[:, cells]


class GraphAttention(nn.Module):
    """A graph attention layer over one kind of nodes."""

    def __init__(self, d_in: int, d_out: int, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.att_proj = nn.Linear(d_in, d_out)
        self.att_weight = _attention_vector(d_out)
        self.proj_with_att = nn.Linear(d_in, d_out)
        self.proj_without_att = nn.Linear(d_in, d_out)
        self.bn = nn.BatchNorm1d(d_out)
        self.input_drop = nn.Dropout(0.2)

    def forward(self, nodes: Tensor) -> Tensor:
        """Return new nodes (batch, n_nodes, d_out) of nodes (batch, n_nodes, d_in)."""
        nodes = self.input_drop(nodes)
        scores = pair_scores(nodes, self.att_proj, self.att_weight.squeeze(-1))
        weights = (scores / self.temperature).softmax(dim=-1)
        return _update(self, nodes, weights)


class HeterogeneousGraphAttention(nn.Module):
    """A graph attention layer over temporal and spectral nodes and a master node."""

    def __init__(self, d_in: int, d_out: int, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.proj_type1 = nn.Linear(d_in, d_in)
        self.proj_type2 = nn.Linear(d_in, d_in)
        self.att_proj = nn.Linear(d_in, d_out)
        self.att_projM = nn.Linear(d_in, d_out)
        self.att_weight11 = _attention_vector(d_out)
        self.att_weight22 = _attention_vector(d_out)
        self.att_weight12 = _attention_vector(d_out)
        self.att_weightM = _attention_vector(d_out)
        self.proj_with_att = nn.Linear(d_in, d_out)
        self.proj_without_att = nn.Linear(d_in, d_out)
        self.proj_with_attM = nn.Linear(d_in, d_out)
        self.proj_without_attM = nn.Linear(d_in, d_out)
        self.bn = nn.BatchNorm1d(d_out)
        self.input_drop = nn.Dropout(0.2)

    def forward(
        self, temporal: Tensor, spectral: Tensor, master: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return new nodes of those (batch, n_nodes, d_in); there is one master, (…, 1, d_in)."""
        n_temporal = temporal.shape[1]
        nodes = torch.cat([self.proj_type1(temporal), self.proj_type2(spectral)], dim=1)
        nodes = self.input_drop(nodes)
        master = self._update_master(nodes, master)
        is_spectral = (torch.arange(nodes.shape[1], device=nodes.device) >= n_temporal).long()
        kinds = torch.cat([self.att_weight11, self.att_weight12, self.att_weight22], dim=1).T
        pair_weights = kinds[is_spectral[:, None] + is_spectral]
        scores = pair_scores(nodes, self.att_proj, pair_weights)
        nodes = _update(self, nodes, (scores / self.temperature).softmax(dim=-1))
        return nodes[:, :n_temporal], nodes[:, n_temporal:], master

    def _update_master(self, nodes: Tensor, master: Tensor) -> Tensor:
        scores = torch.tanh(self.att_projM(nodes * master)) @ self.att_weightM
        weights = (scores / self.temperature).softmax(dim=1)
        gathered = (weights * nodes).sum(dim=1, keepdim=True)
        return self.proj_with_attM(gathered) + self.proj_without_attM(master)


class GraphPooling(nn.Module):
    """Keep the highest-scored share of the nodes, in order of their score, scaled by it."""

    def __init__(self, d_in: int, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio
        self.proj = nn.Linear(d_in, 1)
        self.drop = nn.Dropout(0.3)

    def forward(self, nodes: Tensor) -> Tensor:
        """Return (batch, max(int(n_nodes · ratio), 1), d) of nodes (batch, n_nodes, d)."""
        scores = torch.sigmoid(self.proj(self.drop(nodes)))
        n_kept = max(int(nodes.shape[1] * self.ratio), 1)
        kept = scores.topk(n_kept, dim=1).indices
        return (nodes * scores).gather(1, kept.expand(-1, -1, nodes.shape[-1]))


class AASIST(Countermeasure):
    """Audio anti-spoofing with integrated spectro-temporal graph attention.

    Note:
        `encoder.{1…5}.0.bn1` receive no gradient: the published model does not use their result.

    Example:
        >>> model = AASIST().eval()
        >>> model(torch.randn(1, 64000)).shape
        torch.Size([1, 2])
        >>> sum(p.numel() for p in model.parameters())
        297866
    """

    config_type = AASISTConfig
    removed_fields = {"sinc_trainable": False}  # noqa: RUF012 - declared in the base class
    any_length = False  # its graph has a node for each stretch of time
    all_parameters_used = False  # the published code does not use all that it keeps

    def __init__(self, config: AASISTConfig | None = None) -> None:
        super().__init__()
        self.config = config = AASISTConfig() if config is None else config
        first, n_channels, d_hetero = config.n_first_channels, config.n_channels, config.d_hetero
        self.sinc = SincConv(config.n_sinc_filters, config.sinc_kernel_size)
        self.first_bn = nn.BatchNorm2d(1)
        widths = [1, first, first, n_channels, n_channels, n_channels, n_channels]
        blocks = (
            nn.Sequential(ResidualBlock(n_in, n_out, first=k == 0))
            for k, (n_in, n_out) in enumerate(itertools.pairwise(widths))
        )
        encoder: Any = nn.Sequential(*blocks)
        self.encoder = encoder.to(memory_format=torch.channels_last)
        self.pos_S = nn.Parameter(torch.randn(1, config.n_sinc_filters // 3, n_channels))
        self.master1 = nn.Parameter(torch.randn(1, 1, n_channels))
        self.master2 = nn.Parameter(torch.randn(1, 1, n_channels))
        self.GAT_layer_S = GraphAttention(n_channels, n_channels, config.temperature)
        self.GAT_layer_T = GraphAttention(n_channels, n_channels, config.temperature)
        for k, (n, d_in) in itertools.product((1, 2), ((1, n_channels), (2, d_hetero))):
            layer = HeterogeneousGraphAttention(d_in, d_hetero, config.temperature_hetero)
            self.add_module(f"HtrgGAT_layer_ST{k}{n}", layer)
        self.pool_S = GraphPooling(n_channels, config.pool_spectral)
        self.pool_T = GraphPooling(n_channels, config.pool_temporal)
        for name in ("pool_hS1", "pool_hT1", "pool_hS2", "pool_hT2"):
            self.add_module(name, GraphPooling(d_hetero, config.pool_hetero))
        self.drop_way = nn.Dropout(0.2)
        self.drop = nn.Dropout(0.5)
        self.out_layer = nn.Linear(5 * d_hetero, 2)

    def classify(self, embedding: Tensor) -> Tensor:
        """Return logits (batch, 2) of read-out vectors (batch, 5 · d_hetero)."""
        return self.out_layer(self.drop(embedding))

    def embed(self, waveform: Tensor) -> Tensor:
        """Return the read-out vectors (batch, 5 · d_hetero) of waveforms (batch, time)."""
        # One frame must be left after the sinc convolution and seven poolings by three.
        check_waveform_batch(waveform, self.sinc.kernel_size - 1 + 3**7)
        spectral_max, temporal_max = self._encode(waveform)
        spectral = self.pool_S(self.GAT_layer_S(spectral_max + self.pos_S))
        temporal = self.pool_T(self.GAT_layer_T(temporal_max))
        branches = [self._branch(k, temporal, spectral) for k in (1, 2)]
        temporal, spectral, master = (
            torch.maximum(self.drop_way(one), self.drop_way(two))
            for one, two in zip(*branches, strict=True)
        )
        read = [(nodes.abs().amax(dim=1), nodes.mean(dim=1)) for nodes in (temporal, spectral)]
        return torch.cat([*read[0], *read[1], master.squeeze(1)], dim=1)

    def _encode(self, waveform: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest magnitudes over time and over frequency, as graph nodes."""
        # Batch normalisation needs the whole batch in training. In evaluation utterances are
        # independent, and on a CPU one at a time stays in the cache; a traced graph takes all.
        on_cpu = waveform.device.type == "cpu"
        is_whole = self.training or not on_cpu or torch.compiler.is_compiling()
        parts = [waveform] if is_whole else [row[None] for row in waveform]
        maxima = []
        for part in parts:
            bands = self.sinc(part).unsqueeze(1).abs()
            x = functional.selu(self.first_bn(functional.max_pool2d(bands, 3)), inplace=True)
            magnitude = self.encoder(x.contiguous(memory_format=torch.channels_last)).abs()
            maxima.append((magnitude.amax(dim=3).mT, magnitude.amax(dim=2).mT))
        spectral, temporal = zip(*maxima, strict=True)
        return torch.cat(spectral), torch.cat(temporal)

    def _branch(self, k: int, temporal: Tensor, spectral: Tensor) -> tuple[Tensor, ...]:
        first, second = (self.get_submodule(f"HtrgGAT_layer_ST{k}{n}") for n in (1, 2))
        temporal, spectral, master = first(temporal, spectral, self.get_parameter(f"master{k}"))
        temporal = self.get_submodule(f"pool_hT{k}")(temporal)
        spectral = self.get_submodule(f"pool_hS{k}")(spectral)
        nodes = (temporal, spectral, master)
        return tuple(old + new for old, new in zip(nodes, second(*nodes), strict=True))


def _attention_vector(d_out: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(d_out, 1)))


def _update(
    layer: GraphAttention | HeterogeneousGraphAttention, nodes: Tensor, weights: Tensor
) -> Tensor:
    """Return SELU(BN(P₁ (weights · nodes) + P₂ nodes)), normalised over all nodes of the batch."""
    updated = layer.proj_with_att(weights @ nodes) + layer.proj_without_att(nodes)
    return functional.selu(layer.bn(updated.flatten(0, 1)).view_as(updated))
