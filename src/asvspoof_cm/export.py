"""ONNX: a model as one file that runs without PyTorch, waveform in and logits out.

The extra ``asvspoof-cm[onnx]`` brings onnx, onnxscript and ONNX Runtime, imported when used.
PyTorch is imported to export only.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from asvspoof_cm._util import atomic_path, check_numbers, import_extra, one_line
from asvspoof_cm.audio import Array, InputSettings
from asvspoof_cm.calibration import Calibration

if TYPE_CHECKING:
    from torch import nn

    from asvspoof_cm.models import Countermeasure

__all__ = ["export_onnx", "load_onnx"]

INPUT = "waveform"
# Of them a file has "logits" and what its model has heads for.
OUTPUTS = ("logits", "speech", "frames", "frame_speech")
_DESCRIPTION, _SHA256 = "asvspoof-cm", "asvspoof-cm.sha256"
_NO_HASH = b"0" * 64  # in the place of the hash while the file is hashed
_LEAST_SAMPLES, _MOST_SAMPLES = 4096, 1 << 24


def export_onnx(model: Countermeasure, path: str | os.PathLike[str]) -> None:
    """Write a model as ONNX: waveform (batch, time) in, logits (batch, 2) out.

    The front-end is part of the graph. Batch and time may be any; for AASIST, RawNet2 and LCNN,
    whose graphs have a node for each stretch of time, time is that of a crop. The file holds
    everything: weights and, in its metadata, rate, crops and level, the calibration where the model
    has one, and a hash of the file that `load_onnx` checks. The model itself is not changed.

    Args:
        model: The model.
        path: The file to write or replace, such as ``tfparn.onnx``.

    Raises:
        ImportError: Without the extra ``onnx``.

    Example:
        >>> from asvspoof_cm.models import TFPARN
        >>> export_onnx(TFPARN(), "tfparn.onnx")  # doctest: +SKIP
    """
    import_extra("onnxscript", "onnx")
    onnx = import_extra("onnx", "onnx")
    import torch

    model = copy.deepcopy(model).cpu().eval()
    # The batch of the example must not be 1, which export takes for a constant.
    example = torch.zeros(2, model.input.n_samples)
    heads, names, hop_s = _heads(model, example)
    with _quiet():
        proto = _capture(heads, example, names, model.any_length)
    # Shapes of inner values only help readers, and some contradict ONNX's own inference.
    del proto.graph.value_info[:]
    kept = {name: model.meta.get(name) for name in ("calibration", "segments")}
    described = json.dumps({"input": asdict(model.input), "hop_s": hop_s, **kept})
    onnx.helper.set_model_props(proto, {_DESCRIPTION: described, _SHA256: _NO_HASH.decode()})
    content = proto.SerializeToString()
    found = hashlib.sha256(content).hexdigest()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.replace(_NO_HASH, found.encode()))


class OnnxModel:
    """An ONNX file of `export_onnx`: waveforms to logits, arrays both, on the CPU."""

    takes_arrays = True

    def __init__(self, path: str | os.PathLike[str], *, n_threads: int | None = None) -> None:
        runtime = import_extra("onnxruntime", "onnx")
        content = Path(path).read_bytes()
        _check_hash(content, path)
        self._path = path
        self.sha256 = hashlib.sha256(content).hexdigest()
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # no warnings about what it does not optimise
        options.intra_op_num_threads = (
            int(os.environ.get("OMP_NUM_THREADS", 0)) if n_threads is None else n_threads
        )
        try:
            self._session = runtime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
            described = json.loads(self._session.get_modelmeta().custom_metadata_map[_DESCRIPTION])
            self.input = InputSettings.from_dict(described.pop("input"))
            self._hop_s = float(described.pop("hop_s"))
            if described.get("calibration") is not None:
                Calibration.from_dict(described["calibration"])
            check_numbers("segments", described.get("segments"))
        except Exception as error:  # onnxruntime has a class for each kind, all of them private
            raise ValueError(f"{path} can't be used as a model ({one_line(error)})") from error
        self.meta: dict[str, Any] = {k: v for k, v in described.items() if v is not None}
        self._names = [node.name for node in self._session.get_outputs()]
        self.frame_head = "frames" in self._names

    def __call__(self, waveform: Array) -> Array:
        """Return logits (batch, 2) of waveforms (batch, time)."""
        logits: Array = self.outputs(waveform).logits
        return logits

    def outputs(self, waveform: Array) -> Any:
        """Return what all heads say, named as `Encoder.outputs` names them."""
        try:
            found = self._session.run(self._names, {INPUT: waveform})
        except Exception as error:  # one of onnxruntime's own, as in loading
            raise ValueError(
                f"{self._path} can't be run on waveforms {waveform.shape} ({one_line(error)})."
            ) from error
        of = dict.fromkeys(OUTPUTS) | dict(zip(self._names, found, strict=True))
        frames = None
        if self.frame_head:
            frames = SimpleNamespace(
                logits=of["frames"], speech_logits=of["frame_speech"], hop_s=self._hop_s
            )
        return SimpleNamespace(logits=of["logits"], speech_logits=of["speech"], frames=frames)


def load_onnx(path: str | os.PathLike[str], *, n_threads: int | None = None) -> OnnxModel:
    """Return an exported model, ready for `Scorer`: arrays of waveforms to logits, on the CPU.

    It has `input`, what it needs to know about its input, `meta` with its calibration and `sha256`.

    Args:
        path: A file that `export_onnx` wrote.
        n_threads: Threads of ONNX Runtime; None is what the variable OMP_NUM_THREADS says, else one
            for each core.

    Raises:
        ImportError: Without the extra ``onnx``.
        ValueError: The file is not such a model, or damaged.

    Example:
        >>> from asvspoof_cm.scorer import Scorer
        >>> scorer = Scorer(load_onnx("tfparn.onnx"))  # doctest: +SKIP
    """
    return OnnxModel(path, n_threads=n_threads)


def _check_hash(content: bytes, path: str | os.PathLike[str]) -> None:
    """Raise unless a file is what `export_onnx` wrote, by the hash in its metadata."""
    # The property in the file: its name, the tag and the length of its value, its value.
    stored = re.search(re.escape(_SHA256).encode() + rb"\x12\x40([0-9a-f]{64})", content)
    found = b"" if stored is None else content.replace(stored[1], _NO_HASH)
    if stored is None or hashlib.sha256(found).hexdigest().encode() != stored[1]:
        raise ValueError(
            f"{path} is damaged, or export_onnx did not write it: the hash in its metadata is "
            "not its own. Export the checkpoint again."
        )


def _heads(model: Any, example: Any) -> tuple[nn.Module, list[str], float]:
    """Return what to export, a module with a tuple of outputs, their names, and a frame's hop."""
    import torch

    if not hasattr(model, "outputs"):
        return model, ["logits"], 0.0

    def every(outputs: Any) -> tuple[Any, ...]:
        _, logits, frames, speech = outputs
        of_frames = (None, None) if frames is None else (frames.logits, frames.speech_logits)
        return (logits, speech, *of_frames)

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, waveform: Any) -> Any:
            return tuple(each for each in every(model.outputs(waveform)) if each is not None)

    with torch.no_grad():
        outputs = model.outputs(example)
    frames = outputs.frames
    names = [name for name, each in zip(OUTPUTS, every(outputs), strict=True) if each is not None]
    return Heads().eval(), names, 0.0 if frames is None else float(frames.hop_s)


def _capture(heads: nn.Module, example: Any, names: list[str], any_length: bool) -> Any:
    """Return the graph of a module."""
    import torch

    shapes = {0: torch.export.Dim("batch", min=1)}
    if any_length:
        shapes[1] = torch.export.Dim("time", min=_LEAST_SAMPLES, max=_MOST_SAMPLES)
    program: Any = torch.onnx.export(
        heads,
        (example,),
        dynamo=True,
        optimize=False,  # it takes for zero what keeps a divisor above zero: silence was NaN
        dynamic_shapes=(shapes,),
        input_names=[INPUT],
        output_names=names,
    )
    # The exporter fixes an axis rather than fail where a model turns out to depend on it.
    axes = program.model_proto.graph.input[0].type.tensor_type.shape.dim
    if not all(axes[k].dim_param for k in shapes):
        raise RuntimeError(f"the model was traced for one size only: {axes}.")
    return program.model_proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own progress, hints and deprecations from the user."""
    level = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
