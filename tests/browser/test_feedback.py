"""Votes on results by mouse, keyboard and touch, and none on a read-only server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.server_process import ServerProcess
from service.small_run import image_bytes
from transhash.search.feedback import FeedbackStore

from .test_page import IMAGES, TEXTS, search, upload

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser
KEY = "sésame-π"


@pytest.fixture
def run_copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def server(run_copy: Path) -> Iterator[ServerProcess]:
    with ServerProcess(run_copy, "--writable", write_key=KEY) as server:
        yield server


def enter_key(page: Page, key: str = KEY) -> None:
    page.get_by_label("API key", exact=True).fill(key)
    page.keyboard.press("Enter")


def thumb(page: Page, kind: str, position: int = 0) -> Locator:
    return page.locator(f".grid .vote.{kind}").nth(position)


def wait_pressed(button: Locator, *, pressed: bool = True) -> None:
    button.and_(button.page.locator(f"[aria-pressed={str(pressed).lower()}]")).wait_for()


def test_a_vote_needs_the_key_once_and_can_be_changed_and_removed(
    page: Page, run_copy: Path
) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.wait_for_selector("body.voting")
    thumb(page, "up").click()
    enter_key(page, "wrong")
    page.get_by_text("Wrong key.").wait_for()
    assert FeedbackStore(run_copy).all() == []
    enter_key(page)
    wait_pressed(thumb(page, "up"))
    (vote,) = FeedbackStore(run_copy).all()
    assert (vote.text, vote.vote) == ("a boat with sails", 1)
    thumb(page, "down").click()
    wait_pressed(thumb(page, "down"))
    wait_pressed(thumb(page, "up"), pressed=False)
    thumb(page, "up", 1).click()
    wait_pressed(thumb(page, "up", 1))
    assert [vote.vote for vote in FeedbackStore(run_copy).all()] == [0, 1]
    page.reload()
    wait_pressed(thumb(page, "down"))  # votes are stored, and the key is remembered
    thumb(page, "down").click()
    wait_pressed(thumb(page, "down"), pressed=False)
    assert [vote.vote for vote in FeedbackStore(run_copy).all()] == [1]
    assert "Votes are stored" in page.locator("footer").inner_text()


def test_votes_by_keyboard_in_the_detail_view_show_in_the_list(page: Page, run_copy: Path) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.locator(IMAGES).first.click()
    button = page.locator("#detail .vote.up")
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")  # closes the key dialog only
    assert page.locator("#detail").is_visible()
    assert button.get_attribute("aria-pressed") == "false"
    button.focus()
    page.keyboard.press("Space")
    enter_key(page)
    wait_pressed(button)
    page.keyboard.press("ArrowRight")
    assert page.locator("#detail .vote.up").get_attribute("aria-pressed") == "false"
    page.keyboard.press("Escape")
    wait_pressed(thumb(page, "up"))
    assert len(FeedbackStore(run_copy).all()) == 1
    name = thumb(page, "up").get_attribute("aria-label") or ""
    assert name.startswith("Correct: ")
    page.locator(IMAGES).nth(1).focus()
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == thumb(page, "up", 1).get_attribute("aria-label")


def test_only_pairs_of_an_indexed_image_and_a_text_can_be_voted_on(
    page: Page, run_copy: Path
) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.locator(IMAGES).first.click()
    page.get_by_role("link", name="Find similar texts").click()
    page.wait_for_selector(TEXTS)
    thumb(page, "down").click()
    enter_key(page)
    wait_pressed(thumb(page, "down"))
    (vote,) = FeedbackStore(run_copy).all()
    assert (vote.vote, vote.text_id is None) == (0, False)
    page.get_by_label("Images").check(force=True)
    page.wait_for_selector(IMAGES)
    assert page.locator(".vote").count() == 0
    upload(page, "mine.png", image_bytes())
    page.get_by_label("Texts").check(force=True)
    page.wait_for_selector(TEXTS)
    assert "image=" in page.url
    assert page.locator(".vote").count() == 0


def test_the_key_of_the_link_is_used_and_removed_from_the_address(
    browser: Browser, run_copy: Path
) -> None:
    with ServerProcess(run_copy, "--writable") as server:
        page = browser.new_page(base_url=server.url)
        page.goto(f"/?q=a+boat&modality=images{server.fragment}")
        thumb(page, "up").click()
        wait_pressed(thumb(page, "up"))  # without asking for the key
        assert page.url == f"{server.url}?q=a+boat&modality=images"
        page.close()
        page = browser.new_page(base_url=server.url)  # another tab asks for it
        page.goto("/?q=a+boat&modality=images")
        thumb(page, "up", 1).click()
        enter_key(page, f"{server.url}{server.fragment}")
        wait_pressed(thumb(page, "up", 1))
        page.close()
    assert [vote.vote for vote in FeedbackStore(run_copy).all()] == [1, 1]


def test_a_link_with_a_wrong_key_does_not_replace_the_right_one(
    page: Page, server: ServerProcess, run_copy: Path
) -> None:
    address = "/?q=a+boat&modality=images"
    page.goto(address)
    thumb(page, "up").click()
    enter_key(page)
    wait_pressed(thumb(page, "up"))
    page.goto("about:blank")
    page.goto(f"{address}#key=of-somebody-else")
    for i in (1, 2):
        thumb(page, "up", i).click()
        wait_pressed(thumb(page, "up", i))  # without asking for the key
        page.reload()
    assert len(FeedbackStore(run_copy).all()) == 3


def test_a_refused_vote_shows_the_reason(page: Page, run_copy: Path) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.route(
        "**/api/votes", lambda route: route.fulfill(status=503, json={"error": "Disk full."})
    )
    thumb(page, "up").click()
    enter_key(page)
    page.locator(".vote-status.error", has_text="Disk full.").first.wait_for()
    assert thumb(page, "up").get_attribute("aria-pressed") == "false"


def test_vote_buttons_are_large_enough_for_touch(browser: Browser, server: ServerProcess) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, base_url=server.url, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.goto("/?q=a+boat&modality=images")
    page.wait_for_selector("body.voting .grid .vote")
    box = thumb(page, "up").bounding_box()
    assert box
    assert min(box["width"], box["height"]) >= 44
    card = page.locator(".grid li").first.bounding_box()
    assert card
    assert card["x"] <= box["x"]
    assert box["x"] + box["width"] <= card["x"] + card["width"]
    thumb(page, "up").tap()
    page.get_by_label("API key", exact=True).fill(KEY)
    page.get_by_role("button", name="Continue", exact=True).tap()
    wait_pressed(thumb(page, "up"))
    context.close()


def test_a_read_only_page_has_no_vote_buttons(browser: Browser, run: Path) -> None:
    with ServerProcess(run) as server:
        page = browser.new_page(base_url=server.url)
        page.goto("/?q=a+boat&modality=images")
        page.wait_for_selector(IMAGES)
        page.wait_for_selector("#run:not([hidden])")
        assert page.locator(".votes:visible").count() == 0
        assert "not stored" in page.locator("footer").inner_text()
        page.close()
