"""Prompts: the text sees them, no row has their tokens, and offsets are those of the text as given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertfeat.records import Document
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import at, letters, pairs, run, texts
from tests.support.families import build_tokenizer

pytestmark = pytest.mark.numeric


@pytest.mark.promise("sentence")
def test_the_tokens_of_a_prompt_have_no_rows_and_move_the_text() -> None:
    # [CLS] a ##b c [SEP] and [CLS] x ##y z a ##b c [SEP]
    alone, after = (run(texts("ab c", ""), letters().with_prompt(prompt)) for prompt in ("", "xy z "))
    for name in ("token", "token_id", "word_index", "char_start", "char_end", "is_special"):
        assert after.column("token", name) == alone.column("token", name)
    for name in ("word", "word_index", "char_start", "char_end", "n_tokens"):
        assert after.column("word", name) == alone.column("word", name)
    assert after.column("sentence", "n_tokens") == [3, 0]
    assert after.column("sentence", "text") == ["ab c", ""]
    assert after.places("token") == at(0, 4, 5, 6, 7, 0, 4)
    assert after.places("word") == at(4, 6)
    assert after.places("sentence") == at(5, None)


def test_a_prompt_is_counted_where_special_tokens_are() -> None:
    tokenizer = letters().with_prompt("x y ")
    # [CLS] x y a b [SEP]
    counted = {"include_special_tokens": True}
    assert run(texts("a b"), tokenizer, **counted).places("sentence") == at(2.5)
    assert run(texts("a b"), tokenizer).places("sentence") == at(3.5)
    assert run(texts("a b"), tokenizer, pooling="max", **counted).places("sentence") == at(5)
    assert run(texts("a b"), tokenizer, pooling="lasttoken").places("sentence") == at(5)
    assert run(texts("a b"), tokenizer, pooling="cls").places("sentence") == at(0)


def test_every_window_has_the_prompt() -> None:
    # Seven tokens: [CLS] x, three of the text, [SEP]; windows abc, cde, efg.
    settings: dict[str, Any] = {"max_length": 6, "stride": 1}
    found = run(texts("a b c d e f g"), letters().with_prompt("x "), **settings)
    assert [pack.input_ids.tolist().count(letters().vocabulary.tolist().index("x")) for pack in found.packs] == [3]
    assert found.column("word", "word") == list("abcdefg")
    assert found.places("word") == at(2, 3, 4, 3, 4, 3, 4)
    assert found.column("sentence", "n_windows") == [3]


def test_pairs_and_given_words_have_prompts_too() -> None:
    found = run(pairs(("ab", "c")), letters().with_prompt("x "))
    assert found.column("word", "word") == ["ab", "c"]
    assert found.places("word") == at(2, 5)
    document = Document(index=0, doc_id=0, text="ab c", words=("ab", "c"))
    found = run([document], letters(given_words=True).with_prompt("x: y"))
    assert found.column("word", "word_index") == [0, 1]
    assert [found.column("word", name) for name in ("char_start", "char_end")] == [[0, 3], [2, 4]]
    assert found.places("word") == at(4, 6)


@pytest.mark.promise("sentence")
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("prompt", ["query: ", "query:", "fox"])
def test_prompt_and_text_are_tokenized_as_one_text(kind: str, prompt: str, tmp_path) -> None:
    folder = build_tokenizer(kind, tmp_path)
    tokenizer = Tokenizer.load(folder).with_prompt(prompt)
    lines = ["the fox", "", " sea shells", "es the sea", "Zürich", "the sea " * 2_000]
    documents = texts(*lines)
    tokens, plain = tokenizer.encode(documents), Tokenizer.load(folder).encode(texts(*(prompt + t for t in lines)))
    for number, line in enumerate(lines):
        own = slice(*tokens.starts[number : number + 2])
        ids = [*tokens.prompt_ids[slice(*tokens.prompt_starts[number : number + 2])], *tokens.ids[own]]
        assert ids == plain.ids[slice(*plain.starts[number : number + 2])].tolist()
        assert (tokens.char_start[own] >= 0).all()
        assert (tokens.char_end[own] <= len(line)).all()
        # Every character that is not a space belongs to a token of the text.
        covered = np.zeros(len(line), dtype=bool)
        for start, end in zip(tokens.char_start[own], tokens.char_end[own], strict=True):
            covered[start:end] = True
        assert all(covered[i] or char.isspace() for i, char in enumerate(line))
    assert tokenizer.count(documents).tolist() == np.diff(plain.starts).tolist()
