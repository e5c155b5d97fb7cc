"""The public surface: what is exported, and that importing it does nothing else."""

import re
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import asvspoof_cm
from asvspoof_cm import Scorer, cli, write_miniature
from asvspoof_cm.checkpoint import DEFAULT_NAME

ROOT = Path(__file__).resolve().parents[1]


def test_version_is_the_installed_one():
    assert asvspoof_cm.__version__ == version("asvspoof-cm")


def test_every_exported_name_resolves_and_is_documented():
    for name in asvspoof_cm.__all__:
        value = getattr(asvspoof_cm, name)
        assert not callable(value) or value.__doc__, name
    assert set(asvspoof_cm.__all__) <= set(dir(asvspoof_cm))


def test_every_exported_name_is_in_a_guide():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    no_guides = ("changelog.md", "design.md", "benchmarks.md", "differences.md")
    text = "\n".join(page.read_text() for page in pages if page.name not in no_guides)
    code = " ".join(re.findall(r"^```.*?^```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE))
    assert not {name for name in asvspoof_cm.__all__ if not re.search(rf"\b{name}\b", code)}
    assert {"LogMel", "SincConv"} <= set(asvspoof_cm.__all__)
    assert 50 <= len(asvspoof_cm.__all__) <= 65


def test_names_are_listed_once_and_resolved_on_first_use():
    code = """
import sys
import asvspoof_cm
assert "torch" not in sys.modules
names = set(asvspoof_cm.__all__)
assert {"TFPARN", "focal_pairwise_loss", "Scorer"} <= names <= set(dir(asvspoof_cm))
asvspoof_cm.BONAFIDE
assert "torch" not in sys.modules
from asvspoof_cm.data import read_protocol
assert "torch" not in sys.modules
from asvspoof_cm import TFPARN
assert asvspoof_cm.TFPARN is TFPARN is vars(asvspoof_cm)["TFPARN"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        ("import asvspoof_cm.audio", ["torch", "soundfile", "scipy.signal"]),
        ("import asvspoof_cm.models", ["soundfile", "scipy.signal"]),
        ("from asvspoof_cm import TFPARN", ["soundfile", "scipy.signal"]),
    ],
)
def test_an_import_loads_no_more_than_it_needs(imported, unwanted):
    code = f"import sys; {imported}; sys.exit(str([m for m in {unwanted} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'TFPARM'"):
        _ = asvspoof_cm.TFPARM


def test_import_is_silent_and_changes_nothing_global():
    code = """
import random, sys, warnings
import numpy, scipy.optimize, scipy.signal, scipy.sparse, scipy.stats, soundfile, torch
def state():
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
            torch.initial_seed(), random.getstate(), str(numpy.random.get_state()),
            list(warnings.filters), numpy.geterr())
before = state()
import asvspoof_cm
for name in asvspoof_cm.__all__:
    getattr(asvspoof_cm, name)
sys.exit(before != state())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_claimed_version_of_python_is_the_one_that_tests_and_types_use():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = settings["project"]["requires-python"].removeprefix(">=")
    assert settings["tool"]["mypy"]["python_version"] == oldest  # ruff takes its target from there
    named = [c.rpartition(" ")[2] for c in settings["project"]["classifiers"] if ":: 3." in c]
    assert named[0] == oldest
    assert f"Python {oldest} or later; the tests run on {' and '.join(named)}." in (
        ROOT / "docs" / "quickstart.md"
    ).read_text(encoding="utf-8")


def files_run(function):
    """Return the files of the package of which code runs, in any thread."""
    seen, root = set(), str(Path(asvspoof_cm.__file__).parent)

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(root):
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


def test_the_walk_from_a_file_to_its_score_is_short():
    def score():
        Scorer.from_pretrained(DEFAULT_NAME).score_file(ROOT / "examples/audio/human_numbers.flac")

    score()
    assert len(files_run(score)) <= 14


@pytest.mark.filterwarnings("ignore:the EER is")
def test_the_walk_from_a_protocol_to_a_checkpoint_is_short(tmp_path):
    paths = write_miniature(tmp_path, n_train=4, n_dev=4)
    options = {"train-protocol": paths.train_protocol, "dev-protocol": paths.dev_protocol}
    options |= {"audio": paths.audio_dir, "epochs": 1, "batch-size": 2, "workers": 0, "crops": 1}
    command = ["train", "--quiet", "--device=cpu", "--crop-s=0.5"]
    command += [f"--{name}={value}" for name, value in options.items()]
    assert cli.main([*command, f"--out={tmp_path / 'first'}"]) == 0
    assert len(files_run(lambda: cli.main([*command, f"--out={tmp_path / 'second'}"]))) <= 32
    assert (tmp_path / "second/best.pt").exists()


@pytest.mark.parametrize(("command", "most"), [("score", 18), ("train", 25)])
def test_commands_have_few_options(command, most, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert len(set(options) - {"--help"}) <= most
