"""Alignment: words are slices of raw text, and given words keep their labels, up to the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bertfeat
from bertfeat.store.reader import Store
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import letters, run, texts, word_lists
from tests.support.families import build_tokenizer
from tests.support.places import TESTS

DATA = TESTS / "data" / "ner"


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    found = run(texts(text), tokenizer, levels="word")
    spans = zip(found.column("word", "char_start"), found.column("word", "char_end"), strict=True)
    assert [text[start:end] for start, end in spans] == found.column("word", "word")
    return [str(word) for word in found.column("word", "word")]


BERT = {
    "Zürich's café": ["Zürich", "'", "s", "café"],
    "Zu\u0308rich cafe\u0301 x": ["Zu\u0308rich", "cafe\u0301", "x"],
    "人工智能 AI": ["人", "工", "智", "能", "AI"],
    "👩‍👧 ok": ["👩‍👧", "ok"],
}
# The first token of a word may be only the character for the space before it, which is not part of the word.
SENTENCEPIECE = {
    'say "hi" now': ["say", '"hi"', "now"],
    "The  two": ["The", " ", "two"],
    "人工智能 x": ["人工智能", "x"],
}
BYTE_LEVEL = {
    'say "hi" é': ["say", '"', "hi", '"', "é"],
    "The  two": ["The", " ", "two"],
}


@pytest.mark.parametrize(("kind", "expected"), [("bert", BERT), ("unigram", SENTENCEPIECE), ("bpe", BYTE_LEVEL)])
def test_words_slice_the_text(minilm_folder: Path, tmp_path: Path, kind: str, expected: dict[str, list[str]]) -> None:
    tokenizer = Tokenizer.load(minilm_folder if kind == "bert" else build_tokenizer(kind, tmp_path / kind))
    assert {text: words_of(tokenizer, text) for text in expected} == expected


def test_given_words_that_vanish_keep_their_row() -> None:
    lists = [["ab", "\ufe0f", "c"], ["\x00"], [], ["", "d"]]
    found = run(word_lists(*lists), letters(given_words=True), word_pooling="mean")
    assert found.column("word", "word") == ["ab", "\ufe0f", "c", "\x00", "", "d"]
    assert found.column("word", "doc_id") == [0, 0, 0, 1, 3, 3]
    assert found.column("word", "label") == ["AB", "\ufe0f", "C", "\x00", "", "D"]
    assert found.column("word", "n_tokens") == [2, 0, 1, 0, 0, 1]
    assert found.column("word", "char_start") == [0, 3, 5, 0, 0, 1]
    assert found.column("word", "char_end") == [2, 4, 6, 1, 0, 2]
    assert found.places("word") == [1001.5, None, 1003, None, None, 1001]
    assert found.places("sentence") == [1002, None, None, 1001]


def columns(path: Path, *, word: int, label: int) -> Iterator[list[tuple[str, str]]]:
    """Read a column file in the plainest way: a list of words and labels for each sentence."""
    sentence: list[tuple[str, str]] = []
    for line in [*path.read_text(encoding="utf-8").split("\n"), ""]:
        fields = line.split("\t")
        if not line.strip():
            if sentence:
                yield sentence
            sentence = []
        elif not line.startswith("# ") and fields[0].isdecimal() + (word == 0):
            sentence.append((fields[word], fields[label]))


def check_labels(store: Store, expected: list[list[tuple[str, str]]]) -> None:
    table = store.arrow("word")
    rows = [(i, word, label) for i, sentence in enumerate(expected) for word, label in sentence]
    assert table["doc_id"].to_pylist() == [i for i, _, _ in rows]
    assert table["word"].to_pylist() == [word for _, word, _ in rows]
    assert table["label"].to_pylist() == [label for _, _, label in rows]
    sentences = store.arrow("sentence")["text"].to_pylist()
    assert sentences == [" ".join(word for word, _ in sentence) for sentence in expected]
    bounds = zip(
        table["doc_id"].to_pylist(), table["char_start"].to_pylist(), table["char_end"].to_pylist(), strict=True
    )
    assert [sentences[doc][start:end] for doc, start, end in bounds] == [word for _, word, _ in rows]


@pytest.mark.parametrize(
    ("name", "settings", "place", "n_sentences"),
    [
        ("wnut17_test.conll", {}, {"word": 0, "label": 1}, 250),
        ("bc5cdr_test.tsv", {"format": "conll"}, {"word": 0, "label": 1}, 250),
        ("uner_ewt_test.iob2", {"format": "conll", "label_column": "3"}, {"word": 1, "label": 2}, 30),
        ("ud_ewt_test.conllu", {"label_column": "upos"}, {"word": 1, "label": 3}, 26),
    ],
)
def test_labels_stay_on_their_words(
    tmp_path: Path, tiny_folder: Path, name: str, settings: dict[str, str], place: dict[str, int], n_sentences: int
) -> None:
    store = bertfeat.extract(
        DATA / name, tmp_path / "store", model=str(tiny_folder), levels="word,sentence", layers="-1", **settings
    )
    expected = list(columns(DATA / name, **place))
    check_labels(store, expected)
    assert len(expected) == n_sentences
