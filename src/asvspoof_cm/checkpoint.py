"""Models as files: save and load, what ships with the package, the hub, what others published.

A checkpoint is one file of tensors and plain values, read with ``torch.load(weights_only=True)``:
the format number, the model's name and configuration, its input settings, its weights, what else is
known about it, and the hash of all that. The hash tells damage, and which model it is. A folder in
the layout of the Hugging Face hub holds the same, with the same hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import pickle
import pickletools
import re
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from asvspoof_cm._hub import DEFAULT_NAME, PRETRAINED, is_hub_name, model_card, pretrained_path
from asvspoof_cm._util import atomic_path, check_numbers, import_extra, one_line, write_text
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.models import AASIST, LCNN, AASISTConfig, Countermeasure, LCNNConfig, build_model
from asvspoof_cm.models.base import build_config, complete_config, describe_model

__all__ = [
    "DEFAULT_NAME",
    "PRETRAINED",
    "average_checkpoints",
    "content_hash",
    "load_checkpoint",
    "load_pretrained",
    "load_published",
    "load_tensors",
    "pretrained_path",
    "push_to_hub",
    "save_checkpoint",
    "save_folder",
    "save_tensors",
]

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=Countermeasure)

FORMAT = 2
_KEYS = {"format", "model", "config", "input", "state_dict", "meta", "sha256"}
_KNOWN = (
    *("averaged", "calibration", "card", "data", "dev", "epoch", "notes", "segments", "system"),
    "training",
)
_MAKERS = ("empty", "zeros", "ones", "full", "rand", "randn", "arange", "linspace", "hann_window")
_CLASSES = re.compile(
    r"collections OrderedDict|torch \w+Storage|torch._utils _rebuild_(tensor_v2|parameter)"
)
_MOST_VALUES, _DEEPEST = 1 << 24, 32
_SETTING = (bool, int, float, str, tuple)
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"  # of a folder in the hub's layout
_MOST_BYTES = 1 << 22  # of its config.json
_said: set[str] = set()


def save_checkpoint(path: str | os.PathLike[str], model: Countermeasure, /, **known: Any) -> None:
    """Write a model, its configuration and what is known about it to one file, atomically.

    Args:
        path: The file to write or replace.
        model: The model; its configuration and its `input` settings are stored too.
        **known: What is known about the model, added to `model.meta`: ``calibration``, ``card``,
            ``data``, ``dev``, ``epoch``, ``system``, ``training``, or ``notes``, a dict of
            anything else. All are plain values: numbers, strings, lists and dicts.

    Raises:
        TypeError: A value is not plain, or a name is none of these.
        ValueError: The configuration builds another model than `model`, one of whose parts was
            replaced; or a value does not fit its name.

    Example:
        >>> import tempfile
        >>> from asvspoof_cm.models import TFPARN
        >>> path = Path(tempfile.mkdtemp()) / "tfparn.pt"
        >>> save_checkpoint(path, TFPARN(), notes={"trained_on": "ASVspoof 5 train"})
        >>> load_checkpoint(path).meta["notes"]
        {'trained_on': 'ASVspoof 5 train'}
    """
    save_tensors(path, _content_to_save(model, known))


def save_folder(folder: str | os.PathLike[str], model: Countermeasure, /, **known: Any) -> None:
    """Write a model as a folder in the layout of the Hugging Face hub, with a model card.

    It needs the extra ``hub``. `load_checkpoint` and `load_pretrained` read it.

    Args:
        folder: The folder to write into: ``config.json``, ``model.safetensors``, ``README.md``.
        model: As in `save_checkpoint`.
        **known: As in `save_checkpoint`; the model card is made of ``card``.
    """
    _write_folder(Path(folder), _content_to_save(model, known))


def push_to_hub(model: Countermeasure, name: str, *, private: bool = False) -> str:
    """Write a model into a repository of the Hugging Face hub, and return the commit.

    It needs the extra ``hub`` and a token (``hf auth login``, or HF_TOKEN in the environment). The
    model card is made of ``model.meta["card"]``.

    Args:
        model: As in `save_checkpoint`.
        name: ``owner/name``; the repository is made where there is none.
        private: Whether a new repository is private.

    Example:
        >>> commit = push_to_hub(model, "owner/tfparn-mine")  # doctest: +SKIP
        >>> load_pretrained("owner/tfparn-mine", revision=commit)  # doctest: +SKIP
    """
    client = import_extra("huggingface_hub", "hub").HfApi()
    with tempfile.TemporaryDirectory() as folder:
        _write_folder(Path(folder), _content_to_save(model, {}), name)
        client.create_repo(name, private=private, exist_ok=True)
        return str(client.upload_folder(repo_id=name, folder_path=folder).oid)


def load_checkpoint(path: str | os.PathLike[str], *, sha256: str | None = None) -> Countermeasure:
    """Read a model that `save_checkpoint` or `save_folder` wrote.

    Nothing in the file is executed. Loading is strict: every weight must be there and nothing else.

    Args:
        path: The file, or the folder.
        sha256: The hash that the model must have; None takes any.

    Returns:
        The model, on the CPU and in evaluation mode; `model.meta` is what was stored with it.

    Raises:
        ValueError: The file is not a checkpoint of this library, is damaged, holds another model,
            holds more than tensors and plain values, or comes from a newer version.

    Example:
        >>> load_checkpoint("missing.pt")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'missing.pt'
    """
    content = _read_folder(Path(path)) if Path(path).is_dir() else load_tensors(path)
    _check_content(content, path, sha256)
    weights = content["state_dict"]
    try:
        config = complete_config(content["model"], content["config"])
        model = _rebuild(content["model"], config, weights.values())
        model.input = InputSettings.from_dict(content["input"])
        model.meta = dict(content["meta"])
        model.stored_config = content["config"]
        if model.meta.get("calibration") is not None:
            Calibration.from_dict(model.meta["calibration"])
        check_numbers("segments", model.meta.get("segments"))
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} can't be rebuilt: {one_line(error)}") from error
    return _fit_weights(model, weights, path)


def load_pretrained(
    name: str | None = None, *, revision: str | None = None, sha256: str | None = None
) -> Countermeasure:
    """Return a model that ships with the package or lies on the Hugging Face hub.

    Args:
        name: One of `PRETRAINED`, whose hash is checked; ``owner/name`` on the hub, which needs the
            extra ``hub``; or a folder in its layout. None takes `DEFAULT_NAME` and logs once that
            it does.
        revision: The commit, tag or branch of a repository; None is the newest. The cache of the
            hub serves without a network.
        sha256: The hash that the model must have; None takes any for a model of the hub. `models`
            prints it, and so does the card of a model on the hub.

    Raises:
        ValueError: No model has that name, or its hash is another.

    Example:
        >>> model = load_pretrained(DEFAULT_NAME)
        >>> sorted(model.meta)
        ['calibration', 'card', 'segments']
    """
    if name is None and DEFAULT_NAME not in _said:
        _said.add(DEFAULT_NAME)
        logger.warning(
            "asvspoof-cm: no model was named, so %r is used: %s. See `asvspoof-cm models`.",
            DEFAULT_NAME,
            PRETRAINED[DEFAULT_NAME]["use"],
        )
    name = name or DEFAULT_NAME
    if name in PRETRAINED:
        return load_checkpoint(pretrained_path(name), sha256=sha256 or PRETRAINED[name]["sha256"])
    if Path(name).is_dir():
        return load_checkpoint(name, sha256=sha256)
    if not is_hub_name(name):
        pretrained_path(name)  # says which names there are
    hub = import_extra("huggingface_hub", "hub")
    files = [_CONFIG, _WEIGHTS]
    folder = hub.snapshot_download(name, revision=revision, allow_patterns=files)
    return load_checkpoint(folder, sha256=sha256)


def load_published(path: str | os.PathLike[str]) -> AASIST | LCNN:
    """Read weights of AASIST or of LFCC-LCNN-LSTM-sum that their authors published.

    The file decides which: AASIST or AASIST-L, by the width of its graphs, and an LCNN with the
    head "sigmoid" or "cosine" (P2SGrad). The published score of the cosine head is the logit of
    bonafide; that of the others the difference of the logits, the default. The input is that of the
    published evaluations: waveforms as they were read, for AASIST the first 64,600 samples.

    Args:
        path: A ``.pth`` file of the authors of AASIST or the organisers of ASVspoof 5, or a ``.pt``
            file of Wang and Yamagishi: a state dict.

    Returns:
        The model, on the CPU and in evaluation mode.

    Example:
        >>> load_published("AASIST-L.pth").config.n_channels  # doctest: +SKIP
        24
    """
    weights = load_tensors(path)
    names = weights if isinstance(weights, Mapping) else ()
    if "m_transform.0.0.weight" in names:
        return _published_lcnn(weights, path)
    if "pos_S" not in names or not isinstance(weights["pos_S"], Tensor):
        raise ValueError(f"{path} does not hold the weights of a published AASIST or LCNN.")
    width = weights["pos_S"].shape[-1]
    configs = {c.n_channels: c for c in (AASISTConfig(), AASISTConfig.light())}
    if width not in configs:
        raise ValueError(
            f"{path} holds an AASIST with {width} channels; the published ones have 64 (AASIST) or "
            "24 (AASIST-L)."
        )
    model = AASIST(configs[width])
    heard: Any = {"crop_s": 64600 / 16000, "n_crops": 1, "one_crop": "start"}
    model.input = InputSettings(normalization="none", **heard)
    return _fit_weights(model, weights, path)


def _published_lcnn(weights: Mapping[str, Tensor], path: str | os.PathLike[str]) -> LCNN:
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
    return _fit_weights(model, ours, path)


def average_checkpoints(paths: Sequence[str | os.PathLike[str]]) -> Countermeasure:
    """Return a model whose weights are the mean of several checkpoints of one training.

    Late epochs of a run, or of runs that continue each other, lie close enough for their mean to be
    a model too, often one that generalises better (Izmailov et al., UAI 2018). The statistics of
    batch normalisation are averaged with the weights.

    Args:
        paths: Checkpoints of the same model and configuration, two or more. One that is named twice
            counts twice.

    Returns:
        The model; its `meta` is that of the last checkpoint, with ``averaged``, the files, named
        with their folders. Whole numbers are those of the last checkpoint too.

    Example:
        >>> average_checkpoints(["a/best.pt", "b/best.pt"]).meta["averaged"]  # doctest: +SKIP
        ['a/best.pt', 'b/best.pt']
    """
    models = [load_checkpoint(path) for path in paths]
    if len(models) < 2:
        raise ValueError(f"`paths` must name two checkpoints or more; got {len(models)}.")
    *_, (last_name, last_config) = described = [describe_model(model) for model in models]
    for path, (name, config) in zip(paths, described, strict=True):
        if (name, config) != (last_name, last_config):
            raise ValueError(
                f"`paths` must hold one model and configuration; {path} has a {name} with "
                f"{config}, the last a {last_name} with {last_config}."
            )
    for of_models in zip(*(model.state_dict().values() for model in models), strict=True):
        if of_models[-1].is_floating_point():
            of_models[-1].copy_(torch.stack([tensor.double() for tensor in of_models]).mean(dim=0))
    models[-1].meta["averaged"] = ["/".join(Path(path).parts[-2:]) for path in paths]
    return models[-1]


def save_tensors(path: str | os.PathLike[str], content: Any) -> None:
    """Write tensors and plain values to a file, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        torch.save(content, file)


def load_tensors(path: str | os.PathLike[str]) -> Any:
    """Read a file of tensors and plain values; nothing in it is executed.

    Raises:
        ValueError: The file is damaged or holds anything else.
    """
    refused = (
        f"{path} is not a file of tensors and plain values; it was refused and nothing in it was "
        "executed."
    )
    with Path(path).open("rb") as file:
        try:
            if zipfile.is_zipfile(file):
                _check_archive(file, refused)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(refused) from error
        except Exception as error:  # a damaged pickle can raise anything
            if str(error) == refused:
                raise
            raise ValueError(
                f"{path} is damaged or not a PyTorch file ({one_line(error)})"
            ) from error


def content_hash(model: Countermeasure) -> str:
    """Return the hash of a model, which its checkpoint has too, and the list of what ships.

    It is made from the model's class, configuration and input, its weights, and its `meta`.

    Example:
        >>> content_hash(load_pretrained(DEFAULT_NAME)) == PRETRAINED[DEFAULT_NAME]["sha256"]
        True
    """
    return stored_hash(_content_of(model, {}))


def stored_hash(content: Mapping[str, Any]) -> str:
    """Return the hash of what a checkpoint holds."""
    about = [_plain(content[name], name) for name in ("model", "config", "input", "meta")]
    if not isinstance(content["state_dict"], Mapping):
        raise TypeError(f"its weights are a {type(content['state_dict']).__name__}.")
    return hash_tensors(content["state_dict"], repr(about))


def hash_tensors(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """Return a hash of named tensors and of what is written about them."""
    digest = hashlib.sha256(about.encode())
    n_bytes = n_held = 0
    seen: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name]
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"its weight {name!r} is no whole tensor.")
        storage = tensor.untyped_storage()
        n_bytes += tensor.nbytes
        n_held += 0 if storage.data_ptr() in seen else storage.nbytes()
        seen.add(storage.data_ptr())
        # A file can expand a piece of memory, or name it many times.
        if tensor.nbytes > storage.nbytes() or n_bytes > 4 * n_held:
            raise ValueError(f"its weight {name!r} is no whole tensor.")
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().view(-1)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write_folder(folder: Path, content: Mapping[str, Any], name: str = "OWNER/NAME") -> None:
    """Write what a checkpoint holds as a folder in the hub's layout."""
    safetensors = import_extra("safetensors.torch", "hub")
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.clone().contiguous() for key, value in content["state_dict"].items()}
    safetensors.save_file(weights, folder / _WEIGHTS)
    rest = {key: value for key, value in content.items() if key != "state_dict"}
    about = json.dumps({"library_name": "asvspoof-cm", **rest}, indent=1, ensure_ascii=False)
    write_text(folder / _CONFIG, about + "\n")
    write_text(folder / "README.md", model_card(content, name))


def _read_folder(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint holds from a folder; nothing in it is executed."""
    safetensors = import_extra("safetensors", "hub")
    config = folder / _CONFIG
    if config.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{config} must have at most {_MOST_BYTES:,} bytes.")
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        weights = import_extra("safetensors.torch", "hub").load_file(folder / _WEIGHTS)
    except (ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{folder} is damaged or no folder of a model: {error}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{config} is not that of a model of asvspoof-cm.")
    content.pop("library_name", None)
    return {**content, "state_dict": weights}


def _fit_weights(model: M, weights: Mapping[str, Any], path: str | os.PathLike[str]) -> M:
    """Load weights that came from `path`; every one must be there, and nothing else."""
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        text = one_line(error).partition(": ")[2] or one_line(error)
        raise ValueError(f"{path} does not fit {type(model).__name__}: {text:.300}") from error
    return model.eval()


def _check_content(content: Any, path: str | os.PathLike[str], sha256: str | None) -> None:
    """Raise unless this is what a checkpoint holds, whole, of the model with that hash."""
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(
            f"{path} is not a checkpoint of asvspoof-cm. Weights that the authors of AASIST or "
            "LCNN published are read by load_published."
        )
    if type(content["format"]) is not int or content["format"] != FORMAT:
        shown = " ".join(repr(content["format"]).split())[:40]
        raise ValueError(
            f"{path} has checkpoint format {shown}; this version of asvspoof-cm reads {FORMAT}. "
            "A higher one needs a newer version; version 0.2 reads 1 and writes 2."
        )
    if content.keys() != _KEYS:
        names = ", ".join(sorted(map(str, content.keys() ^ _KEYS))[:3])
        raise ValueError(f"{path} is damaged: {names} is missing or unexpected.")
    try:
        found = stored_hash(content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {one_line(error)}") from error
    if found != content["sha256"]:
        raise ValueError(f"{path} is damaged: its content is not what was written.")
    if sha256 not in (None, found):
        raise ValueError(
            f"{path} does not hold the model that was asked for: its hash is {found}, not {sha256}."
        )


def _content_to_save(model: Countermeasure, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint of a model holds, its hash too, or say why it can't be one."""
    content = _content_of(model, known)
    _check_meta(content["meta"])
    _plain(content["config"], "config")
    _check_rebuilds(model)
    return {**content, "sha256": stored_hash(content)}


def _content_of(model: Countermeasure, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint of a model holds, but for its hash."""
    name, config = describe_model(model)
    # As it was stored, where that still means the same: else each new field would change the hash.
    if model.stored_config is not None:
        stored = build_config(name, complete_config(name, model.stored_config))
        config = model.stored_config if stored == model.config else config
    return {
        "format": FORMAT,
        "model": name,
        "config": config,
        "input": asdict(model.input),
        "state_dict": _narrow({name: part.cpu() for name, part in model.state_dict().items()}),
        "meta": {**model.meta, **known},
    }


def _narrow(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in half precision if that holds all of them exactly, as after loading it."""
    narrow = {}
    for name, tensor in weights.items():
        narrow[name] = tensor.half() if tensor.dtype == torch.float32 else tensor
        if not torch.equal(narrow[name].to(tensor.dtype), tensor):
            return weights
    return narrow


def _check_archive(file: BinaryIO, refused: str) -> None:
    """Raise where reading would take far more memory than the file has bytes, or make objects."""
    n_bytes = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > n_bytes:
            raise ValueError("it is compressed, as torch.save never does")
        for entry in entries:
            if entry.filename.endswith("/data.pkl"):
                for code, argument, _ in pickletools.genops(archive.read(entry)):
                    if code.name == "GLOBAL" and not _CLASSES.fullmatch(str(argument)):
                        raise ValueError(refused)


def _rebuild(name: str, config: Any, tensors: Iterable[Tensor] | None = None) -> Countermeasure:
    """Return a model without initial weights, PyTorch's random state as it was before."""
    with torch.random.fork_rng(devices=[]), _Frugal(tensors):
        return build_model(name, config)


class _Frugal(TorchFunctionMode):
    """Draw no initial weights, make nothing far larger than `tensors`.

    A front-end makes constants that no file holds, hence the margins. Without `tensors` any size
    is good.
    """

    def __init__(self, tensors: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.n_values = self.n_calls = math.inf
        if tensors is not None:
            sizes = [tensor.numel() for tensor in tensors]
            self.n_values, self.n_calls = 4 * sum(sizes) + (1 << 25), 200 * len(sizes) + 20_000

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (Tensor.uniform_, Tensor.normal_) and kwargs.get("generator") is None:
            return args[0]
        n_values = 0
        if getattr(function, "__name__", "") in _MAKERS:
            sizes = args[0] if args and isinstance(args[0], tuple | list) else args
            n_values = math.prod(abs(n) for n in sizes if type(n) is int and n)
            self.n_values -= n_values
        else:
            shapes = [value.shape for value in args if isinstance(value, Tensor)]
            with contextlib.suppress(ValueError):  # a product of matrices, a convolution
                n_values = math.prod(np.broadcast_shapes(*shapes))  # torch's imports sympy
        self.n_calls -= 1
        if n_values > self.n_values or self.n_values < 0 or self.n_calls < 0:
            raise ValueError("its configuration makes a far larger model than its weights are.")
        return function(*args, **kwargs)


def _check_rebuilds(model: Countermeasure) -> None:
    """Raise unless the configuration builds this model: what was replaced by hand would be lost."""
    kind, rebuilt = type(model).__name__, _rebuild(*describe_model(model))
    ours, theirs = _structure(model), _structure(rebuilt)
    for name in dict.fromkeys([*theirs, *ours]):
        found, expected = ours.get(name), theirs.get(name)
        if not _is_alike(found, expected):
            is_constant = isinstance(found, Tensor)
            what = "has other values" if is_constant else f"is {found}, not {expected}"
            raise ValueError(
                f"`model` must be what its configuration builds, which is all that a checkpoint "
                f"stores beside the weights; {name} of this {kind} {what}. Derive a "
                f"subclass of {kind} with a configuration of its own."
            )


def _structure(model: nn.Module) -> dict[str, Any]:
    """Return what makes a model beside its weights: modules, shapes, settings, constants."""
    structure: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            continue  # its rate decides no score
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            kind = "BatchNorm"  # training in several processes makes SyncBatchNorm of each
        structure[name or "the whole"] = f"{kind}({module.extra_repr()})"
        if not [*module.children()]:  # a front-end, which prints nothing of itself
            for key, value in vars(module).items():
                if key[0] != "_" and key != "training" and isinstance(value, _SETTING):
                    structure[f"{name}.{key}"] = value
    weights = {name: tensor.shape for name, tensor in model.state_dict().items()}
    return {**structure, **dict(model.named_buffers()), **weights}


def _is_alike(ours: Any, theirs: Any) -> bool:
    """Return whether two settings are equal, or two constants but for a lower precision."""
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor) or ours.is_complex():
        return type(ours) is type(theirs) and bool(ours == theirs)
    ours, theirs = ours.cpu().double(), theirs.double()
    atol = 0.01 * theirs.abs().amax().item() if theirs.numel() else 0.0
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=0, atol=atol)


def _check_meta(meta: Mapping[str, Any]) -> None:
    """Raise unless a checkpoint may say this about its model."""
    unknown = sorted(map(str, meta.keys() - set(_KNOWN)))
    if unknown:
        raise TypeError(
            f"save_checkpoint takes {', '.join(_KNOWN)}; got {', '.join(unknown)}. Pass what else "
            "is to be kept as notes={…}."
        )
    _plain(meta, "meta")
    if meta.get("calibration") is not None:
        Calibration.from_dict(meta["calibration"])
    notes = meta.get("notes", {})
    nested = sorted({*_KNOWN, "meta"} & set(notes)) if isinstance(notes, dict) else [repr(notes)]
    if nested:
        raise ValueError(
            f"`notes` must be a dict without the names of save_checkpoint; got {', '.join(nested)}."
        )


def _plain(value: Any, name: str, depth: int = _DEEPEST, left: list[int] | None = None) -> Any:
    """Return a plain value with lists for tuples, or say what in it is not plain."""
    left = [_MOST_VALUES] if left is None else left  # a file can name one part many times
    left[0] -= len(value) if isinstance(value, str | list | tuple | dict) else 1
    if depth < 0 or left[0] < 0:
        raise ValueError(f"`{name}` must have at most {_MOST_VALUES:,} values, {_DEEPEST} deep.")
    if type(value) is dict:
        return {
            str(_plain(key, f"a key of {name}", 0, left)): _plain(
                item, f"{name}[{key!r}]", depth - 1, left
            )
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return [_plain(item, f"{name}[{k}]", depth - 1, left) for k, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"`{name}` must be a plain value (number, string, list or dict), so that loading stays "
        f"safe; got {type(value).__name__}."
    )
