"""The plumbing: files, tables, progress, processes. Checks are tested where they are used."""

import csv
import errno
import hashlib
import io
import sys
import time

import pytest
import torch

from asvspoof_cm.utils import progress as progress_module
from asvspoof_cm.utils.files import atomic_path, exclusive, sha256, write_text
from asvspoof_cm.utils.processes import (
    check_shard,
    gather_batch,
    gather_objects,
    peak_resident_bytes,
    process_group,
    rank_and_size,
    resident_bytes,
    share_work,
)
from asvspoof_cm.utils.progress import Progress, track
from asvspoof_cm.utils.tables import read_table, render


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


def test_what_a_kill_left_is_taken_over_and_writers_do_not_meet(tmp_path):
    path = tmp_path / "scores.tsv"
    (tmp_path / ".scores.tsv.tmp").write_text("half a file, longer than what is written next")
    with atomic_path(path) as one, atomic_path(path) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"  # whose block ended last
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


def test_a_file_system_without_locks_is_no_other_process(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    for number, is_held in ((errno.ENOLCK, False), (errno.EAGAIN, True)):

        def refuse(descriptor, operation, number=number):
            raise OSError(number, "refused")

        monkeypatch.setattr(fcntl, "flock", refuse)
        with exclusive(tmp_path / "lock") as holder:
            assert (holder is not None) is is_held


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


def test_progress_writes_a_line_now_and_then_off_a_terminal(monkeypatch, capsys):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with Progress(total=8, description="epoch 1", unit="batch") as progress:
        for _ in range(4):
            progress.update(loss=0.25)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("epoch 1: 2/8, ")  # 8 s after the start: every 5 s
    assert lines[0].endswith(" s left, loss 0.25")
    assert progress.n_done == 4


def test_progress_can_be_silent(monkeypatch, capsys):
    monkeypatch.setattr(progress_module, "LINE_EVERY_S", 0.0)
    assert list(track([1, 2, 3], enabled=False)) == [1, 2, 3]
    assert capsys.readouterr().err == ""
    assert list(track(iter("ab"), description="letters")) == ["a", "b"]
    assert capsys.readouterr().err.startswith("letters: 1, ")


def test_progress_is_a_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(total=2, description="score") as progress:
        progress.update(2, eer=0.5)
    assert "100%" in sys.stderr.getvalue()


def test_one_process_is_the_first_of_one():
    assert rank_and_size() == (0, 1)
    logits, labels = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    assert gather_batch(logits, labels)[0] is logits
    assert gather_objects("scores") == ["scores"]
    with process_group(torch.device("cpu")) as device, share_work() as workers:
        assert device == torch.device("cpu")
        assert (workers.rank, workers.n_processes, workers.first(lambda: 3)) == (0, 1, 3)
    assert min(peak_resident_bytes(), resident_bytes()) > 1_000_000


def test_a_shard_is_a_part_of_a_whole():
    assert check_shard((0, 1)) == (0, 1)
    with pytest.raises(ValueError, match=r"`shard` must be \(k, n\) with 0 <= k < n; got \(2, 2\)"):
        check_shard((2, 2))
