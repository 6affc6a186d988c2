"""A server and a headless Chromium; tests are skipped without the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="pip install 'transhash[serve]'")

from service.server_process import ServerProcess
from service.small_run import build_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
# No sandbox (root in a container) and no requests of the browser's own.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def server(run: Path) -> Iterator[ServerProcess]:
    with ServerProcess(run, "--originals") as server:
        yield server


@pytest.fixture(scope="package")  # Playwright keeps an event loop running in this thread
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed; apt-get install chromium, or set CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class PageLog:
    """The errors and requests of a page."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        page.on("request", lambda request: self.requests.append(request.url))


@pytest.fixture
def expected_errors() -> list[str]:
    """Return prefixes of console errors that a test causes on purpose."""
    # The browser logs every refused request; the page handles it.
    return ["Failed to load resource"]


@pytest.fixture
def page(browser: Browser, server: ServerProcess, expected_errors: list[str]) -> Iterator[Page]:
    """Yield a new page; a script error or a request to another host fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=server.url)
    context.set_default_timeout(20_000)
    page = context.new_page()
    log = PageLog(page)
    yield page
    context.close()
    foreign = [url for url in log.requests if not url.startswith((server.url, "blob:"))]
    assert not foreign
    assert [e for e in log.errors if not e.startswith(tuple(expected_errors))] == []
