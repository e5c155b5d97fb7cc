"""What several test modules share."""

import importlib.util
import json
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

import asvspoof_cm

hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# Processes that tests start import the package under test, not another that is installed.
os.environ["PYTHONPATH"] = str(Path(asvspoof_cm.__file__).parents[1])

REFERENCE = Path(__file__).parent / "reference"


@pytest.fixture(scope="session")
def golden():
    """Return a recorded reference by its name."""
    return lambda name: json.loads((REFERENCE / f"golden_{name}.json").read_text())


@pytest.fixture(scope="session")
def architecture():
    """The configuration of a small wav2vec 2.0 of the library transformers."""
    return {
        "model_type": "wav2vec2",
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "conv_dim": [8, 8],
        "conv_kernel": [10, 8],
        "conv_stride": [20, 16],
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
    }


@pytest.fixture(scope="session")
def published():
    """Return the path of published weights by name, or skip: they are not in this repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "reference"

    def find(name):
        path = Path(os.environ.get("ASVSPOOF_CM_REFERENCE", folder)) / "weights" / name
        if not path.exists():
            pytest.skip("published weights are not here")
        return path

    return find


@pytest.fixture(scope="session")
def inputs():
    """The formulas behind the recorded references."""
    spec = importlib.util.spec_from_file_location("inputs", REFERENCE / "inputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference_wave(inputs):
    return inputs.wave()


@pytest.fixture(scope="session")
def serving():
    """Return a context manager that serves an application with Uvicorn and yields its address."""
    uvicorn = pytest.importorskip("uvicorn")

    @contextmanager
    def serve(app):
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

    return serve
