"""The scorer as a service over HTTP: batches across clients, limits, a page to try it on."""

from __future__ import annotations

from asvspoof_cm.engines.service.app import create_app, serve
from asvspoof_cm.engines.service.limits import ServiceSettings

__all__ = ["ServiceSettings", "create_app", "serve"]
