"""Scoring inside dataset.map: bytes, arrays and paths, in memory, saved and streamed."""

import io
import math

import numpy as np
import pytest
import soundfile

from asvspoof_cm.calibration import Calibration
from asvspoof_cm.engines import score_batch_function
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer

datasets = pytest.importorskip("datasets")

RATES = [16000, 8000, 22050, 16000, 16000]


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory):
    datasets.disable_progress_bars()
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("cache")
    yield
    datasets.config.HF_DATASETS_CACHE = before


@pytest.fixture(scope="module")
def scorer():
    model = TFPARN(TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16))
    return Scorer(model, device="cpu", n_crops=2, crop_s=0.5, batch_size=3)


@pytest.fixture(scope="module")
def waves():
    rng = np.random.default_rng(1)
    return [(0.1 * rng.standard_normal(rate)).astype(np.float32) for rate in RATES]


@pytest.fixture(scope="module")
def rows(waves):
    contents = []
    for wave, rate in zip(waves, RATES, strict=True):
        file = io.BytesIO()
        soundfile.write(file, wave, rate, format="FLAC", subtype="PCM_24")
        contents.append(file.getvalue())
    contents[3] = b"no audio"
    return {
        "audio": [{"bytes": data, "path": f"u{k}.flac"} for k, data in enumerate(contents)],
        "label": [1, 0, 0, 1, 1],
    }


@pytest.fixture(scope="module")
def dataset(rows):
    made = datasets.Dataset.from_dict(rows)
    made = made.cast_column("label", datasets.ClassLabel(names=["bonafide", "spoof"]))
    return made.cast_column("audio", datasets.Audio(decode=False))


@pytest.fixture(scope="module")
def expected(scorer, waves):
    return np.array([scorer.score(*each) for each in zip(waves, RATES, strict=True)])


def check(scored, expected):
    scores, errors = scored["log-odds"], scored["cm_error"]
    assert len(scores) == len(RATES)
    good = [0, 1, 2, 4]
    np.testing.assert_allclose(np.array(scores)[good], expected[good], atol=1e-4)
    assert [errors[k] for k in good] == [""] * 4
    assert math.isnan(scores[3])
    assert errors[3].startswith("u3.flac: the audio is not an audio file")


@pytest.mark.parametrize("n_processes", [None, 2])
def test_map_scores_undecoded_bytes(dataset, scorer, expected, n_processes):
    function = score_batch_function(scorer, n_threads=1)
    scored = dataset.map(function, batched=True, batch_size=2, num_proc=n_processes)
    check(scored[:], expected)
    assert scored.column_names == ["audio", "label", "log-odds", "cm_error"]


def test_streaming_from_parquet(dataset, scorer, expected, tmp_path):
    dataset.to_parquet(tmp_path / "rows.parquet")
    stream = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "rows.parquet"), split="train", streaming=True
    )
    stream = stream.cast_column("audio", datasets.Audio(decode=False))
    scored = list(stream.map(score_batch_function(scorer), batched=True, batch_size=2))
    check({name: [row[name] for row in scored] for name in scored[0]}, expected)


def test_arrays_bare_bytes_and_paths(waves, rows, scorer, expected, tmp_path):
    arrays = [
        {"array": wave, "sampling_rate": rate} for wave, rate in zip(waves, RATES, strict=True)
    ]
    function = score_batch_function(scorer, column="sound")
    made = datasets.Dataset.from_dict({"sound": arrays})
    np.testing.assert_allclose(made.map(function, batched=True)["log-odds"], expected, atol=1e-5)
    (tmp_path / "a.flac").write_bytes(rows["audio"][1]["bytes"])
    cells = [
        rows["audio"][0]["bytes"],
        {"bytes": None, "path": str(tmp_path / "a.flac")},
        str(tmp_path / "a.flac"),
        3,
        {"bytes": None, "path": None},
    ]
    found = function({"sound": cells})
    np.testing.assert_allclose(found["log-odds"][:3], expected[[0, 1, 1]], atol=1e-4)
    assert "audio must be bytes, a path" in found["cm_error"][3]
    assert "got int. Cast the column: dataset.cast_column" in found["cm_error"][3]
    assert "got dict" in found["cm_error"][4]
    calibration = Calibration(scale=2.0, offset=1.0)
    calibrated = Scorer(scorer.model, device="cpu", n_crops=2, crop_s=0.5, calibration=calibration)
    llr = score_batch_function(calibrated, column="sound")({"sound": cells})["llr"]
    np.testing.assert_allclose(llr[:2], 2.0 * np.array(found["log-odds"][:2]) + 1.0, atol=1e-4)
    with pytest.raises(ValueError, match=r"`column` must be one of \['audio'\]; got 'sound'"):
        function({"audio": []})
