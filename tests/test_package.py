"""The public surface: what is exported, and that importing it does nothing else."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import asvspoof_cm


def test_version_is_the_installed_one():
    assert asvspoof_cm.__version__ == version("asvspoof-cm")


def test_every_exported_name_resolves_and_is_documented():
    for name in asvspoof_cm.__all__:
        value = getattr(asvspoof_cm, name)
        assert not callable(value) or value.__doc__, name
    assert set(asvspoof_cm.__all__) <= set(dir(asvspoof_cm))


def test_static_and_lazy_exports_agree():
    tree = ast.parse(Path(asvspoof_cm.__file__).read_text())
    static = {
        (node.module.removeprefix("asvspoof_cm."), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("asvspoof_cm.")
        for alias in node.names
    }
    lazy = {(module, name) for module, names in asvspoof_cm._HOMES.items() for name in names}
    assert static == lazy
    assert {name for _, name in lazy} | {"__version__"} == set(asvspoof_cm.__all__)


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
