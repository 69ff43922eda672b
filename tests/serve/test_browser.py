"""The search page in headless Chromium; `make test-web` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chromium import opened
from tests.support.index_stores import ODD

pytestmark = pytest.mark.web


@pytest.fixture
def page(chromium: Any, servers: dict[str, str]) -> Iterator[Any]:
    """A tab; every request must go to the servers, and no script may fail. For the dark mode see test_html_files.py."""
    with opened(chromium) as tab:
        yield tab.page
    assert [url for url in tab.requests if not url.startswith(tuple(servers.values()))] == []
    # Chromium reports the status of a refused search as an error.
    assert [text for text in tab.errors if "the server responded with a status of 400" not in text] == []


def test_type_enter_and_more_like_this(page: Any, servers: dict[str, str]) -> None:
    page.goto(servers["sentence"])
    page.wait_for_function("document.activeElement.id === 'q'")
    page.keyboard.type("loan from a bank")
    page.keyboard.press("Enter")
    page.wait_for_selector(".hits li")
    assert page.url.endswith("/?q=loan+from+a+bank")
    assert page.locator(".hits li").count() == 10
    assert "bank" in page.locator("mark").all_inner_texts()
    first = page.locator(".hits li .text").first.inner_text()
    page.locator(".more a").first.click()
    page.wait_for_selector(".source")
    assert page.locator(".source p").inner_text() == first
    assert first not in page.locator(".hits .text").all_inner_texts()
    page.go_back()
    assert page.locator("#q").input_value() == "loan from a bank"
    page.go_forward()
    page.locator("#q").fill("spring")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{servers['sentence']}?q=spring")


@pytest.mark.promise("pages")
def test_markup_in_the_corpus_is_text(page: Any, servers: dict[str, str]) -> None:
    page.goto(f"{servers['sentence']}?q=spring+of+markup")
    page.wait_for_selector(".hits li")
    assert ODD[0] in page.locator(".hits .text").all_inner_texts()
    assert page.locator(".hits img, .hits script, .hits b").count() == 0


@pytest.mark.promise("pages")
def test_other_sites_cannot_read_or_embed_it(chromium: Any, servers: dict[str, str]) -> None:
    context = chromium.new_context()
    target, other = servers["sentence"], context.new_page()
    other.route("http://evil.example/", lambda route: route.fulfill(body="<p>evil", content_type="text/html"))
    read = "url => fetch(url).then(() => 'read', () => 'refused')"
    load = """([tag, url]) => new Promise(done => {
        const made = document.createElement(tag);
        made.onload = () => done('loaded'); made.onerror = () => done('refused');
        made.src = url; document.body.append(made);
    })"""
    # The page of the words has the same address, but another port.
    for place in ("http://evil.example/", f"{servers['word']}icon.svg"):
        other.goto(place)
        assert other.evaluate(read, f"{target}api/search?q=spring") == "refused"
    other.goto("http://evil.example/")
    assert other.evaluate(load, ["script", f"{target}page.js"]) == "refused"
    assert other.evaluate(load, ["img", f"{target}icon.svg"]) == "refused"
    other.evaluate(load, ["iframe", target])
    assert "sentences.index" not in [frame.title() for frame in other.frames]
    # A link may be followed.
    other.evaluate("url => { location.href = url }", f"{target}?q=spring")
    other.wait_for_selector(".hits li")
    context.close()


def test_without_scripts(chromium: Any, servers: dict[str, str]) -> None:
    with opened(chromium, servers["sentence"], scripts=False) as found:
        tab = found.page
        tab.locator("#q").fill("spring")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".hits li")
        tab.locator(".more a").first.click()
        tab.wait_for_selector(".source")
        tab.locator("#q").fill("bank")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("mark")
        assert tab.locator(".source").count() == 0
