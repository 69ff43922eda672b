"""Packs: every window once, under the budget."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from bertfeat.text.packing import pack_windows
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import Windows, cut_windows
from tests.support.fakes import letters, letters_backend, run, texts

LETTERS = letters()


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
