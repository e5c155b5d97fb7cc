"""recipes/measure.py and ship.py at tiny size: scores, figures, tables, the shipped file."""

import json
import shutil

import numpy as np
import pytest
import torch

import families
import measure
import ship
from asvspoof_cm import load_checkpoint, save_checkpoint
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.checkpoint import load_tensors
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.metrics import eer, read_scores, within_sources
from asvspoof_cm.models import TFPARN, TFPARNConfig

GENERATORS = ("HiFi-GAN copy", "VALL-E", "copy-world", "AutoVC")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("FastSpeech2+HiFi-GAN", "TTS"),
        ("VALL-E+codec baseline", "TTS"),
        ("tts-taco2-mbmelgan", "TTS"),
        ("kokoro-af_heart", "TTS"),
        ("S2VC w2v-mel", "conversion"),
        ("anonymised gan", "conversion"),
        ("ASR+TTS VC ttp", "conversion"),
        ("hn-usfgan-mel copy (F0 scaled)", "vocoder copy"),
        ("copy-hifigan-universal", "vocoder copy"),
        ("HuBERT+HiFi-GAN resynthesis", "vocoder copy"),
        ("DAC codec (8 kHz)", "codec"),
        ("copy-lyra-9200", "codec"),
        ("copy-gl", "signal processing"),
        ("tts-diphone-eu", "signal processing"),
        ("vc-psola", "signal processing"),
        ("something else", "unknown"),
    ],
)
def test_families(name, family):
    assert families.family(name) == family
    assert family in families.FAMILIES


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two tables of a miniature: a split of dev with two sources, and one of eval."""
    folder = tmp_path_factory.mktemp("data")
    paths = write_miniature(folder / "mini", n_train=40, n_dev=40, duration_s=(0.5, 0.7))
    train, dev = read_protocol(paths.train_protocol), read_protocol(paths.dev_protocol)
    for table, parts in {
        "demopages": (("train", train, 0), ("dev", dev, 0)),
        "corpus": (("train", train, 20), ("dev", dev, 20), ("eval", train, 0)),
    }.items():
        lines = ["utterance\tpath\tlabel\tgenerator\tsource\tsplit"]
        for split, protocol, first in parts:
            for k, name in enumerate(protocol.utterance.tolist()[first : first + 20]):
                is_human = protocol.label[first + k] == 1
                label, generator = ("bonafide", "-") if is_human else ("spoof", GENERATORS[k % 4])
                path = f"../mini/flac_{name[0]}/{name}.flac"
                source = f"page{k // 4 % 2}"
                lines.append(f"{split}-{name}\t{path}\t{label}\t{generator}\t{source}\t{split}")
        (folder / table).mkdir()
        (folder / table / "mini").mkdir()
        lines = [line.replace("../mini/", "mini/") for line in lines]
        for audio in ("flac_T", "flac_D"):
            shutil.copytree(folder / "mini" / audio, folder / table / "mini" / audio)
        (folder / table / "corpus.tsv").write_text("\n".join(lines) + "\n")
    config = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = TFPARN(config)
        with torch.no_grad():  # scores that differ from clip to clip
            for parameter in model.parameters():
                parameter.mul_(3)
        model.input = InputSettings(crop_s=0.5, n_crops=2)
        save_checkpoint(folder / f"{seed}.pt", model.half())
    return folder


@pytest.fixture(scope="module")
def figures(data, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(measure, "N_BOOTSTRAP", 20)
    monkeypatch.setattr(measure, "FEWEST", 2)
    two = dict(list(measure.conditions().items())[:2])
    monkeypatch.setattr(measure, "conditions", lambda: two)
    monkeypatch.setattr(measure, "fit_calibration", flat_or_fit)
    systems = [f"ours={data / '0.pt'}", f"old={data / '1.pt'}"]
    where = ["--data", str(data), "--work", str(work)]
    measure.main(["score", *systems, *where])
    measure.main(["robustness", *systems, *where, "--cap", "3"])
    measure.main(["cost", *systems, "--work", str(work)])
    genders = data / "genders.tsv"
    names = read_protocol(data / "corpus" / "corpus.tsv").utterance
    rows = [f"{name}\tspoof\t{'FM'[k % 2]}" for k, name in enumerate(names)]
    genders.write_text("\n".join(["utterance\tlabel\tgender", *rows]) + "\n")
    options = ["--genders", str(genders), "--robustness-cap", "3", "--out", str(work / "f.json")]
    measure.main(["figures", *systems, *where, *options])
    yield work, json.loads((work / "f.json").read_text())
    monkeypatch.undo()


def flat_or_fit(scores, labels, **options):
    """Calibrate whatever sign an untrained model's scores happen to have."""
    from asvspoof_cm.calibration import fit_calibration

    try:
        return fit_calibration(scores, labels, **options)
    except ValueError:
        return fit_calibration(-np.asarray(scores), labels, **options)


def test_figures_are_those_of_the_score_files(data, figures):
    work, content = figures
    part = measure.read_part(data, "corpus eval", None)
    system = measure.System("old", data / "1.pt")
    scores = read_scores(work / "corpus_eval-all" / f"{system.key}.tsv")
    assert scores.filename.tolist() == part.protocol.utterance.tolist()
    found = content["sets"]["corpus eval"]["systems"]["old"]
    with measure._no_warnings():
        pooled = eer(scores.cm[part.is_human], scores.cm[~part.is_human])
        within = within_sources(scores.cm, part.protocol.label, part.sources)
    assert found["eer"]["value"] == pooled.value
    assert found["within"]["value"] == pytest.approx(within.mean_eer)
    assert found["within"]["n_sources"] == 2
    assert set(found["families"]) == {"TTS", "conversion", "vocoder copy", "signal processing"}
    assert set(content["sets"]["corpus dev"]["systems"]) == {"ours", "old", "trivial statistics"}
    assert "act_dcf" in content["sets"]["corpus dev"]["systems"]["ours"]
    assert set(content["sets"]["corpus eval"]["genders"]) == {"F", "M"}
    assert [row["condition"] for row in content["robustness"]] == list(measure.conditions())
    assert content["cost"]["systems"]["ours"]["seconds_per_crop"] > 0
    assert content["calibration"]["fitted_for"]["n_crops"] == 2


def test_scores_are_kept_and_belong_to_their_weights(data, figures, monkeypatch):
    work, _ = figures
    monkeypatch.setattr(measure.System, "scorer", None)  # nothing is to be scored again
    where = ["--data", str(data), "--work", str(work)]
    measure.main(["score", f"ours={data / '0.pt'}", *where])
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        measure.main(["score", f"old={data / '0.pt'}", *where])
    with pytest.raises(SystemExit):
        measure.main(["score", "ours=nowhere.pt", *where])


def test_figures_of_systems_that_are_not_named_are_kept(data, figures, tmp_path):
    work, content = figures
    (tmp_path / "f.json").write_text(json.dumps(content))
    arguments = ["figures", f"ours={data / '0.pt'}", "--data", str(data), "--work", str(work)]
    arguments += ["--robustness-cap", "3", "--out", str(tmp_path / "f.json"), "--keep"]
    measure.main(arguments)
    found = json.loads((tmp_path / "f.json").read_text())["sets"]
    assert {name: part["systems"] for name, part in found.items()} == {
        name: part["systems"] for name, part in content["sets"].items()
    }
    with pytest.raises(SystemExit, match="has --cap None, not 3"):
        measure.main([*arguments, "--cap", "3"])


def test_a_cap_draws_from_each_source_and_class(data):
    part = measure.read_part(data, "demopages dev", 3)
    assert len(part.protocol) == 12
    again = measure.read_part(data, "demopages dev", 3)
    assert part.protocol.utterance.tolist() == again.protocol.utterance.tolist()


def test_shipping(data, figures, tmp_path, monkeypatch):
    work, content = figures
    about = {"name": "new", "use": "for tests", "licences": {"weights": "MIT"}}
    (tmp_path / "about.json").write_text(json.dumps(about))
    monkeypatch.setattr(ship, "FIGURES", work / "f.json")
    monkeypatch.setattr(ship, "ABOUT", tmp_path / "about.json")
    (tmp_path / "older.pt").write_bytes(b"old")
    (tmp_path / "models.json").write_text(json.dumps({"older": {"file": "older.pt"}}))
    with pytest.raises(SystemExit, match="was measured on another checkpoint"):
        ship.ship(data / "1.pt", tmp_path)
    path = ship.ship(data / "0.pt", tmp_path, ["older"])
    written = json.loads((tmp_path / "models.json").read_text())
    assert [*written] == ["new"]
    assert written["new"]["sha256"] == load_tensors(path)["sha256"]
    assert not (tmp_path / "older.pt").exists()
    shipped, measured = load_checkpoint(path), load_checkpoint(data / "0.pt")
    assert shipped.meta["calibration"] == content["calibration"]
    assert shipped.meta["card"]["figures"]["corpus eval"]["within"] is not None
    for name, tensor in measured.state_dict().items():
        torch.testing.assert_close(shipped.state_dict()[name], tensor, rtol=0, atol=0)


def test_tables_fill_the_card(figures):
    _, content = figures
    tables = ship.tables(content)
    blocks = "\n".join(f"<!-- {name} -->\nold\n<!-- end {name} -->" for name in tables)
    filled = ship.fill(blocks, tables)
    assert "old\n<!-- end" not in filled
    assert ship.fill(filled, tables) == filled
    own = content["sets"]["demopages dev"]["systems"]["ours"]
    assert "| demopages dev (10 + 10) |" in filled.replace("  ", "")
    assert f"| ours | {100 * own['eer']['value']:.1f} [" in filled
    for name in ("figures", "families", "robustness", "failures", "cost"):
        assert tables[name].count("\n") >= 2, name
    assert ": corpus dev: F " in tables["genders"]
    with pytest.raises(SystemExit, match="must have a block <!-- figures -->"):
        ship.fill("nothing", tables)
