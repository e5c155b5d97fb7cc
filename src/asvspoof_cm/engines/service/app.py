"""The service: audio in over HTTP, scores out, for many clients at once."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asvspoof_cm.engines.service.handling import Service
from asvspoof_cm.engines.service.limits import ServiceSettings
from asvspoof_cm.engines.service.messages import RefusedError, file_reply, refusal_reply
from asvspoof_cm.scorer import Scorer
from asvspoof_cm.utils.lazy import import_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger("asvspoof_cm.service")

HERE = Path(__file__).parent
PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/recorder.js": ("recorder.js", "text/javascript; charset=utf-8"),
}


def create_app(scorer: Scorer, settings: ServiceSettings | None = None) -> Starlette:
    """Return the service as an ASGI application, to run by itself or to mount in another.

    Needs the extra `serve`. Whoever runs the application must run its lifespan, which starts
    and ends the decoders; Uvicorn does.

    Args:
        scorer: What scores. It should be calibrated: without a calibration, answers have no
            log-likelihood ratio, probability or decision.
        settings: The limits.

    Example:
        >>> from asvspoof_cm import Scorer
        >>> from asvspoof_cm.models import TFPARN, TFPARNConfig
        >>> app = create_app(Scorer(TFPARN(TFPARNConfig(n_layers=1)), device="cpu"))
        >>> sorted(route.path for route in app.routes)[:4]
        ['/', '/healthz', '/metrics', '/openapi.json']
    """
    import_extra("starlette.applications", "serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    service = Service(scorer, settings or ServiceSettings())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    async def on_http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        headers = dict(error.headers or {})
        return refusal_reply(RefusedError(error.status_code, code, f"{error.detail}.", headers))

    async def on_bug(request: Request, error: Exception) -> Response:
        return refusal_reply(RefusedError(500, "internal", "the service made an error."))

    routes = [
        Route("/v1/score", service.score, methods=["POST"]),
        Route("/v1/timeline", service.timeline, methods=["POST"]),
        Route("/v1/model", service.model),
        Route("/healthz", service.healthz),
        Route("/readyz", service.readyz),
        Route("/metrics", service.metrics),
        Route("/openapi.json", file_reply(HERE / "openapi.json", "application/json")),
    ]
    for path, (name, kind) in PAGE.items():
        routes.append(Route(path, file_reply(HERE / "page" / name, kind)))
    handlers = {HTTPException: on_http_error, Exception: on_bug}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.state.service = service
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
    uvicorn.run(
        create_app(scorer, settings),
        host=host,
        port=port,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.body_limit_s + settings.time_limit_s) + 1,
    )
