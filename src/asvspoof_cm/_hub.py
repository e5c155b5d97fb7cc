"""Where models are: in the package, and in the layout of the Hugging Face hub. No PyTorch.

In that layout a folder holds the weights as safetensors, ``config.json`` with all else that a
checkpoint holds, and a model card. The extra ``asvspoof-cm[hub]`` brings huggingface_hub and
safetensors.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from asvspoof_cm._util import import_extra, write_text

SHIPPED: Final = Path(__file__).with_name("pretrained")
"""The folder of what ships; ``models.json`` in it lists the models."""

PRETRAINED: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    (SHIPPED / "models.json").read_text("utf-8")
)
"""The models that ship with the package, by name, the default first: file, hash, size, use."""

DEFAULT_NAME: Final = next(iter(PRETRAINED))
"""The model that is used where none is named."""

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
MOST_BYTES = 1 << 22  # of config.json


def pretrained_path(name: str) -> Path:
    """Return where a model that ships with the package lies.

    Example:
        >>> pretrained_path(DEFAULT_NAME).suffix
        '.pt'
    """
    if name not in PRETRAINED:
        raise ValueError(
            f"`name` must be one of {', '.join(PRETRAINED)}, owner/name on the Hugging Face hub, "
            f"or a folder; got {name!r}. A checkpoint of your own is loaded with load_checkpoint "
            "or Scorer.from_checkpoint."
        )
    return SHIPPED / str(PRETRAINED[name]["file"])


def is_hub_name(name: str) -> bool:
    """Return whether a name may be that of a repository, ``owner/name``.

    Example:
        >>> is_hub_name("owner/encoder-manyvoices"), is_hub_name("runs/best.pt")
        (True, False)
    """
    is_file = name.lower().endswith((".pt", ".pth", ".onnx"))
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) is not None and not is_file


def fetch(name: str, revision: str | None = None) -> Path:
    """Return the folder of a repository, downloaded unless the cache of the hub has it.

    Without a network, or with the environment variable HF_HUB_OFFLINE=1, the cache serves.

    Args:
        name: ``owner/name``.
        revision: A commit, a tag or a branch; None is the newest. Only a commit always stays the
            same.
    """
    hub = import_extra("huggingface_hub", "hub")
    return Path(hub.snapshot_download(name, revision=revision, allow_patterns=[CONFIG, WEIGHTS]))


def upload(
    content: Mapping[str, Any], name: str, *, private: bool = False, message: str | None = None
) -> str:
    """Write what a checkpoint holds into the repository ``owner/name``; return the commit.

    The repository is made where there is none. The token is that of ``hf auth login`` or of the
    environment variable HF_TOKEN.
    """
    client = import_extra("huggingface_hub", "hub").HfApi()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, content, name)
        client.create_repo(name, private=private, exist_ok=True)
        done = client.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return str(done.oid)


def read_folder(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint holds from a folder; nothing in it is executed."""
    safetensors = import_extra("safetensors", "hub")
    load_file = import_extra("safetensors.torch", "hub").load_file
    place = Path(folder)
    if (place / CONFIG).stat().st_size > MOST_BYTES:
        raise ValueError(f"{place / CONFIG} must have at most {MOST_BYTES:,} bytes.")
    try:
        content = json.loads((place / CONFIG).read_text(encoding="utf-8"))
        weights = load_file(place / WEIGHTS)
    except (ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{place} is damaged or no folder of a model: {error}") from error
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"{place / CONFIG} is not that of a model of asvspoof-cm.")
    content.pop("library_name", None)
    return {**content, "state_dict": weights}


def write_folder(
    folder: str | os.PathLike[str], content: Mapping[str, Any], name: str = "OWNER/NAME"
) -> None:
    """Write what a checkpoint holds as a folder in the hub's layout."""
    safetensors = import_extra("safetensors.torch", "hub")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    rest = {key: value for key, value in content.items() if key != "state_dict"}
    weights = {key: value.clone().contiguous() for key, value in content["state_dict"].items()}
    safetensors.save_file(weights, place / WEIGHTS)
    about = {"library_name": "asvspoof-cm", **rest}
    write_text(place / CONFIG, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    write_text(place / CARD, model_card(content, name))


def model_card(content: Mapping[str, Any], name: str = "OWNER/NAME") -> str:
    """Return the model card, Markdown under its metadata, from what a checkpoint holds.

    Example:
        >>> card = {"name": "tfparn-asvspoof5", "licences": {"weights": "MIT"}}
        >>> text = model_card({"model": "TFPARN", "sha256": "0af1", "meta": {"card": card}})
        >>> text.splitlines()[1], text.splitlines()[9]
        ('license: mit', '# tfparn-asvspoof5')
    """
    card = content["meta"].get("card", {})
    licences = card.get("licences", {})
    about = f" It is {card['use']}." if "use" in card else ""
    text = f"""---
license: {str(licences.get("weights", "other")).lower()}
library_name: asvspoof-cm
pipeline_tag: audio-classification
tags:
- anti-spoofing
- speech
---

# {card.get("name", content["model"])}

Tells human from synthetic speech: a higher score means human.{about}

```python
from asvspoof_cm import Scorer

scorer = Scorer.from_pretrained("{name}", revision="COMMIT")
print(scorer.score_file("speech.flac"))
```

- Model: {content["model"]}
- SHA-256 of weights, configuration and calibration: `{content["sha256"]}`
"""
    named = {"data": "Data", "recipe": "Training"}
    lines = [f"- {title}: {card[key]}" for key, title in named.items() if key in card]
    lines += [f"- Licence of {of}: {licence}" for of, licence in licences.items()]
    if "figures" in card:
        lines += ["", "| set | EER % | within sources |", "|---|---|---|"]
        for title, found in card["figures"].items():
            cells = (found["eer"], found.get("within"))
            shown = ("" if value is None else f"{100 * value:.1f}" for value in cells)
            lines.append(f"| {title} | {' | '.join(shown)} |")
    return text + "".join(f"{line}\n" for line in lines)
