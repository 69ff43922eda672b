"""`Encoder` and `embed`: one loaded network gives the rows and vectors of a store's levels, and threads share it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sentence_transformers import SentenceTransformer

import bertfeat
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.errors import ConfigError, UserError
from tests.support.sentence_models import save_sentence_model

TEXTS = ["one quick fox", "", "she sells sea shells by the sea shore " * 20, "über naïve cafés", "the fox"]
PAIRS = [("one quick fox", "the sea shore"), ("", "the fox"), ("she sells", "")]
WORDS = [["one", "quick-fox", "the"], [], ["sea shore", "fox"]]
SETTINGS: dict[str, Any] = {"layers": [1, -1], "pooling": "max", "word_pooling": "mean", "max_length": 24}


@pytest.fixture(scope="module")
def encoder(tiny_folder: Path) -> bertfeat.Encoder:
    return bertfeat.Encoder(str(tiny_folder), **SETTINGS)


def stored(texts: list[Any], model: Path, folder: Path, **settings: Any) -> bertfeat.Store:
    """Extract texts with `SETTINGS`, as a store of all levels in float32."""
    columns = {"text": texts}
    if isinstance(texts[0], tuple):
        columns = {"text": [first for first, _ in texts], "other": [second for _, second in texts]}
        settings["text_pair_column"] = "other"
    pl.DataFrame(columns).write_parquet(folder / "texts.parquet")
    same = {"combine": "concat", "levels": "token,word,sentence", "store_dtype": "float32", "model": str(model)}
    return bertfeat.extract(folder / "texts.parquet", folder / "store", **{**SETTINGS, **same, **settings})


@pytest.mark.parametrize(
    ("texts", "settings"),
    [(TEXTS, {}), (PAIRS, {}), (WORDS, {"is_split_into_words": True})],
    ids=["texts", "pairs", "given words"],
)
def test_rows_are_those_of_a_store(
    texts: list[Any], settings: dict[str, Any], encoder: bertfeat.Encoder, tiny_folder: Path, tmp_path: Path
) -> None:
    store = stored(texts, tiny_folder, tmp_path, **settings)
    name = "concat_01_03"
    for frame, level in ((encoder.tokens(texts), "token"), (encoder.words(texts), "word")):
        expected = store.polars(level)
        assert frame.schema == expected.schema
        assert frame.drop(name).equals(expected.drop(name))
        assert frame[name].is_null().to_list() == expected[name].is_null().to_list()
        there = frame[name].is_not_null()
        found, wanted = (f.filter(there)[name].to_numpy() for f in (frame, expected))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    vectors = encoder.encode(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, store.numpy("sentence", name), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert np.isnan(vectors).all(axis=1).tolist() == (~store.valid("sentence", name)).tolist()


@pytest.mark.parametrize(
    ("pooling", "layers", "combine", "feature"),
    [
        ("mean", -1, "concat", "layer_03"),
        ("max", "0,2", "sum", "sum_00_02"),
        ("cls", [2, 0], "concat", "concat_00_02"),
    ],
)
def test_embed_gives_the_vectors_of_a_store(
    pooling: str, layers: Any, combine: str, feature: str, tiny_folder: Path, tmp_path: Path
) -> None:
    chosen = {"layers": layers, "pooling": pooling, "max_length": 64, "combine": combine}
    store = stored(TEXTS, tiny_folder, tmp_path, **chosen)
    vectors = bertfeat.embed(TEXTS, str(tiny_folder), **chosen)
    np.testing.assert_allclose(vectors, store.numpy("sentence", feature), rtol=1e-5, atol=1e-5, equal_nan=True)
    alone = [bertfeat.embed(text, str(tiny_folder), **chosen) for text in TEXTS]
    np.testing.assert_allclose(vectors, alone, atol=1e-5, equal_nan=True)
    unit = bertfeat.embed(TEXTS, str(tiny_folder), normalize=True, **chosen)
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected, atol=1e-5, equal_nan=True)


def test_threads_share_an_encoder_and_get_the_bits_of_one_thread(tiny_folder: Path) -> None:
    encoder = bertfeat.Encoder(str(tiny_folder), layers="1,-1")
    calls: list[Callable[[], Any]] = []
    for n in range(1, 4):
        texts = [f"{text} {n}" for text in TEXTS * n]
        calls += [
            lambda texts=texts: encoder.encode(texts),
            lambda texts=texts: encoder.tokens(texts)["concat_01_03"].to_numpy(),
            lambda texts=texts: encoder.words([text.split() for text in texts])["concat_01_03"].to_numpy(),
            lambda texts=texts: encoder.encode([(text, "the sea") for text in texts]),
        ]
    n_threads = torch.get_num_threads()
    # Threads come first, so that they also race for the tokenizers and flows that are loaded on first use.
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda call: call(), calls * 2))
    for vectors, call in zip(found, calls * 2, strict=True):
        np.testing.assert_array_equal(vectors, call())
    assert torch.get_num_threads() == n_threads


@pytest.mark.promise("cached")
def test_with_a_cache_each_text_is_encoded_once(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"layers": [1, 3], "normalize": True, "pooling": "max", "prompt": "a "}
    plain = bertfeat.Encoder(str(tiny_folder), **settings)
    cached = bertfeat.Encoder(str(tiny_folder), cache=tmp_path / "cache", **settings)
    given: list[Any] = [[*TEXTS, ""], [["given", "words"], ["two", "words"]], [("a pair", "of texts")], []]
    expected = [(plain.encode(texts), plain.encode_query(texts)) for texts in given]
    for _ in range(2):
        for texts, (vectors, query) in zip(given, expected, strict=True):
            np.testing.assert_array_equal(cached.encode(texts), vectors)
            np.testing.assert_array_equal(cached.encode_query(texts), query)
        monkeypatch.setattr(PackEncoder, "encode_parts", None)


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document", "embed"])
def test_one_string_gives_one_vector_and_an_iterable_a_row_for_each_text(
    method: str, encoder: bertfeat.Encoder, tiny_folder: Path
) -> None:
    run = getattr(encoder, method, None) or partial(bertfeat.embed, model=str(tiny_folder))
    in_a_list = run(TEXTS[:1])
    assert np.array_equal(run(TEXTS[0]), in_a_list[0])
    assert np.array_equal(run(iter(TEXTS[:1])), in_a_list)
    assert run([]).shape == (0, in_a_list.shape[1])


NOT_TEXTS = [
    ({"text": ["a"]}, "texts is a dict; pass its column of texts"),
    (pd.DataFrame({"text": ["a"]}), "texts is a DataFrame; pass its column of texts"),
    (["a", 7], r"texts\[1\] must be a string, a list of words, or a pair of texts as a tuple, not 7"),
    ([("a", "b", "c")], r"texts\[0\] must be a string, .*, not \('a', 'b', 'c'\)"),
    (["a", ["b"]], r"texts\[1\] is not of the kind of texts\[0\]"),
]
SETTINGS_REFUSED = [
    ({"text_column": "body"}, "no setting 'text_column' for texts in memory; settings are model, pooling"),
    ({"max_length": 65}, "`max_length=65` is more than .* takes, which is 64"),
    ({"prompt_name": "unknown"}, "no prompt of that name|has no prompts"),
    ({"cache": "cache", "cache_size": 9}, "`cache_size=9` is below 1000000"),
    ({"model": "./nowhere"}, "no such folder"),
]


@pytest.mark.parametrize("method", ["encode", "words"])
@pytest.mark.parametrize(("texts", "said"), NOT_TEXTS)
def test_what_is_not_text_is_refused(method: str, texts: Any, said: str, encoder: bertfeat.Encoder) -> None:
    with pytest.raises(ConfigError, match=said):
        getattr(encoder, method)(texts)


@pytest.mark.parametrize(("settings", "said"), SETTINGS_REFUSED)
def test_settings_that_cannot_be_used_are_refused(settings: Any, said: str, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match=said):
        bertfeat.Encoder(**{"model": str(tiny_folder), **settings})


PROMPTS = {"query": "the query is ", "passage": "a passage, ", "other": "she "}


@pytest.fixture(scope="module")
def sentence_model(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts and a sentence embedding of its own."""
    folder = tmp_path_factory.mktemp("sentence") / "model"
    settings: dict[str, Any] = {"prompts": PROMPTS, "default_prompt_name": "other", "max_length": 32}
    return save_sentence_model(tiny_folder, folder, modes=("mean", "cls"), normalize=True, **settings)


class TestPrompts:
    TEXTS = ("one quick fox", "she sells sea shells by the sea shore " * 2)

    def test_queries_and_documents_are_those_of_sentence_transformers(self, sentence_model: Path) -> None:
        ours = bertfeat.Encoder(str(sentence_model), pooling="model", device="cpu")
        theirs = SentenceTransformer(str(sentence_model), device="cpu")
        texts = list(self.TEXTS)
        np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
        np.testing.assert_allclose(ours.encode_query(texts), theirs.encode_query(texts), atol=1e-5)
        # sentence-transformers 6.2 finds `passage` only by its name: it adds an empty prompt `document`.
        passages = theirs.encode_document(texts, prompt_name="passage")
        np.testing.assert_allclose(ours.encode_document(texts), passages, atol=1e-5)
        assert not np.allclose(ours.encode_query(texts), ours.encode(texts), atol=1e-3)

    def test_other_poolings_take_the_same_prompts(self, sentence_model: Path) -> None:
        encoder = bertfeat.Encoder(str(sentence_model), pooling="max")
        for vectors, prompt in (
            (encoder.encode_query(self.TEXTS), PROMPTS["query"]),
            (encoder.encode_document(self.TEXTS), PROMPTS["passage"]),
            (encoder.encode(self.TEXTS), ""),
        ):
            given = bertfeat.Encoder(str(sentence_model), pooling="max", prompt=prompt)
            np.testing.assert_array_equal(vectors, given.encode(self.TEXTS))
