"""The search page in this process: its JSON, its text, its bounds, and who may read it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from starlette.testclient import TestClient

import bertfeat
from bertfeat.cli.search import index_summary
from bertfeat.search.hits import passage
from bertfeat.search.index import Index
from bertfeat.serve.answers import Answers
from bertfeat.serve.page import search_page
from tests.support.command_line import good
from tests.support.index_stores import SENSES, tiny_store

pytestmark = pytest.mark.usefixtures("one_thread")

HOME = "http://127.0.0.1:8000"
COIL = SENSES["coil"][0]
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> spring \"' & {{ 7*7 }} </p>"


def client_of(index: Index) -> TestClient:
    page = search_page(Answers(index), index_summary(index.path, index.description))
    return TestClient(page, base_url=HOME)


@pytest.fixture(scope="module")
def sentences(index_folders: dict[str, Path]) -> Iterator[Index]:
    with bertfeat.open_index(index_folders["sentence"]) as index:
        yield index


@pytest.fixture(scope="module")
def page(sentences: Index) -> Iterator[TestClient]:
    with client_of(sentences) as client:
        yield client


@pytest.fixture(scope="module")
def words(index_folders: dict[str, Path]) -> Iterator[TestClient]:
    with bertfeat.open_index(index_folders["word"]) as index, client_of(index) as client:
        yield client


def hits_of(client: TestClient, **parameters: Any) -> list[dict[str, Any]]:
    answer = client.get("/api/search", params=parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["hits"]
    return found


def error_of(client: TestClient, **parameters: Any) -> str:
    """Return the message of an error, which the page and the JSON share."""
    answer, shown = client.get("/api/search", params=parameters), client.get("/", params=parameters)
    assert answer.status_code == shown.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["kind"] == "UserError"
    assert 'role="alert"' in shown.text
    return str(error["message"])


class TestJson:
    @pytest.mark.promise("search")
    def test_the_hits_are_those_of_the_command(self, page: TestClient, sentences: Index) -> None:
        lines = good("search", sentences.path, COIL, "-k", "4", "--columns", "label,n", "--json").out.splitlines()
        answer = page.get("/api/search", params={"q": f" {COIL} ", "k": 4})
        assert answer.headers["content-type"] == "application/json"
        assert [{**hit, "row": None} for hit in answer.json()["hits"]] == [
            {**json.loads(line), "row": None} for line in lines
        ]
        assert answer.json()["query"] == {"q": COIL, "k": 4, "filters": {}}
        assert answer.json()["hits"][0]["row"] == 12

    def test_filters_on_columns(self, page: TestClient, words: TestClient) -> None:
        hits = hits_of(page, q="spring", k=50, **{"f.label": "coil", "f.n": "13.."})
        assert sorted(hit["n"] for hit in hits) == [13, 14, 15]
        for value, numbers in {"9": {9}, "3..5": {3, 4, 5}, "..1": {0, 1}, "-7": set()}.items():
            assert {hit["n"] for hit in hits_of(page, q="spring", k=100, **{"f.n": value})} == numbers
        assert {hit["label"] for hit in hits_of(words, q="[spring]", **{"f.label": "season"})} == {"season"}

    def test_more_like_a_row_leaves_it_out(self, page: TestClient, words: TestClient, sentences: Index) -> None:
        nearest = sentences.search(sentences.vectors([12]), 6, columns=["row"])["row"].to_list()
        alike = hits_of(page, like=12, k=5)
        assert [12, *(hit["row"] for hit in alike)] == nearest
        row = hits_of(words, q="He sat on the [bank] of the river and fished.", k=1)[0]["row"]
        assert {hit["word"].lower() for hit in hits_of(words, like=row, words="same")} == {"bank"}
        assert all("[bank]" in hit["context"] for hit in hits_of(words, q="the [bank]", words="same"))

    def test_no_such_page(self, page: TestClient) -> None:
        for path in ("/nope", "/search.html", "/../answers.py", "/%2e%2e/answers.py"):
            assert page.get(path).status_code == 404, path
        answer = page.post("/api/search?q=a", content=b"x" * 100_000)
        assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


class TestPage:
    def test_an_empty_page_and_a_search(self, page: TestClient) -> None:
        assert '<ol class="hits">' not in page.get("/").text
        text = page.get("/", params={"q": "bank loan", "k": 20, "f.label": "money"}).text
        assert re.search(r"<mark>bank</mark> refused to give me a <mark>loan</mark>", text)
        assert '<option value="money" selected>money</option>' in text
        assert "My bank refused" in page.get("/", params={"like": 6}).text


def test_markup_of_a_corpus_and_of_a_query_is_text(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"id": HOSTILE, "text": HOSTILE, "label": HOSTILE, "n": 1}, {"id": "b", "text": "b", "label": "b", "n": 2}]
    store = tiny_store(tmp_path / "made", tiny_folder, rows, levels="sentence,word")
    for level in ("sentence", "word"):
        query = '[spring] </title><script>"' if level == "word" else '</title><script>" spring'
        asked = [{"q": query, "f.label": HOSTILE}, {"q": "spring", "f.n": HOSTILE}, {HOSTILE: "1"}, {"k": HOSTILE}]
        with bertfeat.build_index(store, tmp_path / level, level=level, threads=1) as index, client_of(index) as client:
            for number, parameters in enumerate(asked):
                answer = client.get("/", params=parameters)
                assert answer.status_code == (400 if number else 200)
                assert re.findall(r"<script(.*?)>", answer.text) == [' src="/page.js" defer']
                assert "<img" not in answer.text
                assert number or "{{ 7*7 }}" in answer.text
                assert number or "<mark>spring</mark>" in answer.text


class TestWhoMayRead:
    @pytest.mark.promise("pages")
    def test_another_host(self, page: TestClient) -> None:
        wrong = ["evil.example:8000", "127.0.0.1.evil.example", "", "[::1]:8000", "a@127.0.0.1", "127.0.0.1:80:80"]
        for host in wrong:
            answer = page.get("/page.css", headers={"host": host})
            assert (answer.status_code, answer.text) == (400, "Invalid host header")
        for host in ("LOCALHOST:8000", "127.0.0.1:9000", "127.0.0.1"):
            assert page.get("/", headers={"host": host}).status_code == 200

    @pytest.mark.promise("pages")
    def test_other_origins(self, page: TestClient) -> None:
        refused = [
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "https://127.0.0.1:8000"},
            {"origin": "http://localhost:8000"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
            {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
            {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        ]
        for headers in refused:
            assert page.get("/api/search?q=a", headers=headers).status_code == 403, headers
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert page.get("/?q=a", headers=link).status_code == 200
        assert page.get("/api/info", headers={"origin": HOME, "sec-fetch-site": "same-origin"}).status_code == 200

    def test_every_answer_has_the_headers(self, page: TestClient) -> None:
        for path in ("/", "/page.js", "/api/info", "/nope", "/api/search", "/api/search?q=a", "/?host"):
            headers = page.get(path, headers={"host": "evil.example"} if "host" in path else None).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
            assert (headers["x-frame-options"], headers["referrer-policy"]) == ("DENY", "no-referrer")
            assert not [name for name in headers if name.startswith("access-control")]


class TestBounds:
    @pytest.mark.promise("pages")
    @pytest.mark.parametrize(
        ("parameters", "said"),
        [
            ({"q": "a" * 2001}, "q has 2,001 characters; write 2,000 or fewer"),
            ({"q": "a", "k": 101}, "k '101' is not a whole number from 1 to 100"),
            ({"like": -1}, "like '-1' is not the number of a row"),
            ({"q": "a", "f.lable": "x"}, "no parameter 'f.lable'; did you mean 'f.label'"),
            ({"q": ["a", "b"]}, "parameter q is given twice"),
            ({"q": "a", "f.n": "many"}, "filter n: 'many' is not a number"),
            ({"q": "a", "f.n": "9" * 30}, "is not a number of the column"),
            ({"q": "a", "words": "some"}, "words 'some' is not same or other"),
            ({"q": "a", "words": "same"}, "need a query with a [word]"),
            ({"q": "a", "f.label": "x" * 201}, "f.label has 201 characters; write 200 or fewer"),
        ],
    )
    def test_a_wrong_parameter(self, page: TestClient, parameters: dict[str, Any], said: str) -> None:
        assert said in error_of(page, **parameters)

    @pytest.mark.promise("pages")
    def test_more_searches_than_threads_wait(self, sentences: Index, monkeypatch: pytest.MonkeyPatch) -> None:
        ends, running, most = threading.Event(), [], []

        def search(*_: object, **__: object) -> pl.DataFrame:
            running.append(1)
            most.append(len(running))
            ends.wait(60)
            running.pop()
            return pl.DataFrame(schema=["query", "row"])

        with client_of(sentences) as client:
            monkeypatch.setattr(sentences, "search", search)
            threading.Timer(0.2, ends.set).start()
            with ThreadPoolExecutor(12) as pool:
                list(pool.map(lambda _: hits_of(client, q="a"), range(12)))
        assert (len(most), max(most) <= 4) == (12, True)


@pytest.mark.promise("search")
def test_several_users_at_once_have_their_own_answers(page: TestClient, words: TestClient) -> None:
    """Four threads with queries and filters of their own have, to the bit, the answers of one after the other."""
    asked: list[tuple[TestClient, dict[str, Any]]] = []
    for label, texts in SENSES.items():
        asked += [(page, {"q": texts[0], "k": 20, "f.label": label}), (page, {"like": 3, "f.label": label})]
        word = "spring" if label in ("season", "coil") else "bank"
        asked += [(words, {"q": f"{texts[1]} [{word}]", "words": "other", "f.label": label})]
    serial = [hits_of(client, **parameters) for client, parameters in asked]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda one: hits_of(one[0], **one[1]), asked)) == serial


def test_columns_with_any_name_and_value_are_shown_and_filtered(tmp_path: Path, tiny_folder: Path) -> None:
    """Their names are those of a hit's own fields, or SQL; a value is found exactly as it is."""
    columns = {
        "score": [1.5, 0.1, None], "row": [7, 8, 9], "query": ["a", "b", "c"], "is": [True, False, None],
        'a "b".c\'s': ["x' OR ''='", "\\' OR ''='", None], "spaced": [" a  b ", "a b", "line\nline"],
    }  # fmt: skip
    rows = [{"id": f"d{n}", "text": f"text {n}"} | {name: made[n] for name, made in columns.items()} for n in range(3)]
    store = tiny_store(tmp_path / "made", tiny_folder, rows, levels="sentence", keep_columns=",".join(columns))
    with bertfeat.build_index(store, tmp_path / "index", threads=1) as index, client_of(index) as client:
        assert sorted(hit["row"] for hit in hits_of(client, q="text 0", k=3)) == [0, 1, 2]
        for name, values in columns.items():
            for value in set(values) - {None}:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                hits = hits_of(client, q="text 0", k=3, **{f"f.{name}": text})
                expected = {f"d{n}" for n in range(3) if values[n] == value}
                assert {hit["doc_id"] for hit in hits} == expected, (name, value)


def test_the_passage_of_a_long_text_has_most_words_of_the_query() -> None:
    text = "one bank. " + "and so on " * 90 + "The bank of the river, the river bank. " + "and more " * 90
    places = [found.span() for found in re.finditer("river|bank", text)]
    shown = passage(text, places, 480, 80)
    assert [piece.text for piece in shown if piece.is_marked] == ["bank", "river", "river", "bank"]
    assert (shown[0].text, shown[-1].text) == ("…", "…")
    assert len("".join(piece.text for piece in shown)) < 500
