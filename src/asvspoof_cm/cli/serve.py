"""``asvspoof-cm serve``: the scorer over HTTP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from asvspoof_cm.cli.options import (
    add_device,
    add_fields,
    add_model,
    given_fields,
    is_file,
    load_scorer,
)

TOKEN_VARIABLE = "ASVSPOOF_CM_TOKEN"
IN_PYTHON_ONLY = (
    *("name", "note", "token", "max_buffered_bytes", "max_windows", "max_wait_s"),
    *("body_limit_s", "decoding_limit_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    from asvspoof_cm.serve.settings import ServiceSettings

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
    add_fields(limits, ServiceSettings, skip=IN_PYTHON_ONLY)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from asvspoof_cm.checkpoint import DEFAULT_NAME
    from asvspoof_cm.serve import ServiceSettings, serve

    given = given_fields(args, ServiceSettings)
    given["token"] = os.environ.get(TOKEN_VARIABLE)
    if args.token_file is not None:
        given["token"] = args.token_file.read_text().strip()
    scorer = load_scorer(args.model, device=args.device)
    if args.model is not None and is_file(args.model):
        given["name"] = Path(args.model).stem
    else:
        given["name"] = args.model or DEFAULT_NAME
        given["note"] = scorer.model.meta["card"]["use"]
    serve(scorer, ServiceSettings(**given), host=args.host, port=args.port)
    return 0
