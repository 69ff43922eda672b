"""Screenshots of the pages that docs/gallery.md makes, for all of docs/, in headless Chromium: `make screenshots`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

from docs.gallery import HERE, run_gallery
from tests.support.chromium import launched, opened, served

OUT = HERE / "screenshots"
# Enough for our pages, and a quarter of the bytes.
_N_COLOURS = 128


def point(page: Page) -> None:
    """Show the text of the point in the middle of a map."""
    page.wait_for_load_state("networkidle")
    box = page.locator("#map").bounding_box()
    assert box is not None
    for way in range(0, 100, 5):
        page.mouse.move(box["x"] + box["width"] / 2 + way, box["y"] + box["height"] / 2)
        if page.locator("#tip").is_visible():
            return


def search(page: Page) -> None:
    """Ask the search page as a user does, with a filter."""
    page.locator("#q").fill("a funny and touching film")
    page.locator("summary").click()
    page.locator("select[name='f.label']").select_option("positive")
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector(".hits li")


def take(browser: Browser, name: str, address: str | Path, use: Callable[[Page], None] | None = None) -> None:
    """Write NAME.png, wide and light, and NAME-narrow.png, dark and 360 pixels wide."""
    for end, width, scheme in (("", 1000, "light"), ("-narrow", 360, "dark")):
        path = OUT / f"{name}{end}.png"
        with opened(browser, address, width=width, height=800, scheme=scheme) as tab:
            if use:
                use(tab.page)
            tab.picture(path)
        with Image.open(path) as image:
            image.convert("RGB").quantize(_N_COLOURS).save(path, optimize=True)


def main() -> None:
    """Run the gallery's blocks in a temporary folder, and take all pictures."""
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run_gallery(folder)
        with launched() as browser, served(folder / "reviews.index") as address:
            take(browser, "layers", folder / "geometry" / "layers.html")
            take(browser, "audit", folder / "reviews-audit" / "audit.html")
            take(browser, "map", folder / "map.html", point)
            take(browser, "serve", address, search)


if __name__ == "__main__":
    main()
