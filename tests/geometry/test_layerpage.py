"""The page of layers in headless Chromium: no request, no error, no wider than a telephone; `make test-web` runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bertfeat
from tests.serving.test_browser import CHROMIUM, FLAGS
from tests.support.vector_files import write_npy


@pytest.mark.web
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_page_is_readable_and_loads_nothing(tmp_path: Path, scheme: str, width: int) -> None:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    word = "<img src=http://192.0.2.1/x onerror=alert(1)>" + "long" * 40
    rows = {"doc_id": [n // 5 for n in range(60)], "word_index": [n % 5 for n in range(60)]}
    pl.DataFrame({**rows, "word": [word, "a", "b", "c", "d"] * 12}).write_ndjson(tmp_path / "ids.jsonl")
    # As many layers as a large model has, in two stores.
    vectors = write_npy(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(60, 25, 6)))
    for name in ("one", "two"):
        bertfeat.import_vectors(vectors, tmp_path / name, level="word", ids=tmp_path / "ids.jsonl")
    bertfeat.compare_layers(tmp_path / "one", tmp_path / "two").write(tmp_path / "out")
    page = (tmp_path / "out" / "layers.html").as_uri()
    seen: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})  # type: ignore[arg-type]
        tab.on("request", lambda found: seen.append(found.url))
        tab.on("pageerror", lambda error: seen.append(str(error)))
        tab.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
        tab.on("console", lambda said: seen.append(said.text))
        tab.goto(page)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert tab.locator("svg").count() == 15
        # Names of layers, at the left of a matrix, stay inside the drawing and do not cover each other.
        boxes = [text.bounding_box() for text in tab.locator("section.wide svg").first.locator("text").all()]
        assert len(boxes) > 12
        assert all(box is not None and box["x"] >= 0 for box in boxes)
        tops = sorted(box["y"] for box in boxes if box is not None)
        assert min(np.diff(tops)) > 8
        browser.close()
    assert [one for one in seen if one not in (page, "data:,")] == []
