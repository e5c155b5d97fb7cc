"""recipes/splices.py: where a part lies, what its frames are called, what a joint tells."""

import csv

import numpy as np
import pytest
import soundfile
import torch

import splices
from asvspoof_cm import BONAFIDE, SPOOF

RATE = 16000


def tone(hertz, n=RATE, level=0.5):
    return level * np.sin(2 * np.pi * hertz * np.arange(n) / RATE)


@pytest.mark.parametrize("fade", [0, 160])
def test_a_part_takes_the_place_of_what_was_there(fade):
    base, part = tone(100.0), tone(1000.0, 4000, level=0.05)
    made, start, stop = splices.splice(base, part, 6000, fade=fade)
    assert abs(start - 6000) <= 80
    assert abs(stop - start - 4000) <= 240
    np.testing.assert_array_equal(made[:start], base[:start])
    # What follows comes from the place that fits, a few milliseconds off.
    tail = made[stop : stop + 4000]
    assert any(np.array_equal(tail, base[k : k + 4000]) for k in range(stop - 240, stop + 241))
    inside = made[start + fade : stop - fade]
    spectrum = np.abs(np.fft.rfft(inside))
    assert np.argmax(spectrum) * RATE / len(inside) == pytest.approx(1000, abs=10)
    # It has the level of what it replaces, not its own.
    assert np.sqrt(np.mean(inside**2)) == pytest.approx(np.sqrt(np.mean(base**2)), rel=0.1)
    # Both joints are at changes of sign, or faded: no step that speech does not have.
    assert np.abs(np.diff(made)).max() < 0.3


def test_a_zero_crossing_is_found_within_five_milliseconds_only():
    assert splices.zero_crossing(np.r_[np.ones(50), -np.ones(50)], 20) == 50
    assert splices.zero_crossing(np.ones(1000), 500) == 500


def test_frames_of_spliced_rows_say_where_the_other_class_is():
    humans, fakes = torch.full((4, 32000), 0.5), torch.full((4, 32000), -0.5)
    labels = torch.tensor([BONAFIDE] * 4 + [SPOOF] * 4)
    generator = torch.Generator().manual_seed(1)
    rows, frames = splices.spliced_rows(torch.cat([humans, fakes]), labels, 60, generator)
    assert rows.shape == (60, 32000)
    assert frames.shape == (60, 100)
    # Constants of two signs: the middle of each frame shows what is there.
    middle = rows.unflatten(1, (100, splices.HOP))[:, :, splices.HOP // 2]
    shown = torch.where(middle > 0, BONAFIDE, SPOOF)
    assert (shown == frames).float().mean() > 0.99
    kinds = {(bool(row[0]), bool(row.min() != row.max())) for row in frames}
    assert kinds == {(True, True), (False, True), (True, False), (False, False)}
    again, _ = splices.spliced_rows(
        torch.cat([humans, fakes]), labels, 60, torch.Generator().manual_seed(1)
    )
    assert torch.equal(rows, again)


def test_the_development_set_has_a_key_and_as_many_recordings_of_people(tmp_path):
    rng = np.random.default_rng(0)
    rows = [["utterance", "path", "label", "source", "split"]]
    for k in range(12):
        label = "bonafide" if k < 8 else "spoof"
        name = f"{label}-{k}"
        soundfile.write(tmp_path / f"{name}.flac", 0.1 * rng.standard_normal(2 * RATE), RATE)
        rows.append([name, f"{name}.flac", label, "page", "dev"])
    corpus = tmp_path / "demopages"
    corpus.mkdir()
    with (corpus / "corpus.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(
            [rows[0], *([n, f"../{p}", *rest] for n, p, *rest in rows[1:])]
        )
    assert splices.make_dev(tmp_path, tmp_path / "out", most=3) == 6
    with (tmp_path / "out" / "key.csv").open(newline="") as file:
        key = list(csv.DictReader(file))
    spliced = {row["utterance"] for row in key if row["label"] == "spoof"}
    assert len(spliced) == 3
    for name in spliced:
        own = [row for row in key if row["utterance"] == name]
        info = soundfile.info(tmp_path / "out" / "audio" / f"{name}.flac")
        assert [row["label"] for row in own] == ["bonafide", "spoof", "bonafide"]
        assert float(own[-1]["end"]) == pytest.approx(info.duration, abs=0.01)
        assert float(own[1]["end"]) - float(own[1]["start"]) == pytest.approx(2.0, abs=0.02)
