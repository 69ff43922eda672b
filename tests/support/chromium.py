"""Headless Chromium for tests and screenshots: tabs that record what they ask for and what fails in them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.places import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# Without the last flags Chromium looks for updates by itself.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_CHECKS = Path(__file__).with_name("readable.js")
# An outline of 2 px lies up to 2 px outside its element.
_AROUND = 6


@dataclass(slots=True)
class Tab:
    """A tab, the addresses that it asked for, and the errors of its scripts, its console and its dialogs."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def picture(self, path: str | Path) -> None:
        """Write a PNG of what is seen."""
        self.page.screenshot(path=str(path))

    def unreadable(self) -> list[str]:
        """Return what cannot be read: see readable.js."""
        found: list[str] = self.page.evaluate(_CHECKS.read_text("utf-8"))
        return found

    def unseen_focus(self) -> list[str]:
        """Press Tab through the whole page, and return the elements whose focus is not seen.

        It is seen if pixels in or around the element change by a contrast of 3:1 (WCAG 2.2, 2.4.13), as many as half
        of its outline has.
        """
        page, unseen, seen = self.page, [], set()
        page.evaluate("document.activeElement.blur()")
        while True:
            page.keyboard.press("Tab")
            focused = page.evaluate_handle("document.activeElement")
            box: Any = focused.as_element().bounding_box()
            name = page.evaluate("one => one === document.body ? '' : one.outerHTML.slice(0, 80)", focused)
            place = (name, *box.values()) if box else name
            if not name or place in seen:
                return unseen
            seen.add(place)
            changed, outline = self._changed_by_focus(focused, box)
            if changed < outline / 2:
                unseen.append(f"focus is not seen: {name}")

    def _changed_by_focus(self, element: Any, box: FloatRect) -> tuple[int, float]:
        """Return the number of pixels that a focus changes, and the length of the element's outline on the screen."""
        size = self.page.viewport_size
        assert size is not None
        left, top = max(0, box["x"] - _AROUND), max(0, box["y"] - _AROUND)
        right = min(size["width"], box["x"] + box["width"] + _AROUND)
        bottom = min(size["height"], box["y"] + box["height"] + _AROUND)
        clip: FloatRect = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        with_focus = luminance(_pixels(self.page.screenshot(clip=clip)))
        element.evaluate("one => one.blur()")
        without = luminance(_pixels(self.page.screenshot(clip=clip)))
        element.evaluate("one => one.focus({focusVisible: true, preventScroll: true})")
        return int((contrast(with_focus, without) >= 3).sum()), 2 * (
            right - left - 2 * _AROUND + bottom - top - 2 * _AROUND
        )


def luminance(colours: np.ndarray) -> np.ndarray:
    """Return the relative luminance of colours of 0 to 255, (..., 3), as float64 (...) (WCAG 2.2)."""
    shares = colours / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def contrast(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the contrast of two luminances, from 1 to 21 (WCAG 2.2)."""
    return (np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)


def _pixels(png: bytes) -> np.ndarray:
    """Return the colours of a picture, uint8 (height, width, 3)."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """Start Chromium, which must be installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(
    browser: Browser,
    address: str | Path | None = None,
    *,
    width: int = 1000,
    height: int = 800,
    scheme: Any = "light",
    touch: bool = False,
    scripts: bool = True,
) -> Iterator[Tab]:
    """Open an HTML file or an address in a tab of its own, without the cookies and storage of other tabs."""
    context = browser.new_context(
        color_scheme=scheme,
        viewport={"width": width, "height": height},
        has_touch=touch,
        is_mobile=touch,
        java_script_enabled=scripts,
    )
    tab = Tab(context.new_page())
    tab.page.on("request", lambda asked: tab.requests.append(asked.url))
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("dialog", lambda dialog: (tab.errors.append(dialog.message), dialog.dismiss()))
    tab.page.on("console", lambda said: tab.errors.append(said.text) if said.type == "error" else None)
    if address is not None:
        tab.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    yield tab
    context.close()


@contextlib.contextmanager
def served(index: Path) -> Iterator[str]:
    """Run `bertfeat serve INDEX` on a free port, and give its address; in the end it must stop cleanly at Ctrl-C."""
    command = [sys.executable, "-m", "bertfeat", "serve", str(index), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield next(found[0] for line in process.stdout if (found := re.match(r"http://\S+", line)))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
