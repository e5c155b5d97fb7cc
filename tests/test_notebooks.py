"""The notebooks are committed as they are written: without outputs, and at home in any folder."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.ipynb"))


def test_there_are_four():
    assert [path.name[:2] for path in NOTEBOOKS] == ["1_", "2_", "3_", "4_"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_paths_are_relative_and_links_lead_somewhere(path):
    book = json.loads(path.read_text(encoding="utf-8"))
    for cell in book["cells"]:
        source = "".join(cell["source"])
        assert not re.search(r"[\"'(](/|~|[A-Z]:\\)", source)
        if cell["cell_type"] == "markdown":
            for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", source):
                assert (path.parent / link).exists()
