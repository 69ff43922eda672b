"""Headless Chromium for tests and screenshots: tabs that record what they ask for and what fails in them."""

from __future__ import annotations

import contextlib
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

from tests.support.places import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# Without the last flags Chromium looks for updates by itself.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_CHECKS = Path(__file__).with_name("readable.js")
# The beginning of the element that has the focus, empty after the last one, and whether the focus is seen.
_FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one), had = window.hadFocus ??= new Set([document.body]);
  const isSeen = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
  const isNew = !had.has(one);
  had.add(one);
  return [isNew ? one.outerHTML.slice(0, 80) : "", isSeen];
}"""


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
        """Press Tab through the whole page, and return the elements whose focus has no outline and no shadow."""
        unseen = []
        self.page.evaluate("document.activeElement.blur()")
        while True:
            self.page.keyboard.press("Tab")
            name, is_seen = self.page.evaluate(_FOCUSED)
            if not name:
                return unseen
            if not is_seen:
                unseen.append(f"focus is not seen: {name}")


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
