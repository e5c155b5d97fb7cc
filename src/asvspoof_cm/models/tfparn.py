"""TFPARN: a Transformer on log-Mel frames with attention pooling (section IV of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from asvspoof_cm._util import check_between
from asvspoof_cm.frontends import LogMel
from asvspoof_cm.models.base import Countermeasure, check_config, check_waveform_batch
from asvspoof_cm.models.layers import FramePooling, TransformerLayer, dropout, sinusoidal_positions

_CPU_BATCH = 8
_LEAST_POWER, _LEAST_BEL = 1e-10, -8.0


@dataclass(frozen=True, kw_only=True)
class TFPARNConfig:
    """The configuration of a TFPARN: the paper's, or its authors' code where the paper is silent.

    Attributes:
        sample_rate: Of the waveforms, in Hz.
        n_fft: The samples of a window and of its FFT.
        hop_length: Samples from frame to frame.
        n_mels: The Mel bands.
        mel_filters: Triangles on the frequency axis, "continuous", or between FFT "bins".
        log_scale: "decibels", clamped to -80 to 0 and divided by 10, or the "natural" logarithm.
        log_floor: The least power under the natural logarithm.
        d_model: The channels of a frame in the Transformer.
        n_layers: Its layers.
        n_heads: The heads of the attention in each.
        d_feedforward: The hidden channels of the feed-forward block in each.
        dropout: In the layers.
        position_dropout: After the positional encoding is added.
        pooling: What weights the frames: "attention", "mean", or "top-k", those of largest norm.
        top_k_share: The share of the frames that top-k pooling keeps.
        d_classifier: The hidden channels of the classifier.
        classifier_dropout: In the classifier.
        initial_weights: "xavier" for every matrix, with a gain of 0.5 for the projection of the
            features, or "default", PyTorch's.
        normalization: By the peak of each "crop" or of the "utterance", in `input` of a new model.

    Note:
        docs/differences.md says which values are the paper's and which its authors'.

    Example:
        >>> TFPARNConfig(pooling="mean").d_model
        256
    """

    sample_rate: int = 16000
    n_fft: int = 1024
    hop_length: int = 160
    n_mels: int = 160
    mel_filters: Literal["continuous", "bins"] = "continuous"
    log_scale: Literal["decibels", "natural"] = "decibels"
    log_floor: float = 1e-6
    d_model: int = 256
    n_layers: int = 6
    n_heads: int = 8
    d_feedforward: int = 1024
    dropout: float = 0.3
    position_dropout: float = 0.3
    pooling: Literal["attention", "mean", "top-k"] = "attention"
    top_k_share: float = 0.3
    d_classifier: int = 128
    classifier_dropout: float = 0.3
    initial_weights: Literal["xavier", "default"] = "xavier"
    normalization: Literal["crop", "utterance"] = "crop"

    def __post_init__(self) -> None:
        check_config(self)
        check_between("n_fft", self.n_fft, 2, 2**15)
        check_between("hop_length", self.hop_length, 1, self.n_fft)
        check_between("top_k_share", self.top_k_share, 0, 1)
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ValueError(
                "`d_model` must be even and a multiple of `n_heads`; "
                f"got {self.d_model} and {self.n_heads}."
            )

    @classmethod
    def authors(cls, **changes: Any) -> Self:
        """Return what the authors' code does where the text says otherwise, with some changes.

        Example:
            >>> TFPARNConfig.authors(pooling="top-k").mel_filters
            'bins'
        """
        return cls(**{"mel_filters": "bins", "normalization": "utterance", **changes})


class TFPARN(Countermeasure):
    """The Transformer-based focal-pairwise attentive ranking network.

    Log-Mel (160 bands) → LayerNorm over frequency → Linear 160→256 → sinusoidal positions → six
    post-norm Transformer layers → attention pooling or mean → 256→128→2.

    Example:
        >>> model = TFPARN().eval()
        >>> model(torch.randn(2, 64000)).shape
        torch.Size([2, 2])
        >>> sum(p.numel() for p in model.parameters())
        4846275
    """

    config_type = TFPARNConfig
    added_fields = {  # noqa: RUF012 - declared in the base class
        "log_scale": "natural",
        "position_dropout": 0.0,
        "initial_weights": "default",
    }

    def __init__(self, config: TFPARNConfig | None = None) -> None:
        super().__init__()
        self.config = config = TFPARNConfig() if config is None else config
        self.log_mel = LogMel(
            sample_rate=config.sample_rate,
            n_fft=config.n_fft,
            hop_length=config.hop_length,
            n_mels=config.n_mels,
            floor=config.log_floor if config.log_scale == "natural" else _LEAST_POWER,
        )
        if config.mel_filters == "bins":
            filters = bin_filterbank(config.n_mels, config.n_fft, config.sample_rate)
            self.log_mel.filterbank = filters
        self.norm = nn.LayerNorm(config.n_mels)
        self.projection = nn.Linear(config.n_mels, config.d_model)
        self.layers = nn.ModuleList(
            TransformerLayer(config.d_model, config.n_heads, config.d_feedforward, config.dropout)
            for _ in range(config.n_layers)
        )
        self.pooling = FramePooling(config.pooling, config.d_model, config.top_k_share)
        self.classifier = nn.Sequential(
            nn.Linear(config.d_model, config.d_classifier),
            nn.ReLU(),
            nn.Dropout(config.classifier_dropout),
            nn.Linear(config.d_classifier, 2),
        )
        self.input = replace(self.input, normalization=config.normalization)
        if config.initial_weights == "xavier":
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter, 0.5 if name == "projection.weight" else 1.0)

    def embed(self, waveform: Tensor) -> Tensor:
        """Return the pooled utterance vectors (batch, d_model) of waveforms (batch, time)."""
        return self._pool(self._features(waveform))[0]

    def attend(self, waveform: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (batch, 2) of waveforms, and the frames' weights (batch, n_frames)."""
        embedding, weights = self._pool(self._features(waveform))
        return self.classify(embedding), weights

    def _features(self, waveform: Tensor) -> Tensor:
        """Return log-Mel features (batch, n_mels, n_frames), in bel or nepers."""
        check_waveform_batch(waveform, self.config.n_fft)
        features = self.log_mel(waveform)
        if self.config.log_scale == "decibels":  # of the power and its least value together
            least = features.new_tensor(math.log(_LEAST_POWER))
            features = torch.logaddexp(features, least) / math.log(10)
            features = features.clamp(_LEAST_BEL, 0.0)
        return features

    def _pool(self, log_mel: Tensor) -> tuple[Tensor, Tensor]:
        """Return utterance vectors and the weights of the frames."""
        # Without gradients a few utterances at a time stay in the cache; a traced graph takes all.
        is_whole = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if is_whole or log_mel.device.type != "cpu" or log_mel.shape[0] <= _CPU_BATCH:
            return self._encode(log_mel)
        parts = [self._encode(part) for part in torch.split(log_mel, _CPU_BATCH)]
        embeddings, weights = zip(*parts, strict=True)
        return torch.cat(embeddings), torch.cat(weights)

    def _encode(self, log_mel: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.projection(self.norm(log_mel.transpose(1, 2)))
        frames = frames + sinusoidal_positions(frames.shape[1], frames.shape[2], like=frames)
        frames = dropout(frames, self.config.position_dropout, training=self.training)
        for layer in self.layers:
            frames = layer(frames)
        weights = self.pooling(frames)
        return torch.einsum("bt,btd->bd", weights.to(frames.dtype), frames), weights


def bin_filterbank(n_mels: int, n_fft: int, sample_rate: int) -> Tensor:
    """Return triangular filters (n_mels, n_fft // 2 + 1) whose corners are FFT bins.

    The corners, equally spaced on the Mel scale, become the bins ⌊(n_fft + 1) · f / sample_rate⌋;
    where those of a narrow band coincide its filter is empty.
    """
    mel = torch.linspace(0, 2595 * math.log10(1 + sample_rate / 1400), n_mels + 2)
    hz = 700 * (10 ** (mel / 2595) - 1)
    corners = torch.floor((n_fft + 1) * hz / sample_rate)[:, None]
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    k = torch.arange(n_fft // 2 + 1)
    rising = (k - left) / (centre - left).clamp(min=1)
    falling = (right - k) / (right - centre).clamp(min=1)
    return torch.where(k < centre, rising, falling).clamp(min=0)
