"""The generated corpus, and the commands on it."""

import numpy as np
import pytest
import soundfile
import torch

from asvspoof_cm.cli import main
from asvspoof_cm.data import SpoofDataset, read_protocol, write_miniature
from asvspoof_cm.labels import BONAFIDE, SPOOF


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return write_miniature(tmp_path_factory.mktemp("miniature"), n_train=60, n_dev=30, seed=1)


def test_layout_and_protocols_are_those_of_asvspoof5(paths):
    train, dev = read_protocol(paths.train_protocol), read_protocol(paths.dev_protocol)
    assert train.format == dev.format == "asvspoof5"
    assert train.counts() == {"bonafide": 30, "spoof": 30}
    assert dev.counts() == {"bonafide": 15, "spoof": 15}
    for column in ("speaker", "attack", "utterance"):
        assert set(getattr(train, column)) & set(getattr(dev, column)) <= {"-"}
    for protocol, folder in ((train, "flac_T"), (dev, "flac_D")):
        files = {path.name for path in (paths.audio_dir / folder).iterdir()}
        assert files == {f"{name}.flac" for name in protocol.utterance}
    info = soundfile.info(paths.audio_dir / "flac_T" / "T_0000000001.flac")
    assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
    assert 1.0 <= info.duration <= 3.0


def test_one_seed_gives_one_corpus(tmp_path):
    def content(name, seed):
        made = write_miniature(tmp_path / name, n_train=3, n_dev=2, seed=seed)
        return {p.name: p.read_bytes() for p in made.audio_dir.rglob("*") if p.is_file()}

    assert content("a", 5) == content("b", 5)
    assert content("a", 5) != content("c", 6)


def test_a_linear_detector_of_band_energies_separates_the_classes(paths):
    """Trained on one subset, tried on the speakers and attacks of the other."""
    window = torch.hann_window(512)

    def features(path):
        protocol = read_protocol(path)
        dataset = SpoofDataset(protocol, paths.audio_dir)
        waveforms = torch.stack([dataset[k][0] for k in range(len(dataset))])
        power = torch.stft(waveforms, 512, 256, window=window, return_complex=True).abs() ** 2
        bands = torch.log(power[:, :256] + 1e-6).mean(-1).reshape(len(dataset), 16, 16).mean(-1)
        return bands.double(), protocol.label

    (train, train_label), (dev, dev_label) = map(
        features, (paths.train_protocol, paths.dev_protocol)
    )
    mean, std = train.mean(0), train.std(0)
    design = (train - mean) / std
    target = torch.tensor(np.where(train_label == BONAFIDE, 1.0, -1.0))
    weights = torch.linalg.solve(design.T @ design + torch.eye(16), design.T @ target)
    scores = (((dev - mean) / std) @ weights).numpy()
    n_wrong = (scores[dev_label == BONAFIDE][:, None] <= scores[dev_label == SPOOF]).sum()
    assert n_wrong <= 0.02 * 15 * 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 1, "n_dev": 4}, "`n_train` and `n_dev` must be at least 2; got 1 and 4"),
        ({"duration_s": (2.0, 1.0)}, "`duration_s` must be in order"),
        ({"duration_s": (0.001, 1.0)}, r"the shortest at least 0\.1 s; got \(0\.001, 1\.0\)"),
    ],
)
def test_wrong_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        write_miniature(tmp_path, **options)


# Commands


def test_protocol_command_counts_missing_files(paths, tmp_path, capsys):
    assert main(["protocol", str(paths.dev_protocol), "--audio", str(paths.audio_dir)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "format asvspoof5 utterances 30 bonafide 15 spoof 15" in output
    assert "attacks 3 (A09, A10, A11)" in output
    assert output.endswith("missing files 0")
    protocol = tmp_path / "more.tsv"
    extra = "".join(f"D_1 D_{k} F - - - - bonafide bonafide -\n" for k in range(7))
    protocol.write_text(paths.dev_protocol.read_text() + extra)
    assert main(["protocol", str(protocol), "--audio", str(paths.audio_dir)]) == 1
    shown = "7: D_0.flac, D_1.flac, D_2.flac, D_3.flac, D_4.flac, …"
    assert shown in capsys.readouterr().out


def test_protocol_command_says_what_is_wrong(paths, tmp_path, capsys):
    assert main(["protocol", str(paths.dev_protocol), "--expect", "dev"]) == 2
    assert "expected utterances" in capsys.readouterr().err
    bad = tmp_path / "bad.tsv"
    bad.write_text("D_1 D_1 F - - - - A01 fake -\n")
    assert main(["protocol", str(bad)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("asvspoof-cm protocol: ")
    assert "line 1: a label must be one of" in error
    assert error.count("\n") == 1


def test_protocol_command_maps_an_unknown_table(tmp_path, capsys):
    table, out = tmp_path / "table.csv", tmp_path / "mine.csv"
    table.write_text('clip;who;real\n"a,1.wav";S1;yes\nb.wav;S2;no\n')
    columns = ["--columns", "path=clip", "label=real", "speaker=who", "--labels", "yes=bonafide"]
    assert main(["protocol", str(table), *columns]) == 2
    assert "line 3: a label must be one of" in capsys.readouterr().err
    assert main(["protocol", str(table), *columns, "no=spoof", "--out", str(out)]) == 0
    assert "written to" in capsys.readouterr().out
    protocol = read_protocol(out)
    assert protocol.utterance.tolist() == ["a,1.wav", "b.wav"]
    assert protocol.label.tolist() == [BONAFIDE, SPOOF]
    assert protocol.speaker.tolist() == ["S1", "S2"]
    with pytest.raises(SystemExit):
        main(["protocol", str(table), "--columns", "path"])
    assert "must be NAME=VALUE; got 'path'" in capsys.readouterr().err
