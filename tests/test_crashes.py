"""Three kills of each command; ``benchmarks/crashes.py`` has fifty."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "crashes.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "score"])
def test_a_killed_command_finishes_with_the_undisturbed_result(name):
    # In a process of its own, because forks want one without threads.
    command = [sys.executable, str(SCRIPT), "--only", name, "--n", "3", "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: 3 kills: " in done.stdout
