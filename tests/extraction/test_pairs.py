"""Pairs: segments, words and windows of two texts, with values known by hand, and against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertfeat
from tests.support.fakes import at, letters, pairs, run
from tests.support.oracle import Oracle, assert_close


def test_a_pair_by_hand() -> None:
    # [CLS] a ##b [SEP] c ##d e [SEP] at 0 to 7.
    found = run(pairs(("ab", "cd e")), letters(), word_pooling="mean")
    assert found.places("token") == at(0, 1, 2, 3, 4, 5, 6, 7)
    assert found.column("token", "segment") == [None, 0, 0, None, 1, 1, 1, None]
    assert found.column("token", "word_index") == [None, 0, 0, None, 1, 1, 2, None]
    assert found.column("token", "char_start") == [None, 0, 1, None, 0, 1, 3, None]
    assert found.places("word") == at(1.5, 4.5, 6)
    assert found.column("word", "word") == ["ab", "cd", "e"]
    assert found.column("word", "segment") == [0, 1, 1]
    assert found.column("word", "char_start") == [0, 0, 3]
    assert found.column("word", "char_end") == [2, 2, 4]
    assert found.places("sentence") == pytest.approx(at(18 / 5))
    assert found.column("sentence", "text_pair") == ["cd e"]
    assert found.text.windows.type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_second_text_is_windowed() -> None:
    # Five tokens beside three special ones: ab and cde, then ab and efg; kept of the second are cde, then fg.
    found = run(pairs(("ab", "c d e f g")), letters(), max_length=8, stride=1)
    assert found.column("token", "token") == ["[CLS]", "a", "##b", "[SEP]", *"cdefg", "[SEP]"]
    # Of the second window 5 and 6 are kept, and its last special token.
    assert found.places("token") == at(0, 1, 2, 3, 4, 5, 6, 5, 6, 7)
    assert found.places("sentence") == pytest.approx(at(29 / 7), abs=1e-3)
    assert found.column("sentence", "n_windows") == [2]
    assert found.column("sentence", "truncated") == [False]
    assert found.column("sentence", "n_tokens") == [7]


def test_a_first_text_that_leaves_no_room_is_cut_to_half() -> None:
    # Of five tokens the first text gets three, and says that it lost five.
    found = run(pairs(("abcdefgh", "x y z")), letters(), max_length=8, stride=2)
    assert found.column("token", "token") == ["[CLS]", "a", "##b", "##c", "[SEP]", "x", "y", "z", "[SEP]"]
    assert found.places("token") == at(0, 1, 2, 3, 4, 5, 6, 6, 7)
    assert found.column("sentence", "truncated") == [True]
    assert found.column("sentence", "n_tokens") == [6]
    assert found.column("word", "n_tokens") == [3, 1, 1, 1]


def test_truncation_takes_the_longer_text_first() -> None:
    found = run(pairs(("ab cd", "x y")), letters(), max_length=6, on_overlong="truncate")
    # Three tokens remain: the longer text keeps the odd one.
    assert found.column("token", "token") == ["[CLS]", "a", "##b", "[SEP]", "x", "[SEP]"]
    assert found.column("word", "word") == ["ab", "cd", "x", "y"]
    assert found.places("word") == at(1, None, 4, None)
    assert found.column("sentence", "truncated") == [True]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.text("ab ", max_size=25), st.text("ab ", max_size=25)), min_size=1, max_size=5),
    st.integers(5, 14),
    st.integers(0, 3),
    st.sampled_from(["window", "truncate"]),
)
def test_rows_in_are_rows_out(texts: list[tuple[str, str]], max_length: int, stride: int, on_overlong: str) -> None:
    stride = min(stride, max_length - 4)
    found = run(pairs(*texts), letters(), max_length=max_length, stride=stride, on_overlong=on_overlong)
    n_kept = found.column("sentence", "n_tokens")
    n_tokens = [len((a + b).replace(" ", "")) for a, b in texts]
    assert found.column("sentence", "truncated") == [k < n for k, n in zip(n_kept, n_tokens, strict=True)]
    docs = np.array(found.column("token", "doc_id"))
    assert np.bincount(docs, minlength=len(texts)).tolist() == [n + 3 for n in n_kept]
    assert found.vectors("token")[:, 2].tolist() == found.column("token", "token_id")
    assert found.column("word", "word") == [word for a, b in texts for word in (a.split() + b.split())]
    assert sum(found.column("word", "n_tokens")) == sum(n_kept)
    n_words = [(len(a.split()), len(b.split())) for a, b in texts]
    assert found.column("word", "segment") == [n for i, j in n_words for n in [0] * i + [1] * j]
    assert found.column("word", "word_index") == [n for i, j in n_words for n in range(i + j)]


def test_pairs_equal_transformers(tmp_path: Path, minilm_folder: Path) -> None:
    lines = [
        ("Who wrote Faust?", "Johann Wolfgang von Goethe."),
        ("naïve", "👩‍👧 café — fine"),
        ("One text " * 3, "is longer than the other. " * 4),
    ]
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{a} ||| {b}\n" for a, b in lines), encoding="utf-8")
    store = bertfeat.extract(path, tmp_path / "store", text_pairs=True, layers="0,-1", store_dtype="float32")
    oracle = Oracle(minilm_folder)
    vectors = {layer: store.numpy("token", f"layer_{layer:02d}") for layer in (0, 6)}
    ids, start = store.arrow("token")["token_id"].to_pylist(), 0
    for first, second in lines:
        encoded = oracle.tokenizer(first.strip(), second.strip())
        states = oracle.states(encoded["input_ids"], encoded["token_type_ids"])
        end = start + len(encoded["input_ids"])
        assert ids[start:end] == encoded["input_ids"]
        for layer, found in vectors.items():
            assert_close(found[start:end], states[layer])
        start = end
    assert start == len(ids)
