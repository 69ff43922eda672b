"""The page of a map in headless Chromium; `make test-web` runs it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bertfeat.map.page import map_page
from tests.support.chromium import opened

pytestmark = pytest.mark.web

HOSTILE = "</script><script>alert(1)</script> <img src=http://192.0.2.1/x onerror=alert(2)> \u2028 <!-- <b>spring</b>"
# The colors of the page, and how many points of the canvas have each.
COUNTS = """() => {
  const canvas = document.getElementById("map"), counts = {};
  const bytes = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < bytes.length; i += 4) {
    const color = [bytes[i], bytes[i + 1], bytes[i + 2]].join(" ");
    counts[color] = (counts[color] ?? 0) + 1;
  }
  return counts;
}"""
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of 300 points: one alone in a corner, the others around the middle."""
    rng = np.random.default_rng(0)
    places = np.concatenate([[[-8, -8]], rng.normal(size=(299, 2))]).astype(np.float32)
    columns = {
        "label": [None if n % 5 == 0 else f"<i>label {n % 3}</i>" for n in range(300)],
        "id": [f"d{n}" for n in range(300)],
        "score": [None if n == 7 else n / 10 for n in range(300)],
        "size": ["" if n % 3 else str(n) for n in range(300)],
    }
    texts = [HOSTILE, *(f"[bank] number {n}" for n in range(1, 300))]
    path = tmp_path_factory.mktemp("page") / "map.html"
    path.write_bytes(map_page(places, texts, columns, title="<b>s</b>", note="300 rows.", color="label"))
    return path.as_uri()


@pytest.fixture(params=[("light", 1000, False), ("dark", 360, True)], ids=["light", "dark-touch-360"])
def page(request: pytest.FixtureRequest, chromium: Any, address: str) -> Iterator[Any]:
    """A tab with the page; nothing may be asked for, and no script may fail."""
    scheme, width, touch = request.param
    with opened(chromium, address, width=width, height=700, scheme=scheme, touch=touch) as tab:
        found: Any = tab.page
        found.evaluate(DRAWN)
        found.scheme, found.has_touch = scheme, touch
        yield found
    assert ([url for url in tab.requests if not url.startswith("data:")], tab.errors) == ([address], [])


def drawn(page: Any) -> int:
    """Return how many pixels of the canvas are not those of the page."""
    page.evaluate(DRAWN)
    counts = page.evaluate(COUNTS)
    assert max(counts, key=counts.get) == ("20 24 28" if page.scheme == "dark" else "255 255 255")
    return int(sum(counts.values()) - max(counts.values()))


def legend_colors(page: Any) -> list[str]:
    found = page.locator("#legend i").evaluate_all("dots => dots.map(dot => getComputedStyle(dot).backgroundColor)")
    return [" ".join(re.findall(r"\d+", color)) for color in found]


def corner(page: Any) -> tuple[float, float]:
    """Return where the point in the corner is when all are shown: they fit the narrower side with a margin."""
    box = page.locator("#map").bounding_box()
    data = json.loads(page.locator("#data").text_content())
    places = [np.frombuffer(base64.b64decode(data[name]), "<f4") for name in ("x", "y")]
    unit = 1.08 * max(float(np.ptp(places[0])) / box["width"], float(np.ptp(places[1])) / box["height"])
    x, y = (float(axis[0] - (axis.min() + axis.max()) / 2) for axis in places)
    return box["x"] + box["width"] / 2 + x / unit, box["y"] + box["height"] / 2 - y / unit


def test_look_search_color_and_move(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.title() == "<b>s</b>"
    assert page.locator("#status").inner_text() == "300 rows."
    whole = drawn(page)
    assert whole > 2000
    # A hostile text is shown as it is, and makes no element.
    tip, (x, y) = page.locator("#tip"), corner(page)
    assert tip.is_hidden()
    page.touchscreen.tap(x, y) if page.has_touch else page.mouse.move(x, y)
    assert tip.evaluate("tip => tip.firstChild.data") == HOSTILE
    assert tip.locator("small").all_inner_texts() == ["label: (none)", "id: d0", "score: 0", "size: 0"]
    assert page.locator("#tip img, #tip b, #tip script, #legend b, h1 b").count() == 0
    # Colours: the most frequent values; a scale; one for each of the first eleven of many.
    legend = page.locator("#legend li")
    assert legend.all_inner_texts() == [*(f"<i>label {n}</i> (80)" for n in (1, 2, 0)), "(none) (60)"]
    assert set(legend_colors(page)) <= page.evaluate(COUNTS).keys()
    page.locator("#color").select_option("score")
    assert legend.all_inner_texts() == ["0", "14.95", "29.9", "no number (1)"]
    page.locator("#color").select_option("id")
    assert legend.all_inner_texts()[-1] == "289 others (289)"
    page.locator("#color").select_option("")
    assert legend.count() == 0
    # Search: the others fade, and Enter goes from hit to hit.
    page.locator("#search").fill("NUMBER 29")
    page.get_by_text("11 of 300 points contain “NUMBER 29”", exact=True).wait_for()
    drawn(page)
    for n, text in ((1, "29"), (2, "290")):
        page.keyboard.press("Enter")
        assert page.locator("#status").inner_text() == f"Hit {n} of 11: [bank] number {text}"
        assert tip.inner_text().startswith(f"[bank] number {text}")
    # Enter right after a change of the text goes to the hits of the new text.
    page.locator("#search").evaluate(
        """box => { box.value = "number 7"; box.dispatchEvent(new Event("input")); box.form.requestSubmit(); }"""
    )
    assert page.locator("#status").inner_text() == "Hit 1 of 11: [bank] number 7"
    page.locator("#reset").click()
    assert page.locator("#status").inner_text() == "300 rows."
    # Keys.
    page.locator("#map").focus()
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    assert drawn(page) == 0
    page.keyboard.press("0")
    assert abs(drawn(page) - whole) < whole / 20
    page.keyboard.press("+")
    assert tip.is_hidden()
