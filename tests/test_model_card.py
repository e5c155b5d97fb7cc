"""The model card says what was measured on the file that ships."""

import json
from pathlib import Path

import ship
from asvspoof_cm.checkpoint import DEFAULT_NAME, load_pretrained

ROOT = Path(__file__).parents[1]


def test_page_and_file_hold_the_measured_figures():
    figures = json.loads(ship.FIGURES.read_text())
    model = load_pretrained(DEFAULT_NAME)
    assert model.meta["calibration"] == figures["calibration"]
    shipped = model.meta["card"]["figures"]
    assert shipped
    for title, found in shipped.items():
        part = figures["sets"][title]
        assert found["eer"] == part["systems"][figures["system"]]["eer"]["value"]


def test_the_pages_say_what_was_measured():
    card, readme = ship.CARD.read_text(), ship.README.read_text()
    content = ship.blocks(*(json.loads(path.read_text()) for path in (ship.FIGURES, ship.SEGMENTS)))
    assert ship.fill(card, content) == card
    assert ship.fill(readme, {"figures": content["figures"]}) == readme
    assert len(card.splitlines()) <= 110


def test_nothing_is_left_to_fill_in():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        words = page.read_text().split()
        assert not {"RECIPE", "FAILURES", "FIGURES", "ABLATION", "PICTURE", "TODO"} & set(words), (
            page
        )
