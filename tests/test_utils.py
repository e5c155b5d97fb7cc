"""The plumbing: files, tables, progress, processes. Checks are tested where they are used."""

import csv
import errno
import hashlib
import io
import sys

import pytest

from asvspoof_cm._tables import render
from asvspoof_cm._util import (
    atomic_path,
    read_table,
    sha256,
    track,
    write_text,
)


def test_atomic_path_replaces_the_file_whole(tmp_path):
    path = tmp_path / "new folder" / "scores.tsv"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError), atomic_path(path) as temporary:
        temporary.write_text("torn é", encoding="ascii")
    assert path.read_text() == "old"
    with atomic_path(path) as temporary:
        temporary.write_text("new é", encoding="utf-8")
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "new é"
    assert list(path.parent.iterdir()) == [path]
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(IsADirectoryError, match=r"`path` must name a file; .* is a directory"):
        write_text(tmp_path, "text")


def test_what_a_kill_left_is_overwritten(tmp_path):
    path = tmp_path / "scores.tsv"
    (tmp_path / ".scores.tsv.tmp").write_text("half a file, longer than what is written next")
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


def test_a_full_disk_is_named_whatever_the_writer_raises(tmp_path):
    path = tmp_path / "best.pt"
    write_text(path, "old")
    message = r"best\.pt could not be written: No space left on device\. What was there before"
    full = RuntimeError("unexpected pos 768 vs 662")  # as torch.save has it
    full.__context__ = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=message), atomic_path(path):
        raise full
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


HEADER = ["system", "EER %"]
ROWS = [["a_b|c", "12.5 ± 0.1"], ["all", "–"]]


def test_render_aligns_text():
    assert render(HEADER, ROWS).splitlines() == [
        "system       EER %",
        "a_b|c   12.5 ± 0.1",
        "all              –",
    ]


def test_render_escapes_markdown_and_latex():
    assert render(HEADER, ROWS, "markdown").splitlines() == [
        "| system | EER % |",
        "| :-- | --: |",
        r"| a_b\|c | 12.5 ± 0.1 |",
        "| all | – |",
    ]
    assert render(HEADER, ROWS, "latex", n_totals=1).splitlines() == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"system & EER \% \\",
        r"\midrule",
        r"a\_b|c & 12.5 $\pm$ 0.1 \\",
        r"\midrule",
        r"all & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_rendered_csv_is_read_back():
    rows = [["a,b", 0.1, 3], ['quoted "name"', None, 4]]
    text = render(["name", "value", "n"], rows, "csv")
    assert list(csv.reader(io.StringIO(text)))[1:] == [["a,b", "0.1", "3"], [rows[1][0], "", "4"]]
    table, lines = read_table(text.encode(), ",", {"name": 0, "n": 2}, 3)
    assert table["name"].tolist() == ["name", "a,b", 'quoted "name"']
    assert table["n"].tolist() == ["n", "3", "4"]
    assert lines.tolist() == [1, 2, 3]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_with_figures_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    for _ in (bar := track(range(2), description="score")):
        bar.set_postfix(eer=0.5)
    assert "score: 100%" in sys.stderr.getvalue()
    assert "eer=0.5" in sys.stderr.getvalue()


def test_progress_is_silent_for_short_work_or_without_tqdm(capsys, monkeypatch):
    assert list(track([1, 2, 3], description="numbers")) == [1, 2, 3]
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(track([1, 2, 3], enabled=False)) == [1, 2, 3]
    monkeypatch.setitem(sys.modules, "tqdm", None)  # not installed
    assert list(track(iter("ab"), description="letters")) == ["a", "b"]
    assert capsys.readouterr().err == sys.stderr.getvalue() == ""
