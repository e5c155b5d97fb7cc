"""Put a measured checkpoint into the package, and its figures into the model card.

    python recipes/ship.py best.pt [--replaces tfparn-small-corpus]

``model_card/about.json`` says what the model is; ``model_card/figures.json``, of ``measure.py``,
what it does. The weights go into the package in half precision with calibration and card, its
entry into ``pretrained/models.json``, where it becomes the default, and the tables into
``docs/model_card.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asvspoof_cm import load_checkpoint
from asvspoof_cm.checkpoint import SHIPPED, load_tensors, save_checkpoint
from asvspoof_cm.utils.files import atomic_path, sha256
from asvspoof_cm.utils.tables import render
from measure import FIGURES

INDEX = "models.json"
ABOUT = FIGURES.with_name("about.json")
MEASURED = ("demopages dev", "corpus eval")  # the sets of the table of families
CARD = Path(__file__).parent.parent / "docs" / "model_card.md"


def headline(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the EER of the shipped system on each set, pooled and within sources."""
    result = {}
    for name, part in figures["sets"].items():
        own = part["systems"][figures["system"]]
        within = own["within"] and own["within"]["value"]
        result[name] = {"eer": own["eer"]["value"], "within": within}
    return result


def ship(checkpoint: Path, package: Path, replaces: Sequence[str] = ()) -> Path:
    """Write the checkpoint and its entry into the folder `package`; return the file."""
    figures, about = (json.loads(path.read_text()) for path in (FIGURES, ABOUT))
    if figures["checkpoint_sha256"] != sha256(checkpoint):
        raise SystemExit(f"{FIGURES} was measured on another checkpoint; measure this one.")
    model = load_checkpoint(checkpoint)
    model.meta = {
        "calibration": figures["calibration"],
        "card": {**about, "figures": headline(figures)},
    }
    path = package / f"{about['name']}.pt"
    n_parameters = sum(p.numel() for p in model.parameters())
    save_checkpoint(path, model.half())
    index = json.loads((package / INDEX).read_text())
    for name in [*replaces, about["name"]]:
        old = index.pop(name, None)
        if old is not None and old["file"] != path.name:
            (package / old["file"]).unlink(missing_ok=True)
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
    with atomic_path(package / INDEX) as temporary:
        temporary.write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    return path


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of the model card, by the name of their block."""
    ours, sets = figures["system"], figures["sets"]
    names = list(next(iter(sets.values()))["systems"])
    own = [part["systems"][ours] for part in sets.values()]
    rows = [
        [name, *(_pair(part["systems"][name], _interval) for part in sets.values())]
        for name in names
    ]
    costs = [
        " / ".join(f"{o[k]['value']:.3f}" for k in ("min_dcf", "act_dcf", "cllr")) for o in own
    ]
    heads = [f"{title} ({p['n_bonafide']} + {p['n_spoof']})" for title, p in sets.items()]
    families = [
        [title, kind, str(own["n_spoof"])]
        + [_pair(sets[title]["systems"][name]["families"][kind], _percent) for name in names]
        for title in MEASURED
        for kind, own in sets[title]["systems"][ours]["families"].items()
    ]
    genders = [
        f"{title}: "
        + ", ".join(
            f"{gender} {_percent(own['eer'])} ({own['n_bonafide']} + {own['n_spoof']})"
            for gender, own in part["genders"].items()
        )
        for title, part in sets.items()
        if part["genders"]
    ]
    result = {
        "figures": _markdown(
            ["EER %, pooled / within sources", *heads],
            [*rows, [f"{ours}: minDCF / actDCF / Cllr", *costs]],
        ),
        "families": _markdown(["set", "fakes", "clips", *names], families, n_names=2),
        "robustness": _robustness(figures["robustness"]),
        "failures": _markdown(
            ["set", "humans refused", "fakes passed"],
            [
                [title, *(_worst(part["worst"][kind]) for kind in ("refused", "passed"))]
                for title, part in sets.items()
            ],
            n_names=3,
        ),
        "genders": f"EER % by gender (bona fide + spoof): {'; '.join(genders)}." if genders else "",
    }
    if figures["cost"] is not None:
        result["cost"] = _costs(figures["cost"]["systems"])
    return result


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


def _robustness(conditions: Sequence[Mapping[str, Any]]) -> str:
    """Return the conditions in two columns, each with the EER of every system and set."""
    if not conditions:
        return ""
    names = list(conditions[0]["systems"])
    sets = list(conditions[0]["systems"][names[0]])
    rows = [
        [row["condition"]]
        + [_percent(row["systems"][name][s]["eer"]) for name in names for s in sets]
        for row in conditions
    ]
    header = ["EER %", *(f"{name}, {s}" for name in names for s in sets)]
    n_rows = -(-len(rows) // 2)
    rows += [[""] * len(header)] * (2 * n_rows - len(rows))
    return _markdown(header * 2, [[*rows[k], *rows[k + n_rows]] for k in range(n_rows)])


def _worst(rows: Sequence[Mapping[str, Any]], n: int = 3) -> str:
    shown = [f"{row['name']} {100 * row['share']:.0f} % of {row['n']}" for row in rows[:n]]
    return ", ".join(shown)


def _costs(systems: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            f"{row['n_parameters'] / 1e6:.2f}",
            f"{row['file_bytes'] / 1e6:.1f}",
            f"{row['n_crops']} × {row['crop_s']:g}",
            f"{1e3 * row['seconds_per_crop']:.0f}",
        ]
        for name, row in systems.items()
    ]
    return _markdown(["system", "parameters, M", "MB", "crops, s", "ms per crop"], rows)


def _interval(value: Mapping[str, Any] | None, scale: float = 100) -> str:
    if value is None:
        return "–"
    digits = 1 if scale == 100 else 3
    middle, low, high = (f"{scale * value[k]:.{digits}f}" for k in ("value", "low", "high"))
    return f"{middle} [{low}, {high}]"


def _pair(own: Mapping[str, Any], text: Callable[[Any], str]) -> str:
    return f"{text(own['eer'])} / {text(own['within'])}"


def _percent(value: Any) -> str:
    if value is None:
        return "–"
    return f"{100 * (value['value'] if isinstance(value, Mapping) else value):.1f}"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]], n_names: int = 1) -> str:
    return render(header, rows, "markdown", n_names=n_names)


def main() -> None:
    """Ship the checkpoint that the figures belong to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--replaces", nargs="*", default=(), metavar="NAME")
    args = parser.parse_args()
    path = ship(args.checkpoint, SHIPPED, args.replaces)
    with atomic_path(CARD) as temporary:
        temporary.write_text(fill(CARD.read_text(), tables(json.loads(FIGURES.read_text()))))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, SHA-256 {load_tensors(path)['sha256']}")


if __name__ == "__main__":
    main()
