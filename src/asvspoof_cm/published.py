"""Weights that others published, as models of this library."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.checkpoint import load_tensors, load_weights
from asvspoof_cm.models import AASIST, LCNN, AASISTConfig, LCNNConfig

__all__ = ["load_published_aasist", "load_published_lcnn"]


def load_published_aasist(path: str | os.PathLike[str]) -> AASIST:
    """Read the weights that the authors of AASIST and the ASVspoof 5 organisers published.

    The file decides whether the model is AASIST or AASIST-L, by the width of its graphs. Its input
    is that of the published evaluation: the first 64,600 samples, as they were read.

    Args:
        path: A ``.pth`` file with the state dict of a published AASIST.

    Returns:
        The model, on the CPU and in evaluation mode.

    Example:
        >>> load_published_aasist("AASIST-L.pth").config.n_channels  # doctest: +SKIP
        24
    """
    weights = load_tensors(path)
    if not isinstance(weights, Mapping) or not isinstance(weights.get("pos_S"), Tensor):
        raise ValueError(f"{path} does not hold the weights of a published AASIST.")
    for config in (AASISTConfig(), AASISTConfig.light()):
        if weights["pos_S"].shape[-1] == config.n_channels:
            model = AASIST(config)
            model.input = InputSettings(
                crop_s=64600 / 16000, n_crops=1, one_crop="start", normalization="none"
            )
            load_weights(model, weights, path)
            return model.eval()
    raise ValueError(
        f"{path} holds an AASIST with {weights['pos_S'].shape[-1]} channels; the published ones "
        "have 64 (AASIST) or 24 (AASIST-L)."
    )


def load_published_lcnn(path: str | os.PathLike[str]) -> LCNN:
    """Read the weights of LFCC-LCNN-LSTM-sum that Wang and Yamagishi published.

    The file decides whether the head is "sigmoid" or "cosine" (P2SGrad). The published score of the
    first is the difference of the logits, the default; that of the second the logit of bonafide.
    Waveforms are taken as they were read.

    Args:
        path: A ``.pt`` file with the state dict of a published LCNN.

    Returns:
        The model, on the CPU and in evaluation mode.

    Example:
        >>> load_published_lcnn("trained_network.pt").config.head  # doctest: +SKIP
        'sigmoid'
    """
    weights = load_tensors(path)
    if not isinstance(weights, Mapping) or "m_transform.0.0.weight" not in weights:
        raise ValueError(f"{path} does not hold the weights of a published LCNN.")
    renamed = {
        "m_transform.0.": "convolutions.",
        "m_before_pooling.0.0.l_blstm.": "lstm1.",
        "m_before_pooling.0.1.l_blstm.": "lstm2.",
        "m_output_act.0.": "output.",
        "m_angle.0.weight": "classes",
    }
    # The front-end is made from its formula; the rest normalises by 0 and 1.
    fixed = ("m_frontend.", "input_mean", "input_std", "output_mean", "output_std")
    ours = {}
    for name, tensor in weights.items():
        if not name.startswith(fixed):
            prefix = next((prefix for prefix in renamed if name.startswith(prefix)), "")
            ours[renamed.get(prefix, "") + name.removeprefix(prefix)] = tensor
    model = LCNN(LCNNConfig(head="cosine" if "classes" in ours else "sigmoid"))
    model.input = InputSettings(normalization="none")
    load_weights(model, ours, path)
    return model.eval()
