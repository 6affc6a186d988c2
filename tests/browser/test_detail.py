"""The detail view, relevance labels, both modalities at once, and more results on scrolling."""

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


def numbers(page: Page, selector: str) -> list[str | None]:
    return [card.get_attribute("data-number") for card in page.locator(selector).all()]


def position(page: Page) -> str:
    return page.locator("#detail-position").inner_text()


def test_an_image_opens_with_its_file_and_similar_items(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    card = page.locator(IMAGES, has=page.locator(".badge")).first
    number = card.get_attribute("data-number")
    card.click()
    page.wait_for_selector(f"#detail-body img[src='/api/items/{number}/preview']")
    name = page.locator("#detail-title").inner_text()
    assert name.endswith(".jpg")
    assert "/" not in name
    page.wait_for_selector(".similar-texts a")
    assert page.locator(".similar-images a img").count() == 8
    assert "% chance of a match" in page.locator(".side").inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == name
    page.locator(".similar-texts a").first.click()
    page.wait_for_selector("#detail", state="hidden")
    page.wait_for_selector(IMAGES)
    assert "item=" in page.url


def test_arrow_keys_go_through_the_results_and_escape_returns_to_the_last_one(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.locator(IMAGES).nth(1).click()
    assert position(page) == f"2 of {ITEMS}"
    page.keyboard.press("ArrowRight")
    assert position(page) == f"3 of {ITEMS}"
    for _ in range(3):  # the first result has no previous one
        page.keyboard.press("ArrowLeft")
    assert position(page) == f"1 of {ITEMS}"
    assert page.get_by_role("button", name="Previous result").is_disabled()
    page.keyboard.press("ArrowRight")
    last = page.locator(IMAGES).nth(1).get_attribute("data-number")
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()
    assert page.evaluate("document.activeElement.dataset.number") == last


def test_a_text_opens_in_full_without_interpreting_markup(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Texts").check(force=True)
    search(page, "a red boat")
    scroll_to_the_end(page)
    page.locator(TEXTS).filter(has_text=MARKUP_TEXTS[0]).click()
    assert page.locator(".full-text").inner_text() == MARKUP_TEXTS[0]
    assert page.locator("#detail img[src='x']").count() == 0
    assert "owned" not in page.title()


def test_on_a_phone_the_detail_view_fills_the_screen_with_large_controls(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    page.goto("/?q=a+boat&modality=images")
    page.locator(IMAGES).first.click()
    page.wait_for_selector(".similar-texts a")
    box = page.locator("#detail").bounding_box()
    assert box is not None
    assert (box["x"], box["y"], box["width"], box["height"]) == (0, 0, 360, 700)
    assert page.evaluate("document.querySelector('#detail').scrollWidth") <= 360
    for control in page.locator("#detail button, #detail .actions a").all():
        size = control.bounding_box()
        assert size is not None
        assert min(size["width"], size["height"]) >= 40


def test_a_missing_file_leaves_the_thumbnail_with_a_note(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(run, tmp_path / "run"))
    with ServerProcess(own, "--originals") as server:
        page = browser.new_context(base_url=server.url).new_page()
        page.route("**/api/items/*/preview", lambda route: route.fulfill(status=410, body="{}"))
        held: list[Route] = []
        page.route("**/api/about", lambda route: held.append(route))  # arrives last
        page.goto("/?q=a+boat&modality=images")
        page.locator(IMAGES).first.click()
        assert page.locator("#detail").is_hidden()
        held[0].continue_()
        page.wait_for_selector("figcaption")
        assert "thumbnail" in page.locator("figcaption").inner_text()
        assert page.locator(".frame img").get_attribute("src", timeout=5000).endswith("/thumbnail")  # type: ignore[union-attr]
        page.context.close()


def test_without_originals_the_page_requests_and_offers_no_file(
    browser: Browser, run: Path
) -> None:
    with ServerProcess(run) as server:
        page = browser.new_context(base_url=server.url).new_page()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        page.goto("/?q=a+boat&modality=images")
        page.wait_for_selector("#run:not([hidden])")
        page.locator(IMAGES).first.click()
        page.wait_for_selector(".similar-texts a")
        assert page.get_by_role("link", name="Download").count() == 0
        assert not [url for url in urls if url.endswith(("/preview", "/original"))]
        page.context.close()


def test_scrolling_adds_results_in_ranking_order(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    first = numbers(page, IMAGES)
    assert len(first) == 24
    scroll_to_the_end(page)
    everything = numbers(page, IMAGES)
    assert everything[:24] == first
    reply = page.request.get(f"/api/search/text?q=a+boat+with+sails&k={ITEMS}").json()
    assert everything == [str(hit["number"]) for hit in reply["hits"]]


def test_both_modalities_are_shown_side_by_side(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.get_by_label("Both").check(force=True)
    page.wait_for_selector(f".both {TEXTS}")
    assert "modality=both" in page.url
    left, right = (
        page.locator(f".both {selector}").first.bounding_box() for selector in (IMAGES, TEXTS)
    )
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] <= right["x"]
    page.locator(f".both {TEXTS}").nth(1).click()
    assert position(page).startswith("2 of ")
    page.keyboard.press("Escape")
    page.reload()
    page.wait_for_selector(f".both {IMAGES}")


def test_the_page_says_when_there_is_no_good_match(page: Page) -> None:
    def mark_unlikely(route: Route) -> None:
        response = route.fetch()
        reply = response.json()
        for hit in reply["hits"]:
            hit.update(relevance="unlikely", probability=0.01)
        route.fulfill(response=response, json=reply)

    page.goto("/")
    search(page, "a boat with sails")
    assert page.locator("#notice").is_hidden()
    page.route("**/api/search/**", mark_unlikely)
    search(page, "something else")
    page.wait_for_selector("#notice:not([hidden])")
    assert "No good match" in page.locator("#notice").inner_text()
    upload(page, "blue.png", image_bytes())
    page.wait_for_selector(TEXTS)
    assert page.locator("#notice").is_visible()


def test_a_run_without_calibration_shows_no_labels(
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
        assert page.locator(".card svg.strip").first.is_hidden()
        page.context.close()


def test_the_api_documentation_lists_every_route(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="API").click()
    page.wait_for_selector("details")
    routes = page.locator("details code").all_inner_texts()
    document = page.request.get("/openapi.json").json()
    assert len(routes) == sum(map(len, document["paths"].values()))
    page.locator("summary", has_text="/api/search/text").click()
    assert "integer, 1 to 200" in page.locator("details[open]").inner_text()


def test_a_detail_view_that_is_reopened_at_once_has_its_content(page: Page) -> None:
    page.goto("/?q=a+boat&modality=images")
    page.wait_for_selector(".card[data-number]")
    page.locator(".card").first.click()
    page.wait_for_selector("#detail[open]")
    children = page.evaluate(
        """async () => {
          document.getElementById("detail").close(); // the event comes in a later task
          document.querySelector(".card").click();
          await new Promise((resolve) => setTimeout(resolve, 100));
          return document.getElementById("detail-body").childElementCount;
        }"""
    )
    assert children > 0
