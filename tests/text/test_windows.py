"""Windows: those of Hugging Face tokenizers, each token kept once, with most context; and packs under the budget."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from bertfeat.choices import OnOverlong
from bertfeat.records import Document
from bertfeat.text.packing import pack_windows
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.window_ranges import WindowLimits, lay_windows
from bertfeat.text.windows import Windows, cut_windows
from tests.support.fakes import letters, letters_backend, pairs, run, texts

LETTERS = letters()
PEER = PreTrainedTokenizerFast(
    tokenizer_object=letters_backend(), model_input_names=["input_ids", "token_type_ids", "attention_mask"]
)


def peer_ids(first: str, second: str | None, **truncation: object) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids and the type ids of each window; an empty second text is one in a batch only."""
    found = PEER([first], None if second is None else [second], **truncation)
    return found["input_ids"], found["token_type_ids"]


def cut(documents: list[Document], max_length: int, stride: int, on_overlong: str = "window") -> Windows:
    limits = WindowLimits(max_length, stride, OnOverlong(on_overlong))
    return cut_windows(LETTERS.encode(documents), LETTERS, limits, documents)


def ids_of(windows: Windows) -> list[list[int]]:
    return [part.tolist() for part in np.split(windows.input_ids, windows.starts[1:-1])]


def letters_text(n: int) -> str:
    """Return `n` words of one letter, which are `n` tokens."""
    return " ".join("abcdefghijklmnopqrstuvwxyz"[i % 26] for i in range(n))


def best_windows(n_tokens: int, capacity: int, stride: int) -> list[int]:
    """Return for each token the window where the lesser of its two contexts is largest, by trying every window."""
    step = capacity - stride
    bounds = [(0, min(capacity, n_tokens))]
    while bounds[-1][1] < n_tokens:
        start = bounds[-1][0] + step
        bounds.append((start, min(start + capacity, n_tokens)))
    best = []
    for token in range(n_tokens):
        contexts = []
        for start, end in bounds:
            # A start or end of the text does not limit the context.
            left = np.inf if start == 0 else token - start
            right = np.inf if end == n_tokens else end - 1 - token
            contexts.append(min(left, right) if start <= token < end else -1)
        best.append(int(np.argmax(contexts)))
    return best


# Every capacity up to 9 with every stride up to the largest, capacity - 1.
@pytest.mark.parametrize("capacity", range(1, 10))
def test_each_token_is_kept_once_from_the_window_with_most_context(capacity: int) -> None:
    for stride in range(capacity):
        for n_tokens in range(1, 41):
            windows = lay_windows(n_tokens, capacity, stride)
            kept = [(token, number) for number, (_, _, k, m) in enumerate(windows) for token in range(k, m)]
            assert [token for token, _ in kept] == list(range(n_tokens))
            assert [number for _, number in kept] == best_windows(n_tokens, capacity, stride)
            assert all(start <= k <= m <= end and end - start <= capacity for start, end, k, m in windows)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
    st.integers(3, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 3))),
)
def test_windows_are_those_of_return_overflowing_tokens(lengths: list[int], limits: tuple[int, int]) -> None:
    max_length, stride = limits
    documents = texts(*map(letters_text, lengths))
    windows = cut(documents, max_length, stride)
    expected = [
        ids
        for document in documents
        for ids in PEER(
            document.text, truncation=True, max_length=max_length, stride=stride, return_overflowing_tokens=True
        )["input_ids"]
    ]
    assert ids_of(windows) == expected
    # Read in order, what is kept of the windows is the document with its special tokens.
    kept = windows.input_ids[windows.kept].tolist()
    assert kept == [i for document in documents for i in PEER(document.text)["input_ids"]]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(0, 60), st.integers(0, 4))
def test_the_second_text_is_windowed_as_by_only_second(n_first: int, n_second: int, stride: int) -> None:
    # 12 tokens beside three special ones; the second text has at least half of them, and overlaps by no more than half.
    room = 12 - n_first
    documents = pairs((letters_text(n_first), letters_text(n_second)))
    windows = cut(documents, 15, stride)
    first, second = documents[0].text, documents[0].text_pair
    overlap = min(stride, room // 2)
    expected = peer_ids(
        first, second, truncation="only_second", max_length=15, stride=overlap, return_overflowing_tokens=True
    )
    assert ids_of(windows) == expected[0]
    # Kept once and in order, the windows are the whole pair.
    whole = peer_ids(first, second)
    assert [windows.input_ids[windows.kept].tolist()] == whole[0]
    assert [windows.type_ids[windows.kept].tolist()] == whole[1]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40), st.none() | st.integers(0, 40), st.integers(5, 20))
def test_truncation_is_that_of_transformers(n_first: int, n_second: int | None, max_length: int) -> None:
    second = None if n_second is None else letters_text(n_second)
    document = Document(0, 0, letters_text(n_first), text_pair=second)
    windows = cut([document], max_length, 0, "truncate")
    expected = peer_ids(document.text, second, truncation=True, max_length=max_length)
    assert ([windows.input_ids.tolist()], [windows.type_ids.tolist()]) == expected
    assert windows.kept.all()


def windows_of(lengths: list[int]) -> Windows:
    documents = texts(*("a" * length for length in lengths))
    return cut_windows(LETTERS.encode(documents), LETTERS, WindowLimits(20, 4), documents)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 80))
def test_every_window_is_packed_once_under_the_budget(lengths: list[int], budget: int) -> None:
    windows = windows_of(lengths)
    packs = list(pack_windows(windows, budget))
    packed = [number for pack in packs for number in pack.served[0].tolist()]
    assert sorted(packed) == list(range(len(windows)))
    for pack in packs:
        assert pack.n_tokens <= budget or len(pack.windows) == 1
        assert pack.n_tokens == pack.lengths.sum()
        assert (np.diff(pack.lengths) <= 0).all()
        assert pack.position_ids.tolist() == [i for length in pack.lengths for i in range(length)]
        spans = [slice(windows.starts[w], windows.starts[w + 1]) for w in pack.windows]
        assert pack.input_ids.tolist() == [i for span in spans for i in windows.input_ids[span]]
        assert pack.type_ids.tolist() == [i for span in spans for i in windows.type_ids[span]]
        for copy, original in zip(pack.copies, pack.windows[pack.copy_of], strict=True):
            assert copy > original
            both = [windows.input_ids[windows.starts[w] : windows.starts[w + 1]].tolist() for w in (copy, original)]
            assert both[0] == both[1]
    # No two windows that are encoded are the same.
    encoded = [windows.input_ids[windows.starts[w] : windows.starts[w + 1]].tobytes() for p in packs for w in p.windows]
    assert len(set(encoded)) == len(encoded)
    # No two neighbours would have fitted into one pack: the next window was too long for what was left.
    for pack, following in pairwise(packs):
        assert pack.n_tokens + following.lengths[0] > budget
        assert pack.lengths[-1] >= following.lengths[0]


def test_windows_of_the_same_tokens_in_other_segments_are_no_copies() -> None:
    windows = windows_of([2, 2])
    other = dataclasses.replace(windows, type_ids=windows.type_ids + np.repeat([0, 1], windows.lengths))
    assert [len(pack.copies) for pack in pack_windows(windows, 100)] == [1]
    assert [len(pack.copies) for pack in pack_windows(other, 100)] == [0]


def test_windows_without_tokens_are_in_no_pack() -> None:
    # As GPT-2 has it, which puts no special tokens around a text.
    backend = letters_backend()
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    found = run(texts("", "a b", ""), Tokenizer(backend, cls_id=None))
    assert [pack.windows.tolist() for pack in found.packs] == [[1]]
    assert found.places("sentence") == [None, 1000.5, None]
    assert found.column("sentence", "n_windows") == [0, 1, 0]
    assert run(texts("", ""), Tokenizer(backend, cls_id=None)).packs == []
