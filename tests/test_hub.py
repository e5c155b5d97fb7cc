"""Models in the hub's layout: a local folder, and a client that answers from this machine."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from asvspoof_cm import Scorer
from asvspoof_cm._hub import is_hub_name
from asvspoof_cm.calibration import Calibration
from asvspoof_cm.checkpoint import (
    load_checkpoint,
    load_pretrained,
    load_tensors,
    push_to_hub,
    save_checkpoint,
    save_folder,
)
from asvspoof_cm.cli.options import load_model
from asvspoof_cm.models import RawNet2, RawNet2Config

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("safetensors")

CARD = {
    "name": "rawnet2-noise",
    "use": "for tests",
    "data": "noise",
    "licences": {"weights": "MIT", "audio": "none"},
    "figures": {"dev": {"eer": 0.0893, "within": None}},
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = RawNet2(RawNet2Config(d_gru=8, d_embedding=8)).eval()
    model.meta = {"calibration": Calibration(scale=1 / 3).as_dict(), "card": CARD}
    return model


@pytest.fixture
def folder(model, tmp_path):
    save_folder(tmp_path / "folder", model, epoch=3)
    return tmp_path / "folder"


@pytest.fixture
def repository(monkeypatch, tmp_path):
    """A hub of one repository, whose commits are folders."""
    asked = []

    class Client:
        def create_repo(self, name, **options):
            asked.append(("create", name, options))

        def upload_folder(self, *, repo_id, folder_path):
            commit = f"{len(asked):040x}"
            target = tmp_path / "hub" / commit
            target.mkdir(parents=True)
            for file in Path(folder_path).iterdir():
                (target / file.name).write_bytes(file.read_bytes())
            asked.append(("upload", repo_id))
            return SimpleNamespace(oid=commit)

    def download(name, *, revision, allow_patterns):
        asked.append(("download", name, revision))
        assert allow_patterns == ["config.json", "model.safetensors"]
        commits = sorted((tmp_path / "hub").iterdir())
        return str(tmp_path / "hub" / revision if revision else commits[-1])

    monkeypatch.setattr(huggingface_hub, "HfApi", Client)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_a_folder_is_the_same_model_with_the_same_hash(model, folder, tmp_path):
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "config.json", "model.safetensors")
    ]
    save_checkpoint(tmp_path / "a.pt", model, epoch=3)
    sha256 = load_tensors(tmp_path / "a.pt")["sha256"]
    for loaded in (load_checkpoint(folder), load_pretrained(str(folder), sha256=sha256)):
        assert loaded.config == model.config
        assert loaded.input == model.input
        assert loaded.meta == {**model.meta, "epoch": 3}
        for name, tensor in model.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor)
    noise = 0.1 * torch.randn(16000, generator=torch.Generator().manual_seed(0))
    scorer = Scorer.from_pretrained(str(folder), device="cpu", n_crops=1, calibration=None)
    expected = Scorer(model, device="cpu", n_crops=1, calibration=None).score(noise)
    assert scorer.score(noise) == expected


def test_the_card_is_made_of_the_cards_data(model, folder):
    text = (folder / "README.md").read_text()
    sha256 = json.loads((folder / "config.json").read_text())["sha256"]
    for line in (
        *("license: mit", "library_name: asvspoof-cm", "# rawnet2-noise", "- Data: noise"),
        *(f"`{sha256}`", "It is for tests.", "- Licence of audio: none", "| dev | 8.9 |  |"),
    ):
        assert line in text


def test_pushed_and_loaded_by_name_revision_and_hash(model, repository):
    first = push_to_hub(model, "owner/rawnet2-noise", private=True)
    assert repository == [
        ("create", "owner/rawnet2-noise", {"private": True, "exist_ok": True}),
        ("upload", "owner/rawnet2-noise"),
    ]
    before = model.fc2_gru.bias.detach().clone()
    with torch.no_grad():
        model.fc2_gru.bias += 1.0
    second = push_to_hub(model, "owner/rawnet2-noise")
    loaded = {
        commit: load_pretrained("owner/rawnet2-noise", revision=commit)
        for commit in (first, second, None)
    }
    assert torch.equal(loaded[second].fc2_gru.bias, model.fc2_gru.bias)
    assert torch.equal(loaded[first].fc2_gru.bias, before)
    assert torch.equal(loaded[None].fc2_gru.bias, loaded[second].fc2_gru.bias)
    with pytest.raises(ValueError, match=r"the model that was asked for: its hash is .*ff\.$"):
        load_pretrained("owner/rawnet2-noise", sha256="ff")
    assert load_model(f"owner/rawnet2-noise@{first}").meta["card"] == CARD  # as --model names it
    assert repository[-1] == ("download", "owner/rawnet2-noise", first)


def test_damaged_folders_are_refused(folder):
    config, weights = folder / "config.json", folder / "model.safetensors"
    whole, content = config.read_text(), weights.read_bytes()
    for text, message in (
        ("{", "is damaged or no folder of a model"),
        ("[" * 100_000, "is damaged or no folder of a model"),
        ("[]", "is not that of a model of asvspoof-cm"),
        ('{"model_type": "wav2vec2"}', "is not that of a model of asvspoof-cm"),
        (whole.replace('"n_crops": 5', '"n_crops": 4'), "its content is not what was written"),
        (" " * (1 << 23), "must have at most 4,194,304 bytes"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_checkpoint(folder)
    config.write_text(whole)
    for damaged, message in (
        (content[:-5], "is damaged or no folder of a model"),
        (content[:-5] + b"\1" + content[-4:], "its content is not what was written"),
    ):
        weights.write_bytes(damaged)
        with pytest.raises(ValueError, match=message):
            load_checkpoint(folder)
    weights.unlink()
    with pytest.raises(FileNotFoundError):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("owner/name", True), ("o-1/a.b_c", True), ("name", False), ("runs/best.pt", False)),
        *(("a/b/c", False), ("../name", False), ("/name", False), ("a/m.onnx", False)),
    ],
)
def test_names_on_the_hub(name, expected):
    assert is_hub_name(name) is expected


def test_without_the_extra(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"this needs huggingface_hub.*asvspoof-cm\[hub\]"):
        load_pretrained("owner/name")
