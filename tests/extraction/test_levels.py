"""Levels: every pooling, window and truncation with values known by hand; rows in are rows out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertfeat
from bertfeat.errors import InputError
from bertfeat.records import Document
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import Features, at, letters, run, texts, word_lists
from tests.support.store_fakes import write_jsonl


# Words of ab c def, with their tokens at 1 2, 3, 4 5 6.
@pytest.mark.parametrize(
    ("word_pooling", "expected"),
    [("first", [1, 3, 4]), ("last", [2, 3, 6]), ("mean", [1.5, 3, 5]), ("max", [2, 3, 6])],
)
def test_word_pooling(word_pooling: str, expected: list[float]) -> None:
    found = run(texts("ab c def", "x"), letters(), word_pooling=word_pooling)
    assert found.places("word") == at(*expected, 1)
    assert found.column("word", "word") == ["ab", "c", "def", "x"]
    assert found.column("word", "n_tokens") == [2, 1, 3, 1]
    # The second value is the negative of the first: its maximum is the first token's.
    if word_pooling == "max":
        assert found.vectors("word")[:, 1].tolist() == [-1001, -1003, -1004, -1001]


# [CLS] a ##b c [SEP] at 0 to 4, and [CLS] x [SEP].
@pytest.mark.parametrize(
    ("pooling", "include", "expected"),
    [
        ("mean", False, [2, 1]),
        ("mean", True, [2, 1]),
        ("max", False, [3, 1]),
        ("max", True, [4, 2]),
        ("cls", False, [0, 0]),
    ],
)
def test_sentence_pooling(pooling: str, include: bool, expected: list[float]) -> None:
    found = run(texts("ab c", "x"), letters(), pooling=pooling, include_special_tokens=include)
    assert found.places("sentence") == at(*expected)
    ids = found.vectors("sentence")[:, 2]
    if pooling == "mean":
        # The third value tells which tokens were averaged: a, ##b, c are 4, 67, 6; [CLS] and [SEP] 2 and 3.
        assert ids[0] == pytest.approx((2 + 4 + 67 + 6 + 3) / 5 if include else (4 + 67 + 6) / 3)


def test_token_rows_have_their_special_tokens() -> None:
    found = run(texts("ab c", ""), letters())
    assert found.places("token") == at(0, 1, 2, 3, 4, 0, 1)
    assert found.column("token", "token") == ["[CLS]", "a", "##b", "c", "[SEP]", "[CLS]", "[SEP]"]
    assert found.column("token", "token_index") == [0, 1, 2, 3, 4, 0, 1]
    assert found.column("token", "word_index") == [None, 0, 0, 1, None, None, None]
    assert found.column("token", "char_start") == [None, 0, 1, 3, None, None, None]
    assert found.column("token", "char_end") == [None, 1, 2, 4, None, None, None]
    assert found.column("token", "is_special") == [True, False, False, False, True, True, True]
    assert found.column("token", "doc_id") == [0, 0, 0, 0, 0, 1, 1]


class TestLongDocuments:
    """Nine letters in windows of four that overlap by two: abcd, cdef, efgh, ghi; kept are abc, de, fg, hi."""

    def run(self, text: str = "a b c d e f g h i", **settings: Any) -> Features:
        return run(texts(text), letters(), max_length=6, stride=2, **settings)

    def test_each_token_has_one_row_in_order(self) -> None:
        found = self.run()
        assert found.places("token") == at(0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4)
        assert found.column("token", "token") == ["[CLS]", *"abcdefghi", "[SEP]"]
        assert found.column("token", "token_index") == list(range(11))
        assert found.column("sentence", "n_windows") == [4]
        assert found.column("sentence", "n_tokens") == [9]
        assert found.column("sentence", "truncated") == [False]

    # ab | cde | fgh: a window border cuts cde after its first token, and the next window holds it whole at 1 2 3.
    @pytest.mark.parametrize(
        ("word_pooling", "expected"),
        [("first", [1, 1, 2]), ("last", [2, 3, 4]), ("mean", [1.5, 2, 3]), ("max", [2, 3, 4])],
    )
    def test_a_word_cut_by_a_border_comes_from_one_window(self, word_pooling: str, expected: list[float]) -> None:
        found = self.run("ab cde fgh", word_pooling=word_pooling)
        assert found.places("word") == at(*expected)
        assert found.column("word", "n_tokens") == [2, 3, 3]

    # No window holds the word: abc at 1 2 3, de at 2 3, fgh at 2 3 4 are pooled together.
    @pytest.mark.parametrize(("word_pooling", "expected"), [("first", 1), ("last", 4), ("mean", 20 / 8), ("max", 4)])
    def test_a_word_longer_than_a_window(self, word_pooling: str, expected: float) -> None:
        found = self.run("abcdefgh", word_pooling=word_pooling)
        assert found.places("word") == at(expected)
        assert found.column("word", "n_tokens") == [8]
        ids = found.vectors("word")[0, 2]
        assert ids == {"first": 4, "last": 62 + 4 + 7, "mean": (4 + sum(range(67, 74))) / 8, "max": 73}[word_pooling]


class TestTruncation:
    """Windows of four tokens, and no second one."""

    @pytest.mark.parametrize(
        ("word_pooling", "expected"),
        [("last", [2, 4]), ("mean", [1.5, 3.5])],
    )
    def test_a_word_that_lost_its_tokens_keeps_its_row(self, word_pooling: str, expected: list[float]) -> None:
        found = run(texts("ab cde f", "x"), letters(), max_length=6, on_overlong="truncate", word_pooling=word_pooling)
        assert found.column("word", "word") == ["ab", "cde", "f", "x"]
        assert found.places("word") == at(*expected, None, 1)
        assert found.column("word", "n_tokens") == [2, 2, 0, 1]
        assert found.column("sentence", "truncated") == [True, False]
        assert found.text.counts()["n_truncated_tokens"] == 2
        assert found.column("token", "token") == ["[CLS]", "a", "##b", "c", "##d", "[SEP]", "[CLS]", "x", "[SEP]"]

    def test_an_error_names_file_and_row(self) -> None:
        documents = [Document(0, "short", "a", path="corpus.txt", row=1)]
        documents.append(Document(1, "long", "a b c d e", path="corpus.txt", row=7))
        with pytest.raises(InputError) as caught:
            run(documents, letters(), max_length=6, on_overlong="error")
        said = "corpus.txt:7: document 'long' has 7 tokens, more than `max_length=6`; "
        assert str(caught.value) == said + "pass `on_overlong` window or truncate"


# Texts of letters, whitespace, characters that the tokenizer drops, and unknown characters.
TEXT = st.text(alphabet="abz \t\x00\ufe0fé中?", max_size=40)
WORD = st.text(alphabet="ab\ufe0f\x00é ", max_size=12)
LIMITS = st.integers(3, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 3)))


def run_limited(
    documents: list[Document], tokenizer: Tokenizer, limits: tuple[int, int], budget: int, **settings: Any
) -> Features:
    max_length, stride = limits
    return run(documents, tokenizer, max_length=max_length, stride=stride, max_batch_tokens=budget, **settings)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXT, max_size=8), LIMITS, st.sampled_from(["window", "truncate"]), st.integers(1, 60))
def test_rows_in_are_rows_out(lines: list[str], limits: tuple[int, int], on_overlong: str, budget: int) -> None:
    found = run_limited(texts(*lines), letters(), limits, budget, on_overlong=on_overlong, word_pooling="mean")
    check_rows(found, lines)
    # Words tile the text: between them is nothing but what the tokenizer drops, and each is of one document.
    for number, line in enumerate(lines):
        mine = [i for i, doc in enumerate(found.column("word", "doc_id")) if doc == number]
        starts = [found.column("word", "char_start")[i] for i in mine]
        ends = [found.column("word", "char_end")[i] for i in mine]
        assert [found.column("word", "word_index")[i] for i in mine] == list(range(len(mine)))
        gaps = [line[end:start] for end, start in zip([0, *ends], [*starts, len(line)], strict=True)]
        assert all(not gap.strip(" \t\x00\ufe0f") for gap in gaps), gaps


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(WORD, max_size=6), min_size=1, max_size=6),
    LIMITS,
    st.sampled_from(["window", "truncate"]),
    st.sampled_from(["first", "last", "mean", "max"]),
    st.integers(1, 60),
)
def test_given_words_all_have_their_row(
    lists: list[list[str]], limits: tuple[int, int], on_overlong: str, word_pooling: str, budget: int
) -> None:
    documents = word_lists(*lists)
    tokenizer = letters(given_words=True)
    found = run_limited(documents, tokenizer, limits, budget, on_overlong=on_overlong, word_pooling=word_pooling)
    check_rows(found, [document.text for document in documents])
    assert found.column("word", "word") == [word for words in lists for word in words]
    assert found.column("word", "label") == [word.upper() for words in lists for word in words]
    assert found.column("word", "word_index") == [i for words in lists for i in range(len(words))]
    spans = zip(*(found.column("word", name) for name in ("doc_id", "char_start", "char_end")), strict=True)
    assert [documents[doc].text[start:end] for doc, start, end in spans] == found.column("word", "word")


def check_rows(found: Features, lines: list[str]) -> None:
    n_tokens = np.diff(found.text.tokens.starts)
    assert found.column("sentence", "text") == lines
    assert found.column("sentence", "doc_id") == list(range(len(lines)))
    kept = np.array(found.column("sentence", "n_tokens"), dtype=np.int64)
    assert (np.array(found.column("sentence", "truncated"), dtype=bool) == (kept < n_tokens)).all()
    # Each document keeps one [CLS] and one [SEP], and its tokens once.
    docs = np.array(found.column("token", "doc_id"), dtype=np.int64)
    assert np.bincount(docs, minlength=len(lines)).tolist() == (kept + 2).tolist()
    assert (np.diff(docs) >= 0).all()
    assert [i for n in kept for i in range(n + 2)] == found.column("token", "token_index")
    # The third value of a state is the token's id: so each vector is in the row of its token.
    assert found.vectors("token")[:, 2].tolist() == found.column("token", "token_id")
    in_words = np.array(found.column("word", "n_tokens"), dtype=np.int64)
    assert in_words.sum() == kept.sum()
    assert [place is None for place in found.places("word")] == (in_words == 0).tolist()
    assert [place is None for place in found.places("sentence")] == (kept == 0).tolist()


def test_one_run_of_three_levels_equals_three_runs(tmp_path: Path, tiny_folder: Path) -> None:
    lines = ["The Zürich café's bill: $4,200 (paid!)", "", "x", " \t ", "Long documents " * 40, "naïve 👩‍👧 人工智能"]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"text": line} for line in lines])
    settings = {"model": str(tiny_folder), "max_length": 40, "layers": "0,-1", "combine": "none,concat"}
    whole = bertfeat.extract(corpus, tmp_path / "all", levels="token,word,sentence", **settings)
    for level in ("token", "word", "sentence"):
        alone = bertfeat.extract(corpus, tmp_path / level, levels=level, **settings)
        together, apart = whole.arrow(level), alone.arrow(level)
        assert together.schema.remove_metadata() == apart.schema.remove_metadata()
        assert together.equals(apart)
    assert whole.n_rows("sentence") == len(lines)


def test_a_kept_column_that_a_shard_lacks_is_null_there(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"text": "one", "id": "a", "topic": "t"}, {"text": "two", "id": "b"}, {"text": "three", "id": "c"}]
    path = write_jsonl(tmp_path / "corpus.jsonl", rows)
    path.write_text(path.read_text() + "{\n")
    settings = {"model": str(tiny_folder), "layers": "-1", "levels": "sentence", "id_column": "id"}
    of_one_row = {"keep_columns": "topic", "bad_rows": "quarantine", "shard_bytes": 1}
    store = bertfeat.extract(path, tmp_path / "store", **settings, **of_one_row)
    assert store.arrow("sentence")["topic"].to_pylist() == ["t", None, None]
    assert store.arrow("sentence")["doc_id"].to_pylist() == ["a", "b", "c"]
