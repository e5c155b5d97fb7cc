"""The scorer as a service over HTTP: batches across clients, limits, a page to try it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asvspoof_cm.serve.settings import ServiceSettings as ServiceSettings

if TYPE_CHECKING:
    from asvspoof_cm.serve.app import create_app as create_app, serve as serve

__all__ = ["ServiceSettings", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from asvspoof_cm.serve import app  # which decoders and the command's help do without

    return getattr(app, name)
