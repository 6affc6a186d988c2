"""Search mode, filters, reasons and groups of duplicates on the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from service.server_process import ServerProcess
from transhash.search.engine import SearchEngine

from .test_page import IMAGES, search

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def wait_for_count(page: Page, count: int) -> None:
    from playwright.sync_api import expect

    expect(page.locator(IMAGES)).to_have_count(count)


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A run with three more images: one with a caption, one with a date, and a copy of it."""
    base = tmp_path_factory.mktemp("filters")
    copy = Path(shutil.copytree(run, base / "run"))
    folder = base / "Holidays"
    (folder / "2019 Croatia").mkdir(parents=True)
    (folder / "2020").mkdir()
    exif = Image.Exif()
    exif[0x010E] = "The old lighthouse of Rovinj"
    Image.linear_gradient("L").save(folder / "2019 Croatia" / "IMG_0001.jpg", exif=exif)
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2020:05:01 12:00:00"
    Image.radial_gradient("L").save(folder / "2020" / "lighthouse.jpg", exif=exif)
    shutil.copy(folder / "2020" / "lighthouse.jpg", folder / "2020" / "lighthouse (copy).jpg")
    with SearchEngine.open(copy, writable=True) as engine:
        assert engine.add_images(folder).added == 3
    with ServerProcess(copy, "--originals") as server:
        yield server


def test_results_with_words_of_the_query_come_first_and_say_where_they_are(page: Page) -> None:
    page.goto("/")
    search(page, "lighthouse")
    reasons = page.locator(".reasons")
    assert sorted(reasons.all_inner_texts()) == ["Matches caption", "Matches file name"]
    first = page.locator(IMAGES).nth(0).inner_text() + page.locator(IMAGES).nth(1).inner_text()
    assert "unlikely" not in first
    assert page.locator("#notice").is_hidden()
    page.locator(IMAGES, has_text="Matches caption").click()
    assert "The old lighthouse of Rovinj" in page.locator("#detail").inner_text()


def test_copies_are_one_card_that_lists_them(page: Page) -> None:
    page.goto("/?q=lighthouse&modality=images")
    card = page.locator(".grid > li", has=page.locator(".duplicates"))
    card.get_by_text("+1 duplicate").click()
    name = card.locator(".name")
    assert name.inner_text() == "lighthouse (copy).jpg"
    assert name.get_attribute("title") == "2020/lighthouse (copy).jpg"
    assert card.locator(".duplicates li").all_inner_texts() == ["2020/lighthouse.jpg"]
    page.locator("#search-details summary").click()
    page.get_by_label("Group duplicates").uncheck()
    page.wait_for_selector("text=Matches file name >> nth=1")
    assert "collapse=false" in page.url
    assert page.locator(".duplicates").count() == 0


def test_filters_are_in_the_address_and_can_be_cleared(page: Page) -> None:
    page.goto("/")
    search(page, "lighthouse")
    page.locator("#filters summary").click()
    page.get_by_label("Folder").select_option("2020")
    page.wait_for_url("**folder=2020*")
    page.wait_for_selector("#filters-state:text('2020')")
    wait_for_count(page, 1)
    page.reload()
    page.wait_for_selector(IMAGES)
    wait_for_count(page, 1)
    page.locator("#filters summary").click()
    page.get_by_label("Folder").select_option("")
    page.get_by_label("Taken from").fill("2020-05-02")
    page.wait_for_selector("text=No images match.")
    page.get_by_label("Taken from").fill("2020-05-01")
    page.wait_for_selector(IMAGES)
    wait_for_count(page, 1)
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector(f"{IMAGES} >> nth=9")
    assert "after=" not in page.url


def test_the_search_mode_is_chosen_under_details(page: Page) -> None:
    page.goto("/")
    search(page, "lighthouse")
    page.locator("#search-details summary").click()
    page.get_by_label("Search", exact=True).select_option("keywords")
    page.wait_for_url("**search=keywords*")
    wait_for_count(page, 2)
    page.get_by_label("Search", exact=True).select_option("codes")
    page.wait_for_url("**search=codes*")
    page.wait_for_selector(f"{IMAGES} >> nth=9")
    assert page.locator(".reasons").count() == 0
