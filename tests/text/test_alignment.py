"""Alignment: words and tokens are slices of raw text, and given words keep their labels, up to the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers, pre_tokenizers
from transformers import AlbertTokenizer, AutoTokenizer

import bertfeat
from bertfeat.store.reader import Store
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import letters, run, texts, word_lists
from tests.support.families import SENTENCES, build_tokenizer
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


def surface(tokenizer: Tokenizer, text: str | list[str]) -> list[tuple[str, str]]:
    """Return each token of a text, or of given words, with its slice of the text."""
    (document,) = texts(text) if isinstance(text, str) else word_lists(text)
    tokens = tokenizer.encode([document])
    spans = zip(tokenizer.vocabulary[tokens.ids], tokens.char_start, tokens.char_end, strict=True)
    return [(str(piece), document.text[start:end]) for piece, start, end in spans]


@pytest.mark.parametrize(
    ("normalizer", "splitter"),
    [
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
        (normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")),
        (None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        (None, pre_tokenizers.Metaspace(prepend_scheme="never")),
    ],
    ids=["llama", "gemma", "mistral", "never"],
)
def test_given_words_have_one_space_before_each_where_spaces_are_pieces(normalizer: Any, splitter: Any) -> None:
    """As in a text, where a word and the same word after a space have different pieces."""
    backend = BackendTokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁b": 4}, [("▁", "b")]))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    tokenizer = Tokenizer(backend, cls_id=None, given_words=True)
    assert surface(tokenizer, ["a", "ba"]) == [("▁", ""), ("a", "a"), ("▁b", "b"), ("a", "a")]


def test_given_words_equal_transformers_with_prefix_space(tmp_path: Path) -> None:
    folder = build_tokenizer("bpe", tmp_path / "bpe")
    words = ["The", "river's", "", "naïve", "42"]
    tokens = Tokenizer.load(folder, given_words=True).encode(word_lists(words))
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    state["pre_tokenizer"]["add_prefix_space"] = True
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    peer = AutoTokenizer.from_pretrained(str(folder))(words, is_split_into_words=True, add_special_tokens=False)
    assert tokens.ids.tolist() == peer["input_ids"]
    assert tokens.word.tolist() == peer.word_ids()


def test_a_sentencepiece_model_is_converted_and_keeps_its_offsets(tmp_path: Path) -> None:
    corpus = tmp_path / "train.txt"
    corpus.write_text("\n".join(SENTENCES), encoding="utf-8")
    folder = tmp_path / "albert"
    folder.mkdir()
    ids = {"unk_id": 1, "pad_id": 0, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    sizes = {"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / "spiece"), **ids, **sizes)
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    text = SENTENCES[0]
    tokens = tokenizer.encode(texts(text))
    expected = AlbertTokenizer.from_pretrained(str(folder))(text, add_special_tokens=False)["input_ids"]
    assert tokens.ids.tolist() == expected
    assert "".join(chars for _, chars in surface(tokenizer, text)) == text.replace(" ", "")
