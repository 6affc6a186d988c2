"""The pictures of docs/service.md, taken from the running product.

python tests/browser/screenshots.py RUN docs/images [SENTENCE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote_plus

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from browser.conftest import CHROMIUM, FLAGS
from service.server_process import ServerProcess

WIDE, PHONE = (1280, 860), (390, 844)


def take(run: Path, folder: Path, sentence: str) -> None:
    server = ServerProcess(run, "--originals")
    query = f"?q={quote_plus(sentence)}&modality=images"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def open_page(size: tuple[int, int], path: str, scheme: str = "light") -> Page:
            context = browser.new_context(
                base_url=server.url,
                viewport={"width": size[0], "height": size[1]},
                color_scheme=scheme,  # type: ignore[arg-type]
                device_scale_factor=2 if size == PHONE else 1,
            )
            page = context.new_page()
            page.goto(path)
            page.wait_for_selector(".card[data-number], #examples img")
            return page

        def shoot(page: Page, name: str) -> None:
            page.wait_for_timeout(800)
            page.screenshot(path=folder / f"page-{name}.png")

        shoot(open_page(WIDE, ""), "home")
        page = open_page(WIDE, query)
        shoot(page, "text")
        page.locator(".card[data-number]").first.click()
        page.wait_for_selector(".near-texts")
        shoot(page, "large")
        page.get_by_role("link", name="Find texts like this").click()
        page.wait_for_selector(".grid.texts .card[data-number]")
        page.mouse.move(5, 400)
        shoot(page, "item")
        page.locator("#how-open").click()
        page.wait_for_selector("#how-body svg")
        shoot(page, "how")
        shoot(open_page(WIDE, query, "dark"), "dark")
        page = open_page(PHONE, query)
        shoot(page, "phone")
        page.locator(".card[data-number]").first.click()
        page.wait_for_selector(".near-texts")
        shoot(page, "phone-large")
        shoot(open_page(WIDE, query.replace("images", "both")), "both")
        browser.close()
    server.stop()


if __name__ == "__main__":
    words = sys.argv[3] if len(sys.argv) > 3 else "a boat on the water"
    take(Path(sys.argv[1]), Path(sys.argv[2]), words)
