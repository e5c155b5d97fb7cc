"""Fine-tuning on recordings of one's own: how speakers are divided and copies are made."""

import numpy as np
import pytest
import soundfile

import finetune
from manyvoices import table, vocoders


@pytest.fixture
def pages(tmp_path):
    """A corpus with seven speakers of a source, the first with most clips, and one of another."""
    rng = np.random.default_rng(0)
    rows = []
    for speaker, source in [*((k, "calls") for k in range(7)), (9, "other")]:
        for k in range(8 - speaker if source == "calls" else 1):
            name = f"{source}{speaker}{k}"
            path = tmp_path / "pages" / "audio" / f"{name}.flac"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, 0.1 * rng.standard_normal(16000), 16000)
            row = table.Row(
                utterance=name,
                path=f"audio/{name}.flac",
                label="bonafide",
                generator="-",
                speaker=f"s{speaker}",
                source=source,
                split="dev",
            )
            rows.append(row)
    table.write_table(tmp_path / "pages" / table.TABLE, rows)
    return tmp_path / "pages"


def test_speakers_are_trained_on_validated_or_held_out(pages):
    rows = finetune.divide(table.read_table(pages / table.TABLE), "calls")
    speakers = {split: {r.speaker for r in rows if r.split == split} for split in ("train", "dev")}
    assert speakers == {"train": {"s0", "s1", "s2", "s3"}, "dev": {"s4"}}
    assert {r.speaker for r in rows if r.split == "eval"} == {"s5", "s6"}
    with pytest.raises(SystemExit, match="`source` must have 6 speakers; got other"):
        finetune.divide(table.read_table(pages / table.TABLE), "other")


def test_voices_held_out_get_copies_that_training_does_not_hear(pages, tmp_path, monkeypatch):
    train = {"copy-griffin-lim": vocoders.COPIERS["copy-griffin-lim"]}
    dev = {"copy-phases": vocoders.HELD_OUT["copy-phases"]}
    monkeypatch.setattr(finetune, "available", lambda weights: (train, dev, {}))
    work = tmp_path / "work"
    args = finetune.argparse.Namespace(corpus=pages, source="calls", weights=tmp_path, work=work)
    finetune.prepare(args)
    for split, name in (("train", "copy-griffin-lim"), ("eval", "copy-phases")):
        rows = table.read_table(work / f"{split}.tsv")
        human, fake = ([r for r in rows if r.is_human is kind] for kind in (True, False))
        assert {r.generator for r in fake} == {name}
        assert {r.parent for r in fake} == {r.utterance for r in human}
        assert all((work / r.path).exists() for r in rows)
