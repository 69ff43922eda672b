"""Document context: windows of whole sentences, each kept once, at a bounded cost, with values known by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertfeat
from bertfeat.errors import InputError
from tests.support.fakes import CLS, SEP, Features, grouped, letters, run
from tests.support.oracle import Oracle, assert_close


def at(*places: float | None) -> list[float | None]:
    return [None if place is None else 1000 + place for place in places]


def in_context(
    *lines: str, max_length: int, stride: int = 0, groups: list[str] | None = None, **settings: str
) -> Features:
    documents = grouped(*lines, groups=groups)
    return run(documents, letters(), max_length=max_length, stride=stride, document_context=True, **settings)


def windows_of(found: Features) -> list[str]:
    """Return the letters of each window."""
    windows = found.text.windows
    vocabulary = letters().vocabulary
    parts = np.split(windows.input_ids, windows.starts[1:-1])
    assert all(part[0] == CLS and part[-1] == SEP for part in parts)
    return ["".join(vocabulary[part[1:-1]]).replace("##", "") for part in parts]


def test_a_longer_document_is_covered_by_runs_with_their_neighbours() -> None:
    # Four tokens fit, three of which are kept at most: ab, cd, ef, gh run alone and widen.
    found = in_context("ab", "cd", "ef", "gh", max_length=6, stride=1)
    # ab looks right, cd would look left into the same window, ef and gh look left.
    assert windows_of(found) == ["abcd", "cdef", "efgh"]
    assert found.places("sentence") == at(1.5, 3.5, 3.5, 3.5)
    assert found.column("sentence", "n_windows") == [1, 1, 1, 1]


def test_groups_never_mix_and_a_sentence_without_tokens_keeps_its_row() -> None:
    found = in_context("ab", "cd", "", "ef", max_length=20, groups=["x", "x", "x", "y"])
    assert windows_of(found) == ["abcd", "ef"]
    assert found.places("sentence") == at(1.5, 3.5, None, 1.5)
    assert found.column("sentence", "n_tokens") == [2, 2, 0, 2]
    assert found.column("sentence", "truncated") == [False] * 4


def test_an_overlong_sentence_is_windowed_cut_or_refused_as_asked() -> None:
    # As a document of its own: cdef, efgh, ghij.
    found = in_context("ab", "cd efghij", "k", max_length=6, stride=2)
    assert windows_of(found) == ["ab", "cdef", "efgh", "ghij", "k"]
    found = in_context("ab", "cd efghij", "k", max_length=6, on_overlong="truncate")
    assert windows_of(found) == ["ab", "cdef", "k"]
    assert found.column("sentence", "truncated") == [False, True, False]
    assert found.column("word", "n_tokens") == [2, 2, 2, 1]
    with pytest.raises(InputError, match="document 1 has 10 tokens, more than `max_length=6`"):
        in_context("ab", "cd efghij", "k", max_length=6, on_overlong="error")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 14), st.booleans()), min_size=1, max_size=25),
    st.integers(3, 16).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 3))),
)
def test_each_sentence_is_kept_once_and_at_a_bounded_cost(
    sentences: list[tuple[int, bool]], limits: tuple[int, int]
) -> None:
    max_length, stride = limits
    capacity = max_length - 2
    names = np.cumsum([is_new for _, is_new in sentences]).astype(str).tolist()
    found = in_context(*("a" * n for n, _ in sentences), max_length=max_length, stride=stride, groups=names)
    lengths = [n for n, _ in sentences]
    assert found.column("sentence", "n_tokens") == lengths
    assert found.column("token", "doc_id") == [i for i, n in enumerate(lengths) for _ in range(n)]
    assert found.vectors("token")[:, 2].tolist() == found.column("token", "token_id")
    assert [place is None for place in found.places("sentence")] == [n == 0 for n in lengths]
    windows, tokens = found.text.windows, found.text.tokens
    assert (windows.lengths <= max_length).all()
    n_needed = 0
    for number in range(len(windows)):
        part = slice(windows.starts[number], windows.starts[number + 1])
        source = windows.source[part][windows.source[part] >= 0]
        seen = np.unique(tokens.document[source])
        assert len({names[document] for document in seen}) <= 1
        # Whole sentences, in order; an overlong one is alone.
        if len(seen) > 1 or (len(seen) == 1 and lengths[seen[0]] <= capacity):
            assert len(source) == sum(lengths[document] for document in seen)
        assert (np.diff(source) == 1).all()
    # Two runs of one document that follow on hold more than the room of one, or they would be one; each document
    # ends with one run more, and each overlong sentence breaks a run and is windowed by steps.
    room = max(capacity - stride, 1)
    for name in dict.fromkeys(names):
        mine = [n for n, own in zip(lengths, names, strict=True) if own == name]
        overlong = [n for n in mine if n > capacity]
        n_needed += 2 * sum(mine) // room + 1 + len(overlong) + sum(1 + -(-(n - capacity) // room) for n in overlong)
    assert len(windows) <= n_needed
    kept_from = windows.kept & (windows.source >= 0)
    assert (np.bincount(windows.source[kept_from], minlength=len(tokens.ids)) == 1).all()


def test_states_in_context_equal_transformers_on_the_same_ids(tmp_path: Path, minilm_folder: Path) -> None:
    oracle = Oracle(minilm_folder)
    documents = [
        ["EU rejects German call .", "Peter Blackburn", "BRUSSELS 1996-08-22"],
        ["It is naïve .", "Only one sentence more ."],
    ]
    path = tmp_path / "corpus.conll"
    path.write_text(
        "".join(
            "-DOCSTART- O\n\n" + "".join("".join(f"{word} O\n" for word in s.split()) + "\n" for s in document)
            for document in documents
        ),
        encoding="utf-8",
    )
    store = bertfeat.extract(
        path, tmp_path / "store", document_context=True, levels="token,sentence", layers="3,-1", store_dtype="float32"
    )
    ids, sentences = store.arrow("token")["token_id"].to_pylist(), store.numpy("sentence", "layer_06")
    vectors = {layer: store.numpy("token", f"layer_{layer:02d}") for layer in (3, 6)}
    start = row = 0
    for document in documents:
        parts = [oracle.tokenizer(sentence, add_special_tokens=False)["input_ids"] for sentence in document]
        states = oracle.states([101, *(i for part in parts for i in part), 102])[:, 1:-1]
        end = start + states.shape[1]
        assert ids[start:end] == [i for part in parts for i in part]
        for layer, found in vectors.items():
            assert_close(found[start:end], states[layer])
        place = 0
        for part in parts:
            assert_close(sentences[row], states[6, place : place + len(part)].mean(axis=0))
            place, row = place + len(part), row + 1
        start = end
    assert (start, row) == (len(ids), len(sentences))
