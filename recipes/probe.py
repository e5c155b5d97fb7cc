"""Which layer of which model hears the difference? Frozen features, one regression per layer.

    python recipes/probe.py corpus.tsv --model distillmos whisper-base --cache build/probe

Each table is a protocol with the columns ``split`` (train and dev), ``source`` and, beside its
folder, ``path``. Every model hears the centre of each clip once; the mean and the standard
deviation over time of each layer's channels are kept in the cache, so that another model, or more
clips, cost only what is new. A logistic regression on the clips of train is then measured on those
of dev, pooled and within sources. That takes minutes where training takes hours: choose encoders
and layers with it first.

A model is a shipped one, a checkpoint, or an encoder that `Encoder` knows, with its published
weights. Its layers are what the members of its outermost lists of modules return, or those that
``--layer`` names (patterns such as ``encoders.0.convolutions.*``): (batch, channels, bands, frames)
or (batch, frames, channels); ``NAME@1`` for (batch, channels, frames).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from asvspoof_cm import BONAFIDE, load_checkpoint
from asvspoof_cm._util import atomic_path, render, track
from asvspoof_cm.checkpoint import PRETRAINED, load_pretrained
from asvspoof_cm.data import Protocol, SpoofDataset, read_protocol
from asvspoof_cm.metrics import eer, within_sources
from asvspoof_cm.models import Countermeasure, Encoder, EncoderConfig
from minispoof.confounds import fit_logistic

CHUNK = 64
Array = np.ndarray[Any, Any]


class Figures(NamedTuple):
    """Equal error rates on dev, as fractions; `within` is None where no source has both classes."""

    pooled: float
    within: float | None


def load(name: str, n_layers: int | None = None) -> Countermeasure:
    """Return a shipped model, that of a checkpoint, or an encoder with its published weights."""
    if name in PRETRAINED:
        return load_pretrained(name)
    if Path(name).is_file():
        return load_checkpoint(name)
    model = Encoder(EncoderConfig(encoder=name, n_layers=n_layers))
    model.load_published()
    return model.eval()


def find_layers(model: nn.Module, patterns: Sequence[str] = ()) -> dict[str, int | None]:
    """Return the names of the modules to listen to, and the axis of their channels where given."""
    modules = dict(model.named_modules())
    if patterns:
        found: dict[str, int | None] = {}
        for pattern in patterns:
            glob, _, axis = pattern.partition("@")
            names = [name for name in modules if name and fnmatchcase(name, glob)]
            if not names:
                known = ", ".join(list(modules)[1:9])
                raise ValueError(f"--layer {pattern} fits no module; there are {known}, …")
            found |= dict.fromkeys(names, int(axis) if axis else None)
        return found
    lists = [name for name, module in modules.items() if isinstance(module, nn.ModuleList)]
    outer = [n for n in lists if not any(n.startswith(f"{other}.") for other in lists)]
    if isinstance(model, Encoder):
        outer = ["encoders"]  # the mixtures above are part of the head
    return {f"{name}.{k}": None for name in outer for k in range(len(modules[name]))}  # type: ignore[arg-type]


def layer_statistics(
    model: nn.Module, waveforms: Tensor, layers: Mapping[str, int | None]
) -> dict[str, Tensor]:
    """Return the mean and standard deviation over time of each layer, (batch, 2 · channels)."""
    heard: dict[str, list[Tensor]] = {}

    def listen(name: str, axis: int | None) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            outputs = list(output) if isinstance(output, list | tuple) else [output]
            for k, frames in enumerate(outputs):
                key = name if len(outputs) == 1 else f"{name}[{k}]"
                heard.setdefault(key, []).append(_statistics(frames.float(), axis))

        return hook

    modules = dict(model.named_modules())
    hooks = [modules[n].register_forward_hook(listen(n, axis)) for n, axis in layers.items()]
    try:
        with torch.inference_mode():
            model(waveforms)
    finally:
        for hook in hooks:
            hook.remove()
    found = {name: torch.cat(parts) for name, parts in heard.items()}  # a batch may go in parts
    for name, values in found.items():
        if len(values) != len(waveforms):
            raise ValueError(f"{name} was called {len(heard[name])} times; choose another --layer.")
    return found


def features(
    model: Countermeasure,
    layers: Mapping[str, int | None],
    dataset: SpoofDataset,
    cache: Path,
    *,
    key: str = "",
    progress: bool = True,
) -> dict[str, Array]:
    """Return the statistics of every layer for a protocol, (n_clips, 2 · channels) each.

    They are kept in files of 64 clips whose names say what they hold: `key`, the layers, the crop
    and the clips. What is there is not computed again.
    """
    n = len(dataset)
    parts: dict[str, list[Array]] = {}
    for first in track(
        range(0, n, CHUNK), description="listening", unit="chunk", enabled=progress and n > CHUNK
    ):
        rows = range(first, min(first + CHUNK, n))
        content = (key, sorted(layers.items()), dataset.input, _names(dataset.protocol, rows))
        path = cache / f"{hashlib.sha256(repr(content).encode()).hexdigest()[:24]}.npz"
        if not path.exists():
            batches = [
                torch.stack([dataset[k].waveform for k in rows[start : start + 16]])
                for start in range(0, len(rows), 16)
            ]
            found = [layer_statistics(model, batch, layers) for batch in batches]
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary, temporary.open("wb") as file:
                np.savez(file, **{n: torch.cat([f[n] for f in found]).numpy() for n in found[0]})
        with np.load(path) as stored:
            for name in stored.files:
                parts.setdefault(name, []).append(stored[name])
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def probe(
    train: tuple[Array, Array], dev: tuple[Array, Array], penalty: float = 100.0
) -> tuple[Array, Array]:
    """Fit (features, labels) of train; return the log-odds of the clips of dev and their labels."""
    mean, spread = train[0].mean(axis=0), train[0].std(axis=0) + 1e-6
    coefficients, intercept = fit_logistic((train[0] - mean) / spread, train[1], penalty=penalty)
    return (dev[0] - mean) / spread @ coefficients + intercept, dev[1]


def measure(scores: Array, labels: Array, sources: Array) -> Figures:
    """Return the pooled EER and the mean EER within sources."""
    is_human = labels == BONAFIDE
    mixed = any(len(set(labels[sources == source])) > 1 for source in set(sources))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # above 50 % is no mistake here
        pooled = eer(scores[is_human], scores[~is_human], ties="grouped").value
        within = within_sources(scores, labels, sources).mean_eer if mixed else None
    return Figures(pooled, within)


def main(arguments: Sequence[str] | None = None) -> None:
    """Listen, fit, and print a row per layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, metavar="TSV")
    parser.add_argument("--model", nargs="+", default=["distillmos", "whisper-base"])
    parser.add_argument("--layer", nargs="*", default=(), help="patterns of modules to listen to")
    parser.add_argument("--layers", type=int, metavar="N", help="Transformer layers of an encoder")
    parser.add_argument("--cache", type=Path, default=Path("build/probe"))
    parser.add_argument("--crop-s", type=float, default=3.0, help="seconds of each clip (3)")
    parser.add_argument("--most", type=int, metavar="N", help="clips of each table and split")
    parser.add_argument("--penalty", type=float, default=100.0, help="on the coefficients (100)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    tables = [(path.parent, read_protocol(path)) for path in options.tables]
    rows: list[list[str]] = []
    best: dict[str, tuple[float, Array]] = {}
    for name in options.model:
        model = load(name, options.layers)
        layers = find_layers(model, options.layer)
        sets: dict[str, dict[str, Array]] = {}
        answers: dict[str, Array] = {}
        for split in ("train", "dev"):
            chosen = [(folder, _part(table, split, options.most)) for folder, table in tables]
            found = [
                features(
                    model,
                    layers,
                    SpoofDataset(part, folder, n_samples=round(16000 * options.crop_s)),
                    options.cache,
                    key=f"{name} {_digest(model)}",
                    progress=not options.quiet,
                )
                for folder, part in chosen
                if len(part)
            ]
            if not found:
                raise SystemExit(f"no table has clips of the split {split}.")
            sets[split] = {layer: np.concatenate([f[layer] for f in found]) for layer in found[0]}
            answers[split] = np.concatenate([part.label for _, part in chosen])
            answers[f"{split} source"] = np.concatenate([p.clusters("source") for _, p in chosen])
        for layer in sets["train"]:
            pairs = [(sets[split][layer], answers[split]) for split in ("train", "dev")]
            scores, labels = probe(*pairs, penalty=options.penalty)
            figures = measure(scores, labels, answers["dev source"])
            rows.append([name, layer, str(pairs[0][0].shape[1]), *_percent(figures)])
            if name not in best or figures.pooled < best[name][0]:
                best[name] = figures.pooled, scores
    if len(best) > 1:
        total = np.sum([scores for _, scores in best.values()], axis=0)
        figures = measure(total, answers["dev"], answers["dev source"])
        rows.append(["sum", "the best of each", "", *_percent(figures)])
    print(render(("model", "layer", "values", "EER %", "within %"), rows, n_names=2))
    print(f"{len(answers['train']):,} clips of train, {len(answers['dev']):,} of dev")


def _statistics(frames: Tensor, axis: int | None) -> Tensor:
    if frames.ndim < 3:
        return frames
    axis = axis if axis is not None else 1 if frames.ndim == 4 else -1
    by_channel = frames.movedim(axis, 1).flatten(2)
    return torch.cat([by_channel.mean(dim=2), by_channel.std(dim=2)], dim=1)


def _part(protocol: Protocol, split: str, most: int | None) -> Protocol:
    """Return the clips of a split; of more than `most`, some that are spread evenly."""
    rows = np.flatnonzero(protocol.split == split)
    if most is not None and len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
    return protocol.select(rows)


def _names(protocol: Protocol, rows: Sequence[int]) -> list[str]:
    keep = list(rows)
    return [*protocol.utterance[keep].tolist(), *protocol.file[keep].tolist()]


def _digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


def _percent(figures: Figures) -> list[str]:
    return ["–" if value is None else f"{100 * value:.1f}" for value in figures]


if __name__ == "__main__":
    sys.exit(main())
