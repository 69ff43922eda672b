"""Time of the page of a map of 100,000 points in headless Chromium: until it is drawn, and for each step of a view.

`python -m benchmarks.map_page` needs playwright and Chromium. A step sends an event and waits for the next two frames,
as does a step of `rest`, which sends none and so takes as long as two frames.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from bertfeat.map.page import map_page

_N_POINTS, _N_GROUPS, _N_STEPS = 100_000, 14, 60
_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
_STEPS = """async ([kind, n]) => {
  const map = document.getElementById("map"), box = map.getBoundingClientRect(), times = [];
  const at = i => ({bubbles: true, cancelable: true, clientX: box.left + 300 + 8 * (i % 20), clientY: box.top + 200});
  const events = {
    wheel: i => new WheelEvent("wheel", {...at(0), deltaY: i % 20 < 10 ? -60 : 60}),
    move: i => new KeyboardEvent("keydown", {key: i % 20 < 10 ? "ArrowLeft" : "ArrowRight"}),
    hover: i => new PointerEvent("pointermove", {...at(i), pointerType: "mouse"}),
  };
  for (let i = 0; i < n; i++) {
    const begun = performance.now();
    if (kind in events) map.dispatchEvent(events[kind](i));
    times.push(await FRAMES - begun);
  }
  return times;
}""".replace("FRAMES", _FRAMES)


def main() -> None:
    """Print the measurements as JSON."""
    rng = np.random.default_rng(0)
    groups = rng.integers(_N_GROUPS, size=_N_POINTS)
    places = 8 * rng.normal(size=(_N_GROUPS, 2))[groups] + rng.normal(size=(_N_POINTS, 2))
    texts = [f"a text of about sixty characters, number {n}" for n in range(_N_POINTS)]
    columns = {"doc_id": range(_N_POINTS), "group": [f"group {group}" for group in groups]}
    page = map_page(places.astype(np.float32), texts, columns, title="points", color="group")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "map.html"
        path.write_bytes(page)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1000, "height": 700})
        begun = time.perf_counter()
        tab.goto(path.as_uri())
        tab.evaluate(_FRAMES)
        found = {"bytes": len(page), "drawn_s": round(time.perf_counter() - begun, 2)}
        for kind in ("rest", "wheel", "move", "hover"):
            times = tab.evaluate(_STEPS, [kind, _N_STEPS])
            p95 = np.percentile(times, 95)
            found |= {f"{kind}_median_ms": round(statistics.median(times), 1), f"{kind}_p95_ms": round(float(p95), 1)}
        browser.close()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
