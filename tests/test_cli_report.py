"""``asvspoof-cm report`` writes what the functions compute, and one line on bad input."""

import pytest

from asvspoof_cm import report
from asvspoof_cm.cli import main
from asvspoof_cm.runs import read_run

METRICS = {"eer": 0.125, "min_dcf": 0.25, "cllr": 0.9, "act_dcf": 0.3}
FINAL = {"dev": METRICS, "peak_memory_bytes": 1_400_000_000, "ms_per_utterance": 0.8}


@pytest.fixture
def folders(write_run):
    return [
        str(write_run("runs/6-42", seed=42, final=FINAL)),
        str(write_run("runs/6-63", seed=63, final=FINAL)),
    ]


@pytest.mark.parametrize("kind", ["markdown", "latex", "csv"])
def test_tables_are_printed(folders, capsys, kind):
    assert main(["report", *folders, "--format", kind]) == 0
    summary = report.summarize(map(read_run, folders))
    tables = [getattr(table, kind)() for table in (summary.main, summary.efficiency)]
    captured = capsys.readouterr()
    assert captured.out == f"{tables[0]}\n\n{tables[1]}\n"
    assert captured.err == ""


def test_tables_are_written(folders, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["report", *folders, "--format", "latex", "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{out / 'main.tex'}\n{out / 'efficiency.tex'}\n"
    summary = report.summarize(map(read_run, folders))
    assert (out / "main.tex").read_text() == summary.main.latex() + "\n"
    assert (out / "efficiency.tex").read_text() == summary.efficiency.latex() + "\n"


def test_unfinished_runs_are_named(folders, write_run, capsys):
    unfinished = write_run("runs/6-2026", seed=2026)
    assert main(["report", *folders, str(unfinished)]) == 0
    captured = capsys.readouterr()
    assert "| 6 TFPARN | 2 of 3 | 12.50 ± 0.00 |" in captured.out
    assert captured.err == (
        f"asvspoof-cm report: {unfinished} is unfinished (epochs: 3); it is not in the means.\n"
    )


def test_bad_input_is_one_line(folders, tmp_path, capsys):
    for arguments, message in (
        ([*folders, str(tmp_path)], f"{tmp_path / 'run.json'} does not exist"),
        ([*folders, "--split", "eval"], "6-42 has no 'eval' in its final.json"),
        ([folders[0], folders[0]], "must have each seed of a system once"),
    ):
        assert main(["report", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("asvspoof-cm report: ")
        assert error.count("\n") == 1
        assert message in error
