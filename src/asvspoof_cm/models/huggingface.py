"""Encoders of the library transformers: wav2vec 2.0, XLS-R, HuBERT and WavLM.

The extra ``asvspoof-cm[transformers]`` brings it, imported when used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from asvspoof_cm._util import import_extra

_FAMILIES = ("wav2vec2", "hubert", "wavlm")


def read_architecture(name: str) -> dict[str, Any]:
    """Return the configuration of a transformers model, by its name or folder, as plain values."""
    try:
        config = _transformers().AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"`encoder` must be the name of a built-in encoder or a transformers model; {name!r} "
            f"could not be read as one: {error}"
        ) from error
    content: dict[str, Any] = json.loads(config.to_json_string())
    return content


class HuggingFaceEncoder(nn.Module):
    """The convolutions and the first Transformer layers of wav2vec 2.0, XLS-R, HuBERT or WavLM.

    Its layers are the input of the Transformer and the output of each of its layers.

    Note:
        Nothing is dropped or masked in training. Large models (``feat_extract_norm="layer"``) get
        waveforms of mean 0 and variance 1; their norm after the last layer is left out, so that
        layer k is the same however many follow.
    """

    is_normalized = False

    def __init__(self, name: str, architecture: Mapping[str, Any], n_layers: int | None) -> None:
        super().__init__()
        family = architecture.get("model_type")
        if family not in _FAMILIES:
            raise ValueError(
                f"`encoder` must be a model of the families {', '.join(_FAMILIES)}; {name!r} is a "
                f"{family}."
            )
        self.name = name
        self.model = _model(architecture, n_layers)
        config = self.model.config
        self.widths = (config.hidden_size,) * (config.num_hidden_layers + 1)
        self.standardize = config.feat_extract_norm == "layer"
        n_samples = 1
        for kernel, stride in zip(config.conv_kernel[::-1], config.conv_stride[::-1], strict=True):
            n_samples = (n_samples - 1) * stride + kernel
        self.n_least = n_samples

    def forward(self, waveform: Tensor) -> list[Tensor]:
        """Return the layers of waveforms (batch, time)."""
        if self.standardize:
            mean = waveform.mean(dim=-1, keepdim=True)
            variance = waveform.var(dim=-1, keepdim=True, correction=0)
            waveform = (waveform - mean) / (variance + 1e-7).sqrt()
        return list(self.model(waveform, output_hidden_states=True).hidden_states)

    def stages(self) -> list[Iterable[nn.Module]]:
        """Return the convolutions and what prepares their output, then each Transformer layer."""
        encoder = self.model.encoder
        layers = list(encoder.layers)
        first = [child for child in encoder.children() if child is not encoder.layers]
        below = [self.model.feature_extractor, self.model.feature_projection, *first]
        return [below, *((layer,) for layer in layers)]

    def load_published(self, path: Path | None = None) -> None:
        """Load the weights that transformers finds by the model's name, or in a folder."""
        source, library = self.name if path is None else str(path), _transformers()
        verbosity = library.logging.get_verbosity()
        library.logging.set_verbosity_error()  # no report of the layers that are left out
        try:
            loaded, report = library.AutoModel.from_pretrained(
                source, config=self.model.config, output_loading_info=True
            )
        finally:
            library.logging.set_verbosity(verbosity)
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise ValueError(f"{source} lacks weights of the encoder: {missing}.")
        _remove_last_norm(loaded)
        self.model.load_state_dict(loaded.state_dict())


def _model(architecture: Mapping[str, Any], n_layers: int | None) -> Any:
    config = _transformers().AutoConfig.for_model(**architecture)
    n_all = config.num_hidden_layers
    if n_layers is not None:
        if not 1 <= n_layers <= n_all:
            raise ValueError(
                f"`n_layers` must lie between 1 and the {n_all} of the encoder; got {n_layers}."
            )
        config.num_hidden_layers = n_layers
    for name, value in vars(config).items():
        if isinstance(value, float) and ("dropout" in name or name == "layerdrop"):
            setattr(config, name, 0.0)
    config.apply_spec_augment = False
    config.mask_time_prob = config.mask_feature_prob = 0.0
    model = _transformers().AutoModel.from_config(config)
    _remove_last_norm(model)
    return model


def _remove_last_norm(model: Any) -> None:
    if model.config.do_stable_layer_norm:
        model.encoder.layer_norm = nn.Identity()


def _transformers() -> Any:
    return import_extra("transformers", "transformers")
