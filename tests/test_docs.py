"""The pages: their Python runs, their links lead somewhere, what they collect is complete."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import asvspoof_cm

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
STEP = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WITH_COMMANDS = [DOCS / "corpora.md"]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
DIRECTIVE = re.compile(r"^```\{([\w-]+)\} +(.+)$", re.MULTILINE)


def blocks(page):
    return BLOCK.findall(page.read_text())


def arguments(directive, pages):
    found = [DIRECTIVE.findall(page.read_text()) for page in pages]
    return [argument for page in found for name, argument in page if name == directive]


def page_name(page):
    return page.relative_to(ROOT).with_suffix("").as_posix()


@pytest.fixture
def import_from(monkeypatch):
    def load(folder, name):
        monkeypatch.syspath_prepend(str(ROOT / folder))
        return import_module(name)

    return load


@pytest.mark.filterwarnings("ignore:the EER is")  # a handful of clips says nothing
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_commands_run_between_the_python(page, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT / 'recipes'}")
    namespace = {"__name__": "__main__"}
    for language, block in STEP.findall(page.read_text()):
        if language == "python":
            exec(compile(block, str(page), "exec"), namespace)
            continue
        for command in block.strip().splitlines():
            words = command.replace("asvspoof-cm", "python -m asvspoof_cm").split()
            assert words[0] == "python", command
            run = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True)
            assert run.returncode == 0, run.stderr


PYTHON_PAGES = [page for page in PAGES if blocks(page) and page not in WITH_COMMANDS]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for index in [DOCS / "index.md", DOCS / "reference" / "index.md"]:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), re.DOTALL):
            names = [line for line in tree.split("\n") if line and not line.startswith(":")]
            listed |= {index.parent / f"{name}.md" for name in names}
    assert listed == set(DOCS.rglob("*.md"))


def test_every_public_name_is_in_the_reference_once(import_from):
    names = import_from("docs/_extensions", "public_names")
    modules = arguments("public-module", (DOCS / "reference").glob("*.md"))
    assert sorted(modules) == sorted(names.public_objects())
    documented = [
        id(getattr(import_module(module), name))
        for module in modules
        for name in names.public_objects()[module]
        if not names.is_constant(getattr(import_module(module), name))
    ]
    assert len(documented) == len(set(documented))


def test_every_name_of_the_package_is_in_the_reference(import_from):
    names = import_from("docs/_extensions", "public_names").public_objects()
    modules = arguments("public-module", (DOCS / "reference").glob("*.md"))
    documented = {name for module in modules for name in names[module]}
    assert set(asvspoof_cm.__all__) <= documented


def test_every_note_is_among_the_differences():
    """A deviation is told twice: in its docstring's Note, and by that name on the page."""
    page = (DOCS / "differences.md").read_text()
    noted = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_documented = isinstance(node, ast.ClassDef | ast.FunctionDef)
            if is_documented and "Note:\n" in (ast.get_docstring(node) or ""):
                noted.add(node.name)
    assert len(noted) > 15
    assert not {name for name in noted if f"`{name}`" not in page}


def test_the_tree_of_the_design_is_the_house():
    house = ROOT / "src" / "asvspoof_cm"
    tree = (DOCS / "design.md").read_text().split("```text\nsrc/asvspoof_cm/\n")[1].split("```")[0]
    top = re.findall(r"^  (\w+(?:\.py|/))(?=\s)", tree, re.MULTILINE)
    assert set(top) == {
        path.name if path.is_file() else f"{path.name}/"
        for path in house.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__.py", "__main__.py"}
    files = {path.name for path in house.rglob("*.py")}
    assert not set(re.findall(r"\b\w+\.py\b", tree)) - files


def test_benchmark_page_shows_the_recorded_results(import_from):
    rendered = import_from("benchmarks", "harness").render_results()
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == rendered
    assert "../benchmarks/RESULTS.md" in arguments("include", [DOCS / "benchmarks.md"])
