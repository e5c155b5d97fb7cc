"""The model card says what was measured on the file that ships."""

import json
from pathlib import Path

import ship
from asvspoof_cm.checkpoint import DEFAULT_NAME, load_pretrained

ROOT = Path(__file__).parents[1]


def block(page, name):
    _, _, rest = (ROOT / page).read_text().partition(f"<!-- {name} -->")
    return rest.partition(f"<!-- end {name} -->")[0].strip()


def test_page_and_file_hold_the_measured_figures():
    figures = json.loads(ship.FIGURES.read_text())
    model = load_pretrained(DEFAULT_NAME)
    assert model.meta["calibration"] == figures["calibration"]
    shipped = model.meta["card"]["figures"]
    assert shipped
    for title, found in shipped.items():
        part = figures["sets"][title]
        assert found["eer"] == part["systems"][figures["system"]]["eer"]["value"]
        for system in part["systems"].values():
            value, low = (100 * system["eer"][name] for name in ("value", "low"))
            assert f"{value:.1f} [{low:.1f}, " in block("docs/model_card.md", "figures")


def test_the_readme_has_the_figures_of_the_card():
    assert block("README.md", "figures") == block("docs/model_card.md", "figures")


def test_the_card_has_a_place_for_every_table():
    names = ("threshold", "figures", "channels", "families", "groups", "failures")
    filled = ship.fill(ship.CARD.read_text(), {name: f"table of {name}" for name in names})
    assert filled.count("table of ") == len(names)


def test_nothing_is_left_to_fill_in():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        words = page.read_text().split()
        assert not {"RECIPE", "FAILURES", "FIGURES", "ABLATION", "PICTURE", "TODO"} & set(words), (
            page
        )
