"""``asvspoof-cm serve``: the scorer over HTTP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from asvspoof_cm.cli.options import add_device, add_model, is_file, load_scorer

TOKEN_VARIABLE = "ASVSPOOF_CM_TOKEN"
LIMITS = {
    "max_requests": (int, "requests in the service; the next gets 503"),
    "max_body_bytes": (int, "the largest body; a larger one gets 413"),
    "max_duration_s": (float, "the longest audio; longer audio gets 413"),
    "max_batch": (int, "requests that are scored together"),
    "n_decoders": (int, "processes that decode"),
    "time_limit_s": (float, "how long an answer may take"),
}
"""The fields of `ServiceSettings` that are options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    from asvspoof_cm.serve.settings import ServiceSettings

    usual = ServiceSettings()
    parser.description = (
        "Score audio that clients send over HTTP: POST /v1/score and /v1/timeline, a "
        "page for people at /, /v1/model, /healthz, /readyz, /metrics, /openapi.json. Needs the "
        "extra serve. "
        f"Where the environment variable {TOKEN_VARIABLE} or --token-file is set, clients must "
        "send that bearer token. SIGTERM lets it finish what it has accepted."
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    parser.add_argument("--token-file", metavar="PATH", type=Path, help="a file with the token")
    add_model(parser)
    add_device(parser)
    limits = parser.add_argument_group("limits")
    for name, (kind, text) in LIMITS.items():
        option, default = "--" + name.removeprefix("n_").replace("_", "-"), getattr(usual, name)
        shown = f"{default:g}" if kind is float else str(default)
        text = f"{text} (default: {shown})"
        limits.add_argument(option, dest=name, type=kind, default=default, metavar="X", help=text)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from asvspoof_cm._hub import DEFAULT_NAME
    from asvspoof_cm.serve import ServiceSettings, serve

    given: dict[str, Any] = {name: vars(args)[name] for name in LIMITS}
    given["token"] = os.environ.get(TOKEN_VARIABLE)
    if args.token_file is not None:
        given["token"] = args.token_file.read_text().strip()
    scorer = load_scorer(args.model, device=args.device)
    name = args.model or DEFAULT_NAME
    given["name"] = Path(name).stem if is_file(name) else name
    given["note"] = scorer.model.meta.get("card", {}).get("use", "")
    serve(scorer, ServiceSettings(**given), host=args.host, port=args.port)
    return 0
