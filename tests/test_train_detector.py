"""The training of the shipped detector by `fit`, one encoder of random weights on few clips."""

import numpy as np
import pytest
import soundfile
import torch

import train_detector
from asvspoof_cm.checkpoint import load_tensors, save_checkpoint
from asvspoof_cm.data import Batch, Protocol, SpoofDataset, make_loader, matched_pairs
from asvspoof_cm.models import Encoder, EncoderConfig
from asvspoof_cm.training import EpochResult

CONFIG = EncoderConfig(
    encoder="distillmos",
    d_projection=8,
    d_attention=4,
    freeze=3,
    frame_head=True,
    speech_head=True,
)
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


def test_both_clips_of_a_pair_can_get_the_same_channel():
    waveforms = torch.randn(4, 16000, generator=torch.Generator().manual_seed(0)).repeat(2, 1) / 8
    labels = torch.tensor([1] * 4 + [0] * 4)
    distances = []
    for seed in range(8):
        hook = train_detector.PairedChannel(1.0, n_more=0)
        changed, same, _ = hook(waveforms, labels, torch.Generator().manual_seed(seed))
        human, fake = changed.chunk(2)
        distances.append(min((human - fake).abs().max(), (human + fake).abs().max()).item())
    assert changed.isfinite().all()
    assert torch.equal(same, labels)
    assert max(distances) > 0.1


def test_rows_for_the_heads_of_frames_and_of_speech():
    hook = train_detector.PairedChannel(
        0.0, [torch.full((5000,), 0.25), torch.full((30000,), 0.001)]
    )
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
    loud = torch.ones(4, 2 * train_detector.HOP)
    loud[0, : train_detector.HOP] = 1e-3  # far below the rest of its clip
    batch = Batch(loud, label, torch.arange(4), frame_label)
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0], [9.0, -9.0], [5.0, 5.0]])
    right = (frame_label * 2 - 1) * 20.0
    outputs = (logits, right, torch.full((4, 2), 20.0), torch.full((4,), 20.0))
    outputs[2][3], outputs[3][3] = -20.0, -20.0
    expected = train_detector.objective(logits[:2], label[:2])
    torch.testing.assert_close(train_detector.objective_of_heads(outputs, batch), expected)
    outputs[1][0, 0] = -20.0  # too quiet to count
    torch.testing.assert_close(train_detector.objective_of_heads(outputs, batch), expected)
    outputs[1][2, 1] = 20.0
    wrong = train_detector.objective_of_heads(outputs, batch) - expected
    assert wrong.item() == pytest.approx(0.5 * 20 / 5)


def test_figures_of_the_development_sets_by_hand():
    protocol = Protocol.from_columns(
        [*"abcdefgh"], [1, 1, 0, 0, 1, 1, 0, 0], codec=["x"] * 4 + ["y"] * 4
    )
    scores = np.array([3.0, 1.0, 0.0, 2.0, 5.0, 5.0, -1.0, -1.0])
    result = EpochResult(
        loss=0.0, index=np.arange(8), scores=scores, labels=protocol.label, seconds=1.0
    )
    found = train_detector.DevFigures(protocol, threshold=2.5)(result)
    assert (found["x.refused"], found["x.passed"], found["x.eer"]) == (0.5, 0.0, 0.5)
    assert (found["y.refused"], found["y.passed"], found["y.eer"]) == (0.0, 0.0, 0.0)
    assert 0 < found["mean"] < 0.5


@pytest.mark.filterwarnings("ignore:the EER is", "ignore:tied scores")  # it learned nothing
def test_a_run_resumes_and_has_a_teacher(data, monkeypatch):
    monkeypatch.setattr(train_detector, "ENCODERS", CONFIG)
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
    assert (data / "whole" / "epoch_002.pt").exists()
    taught = train("taught", "--epochs", "2", "--teacher", str(data / "init.pt"))
    assert set(taught["loss"]) == {"to_teacher.weight", "to_teacher.bias"}
    assert any(not torch.equal(taught["model"][k], whole["model"][k]) for k in whole["model"])
