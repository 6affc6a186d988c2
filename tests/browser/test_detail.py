"""A result opened large, words for relevance, both kinds at once, and more on scrolling."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.server_process import ServerProcess
from service.small_run import ITEMS, MARKUP_TEXTS, image_bytes

from .test_page import IMAGES, TEXTS, scroll_to_the_end, search, upload

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser


def numbers(page: Page, kind: str) -> list[str | None]:
    return [card.get_attribute("data-number") for card in page.locator(kind).all()]


def place(page: Page) -> str:
    return page.locator("#large-place").inner_text()


def test_a_picture_opens_large_with_its_file_and_neighbours_of_both_kinds(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    card = page.locator(IMAGES).first
    number = card.get_attribute("data-number")
    card.click()
    page.wait_for_selector(f"#large-body img[src='/api/items/{number}/picture']")
    name = page.locator("#large-title").inner_text()
    assert name.endswith(".jpg")
    assert "/" not in name
    page.wait_for_selector(".near-texts a")
    assert page.locator(".near-images a img").count() == 8
    assert "in 100" in page.locator(".side").inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == name
    page.locator(".near-texts a").first.click()
    page.wait_for_selector("#large", state="hidden")
    page.wait_for_selector(IMAGES)
    assert "item=" in page.url


def test_arrow_keys_walk_through_the_results_and_escape_returns_to_the_one_seen(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.locator(IMAGES).nth(1).click()
    assert place(page) == f"2 of {ITEMS}"
    page.keyboard.press("ArrowRight")
    assert place(page) == f"3 of {ITEMS}"
    for _ in range(3):  # the last one goes nowhere
        page.keyboard.press("ArrowLeft")
    assert place(page) == f"1 of {ITEMS}"
    assert page.get_by_role("button", name="Previous result").is_disabled()
    page.keyboard.press("ArrowRight")
    seen = page.locator(IMAGES).nth(1).get_attribute("data-number")
    page.keyboard.press("Escape")
    assert page.locator("#large").is_hidden()
    assert page.evaluate("document.activeElement.dataset.number") == seen


def test_a_text_opens_whole_and_as_text(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Texts").check(force=True)
    search(page, "a red boat")
    scroll_to_the_end(page)
    page.locator(TEXTS).filter(has_text=MARKUP_TEXTS[0]).click()
    assert page.locator(".whole").inner_text() == MARKUP_TEXTS[0]
    assert page.locator("#large img[src='x']").count() == 0
    assert "owned" not in page.title()


def test_on_a_phone_it_fills_the_screen_and_can_be_pressed(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto("/?q=a+boat&modality=images")
    page.locator(IMAGES).first.click()
    page.wait_for_selector(".near-texts a")
    box = page.locator("#large").bounding_box()
    assert box is not None
    assert (box["x"], box["y"], box["width"], box["height"]) == (0, 0, 360, 700)
    assert page.evaluate("document.querySelector('#large').scrollWidth") <= 360
    for control in page.locator("#large button, #large .actions a").all():
        size = control.bounding_box()
        assert size is not None
        assert min(size["width"], size["height"]) >= 40


def test_a_file_that_changed_leaves_the_small_picture_and_says_so(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(run, tmp_path / "run"))
    with ServerProcess(own, "--originals") as server:
        page = browser.new_context(base_url=server.url).new_page()
        page.route("**/api/items/*/picture", lambda route: route.fulfill(status=410, body="{}"))
        held: list[Route] = []
        page.route("**/api/about", lambda route: held.append(route))  # known last
        page.goto("/?q=a+boat&modality=images")
        page.locator(IMAGES).first.click()
        assert page.locator("#large").is_hidden()
        held[0].continue_()
        page.wait_for_selector("figcaption")
        assert "small picture" in page.locator("figcaption").inner_text()
        assert page.locator(".frame img").get_attribute("src", timeout=5000).endswith("/thumbnail")  # type: ignore[union-attr]
        page.context.close()


def test_without_permission_the_page_asks_for_no_file_and_offers_none(
    browser: Browser, run: Path
) -> None:
    with ServerProcess(run) as server:
        page = browser.new_context(base_url=server.url).new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto("/?q=a+boat&modality=images")
        page.wait_for_selector("#run:not([hidden])")
        page.locator(IMAGES).first.click()
        page.wait_for_selector(".near-texts a")
        assert page.get_by_role("link", name="Download").count() == 0
        assert not [url for url in asked if url.endswith(("/picture", "/original"))]
        page.context.close()


def test_more_results_come_on_scrolling_in_the_order_of_the_ranking(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    first = numbers(page, IMAGES)
    assert len(first) == 24
    scroll_to_the_end(page)
    everything = numbers(page, IMAGES)
    assert everything[:24] == first
    reply = page.request.get(f"/api/search/text?q=a+boat+with+sails&k={ITEMS}").json()
    assert everything == [str(hit["number"]) for hit in reply["hits"]]


def test_both_kinds_stand_side_by_side(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.get_by_label("Both").check(force=True)
    page.wait_for_selector(f".both {TEXTS}")
    assert "modality=both" in page.url
    left, right = (page.locator(f".both {kind}").first.bounding_box() for kind in (IMAGES, TEXTS))
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]
    page.locator(f".both {TEXTS}").nth(1).click()
    assert place(page).startswith("2 of ")
    page.keyboard.press("Escape")
    page.reload()
    page.wait_for_selector(f".both {IMAGES}")


def test_where_nothing_is_near_the_page_says_so(page: Page) -> None:
    def far(route: Route) -> None:
        found = route.fetch()
        told = found.json()
        for hit in told["hits"]:
            hit.update(relevance="unlikely", probability=0.01)
        route.fulfill(response=found, json=told)

    page.goto("/")
    search(page, "a boat with sails")
    assert page.locator("#notice").is_hidden()
    page.route("**/api/search/**", far)
    search(page, "something else")
    page.wait_for_selector("#notice:not([hidden])")
    assert "Nothing here is near" in page.locator("#notice").inner_text()
    upload(page, "blue.png", image_bytes())
    page.wait_for_selector(TEXTS)
    assert "far from everything" in page.locator("#notice").inner_text()


def test_a_run_without_calibration_shows_bits_as_ever(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(run, tmp_path / "run"))
    report = json.loads((own / "report.json").read_text())
    del report["validation"]
    (own / "report.json").write_text(json.dumps(report))
    with ServerProcess(own) as server:
        page = browser.new_context(base_url=server.url).new_page()
        page.goto("/?q=a+boat&modality=images")
        page.wait_for_selector(IMAGES)
        assert page.locator(".badge").count() == 0
        assert page.locator(".card svg.strip").first.is_visible()
        assert page.get_by_label("Show bits").is_hidden()
        page.context.close()


def test_the_api_is_described_on_a_page_of_its_own(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="API").click()
    page.wait_for_selector("details")
    described = page.locator("details code").all_inner_texts()
    document = page.request.get("/openapi.json").json()
    assert len(described) == sum(map(len, document["paths"].values()))
    page.locator("summary", has_text="/api/search/text").click()
    assert "integer, 1 to 200" in page.locator("details[open]").inner_text()


def test_opened_again_at_once_it_stays_full(page: Page) -> None:
    page.goto("/?q=a+boat&modality=images")
    page.wait_for_selector(".card[data-number]")
    page.locator(".card").first.click()
    page.wait_for_selector("#large[open]")
    shown = page.evaluate(
        """async () => {
          document.getElementById("large").close(); // which it is told of in a later task
          document.querySelector(".card").click();
          await new Promise((done) => setTimeout(done, 100));
          return document.getElementById("large-body").childElementCount;
        }"""
    )
    assert shown > 0
