"""The training of the shipped detector by `fit`, one encoder of random weights on few clips."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

import detector_training
import train_detector
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint
from asvspoof_cm.data import Batch, Protocol, SpoofDataset, make_loader, matched_pairs
from asvspoof_cm.models import Encoder, EncoderConfig
from asvspoof_cm.training import EpochResult
from splices import HOP

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


def test_copies_stand_beside_their_recordings_in_batches_of_changing_length(data):
    protocol = train_detector.read_tables(data, "train", "*/corpus.tsv")
    dataset = SpoofDataset(
        protocol, data, crop="random", input=train_detector.SETTINGS, in_memory=True
    )
    order = matched_pairs(protocol, parent_share=0.6, n_rows=160)
    loader = make_loader(dataset, order=order, batch_size=32, crop_s=(0.2, 0.4, 0.6), n_workers=0)
    lengths, beside = set(), []
    parents = protocol.parents()
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            lengths.add(batch.waveform.shape[1])
            human, fake = (batch.index[batch.label == label] for label in (1, 0))
            beside += (torch.from_numpy(parents)[fake] == human).tolist()
    assert lengths == {3200, 6400, 9600}
    assert 0.55 < np.mean(beside) < 0.75  # 0.6, and a sixth or a twelfth of the others by chance


def test_parents_are_found_in_other_tables_and_samples_are_the_same_in_all_channels(data):
    lines = (data / "demopages" / "corpus.tsv").read_text().splitlines()
    coded = data / "dev_channels" / "gsm"
    coded.mkdir(parents=True)
    rows = [line + "\t" + line.split("\t")[0] for line in lines[1:]]
    rows = [row.replace("demopages-dev-", "gsm-", 1) for row in rows]
    (coded / "corpus.tsv").write_text("\n".join([lines[0] + "\toriginal", *rows]) + "\n")
    found = train_detector.read_tables(
        data, "dev", "demopages/corpus.tsv", "dev_channels/*/corpus.tsv", most=2
    )
    names = [name.rpartition("-")[2] for name in found.utterance.tolist()]
    assert found.codec.tolist() == ["demopages"] * 4 + ["dev_channels/gsm"] * 4
    assert names[:4] == names[4:]
    (data / "copies").mkdir()
    (data / "copies" / "corpus.tsv").write_text(
        "\n".join([lines[0], "x\tx.flac\tspoof\tcopy\ts\tt\ttrain\tcorpus-train-2"]) + "\n"
    )
    train = train_detector.read_tables(data, "train", "*/corpus.tsv")
    row = train.utterance.tolist().index("copies/x")
    assert train.utterance[train.parents()[row]] == "corpus/corpus-train-2"


def test_both_clips_of_a_pair_can_get_the_same_channel():
    waveforms = torch.randn(4, 16000, generator=torch.Generator().manual_seed(0)).repeat(2, 1) / 8
    labels = torch.tensor([1] * 4 + [0] * 4)
    distances = []
    for seed in range(8):
        hook = detector_training.Channels(1.0, n_more=0)
        changed, same, _ = hook(waveforms, labels, torch.Generator().manual_seed(seed))
        human, fake = changed.chunk(2)
        distances.append(min((human - fake).abs().max(), (human + fake).abs().max()).item())
    assert changed.isfinite().all()
    assert torch.equal(same, labels)
    assert max(distances) > 0.1


def test_rows_for_the_heads_of_frames_and_of_speech():
    hook = detector_training.Channels(0.0, [torch.full((5000,), 0.25), torch.full((30000,), 0.001)])
    waveforms, labels = torch.randn(8, 16000), torch.tensor([1] * 4 + [0] * 4)
    changed, label, frames = hook(waveforms, labels, torch.Generator().manual_seed(0))
    assert label.tolist() == [1] * 4 + [0] * 4 + [-2] * 4 + [-1] * 4
    assert frames.shape == (16, 50)
    assert (frames[:8] == labels[:, None]).all()
    assert (frames[12:] == -1).all()
    assert set(frames[8:12].unique().tolist()) <= {0, 1}
    # The sounds fill their rows, but for dither, offset and sign.
    level = changed[12:].abs().mean(dim=1)
    assert all(x == pytest.approx(0.25, abs=0.01) or x < 0.01 for x in level.tolist())


def test_the_objective_of_heads_is_that_of_its_parts():
    label = torch.tensor([1, 0, -2, -1])
    frame_label = torch.tensor([[1, 1], [0, 0], [1, 0], [-1, -1]])
    loud = torch.ones(4, 2 * HOP)
    loud[0, :HOP] = 1e-3  # far below the rest of its clip
    batch = Batch(loud, label, torch.arange(4), frame_label)
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0], [9.0, -9.0], [5.0, 5.0]])
    right = (frame_label * 2 - 1) * 20.0
    heard = detector_training.Heard(
        logits, torch.zeros(4, 3), right, torch.full((4, 2), 20.0), torch.full((4,), 20.0)
    )
    heard.speech_frames[3], heard.speech[3] = -20.0, -20.0
    loss = detector_training.DetectorLoss()
    expected = detector_training.objective(logits[:2], label[:2])
    torch.testing.assert_close(loss(heard, batch), expected)
    heard.frames[0, 0] = -20.0  # too quiet to count
    torch.testing.assert_close(loss(heard, batch), expected)
    heard.frames[2, 1] = 20.0
    wrong = loss(heard, batch) - expected
    assert wrong.item() == pytest.approx(0.5 * 20 / 5)
    alone = detector_training.Heard(logits, torch.zeros(4, 3))
    assert torch.equal(loss(alone, batch), expected)


def test_splices_keep_their_speed():
    hook = detector_training.Channels(1.0)
    lists = [
        [
            type(s.augmentations[0]).__name__
            for s in part.augmentations
            if hasattr(s, "augmentations")
        ]
        for part in (hook.moving, hook.still)
    ]
    assert "RandomSpeed" in lists[0]
    assert "RandomSpeed" not in lists[1]
    assert len(hook.moving.augmentations) == len(hook.still.augmentations) + 1


def test_a_student_approaches_its_teacher():
    teacher = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))

    def push(logits):  # what a step adds to the scores
        logits.requires_grad_()
        detector_training.imitation(logits, teacher).backward()
        return logits.grad[:, 0] - logits.grad[:, 1]

    assert push(teacher + 3.0).abs().max() < 1e-6  # only the difference of the logits counts
    assert torch.equal(push(torch.zeros(6, 2)).sign(), (teacher[:, 1] - teacher[:, 0]).sign())
    vectors = torch.randn(50, 3) * torch.tensor([1.0, 10.0, 0.1]) + 5
    standardised = (vectors - vectors.mean(0)) / vectors.std(0, correction=0)
    assert detector_training.resemblance(standardised, vectors) < 1e-5


def test_figures_of_the_development_sets_by_hand():
    protocol = Protocol.from_columns(
        [*"abcdefgh"], [1, 1, 0, 0, 1, 1, 0, 0], codec=["x"] * 4 + ["dev_channels/y"] * 4
    )
    scores = np.array([3.0, 1.0, 0.0, 2.0, 5.0, 5.0, -1.0, -1.0])
    result = EpochResult(
        loss=0.0, index=np.arange(8), scores=scores, labels=protocol.label, seconds=1.0
    )
    found = detector_training.DevFigures(protocol, threshold=2.5)(result)
    assert (found["x.refused"], found["x.passed"], found["x.eer"]) == (0.5, 0.0, 0.5)
    assert [found[f"dev_channels/y.{name}"] for name in ("refused", "passed", "eer")] == [0.0] * 3
    assert (found["refused"], found["passed"]) == (0.25, 0.0)
    assert found["coded"] == 0.0
    assert found["mean"] == found["clean"] / 2 > 0.1


@pytest.mark.filterwarnings("ignore:the EER is", "ignore:tied scores")  # it learned nothing
def test_a_run_goes_on_and_has_a_teacher(data, monkeypatch):
    heads = {"frame_head": True, "speech_head": True}
    monkeypatch.setattr(train_detector, "ENCODERS", replace(CONFIG, **heads))
    save_checkpoint(data / "init.pt", Encoder(CONFIG))

    def train(run, *arguments):
        command = [str(data / run), "--data", str(data), "--init", str(data / "init.pt")]
        command += ["--batch-size", "16", "--crop-s", "0.4", "0.6", "--epoch-batches", "1"]
        train_detector.main([*command, "--most-dev", "3", *arguments])
        return load_tensors(data / run / "resume.pt")["training"]

    whole = train("whole", "--epochs", "2")
    train("parts", "--epochs", "1")
    parts = train("parts", "--epochs", "2")
    assert parts["n_steps"] == 2
    assert all(torch.equal(whole["model"][k], parts["model"][k]) for k in whole["model"])
    assert any(name.startswith("frame_head") for name in whole["model"])
    assert (data / "whole" / "epoch_002.pt").exists()
    taught = train("taught", "--epochs", "2", "--teacher", str(data / "init.pt"))
    assert set(taught["loss"]) == {"to_teacher.weight", "to_teacher.bias"}
    assert any(not torch.equal(taught["model"][k], whole["model"][k]) for k in whole["model"])
