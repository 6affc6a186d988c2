"""The search service: an HTTP API with OpenAPI, and the page that uses it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from transhash.errors import DataError

if TYPE_CHECKING:
    from transhash.service.app import create_app
    from transhash.service.server import serve_run

__all__ = ["create_app", "is_installed", "serve_run"]

_HOMES = {"create_app": "app", "serve_run": "server"}
_NEEDED = ("fastapi", "uvicorn", "python_multipart")


def is_installed() -> bool:
    """Whether the packages of the extra are installed."""
    return not _missing()


def _missing() -> list[str]:
    return [package for package in _NEEDED if find_spec(package) is None]


def __getattr__(name: str) -> Any:
    # Imported when first used, so that a missing extra is one sentence and not a traceback.
    if name not in _HOMES:
        raise AttributeError(f"module 'transhash.service' has no attribute {name!r}")
    if missing := _missing():
        raise DataError(
            f"the service needs {', '.join(missing)}; install it with: "
            "pip install 'transhash[serve]'"
        )
    from importlib import import_module

    return getattr(import_module(f"transhash.service.{_HOMES[name]}"), name)
