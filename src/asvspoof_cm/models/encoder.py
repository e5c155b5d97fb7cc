"""Encoder: pretrained speech encoders under one small head."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from asvspoof_cm._util import check_between, one_line
from asvspoof_cm.labels import SAMPLE_RATE
from asvspoof_cm.models.base import Countermeasure, check_config, check_waveform_batch
from asvspoof_cm.models.distillmos import DistillMOSEncoder
from asvspoof_cm.models.huggingface import HuggingFaceEncoder, read_architecture
from asvspoof_cm.models.layers import ChannelAttention, attentive_statistics
from asvspoof_cm.models.whisper import WHISPER_SIZES, WhisperEncoder

_BUILT_IN = ("distillmos", *(f"whisper-{size}" for size in WHISPER_SIZES))

_HOP_S = 320 / SAMPLE_RATE  # from frame to frame, in every encoder
_HEADS = ("frame_head.", "speech_head.", "frame_speech_head.")

Freeze = int | Literal["none", "all"]
# Each maps waveforms (batch, time) of peak 1 to layers (batch, time // 320, width).
SpeechEncoder = DistillMOSEncoder | WhisperEncoder | HuggingFaceEncoder


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which encoders an `Encoder` has, and the size of its head.

    `n_layers` and `freeze` have one value for all encoders, or a tuple of one for each.

    Attributes:
        encoder: "distillmos", "whisper-tiny", "whisper-base", "whisper-small" (each also with
            ".en"), or the name or folder of a transformers model; a tuple joins several.
        n_layers: The Transformer layers that are built and stored, from the lowest. None is 3 for
            Whisper and all of a transformers model; DistillMOS has none.
        freeze: What is not trained: "none", "all", or the lowest n stages. A stage is a convolution
            of DistillMOS, all convolutions of another encoder, or a Transformer layer.
        d_projection: The channels that each encoder's frames are projected to.
        d_attention: The hidden channels of the attention that pools the frames.
        dropout: In the head.
        encoder_lr: The learning rate of the encoders, as a share of the head's.
        frame_head: Whether a head tells human from synthetic speech in each frame; see `outputs`.
        speech_head: Whether a head tells speech from its absence; with both, in each frame too.
        architecture: The configurations of transformers models, by name; `Encoder` fills it in.

    Example:
        >>> EncoderConfig(encoder=("distillmos", "whisper-base"), n_layers=(0, 3)).encoder
        ('distillmos', 'whisper-base')
    """

    encoder: str | tuple[str, ...] = "distillmos"
    n_layers: int | tuple[int | None, ...] | None = None
    freeze: Freeze | tuple[Freeze, ...] = "none"
    d_projection: int = 256
    d_attention: int = 128
    dropout: float = 0.2
    encoder_lr: float = 0.1
    frame_head: bool = False
    speech_head: bool = False
    architecture: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_config(self)
        names = self.encoders
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"`encoder` must be a name or a tuple of names; got {self.encoder!r}.")
        check_between("encoder_lr", self.encoder_lr, 0, 1)
        for name, words, rule in (
            ("n_layers", (None,), "a whole number of at least 0, or None"),
            ("freeze", ("none", "all"), '"none", "all" or a number of stages'),
        ):
            for value in self.each(name):
                if value not in words and (type(value) is not int or value < 0):
                    raise ValueError(f"`{name}` must be {rule}; got {value!r}.")

    @property
    def encoders(self) -> tuple[str, ...]:
        """The names of the encoders."""
        return (self.encoder,) if isinstance(self.encoder, str) else self.encoder

    def each(self, name: str) -> tuple[Any, ...]:
        """Return the values of a field for each encoder."""
        value, n = getattr(self, name), len(self.encoders)
        if not isinstance(value, tuple):
            return (value,) * n
        if len(value) != n:
            raise ValueError(
                f"`{name}` must be one value, or one for each of the {n} encoders; got {value}."
            )
        return value


class LayerMixture(nn.Module):
    """Project the softmax-weighted sum of an encoder's layers."""

    def __init__(self, widths: Sequence[int], d_projection: int, p_dropout: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(len(widths))) if len(widths) > 1 else None
        self.dropout = nn.Dropout(p_dropout)
        self.width = str(widths[0])  # by which stored states name the projection
        self.projections = nn.ModuleDict({self.width: nn.Linear(widths[0], d_projection)})

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return frames (batch, n_frames, d_projection)."""
        mixed = layers[0]
        if self.weights is not None:
            shares = self.weights.softmax(dim=0)
            parts = [share * layer for share, layer in zip(shares, layers, strict=True)]
            mixed = sum(parts[1:], parts[0])
        return self.projections[self.width](self.dropout(mixed))


class FrameHead(nn.Module):
    """One logit for each frame, from the normalised frames around it: 13 frames, 0.26 s."""

    def __init__(self, d_frames: int, d_hidden: int = 64, kernel_size: int = 7) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_frames)
        self.project = nn.Linear(d_frames, d_hidden)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(d_hidden, d_hidden, kernel_size, padding="same") for _ in range(2)
        )
        self.score = nn.Linear(d_hidden, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Return logits (batch, n_frames) of frames (batch, n_frames, d_frames)."""
        x = self.project(self.norm(frames)).transpose(1, 2)
        for convolution in self.convolutions:
            x = x + convolution(functional.gelu(x))
        return self.score(functional.gelu(x).transpose(1, 2)).squeeze(-1)


class Frames(NamedTuple):
    """Log-odds (batch, n_frames) of frames, each of `hop_s` seconds: human speech, and speech."""

    logits: Tensor
    hop_s: float
    speech_logits: Tensor | None


class Outputs(NamedTuple):
    """What `embed`, the model and its optional heads return; None where there is no such head.

    `speech_logits` are the log-odds that a waveform holds speech, shape (batch,).
    """

    embedding: Tensor
    logits: Tensor
    frames: Frames | None
    speech_logits: Tensor | None


class Encoder(Countermeasure):
    """Pretrained speech encoders, a softmax-weighted sum of their layers, attentive statistics.

    Waveforms are divided by their peak. Each encoder's layers are normalised, weighted, summed and
    projected; the frames of several encoders stand side by side. Mean and standard deviation over
    time, weighted by attention, are batch-normalised and classified. A new model has random
    weights: `load_published` loads the published ones of its encoders.

    Example:
        >>> model = Encoder(EncoderConfig(encoder="whisper-base", n_layers=3)).eval()
        >>> model(torch.randn(2, 32000)).shape
        torch.Size([2, 2])
        >>> model.load_published()  # doctest: +SKIP
    """

    config_type = EncoderConfig

    def __init__(self, config: EncoderConfig | None = None) -> None:
        super().__init__()
        config = EncoderConfig() if config is None else config
        unknown = set(config.encoders) - {*_BUILT_IN, *config.architecture}
        if unknown:
            read = {name: read_architecture(name) for name in sorted(unknown)}
            config = replace(config, architecture={**config.architecture, **read})
        self.config = config
        self.encoders, self.mixtures = nn.ModuleList(), nn.ModuleList()
        each = config.encoders, config.each("n_layers"), config.each("freeze")
        for name, n_layers, freeze in zip(*each, strict=True):
            self.encoders.append(_build(name, n_layers, config))
            _freeze(self._encoders()[-1], freeze)
        for encoder in self._encoders():
            mixture = LayerMixture(encoder.widths, config.d_projection, config.dropout)
            self.mixtures.append(mixture)
        d_frames = config.d_projection * len(self.encoders)
        self.attention = ChannelAttention(d_frames, config.d_attention)
        self.norm = nn.BatchNorm1d(2 * d_frames)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(2 * d_frames, 2)
        self.frame_head = FrameHead(d_frames) if config.frame_head else None
        self.all_parameters_used = not (config.frame_head or config.speech_head)
        self.speech_head = nn.Linear(2 * d_frames, 1) if config.speech_head else None
        has_both = config.frame_head and config.speech_head
        self.frame_speech_head = nn.Linear(d_frames, 1) if has_both else None

    def load_published(self, *paths: str | os.PathLike[str]) -> None:
        """Load the published weights of the encoders.

        Args:
            *paths: A file or folder for each encoder. Without, they are looked for in installed
                packages, in the folder ASVSPOOF_CM_WEIGHTS, in the user's cache and where
                transformers looks.

        Raises:
            FileNotFoundError: They are nowhere; the message says where to get them.
        """
        if paths and len(paths) != len(self.encoders):
            raise ValueError(
                f"`paths` must name one file for each of the {len(self.encoders)} encoders; got "
                f"{len(paths)}."
            )
        for k, encoder in enumerate(self._encoders()):
            encoder.load_published(Path(paths[k]) if paths else None)

    def load_from(self, other: Encoder) -> None:
        """Take over the weights of a model that lacks some of this one's optional heads.

        Heads that `other` lacks keep the weights they have; everything else must fit.

        Example:
            >>> model = Encoder(EncoderConfig(frame_head=True, speech_head=True))
            >>> model.load_from(Encoder())
        """
        if not isinstance(other, Encoder):
            raise TypeError(f"`other` must be an Encoder; got {type(other).__name__}.")
        own = {name: v for name, v in self.state_dict().items() if name.startswith(_HEADS)}
        try:
            self.load_state_dict({**own, **other.state_dict()})
        except RuntimeError as error:
            raise ValueError(
                f"`other` must be like this model but for optional heads: {one_line(error)}"
            ) from error

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the trainable parameters: the head's, and the encoders', which learn slower."""
        trained = {name: p for name, p in self.named_parameters() if p.requires_grad}
        slow = [p for name, p in trained.items() if name.startswith("encoders.")]
        head = [p for name, p in trained.items() if not name.startswith("encoders.")]
        encoders = {"params": slow, "lr_scale": self.config.encoder_lr}
        return [{"params": head}, *([encoders] if slow else [])]

    def embed(self, waveform: Tensor) -> Tensor:
        """Return the utterance vectors (batch, 2 · d_projection · n_encoders) of waveforms."""
        return self._pool(self._frames(waveform))

    def classify(self, embedding: Tensor) -> Tensor:
        """Return logits (batch, 2) of utterance vectors."""
        return self.classifier(self.dropout(embedding))

    def outputs(self, waveform: Tensor) -> Outputs:
        """Return the outputs of all heads for waveforms (batch, time), from one pass.

        Example:
            >>> outputs = Encoder(EncoderConfig(speech_head=True)).outputs(torch.randn(2, 32000))
            >>> outputs.logits.shape, outputs.speech_logits.shape, outputs.frames
            (torch.Size([2, 2]), torch.Size([2]), None)
        """
        frames = self._frames(waveform)
        embedding = self._pool(frames)
        logits, scored = self.classify(embedding), None
        if self.frame_head is not None:
            of_frames = self.frame_head(self.dropout(frames))
            scored = Frames(of_frames, _HOP_S, self._speech(self.frame_speech_head, frames))
        return Outputs(embedding, logits, scored, self._speech(self.speech_head, embedding))

    def _speech(self, head: nn.Module | None, x: Tensor) -> Tensor | None:
        return None if head is None else head(self.dropout(x)).squeeze(-1)

    def _encoders(self) -> list[SpeechEncoder]:
        return list(self.encoders)  # type: ignore[arg-type]

    def _frames(self, waveform: Tensor) -> Tensor:
        check_waveform_batch(waveform, max(encoder.n_least for encoder in self._encoders()))
        waveform = waveform / (waveform.abs().amax(dim=-1, keepdim=True) + 1e-8)
        frames = []
        for encoder, mixture in zip(self._encoders(), self.mixtures, strict=True):
            layers = encoder(waveform)
            if not encoder.is_normalized:
                layers = [_normalize(layer) for layer in layers]
            frames.append(mixture(layers))
        n_frames = min(part.shape[1] for part in frames)
        return torch.cat([part[:, :n_frames] for part in frames], dim=-1)

    def _pool(self, frames: Tensor) -> Tensor:
        weights = self.attention(frames)
        return self.norm(attentive_statistics(frames.to(weights.dtype), weights))


def _freeze(encoder: SpeechEncoder, freeze: Freeze) -> None:
    if freeze == "all":
        encoder.requires_grad_(False)
        return
    stages, n_stages = encoder.stages(), 0 if freeze == "none" else freeze
    if n_stages > len(stages):
        raise ValueError(
            f"`freeze` must not exceed the {len(stages)} stages of the encoder; got {n_stages}."
        )
    for module in itertools.chain(*stages[:n_stages]):
        module.requires_grad_(False)


def _normalize(layer: Tensor) -> Tensor:
    """Return each frame with mean 0 and variance 1, in float32 at least."""
    wide = layer.to(torch.promote_types(layer.dtype, torch.float32))
    return functional.layer_norm(wide, wide.shape[-1:])


def _build(name: str, n_layers: int | None, config: EncoderConfig) -> SpeechEncoder:
    if name == "distillmos":
        if n_layers:
            raise ValueError(f"`n_layers` of DistillMOS must be 0 or None; got {n_layers}.")
        return DistillMOSEncoder()
    if name in _BUILT_IN:
        n_layers = 3 if n_layers is None else n_layers
        return WhisperEncoder(name.removeprefix("whisper-"), n_layers=n_layers)
    return HuggingFaceEncoder(name, config.architecture[name], n_layers)
