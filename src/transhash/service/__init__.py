"""Search service: an HTTP API with OpenAPI, and the search page that uses it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from transhash.errors import DataError

if TYPE_CHECKING:
    from transhash.service.app import create_app
    from transhash.service.server import serve_run

__all__ = ["create_app", "is_installed", "serve_run"]

_MODULES = {"create_app": "app", "serve_run": "server"}
_PACKAGES = ("fastapi", "uvicorn", "python_multipart")


def is_installed() -> bool:
    """Return whether the packages of the extra `serve` are installed."""
    return all(find_spec(package) is not None for package in _PACKAGES)


def __getattr__(name: str) -> Any:
    # Imported on first use, so that a missing extra is a message and not a traceback.
    if name not in _MODULES:
        raise AttributeError(f"module 'transhash.service' has no attribute {name!r}")
    if not is_installed():
        raise DataError("The search service is not installed. Run: pip install 'transhash[serve]'")
    return getattr(import_module(f"transhash.service.{_MODULES[name]}"), name)
