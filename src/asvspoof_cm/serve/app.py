"""The service: audio in over HTTP, scores out, for many clients at once."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from asvspoof_cm._util import import_extra

for _name in ("fastapi", "prometheus_client", "python_multipart", "pebble"):
    import_extra(_name, "serve")

import prometheus_client as prometheus  # noqa: E402
from fastapi import Depends, FastAPI, Query, Request, Response  # noqa: E402
from fastapi.exceptions import RequestValidationError  # noqa: E402
from fastapi.responses import FileResponse, JSONResponse  # noqa: E402
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer  # noqa: E402
from starlette.datastructures import MutableHeaders, UploadFile  # noqa: E402
from starlette.exceptions import HTTPException  # noqa: E402
from starlette.formparsers import MultiPartException, MultiPartParser  # noqa: E402
from starlette.requests import ClientDisconnect  # noqa: E402

from asvspoof_cm.audio import InMemory, Utterance, take_crops  # noqa: E402
from asvspoof_cm.metrics import ASVSPOOF5, DetectionCosts  # noqa: E402
from asvspoof_cm.scorer import Scorer, ScoreResult  # noqa: E402
from asvspoof_cm.scorer.timeline import Windows  # noqa: E402
from asvspoof_cm.serve import answers  # noqa: E402
from asvspoof_cm.serve.batching import Batcher  # noqa: E402
from asvspoof_cm.serve.decoding import Decoders  # noqa: E402
from asvspoof_cm.serve.limits import RefusedError, ServiceSettings  # noqa: E402

logger = logging.getLogger("asvspoof_cm.serve")

PAGE: Final = Path(__file__).parent / "page"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; media-src blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Permissions-Policy": "microphone=(self)",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
DESCRIPTION = (
    "Send audio (WAV, FLAC, Ogg, MP3, AIFF, …) as the body or as the file of a form; receive its "
    "log-likelihood ratio, probability and verdict. Positive means human. Nothing that is sent is "
    "kept. A score is evidence, not proof."
)
PART_WINDOWS = 16
CLIENT_GONE = 499  # nobody receives it, but it is counted

Content = dict[str, Any]
Work = Callable[[InMemory], Awaitable[Content]]
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def create_app(scorer: Scorer, settings: ServiceSettings | None = None) -> FastAPI:
    """Return the service as an ASGI application, to run by itself or to mount in another.

    Needs the extra `serve`. Whoever runs the application must run its lifespan, which starts
    and ends the decoders; Uvicorn does.

    Args:
        scorer: What scores. It should be calibrated: without a calibration, answers have no
            log-likelihood ratio, probability or verdict.
        settings: The limits.

    Example:
        >>> from asvspoof_cm import Scorer
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> app = create_app(Scorer(TFPARN(TFPARNConfig(n_layers=1)), device="cpu"))
        >>> sorted(app.openapi()["paths"])
        ['/healthz', '/metrics', '/readyz', '/v1/model', '/v1/score', '/v1/timeline']
    """
    service = Service(scorer, settings or ServiceSettings())
    app = FastAPI(
        title="asvspoof-cm",
        version="1",
        summary="Tells human speech from synthetic speech.",
        description=DESCRIPTION,
        lifespan=service.lifespan,
        docs_url=None,  # those pages ask other hosts
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    told: Any = {
        "dependencies": [Depends(service.authorize)],
        "responses": {401: answers.UNAUTHORIZED},
    }
    posted: Any = {**told, "responses": answers.SCORING, "openapi_extra": answers.AUDIO}
    app.post("/v1/score", response_model=answers.ScoreAnswer, **posted)(service.score)
    app.post("/v1/timeline", response_model=answers.TimelineAnswer, **posted)(service.timeline)
    app.get("/v1/model", response_model=answers.ModelAnswer, **told)(service.model)
    told["responses"][200] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    app.get("/metrics", response_class=Response, **told)(service.metrics)
    app.get("/healthz")(service.healthz)
    app.get("/readyz", responses={503: answers.BUSY})(service.readyz)
    for name in ("index.html", "page.css", "page.js", "recorder.js"):
        path = "/" if name == "index.html" else f"/{name}"
        app.add_route(path, partial(_file, PAGE / name), include_in_schema=False)
    for kind in (RefusedError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_middleware(_Outermost, service=service)
    return app


def serve(
    scorer: Scorer,
    settings: ServiceSettings | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Run the service until it is told to stop; SIGTERM lets it finish what it has accepted.

    Args:
        scorer: See `create_app`.
        settings: See `create_app`.
        host: The address to listen on. The default is reached from this machine only.
        port: The port to listen on; 0 takes a free one and logs it.
    """
    uvicorn = import_extra("uvicorn", "serve")
    settings = settings or ServiceSettings()
    if settings.token is None and host not in ("127.0.0.1", "::1", "localhost"):
        logger.warning(
            "asvspoof-cm: %s can be reached by others and no token is asked for; set one, or put "
            "the service behind something that asks.",
            host,
        )
    grace_s = math.ceil(settings.body_limit_s + settings.time_limit_s) + 1
    options = {"access_log": False, "server_header": False, "timeout_graceful_shutdown": grace_s}
    uvicorn.run(create_app(scorer, settings), host=host, port=port, **options)


class Service:
    """The state of a service: its model, its decoders, its queue and its counters."""

    def __init__(self, scorer: Scorer, settings: ServiceSettings) -> None:
        self.scorer, self.settings = scorer, settings
        self.sample_rate, self.channel = scorer.input.sample_rate, scorer.one_channel()
        about, calibration = scorer.settings(), scorer.calibration
        self.identity = {
            "name": settings.name or about["model"],
            "sha256": about["sha256"],
            "calibration": calibration and {"name": calibration.name, "sha256": calibration.sha256},
        }
        self.decoders = Decoders(
            settings.n_decoders,
            sample_rate=self.sample_rate,
            limit_s=settings.decoding_limit_s,
            max_duration_s=settings.max_duration_s,
        )
        self.batcher: Batcher[Utterance, ScoreResult] = Batcher(
            self._score_together,
            max_batch=settings.max_batch,
            max_wait_s=settings.max_wait_s,
            n_coming=lambda: self.n_to_score,
        )
        self.n_inside = self.n_to_score = self.n_buffered = 0
        self.is_ready = False
        self.registry = prometheus.CollectorRegistry()
        own: Any = {"namespace": "asvspoof_cm", "registry": self.registry}
        named = ("path", "status")
        self.requests = prometheus.Counter("requests", "By path and status.", named, **own)
        self.audio_s = prometheus.Counter("audio_seconds", "Seconds of audio decoded.", **own)
        text = "From the first byte to the answer."
        self.latency = prometheus.Histogram("request_seconds", text, **own)
        sizes: Any = {**own, "buckets": (1, 2, 4, 8, 16, 32, 64)}
        self.batches = prometheus.Histogram("batch_requests", "Requests in a batch.", **sizes)
        for name, text, value in (
            ("requests_inside", "Requests whose audio has arrived.", lambda: self.n_inside),
            ("queue", "Requests that wait for a batch.", lambda: self.batcher.n_waiting),
            ("buffered_bytes", "Bytes of bodies that are not decoded.", lambda: self.n_buffered),
            ("decoders_replaced", "Decoders that died.", lambda: self.decoders.n_replaced),
        ):
            prometheus.Gauge(name, text, **own).set_function(value)
        model = {name: str(self.identity[name]) for name in ("name", "sha256")}
        about_model = prometheus.Gauge("model_info", "The model that scores.", [*model], **own)
        about_model.labels(**model).set(1)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the decoders and warm the model up; at the end, finish and stop them."""
        await self.decoders.start()
        await self.batcher.start()
        try:
            silence = np.zeros(self.sample_rate, dtype=np.float32)
            await self.batcher.run(lambda: self.scorer.score_batch([silence], self.sample_rate))
            self.is_ready = True
            yield
        finally:
            self.is_ready = False
            await self.batcher.close()
            await self.decoders.close()

    async def authorize(self, given: Credentials = None) -> None:
        """Refuse a request without the token, where one is asked for."""
        token = self.settings.token
        sent = "" if given is None else given.credentials
        if token is not None and not hmac.compare_digest(sent.encode(), token.encode()):
            message = "send the header `Authorization: Bearer TOKEN` with this service's token."
            raise RefusedError(401, "unauthorized", message, WWW_Authenticate="Bearer")

    # What is asked

    async def score(
        self, request: Request, query: Annotated[answers.ScoreQuery, Query()]
    ) -> Content:
        """Score one recording."""
        costs = replace(ASVSPOOF5, p_spoof=query.prior, c_miss=query.c_miss, c_fa=query.c_fa)
        self.n_to_score += 1
        try:
            return await self._answer(request, query.channel, partial(self._score, costs))
        finally:
            self.n_to_score -= 1

    async def timeline(
        self, request: Request, query: Annotated[answers.TimelineQuery, Query()]
    ) -> Content:
        """Score a recording in windows along time."""
        work = partial(self._timeline, query.window_s or self.scorer.input.crop_s, query.hop_s)
        return await self._answer(request, query.channel, work)

    async def model(self) -> Content:
        """Tell what scores, and within which limits."""
        return {
            **self.identity,
            "note": self.settings.note,
            "sample_rate": self.sample_rate,
            "crop_s": self.scorer.input.crop_s,
            "costs": asdict(ASVSPOOF5),
            "limits": {name: getattr(self.settings, name) for name in answers.LIMITS},
        }

    async def healthz(self) -> dict[str, str]:
        """Tell that the process lives."""
        return {"status": "ok"}

    async def readyz(self) -> dict[str, str]:
        """Tell whether requests would be answered now."""
        if not self.is_ready:
            raise RefusedError(503, "not_ready", "not ready.", Retry_After="1")
        return {"status": "ready"}

    async def metrics(self) -> Response:
        """Give counters in the text format of Prometheus."""
        text = prometheus.generate_latest(self.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)

    # One request: body, place, decoding, batch

    async def _answer(self, request: Request, channel: int | str | None, work: Work) -> Content:
        start = time.perf_counter()
        body = Body(self)
        try:
            self._check_places()
            await body.read(request)
            # A place is taken when all has arrived: slow clients hold none.
            self._check_places()
            self.n_inside += 1
            try:
                answer = await self._unless_gone(request, self._work(body, channel, work))
            finally:
                self.n_inside -= 1
        except RefusedError:
            raise
        except Exception:
            logger.exception("a request failed")
            raise RefusedError(500, "internal", "the service made an error.") from None
        finally:
            body.release()
        self.latency.observe(time.perf_counter() - start)
        return answer

    def _check_places(self) -> None:
        if self.n_inside >= self.settings.max_requests:
            raise busy(f"with {self.n_inside} requests")

    async def _work(self, body: Body, channel: int | str | None, work: Work) -> Content:
        if not isinstance(channel, int):
            channel = self.channel if channel is None else None
        source = await self.decoders.decode(body.content, channel)
        body.release()
        rate = source.native_rate
        duration_s = source.n_samples / self.sample_rate
        self.audio_s.inc(duration_s)
        return {
            "duration_s": duration_s,
            "resampled_from": None if rate == self.sample_rate else rate,
            "n_channels": source.n_channels,
            "model": self.identity,
        } | await work(source)

    async def _unless_gone(self, request: Request, work: Awaitable[Content]) -> Content:
        """Return the result of `work`, which ends if the client hangs up or time runs out."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
        limit_s = self.settings.time_limit_s
        try:
            await asyncio.wait({task, gone}, timeout=limit_s, return_when="FIRST_COMPLETED")
            if task.done():
                return task.result()
            if gone.done():
                raise RefusedError(CLIENT_GONE, "client_gone", "the client hung up.")
            raise RefusedError(
                504, "timeout", f"no answer within {limit_s:g} s; try shorter audio, or later."
            )
        finally:
            task.cancel()
            gone.cancel()
            # The place is free when the work has ended, not before.
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _score(self, costs: DetectionCosts, source: InMemory) -> Content:
        utterance = await asyncio.to_thread(take_crops, source, self.scorer.input)
        del source
        return (await self.batcher.submit(utterance)).as_dict(costs)

    def _score_together(self, utterances: Sequence[Utterance]) -> list[ScoreResult | Exception]:
        """Score a batch; where one utterance can't be scored, the others still are."""
        self.batches.observe(len(utterances))
        return [
            RefusedError(422, "not_scorable", result) if isinstance(result, str) else result
            for _, result in self.scorer.score_utterances(enumerate(utterances))
        ]

    async def _timeline(self, window_s: float, hop_s: float, source: InMemory) -> Content:
        most, duration_s = self.settings.max_windows, source.n_samples / self.sample_rate
        if duration_s > hop_s * most:
            raise RefusedError(
                422,
                "bad_parameter",
                f"`hop_s` must be at least {duration_s / most:.3f} for this audio: a timeline has "
                f"at most {most} windows.",
            )
        cutter = Windows(self.scorer.input, window_s, hop_s)
        scored = self.scorer.score_windows(cutter.cut_all(source), cutter.settings)
        names, windows = list(answers.Window.model_fields), []
        # Others have their turn between two parts, and a client that has gone is noticed.
        try:
            while part := await self.batcher.run(lambda: [*islice(scored, PART_WINDOWS)]):
                windows += [{name: getattr(window, name) for name in names} for window in part]
        except ValueError as error:
            raise RefusedError(422, "not_scorable", str(error)) from None
        return {"window_s": window_s, "hop_s": hop_s, "windows": windows}


class Body:
    """The audio of a request, its body or the file of a form, in memory whatever its size.

    What has arrived counts among the bytes that the service holds, until `release`.
    """

    def __init__(self, service: Service) -> None:
        self.service, self.content, self.n_bytes = service, b"", 0

    async def read(self, request: Request) -> None:
        """Wait for all of it; what is too large gets 413, too slow 408, unreadable 422."""
        settings = self.service.settings
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > settings.max_body_bytes:
            raise self._too_large()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        reading = self._form(request) if kind == "multipart/form-data" else self._bytes(request)
        try:
            self.content = await asyncio.wait_for(reading, settings.body_limit_s)
        except TimeoutError:
            message = f"the body must arrive within {settings.body_limit_s:g} s."
            raise RefusedError(408, "body_timeout", message) from None
        except ClientDisconnect:
            raise RefusedError(CLIENT_GONE, "client_gone", "the client hung up.") from None
        if not self.content:
            raise RefusedError(422, "not_decodable", "the body must hold audio; it is empty.")

    def release(self) -> None:
        """Give back the bytes that the body holds."""
        self.service.n_buffered -= self.n_bytes
        self.content, self.n_bytes = b"", 0

    async def _bytes(self, request: Request) -> bytes:
        return b"".join([chunk async for chunk in self._chunks(request)])

    async def _form(self, request: Request) -> bytes:
        chunks = self._chunks(request)
        parser = MultiPartParser(request.headers, chunks, max_files=1, max_fields=0)
        parser.spool_max_size = self.service.settings.max_body_bytes + 1  # never on the disk
        try:
            form = await parser.parse()
        except MultiPartException as error:
            message = f"the form can't be read: {error.message}"
            raise RefusedError(422, "bad_form", message) from None
        try:
            found = form.get("file")
            if not isinstance(found, UploadFile):
                message = "the form must have one part, the file `file`."
                raise RefusedError(422, "bad_form", message)
            return await found.read()
        finally:
            await form.close()

    async def _chunks(self, request: Request) -> AsyncGenerator[bytes, None]:
        settings = self.service.settings
        async for chunk in request.stream():
            self.n_bytes += len(chunk)
            self.service.n_buffered += len(chunk)
            if self.n_bytes > settings.max_body_bytes:
                raise self._too_large()
            if self.service.n_buffered > settings.max_buffered_bytes:
                raise busy("with large bodies")
            yield chunk

    def _too_large(self) -> RefusedError:
        limit = self.service.settings.max_body_bytes
        return RefusedError(413, "too_large", f"the body must have at most {limit} bytes.")


def busy(why: str) -> RefusedError:
    """Return the refusal that tells a client to come again later."""
    message = f"the service is busy {why}; try again in a second."
    return RefusedError(503, "busy", message, Retry_After="1")


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Outermost:
    """Counts the answers to what is posted, and gives every answer its headers."""

    def __init__(self, app: Any, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "")
                if path in ("/v1/score", "/v1/timeline"):
                    self.service.requests.labels(path, str(message["status"])).inc()
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_counted)


async def _on_error(request: Request, error: Any) -> Response:
    """Tell a client what was wrong."""
    match error:
        case RefusedError():
            refused = error
        case RequestValidationError():
            refused = RefusedError(422, "bad_parameter", _what_is_wrong(error))
        case HTTPException():
            code = "method_not_allowed" if error.status_code == 405 else "not_found"
            headers = error.headers or {}
            refused = RefusedError(error.status_code, code, f"{error.detail}.", **headers)
        case _:
            refused = RefusedError(500, "internal", "the service made an error.")
    content = {"error": {"code": refused.code, "message": refused.message}}
    return JSONResponse(content, refused.status, headers=refused.headers)


def _what_is_wrong(error: RequestValidationError) -> str:
    first = error.errors()[0]
    text = first["msg"].removeprefix("Input ").lower()
    if first["type"] == "extra_forbidden":
        text = "is no parameter"
    return f"`{first['loc'][1]:.40}` {text}; got {str(first['input'])[:40]!r}."


async def _file(path: Path, request: Request) -> Response:
    return FileResponse(path)
