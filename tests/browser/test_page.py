"""The page in a real browser: what a person does, and what they must never see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.server_process import ServerProcess
from service.small_run import ITEMS, MARKUP_TEXTS, image_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser
# With a number: the grey cards that stand in for a slow answer have none.
IMAGES = ".grid.images .card[data-number]"
TEXTS = ".grid.texts .card[data-number]"


def search(page: Page, text: str) -> None:
    page.get_by_role("searchbox").fill(text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".card[data-number]")


def go_on(page: Page, results: str, to: str) -> None:
    """Open the first result and search on from it."""
    page.locator(results).first.click()
    page.get_by_role("link", name=f"Find {to} like this").click()
    page.wait_for_selector(IMAGES if to == "pictures" else TEXTS)
    assert page.locator("#large").is_hidden()


def scroll_to_the_end(page: Page) -> None:
    while page.locator("#more").is_visible():
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(50)


def upload(page: Page, name: str, data: bytes, kind: str = "image/png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": data})


def paint(page: Page, path: Path) -> Path:
    """A screenshot with the pictures in view there. (A wait_for_function would need eval.)"""
    seen = "[...document.images].every(i => i.naturalWidth || i.loading === 'lazy')"
    while not page.evaluate(seen):
        page.wait_for_timeout(50)
    page.screenshot(path=path)
    return path


def test_the_first_visit_shows_examples(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    page.wait_for_selector("#examples a")
    assert page.locator("#examples a").count() >= 6
    assert f"{ITEMS} pictures" in page.locator("#run").inner_text()
    paint(page, tmp_path / "home.png")


def test_a_sentence_finds_pictures(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    assert page.locator(IMAGES).count() == 24
    first = page.locator(".card").first
    assert first.locator(".badge").inner_text() in ("likely", "possible", "unlikely")
    assert first.locator("svg.strip").is_hidden()
    page.get_by_label("Show bits").check()
    assert first.locator("svg.strip path").count() >= 1
    assert "bits" in first.inner_text() or "same code" in first.inner_text()
    while not page.evaluate("document.querySelector('.card img').naturalWidth"):
        page.wait_for_timeout(50)
    status = page.locator("#status").inner_text()
    assert f"{ITEMS} pictures nearest of {ITEMS}" in status
    assert " ms" in status
    assert "modality=images" in page.url
    paint(page, tmp_path / "text.png")


def test_the_switch_turns_the_same_sentence_to_texts(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    page.get_by_label("Texts").check(force=True)
    page.wait_for_selector(TEXTS)
    assert "modality=texts" in page.url
    assert page.get_by_role("searchbox").input_value() == "a boat with sails"


def test_the_order_can_be_chosen_and_stands_in_the_address(page: Page) -> None:
    def distances() -> list[int]:
        facts = page.locator(".card .distance").all_text_contents()
        return [0 if fact == "same code" else int(fact.split(" ")[0]) for fact in facts]

    def cards() -> list[str | None]:
        return [card.get_attribute("data-number") for card in page.locator(IMAGES).all()]

    page.goto("/")
    assert page.get_by_label("Order").is_hidden()
    search(page, "a boat with sails")
    assert page.get_by_label("Order").input_value() == "weighted"
    assert "ranking=" not in page.url
    finer = cards()
    with page.expect_response(lambda reply: "ranking=hamming" in reply.url):
        page.get_by_label("Order").select_option("hamming")
    while cards() == finer:
        page.wait_for_timeout(50)
    assert "ranking=hamming" in page.url
    assert distances() == sorted(distances())
    page.reload()
    page.wait_for_selector(IMAGES)
    assert page.get_by_label("Order").input_value() == "hamming"
    go_on(page, IMAGES, "texts")  # an item has bits only: nothing to choose
    assert page.get_by_label("Order").is_hidden()


def test_an_uploaded_picture_finds_texts(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    upload(page, "blue.png", image_bytes())
    page.wait_for_selector(TEXTS)
    assert (page.locator("#query img").get_attribute("src") or "").startswith("blob:")
    paint(page, tmp_path / "upload.png")


def test_a_dropped_picture_is_searched_with(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector("#examples a")
    page.evaluate(
        """async () => {
          const canvas = document.createElement("canvas");
          canvas.width = canvas.height = 40;
          const blob = await new Promise((done) => canvas.toBlob(done));
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


def test_one_goes_on_from_results_and_back_comes_back(page: Page) -> None:
    page.goto("/")
    search(page, "a boat with sails")
    go_on(page, IMAGES, "texts")
    assert "item=" in page.url
    assert page.locator("#query img").is_visible()
    go_on(page, TEXTS, "pictures")
    assert page.locator("#trail a").count() == 2
    page.go_back()
    page.wait_for_selector(TEXTS)
    page.locator("#trail a").first.click()
    page.wait_for_selector(IMAGES)
    assert page.get_by_role("searchbox").input_value() == "a boat with sails"
    page.reload()
    page.wait_for_selector(IMAGES)


def test_a_result_opens_in_its_own_tab_like_any_link(page: Page) -> None:
    page.goto("/")
    search(page, "a cat")
    href = page.locator(".card").first.get_attribute("href")
    assert href is not None
    page.goto(href)
    page.wait_for_selector(TEXTS)


@pytest.mark.parametrize(
    ("name", "data"),
    [("notes.png", b"these are no pixels"), ("cut.png", image_bytes("PNG", (300, 300))[:200])],
)
def test_a_bad_upload_is_explained_and_the_page_goes_on(
    page: Page, tmp_path: Path, name: str, data: bytes
) -> None:
    page.goto("/")
    upload(page, name, data)
    box = page.locator(".message")
    box.wait_for()
    assert "cannot be searched with" in box.inner_text()
    assert "image" in box.locator("p").inner_text().lower()
    paint(page, tmp_path / "bad.png")
    search(page, "a fish")
    assert page.locator(IMAGES).count() == 24


def test_texts_with_markup_are_shown_as_text(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Texts").check(force=True)
    search(page, MARKUP_TEXTS[1])
    scroll_to_the_end(page)
    shown = page.locator(".card .words").all_inner_texts()
    for text in MARKUP_TEXTS:
        assert " ".join(text.split()) in [" ".join(one.split()) for one in shown]
    assert page.locator(".card script, .card h1, .card img[src='x']").count() == 0
    assert "owned" not in page.title().replace(MARKUP_TEXTS[1][:49], "")


def test_the_browser_itself_forbids_markup_from_strings(
    page: Page, expected_errors: list[str]
) -> None:
    expected_errors.append("This document requires 'TrustedHTML'")
    page.goto("/")
    refused = page.evaluate(
        """() => {
          try { document.body.innerHTML = "<b>x</b>"; return false; } catch { return true; }
        }"""
    )
    assert refused


def test_words_the_model_never_saw_are_pointed_out(page: Page) -> None:
    page.goto("/")
    search(page, "xyzzy plugh")
    assert "knows none of these words" in page.locator("#query").inner_text()
    search(page, "boat xyzzy plugh")
    page.get_by_text("It does not know, and leaves out: xyzzy, plugh").wait_for()
    assert "Words the model knows: boat" in page.locator("#query").inner_text()


def test_a_narrow_screen_needs_no_sideways_scrolling(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    for path in ("/", "/?q=a+boat&modality=images", "/?q=a+boat&modality=texts"):
        page.goto(path)
        page.wait_for_selector("#examples a, .card[data-number]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        paint(page, tmp_path / f"narrow-{len(path)}.png")
    page.locator("#how-open").click()
    page.wait_for_selector("#how-body table")
    assert page.evaluate("document.querySelector('#how').scrollWidth") <= 320


def test_how_it_works_draws_the_map_and_the_table(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    page.get_by_role("button", name="How it works").click()
    page.wait_for_selector("#how-body table")
    assert page.locator("#how-body svg[role=img] circle").count() > 50
    assert "0.410" in page.locator("#how-body table").inner_text()
    paint(page, tmp_path / "how.png")
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
    page.wait_for_selector("#large[open]")
    page.keyboard.press("Escape")
    assert page.locator("#large").is_hidden()
    assert page.evaluate("document.activeElement === document.querySelector('.card')")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Find texts like this").focus()
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


def test_a_service_that_goes_away_and_comes_back_is_waited_for(
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
    assert "does not answer" in page.locator(".message").inner_text()
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


def test_a_slow_answer_shows_that_something_happens(page: Page) -> None:
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


def test_the_whole_never_takes_less_than_the_search(page: Page) -> None:
    def tell_an_old_time(route: Route) -> None:
        found = route.fetch()
        assert found.headers["cache-control"] == "no-store"
        route.fulfill(response=found, json={**found.json(), "took_ms": 123456})

    page.route("**/api/search/text*", tell_an_old_time)
    page.goto("/")
    search(page, "a boat with sails")
    status = page.locator("#status").inner_text()
    assert "123456 ms to search, 123456 ms in all" in status
