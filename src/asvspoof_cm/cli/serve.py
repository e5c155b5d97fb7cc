"""``asvspoof-cm serve``: the scorer over HTTP."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from asvspoof_cm.cli.options import add_device

__all__ = ["add_parser", "run"]

TOKEN_VARIABLE = "ASVSPOOF_CM_TOKEN"


def add_parser(subparsers: Any) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser(
        "serve",
        help="answer requests over HTTP",
        description="Score audio that clients send over HTTP: POST /v1/score and /v1/timeline, a "
        "page for people at /, /healthz, /readyz, /metrics, /openapi.json. Needs the extra serve. "
        f"Where the environment variable {TOKEN_VARIABLE} or --token-file is set, clients must "
        "send that bearer token. SIGTERM lets it finish what it has accepted.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (8000)")
    parser.add_argument("--token-file", metavar="PATH", type=Path, help="a file with the token")
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        type=Path,
        help="a checkpoint, calibrated (the one that comes with the package)",
    )
    add_device(parser)
    limits = parser.add_argument_group("limits")
    for name, kind, help_text in (
        ("max_requests", int, "requests at a time; the next gets 503 (32)"),
        ("max_body_bytes", int, "the largest body; a larger one gets 413 (33554432)"),
        ("max_duration_s", float, "the longest audio; longer audio gets 413 (600)"),
        ("max_batch", int, "requests that are scored together (16)"),
        ("max_wait_s", float, "how long one waits for others to share its batch (0.005)"),
        ("n_decoders", int, "processes that decode (2)"),
        ("body_limit_s", float, "how long a client may take to send (30)"),
        ("decoding_limit_s", float, "how long the decoding of a file may take (10)"),
        ("time_limit_s", float, "from the last byte to the answer (60)"),
    ):
        metavar = "S" if name.endswith("_s") else "N"
        option = f"--{name.replace('_', '-')}"
        limits.add_argument(option, type=kind, metavar=metavar, help=help_text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from asvspoof_cm import pretrained
    from asvspoof_cm.engines.service import ServiceSettings, serve
    from asvspoof_cm.scorer import Scorer

    options = {field.name: getattr(args, field.name, None) for field in fields(ServiceSettings)}
    given: dict[str, Any] = {k: value for k, value in options.items() if value is not None}
    given["token"] = os.environ.get(TOKEN_VARIABLE)
    if args.token_file is not None:
        given["token"] = args.token_file.read_text().strip()
    if args.checkpoint is None:
        given["name"] = pretrained.DEFAULT_NAME
        given["note"] = pretrained.card()["use"]
        scorer = Scorer.from_pretrained(device=args.device)
    else:
        given["name"] = args.checkpoint.stem
        scorer = Scorer.from_checkpoint(args.checkpoint, device=args.device)
    serve(scorer, ServiceSettings(**given), host=args.host, port=args.port)
    return 0
