"""`bertfeat search` and `bertfeat index`: hits, output and errors, and what a second build does."""

from __future__ import annotations

import json
import os
import select
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.cli import main
from bertfeat.search.index import Index
from bertfeat.store.reader import Store
from tests.support.command_line import bertfeat as bertfeat_cli
from tests.support.command_line import good, refused
from tests.support.index_stores import SENSES, contents, documents, shared_store, tiny_store, write_jsonl

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

FEATURE = "layer_06"
QUERY = "He went to the [bank] to ask for a loan"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return shared_store(tmp_path_factory)


@pytest.fixture(scope="module")
def sentences(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "sentences"
    bertfeat.build_index(store, out, level="sentence", feature=FEATURE, threads=1).close()
    return out


@pytest.fixture(scope="module")
def words(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "words"
    bertfeat.build_index(store, out, level="word", feature=FEATURE, transform="center", threads=1).close()
    return out


class FakeTerminal:
    def isatty(self) -> bool:
        return True


def json_lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


class TestSentences:
    def test_aligned_columns(self, sentences: Path) -> None:
        result = good("search", sentences, "My bank refused to give me a loan.", "-k", "3")
        assert result.err == ""
        lines = result.out.splitlines()
        assert lines[0] == "rank   score  doc_id  text"
        assert lines[1] == "   1  1.0000  d006    My bank refused to give me a loan."
        assert len(lines) == 4

    def test_where_and_columns(self, sentences: Path) -> None:
        flags = ("--where", "label IN ('coil', 'season') AND n <> 9", "--columns", "label, n", "-k", "20")
        hits = json_lines(good("search", sentences, "spring", *flags, "--json").out)
        assert sorted(hit["n"] for hit in hits) == [8, 10, 11, 12, 13, 14, 15]
        assert {hit["label"] for hit in hits} == {"coil", "season"}
        nothing = bertfeat_cli("search", sentences, "spring", "--where", "n < 0")
        assert (nothing.code, nothing.out) == (0, "")
        assert nothing.err == f"bertfeat: {sentences}: nothing fits the filters\n"

    def test_a_terminal_shows_what_fits_and_all_with_full(
        self, sentences: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        search = ("search", sentences, SENSES["coil"][0], "-k", "3")
        whole = good(*search).out
        monkeypatch.setattr("bertfeat.cli.search_output.sys", SimpleNamespace(stdout=FakeTerminal(), maxsize=10**9))
        monkeypatch.setenv("COLUMNS", "40")
        lines = good(*search).out.splitlines()
        assert max(map(len, lines)) == 40
        assert all(line[:-1] == full[:39] for line, full in zip(lines[1:], whole.splitlines()[1:], strict=True))
        assert good(*search, "--full").out == whole

    def test_a_flag_without_effect_gives_a_warning(self, sentences: Path) -> None:
        for more in ((), ("--json",)):
            warned = good("search", sentences, "a loan", "-k", "1", "--context", "40", *more).err
            assert warned.endswith(f"warning: --context has no effect on {sentences}, which holds whole texts\n")


class TestWords:
    def test_words_are_aligned_in_context(self, words: Path) -> None:
        lines = good("search", words, QUERY, "-k", "4", "--context", "20").out.splitlines()
        assert lines[0] == "rank   score  doc_id  context"
        assert all("[bank]" in line for line in lines[1:])
        assert len({line.index("[") for line in lines[1:]}) == 1
        assert lines[1].endswith(" My [bank] refused to give me…")

    def test_json(self, words: Path) -> None:
        hits = json_lines(good("search", words, QUERY, "-k", "3", "--json", "--same-word").out)
        first = hits[0]
        score, text = first.pop("score"), "My [bank] refused to give me a loan."
        assert first == {
            "rank": 1, "doc_id": "d006", "word_index": 1, "word": "bank", "char_start": 3, "char_end": 7,
            "context": text, "n_hits": 3,
        }  # fmt: skip
        assert 0.3 < float(str(score)) < 1
        others = json_lines(good("search", words, QUERY, "-k", "30", "--json", "--exclude-same-word").out)
        assert "bank" not in {hit["word"] for hit in others}
        assert len(others) == 30


class TestStandardInput:
    def test_json_is_one_line_per_query_with_the_number_of_its_line(self, words: Path) -> None:
        lines = b"\xef\xbb\xbfthe [spring] sun\n\na bank of sand\n\xff\nmoney in the [bank]"
        flags = ("--same-word", "--columns", "label", "--json")
        result = bertfeat_cli("search", words, "--queries", "-", "-k", "2", *flags, stdin=lines)
        first, unmarked, invalid, last = json_lines(result.out)
        assert (first["query_id"], first["query"], len(first["hits"])) == (0, "the [spring] sun", 2)
        alone = good("search", words, "money in the [bank]", "-k", "2", *flags).out
        assert last == {"query_id": 4, "query": "money in the [bank]", "hits": json_lines(alone)}
        said = [str(found["error"]) for found in (unmarked, invalid)]
        assert [found["query_id"] for found in (unmarked, invalid)] == [2, 3]
        assert ("<stdin>:3: query 'a bank of sand'" in said[0], "<stdin>:4: " in said[1]) == (True, True)
        assert (result.code, result.err.splitlines()[:-1]) == (2, [f"bertfeat: {text}" for text in said])

    def test_an_answer_comes_before_the_next_line_is_read(
        self, sentences: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines, questions = os.pipe()
        answers, output = os.pipe()

        def talk() -> list[int]:
            found = []
            with os.fdopen(questions, "wb", buffering=0) as ask, os.fdopen(answers, "rb") as answer:
                for text in ("fishing", "a loan"):
                    ask.write(f"{text}\n".encode())
                    assert select.select([answer], [], [], 60)[0], "no answer"
                    found.append(json.loads(answer.readline())["query_id"])
            return found

        command = ("bertfeat", "search", str(sentences), "--queries", "-", "-k", "1", "--json")
        monkeypatch.setattr(sys, "argv", [*command])
        with os.fdopen(lines) as stdin, os.fdopen(output, "w") as stdout, ThreadPoolExecutor(1) as pool:
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(sys, "stdout", stdout)
            talked = pool.submit(talk)
            with pytest.raises(SystemExit) as done:
                main()
        assert (talked.result(), done.value.code) == ([0, 1], 0)


class TestManyQueries:
    def test_the_same_as_one_by_one(self, sentences: Path, tmp_path: Path) -> None:
        texts = [row["text"] for row in documents()[:20:3]] + ["fishing", "spring flowers"]
        file = write_jsonl(tmp_path / "q.jsonl", [{"id": f"q{n}", "text": text} for n, text in enumerate(texts)])
        out = tmp_path / "hits.parquet"
        found = good("search", sentences, "--queries", file, "-o", out, "-k", "5", "--columns", "label", "--json").json
        assert (found["output"], found["n_hits"], found["n_queries"]) == (str(out), 45, 9)
        frame = pl.read_parquet(out)
        assert frame.columns == ["query_id", "rank", "score", "doc_id", "text", "label"]
        assert frame["query_id"].to_list() == [f"q{n}" for n in range(9) for _ in range(5)]
        with bertfeat.open_index(sentences) as index:
            for n, text in enumerate(texts):
                alone, batch = index.search(text, 5), frame.filter(pl.col("query_id") == f"q{n}")
                np.testing.assert_allclose(batch["score"].to_numpy(), alone["score"].to_numpy(), atol=1e-3)
                # Rounding may change the order of two nearly equal hits.
                assert set(batch["doc_id"].head(3)) <= set(alone["doc_id"])
                assert batch["doc_id"][0] == alone["doc_id"][0]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hits.parquet", "q.jsonl"]

    def test_the_file_of_hits(self, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "q.txt").write_text("fishing\n")
        out = tmp_path / "hits.parquet"
        search = ("search", sentences, "--queries", tmp_path / "q.txt")
        good(*search, "-o", out, "-k", "1")
        before = out.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(Index, "encode", lambda *_: pytest.fail("searched"))
            assert str(out) in refused(*search, "-o", out)
        assert out.read_bytes() == before
        good(*search, "-o", out, "-k", "2", "--overwrite", "--where", "n < 0")
        assert pl.read_parquet(out).shape == (0, 5)
        good(*search, "-o", tmp_path / "none.csv", "--where", "n < 0", "--columns", "label,n")
        assert (tmp_path / "none.csv").read_text() == "query_id,rank,score,doc_id,text,label,n\n"


def test_a_build_is_done_once_and_its_settings_change_with_overwrite_only(place: Path, tmp_path: Path) -> None:
    command = ("index", "build", place / "made" / "store", "-o", tmp_path / "i", "--level", "word", "--threads", "1")
    first = good(*command)
    assert first.err == ""
    for words in (str(tmp_path / "i"), "Flat", "cosine", "recall at 10"):
        assert words in first.out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "i").iterdir()}
    assert "already built; nothing to do" in good(*command).out
    assert good(*command, "--quiet").out == ""
    assert "metric was 'cosine', now 'l2'" in refused(*command, "--metric", "l2")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "i").iterdir()} == before
    good(*command, "--metric", "l2", "--overwrite")
    shown = good("inspect", tmp_path / "i", "--json").json
    assert (shown["metric"], shown["level"], set(shown["files"])) == ("l2", "word", {"index.faiss", "rows.parquet"})


def test_eval_measures_an_index(place: Path) -> None:
    command = ("index", "eval", place / "made" / "index", "--n-queries", "20")
    assert {"recall@1", "recall@10", "queries"} <= {line.split()[0] for line in good(*command).out.splitlines()}
    measured = good(*command, "--json").json
    assert (measured["n_queries"], measured["recall@1"], measured["retrieval"]) == (20, 1.0, None)
    assert measured["bytes_per_vector"] > 4 * 32


def test_an_update_adds_new_rows_once_and_refuses_other_stores(place: Path, tmp_path: Path, tiny_folder: Path) -> None:
    good("index", "build", place / "made" / "store", "-o", tmp_path / "i", "--level", "sentence")
    grown = tiny_store(tmp_path / "grown", tiny_folder, documents(15), levels="sentence")
    assert "3 vectors added" in good("index", "update", tmp_path / "i", grown.path).out
    assert "no new rows; nothing to do" in good("index", "update", tmp_path / "i", grown.path).out
    assert good("index", "update", tmp_path / "i", grown.path, "--json").json["n_added"] == 0
    before = contents(tmp_path / "i")
    changed = tiny_store(tmp_path / "changed", tiny_folder, documents()[1:20], levels="sentence")
    assert "fewer than the 31" in refused("index", "update", tmp_path / "i", changed.path)
    assert contents(tmp_path / "i") == before
