"""The scorer as a service over HTTP: batches across clients, limits, a page to try it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asvspoof_cm._util import lazy_exports

if TYPE_CHECKING:
    from asvspoof_cm.serve.app import create_app as create_app, serve as serve
    from asvspoof_cm.serve.limits import ServiceSettings as ServiceSettings

__getattr__, __dir__, __all__ = lazy_exports(__name__)
