"""The button that makes the service sync its sources."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.server_process import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "1.txt").write_text("a boat")
    return tmp_path / "notes"


@pytest.fixture
def server(run: Path, notes: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    run_copy = Path(shutil.copytree(run, tmp_path / "run"))
    with ServerProcess(run_copy, "--sync", str(notes), "--sync-every", "0") as server:
        yield server


def test_the_button_syncs_and_shows_the_result(
    page: Page, server: ServerProcess, notes: Path
) -> None:
    page.goto(f"{server.url}{server.fragment}")
    button = page.get_by_role("button", name="Sync", exact=True)
    button.click()
    page.get_by_text("No changes").wait_for()
    (notes / "2.txt").write_text("a boat at night")
    button.click()
    page.get_by_text("added 1").wait_for()
