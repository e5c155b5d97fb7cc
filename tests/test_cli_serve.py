"""``asvspoof-cm serve`` as users start it, and the OpenAPI document against generated requests."""

import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from asvspoof_cm import Scorer, save_checkpoint  # noqa: E402
from asvspoof_cm.calibration import Calibration  # noqa: E402
from asvspoof_cm.cli import main  # noqa: E402
from asvspoof_cm.models import TFPARN, TFPARNConfig  # noqa: E402
from asvspoof_cm.serve import create_app  # noqa: E402

CLIPS = Path(__file__).resolve().parents[1] / "examples" / "audio"
CLIP = (CLIPS / "human_goforward.flac").read_bytes()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return TFPARN(TFPARNConfig(n_layers=1))


@pytest.fixture
def command(model, tmp_path):
    path = tmp_path / "small.pt"
    save_checkpoint(path, model, calibration=Calibration(scale=2.0).as_dict())
    return ["serve", "--model", str(path), "--port", "0", "--device", "cpu"]


@pytest.fixture
def server(command, tmp_path):
    (tmp_path / "token").write_text("correct-horse\n")
    options = ["--token-file", str(tmp_path / "token"), "--decoders", "1"]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "asvspoof_cm", *command, *options],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
            break
    else:
        pytest.fail("".join(lines))
    process.port = int(found.group(1))
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_sigterm_finishes_what_was_accepted(server, tmp_path):
    headers = {"Authorization": "Bearer correct-horse"}
    before = sorted(tmp_path.iterdir())
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as client:
        client.timeout = None
        assert client.get("/readyz").status_code == 200
        assert (
            client.post("/v1/score", content=CLIP, headers={"Authorization": ""}).status_code == 401
        )
        answer = client.post("/v1/score", content=CLIP).json()
        assert answer["model"]["name"] == "small"
        assert answer["llr"] == answer["score"]
        # A body larger than the sockets hold, refused before it is read: the answer still arrives.
        large = client.post("/v1/score", content=bytes(33 * 2**20))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")

        # One request is half sent when the signal comes; it is completed and answered.
        request = (
            "POST /v1/score HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer correct-horse\r\n"
            f"Content-Length: {len(CLIP)}\r\nConnection: close\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(request.encode() + CLIP[:1000])
            arrived = "asvspoof_cm_buffered_bytes 1000.0"
            while arrived not in client.get("/metrics").text:
                pass
            server.send_signal(signal.SIGTERM)
            for line in server.stderr:
                if "Shutting down" in line:
                    break
            half.sendall(CLIP[1000:])
            reply = b"".join(iter(lambda: half.recv(1 << 16), b"")).decode()
    assert reply.startswith("HTTP/1.1 200 OK")
    assert f'"llr":{answer["llr"]}' in reply
    assert "Application shutdown complete" in server.stderr.read()
    server.wait()
    assert sorted(tmp_path.iterdir()) == before


def test_bad_options_are_one_line(command, tmp_path, capsys, monkeypatch):
    (tmp_path / "token").write_text("short")
    for options, message in (
        (["--token-file", str(tmp_path / "token")], "`token` must have at least 8 characters"),
        (["--token-file", "nowhere"], "nowhere: No such file or directory"),
        (["--max-batch", "0"], "--max-batch must be positive; got 0"),
    ):
        assert main([*command, *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("asvspoof-cm serve: ")
        assert error.count("\n") == 1
        assert message in error
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(command) == 2
    assert (
        "this needs uvicorn, an extra: pip install 'asvspoof-cm[serve]'" in capsys.readouterr().err
    )


def test_options_reach_the_service(command, monkeypatch):
    import asvspoof_cm.serve as service

    seen = []
    monkeypatch.setattr(service, "serve", lambda *args, **options: seen.append((args, options)))
    monkeypatch.setenv("ASVSPOOF_CM_TOKEN", "correct-horse")
    assert main([*command, "--max-requests", "7", "--max-duration-s", "30", "--host", "::1"]) == 0
    ((scorer, settings), options) = seen[0]
    assert scorer.calibration.scale == 2.0
    assert (settings.name, settings.token) == ("small", "correct-horse")
    assert (settings.max_requests, settings.max_duration_s, settings.max_batch) == (7, 30.0, 16)
    assert options == {"host": "::1", "port": 0}


def test_a_public_address_without_a_token_is_warned_of(command, caplog, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    runs = []
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: runs.append(options))
    assert main([*command, "--host", "0.0.0.0"]) == 0
    assert "0.0.0.0 can be reached by others and no token is asked for" in caplog.text
    caplog.clear()
    assert main(command) == 0
    assert caplog.text == ""
    assert [run["host"] for run in runs] == ["0.0.0.0", "127.0.0.1"]


def test_generated_requests_find_no_server_error(model, serving):
    """Schemathesis makes requests from the OpenAPI document, valid and not; none gets a 500."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schemathesis = pytest.importorskip("schemathesis")
        from hypothesis import HealthCheck, given, settings
        from schemathesis import GenerationMode, checks
    scorer = Scorer(model, device="cpu", crop_s=0.5, calibration=Calibration())
    n_answers = {}
    with serving(create_app(scorer)) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
        chosen = [
            checks.not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
        ]
        for result in schema.get_all_operations():
            operation = result.ok()

            @given(case=operation.as_strategy())
            @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
            def run(case):
                answer = case.call(base_url=url)
                n_answers[answer.status_code] = n_answers.get(answer.status_code, 0) + 1
                case.validate_response(answer, checks=chosen)

            run()
    assert n_answers.keys() >= {200, 422}
    assert max(n_answers) < 500
