"""Every HTML file and page of bertfeat in headless Chromium: it loads nothing from elsewhere, and can be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

import bertfeat
from tests.support.chromium import opened
from tests.support.places import ROOT
from tests.support.vector_files import write_npy

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from bertfeat.store.reader import Store

SEARCHES = ("", "?q=spring&k=50", "?q=spring&f.label=coil", "?like=3&k=5", "?q=spring&k=x")
NAMES = [
    "layers",
    "layers of two",
    "audit",
    "map",
    "map of a word",
    *(f"search {query}" for query in SEARCHES),
    "search words",
]


def layers(folder: Path) -> dict[str, Path | str]:
    """Write the page of a store of as many layers as a large model has, and of it with another."""
    words = ["<img src=http://192.0.2.1/x onerror=alert(1)>" + "long" * 40, "a", "b", "c", "d"]
    ids = {"doc_id": [n // 5 for n in range(60)], "word_index": [n % 5 for n in range(60)], "word": words * 12}
    pl.DataFrame(ids).write_ndjson(folder / "ids.jsonl")
    vectors = write_npy(folder / "vectors.npy", np.random.default_rng(0).normal(size=(60, 25, 6)))
    stores = [folder / "<b>one", folder / ("other" * 20)]
    for store in stores:
        bertfeat.import_vectors(vectors, store, level="word", ids=folder / "ids.jsonl")
    one = bertfeat.open_store(stores[0])
    one.layers().write(folder / "one")
    one.layers(stores[1]).write(folder / "two")
    return {"layers": folder / "one" / "layers.html", "layers of two": folder / "two" / "layers.html"}


def audits(folder: Path, store: Store) -> dict[str, Path | str]:
    """Write the page of an audit of texts that try to be markup."""
    bertfeat.audit(store, store, level="sentence", label="label").write(folder / "audit")
    return {"audit": folder / "audit" / "audit.html"}


def maps(folder: Path, store: Store) -> dict[str, Path | str]:
    """Write the pages of a map of texts, and of a word with colors from numbers."""
    store.map(folder / "texts.parquet", level="sentence", color="label")
    store.map(folder / "words.parquet", level="word", word="spring", color="n")
    return {"map": folder / "texts.html", "map of a word": folder / "words.html"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, odd_store: Store, servers: dict[str, str]) -> dict[str, Path | str]:
    """The files and addresses of the pages, by their names."""
    folder = tmp_path_factory.mktemp("pages")
    searches: dict[str, Path | str] = {f"search {query}": servers["sentence"] + query for query in SEARCHES}
    searches["search words"] = f"{servers['word']}?q=a+%5Bspring%5D&words=other&k=5"
    return {**layers(folder), **maps(folder, odd_store), **audits(folder, odd_store), **searches}


@pytest.mark.promise("pages")
@pytest.mark.web
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1000, "dark")])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_loads_nothing_from_elsewhere_and_can_be_read(
    name: str, width: int, scheme: str, chromium: Browser, pages: dict[str, Path | str]
) -> None:
    """Text is read in both schemes at each width; focus is moved in one, which takes the most time."""
    address, other = pages[name], "dark" if scheme == "light" else "light"
    own = (address.as_uri(),) if isinstance(address, Path) else address.partition("?")[0]
    with opened(chromium, address, width=width, height=740, scheme=scheme, touch=width == 360) as tab:
        problems = tab.unreadable() + tab.unseen_focus()
        if name.startswith("map"):
            tab.page.locator("#search").fill("spring")
            tab.page.locator("#search").press("Enter")
            tab.page.wait_for_selector("#tip:not([hidden])")
            problems += tab.unreadable()
        tab.page.emulate_media(color_scheme=other)
        problems += tab.unreadable()
    assert [url for url in tab.requests if url not in own and not (isinstance(own, str) and url.startswith(own))] == []
    # Chromium reports the status of a refused search as an error.
    assert [text for text in tab.errors if "k=x" not in name or "a status of 400" not in text] == []
    assert not problems, "\n".join(problems)


def test_no_other_file_of_the_package_is_a_page() -> None:
    # Those of layers, audits, maps and searches; a new one must be added to the list of pages above.
    files = (path for path in (ROOT / "bertfeat").rglob("*") if path.suffix in (".py", ".html", ".js"))
    makers = sorted(path.name for path in files if "<html" in path.read_text("utf-8"))
    assert len(makers) == 4, makers
