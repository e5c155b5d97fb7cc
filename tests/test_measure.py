"""recipes/measure.py and ship.py at tiny size: scores, figures, tables, the shipped file."""

import json
import shutil

import numpy as np
import pytest
import soundfile
import torch

import families
import measure
import ship
from asvspoof_cm import load_checkpoint, save_checkpoint
from asvspoof_cm.audio import InputSettings
from asvspoof_cm.checkpoint import load_tensors
from asvspoof_cm.data import read_protocol, write_miniature
from asvspoof_cm.metrics import eer
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
        lines = ["utterance\tpath\tlabel\tgenerator\tsource\tsplit\tgender"]
        for split, protocol, first in parts:
            for k, name in enumerate(protocol.utterance.tolist()[first : first + 20]):
                is_human = protocol.label[first + k] == 1
                label, generator = ("bonafide", "-") if is_human else ("spoof", GENERATORS[k % 4])
                path = f"../mini/flac_{name[0]}/{name}.flac"
                source = ("page", "stgnet/pat")[k // 4 % 2]
                row = (f"{split}-{name}", path, label, generator, source, split, "F")
                lines.append("\t".join(row))
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
    """Two systems on three sets and one channel, measured."""
    work = tmp_path_factory.mktemp("work")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(measure, "N_BOOTSTRAP", 20)
    monkeypatch.setattr(measure, "FEWEST", 2)
    monkeypatch.setattr(measure, "LENGTHS", {"0.4 s": 0.4})
    monkeypatch.setattr(measure, "fit_calibration", flat_or_fit)
    channel = data / "dev_channels" / "gsm"
    channel.mkdir(parents=True)
    shutil.copytree(data / "demopages" / "mini", channel / "mini")
    shutil.copy(data / "demopages" / "corpus.tsv", channel)
    systems = [f"ours={data / '0.pt'}", f"old={data / '1.pt'}"]
    where = ["--data", str(data), "--work", str(work)]
    measure.main(["score", *systems, *where])
    measure.main(["figures", *systems, *where, "--out", str(work / "f.json")])
    yield work, json.loads((work / "f.json").read_text())
    monkeypatch.undo()


def flat_or_fit(scores, labels, **options):
    """Calibrate whatever sign an untrained model's scores happen to have."""
    from asvspoof_cm.calibration import fit_calibration

    try:
        return fit_calibration(scores, labels, **options)
    except ValueError:
        return fit_calibration(-np.asarray(scores), labels, **options)


def test_figures_are_those_of_the_scores(data, figures):
    work, content = figures
    part = measure.read_part(data, "small corpus, eval", 20)
    system = measure.System("ours", data / "0.pt")
    args = type("Arguments", (), {"work": work})
    scores, has_speech = measure._read(args, part, system)
    assert has_speech.all()
    one_by_one = system.scorer().score_file(part.folder / part.rows[3]["path"]).score
    assert scores[3] == pytest.approx(one_by_one, abs=1e-4)
    found = content["sets"]["small corpus, eval"]["systems"]["ours"]
    with measure._no_warnings():
        pooled = eer(scores[part.is_human], scores[~part.is_human])
    assert found["eer"]["value"] == pooled.value
    calibration = content["calibration"]
    llr = calibration["scale"] * scores + calibration["offset"]
    assert found["refused"]["value"] == (llr[part.is_human] < 0).mean()
    assert found["passed"]["value"] == (llr[~part.is_human] >= 0).mean()
    assert found["refused"]["low"] <= found["refused"]["value"] <= found["refused"]["high"]
    assert set(found["families"]) == {"TTS", "conversion", "vocoder copy", "signal processing"}
    assert sum(n for _, n, _ in found["sources"]) == part.is_human.sum()
    assert found["groups"]["gender"]["F"]["n_bonafide"] == part.is_human.sum()
    english = part.is_human & (part.column("source") == "stgnet/pat")
    assert found["groups"]["language"]["English"]["n_bonafide"] == english.sum()
    assert set(content["sets"]) == {
        *("demo pages, dev", "small corpus, dev", "small corpus, eval", "0.4 s", "gsm")
    }
    assert content["calibration"]["fitted_for"]["n_crops"] == 2
    other = content["sets"]["gsm"]["systems"]["old"]  # it has no calibration: no threshold
    assert "refused" not in other
    assert "eer" in other


def test_scores_are_kept_and_belong_to_their_weights(data, figures, monkeypatch):
    work, _ = figures
    files = {path: path.stat().st_mtime_ns for path in work.rglob("*.tsv")}
    measure.main(["score", f"ours={data / '0.pt'}", "--data", str(data), "--work", str(work)])
    assert files == {path: path.stat().st_mtime_ns for path in work.rglob("*.tsv")}
    one, other = (measure.System("ours", data / f"{k}.pt").key for k in (0, 1))
    assert one != other
    with pytest.raises(SystemExit):
        measure.main(["score", "ours=nowhere.pt", "--data", str(data), "--work", str(work)])


def test_a_cap_draws_from_each_source_and_class(data):
    part = measure.read_part(data, "demo pages, dev", 3)
    assert len(part.rows) == 12
    again = measure.read_part(data, "demo pages, dev", 3)
    assert part.rows == again.rows
    assert measure.read_part(data, "no speech", 3) is None


def test_a_length_is_the_middle_of_longer_clips(data, monkeypatch):
    monkeypatch.setattr(measure, "LENGTHS", {"0.6 s": 0.6})
    clean = [measure.read_part(data, name, None) for name in measure.CLEAN]
    paths = [part.folder / row["path"] for part in clean if part for row in part.rows]
    part = measure.read_part(data, "0.6 s", None)
    assert 0 < len(part.rows) == sum(soundfile.info(p).duration >= 0.6 for p in paths) < len(paths)
    name, middle = part.audio(part.rows[0])
    assert name == part.rows[0]["utterance"]
    whole, _ = soundfile.read(part.rows[0]["path"], dtype="float32")
    first = (len(whole) - len(middle)) // 2
    np.testing.assert_array_equal(middle, whole[first : first + 9600])


def test_an_interval_draws_sources():
    wrong = np.array([True] * 10 + [False] * 10)
    found = measure._share(wrong, np.array(["a"] * 10 + ["b"] * 10))
    assert (found["value"], found["low"], found["high"]) == (0.5, 0.0, 1.0)


def test_the_file_has_a_line_for_each_row(figures):
    work, content = figures
    text = (work / "f.json").read_text()
    assert text == measure.as_json(content) + "\n"
    refused = content["sets"]["gsm"]["systems"]["ours"]["refused"]
    assert f'"refused": {json.dumps(refused)}' in text


def test_adapting_is_measured_on_the_other_clips(data, figures, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    human, fake = rng.normal(1, 1, 200), rng.normal(-5, 1, 200)  # 2 too low
    before, after = measure._adapted(human, fake, 8, 8)
    assert before == pytest.approx((human < 0).mean() / 2, abs=0.01)
    assert after < before / 2
    work, _ = figures
    monkeypatch.setattr(measure, "ADAPTED", ((1, 1),))
    where = ["--data", str(data), "--work", str(work), "--out", str(work / "f.json")]
    measure.main(["adapt", f"ours={data / '0.pt'}", *where])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["source", "channel"]


def test_shipping(data, figures, tmp_path, monkeypatch):
    work, content = figures
    about = {"name": "new", "use": "for tests", "licences": {"weights": "MIT"}}
    (tmp_path / "about.json").write_text(json.dumps(about))
    monkeypatch.setattr(ship, "FIGURES", work / "f.json")
    monkeypatch.setattr(ship, "ABOUT", tmp_path / "about.json")
    (tmp_path / "models.json").write_text(json.dumps({"older": {"file": "older.pt"}}))
    with pytest.raises(SystemExit, match="was measured on another checkpoint"):
        ship.ship(data / "1.pt", tmp_path)
    path = ship.ship(data / "0.pt", tmp_path)
    written = json.loads((tmp_path / "models.json").read_text())
    assert [*written] == ["new", "older"]
    assert written["new"]["sha256"] == load_tensors(path)["sha256"]
    shipped, measured = load_checkpoint(path), load_checkpoint(data / "0.pt")
    assert shipped.meta["calibration"] == content["calibration"]
    assert shipped.meta["card"]["figures"]["small corpus, eval"]["refused"] is not None
    for name, tensor in measured.state_dict().items():
        torch.testing.assert_close(shipped.state_dict()[name], tensor, rtol=0, atol=0)


def test_blocks_fill_the_pages(figures, tmp_path, monkeypatch):
    work, content = figures
    card, readme = tmp_path / "card.md", tmp_path / "README.md"
    names = ("figures", "details", "failures")
    card.write_text("\n".join(f"<!-- {name} -->\nbefore\n<!-- end {name} -->" for name in names))
    readme.write_text("Before\n<!-- figures -->\n<!-- end figures -->\nafter\n")
    monkeypatch.setattr(ship, "FEWEST_PEOPLE", 1)
    for name, path in {"FIGURES": work / "f.json", "CARD": card, "README": readme}.items():
        monkeypatch.setattr(ship, name, path)
    ship.write_pages()
    filled = card.read_text()
    assert "before" not in filled
    assert readme.read_text().split() == [
        *("Before", *filled.partition("<!-- end figures -->")[0].split()),
        *("<!--", "end", "figures", "-->", "after"),
    ]
    ship.write_pages()
    assert card.read_text() == filled
    own = content["sets"]["demo pages, dev"]["systems"]["ours"]
    assert f"| ours: refused / passed | {100 * own['refused']['value']:.1f} [" in filled
    assert f"| ours: EER, pooled / within sources | {100 * own['eer']['value']:.1f} [" in filled
    channel = content["sets"]["gsm"]["systems"]  # the other has no threshold: an EER
    errors = [channel["ours"][name]["value"] for name in ("refused", "passed", "eer")]
    cells = [
        " / ".join(f"{100 * x:.1f}" for x in errors),
        f"{100 * channel['old']['eer']['value']:.1f}",
    ]
    assert f"| gsm | {' | '.join(cells)} |" in filled
    n_passed = own["families"]["TTS"]
    assert f"| TTS: passed | {100 * n_passed['value']:.0f} % of {n_passed['n']} |" in filled
    assert "ours refuses" in filled
    assert "old refuses" not in filled
    assert "by language: English " in filled
    with pytest.raises(SystemExit, match="must have a block <!-- figures -->"):
        ship.fill("nothing", {"figures": ""})
