"""The model card says what was measured on the file that ships."""

import json
from pathlib import Path

from asvspoof_cm.checkpoint import DEFAULT_NAME, load_pretrained

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "recipes" / "model_card"
CARD = (ROOT / "docs" / "model_card.md").read_text()


def block(name):
    _, _, rest = CARD.partition(f"<!-- {name} -->")
    return rest.partition(f"<!-- end {name} -->")[0].strip()


def test_page_and_file_hold_the_measured_figures():
    figures = json.loads((FOLDER / "figures.json").read_text())
    model = load_pretrained(DEFAULT_NAME)
    assert model.meta["calibration"] == figures["calibration"]
    for title, part in figures["sets"].items():
        own = part["systems"][figures["system"]]
        shipped = load_pretrained(DEFAULT_NAME).meta["card"]["figures"][title]
        assert shipped == {"eer": own["eer"]["value"], "within": own["within"]["value"]}
        assert f"{title} ({part['n_bonafide']} + {part['n_spoof']})" in block("figures")
        for system in part["systems"].values():
            value, within = system["eer"], system["within"]
            text = f"{100 * value['value']:.1f} [{100 * value['low']:.1f}, "
            assert text in block("figures")
            assert f"/ {100 * within['value']:.1f} [" in block("figures")
        for kind in ("refused", "passed"):
            assert part["worst"][kind][0]["name"] in block("failures")
    assert f"at most {figures['cap']} clips per class and source" in " ".join(CARD.split())


def test_nothing_is_left_to_fill_in():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        words = page.read_text().split()
        assert not {"RECIPE", "FAILURES", "FIGURES", "ABLATION", "PICTURE", "TODO"} & set(words), (
            page
        )
