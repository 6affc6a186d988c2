"""Thumbs on results, as people give them: by mouse, keys and finger; none where none is kept."""

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
def voted_run(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def server(voted_run: Path) -> Iterator[ServerProcess]:
    with ServerProcess(voted_run, "--writable", "--api-key", KEY) as server:
        yield server


def give_key(page: Page, key: str = KEY) -> None:
    page.get_by_label("ApiKey", exact=True).fill(key)
    page.keyboard.press("Enter")


def thumb(page: Page, kind: str, place: int = 0) -> Locator:
    return page.locator(f".grid .vote.{kind}").nth(place)


def wait_pressed(button: Locator, *, pressed: bool = True) -> None:
    button.and_(button.page.locator(f"[aria-pressed={str(pressed).lower()}]")).wait_for()


def test_a_thumb_asks_for_the_key_once_and_is_kept_changed_and_taken_back(
    page: Page, voted_run: Path
) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.wait_for_selector("body.voting")
    thumb(page, "up").click()
    give_key(page, "wrong")
    page.get_by_text("That was not the right key.").wait_for()
    assert FeedbackStore(voted_run).all() == []
    give_key(page)
    wait_pressed(thumb(page, "up"))
    (vote,) = FeedbackStore(voted_run).all()
    assert (vote.text, vote.vote) == ("a boat with sails", 1)
    thumb(page, "down").click()
    wait_pressed(thumb(page, "down"))
    wait_pressed(thumb(page, "up"), pressed=False)
    thumb(page, "up", 1).click()
    wait_pressed(thumb(page, "up", 1))
    assert [vote.vote for vote in FeedbackStore(voted_run).all()] == [0, 1]
    page.reload()
    wait_pressed(thumb(page, "down"))  # as it was left, and the key is still known
    thumb(page, "down").click()
    wait_pressed(thumb(page, "down"), pressed=False)
    assert [vote.vote for vote in FeedbackStore(voted_run).all()] == [1]
    assert "Votes are kept there" in page.locator("footer").inner_text()


def test_thumbs_work_by_keyboard_in_the_large_view_and_agree_with_the_list(
    page: Page, voted_run: Path
) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.locator(IMAGES).first.click()
    large = page.locator("#large .vote.up")
    large.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")  # leaves the key's dialog, not the result
    assert page.locator("#large").is_visible()
    assert large.get_attribute("aria-pressed") == "false"
    large.focus()
    page.keyboard.press("Space")
    give_key(page)
    wait_pressed(large)
    page.keyboard.press("ArrowRight")
    assert page.locator("#large .vote.up").get_attribute("aria-pressed") == "false"
    page.keyboard.press("Escape")
    wait_pressed(thumb(page, "up"))
    assert len(FeedbackStore(voted_run).all()) == 1
    name = thumb(page, "up").get_attribute("aria-label") or ""
    assert name.startswith("Right: ")
    page.locator(IMAGES).nth(1).focus()
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == thumb(page, "up", 1).get_attribute("aria-label")


def test_from_a_picture_texts_can_be_voted_on_but_not_pictures_nor_from_a_dropped_one(
    page: Page, voted_run: Path
) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.locator(IMAGES).first.click()
    page.get_by_role("link", name="Find texts like this").click()
    page.wait_for_selector(TEXTS)
    thumb(page, "down").click()
    give_key(page)
    wait_pressed(thumb(page, "down"))
    (vote,) = FeedbackStore(voted_run).all()
    assert (vote.vote, vote.text_id is None) == (0, False)
    page.get_by_label("TrainingImages").check(force=True)
    page.wait_for_selector(IMAGES)
    assert page.locator(".vote").count() == 0
    upload(page, "mine.png", image_bytes())
    page.get_by_label("Texts").check(force=True)
    page.wait_for_selector(TEXTS)
    assert "picture=" in page.url
    assert page.locator(".vote").count() == 0


def test_the_link_that_was_printed_is_the_key_and_leaves_the_address(
    browser: Browser, voted_run: Path
) -> None:
    with ServerProcess(voted_run, "--writable") as server:
        page = browser.new_page(base_url=server.url)
        page.goto(f"/?q=a+boat&modality=images{server.fragment}")
        thumb(page, "up").click()
        wait_pressed(thumb(page, "up"))  # without having been asked
        assert page.url == f"{server.url}?q=a+boat&modality=images"
        page.close()
        page = browser.new_page(base_url=server.url)  # another tab has to be told
        page.goto("/?q=a+boat&modality=images")
        thumb(page, "up", 1).click()
        give_key(page, f"{server.url}{server.fragment}")
        wait_pressed(thumb(page, "up", 1))
        page.close()
    assert [vote.vote for vote in FeedbackStore(voted_run).all()] == [1, 1]


def test_a_vote_that_is_refused_says_why(page: Page, voted_run: Path) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.route("**/api/votes", lambda route: route.fulfill(status=503, json={"error": "no room"}))
    thumb(page, "up").click()
    give_key(page)
    page.locator(".vote-said.bad", has_text="no room").first.wait_for()
    assert thumb(page, "up").get_attribute("aria-pressed") == "false"


def test_thumbs_can_be_hit_with_a_finger(browser: Browser, server: ServerProcess) -> None:
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
    page.get_by_label("ApiKey", exact=True).fill(KEY)
    page.get_by_role("button", name="Vote", exact=True).tap()
    wait_pressed(thumb(page, "up"))
    context.close()


def test_a_read_only_page_offers_no_thumbs(browser: Browser, run: Path) -> None:
    with ServerProcess(run) as server:
        page = browser.new_page(base_url=server.url)
        page.goto("/?q=a+boat&modality=images")
        page.wait_for_selector(IMAGES)
        page.wait_for_selector("#run:not([hidden])")
        assert page.locator(".votes:visible").count() == 0
        assert "Nothing you type or drop is kept." in page.locator("footer").inner_text()
        page.close()
