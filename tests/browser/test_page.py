"""The search page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.server_process import ServerProcess
from service.small_run import ITEMS, MARKUP_TEXTS, image_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser
# With a number, unlike the placeholders of a slow search.
IMAGES = ".grid.images .card[data-number]"
TEXTS = ".grid.texts .card[data-number]"


def search(page: Page, text: str) -> None:
    page.get_by_role("searchbox").fill(text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".card[data-number]")


def find_similar(page: Page, results: str, modality: str) -> None:
    """Open the first result and search by it."""
    page.locator(results).first.click()
    page.get_by_role("link", name=f"Find similar {modality}").click()
    page.wait_for_selector(IMAGES if modality == "images" else TEXTS)
    assert page.locator("#detail").is_hidden()


def scroll_to_the_end(page: Page) -> None:
    while page.locator("#more").is_visible():
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(50)


def upload(page: Page, name: str, data: bytes, kind: str = "image/png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": data})


def screenshot(page: Page, path: Path) -> None:
    """Save a screenshot once its images are loaded. (wait_for_function would need eval.)"""
    loaded = "[...document.images].every(i => i.naturalWidth || i.loading === 'lazy')"
    while not page.evaluate(loaded):
        page.wait_for_timeout(50)
    page.screenshot(path=path)


def test_the_first_visit_shows_examples(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    page.wait_for_selector("#examples a")
    assert page.locator("#examples a").count() >= 6
    assert page.locator("#run").inner_text().startswith(f"{ITEMS} images · ")
    screenshot(page, tmp_path / "home.png")


def test_a_text_finds_images_and_codes_are_shown_on_request(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    assert page.locator(IMAGES).count() == 24
    first = page.locator(".card").first
    assert page.locator(".card .badge").first.inner_text() in ("likely", "possible", "unlikely")
    assert first.locator("svg.strip").is_hidden()
    assert " bits" not in page.locator("body").inner_text()
    page.get_by_text("Details", exact=True).first.click()
    facts = page.locator("#search-facts").inner_text()
    assert "CVH, 16 bits" in facts
    assert " ms to search" in facts
    assert "words used: boat" in facts
    page.get_by_label("Show codes").check()
    assert first.locator("svg.strip").is_visible()
    assert "bits" in first.inner_text() or "same code" in first.inner_text()
    while not page.evaluate("document.querySelector('.card img').naturalWidth"):
        page.wait_for_timeout(50)
    assert f"{ITEMS} images" in page.locator("#status").inner_text()
    assert "modality=images" in page.url
    screenshot(page, tmp_path / "text.png")


def test_the_switch_searches_texts_by_the_same_query(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.get_by_label("Texts").check(force=True)
    page.wait_for_selector(TEXTS)
    assert "modality=texts" in page.url
    assert page.get_by_role("searchbox").input_value() == "a boat with sails"


def test_the_ranking_can_be_chosen_and_is_in_the_address(page: Page) -> None:
    def distances() -> list[int]:
        facts = page.locator(".card .distance").all_text_contents()
        return [0 if fact == "same code" else int(fact.split(" ")[0]) for fact in facts]

    def cards() -> list[str | None]:
        return [card.get_attribute("data-number") for card in page.locator(IMAGES).all()]

    page.goto("/")
    assert page.get_by_text("Details", exact=True).first.is_hidden()
    page.goto("/?q=a+boat+with+sails&modality=images&search=codes")  # words would count as well
    page.wait_for_selector(IMAGES)
    page.get_by_text("Details", exact=True).first.click()
    assert page.get_by_label("Ranking").input_value() == "weighted"
    assert "ranking=" not in page.url
    weighted = cards()
    with page.expect_response(lambda reply: "ranking=hamming" in reply.url):
        page.get_by_label("Ranking").select_option("hamming")
    while cards() == weighted:
        page.wait_for_timeout(50)
    assert "ranking=hamming" in page.url
    assert distances() == sorted(distances())
    page.reload()
    page.wait_for_selector(IMAGES)
    assert page.get_by_label("Ranking").input_value() == "hamming"
    find_similar(page, IMAGES, "texts")  # items are always ranked by Hamming distance
    assert page.get_by_label("Ranking").is_hidden()


def test_an_uploaded_image_finds_texts(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    upload(page, "blue.png", image_bytes())
    page.wait_for_selector(TEXTS)
    assert (page.locator("#query img").get_attribute("src") or "").startswith("blob:")
    screenshot(page, tmp_path / "upload.png")


def test_a_dropped_image_finds_texts(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector("#examples a")
    page.evaluate(
        """async () => {
          const canvas = document.createElement("canvas");
          canvas.width = canvas.height = 40;
          const blob = await new Promise((resolve) => canvas.toBlob(resolve));
          const data = new DataTransfer();
          data.items.add(new File([blob], "a.png", { type: "image/png" }));
          for (const kind of ["dragenter", "dragover", "drop"]) {
            const event = new DragEvent(kind, { dataTransfer: data, bubbles: true });
            document.body.dispatchEvent(event);
          }
        }"""
    )
    page.wait_for_selector(TEXTS)
    assert page.locator("#drop").is_hidden()


def test_searching_by_results_and_going_back(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    find_similar(page, IMAGES, "texts")
    assert "item=" in page.url
    assert page.locator("#query img").is_visible()
    find_similar(page, TEXTS, "images")
    assert page.locator("#trail a").count() == 2
    page.go_back()
    page.wait_for_selector(TEXTS)
    page.locator("#trail a").first.click()
    page.wait_for_selector(IMAGES)
    assert page.get_by_role("searchbox").input_value() == "a boat with sails"
    page.reload()
    page.wait_for_selector(IMAGES)


def test_the_link_of_a_result_can_be_opened_directly(page: Page) -> None:
    page.goto("/")
    search(page, "a cat")
    href = page.locator(".card").first.get_attribute("href")
    assert href is not None
    page.goto(href)
    page.wait_for_selector(TEXTS)


@pytest.mark.parametrize(
    ("name", "data"),
    [("notes.png", b"this is not an image"), ("cut.png", image_bytes("PNG", (300, 300))[:200])],
)
def test_an_invalid_upload_is_explained_and_the_page_still_works(
    page: Page, tmp_path: Path, name: str, data: bytes
) -> None:
    page.goto("/")
    upload(page, name, data)
    box = page.locator(".message")
    box.wait_for()
    assert "cannot be used" in box.inner_text()
    assert "image" in box.locator("p").inner_text().lower()
    screenshot(page, tmp_path / "bad.png")
    search(page, "a fish")
    assert page.locator(IMAGES).count() == 24


def test_texts_with_markup_are_shown_as_text(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Texts").check(force=True)
    search(page, MARKUP_TEXTS[1])
    scroll_to_the_end(page)
    shown = page.locator(".card .text").all_inner_texts()
    for text in MARKUP_TEXTS:
        assert " ".join(text.split()) in [" ".join(one.split()) for one in shown]
    assert page.locator(".card script, .card h1, .card img[src='x']").count() == 0
    assert "owned" not in page.title().replace(MARKUP_TEXTS[1][:49], "")


def test_the_browser_refuses_markup_from_strings(page: Page, expected_errors: list[str]) -> None:
    expected_errors.append("This document requires 'TrustedHTML'")
    page.goto("/")
    refused = page.evaluate(
        """() => {
          try { document.body.innerHTML = "<b>x</b>"; return false; } catch { return true; }
        }"""
    )
    assert refused


def test_ignored_words_are_listed_without_stop_words(page: Page) -> None:
    page.goto("/")
    search(page, "xyzzy plugh")
    assert "No query word is known" in page.locator("#query").inner_text()
    search(page, "where is their boat of xyzzy plugh")
    page.get_by_text("Ignored words: xyzzy, plugh", exact=True).wait_for()
    search(page, "a boat")
    page.locator("#query").wait_for(state="hidden")


def test_a_narrow_screen_needs_no_sideways_scrolling(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    for path in ("/", "/?q=a+boat&modality=images", "/?q=a+boat&modality=texts"):
        page.goto(path)
        page.wait_for_selector("#examples a, .card[data-number]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        screenshot(page, tmp_path / f"narrow-{len(path)}.png")
    page.locator("#how-open").click()
    page.wait_for_selector("#how-body table")
    assert page.evaluate("document.querySelector('#how').scrollWidth") <= 320


def test_how_it_works_shows_the_map_and_the_results(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    page.get_by_role("button", name="How it works").click()
    page.wait_for_selector("#how-body table")
    assert page.locator("#how-body svg[role=img] circle").count() > 50
    assert "0.410" in page.locator("#how-body table").inner_text()
    screenshot(page, tmp_path / "how.png")
    page.keyboard.press("Escape")
    assert page.locator("#how").is_hidden()


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector("#examples a")
    page.keyboard.press("/")
    page.keyboard.type("a cat")
    page.keyboard.press("Enter")
    page.wait_for_selector(IMAGES)
    page.evaluate("document.querySelector('.card').focus()")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail[open]")
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()
    assert page.evaluate("document.activeElement === document.querySelector('.card')")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Find similar texts").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(TEXTS)
    while page.evaluate("document.activeElement.id") != "results":
        page.wait_for_timeout(20)


def test_every_control_has_a_name(page: Page) -> None:
    page.goto("/?q=a+boat&modality=images")
    page.wait_for_selector(".card[data-number]")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input:not([type=file])")].filter(
          (node) => !(node.innerText || node.ariaLabel || node.labels?.length ||
            node.querySelector("img[alt]:not([alt=''])"))).map((node) => node.outerHTML)"""
    )
    assert nameless == []
    assert page.evaluate("[...document.images].every((i) => i.hasAttribute('alt'))")


def test_the_page_reconnects_to_a_restarted_server(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    server = ServerProcess(run)
    context = browser.new_context(base_url=server.url, color_scheme="dark")
    page = context.new_page()
    page.goto("/")
    search(page, "a boat")
    server.stop()
    page.get_by_role("searchbox").fill("a cat")
    page.keyboard.press("Enter")
    page.locator(".message").wait_for()
    assert "not responding" in page.locator(".message").inner_text()
    assert page.locator("#banner").is_visible()
    page.screenshot(path=tmp_path / "offline.png")
    server.start()
    try:
        page.wait_for_selector(".card[data-number]", timeout=60_000)
        assert page.locator("#banner").is_hidden()
        assert "a%20cat" in page.url.replace("+", "%20")
    finally:
        context.close()
        server.stop()


def test_a_slow_search_shows_placeholders(page: Page) -> None:
    held: list[Route] = []
    page.goto("/")
    page.route("**/api/search/text*", lambda route: held.append(route))
    page.get_by_role("searchbox").fill("a tree")
    page.keyboard.press("Enter")
    page.wait_for_selector(".skeleton")
    assert page.locator("#results").get_attribute("aria-busy") == "true"
    assert page.locator("#status").inner_text() == "Searching…"
    held[0].continue_()
    page.wait_for_selector(IMAGES)
    assert page.locator("#results").get_attribute("aria-busy") is None


def test_the_total_time_is_never_less_than_the_search_time(page: Page) -> None:
    def report_long_search(route: Route) -> None:
        response = route.fetch()
        assert response.headers["cache-control"] == "no-store"
        route.fulfill(response=response, json={**response.json(), "took_ms": 123456})

    page.route("**/api/search/text*", report_long_search)
    page.goto("/")
    search(page, "a boat with sails")
    facts = page.locator("#search-facts").text_content() or ""
    assert "123456 ms to search, 123456 ms in total" in facts


@pytest.mark.parametrize(
    ("by_image", "health", "text"),
    [
        (True, {"image_model_loaded": False}, "Loading the model"),
        (True, {"image_model_loaded": True}, "longer than usual"),
        (False, {"image_model_loaded": False}, "longer than usual"),
        (False, None, "slow to respond"),
    ],
)
def test_a_long_wait_is_explained(
    page: Page, by_image: bool, health: dict[str, bool] | None, text: str
) -> None:
    page.goto("/")
    page.wait_for_selector("#examples a")
    page.route("**/api/search/**", lambda route: None)  # no reply
    page.route("**/health", lambda route: route.fulfill(json=health) if health else None)
    if by_image:
        upload(page, "blue.png", image_bytes())
    else:
        page.get_by_role("searchbox").fill("a tree")
        page.keyboard.press("Enter")
    page.locator("#status", has_text=text).wait_for()


def test_the_map_is_explained_where_a_distance_grew(page: Page) -> None:
    def add_alignment(route: Route) -> None:
        response = route.fetch()
        reply = response.json()
        reply["report"]["alignment"] = {
            "images": {"before": 0.3, "after": 0.1},
            "texts": {"before": 0.02, "after": 0.04},
        }
        route.fulfill(response=response, json=reply)

    page.route("**/api/diagnostics", add_alignment)
    page.goto("/")
    page.get_by_role("button", name="How it works").click()
    page.wait_for_selector("#how-body .distances")
    distances = page.locator("#how-body .distances").inner_text()
    assert "images 0.300 → 0.100, texts 0.020 → 0.040" in distances
    assert "It grew for texts" in distances
