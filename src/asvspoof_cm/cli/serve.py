"""``asvspoof-cm serve``: the scorer over HTTP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from asvspoof_cm.cli.options import add_device, add_model, is_file, load_scorer

TOKEN_VARIABLE = "ASVSPOOF_CM_TOKEN"
LIMITS = {
    "max_requests": "requests in the service; the next gets 503",
    "max_body_bytes": "the largest body; a larger one gets 413",
    "max_duration_s": "the longest audio; longer audio gets 413",
    "max_batch": "requests that are scored together",
    "n_decoders": "processes that decode",
    "time_limit_s": "how long an answer may take",
}
"""The fields of `ServiceSettings` that are options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    from asvspoof_cm.serve.limits import ServiceSettings

    parser.description = (
        "Score audio that clients send over HTTP: POST /v1/score and /v1/timeline, a "
        "page for people at /, /v1/model, /healthz, /readyz, /metrics, /openapi.json. Needs the "
        "extra serve. "
        f"Where the environment variable {TOKEN_VARIABLE} or --token-file is set, clients must "
        "send that bearer token. SIGTERM lets it finish what it has accepted."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine")
    add("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    add("--token-file", metavar="PATH", type=Path, help="a file with the token")
    add_model(parser)
    add_device(parser)
    limits = parser.add_argument_group("limits")
    for name, text in LIMITS.items():
        option = "--" + name.removeprefix("n_").replace("_", "-")
        given = {"dest": name, "default": getattr(ServiceSettings, name), "metavar": "X"}
        kind = type(given["default"])
        limits.add_argument(option, type=kind, help=f"{text} (default: %(default)s)", **given)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from asvspoof_cm._hub import DEFAULT_NAME
    from asvspoof_cm.serve import ServiceSettings, serve

    token = os.environ.get(TOKEN_VARIABLE)
    if args.token_file is not None:
        token = args.token_file.read_text().strip()
    scorer = load_scorer(args.model, device=args.device)
    name = args.model or DEFAULT_NAME
    settings = ServiceSettings(
        name=Path(name).stem if is_file(name) else name,
        note=scorer.model.meta.get("card", {}).get("use", ""),
        token=token,
        **{limit: vars(args)[limit] for limit in LIMITS},
    )
    serve(scorer, settings, host=args.host, port=args.port)
    return 0
