"""Take the screenshots of docs/service.md from a running server, and draw the preview image.

python tests/browser/screenshots.py RUN docs/images [QUERY]
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote_plus

from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from browser.conftest import CHROMIUM, FLAGS
from service.server_process import ServerProcess

WIDE, PHONE = (1280, 860), (390, 844)


def draw_preview(browser: Browser, folder: Path) -> None:
    """Draw the image that other sites show of a link to the documentation."""
    page = browser.new_page(viewport={"width": 1200, "height": 630})
    page.goto((Path(__file__).parents[2] / "docs" / "site" / "social.html").as_uri())
    page.screenshot(path=folder / "social.png")


def take_screenshots(run: Path, folder: Path, text: str) -> None:
    server = ServerProcess(run, "--originals")
    query = f"?q={quote_plus(text)}&modality=images"
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

        def save(page: Page, name: str) -> None:
            page.wait_for_timeout(800)
            page.screenshot(path=folder / f"page-{name}.png")

        save(open_page(WIDE, ""), "home")
        page = open_page(WIDE, query)
        save(page, "text")
        page.locator(".card[data-number]").first.click()
        page.wait_for_selector(".similar-texts")
        save(page, "detail")
        page.get_by_role("link", name="Find similar texts").click()
        page.wait_for_selector(".grid.texts .card[data-number]")
        page.mouse.move(5, 400)
        save(page, "item")
        page.locator("#how-open").click()
        page.wait_for_selector("#how-body svg")
        save(page, "how")
        save(open_page(WIDE, query, "dark"), "dark")
        save(open_page(PHONE, query), "phone")
        save(open_page(WIDE, query.replace("images", "both")), "both")
        draw_preview(browser, folder)
        browser.close()
    server.stop()


if __name__ == "__main__":
    text = sys.argv[3] if len(sys.argv) > 3 else "a boat on the water"
    take_screenshots(Path(sys.argv[1]), Path(sys.argv[2]), text)
