"""A request from its first byte to its answer: admission, body, decoding, batch, verdict."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asvspoof_cm.engines.service.batching import Batcher
from asvspoof_cm.engines.service.counters import Counter, Histogram, gauge
from asvspoof_cm.engines.service.decoding import Decoded, Decoders
from asvspoof_cm.engines.service.limits import ServiceSettings
from asvspoof_cm.engines.service.messages import (
    HEADERS,
    RefusedError,
    bad_parameter,
    client_gone,
    json_reply,
    read_body,
    read_parameters,
    refusal_reply,
)
from asvspoof_cm.metrics import ASVSPOOF5
from asvspoof_cm.scorer import Scorer, ScoreResult, Timeline

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger("asvspoof_cm.service")

_SLICE_WINDOWS = 16
_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Service:
    """The state of a service: its model, its decoders, its queue and its counters."""

    def __init__(self, scorer: Scorer, settings: ServiceSettings) -> None:
        self.scorer, self.settings = scorer, settings
        self.sample_rate, self.crop_s = scorer.input.sample_rate, scorer.input.crop_s
        about = scorer.settings()
        self.identity = {"name": settings.name or about["model"], "sha256": about["sha256"]}
        self.decoders = Decoders(
            settings.n_decoders,
            sample_rate=self.sample_rate,
            limit_s=settings.decoding_limit_s,
            max_duration_s=settings.max_duration_s,
        )
        self.n_inside = 0
        self.n_to_score = 0
        self.is_ready = False
        self.seconds_each = 0.1
        self.requests = Counter(
            "asvspoof_cm_requests_total", "Requests, by path and status.", ("path", "status")
        )
        self.audio_s = Counter("asvspoof_cm_audio_seconds_total", "Seconds of audio decoded.")
        self.latency = Histogram(
            "asvspoof_cm_request_seconds", "From the first byte to the answer.", _LATENCIES
        )
        self.batches = Histogram(
            "asvspoof_cm_batch_requests", "Requests in a batch.", (1, 2, 4, 8, 16, 32, 64)
        )

    async def start(self) -> None:
        """Start the decoders and warm the model up."""
        self.batcher: Batcher[NDArray[np.float32], ScoreResult] = Batcher(
            partial(score_together, self.scorer, self.sample_rate),
            max_batch=self.settings.max_batch,
            max_wait_s=self.settings.max_wait_s,
            n_coming=lambda: self.n_to_score,
            on_batch=self.batches.observe,
        )
        await self.decoders.start()
        await self.batcher.start()
        silence = np.zeros(self.sample_rate, dtype=np.float32)
        await self.batcher.run(lambda: self.scorer.score_batch([silence], self.sample_rate))
        self.is_ready = True

    async def close(self) -> None:
        """End the decoders and the thread of the model."""
        self.is_ready = False
        await self.batcher.close()
        await self.decoders.close()

    async def score(self, request: Request) -> Response:
        """Answer ``POST /v1/score``."""
        return await self._answer(request, ("prior", "c_miss", "c_fa"), self._score)

    async def timeline(self, request: Request) -> Response:
        """Answer ``POST /v1/timeline``."""
        return await self._answer(request, ("window_s", "hop_s"), self._timeline)

    async def model(self, request: Request) -> Response:
        """Answer ``GET /v1/model``: what scores, and within which limits."""
        if refused := self._unauthorized(request):
            return refusal_reply(refused)
        limits = ("max_body_bytes", "max_duration_s", "max_windows")
        return json_reply(
            {
                **self.identity,
                "note": self.settings.note,
                "calibrated": self.scorer.calibration is not None,
                "sample_rate": self.sample_rate,
                "crop_s": self.crop_s,
                "costs": asdict(ASVSPOOF5),
                "limits": {name: getattr(self.settings, name) for name in limits},
            }
        )

    async def healthz(self, request: Request) -> Response:
        """Answer ``GET /healthz``: the process lives."""
        return json_reply({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Answer ``GET /readyz``: requests would be answered now."""
        if not (self.is_ready and self.decoders.processes):
            return refusal_reply(RefusedError(503, "not_ready", "not ready.", {"Retry-After": "1"}))
        return json_reply({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """Answer ``GET /metrics``."""
        from starlette.responses import Response

        if refused := self._unauthorized(request):
            return refusal_reply(refused)
        labels = {name: str(value) for name, value in self.identity.items()}
        n_replaced = Counter("asvspoof_cm_decoders_replaced_total", "Decoders that died.")
        n_replaced.add(self.decoders.n_replaced)
        counted = (self.requests, self.audio_s, n_replaced, self.latency, self.batches)
        parts = [
            *(item.render() for item in counted),
            gauge("asvspoof_cm_requests_inside", "Requests in the service.", self.n_inside),
            gauge("asvspoof_cm_queue", "Requests that wait for a batch.", self.batcher.n_waiting),
            gauge("asvspoof_cm_model_info", "The model that scores.", 1, labels),
        ]
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response("".join(parts), headers={**HEADERS, "Content-Type": kind})

    # One request ---------------------------------------------------------------------------

    async def _answer(
        self,
        request: Request,
        names: Sequence[str],
        work: Callable[[Decoded, dict[str, float]], Awaitable[dict[str, Any]]],
    ) -> Response:
        start = time.perf_counter()
        try:
            if refused := self._unauthorized(request):
                raise refused
            parameters = read_parameters(request.query_params.multi_items(), names)
            self._enter()
            try:
                content = await self._content(request)
                answer = self._work(content, parameters, work)
                reply = json_reply(await self._unless_gone(request, answer))
            finally:
                self.n_inside -= 1
            self.latency.observe(time.perf_counter() - start)
        except RefusedError as error:
            reply = refusal_reply(error)
        except Exception:
            logger.exception("a request failed")
            reply = refusal_reply(RefusedError(500, "internal", "the service made an error."))
        self.requests.add(path=request.url.path, status=str(reply.status_code))
        return reply

    def _unauthorized(self, request: Request) -> RefusedError | None:
        token = self.settings.token
        if token is None:
            return None
        given = request.headers.get("authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {token}".encode()):
            return None
        return RefusedError(
            401,
            "unauthorized",
            "send the header `Authorization: Bearer TOKEN` with the token of this service.",
            {"WWW-Authenticate": "Bearer"},
        )

    def _enter(self) -> None:
        if self.n_inside >= self.settings.max_requests:
            wait_s = min(60, max(1, math.ceil(self.n_inside * self.seconds_each)))
            raise RefusedError(
                503,
                "busy",
                f"the service is busy with {self.n_inside} requests; try again in {wait_s} s.",
                {"Retry-After": str(wait_s)},
            )
        self.n_inside += 1

    async def _content(self, request: Request) -> bytes:
        from starlette.requests import ClientDisconnect

        limit_s = self.settings.body_limit_s
        try:
            body = read_body(request, self.settings.max_body_bytes)
            content = await asyncio.wait_for(body, limit_s)
        except TimeoutError:
            late = f"the body must arrive within {limit_s:g} s."
            raise RefusedError(408, "body_timeout", late) from None
        except ClientDisconnect:
            raise client_gone() from None
        if not content:
            raise RefusedError(422, "not_decodable", "the body must hold audio; it is empty.")
        return content

    async def _work(
        self,
        content: bytes,
        parameters: dict[str, float],
        work: Callable[[Decoded, dict[str, float]], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        is_score = work == self._score
        self.n_to_score += is_score
        try:
            decoded = await self.decoders.decode(content)
            self.audio_s.add(len(decoded.waveform) / self.sample_rate)
            answer = await work(decoded, parameters)
        finally:
            self.n_to_score -= is_score
        rate = decoded.native_rate
        return {
            **answer,
            "duration_s": len(decoded.waveform) / self.sample_rate,
            "resampled_from": None if rate == self.sample_rate else rate,
            "model": self.identity,
        }

    async def _unless_gone(
        self, request: Request, work: Awaitable[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of `work`, which ends if the client hangs up or time runs out."""
        start = time.perf_counter()
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_disconnect(request))
        try:
            limit_s = self.settings.time_limit_s
            await asyncio.wait({task, gone}, timeout=limit_s, return_when="FIRST_COMPLETED")
            if task.done():
                each = (time.perf_counter() - start) / self.n_inside
                self.seconds_each += 0.1 * (each - self.seconds_each)
                return task.result()
            if gone.done():
                raise client_gone()
            raise RefusedError(
                504, "timeout", f"no answer within {limit_s:g} s; try shorter audio, or later."
            )
        finally:
            for unfinished in (task, gone):
                unfinished.cancel()
            with suppress(asyncio.CancelledError):
                await gone

    async def _score(self, decoded: Decoded, parameters: dict[str, float]) -> dict[str, Any]:
        result = await self.batcher.submit(decoded.waveform)
        given = {"p_spoof" if name == "prior" else name: x for name, x in parameters.items()}
        return result.as_dict(replace(ASVSPOOF5, **given))

    async def _timeline(self, decoded: Decoded, parameters: dict[str, float]) -> dict[str, Any]:
        window_s = parameters.get("window_s", self.crop_s)
        hop_s = parameters.get("hop_s", 1.0)
        n_window, n_hop = round(window_s * self.sample_rate), round(hop_s * self.sample_rate)
        n_samples = len(decoded.waveform)
        if n_samples > n_hop * self.settings.max_windows:
            least_s = n_samples / self.sample_rate / self.settings.max_windows
            raise bad_parameter(
                f"`hop_s` must be at least {least_s:.3f} for this audio: a timeline has at most "
                f"{self.settings.max_windows} windows."
            )
        windows = []
        for start, stop in timeline_slices(n_samples, n_window, n_hop, _SLICE_WINDOWS):
            part = partial(self.scorer.timeline, decoded.waveform[start:stop], self.sample_rate)
            line = await self.batcher.run(partial(part, window_s=window_s, hop_s=hop_s))
            windows += self._windows(line, start / self.sample_rate)
        return {"window_s": window_s, "hop_s": hop_s, "windows": windows}

    def _windows(self, line: Timeline, offset_s: float) -> list[dict[str, Any]]:
        llrs: Sequence[float | None] = [None] * len(line)
        if self.scorer.unit == "llr":
            llrs = line.score.tolist()
        elif self.scorer.unit == "log-odds" and self.scorer.calibration is not None:
            llrs = self.scorer.calibration.apply(line.score).tolist()
        return [
            {
                "start_s": offset_s + window.start_s,
                "end_s": offset_s + window.end_s,
                "score": window.score,
                "llr": llr,
            }
            for window, llr in zip(line, llrs, strict=True)
        ]


def score_together(
    scorer: Scorer, sample_rate: int, waveforms: Sequence[NDArray[np.float32]]
) -> list[ScoreResult | Exception]:
    """Score a batch; where one waveform can't be scored, the others still are."""
    try:
        return [*scorer.score_batch(waveforms, sample_rate, detail=True)]
    except ValueError as error:
        if len(waveforms) == 1:
            return [RefusedError(422, "not_scorable", str(error))]
        return [score_together(scorer, sample_rate, [waveform])[0] for waveform in waveforms]


def timeline_slices(
    n_samples: int, n_window: int, n_hop: int, n_windows: int
) -> list[tuple[int, int]]:
    """Return parts of up to `n_windows` windows; their timelines together are that of the whole.

    Others have their turn between two parts, and a client that has gone is noticed.
    """
    n_whole = max(0, (n_samples - n_window) // n_hop + 1)
    slices = []
    first = 0
    while n_whole - first > n_windows:
        slices.append((first * n_hop, (first + n_windows - 1) * n_hop + n_window))
        first += n_windows
    return [*slices, (first * n_hop, n_samples)]


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
