"""One safe file per model: tensors and plain values, read with ``torch.load(weights_only=True)``.

It holds the format number, the model's name and configuration, its input settings, its weights,
and what else is known about it. Format 1, of version 0.1.0, has no input settings of its own. The
checkpoints of a run leave out what was not trained: it stands once in a file beside them, which
they name by its hash. A hash of all that decides a score tells damage from anything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.models import Countermeasure, build_model
from asvspoof_cm.models.countermeasure import describe_model
from asvspoof_cm.utils.checks import one_line
from asvspoof_cm.utils.files import atomic_path
from asvspoof_cm.utils.settings import describe

__all__ = [
    "average_checkpoints",
    "load_checkpoint",
    "save_checkpoint",
]

FORMAT = 2
_MAKERS = ("empty", "zeros", "ones", "full", "rand", "randn", "arange", "linspace", "hann_window")
_KNOWN = ("averaged", "calibration", "card", "data", "dev", "epoch", "notes", "system", "training")
_KEYS = {"format", "model", "config", "input", "state_dict", "meta"}


def save_checkpoint(
    path: str | os.PathLike[str],
    model: Countermeasure,
    /,
    *,
    frozen_apart: bool = False,
    **known: Any,
) -> None:
    """Write a model, its configuration and what is known about it to one file, atomically.

    Args:
        path: The file to write or replace.
        model: The model; its configuration and its `input` settings are stored too.
        frozen_apart: Write the parameters that are not trained, such as those of a frozen encoder,
            to a file ``frozen-….pt`` beside it, named by their hash: once for all checkpoints of
            a run, which need it there.
        **known: What is known about the model, added to `model.meta`: ``calibration``, ``card``,
            ``data``, ``dev``, ``epoch``, ``system``, ``training``, or ``notes``, a dict of
            anything else. All are plain values: numbers, strings, lists and dicts.

    Raises:
        TypeError: A value is not plain, or a name is none of these.
        ValueError: The configuration builds another model than `model`, one of whose parts was
            replaced; or a value is not what its name says.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.models import TFPARN
        >>> path = Path(tempfile.mkdtemp()) / "tfparn.pt"
        >>> save_checkpoint(path, TFPARN(), notes={"trained_on": "ASVspoof 5 train"})
        >>> load_checkpoint(path).meta["notes"]
        {'trained_on': 'ASVspoof 5 train'}
    """
    name, config = describe_model(model)
    meta = _checked_meta({**model.meta, **known})
    _check_rebuilds(model)
    _check_plain(config, "config")
    content = {
        "format": FORMAT,
        "model": name,
        "config": config,
        "input": asdict(model.input),
        "state_dict": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
        "meta": meta,
    }
    frozen = _frozen(model) if frozen_apart else {}
    if frozen:
        content["state_dict"] = trained_state(model)
        content["frozen"] = _save_frozen(Path(path).parent, frozen)
    save_tensors(path, {**content, "sha256": _hash(content)})


def load_checkpoint(path: str | os.PathLike[str]) -> Countermeasure:
    """Read a model that `save_checkpoint` wrote.

    Nothing in the file is executed. Loading is strict: every weight must be there and nothing else.

    Returns:
        The model, on the CPU and in evaluation mode; `model.meta` is what was stored with it.

    Raises:
        ValueError: The file is not a checkpoint of this library, is damaged, holds more than
            tensors and plain values, or comes from a newer version.

    Example:
        >>> load_checkpoint("missing.pt")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'missing.pt'
    """
    content = load_tensors(path)
    if not isinstance(content, dict) or "format" not in content:
        hint = ""
        if isinstance(content, dict) and "pos_S" in content:
            hint = " It looks like published AASIST weights: use load_published_aasist."
        raise ValueError(f"{path} is not a checkpoint of asvspoof-cm.{hint}")
    if type(content["format"]) is not int or not 1 <= content["format"] <= FORMAT:
        shown = " ".join(repr(content["format"]).split())[:40]
        raise ValueError(
            f"{path} has checkpoint format {shown}; this version of asvspoof-cm reads 1 to "
            f"{FORMAT}. Upgrade asvspoof-cm."
        )
    if content["format"] == 1 and isinstance(content.get("meta"), dict):
        content["input"] = _first_input(content["meta"])
    frozen, found = content.pop("frozen", None), content.pop("sha256", None)
    if content.keys() != _KEYS:
        missing, extra = _KEYS - content.keys(), content.keys() - _KEYS
        raise ValueError(f"{path} is damaged: {_differences(missing, extra)}.")
    weights = content["state_dict"]
    _check_state(weights, path)
    if found is not None and _hash(content) != found:
        raise ValueError(f"{path} is damaged: its content is not what was written.")
    if frozen is not None:
        weights = {**weights, **_load_frozen(path, frozen)}
    try:
        model = _rebuild(content["model"], content["config"], weights.values())
        model.input = InputSettings.from_dict(content["input"])
        model.meta = _sorted_meta(content["meta"])
        if model.meta.get("calibration") is not None:
            Calibration.from_dict(model.meta["calibration"])
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} can't be rebuilt: {one_line(error)}") from error
    load_weights(model, weights, path)
    return model.eval()


def trained_state(model: Countermeasure) -> dict[str, Tensor]:
    """Return the state dict without the parameters that are not trained."""
    frozen = _frozen(model)
    return {name: t.cpu() for name, t in model.state_dict().items() if name not in frozen}


def load_trained(model: Countermeasure, state: Mapping[str, Tensor]) -> None:
    """Load what `trained_state` returned into a model like that one."""
    model.load_state_dict({**_frozen(model), **state})


def _frozen(model: Countermeasure) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}


def _save_frozen(folder: Path, frozen: Mapping[str, Tensor]) -> dict[str, str]:
    """Write the tensors unless they are there; return the name of their file and their hash."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in frozen.items()}
    digest = hash_tensors(tensors)
    path = folder / f"frozen-{digest[:16]}.pt"
    if not path.exists():
        save_tensors(path, tensors)
    return {"file": path.name, "sha256": digest}


def _load_frozen(path: str | os.PathLike[str], frozen: Any) -> dict[str, Tensor]:
    if not isinstance(frozen, Mapping) or frozen.keys() != {"file", "sha256"}:
        raise ValueError(f"{path} is damaged: it does not say where its frozen weights are.")
    name = str(frozen["file"])
    beside = Path(path).parent / name
    if Path(name).name != name or not beside.is_file():
        raise FileNotFoundError(
            f"{path} needs its frozen weights, {name}, in the same folder. Copy both; "
            "save_checkpoint(path, load_checkpoint(…)) makes one file of them."
        )
    tensors: dict[str, Tensor] = load_tensors(beside)
    if not isinstance(tensors, dict) or hash_tensors(tensors) != frozen["sha256"]:
        raise ValueError(f"{beside} does not hold the frozen weights of {path}.")
    return tensors


def hash_tensors(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """Return a hash of named tensors and of what is written about them."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _hash(content: Mapping[str, Any]) -> str:
    about = describe([content[name] for name in ("model", "config", "input", "meta")])
    return hash_tensors(content["state_dict"], repr(about))


def _check_state(weights: Any, path: str | os.PathLike[str]) -> None:
    """Raise unless these are named tensors whose every value is in memory."""
    if not isinstance(weights, Mapping):
        raise ValueError(f"{path} is damaged: its weights are a {type(weights).__name__}.")
    for name, tensor in weights.items():
        is_dense = isinstance(tensor, Tensor) and tensor.layout == torch.strided
        if not (isinstance(name, str) and is_dense) or (
            tensor.nbytes > tensor.untyped_storage().nbytes()  # an expanded view
        ):
            raise ValueError(f"{path} is damaged: its weight {name!r} is no whole tensor.")


class _Frugal(TorchFunctionMode):
    """Draw no initial weights, make nothing far larger than `tensors`.

    A front-end makes constants that no file holds, hence the margins. Without `tensors` any size
    is good.
    """

    def __init__(self, tensors: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        sizes = None if tensors is None else [tensor.numel() for tensor in tensors]
        self.n_values = math.inf if sizes is None else 4 * sum(sizes) + (1 << 25)
        self.n_calls = math.inf if sizes is None else 200 * len(sizes) + 20_000

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (Tensor.uniform_, Tensor.normal_) and kwargs.get("generator") is None:
            return args[0]
        n_values = 0
        if getattr(function, "__name__", "") in _MAKERS:
            sizes = [args[0]] if args and isinstance(args[0], tuple | list) else [args]
            n_values = math.prod(abs(n) for n in sizes[0] if type(n) is int and n)
            self.n_values -= n_values
        else:
            shapes = [value.shape for value in args if isinstance(value, Tensor)]
            with contextlib.suppress(RuntimeError):  # a product of matrices, a convolution
                n_values = math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
        self.n_calls -= 1
        if n_values > self.n_values or self.n_values < 0 or self.n_calls < 0:
            raise ValueError("its configuration makes a far larger model than its weights are.")
        return function(*args, **kwargs)


def _rebuild(name: str, config: Any, tensors: Iterable[Tensor] | None = None) -> Countermeasure:
    """Return a model without initial weights, PyTorch's random state as it was before."""
    with torch.random.fork_rng(devices=[]), _Frugal(tensors):
        return build_model(name, config)


def _check_rebuilds(model: Countermeasure) -> None:
    """Raise unless the configuration builds this model: what was replaced by hand would be lost."""
    rebuilt = _rebuild(*describe_model(model))
    for ours, theirs in zip(_structure(model), _structure(rebuilt), strict=True):
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise _replaced(model, f"{name}: {ours.get(name)} for {theirs.get(name)}")
    constants = dict(rebuilt.named_buffers())
    for name in constants.keys() - rebuilt.state_dict().keys():
        found, expected = (
            torch.view_as_real(b) if b.is_complex() else b
            for b in (model.get_buffer(name).cpu(), constants[name])
        )
        atol = 0.01 * expected.abs().max().item()  # the model may be in half precision
        if found.shape != expected.shape or not torch.allclose(
            found.double(), expected.double(), rtol=0, atol=atol
        ):
            raise _replaced(model, f"{name}: other values")


def _structure(model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the shapes of the weights, and what the modules are, rates of dropout apart."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    kinds: dict[str, Any] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.modules.dropout._DropoutNd):
            kinds[name] = f"{type(module).__name__}({module.extra_repr()})"
            if not [*module.children()]:  # a front-end prints nothing of itself
                kinds |= {f"{name}.{k}": v for k, v in vars(module).items() if _is_setting(k, v)}
    return shapes, kinds


def _is_setting(name: str, value: Any) -> bool:
    hidden = name.startswith("_") or name == "training"
    return not hidden and isinstance(value, bool | int | float | str | tuple)


def _replaced(model: Countermeasure, what: str) -> ValueError:
    kind = type(model).__name__
    return ValueError(
        f"`model` must be what its configuration builds, which is all that a checkpoint stores "
        f"beside the weights; this {kind} has another {what}. Derive a subclass of {kind} with a "
        "configuration of its own."
    )


def _first_input(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input settings of a file of format 1, scored by the peak of the utterance."""
    recipe = meta.get("recipe")
    trained_s = recipe.get("crop_s", 4.0) if isinstance(recipe, dict) else 4.0
    return {"crop_s": meta.get("crop_s", trained_s), "normalization": "utterance"}


def average_checkpoints(
    paths: Sequence[str | os.PathLike[str]],
    shares: Sequence[float] | None = None,
    *,
    batches: Iterable[Tensor] | None = None,
) -> Countermeasure:
    """Return a model whose weights are the mean of several checkpoints of one training.

    Late epochs of a run, or of runs that continue each other, lie close enough for their mean to be
    a model too, often one that generalises better (Izmailov et al., UAI 2018). Runs from other
    random weights do not.

    Args:
        paths: Checkpoints of the same model and configuration, two or more.
        shares: The weight of each in the mean, positive; their sum does not matter. None gives all
            the same. A fine-tuned model mixed with the one it began with keeps more of what that
            one knew (Wortsman et al., CVPR 2022).
        batches: Waveforms (batch, time) as the model was trained on, a few hundred of them: needed
            by a model with batch normalisation, whose statistics must be those of the mean.

    Returns:
        The model; its `meta` is that of the last checkpoint, with ``averaged``, the file names, and
        ``shares``, which sum to 1. Buffers are those of the last checkpoint too.

    Example:
        >>> average_checkpoints(["epoch7.pt", "epoch8.pt"]).meta["shares"]  # doctest: +SKIP
        [0.5, 0.5]
    """
    models = [load_checkpoint(path) for path in paths]
    if len(models) < 2:
        raise ValueError(f"`paths` must name two checkpoints or more; got {len(models)}.")
    shares = [1.0] * len(models) if shares is None else list(shares)
    if len(shares) != len(models) or not all(0 < share < math.inf for share in shares):
        raise ValueError(
            f"`shares` must be a positive number for each of the {len(models)} `paths`; got "
            f"{shares}."
        )
    result = models[-1]
    for path, model in zip(paths, models, strict=True):
        if type(model) is not type(result) or model.config != result.config:
            raise ValueError(
                f"`paths` must hold one model and configuration; {path} has a "
                f"{type(model).__name__} with {model.config}, the last a {type(result).__name__} "
                f"with {result.config}."
            )
    weights = torch.tensor(shares, dtype=torch.float64)
    weights /= weights.sum()
    norms = [m for m in result.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms and batches is None:
        raise ValueError(
            f"`batches` must be given for {type(result).__name__}, which has batch normalisation: "
            "its statistics are not those of any checkpoint. Pass waveforms of the training set."
        )
    columns = zip(*(model.parameters() for model in models), strict=True)
    with torch.no_grad():
        for of_models in columns:
            stacked = torch.stack([parameter.double() for parameter in of_models])
            of_models[-1].copy_(torch.tensordot(weights, stacked, dims=1))
    if batches is not None and norms:
        _renew_statistics(result, norms, batches)
    result.meta["averaged"] = [Path(path).name for path in paths]
    result.meta["shares"] = weights.tolist()
    return result


def _renew_statistics(
    model: Countermeasure,
    norms: Sequence[nn.modules.batchnorm._BatchNorm],
    batches: Iterable[Tensor],
) -> None:
    """Give batch normalisation the mean statistics of the batches."""
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # a plain mean over the batches
        module.train()
    with torch.no_grad():
        for waveforms in batches:
            model(waveforms)
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    model.eval()


def save_tensors(path: str | os.PathLike[str], content: Any) -> None:
    """Write tensors and plain values to a file, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)


def load_tensors(path: str | os.PathLike[str]) -> Any:
    """Read a file of tensors and plain values; nothing in it is executed.

    Raises:
        ValueError: The file is damaged or holds anything else.
    """
    with Path(path).open("rb") as file:
        _check_archive(file, path)
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} is not a file of tensors and plain values; it was refused and nothing in "
                "it was executed."
            ) from error
        except Exception as error:  # a damaged pickle can raise anything
            raise ValueError(
                f"{path} is damaged or not a PyTorch file ({one_line(error)})"
            ) from error


def _check_archive(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """Raise where reading would take far more memory than the file has bytes."""
    if zipfile.is_zipfile(file):
        n_bytes = file.seek(0, os.SEEK_END)
        try:
            entries = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise ValueError(f"{path} is damaged ({one_line(error)}).") from error
        if sum(entry.file_size for entry in entries) > n_bytes:
            raise ValueError(
                f"{path} is compressed or damaged: it would take more memory than it has bytes. "
                "torch.save compresses nothing."
            )
    file.seek(0)


def load_weights(
    model: Countermeasure, weights: Mapping[str, Any], path: str | os.PathLike[str]
) -> None:
    """Load weights that came from `path`; every one must be there, and nothing else."""
    _check_state(weights, path)
    expected = model.state_dict()
    missing, extra = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    misfit = f"{path} does not fit {type(model).__name__}"
    if missing or extra:
        raise ValueError(f"{misfit}: {_differences(missing, extra)}.")
    for name, tensor in expected.items():
        given = weights[name]
        if given.shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}; got {tuple(given.shape)}"
            raise ValueError(f"{misfit}: {name} must have shape {shapes}.")
        if given.is_floating_point() != tensor.is_floating_point():
            raise ValueError(f"{misfit}: {name} must be {tensor.dtype}; got {given.dtype}.")
    model.load_state_dict(weights)


def _differences(missing: set[str], extra: set[str]) -> str:
    parts = []
    for word, names in (("missing", missing), ("unexpected", extra)):
        if names:
            shown = ", ".join(sorted(map(str, names))[:3])
            parts.append(f"{len(names)} {word} ({shown}{', …' if len(names) > 3 else ''})")
    return "; ".join(parts)


def _checked_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint may say about its model, or say what it may not."""
    unknown = sorted(map(str, meta.keys() - set(_KNOWN)))
    if unknown:
        raise TypeError(
            f"save_checkpoint takes {', '.join(_KNOWN)}; got {', '.join(unknown)}. Pass what else "
            "is to be kept as notes={…}."
        )
    _check_plain(meta, "meta")
    if meta.get("calibration") is not None:
        Calibration.from_dict(meta["calibration"])
    notes = meta.get("notes", {})
    nested = sorted({*_KNOWN, "meta"} & set(notes)) if isinstance(notes, dict) else [repr(notes)]
    if nested:
        raise ValueError(
            f"`notes` must be a dict without the names of save_checkpoint; got {', '.join(nested)}."
        )
    return dict(meta)


def _sorted_meta(meta: Any) -> dict[str, Any]:
    """Return stored meta with what has no place of its own, from before 0.3, among its notes."""
    meta = dict(meta)
    others = {name: meta.pop(name) for name in [*meta] if name not in _KNOWN}
    return {**meta, "notes": {**meta.get("notes", {}), **others}} if others else meta


def _check_plain(value: Any, name: str) -> None:
    if type(value) is dict:
        for key, item in value.items():
            _check_plain(key, f"a key of {name}")
            _check_plain(item, f"{name}[{key!r}]")
    elif type(value) in (list, tuple):
        for k, item in enumerate(value):
            _check_plain(item, f"{name}[{k}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(
            f"`{name}` must be a plain value (number, string, list or dict), so that "
            f"loading stays safe; got {type(value).__name__}."
        )
