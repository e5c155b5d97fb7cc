"""The service, in this process and over a socket: answers, limits, hostile files, many clients."""

import asyncio
import importlib
import io
import itertools
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
jsonschema = pytest.importorskip("jsonschema")
text_string_to_metric_families = pytest.importorskip(
    "prometheus_client.parser"
).text_string_to_metric_families

from asvspoof_cm import Scorer  # noqa: E402
from asvspoof_cm.calibration import Calibration, probability  # noqa: E402
from asvspoof_cm.models import TFPARN, TFPARNConfig  # noqa: E402
from asvspoof_cm.serve import ServiceSettings, create_app, decoding  # noqa: E402
from asvspoof_cm.serve.batching import Batcher  # noqa: E402
from asvspoof_cm.serve.decoding import Decoders  # noqa: E402
from asvspoof_cm.serve.limits import RefusedError  # noqa: E402

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def scorer():
    torch.manual_seed(0)
    model = TFPARN(TFPARNConfig(n_layers=1))
    calibration = Calibration(scale=2.0, offset=0.5, name="of noise")
    return Scorer(model, device="cpu", crop_s=1.0, calibration=calibration)


def noise(duration_s=2.0, rate=16000, seed=0, channels=None):
    size = round(duration_s * rate) if channels is None else (round(duration_s * rate), channels)
    return 0.1 * np.random.default_rng(seed).standard_normal(size)


def encode(samples, rate=16000, *, kind="WAV", subtype=None):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


WAV = encode(noise())


def is_refused(answer, status, code, message=""):
    error = answer.json()["error"]
    return (answer.status_code, error["code"]) == (status, code) and message in error["message"]


class InThisProcess:
    """Decodes without a process of its own, so that a test starts at once."""

    def __init__(self, settings):
        self.settings, self.n_replaced = settings, 0

    async def start(self):
        pass

    async def close(self):
        pass

    async def decode(self, content, channel):
        return decoding.decode(content, 16000, self.settings.max_duration_s, channel)


class Client:
    """Sends requests to an application and holds every answer against the OpenAPI document."""

    def __init__(self, app):
        self.app, self.service, self.openapi = app, app.state.service, app.openapi()

    async def __aenter__(self):
        self.lifespan = self.app.router.lifespan_context(self.app)
        await self.lifespan.__aenter__()
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None)
        return self

    async def __aexit__(self, *error):
        await self.http.aclose()
        await self.lifespan.__aexit__(*error)

    async def get(self, path, **options):
        return self.check(await self.http.get(path, **options))

    async def post(self, path, **options):
        return self.check(await self.http.post(path, **options))

    def check(self, answer):
        request = answer.request
        operation = self.openapi["paths"][request.url.path][request.method.lower()]
        found = operation["responses"][str(answer.status_code)]
        for name in found.get("headers", {}):
            assert answer.headers[name]
        (kind,) = found["content"]
        assert answer.headers["content-type"].startswith(kind)
        if kind == "application/json":
            components = {"components": self.openapi["components"]}
            schema = found["content"][kind]["schema"] | components
            jsonschema.validate(answer.json(), schema, cls=jsonschema.Draft202012Validator)
        return answer


def client(scorer, *, processes=False, **settings):
    app = create_app(scorer, ServiceSettings(**settings))
    if not processes:
        app.state.service.decoders = InThisProcess(app.state.service.settings)
    return Client(app)


@pytest.fixture(scope="module")
async def shared(scorer):
    async with client(scorer, processes=True, name="small", note="for tests", n_decoders=1) as it:
        yield it


class Blocked:
    """A scorer whose model stands still until it is released."""

    def __init__(self, scorer):
        self.scorer, self.released, self.started = scorer, threading.Event(), threading.Event()
        self.batches = []

    def __getattr__(self, name):
        return getattr(self.scorer, name)

    def score_utterances(self, utterances):
        self.started.set()
        self.released.wait()
        utterances = [*utterances]
        self.batches.append([utterance.duration_s for _, utterance in utterances])
        return self.scorer.score_utterances(utterances)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


# Answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "subtype", "rate"),
    [
        ("WAV", "PCM_16", 16000),
        ("FLAC", None, 44100),
        ("OGG", "VORBIS", 8000),
        ("MP3", None, 22050),
    ],
)
async def test_score_is_that_of_the_scorer(shared, scorer, kind, subtype, rate):
    content = encode(noise(3.0, rate, channels=2), rate, kind=kind, subtype=subtype)
    answer = (await shared.post("/v1/score?prior=0.2&c_fa=1", content=content)).json()
    samples, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    expected = scorer.score_file(samples.T, rate)
    assert answer["score"] == pytest.approx(expected.score, abs=1e-4)
    assert answer["unit"] == "llr"
    assert answer["llr"] == answer["score"]
    assert answer["crop_scores"] == pytest.approx(list(expected.crop_scores), abs=2e-4)
    assert answer["probability"] == pytest.approx(float(probability(answer["llr"], 0.2)))
    assert answer["threshold"] == pytest.approx(-np.log(0.8 / 0.2))
    word = "bonafide" if answer["llr"] >= answer["threshold"] else "spoof"
    assert answer["verdict"] == word
    assert answer["duration_s"] == pytest.approx(expected.duration_s)
    assert answer["resampled_from"] == (None if rate == 16000 else rate)
    assert answer["n_channels"] == 2
    calibration = {"name": "of noise", "sha256": scorer.calibration.sha256}
    sha256 = scorer.settings()["sha256"]
    assert answer["model"] == {"name": "small", "sha256": sha256, "calibration": calibration}


async def test_form_and_body_have_the_same_answer(shared):
    body = await shared.post("/v1/score", content=WAV)
    form = await shared.post("/v1/score", files={"file": ("any name.wav", WAV)})
    assert body.json() == form.json()
    assert body.json()["prior"] == 0.05


async def test_one_channel_or_their_mix(shared, scorer):
    samples = noise(2.0, channels=2)
    content = encode(samples, subtype="FLOAT")
    for channel, waveform in (("0", samples[:, 0]), ("1", samples[:, 1]), ("mix", samples.T)):
        answer = (await shared.post(f"/v1/score?channel={channel}", content=content)).json()
        assert answer["llr"] == pytest.approx(scorer.score(np.float32(waveform)), abs=1e-4)
    answer = await shared.post("/v1/timeline?channel=2", content=content)
    assert is_refused(answer, 422, "not_decodable", "`channel` must be from 0 to 1")


async def test_doubts_are_told(shared):
    answer = (await shared.post("/v1/score", content=encode(np.zeros(8000)))).json()
    assert {*answer["warnings"]} == {"no speech to judge", "silent", "shorter than 1 s"}
    assert (answer["verdict"], answer["probability"]) == ("abstain", pytest.approx(0.95))


async def test_timeline_is_that_of_the_scorer(shared, scorer):
    samples = noise(25.3).astype(np.float32)
    content = encode(samples, subtype="FLOAT")
    answer = (await shared.post("/v1/timeline?hop_s=0.5", content=content)).json()
    expected = scorer.timeline(samples, hop_s=0.5)
    assert len(expected) > 2 * 16
    for name in ("start_s", "end_s", "score", "llr"):
        found = [window[name] for window in answer["windows"]]
        assert found == pytest.approx([getattr(window, name) for window in expected], abs=1e-4)
    assert (answer["window_s"], answer["hop_s"]) == (1.0, 0.5)


async def test_a_model_without_calibration_has_scores_only(scorer):
    async with client(Scorer(scorer.model, device="cpu", crop_s=1.0)) as bare:
        answer = (await bare.post("/v1/score", content=WAV)).json()
        assert [answer[k] for k in ("llr", "probability", "verdict")] == [None] * 3
        assert (type(answer["score"]), answer["unit"]) == (float, "log-odds")
        windows = (await bare.post("/v1/timeline", content=WAV)).json()["windows"]
        assert {window["llr"] for window in windows} == {None}


async def test_model_health_and_readiness(scorer):
    waiting = client(scorer, note="careful")
    waiting.http = httpx.AsyncClient(
        transport=httpx.ASGITransport(waiting.app), base_url="http://test"
    )
    assert (await waiting.get("/healthz")).json() == {"status": "ok"}
    assert (await waiting.get("/readyz")).status_code == 503
    async with waiting as ready:
        assert (await ready.get("/readyz")).json() == {"status": "ready"}
        about = (await ready.get("/v1/model")).json()
    assert (about["name"], about["note"]) == ("TFPARN", "careful")
    assert about["calibration"] == {"name": "of noise", "sha256": scorer.calibration.sha256}
    assert about["costs"] == {"c_miss": 1.0, "c_fa": 10.0, "p_spoof": 0.05}
    assert about["limits"]["max_duration_s"] == 600
    assert isinstance(about["limits"]["max_body_bytes"], int)


async def test_metrics_count(scorer):
    async with client(scorer, name='a "b"\\') as counted:
        for path, content in (("", WAV), ("", b"no audio"), ("?prior=2", b"no audio")):
            await counted.post(f"/v1/score{path}", content=content)
        text = (await counted.get("/metrics")).text
    found = {
        (sample.name.removeprefix("asvspoof_cm_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["requests_total", "/v1/score", "200"] == 1
    assert found["requests_total", "/v1/score", "422"] == 2
    assert found["model_info", 'a "b"\\', scorer.settings()["sha256"]] == 1
    for name, value in (
        *(("audio_seconds_total", 2), ("batch_requests_count", 1), ("request_seconds_count", 1)),
        *(("requests_inside", 0), ("queue", 0), ("buffered_bytes", 0), ("decoders_replaced", 0)),
    ):
        assert found[name,] == value


async def test_other_paths_and_methods(shared):
    missing, wrong = await shared.http.get("/v2/score"), await shared.http.get("/v1/score")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_page_asks_no_other_host(shared):
    texts = {}
    for path in ("/", "/page.css", "/page.js", "/recorder.js"):
        answer = await shared.http.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        texts[path] = answer.text
        addresses = re.findall(r"https?://[\w.-]+", answer.text)
        assert set(addresses) <= {"http://www.w3.org"}  # the namespace of SVG, which nobody asks
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', texts["/"])) == {
        *("data:,", "page.css", "page.js", "openapi.json")
    }
    assert (await shared.http.get("/openapi.json")).json() == shared.openapi


# Refusals --------------------------------------------------------------------------------------

REFUSED = {
    "not_decodable": [
        (b"", "the body must hold audio; it is empty"),
        (b"\x00" * 1000, "the audio is not an audio file that libsndfile"),
        (WAV[: len(WAV) // 2], "the audio is truncated: its header announces"),
        (encode(np.full(100, np.nan), subtype="FLOAT"), "the audio holds NaN or infinite values"),
        (encode(np.zeros(0)), "the audio holds no samples"),
        (encode(noise(0.1, channels=65)), "768000 Hz and at most 64 channels; its header says"),
        (encode(noise(0.1), rate=800_000), "says 800000 Hz and 1 channels"),
    ],
    "bad_parameter": [
        ("prior=0", "`prior` should be greater than or equal to 0.000001; got '0'."),
        ("prior=nan", "got 'nan'"),
        ("prior=x", "`prior` should be a valid number"),
        ("piror=0.1", "`piror` is no parameter"),
        ("c_fa=-1", "`c_fa` should be greater than or equal to 0.001"),
        ("channel=x", "`channel` should be 'mix'"),
    ],
    "bad_form": [
        ({"files": {"other": b"x"}}, "the form must have one part, the file `file`"),
        ({"files": [("file", b"x"), ("file", b"y")]}, "Too many files"),
        (
            {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
            "the form can't be read: Missing boundary",
        ),
    ],
}


@pytest.mark.parametrize(
    ("code", "sent", "message"),
    [(code, *case) for code, cases in REFUSED.items() for case in cases],
    ids=itertools.count(),
)
async def test_what_is_refused(shared, code, sent, message):
    query = sent if code == "bad_parameter" else ""
    options = sent if code == "bad_form" else {"content": WAV if query else sent}
    assert is_refused(await shared.post(f"/v1/score?{query}", **options), 422, code, message)


async def test_a_timeline_of_too_many_windows_is_refused(scorer):
    async with client(scorer, max_windows=10) as small:
        answer = await small.post("/v1/timeline?hop_s=0.1", content=WAV)
        assert is_refused(answer, 422, "bad_parameter", "`hop_s` must be at least 0.200")


async def test_large_bodies_and_long_audio_are_refused(scorer):
    async def chunks():
        for _ in range(20):
            yield b"\x00" * 10_000

    async with client(scorer, max_body_bytes=100_000, max_duration_s=2.0) as small:
        for options in ({"content": b"\x00" * 100_001}, {"content": chunks()}):
            answer = await small.post("/v1/score", **options)
            assert is_refused(answer, 413, "too_large")
        answer = await small.post("/v1/score", files={"file": b"\x00" * 100_001})
        assert answer.status_code == 413
        assert (await small.post("/v1/score", content=encode(noise(2.0)))).status_code == 200
        answer = await small.post("/v1/score", content=encode(noise(2.1)))
        assert is_refused(answer, 413, "too_long", "at most 2 s; it lasts 2.1 s")


async def test_token(scorer):
    async with client(scorer, token="correct-horse") as guarded:
        for word in (None, "Bearer wrong-horse", "Bearer é".encode()):
            given = {} if word is None else {"Authorization": word}
            for path in ("/v1/model", "/metrics"):
                assert (await guarded.get(path, headers=given)).status_code == 401
            answer = await guarded.post("/v1/score", content=WAV, headers=given)
            assert is_refused(answer, 401, "unauthorized", "Authorization: Bearer TOKEN")
            assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer correct-horse"}
        assert (await guarded.post("/v1/score", content=WAV, headers=right)).status_code == 200
        assert (await guarded.get("/metrics", headers=right)).status_code == 200
        assert (await guarded.get("/readyz")).status_code == 200
        assert (await guarded.http.get("/")).status_code == 200
    assert "horse" not in repr(ServiceSettings(token="correct-horse"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token": "short"}, "`token` must have at least 8 characters, printable ASCII"),
        ({"max_batch": 0}, "`max_batch` must be positive; got 0"),
        ({"time_limit_s": float("nan")}, "`time_limit_s` must be positive; got nan"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        ServiceSettings(**settings)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pebble", None)
    monkeypatch.delitem(sys.modules, "asvspoof_cm.serve.app")
    with pytest.raises(ImportError, match=r"pebble, an extra: pip install 'asvspoof-cm\[serve\]'"):
        importlib.import_module("asvspoof_cm.serve.app")


async def test_an_error_of_the_service_is_a_500_for_its_clients_only(scorer, monkeypatch, caplog):
    async with client(scorer) as broken:
        monkeypatch.setattr(broken.service.scorer, "score_utterances", lambda _: 1 / 0)
        answer = await broken.http.post("/v1/score", content=WAV)
        assert is_refused(answer, 500, "internal")
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.undo()
        assert (await broken.post("/v1/score", content=WAV)).status_code == 200


async def test_names_and_audio_stay_out_of_logs_and_off_the_disk(scorer, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(
        tempfile.SpooledTemporaryFile, "rollover", lambda _: pytest.fail("written to disk")
    )
    async with client(scorer) as quiet:
        content = encode(noise(120.0))
        assert len(content) > 2**21
        good = await quiet.post("/v1/score", files={"file": ("Ada Lovelace.wav", content)})
        bad = await quiet.post("/v1/score", files={"file": ("Ada Lovelace.wav", b"RIFF-secret")})
    assert (good.status_code, bad.status_code) == (200, 422)
    assert "Ada" not in bad.text
    assert not re.search("Ada|RIFF|secret", caplog.text)


# Many clients ----------------------------------------------------------------------------------


async def test_clients_share_batches(scorer):
    async with client(scorer, max_wait_s=0.05) as batched:
        contents = [encode(noise(1.0 + 0.1 * k, seed=k)) for k in range(8)]
        alone = [(await batched.post("/v1/score", content=c)).json()["llr"] for c in contents]
        sizes = []
        batched.service.batches.observe = sizes.append
        answers = await asyncio.gather(*(batched.post("/v1/score", content=c) for c in contents))
        together = [answer.json()["llr"] for answer in answers]
        assert len(sizes) < 8
        assert sum(sizes) == 8
        assert together == pytest.approx(alone, abs=1e-4)


async def test_one_that_cannot_be_scored_does_not_spoil_a_batch(scorer):
    def model(waveforms):
        logits = torch.zeros(len(waveforms), 2)
        logits[waveforms.mean(dim=1) > 0.1] = torch.nan
        return logits

    fragile = Scorer(model, crop_s=1.0, calibration=Calibration())
    async with client(fragile, max_wait_s=0.05) as batched:
        contents = [encode(noise()), encode(np.abs(noise())), encode(noise(seed=1))]
        answers = await asyncio.gather(*(batched.post("/v1/score", content=c) for c in contents))
        line = await batched.post("/v1/timeline", content=contents[1])
    assert is_refused(line, 422, "not_scorable", "from 0.0 s to 1.0 s, the model's logits are not")
    assert [answer.status_code for answer in answers] == [200, 422, 200]
    assert is_refused(answers[1], 422, "not_scorable", "logits are not finite")


async def test_a_full_service_says_when_to_come_back(scorer):
    blocked = Blocked(scorer)
    async with client(blocked, max_requests=2) as full:
        inside = [asyncio.ensure_future(full.post("/v1/score", content=WAV)) for _ in range(2)]
        await until(lambda: full.service.n_inside == 2)
        answer = await full.post("/v1/score", content=WAV)
        assert is_refused(answer, 503, "busy")
        assert int(answer.headers["retry-after"]) >= 1
        blocked.released.set()
        assert [task.status_code for task in await asyncio.gather(*inside)] == [200, 200]
        assert (await full.post("/v1/score", content=WAV)).status_code == 200
        assert full.service.n_inside == 0


class Connection:
    """One request as a server hands it over: its body in pieces, and a client that may hang up."""

    def __init__(self, app, *pieces):
        self.messages = [{"type": "http.request", "body": b, "more_body": True} for b in pieces]
        self.messages[-1]["more_body"] = False
        self.left, self.sent = asyncio.Event(), []
        scope = {"type": "http", "method": "POST", "path": "/v1/score", "query_string": b""}
        scope |= {"headers": [], "state": {}, "root_path": ""}
        self.task = asyncio.ensure_future(app(scope, self.receive, self.send))

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    async def hang_up(self):
        self.left.set()
        await self.task
        return self.sent[0]["status"]


async def test_clients_that_hang_up_free_their_places_in_any_order(scorer):
    blocked = Blocked(scorer)
    async with client(blocked, max_requests=5, max_batch=1) as full:
        first = asyncio.ensure_future(full.post("/v1/score", content=WAV))
        await until(blocked.started.is_set)
        waiting = []
        for k in range(4):
            waiting.append(Connection(full.app, encode(noise(1.0 + 0.1 * k))))
            await until(lambda n=k: full.service.batcher.n_waiting == n + 1)
        assert (await full.post("/v1/score", content=WAV)).status_code == 503
        for n_left, k in enumerate((2, 1)):  # neither is the first that waits
            assert await waiting[k].hang_up() == 499
            assert full.service.batcher.n_waiting == 3 - n_left
            assert full.service.n_inside == 4 - n_left
        last = asyncio.ensure_future(full.post("/v1/score", content=WAV))
        await until(lambda: full.service.n_inside == 4)
        blocked.released.set()
        await asyncio.gather(waiting[0].task, waiting[3].task)
        assert (await first).status_code == (await last).status_code == 200
        assert [waiting[k].sent[0]["status"] for k in (0, 3)] == [200, 200]
        assert blocked.batches == [[2.0], [1.0], [1.3], [2.0]]
        assert (full.service.n_inside, full.service.n_buffered) == (0, 0)


async def test_what_ran_out_of_time_is_not_computed(scorer):
    blocked = Blocked(scorer)
    async with client(blocked, max_batch=1, time_limit_s=0.5) as limited:
        tasks = [asyncio.ensure_future(limited.post("/v1/score", content=WAV)) for _ in range(4)]
        answers = await asyncio.gather(*tasks)
        assert all(is_refused(answer, 504, "timeout", "within 0.5 s") for answer in answers)
        assert (limited.service.n_inside, limited.service.batcher.n_waiting) == (0, 0)
        blocked.released.set()
        assert (await limited.post("/v1/score", content=WAV)).status_code == 200
        assert len(blocked.batches) == 2  # the one that was begun, and the last


async def test_bodies_that_come_byte_by_byte_hold_no_place(scorer):
    async with client(scorer, max_requests=2) as small:
        slow = [Connection(small.app, WAV[:k], b"") for k in range(1, 41)]
        for connection in slow:
            connection.messages.pop()
        await until(lambda: small.service.n_buffered == sum(range(1, 41)))
        assert (await small.post("/v1/score", content=WAV)).status_code == 200
        assert {await connection.hang_up() for connection in slow} == {499}
        assert small.service.n_buffered == 0


async def test_all_bodies_together_are_bounded(scorer):
    async with client(scorer, max_buffered_bytes=len(WAV) + 1000) as small:
        large = Connection(small.app, WAV, b"")
        large.messages.pop()
        await until(lambda: small.service.n_buffered == len(WAV))
        answer = await small.post("/v1/score", content=WAV)
        assert is_refused(answer, 503, "busy", "with large bodies")
        assert int(answer.headers["retry-after"]) >= 1
        assert await large.hang_up() == 499
        assert (await small.post("/v1/score", content=WAV)).status_code == 200


async def test_a_body_must_arrive_in_time(scorer):
    async def slow_body():
        yield WAV[:100]
        await asyncio.Event().wait()

    async with client(scorer, body_limit_s=0.1) as limited:
        answer = await limited.post("/v1/score", content=slow_body())
        assert is_refused(answer, 408, "body_timeout")
        assert limited.service.n_inside == limited.service.n_buffered == 0


class Clockwork:
    """A function for `Batcher` that records its batches."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, items):
        self.gate.wait()
        self.batches.append([*items])
        return [10 * item for item in items]


@asynccontextmanager
async def batching(n_coming=0, max_wait_s=60.0):
    work = Clockwork()
    made = Batcher(work, max_batch=4, max_wait_s=max_wait_s, n_coming=lambda: n_coming)
    await made.start()
    yield work, made
    await made.close()


async def test_a_lone_item_does_not_wait():
    async with batching() as (work, made):
        assert [await made.submit(k) for k in (1, 2)] == [10, 20]
        assert work.batches == [[1], [2]]


async def test_a_batch_waits_for_those_who_are_coming_but_not_for_ever():
    async with batching(n_coming=3) as (work, made):
        tasks = [asyncio.ensure_future(made.submit(k)) for k in (1, 2)]
        await asyncio.sleep(0.05)
        assert work.batches == []
        tasks.append(asyncio.ensure_future(made.submit(3)))
        assert await asyncio.gather(*tasks) == [10, 20, 30]
        assert work.batches == [[1, 2, 3]]
    async with batching(n_coming=9, max_wait_s=0.01) as (_, made):
        assert await made.submit(1) == 10


async def test_batches_are_bounded_and_in_order():
    async with batching(max_wait_s=0.0) as (work, made):
        work.gate.clear()
        tasks = [asyncio.ensure_future(made.submit(k)) for k in range(7)]
        tasks[5].cancel()
        work.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[:5] + results[6:] == [0, 10, 20, 30, 40, 60]
    assert isinstance(results[5], asyncio.CancelledError)
    assert [item for batch in work.batches for item in batch] == [0, 1, 2, 3, 4, 6]
    assert max(map(len, work.batches)) <= 4


# Decoders --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def decoders():
    made = Decoders(1, sample_rate=16000, limit_s=60.0, max_duration_s=60.0)
    await made.start()
    yield made
    await made.close()


LONG = encode(noise(50.0, 48000), 48000)


async def pid_of(decoders):
    (pool,) = decoders.pools
    return await asyncio.wrap_future(pool.schedule(os.getpid))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
async def test_a_decoder_may_die(decoders, monkeypatch):
    n_before = decoders.n_replaced
    os.kill(await pid_of(decoders), signal.SIGKILL)  # idle: the next file is not to blame
    assert len((await decoders.decode(WAV)).waveform) == 32000
    assert decoders.n_replaced - n_before == 1
    pid, (pool,) = await pid_of(decoders), decoders.pools
    begun, schedule = [], pool.schedule
    recorded = lambda *a, **k: begun.append(schedule(*a, **k)) or begun[0]  # noqa: E731
    monkeypatch.setattr(pool, "schedule", recorded)
    task = asyncio.ensure_future(decoders.decode(LONG))
    await until(lambda: begun and begun[0].running())
    os.kill(pid, signal.SIGKILL)  # with a file: that file is refused
    with pytest.raises(RefusedError, match="the decoder died on it"):
        await task
    monkeypatch.undo()
    assert len((await decoders.decode(WAV)).waveform) == 32000
    for name in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group by a terminal
        os.kill(await pid_of(decoders), name)
    pid, (pool,) = await pid_of(decoders), decoders.pools
    begun, schedule, decoders.limit_s = [], pool.schedule, 0.5
    monkeypatch.setattr(pool, "schedule", recorded)
    task = asyncio.ensure_future(decoders.decode(LONG))
    await until(lambda: begun and begun[0].running())
    os.kill(pid, signal.SIGSTOP)  # it hangs on a file, however fast the machine is
    with pytest.raises(RefusedError, match=r"can't be decoded within 0.5 s"):
        await task
    monkeypatch.undo()
    decoders.limit_s = 60.0
    assert len((await decoders.decode(WAV)).waveform) == 32000
    assert decoders.n_replaced - n_before == 3


async def test_damaged_files_are_decoded_or_refused(decoders):
    """Bytes changed and cut: each file gets an answer, and the decoder lives."""
    n_before, n_decoded, statuses = decoders.n_replaced, 0, set()
    rng = np.random.default_rng(7)
    kinds = [("WAV", "PCM_16"), ("WAV", "IMA_ADPCM"), ("FLAC", None), ("OGG", "VORBIS")]
    kinds += [("OGG", "OPUS"), ("MP3", None), ("AIFF", None), ("AU", "ULAW"), ("CAF", "ALAC_16")]
    for kind, subtype in 15 * kinds:
        content = bytearray(encode(noise(0.5), kind=kind, subtype=subtype))
        for _ in range(rng.integers(1, 8)):
            # Headers are where damage hurts most.
            n_reached = min(len(content), 200 if rng.random() < 0.7 else len(content))
            content[int(rng.integers(n_reached))] = int(rng.integers(256))
        if rng.random() < 0.3:
            del content[int(rng.integers(len(content))) :]
        try:
            decoded = await decoders.decode(bytes(content))
        except RefusedError as error:
            statuses.add(error.status)
        else:
            n_decoded += 1
            assert np.isfinite(decoded.waveform).all()
    assert statuses <= {413, 422}
    assert 10 < n_decoded < 15 * len(kinds)
    assert decoders.n_replaced == n_before


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
async def test_a_decoder_has_no_torch_can_write_no_file_and_has_little_memory(decoders):
    pid = await pid_of(decoders)
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert re.search(r"Max file size +0 +0 ", limits)
    assert re.search(r"Max core file size +0 +0 ", limits)
    data = int(re.search(r"Max data size +(\d+)", limits).group(1))
    assert 2**30 < data < 2**33


async def test_callers_that_are_cancelled_leave_a_decoder_usable(decoders, monkeypatch):
    (pool,), begun, n_before = decoders.pools, [], decoders.n_replaced
    schedule = pool.schedule
    monkeypatch.setattr(
        pool, "schedule", lambda *a, **k: begun.append(a[1][0]) or schedule(*a, **k)
    )
    contents = (LONG, WAV, WAV, encode(noise(1.0)))
    tasks = [asyncio.ensure_future(decoders.decode(content)) for content in contents]
    await until(lambda: begun)
    for task in tasks[:3]:  # the first is being decoded, the others wait for that
        task.cancel()
    *cancelled, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in cancelled] == 3 * [asyncio.CancelledError]
    assert len(last.waveform) == 16000
    assert begun == [contents[0], contents[3]]
    assert decoders.n_replaced == n_before
