"""Ray Data on one small local instance that all tests share."""

import logging
import os
import shutil
import signal
import sys
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from asvspoof_cm.data import write_miniature
from asvspoof_cm.engines import _sizes, score_ray
from asvspoof_cm.models import TFPARN, TFPARNConfig
from asvspoof_cm.scorer import Scorer

# Ray warns about settings of its own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*")

SMALL = TFPARNConfig(d_model=16, n_layers=1, n_heads=2, d_feedforward=16)
OPTIONS = {"n_crops": 1, "crop_s": 0.5, "batch_size": 3}


@pytest.fixture(scope="module")
def ray():
    # By default workers have niceness 15, and starve on a busy machine.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 — Ray's own spelling
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    # Actors import the package, not the tests: what the tests define is sent along.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = tempfile.mkdtemp(prefix="ray")  # short: it is the name of a socket
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_miniature(tmp_path_factory.mktemp("corpus"), n_train=8, n_dev=24)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TFPARN(SMALL)


@pytest.fixture(scope="module")
def expected(corpus, model):
    files = sorted((corpus.audio_dir / "flac_D").glob("*.flac"))
    scorer = Scorer(model, device="cpu", **OPTIONS)
    return {
        scored.name.rpartition("/")[2].removesuffix(".flac"): scored.score
        for scored in scorer.score_files(files)
    }


def check(rows, expected):
    assert sorted(row["utterance"] for row in rows) == sorted(expected)
    for row in rows:
        assert row["cm_error"] == ""
        assert row["log-odds"] == pytest.approx(expected[row["utterance"]], abs=1e-5)


class Mortal(TFPARN):
    """Kills its process at its third batch, once."""

    def __init__(self, marker):
        super().__init__(SMALL)
        self.marker = marker
        self.n_batches = 0

    def forward(self, waveform):
        self.n_batches += 1
        if self.n_batches == 3 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(waveform)


def test_a_killed_actor_loses_nothing_and_reading_has_a_core(
    ray, corpus, model, expected, tmp_path
):
    # Two actors on two cores, and tasks that read: with whole cores for actors none would start.
    files = sorted((corpus.audio_dir / "flac_D").glob("*.flac"))
    (tmp_path / "bad.flac").write_bytes(b"no audio")
    rows = [{"utterance": path.stem, "path": str(path)} for path in [*files, tmp_path / "bad.flac"]]
    source = ray.data.from_items(rows, override_num_blocks=6)
    mortal = Mortal(tmp_path / "killed")
    mortal.load_state_dict(model.state_dict())
    scored = score_ray(source, model=mortal, concurrency=2, column="path", n_rows=2, **OPTIONS)
    rows = scored.take_all()
    assert mortal.marker.exists()
    assert set(rows[0]) == {"utterance", "log-odds", "cm_error"}
    (bad,) = [row for row in rows if row["utterance"] == "bad"]
    assert np.isnan(bad["log-odds"])
    assert "bad.flac" in bad["cm_error"]
    check([row for row in rows if row is not bad], expected)


def cluster(n_cores, n_gpus=0, n_nodes=1):
    resources = {"CPU": float(n_cores), **({"GPU": float(n_gpus)} if n_gpus else {})}
    nodes = [{"Alive": True}] * n_nodes
    return SimpleNamespace(cluster_resources=lambda: resources, nodes=lambda: nodes)


@pytest.mark.parametrize(
    ("machines", "concurrency", "sizes"),
    [
        (cluster(2), None, (2, 0, 0.5)),
        (cluster(2), 1, (1, 0, 1.0)),
        (cluster(1), None, (1, 0, 0.0)),
        (cluster(64, n_nodes=8), None, (64, 0, 0.875)),
        (cluster(3), 3, (3, 0, 0.6666)),
        (cluster(16, n_gpus=4), None, (4, 1, 1.0)),
    ],
)
def test_actors_leave_a_core_to_reading(machines, concurrency, sizes):
    assert _sizes(machines, concurrency) == pytest.approx(sizes)


@pytest.mark.parametrize(
    ("machines", "concurrency", "message"),
    [
        (cluster(2), 0, "`concurrency` must be at least 1; got 0"),
        (cluster(8, n_gpus=2), 3, "at most 2, one actor for each GPU; got 3"),
    ],
)
def test_actors_that_would_wait_for_ever(machines, concurrency, message):
    with pytest.raises(ValueError, match=message):
        _sizes(machines, concurrency)
