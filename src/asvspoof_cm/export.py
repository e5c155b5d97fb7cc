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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asvspoof_cm._util import atomic_path, check_numbers, heads_of, import_extra, one_line
from asvspoof_cm.audio import Array, InputSettings
from asvspoof_cm.calibration import Calibration

if TYPE_CHECKING:
    from asvspoof_cm.models import Countermeasure

__all__ = ["export_onnx", "load_onnx"]

INPUT = "waveform"
_DESCRIPTION, _SHA256 = "asvspoof-cm", "asvspoof-cm.sha256"
_NO_HASH = b"0" * 64  # in the place of the hash while the file is hashed
_LEAST_SAMPLES, _MOST_SAMPLES = 4096, 1 << 24


def export_onnx(model: Countermeasure, path: str | os.PathLike[str]) -> None:
    """Write a model as ONNX: waveform (batch, time) in, logits (batch, 2) out.

    The front-end is part of the graph. Batch and time may be any; for AASIST, RawNet2 and LCNN,
    whose graphs have a node for each stretch of time, time is that of a crop. The metadata have
    rate, crops and level, the calibration where the model has one, and a hash of the file that
    `load_onnx` checks. The model itself is not changed.

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
    proto, hop_s = _capture(copy.deepcopy(model).cpu().eval())
    # Shapes of inner values only help readers, and some contradict ONNX's own inference.
    del proto.graph.value_info[:]
    kept = {name: model.meta.get(name) for name in ("calibration", "segments")}
    described = json.dumps({"input": asdict(model.input), "hop_s": hop_s, **kept})
    onnx.helper.set_model_props(proto, {_DESCRIPTION: described, _SHA256: _NO_HASH.decode()})
    content = proto.SerializeToString()
    found = hashlib.sha256(content).hexdigest()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.replace(_NO_HASH, found.encode()))


def _capture(model: Any) -> tuple[Any, float]:
    """Return the graph of a model with an output for each head, and the hop of its frames."""
    import torch

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, waveform: Any) -> tuple[Any, ...]:
            return tuple(x for name, x in heads_of(self.model, waveform).items() if name != "hop_s")

    # The batch of the example must not be 1, which export takes for a constant.
    example = torch.zeros(2, model.input.n_samples)
    with torch.no_grad():
        heads = heads_of(model, example)
    hop_s = float(heads.pop("hop_s", 0.0))
    shapes = {0: torch.export.Dim("batch", min=1)}
    if model.any_length:
        shapes[1] = torch.export.Dim("time", min=_LEAST_SAMPLES, max=_MOST_SAMPLES)
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporters' own hints, as their progress and warnings
    try:
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            program: Any = torch.onnx.export(
                Heads().eval(),
                (example,),
                dynamo=True,
                optimize=False,  # it takes for zero what keeps a divisor above zero
                dynamic_shapes=(shapes,),
                input_names=[INPUT],
                output_names=[*heads],
            )
    finally:
        logging.disable(level)
    # The exporter fixes an axis rather than fail where a model turns out to depend on it.
    axes = program.model_proto.graph.input[0].type.tensor_type.shape.dim
    if not all(axes[k].dim_param for k in shapes):
        raise RuntimeError(f"the model was traced for one size only: {axes}.")
    return program.model_proto, hop_s


class OnnxModel:
    """An ONNX file of `export_onnx`: waveforms to logits, arrays both, on the CPU."""

    takes_arrays = True

    def __init__(self, path: str | os.PathLike[str], n_threads: int | None) -> None:
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

    def __call__(self, waveforms: Array) -> Array:
        """Return logits (batch, 2) of waveforms (batch, time)."""
        logits: Array = self.heads(waveforms)["logits"]
        return logits

    def heads(self, waveforms: Array) -> dict[str, Any]:
        """Return what `heads_of` does."""
        try:
            found = self._session.run(self._names, {INPUT: waveforms})
        except Exception as error:  # one of onnxruntime's own, as in loading
            raise ValueError(
                f"{self._path} can't be run on waveforms {waveforms.shape} ({one_line(error)})."
            ) from error
        return {**dict(zip(self._names, found, strict=True)), "hop_s": self._hop_s}


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
    return OnnxModel(path, n_threads)


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
