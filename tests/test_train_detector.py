"""The training of the shipped detector, with one encoder of random weights on six clips."""

import sys

import numpy as np
import pytest
import soundfile
import torch

import train_detector
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint
from asvspoof_cm.models import Encoder, EncoderConfig

CONFIG = EncoderConfig(encoder="distillmos", d_projection=8, d_attention=4, freeze=3)
COLUMNS = ("utterance", "path", "label", "generator", "speaker", "source", "split", "parent")


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    for folder in ("corpus", "demopages"):
        (tmp_path / folder).mkdir()
        rows = ["\t".join(COLUMNS)]
        for split in ("train", "dev"):
            for k in range(12):
                label, generator, parent = "bonafide", "-", "-"
                name = f"{folder}-{split}-{k}"
                if k % 2:
                    label, generator, parent = "spoof", "copy-x", f"{folder}-{split}-{k - 1}"
                clip = (rng.standard_normal(16000 + 800 * k) * 2000).astype(np.int16)
                soundfile.write(tmp_path / folder / f"{name}.flac", clip, 16000)
                cells = (name, f"{name}.flac", label, generator, "s", folder, split, parent)
                rows.append("\t".join(cells))
        (tmp_path / folder / "corpus.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_pairs_are_human_then_fake_and_copies_stand_beside_their_recordings(data):
    clips = train_detector.Clips(data)
    for row in clips.rows:  # a clip is known by its first sample
        clips.audio[row["file"]][:] = clips.rows.index(row)
    crops = clips.pairs(400, 8, np.random.default_rng(0))
    numbers = (32768 * crops[:, 0]).round().int().tolist()
    humans = [clips.rows[n] for n in numbers[:400]]
    fakes = [clips.rows[n] for n in numbers[400:]]
    assert all(map(train_detector.is_human, humans))
    assert not any(map(train_detector.is_human, fakes))
    of_parent = np.mean([f["parent"] == h["utterance"] for h, f in zip(humans, fakes, strict=True)])
    assert 0.55 < of_parent < 0.75  # 0.6, and a sixth or a twelfth of the others by chance


def test_candidates_train_without_copies_or_matching(data):
    def beside(clips):
        return np.mean([draw_is_beside(clips, seed) for seed in range(200)])

    def draw_is_beside(clips, seed):
        for number, row in enumerate(clips.rows):
            clips.audio[row["file"]][:] = number
        human, fake = (32768 * clips.pairs(1, 8, np.random.default_rng(seed))[:, 0]).round().int()
        return clips.rows[fake]["parent"] == clips.rows[human]["utterance"]

    assert beside(train_detector.Clips(data)) > 0.5
    assert beside(train_detector.Clips(data, ["pairs"])) < 0.2
    with (data / "corpus" / "corpus.tsv").open("a") as file:
        name = "corpus-train-1"
        file.write(f"other\t{name}.flac\tspoof\ttts\ts\tcorpus\ttrain\t-\n")
    rows = train_detector.Clips(data, ["copies"]).rows
    assert {row["generator"] for row in rows} == {"-", "tts"}
    for name in ("distillmos", "resnet34", "tfparn"):
        assert train_detector.MODELS[name]()(torch.randn(2, 16000)).shape == (2, 2)


def test_both_clips_of_a_pair_can_get_the_same_channel():
    waveforms = torch.randn(4, 16000, generator=torch.Generator().manual_seed(0)).repeat(2, 1) / 8
    distances = []
    for seed in range(8):
        changed = train_detector.change(waveforms, 1.0, torch.Generator().manual_seed(seed))
        human, fake = changed.chunk(2)
        distances.append(min((human - fake).abs().max(), (human + fake).abs().max()).item())
    assert changed.isfinite().all()
    assert max(distances) > 0.1


def test_a_student_approaches_its_teacher():
    teacher = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))

    def push(logits):  # what a step adds to the scores
        logits.requires_grad_()
        train_detector.imitation(logits, teacher).backward()
        return logits.grad[:, 0] - logits.grad[:, 1]

    assert push(teacher + 3.0).abs().max() < 1e-6  # only the difference of the logits counts
    assert torch.equal(push(torch.zeros(6, 2)).sign(), (teacher[:, 1] - teacher[:, 0]).sign())
    vectors = torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.1]) + 5
    standardised = (vectors - vectors.mean(0)) / vectors.std(0, correction=0)
    assert train_detector.resemblance(standardised, vectors) < 1e-5
    assert train_detector.resemblance(torch.zeros(50, 3), vectors) == pytest.approx(1, abs=0.01)


@pytest.mark.filterwarnings("ignore:the EER is", "ignore:tied scores")  # it learned nothing
def test_a_run_resumes_and_exchanges_weights(data, monkeypatch, capsys):
    monkeypatch.setattr(train_detector, "CONFIG", CONFIG)
    monkeypatch.setattr(train_detector, "DEV_CROP", 8000)
    monkeypatch.setattr(train_detector, "EXCHANGE_EVERY", 1)
    monkeypatch.setattr(train_detector, "MEASURE_EVERY", 2)
    save_checkpoint(data / "init.pt", Encoder(CONFIG))

    def train(run, *arguments):
        command = [str(data / run), "--data", str(data), "--init", str(data / "init.pt")]
        command += ["--pairs", "2", "--crop-s", "0.4", "0.6", *arguments]
        monkeypatch.setattr(sys, "argv", ["train_detector.py", *command])
        train_detector.main()
        return load_tensors(data / run / "resume.pt")

    whole = train("whole", "--steps", "3")
    train("parts", "--steps", "2")
    parts = train("parts", "--steps", "3")
    assert parts["step"] == 3
    assert all(torch.equal(whole["model"][k], parts["model"][k]) for k in whole["model"])
    with_peer = train("joined", "--steps", "1", "--peer", str(data / "whole"))
    alone = train("alone", "--steps", "1")
    name = "classifier.weight"
    mean = (alone["model"][name] + whole["model"][name]) / 2
    torch.testing.assert_close(with_peer["model"][name], mean)
    teacher = ("--teacher", str(data / "init.pt"))
    taught = train("taught", "--steps", "3", *teacher)
    train("again", "--steps", "2", *teacher)
    again = train("again", "--steps", "3", *teacher)
    assert torch.equal(again["to_teacher"]["weight"], taught["to_teacher"]["weight"])
    assert not torch.equal(taught["model"][name], whole["model"][name])
    assert (data / "whole" / "average_00002.pt").exists()
    assert "demopages" in capsys.readouterr().out
