"""Put a measured checkpoint into the package, and its figures into the model card.

    python recipes/ship.py best.pt

``model_card/about.json`` says what the model is; ``model_card/figures.json``, of ``measure.py``,
what it does. The weights go into the package in half precision with calibration and card, its
entry into ``pretrained/models.json``, where it becomes the default, and the tables into
``docs/model_card.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from asvspoof_cm import load_checkpoint, save_checkpoint
from asvspoof_cm.checkpoint import load_tensors
from families import FAMILIES
from measure import CLEAN, FIGURES, SETS

ABOUT = FIGURES.with_name("about.json")
ROOT = Path(__file__).parent.parent
CARD = ROOT / "docs" / "model_card.md"
PACKAGE = ROOT / "src" / "asvspoof_cm" / "pretrained"


def headline(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shares of errors and the EERs of the shipped system on each clean set."""
    result = {}
    for name in (*CLEAN, "small corpus, eval"):
        if name in figures["sets"]:
            own = figures["sets"][name]["systems"][figures["system"]]
            within = own["within"] and own["within"]["value"]
            result[name] = {
                "refused": own["refused"]["value"],
                "passed": own["passed"]["value"],
                "eer": own["eer"]["value"],
                "within": within,
            }
    return result


def ship(checkpoint: Path, package: Path) -> Path:
    """Write the checkpoint and its entry into the folder `package`; return the file."""
    figures, about = (json.loads(path.read_text()) for path in (FIGURES, ABOUT))
    if figures["checkpoint_sha256"] != sha256(checkpoint.read_bytes()).hexdigest():
        raise SystemExit(f"{FIGURES} was measured on another checkpoint; measure this one.")
    model = load_checkpoint(checkpoint)
    model.meta = {
        **{name: value for name, value in model.meta.items() if name == "segments"},
        "calibration": figures["calibration"],
        "card": {**about, "figures": headline(figures)},
    }
    path = package / f"{about['name']}.pt"
    n_parameters = sum(p.numel() for p in model.parameters())
    save_checkpoint(path, model.half())
    index = json.loads((package / "models.json").read_text())
    index.pop(about["name"], None)
    entry = {
        "file": path.name,
        "sha256": load_tensors(path)["sha256"],
        "n_bytes": path.stat().st_size,
        "n_parameters": n_parameters,
        "use": about["use"],
        "licence": about["licences"]["weights"],
        "figures": headline(figures),
    }
    index = {about["name"]: entry, **index}  # the first is the default
    (package / "models.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    return path


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of the model card, by the name of their block."""
    ours, sets = figures["system"], figures["sets"]
    names = list(next(iter(sets.values()))["systems"])
    clean = [name for name in SETS if name in sets and sets[name]["n_spoof"]]
    channels = [name for name in sets if name not in SETS]
    coded = [name for name in names if all(name in sets[title]["systems"] for title in channels)]
    return {
        "threshold": _markdown(
            ["at LLR 0, %: refused / passed", *clean],
            [
                [name, *(_errors(sets[title]["systems"][name]) for title in clean)]
                for name in names
                if "refused" in sets[clean[0]]["systems"][name]
            ],
        ),
        "figures": _markdown(
            ["EER %: pooled / within sources", *clean],
            [[name, *(_eers(sets[title]["systems"][name]) for title in clean)] for name in names],
        ),
        "channels": _markdown(
            ["channel", *(f"{name}: {text}" for name in coded for text in _columns(sets, name))],
            [
                [
                    title,
                    *(cell for name in coded for cell in _channel(sets[title]["systems"][name])),
                ]
                for title in channels
            ],
        ),
        "families": _markdown(
            ["passed, % of clips", *FAMILIES],
            [
                [title, *(_of_clips(found.get(kind)) for kind in FAMILIES)]
                for title in clean
                for found in [sets[title]["systems"][ours]["families"]]
            ],
        ),
        "groups": _markdown(
            ["set", "group", "people", "refused, %", "fakes", "passed, %"],
            [
                [
                    title,
                    f"{column} {value}",
                    str(own["n_bonafide"]),
                    _percent(own["refused"]),
                    str(own["n_spoof"]),
                    _percent(own["passed"]),
                ]
                for title in clean
                for column in ("gender", "language", "channel")
                for value, own in sets[title]["systems"][ours]["groups"][column].items()
                if own["n_bonafide"] >= 10
            ],
        ),
        "failures": _markdown(
            ["set", "people refused most", "fakes that pass most"],
            [
                [
                    title,
                    _worst_sources(sets[title]["systems"][ours]["groups"]["source"]),
                    _shown(sets[title]["systems"][ours]["generators"]),
                ]
                for title in clean
            ],
        ),
    }


def fill(text: str, content: Mapping[str, str]) -> str:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end name -->`` for each name."""
    for name, table in content.items():
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{CARD} must have a block {start} … {end}.")
        text = f"{before}{start}\n{table}\n{end}{after}"
    return text


def _columns(sets: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return what a channel's row says of a system: one without a threshold has an EER only."""
    has_threshold = any("refused" in part["systems"].get(name, {}) for part in sets.values())
    return ("refused", "passed", "EER") if has_threshold else ("EER",)


def _channel(own: Mapping[str, Any]) -> list[str]:
    eer = _percent(own["eer"]["value"])
    if "refused" not in own:
        return [eer]
    return [_percent(own["refused"]["value"]), _percent(own["passed"]["value"]), eer]


def _errors(own: Mapping[str, Any]) -> str:
    return f"{_interval(own.get('refused'))} / {_interval(own.get('passed'))}"


def _eers(own: Mapping[str, Any]) -> str:
    return (
        f"{_interval(own.get('eer'))} / {_percent(own['within'] and own['within']['value'])}"
        if ("eer" in own)
        else "–"
    )


def _of_clips(value: Mapping[str, Any] | None) -> str:
    return "–" if value is None else f"{100 * value['value']:.0f} of {value['n']}"


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    middle, low, high = (f"{100 * value[k]:.1f}" for k in ("value", "low", "high"))
    return f"{middle} [{low}, {high}]"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _worst_sources(groups: Mapping[str, Any], n: int = 3) -> str:
    rows = [[k, v["n_bonafide"], v["refused"]] for k, v in groups.items() if v["n_bonafide"] >= 5]
    return _shown(sorted(rows, key=lambda row: -row[2]), n)


def _shown(rows: Sequence[Sequence[Any]], n: int = 3) -> str:
    return ", ".join(f"{name} {100 * share:.0f} % of {count}" for name, count, share in rows[:n])


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Ship the checkpoint that the figures belong to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    args = parser.parse_args()
    path = ship(args.checkpoint, PACKAGE)
    CARD.write_text(fill(CARD.read_text(), tables(json.loads(FIGURES.read_text()))))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
