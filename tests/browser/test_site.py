"""The documentation site: no code and no page is wider than a screen. Needs `make docs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
SITE = Path(__file__).parents[2] / "build" / "site"
# Wide tables scroll inside their own frame.
TOO_WIDE = """() => [
    ...(document.documentElement.scrollWidth > window.innerWidth ? ["page"] : []),
    ...[...document.querySelectorAll("pre, pre > code")]
        .filter(block => block.scrollWidth > block.clientWidth + 1)
        .map(block => block.innerText.slice(0, 80)),
]"""


@pytest.mark.skipif(not SITE.exists(), reason="the site is not built: make docs")
@pytest.mark.parametrize("width", [1280, 390])
def test_code_and_pages_fit_the_screen(browser: Browser, width: int) -> None:
    pages = sorted(SITE.glob("*.html"))
    assert len(pages) > 30
    page = browser.new_page(viewport={"width": width, "height": 800})
    too_wide = {}
    for path in pages:
        page.goto(path.as_uri())
        if parts := page.evaluate(TOO_WIDE):
            too_wide[path.stem] = parts
    page.close()
    assert too_wide == {}
