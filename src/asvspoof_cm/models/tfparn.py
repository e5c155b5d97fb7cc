"""TFPARN: a Transformer on log-Mel frames with attention pooling (section IV of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from asvspoof_cm.frontends import LogMel
from asvspoof_cm.models.base import Attended, Countermeasure
from asvspoof_cm.models.layers import (
    POOLINGS,
    LogMelMask,
    TransformerLayer,
    frame_mask,
    sinusoidal_positions,
)
from asvspoof_cm.utils.checks import (
    check_choice,
    check_frames,
    check_positive,
    check_positive_finite,
    check_probability,
    check_waveform_batch,
)

_CPU_BATCH = 8


@dataclass(frozen=True, kw_only=True)
class TFPARNConfig:
    """The size of a TFPARN; the defaults are the paper's.

    Note:
        The paper says that dropout is applied in the attention and feed-forward blocks, without a
        value; 0.1 and the places of `torch.nn.TransformerEncoderLayer` are used. The floor of the
        logarithm and the activation of the feed-forward block (ReLU) are not given either.

    Example:
        >>> TFPARNConfig(pooling="mean").d_model
        256
    """

    sample_rate: int = 16000
    n_fft: int = 1024
    hop_length: int = 160
    n_mels: int = 160
    log_floor: float = 1e-6
    d_model: int = 256
    n_layers: int = 6
    n_heads: int = 8
    d_feedforward: int = 1024
    dropout: float = 0.1
    pooling: str = "attention"
    d_classifier: int = 128
    classifier_dropout: float = 0.3

    def __post_init__(self) -> None:
        check_positive(self)
        check_frames(self)
        check_probability(self, "dropout", "classifier_dropout")
        check_choice("pooling", self.pooling, tuple(POOLINGS))
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ValueError(
                "`d_model` must be even and a multiple of `n_heads`; "
                f"got {self.d_model} and {self.n_heads}."
            )


class TFPARN(Countermeasure):
    """The Transformer-based focal-pairwise attentive ranking network.

    Log-Mel (160 bands) → LayerNorm over frequency → Linear 160→256 → sinusoidal positions → six
    post-norm Transformer layers → attention pooling or masked mean → 256→128→2.

    Attributes:
        feature_mask: Masks over the features in training; None, the paper's, leaves them.

    Example:
        >>> model = TFPARN().eval()
        >>> model(torch.randn(2, 64000)).shape
        torch.Size([2, 2])
        >>> sum(p.numel() for p in model.parameters())
        4846275
    """

    config_type = TFPARNConfig

    def __init__(self, config: TFPARNConfig | None = None) -> None:
        super().__init__()
        self.config = config = TFPARNConfig() if config is None else config
        self.log_mel = LogMel(
            sample_rate=config.sample_rate,
            n_fft=config.n_fft,
            hop_length=config.hop_length,
            n_mels=config.n_mels,
            floor=config.log_floor,
        )
        self.norm = nn.LayerNorm(config.n_mels)
        self.projection = nn.Linear(config.n_mels, config.d_model)
        self.layers = nn.ModuleList(
            TransformerLayer(config.d_model, config.n_heads, config.d_feedforward, config.dropout)
            for _ in range(config.n_layers)
        )
        self.pooling = POOLINGS[config.pooling](config.d_model)
        self.classifier = nn.Sequential(
            nn.Linear(config.d_model, config.d_classifier),
            nn.ReLU(),
            nn.Dropout(config.classifier_dropout),
            nn.Linear(config.d_classifier, 2),
        )
        self.feature_mask: LogMelMask | None = None

    @torch.no_grad()
    def scale_residuals(self, factor: float) -> None:
        """Multiply the last weights of each attention and feed-forward block by `factor`.

        Done before training with a factor below 1, each post-norm layer begins closer to the
        identity, and learning rates are stable that otherwise are not.
        """
        check_positive_finite(factor=factor)
        for layer in self.layers:
            layer.out.weight.mul_(factor)  # type: ignore[operator, union-attr]
            layer.contract.weight.mul_(factor)  # type: ignore[operator, union-attr]

    def embed(self, waveform: Tensor) -> Tensor:
        """Return the pooled utterance vectors (batch, d_model) of waveforms (batch, time)."""
        return self._pool(self._features(waveform), None)[0]

    def classify(self, embedding: Tensor) -> Tensor:
        """Return logits (batch, 2) of utterance vectors (batch, d_model)."""
        logits: Tensor = self.classifier(embedding)
        return logits

    def attend(self, waveform: Tensor) -> Attended:
        """Return logits, pooling weights and log-Mel features of waveforms (batch, time)."""
        return self.attend_features(self._features(waveform))

    def forward_features(self, log_mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return logits (batch, 2) of precomputed features.

        Args:
            log_mel: Tensor of shape (batch, n_mels, n_frames), padded at the end.
            lengths: Frames of each utterance, shape (batch,); None if nothing is padded. What is in
                the padding changes nothing.

        Example:
            >>> model = TFPARN().eval()
            >>> model.forward_features(torch.randn(2, 160, 300), torch.tensor([300, 120])).shape
            torch.Size([2, 2])
        """
        return self.attend_features(log_mel, lengths).logits

    def attend_features(self, log_mel: Tensor, lengths: Tensor | None = None) -> Attended:
        """Return what `attend` does of precomputed features; see `forward_features`."""
        embedding, weights = self._pool(log_mel, lengths)
        return Attended(self.classify(embedding), weights, log_mel, self.config.hop_length)

    def _features(self, waveform: Tensor) -> Tensor:
        """Return log-Mel features (batch, n_mels, n_frames), masked in training where asked for."""
        check_waveform_batch(waveform, self.config.n_fft)
        features: Tensor = self.log_mel(waveform)
        if self.feature_mask is not None and self.training:  # drawn as dropout is
            features = self.feature_mask(features, generator=torch.default_generator)
        return features

    def _pool(self, log_mel: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if log_mel.dim() != 3 or log_mel.shape[1] != self.config.n_mels:
            raise ValueError(
                f"`log_mel` must have shape (batch, {self.config.n_mels}, n_frames); "
                f"got {tuple(log_mel.shape)}."
            )
        mask = None if lengths is None else self._mask(log_mel, lengths)
        # In evaluation on a CPU a few utterances at a time stay in the cache; a traced graph, and
        # one that is differentiated, takes all.
        if (
            torch.is_grad_enabled()
            or log_mel.device.type != "cpu"
            or torch.compiler.is_compiling()
            or log_mel.shape[0] <= _CPU_BATCH
        ):
            return self._encode(log_mel, mask)
        parts = [
            self._encode(part, None if mask is None else mask[k * _CPU_BATCH :][: len(part)])
            for k, part in enumerate(torch.split(log_mel, _CPU_BATCH))
        ]
        embeddings, weights = zip(*parts, strict=True)
        return torch.cat(embeddings), torch.cat(weights)

    def _encode(self, log_mel: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        frames = log_mel.transpose(1, 2)
        if mask is not None:
            frames = frames.masked_fill(~mask[..., None], 0.0)
        frames = self.projection(self.norm(frames))
        frames = frames + sinusoidal_positions(frames.shape[1], frames.shape[2], like=frames)
        for layer in self.layers:
            frames = layer(frames, mask)
        weights = self.pooling(frames, mask)
        return torch.einsum("bt,btd->bd", weights.to(frames.dtype), frames), weights

    def _mask(self, log_mel: Tensor, lengths: Tensor) -> Tensor:
        n_frames = log_mel.shape[-1]
        if lengths.shape != log_mel.shape[:1]:
            raise ValueError(
                f"`lengths` must have shape ({len(log_mel)},), one for each utterance; "
                f"got {tuple(lengths.shape)}."
            )
        # On another device the question would wait for it.
        if lengths.device.type == "cpu" and (lengths.min() < 1 or lengths.max() > n_frames):
            raise ValueError(
                f"`lengths` must lie between 1 and the {n_frames} frames of `log_mel`; "
                f"got {lengths.min().item()} to {lengths.max().item()}."
            )
        return frame_mask(lengths.to(log_mel.device, non_blocking=True), n_frames)
