"""The page of a run with images alone: every query finds images."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.server_process import ServerProcess
from service.small_run import ITEMS, image_bytes
from transhash.search.engine import SearchEngine

from .test_page import IMAGES, search, upload

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    copy = Path(shutil.copytree(run, tmp_path_factory.mktemp("images") / "run"))
    with SearchEngine.open(copy, writable=True) as engine:
        engine.remove("texts", [item.id for item in engine.catalog.sources.list_items("texts")])
    with ServerProcess(copy, "--originals") as server:
        yield server


def test_an_example_an_upload_and_a_text_find_images(page: Page) -> None:
    page.goto("/")
    page.locator("#examples a").first.click()
    page.wait_for_selector(IMAGES)
    assert page.locator("#run").inner_text() == f"{ITEMS} images"
    assert page.locator("#switch").is_hidden()
    page.goto("/")
    upload(page, "photo.png", image_bytes())
    page.wait_for_selector(IMAGES)
    page.goto("/")
    assert page.locator("#headline").inner_text() == "Search your images by text or by image."
    search(page, "a boat")
    page.locator(IMAGES).first.click()
    page.wait_for_selector("#detail .actions")
    assert page.get_by_role("link", name="Find similar texts").count() == 0


def test_a_search_for_texts_can_be_left(page: Page) -> None:
    page.goto("/?q=a+boat&modality=texts")
    page.get_by_text("No texts are indexed yet.").wait_for()
    page.get_by_label("Images", exact=True).check()
    page.wait_for_selector(IMAGES)
    assert page.locator("#switch").is_hidden()


def test_an_image_dropped_before_the_page_knows_the_collection_finds_images(page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/about", lambda route: held.append(route))
    page.goto("/")
    upload(page, "photo.png", image_bytes())
    page.wait_for_timeout(200)
    held.pop().continue_()
    page.wait_for_selector(IMAGES)
