"""The models that ship, the names on the Hugging Face hub, and the card of a model. No PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SHIPPED: Final = Path(__file__).with_name("pretrained")
"""The folder of what ships; ``models.json`` in it lists the models."""

PRETRAINED: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    (SHIPPED / "models.json").read_text("utf-8")
)
"""The models that ship with the package, by name, the default first: file, hash, size, use."""

DEFAULT_NAME: Final = next(iter(PRETRAINED))
"""The model that is used where none is named."""


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
