"""Put a measured checkpoint into the package, and its figures into the model card.

    python recipes/ship.py best.pt

``model_card/about.json`` says what the model is; ``model_card/figures.json``, of ``measure.py``,
and ``segments.json``, of ``measure_segments.py``, what it does. The weights go into the package in
half precision with calibration and card, its entry into ``pretrained/models.json``, where it
becomes the default, and the tables into ``docs/model_card.md`` and ``README.md``.

    python recipes/ship.py --pages

writes the tables alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from asvspoof_cm import load_checkpoint, save_checkpoint
from asvspoof_cm.checkpoint import load_tensors
from families import FAMILIES
from measure import CLEAN, FIGURES, SETS, is_channel

ABOUT = FIGURES.with_name("about.json")
SEGMENTS = FIGURES.with_name("segments.json")
FEWEST_PEOPLE = 10  # that a group must have to be shown
_CHANNELS = (
    "The middle 1, 2 and 4 s of dev clips of 4 s and more, and dev clips through what "
    "`recipes/channels.py` defines:"
)
ROOT = Path(__file__).parent.parent
CARD = ROOT / "docs" / "model_card.md"
README = ROOT / "README.md"
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


def blocks(figures: Mapping[str, Any], segments: Mapping[str, Any]) -> dict[str, str]:
    """Return what the pages say of the figures, by the name of the block that says it."""
    ours = figures["system"]
    sets = {title: part for title, part in figures["sets"].items() if ours in part["systems"]}
    names = list(next(iter(sets.values()))["systems"])
    clean = [title for title in SETS if title in sets and sets[title]["n_spoof"]]
    own = {title: part["systems"][ours] for title, part in sets.items()}
    genders = sorted({gender for title in clean for gender in own[title]["groups"]["gender"]})
    overview = _markdown(
        ["%", *clean],
        [
            [f"{name}: {text}", *(show(sets[title]["systems"].get(name)) for title in clean)]
            for text, column, show in (
                ("refused / passed", "refused", _errors),
                ("EER, pooled / within sources", "eer", _eers),
            )
            for name in names
            if column in sets[clean[0]]["systems"].get(name, {})
        ],
    )
    others = {title: part["systems"] for title, part in sets.items() if title not in SETS}
    there = [name for name in names if any(name in systems for systems in others.values())]
    channels = _in_two(
        ["refused / passed / EER, %", *there],
        [
            [title, *(_point(systems.get(name)) for name in there)]
            for title, systems in others.items()
        ],
    )
    groups = _markdown(
        ["% of clips", *clean],
        [
            *(
                [f"{kind}: passed", *(_of_clips(own[t]["families"].get(kind)) for t in clean)]
                for kind in FAMILIES
            ),
            *(
                [f"gender {g}: refused / passed", *(_gender(own[t], g) for t in clean)]
                for g in genders
            ),
            ["heard as speech", *(_percent(own[t]["has_speech"]) for t in clean)],
        ],
    )
    return {
        "figures": f"{overview}\n\n{_means(sets, names)}",
        "details": "\n\n".join(
            [
                f"{_CHANNELS}\n\n{channels}",
                f"By kind of fake, and by gender where it is known:\n\n{groups}",
                _speech(sets, own, segments),
            ]
        ),
        "failures": "\n".join(
            [
                f"- People refused, by language: {_languages(own[t] for t in CLEAN if t in own)}.",
                f"- People refused most, by source: {_worst(own, clean, 'sources')}.",
                f"- Fakes that pass most: {_worst(own, clean, 'generators')}.",
            ]
        ),
    }


def fill(text: str, content: Mapping[str, str]) -> str:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end name -->`` for each name."""
    for name, table in content.items():
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"the page must have a block {start} … {end}.")
        text = f"{before}{start}\n{table}\n{end}{after}"
    return text


def _means(sets: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return what systems err in the mean of sets, clean and coded, at an LLR of 0 and by default.

    A system without a calibration has no threshold.
    """
    sentences = []
    for name in names:
        own = {title: part["systems"].get(name, {}) for title, part in sets.items()}
        by_default = {title: found.get("verdict", {}) for title, found in own.items()}
        for errors, text in (
            (own, f"{name} refuses"),
            (by_default, "by default its verdict refuses"),
        ):
            clean = _mean_errors(errors[title] for title in CLEAN if title in errors)
            coded = _mean_errors(errors[title] for title in errors if is_channel(title))
            if clean and coded:
                sentences.append(
                    f"{text} {clean[0]} of the people and passes {clean[1]} of the fakes, through "
                    f"{sum(map(is_channel, sets))} channels {coded[0]} and {coded[1]}"
                )
    return _wrapped(f"In the mean of the dev sets, {'; '.join(sentences)}.")


def _mean_errors(systems: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the mean shares of people refused and of fakes passed, over sets that have both."""
    found = [
        (own["refused"]["value"], own["passed"]["value"])
        for own in systems
        if own.get("refused") and own.get("passed")
    ]
    return [f"{100 * sum(rates) / len(rates):.0f} %" for rates in zip(*found, strict=True)]


def _speech(sets: Mapping[str, Any], own: Mapping[str, Any], segments: Mapping[str, Any]) -> str:
    """Return sentences about what is no speech, and about segments."""
    text = ""
    coded = [found["has_speech"] for title, found in own.items() if is_channel(title)]
    if "no speech" in own and coded:
        text = (
            f"**Is there speech?** Of {sets['no speech']['n_other']} clips of music, tones, noise, "
            f"effects and crowds, of sources held out, {_percent(own['no speech']['has_speech'])} "
            f"% are taken for speech; through any channel at least {_percent(min(coded))} % of the "
            "clips of speech are taken for speech. "
        )
    eers = {name: _percent(value["value"]) for name, value in segments["utterances"].items()}
    found = {name: value["value"] for name, value in segments["found"]["values"].items()}
    frames = segments["frames"]["values"]["segment_eer_160ms"]["value"]
    return _wrapped(
        f"{text}**Where?** {segments['n_recordings']} recordings of 8 to 10 s of dev sources, half "
        "of them with 2 s of synthetic speech of the same source, have an EER of "
        f"{eers['whole']} % by the score and {eers['worst second']} % by the worst second; single "
        f"frames of 160 ms have one of {_percent(frames)} %. Segments with the settings that ship, "
        "which were "
        f"chosen on these recordings, have an F1 of {found['f1']:.2f}; their boundaries are "
        f"{found['boundary_median_s']:.2f} s off in the median, {found['boundary_90_s']:.1f} s in "
        "the worst tenth."
    )


def _errors(own: Mapping[str, Any] | None) -> str:
    return "–" if own is None else f"{_interval(own['refused'])} / {_interval(own['passed'])}"


def _eers(own: Mapping[str, Any] | None) -> str:
    if own is None or "eer" not in own:
        return "–"
    return f"{_interval(own['eer'])} / {_percent(own['within'] and own['within']['value'])}"


def _point(own: Mapping[str, Any] | None) -> str:
    """Return refused / passed / EER; a system without a threshold has an EER only."""
    if own is None:
        return "–"
    found = (own.get(name) for name in ("refused", "passed", "eer"))
    return " / ".join(_percent(value["value"]) for value in found if value)


def _of_clips(value: Mapping[str, Any] | None) -> str:
    return "–" if value is None else _of_n(value["value"], value["n"])


def _gender(own: Mapping[str, Any], gender: str) -> str:
    """Return refused of people / passed of fakes; few people say nothing."""
    group = own["groups"]["gender"].get(gender)
    if group is None or group["n_bonafide"] < FEWEST_PEOPLE:
        return "–"
    passed = "–" if group["passed"] is None else _of_n(group["passed"], group["n_spoof"])
    return f"{_of_n(group['refused'], group['n_bonafide'])} / {passed}"


def _of_n(share: float, n: int) -> str:
    return f"{100 * share:.0f} % of {n}"


def _languages(systems: Iterable[Mapping[str, Any]]) -> str:
    """Return the shares of people refused, by language, over all the sets."""
    counts: dict[str, list[float]] = {}
    for own in systems:
        for language, group in own["groups"]["language"].items():
            n = group["n_bonafide"]
            entry = counts.setdefault(language, [0, 0])
            entry[0] += n
            entry[1] += n and n * group["refused"]
    large = {name: found for name, found in sorted(counts.items()) if found[0] >= FEWEST_PEOPLE}
    return ", ".join(f"{name} {_of_n(wrong / n, n)}" for name, (n, wrong) in large.items()) or "–"


def _worst(own: Mapping[str, Any], titles: Iterable[str], column: str, n: int = 6) -> str:
    """Return the entries with most errors over all the sets."""
    rows = sorted((row for title in titles for row in own[title][column]), key=lambda row: -row[2])
    return ", ".join(f"{name} {_of_n(share, count)}" for name, count, share in rows[:n])


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    middle, low, high = (f"{100 * value[k]:.1f}" for k in ("value", "low", "high"))
    return f"{middle} [{low}, {high}]"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _in_two(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose second half stands beside its first."""
    n = -(-len(rows) // 2)
    empty = [""] * len(header)
    pairs = itertools.zip_longest(rows[:n], rows[n:], fillvalue=empty)
    return _markdown([*header, *header], [[*left, *right] for left, right in pairs])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 150, break_on_hyphens=False)


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_pages() -> None:
    """Put the figures into the model card, and the first of them into README."""
    content = blocks(json.loads(FIGURES.read_text()), json.loads(SEGMENTS.read_text()))
    CARD.write_text(fill(CARD.read_text(), content))
    README.write_text(fill(README.read_text(), {"figures": content["figures"]}))


def main() -> None:
    """Ship the checkpoint that the figures belong to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("checkpoint", type=Path, nargs="?")
    what.add_argument("--pages", action="store_true", help="write the tables of the pages alone")
    args = parser.parse_args()
    if args.checkpoint:
        path = ship(args.checkpoint, PACKAGE)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    write_pages()


if __name__ == "__main__":
    main()
