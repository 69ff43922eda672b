"""The documentation, built and opened as files in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chromium import launched, opened
from tests.support.places import ROOT

pytestmark = pytest.mark.web


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without its pictures, which take a minute to draw."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    hooks = [str(ROOT / "docs" / "settingtables.py")]
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), hooks=hooks, strict=False))
    return folder


def test_search_works_in_pages_that_are_opened_as_files(site: Path) -> None:
    with launched() as browser, opened(browser, site / "index.html", width=1300) as tab:
        tab.page.locator(".md-search__input").click()
        tab.page.keyboard.type("append")
        tab.page.locator("a.md-search-result__link[href*='growing.html']").first.wait_for()
        assert not [asked for asked in tab.requests if not asked.startswith(("file:", "blob:", "data:"))]
