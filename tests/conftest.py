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


def _golden(name):
    return json.loads((REFERENCE / f"golden_{name}.json").read_text())


@pytest.fixture(scope="session")
def golden_logmel():
    return _golden("logmel")


@pytest.fixture(scope="session")
def golden_models():
    return _golden("models")


@pytest.fixture(scope="session")
def golden_whisper():
    return _golden("whisper")


@pytest.fixture(scope="session")
def golden_distillmos():
    return _golden("distillmos")


@pytest.fixture(scope="session")
def golden_resnet():
    return _golden("resnet")


@pytest.fixture(scope="session")
def golden_lcnn():
    return _golden("lcnn")


@pytest.fixture(scope="session")
def golden_tfparn_authors():
    return _golden("tfparn_authors")


@pytest.fixture(scope="session")
def golden_ecapa():
    return _golden("ecapa")


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
