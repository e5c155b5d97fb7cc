"""What several test modules share."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

import asvspoof_cm

# Processes that tests start import the package under test, not another that is installed.
os.environ["PYTHONPATH"] = str(Path(asvspoof_cm.__file__).parents[1])

REFERENCE = Path(__file__).parent / "reference"


def _golden(name):
    return json.loads((REFERENCE / f"golden_{name}.json").read_text())


@pytest.fixture(scope="session")
def golden_logmel():
    return _golden("logmel")


@pytest.fixture(scope="session")
def golden_models():
    return _golden("models")


@pytest.fixture(scope="session")
def inputs():
    """The formulas behind the recorded references."""
    spec = importlib.util.spec_from_file_location("inputs", REFERENCE / "inputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference_wave(inputs):
    return inputs.wave()
