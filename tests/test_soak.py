"""A few seconds of ``benchmarks/soak.py``."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_every_input_is_answered_once(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    rows, details = soak.soak(minutes=0.05, seed=0)
    answered = {row.case.partition(":")[0]: row for row in rows[:2]}
    assert all(row.met and row.ours > 0 for row in answered.values())
    assert set(details["statuses"]) <= {200, 422}
    assert answered["service"].ours == sum(details["statuses"].values())
