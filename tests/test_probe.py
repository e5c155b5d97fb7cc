"""recipes/probe.py: features of frozen layers, kept, and a regression on each."""

import numpy as np
import pytest
import torch

import probe
from asvspoof_cm import save_checkpoint
from asvspoof_cm.data import SpoofDataset, read_protocol, write_miniature
from asvspoof_cm.models import TFPARN, Encoder, EncoderConfig, TFPARNConfig


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A miniature as one table with splits and two sources, and an untrained small model."""
    folder = tmp_path_factory.mktemp("probe")
    paths = write_miniature(folder, n_train=24, n_dev=12, duration_s=(0.5, 0.8))
    lines = ["utterance\tpath\tlabel\tsource\tsplit"]
    for split, path, audio in (
        ("train", paths.train_protocol, "flac_T"),
        ("dev", paths.dev_protocol, "flac_D"),
    ):
        protocol = read_protocol(path)
        for k, name in enumerate(protocol.utterance.tolist()):
            label = ("spoof", "bonafide")[protocol.label[k]]
            lines.append(f"{name}\t{audio}/{name}.flac\t{label}\tpage{k // 2 % 2}\t{split}")
    (folder / "corpus.tsv").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    config = TFPARNConfig(d_model=16, n_layers=2, n_heads=2, d_feedforward=16)
    save_checkpoint(folder / "small.pt", TFPARN(config))
    return folder


def test_layers_of_lists_are_found_and_named_ones():
    encoder = Encoder(EncoderConfig(encoder="distillmos"))
    assert probe.find_layers(encoder) == {"encoders.0": None}
    found = probe.find_layers(encoder, ["encoders.0.convolutions.[34]", "mixtures.0@1"])
    assert found == {
        "encoders.0.convolutions.3": None,
        "encoders.0.convolutions.4": None,
        "mixtures.0": 1,
    }
    with pytest.raises(ValueError, match=r"--layer nowhere fits no module; there are encoders"):
        probe.find_layers(encoder, ["nowhere"])


def test_statistics_are_those_of_the_layers():
    encoder = Encoder(EncoderConfig(encoder="distillmos")).eval()
    waveforms = torch.randn(2, 8000, generator=torch.Generator().manual_seed(1))
    waveforms = waveforms / waveforms.abs().amax(dim=1, keepdim=True)
    names = ["encoders.0", "encoders.0.convolutions.5"]
    found = probe.layer_statistics(encoder, waveforms, dict.fromkeys(names))
    with torch.inference_mode():
        (frames,) = encoder.encoders[0](waveforms)
    expected = torch.cat([frames.mean(dim=1), frames.std(dim=1)], dim=1)
    torch.testing.assert_close(found["encoders.0"], expected, rtol=1e-4, atol=1e-5)
    assert found["encoders.0.convolutions.5"].shape == (2, 2 * 256)
    assert not encoder.encoders[0]._forward_hooks


def test_features_are_kept(corpus, tmp_path, monkeypatch):
    model = probe.load(str(corpus / "small.pt"))
    protocol = read_protocol(corpus / "corpus.tsv")
    layers = probe.find_layers(model)
    monkeypatch.setattr(probe, "CHUNK", 16)

    def listen(rows):
        dataset = SpoofDataset(protocol.select(rows), corpus, n_samples=8000)
        return probe.features(model, layers, dataset, tmp_path, progress=False)

    first = listen(range(20))
    calls = []
    real = probe.layer_statistics
    monkeypatch.setattr(probe, "layer_statistics", lambda *a: calls.append(len(a[1])) or real(*a))
    again = listen(range(20))
    assert not calls
    more = listen(range(22))
    assert calls == [6]
    for name, values in first.items():
        assert values.shape == (20, 32)
        np.testing.assert_array_equal(again[name], values)
        np.testing.assert_allclose(more[name][:20], values, rtol=1e-3, atol=1e-4)


def test_a_layer_that_hears_it_has_no_errors():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    heard = rng.standard_normal((60, 3)) + 6 * labels[:, None]
    deaf = rng.standard_normal((60, 3))
    sources = np.array(["x", "x", "y", "y"] * 15)
    for features, low, high in ((heard, 0.0, 0.0), (deaf, 0.2, 0.8)):
        pairs = (features[:40], labels[:40]), (features[40:], labels[40:])
        found = probe.measure(*probe.probe(*pairs), sources[40:])
        assert low <= found.pooled <= high
        assert low <= found.within <= high


def test_command_prints_a_row_per_layer(corpus, tmp_path, capsys):
    arguments = [str(corpus / "corpus.tsv"), "--model", str(corpus / "small.pt"), "--quiet"]
    options = ["--cache", str(tmp_path), "--crop-s", "0.5", "--most", "20", "--penalty", "1"]
    probe.main([*arguments, *options])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["model", "layer", "values", "EER", "%", "within", "%"]
    names = [line.split()[1] for line in printed[1:-1]]
    assert names == ["layers.0", "layers.1"]
    assert all(0 <= float(line.split()[-2]) <= 100 for line in printed[1:-1])
    assert printed[-1] == "20 clips of train, 12 of dev"
