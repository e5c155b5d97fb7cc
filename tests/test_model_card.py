"""The model card says what was measured on the file that ships."""

import json
from pathlib import Path

from asvspoof_cm import pretrained

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "model_card"
CARD = (ROOT / "docs" / "model_card.md").read_text()
PAGES = CARD + (FOLDER / "NOTES.md").read_text()


def block(name):
    _, _, rest = PAGES.partition(f"<!-- {name} -->")
    return rest.partition(f"<!-- end {name} -->")[0].strip()


def test_page_and_file_hold_the_measured_figures():
    figures = json.loads((FOLDER / "figures.json").read_text())
    robustness = json.loads((FOLDER / "robustness.json").read_text())
    assert robustness["checkpoint_sha256"] == figures["checkpoint_sha256"]
    card = pretrained.card()
    for name in ("dev", "eval", "groups", "attacks"):
        assert card[name] == figures[name]
    assert card["robustness"] == robustness["rows"]
    assert (
        pretrained.load_pretrained(pretrained.DEFAULT_NAME).meta["calibration"]
        == (figures["calibration"])
    )

    for split in ("dev", "eval"):
        assert f"{100 * figures[split]['eer']['value']:.1f} [" in block("pooled")
        for row in figures["attacks"][split]:
            cells = f"| {row['attack']} | {row['generator']} | {split} | {row['n_spoof']} | "
            assert cells + f"{100 * row['eer']['value']:.1f} [" in block("attacks")
    for name, part in figures["published"].items():
        assert f"| {name} | {100 * part['eer']['value']:.1f} [" in block("published")
    for row in robustness["rows"]:
        cells = f"| {row['condition']} | {100 * row['eer']:.1f} | {row['min_dcf']:.3f} |"
        assert cells in block("robustness")


def test_nothing_is_left_to_fill_in():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        words = page.read_text().split()
        assert not {"RECIPE", "FAILURES", "FIGURES", "ABLATION", "PICTURE", "TODO"} & set(words), (
            page
        )
