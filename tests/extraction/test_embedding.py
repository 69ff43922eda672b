"""`embed`: the values of a store's sentence level, in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bertfeat
from bertfeat.config import ExtractConfig
from bertfeat.errors import ConfigError, UserError
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow

TEXTS = ["one quick fox", "", "she sells sea shells by the sea shore " * 20, "über naïve cafés", " \t "]
EMPTY = [False, True, False, False, True]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize(("layers", "combine", "feature"), [(-1, "concat", "layer_03"), ("0,2", "sum", "sum_00_02")])
def test_equal_to_a_store(
    pooling: str, layers: str | int, combine: str, feature: str, corpus: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    settings = {"model": str(tiny_folder), "levels": "sentence", "layers": layers, "combine": ["none", combine]}
    store = bertfeat.extract(corpus, tmp_path / "out", **settings, pooling=pooling, store_dtype="float32")
    vectors = bertfeat.embed(TEXTS, str(tiny_folder), pooling=pooling, layers=layers, combine=combine)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, store.numpy("sentence", feature), rtol=1e-5, atol=1e-5, equal_nan=True)
    without_tokens = EMPTY if pooling in ("mean", "max") else [False] * len(TEXTS)
    assert np.isnan(vectors).any(axis=1).tolist() == without_tokens
    assert np.isnan(vectors).all(axis=1).tolist() == without_tokens


def test_layers_may_be_a_number_of_numpy_or_an_iterator(tiny_folder: Path) -> None:
    one = bertfeat.embed(TEXTS[:1], str(tiny_folder), layers=1)
    for layers in (np.int64(1), iter([1])):
        assert np.array_equal(bertfeat.embed(TEXTS[:1], str(tiny_folder), layers=layers), one)
    with pytest.raises(ConfigError, match="`layers` 'None' is not a layer"):
        bertfeat.embed(TEXTS[:1], str(tiny_folder), layers=None)


def test_several_layers_concatenated_lowest_first(tiny_folder: Path) -> None:
    both = bertfeat.embed(TEXTS[:1], str(tiny_folder), layers=[-1, 1])
    assert both.shape == (1, 64)
    np.testing.assert_allclose(both[:, :32], bertfeat.embed(TEXTS[:1], str(tiny_folder), layers=1), atol=1e-6)
    np.testing.assert_allclose(both[:, 32:], bertfeat.embed(TEXTS[:1], str(tiny_folder), layers=3), atol=1e-6)


def test_normalized(tiny_folder: Path) -> None:
    plain = bertfeat.embed(TEXTS, str(tiny_folder))
    unit = bertfeat.embed(TEXTS, str(tiny_folder), normalize=True)
    there = ~np.array(EMPTY)
    np.testing.assert_allclose(np.linalg.norm(unit[there], axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(
        unit[there] * np.linalg.norm(plain[there], axis=1, keepdims=True), plain[there], atol=1e-5
    )
    assert np.isnan(unit[EMPTY]).all()


def test_each_text_alone_gives_the_same(tiny_folder: Path) -> None:
    together = bertfeat.embed(TEXTS, str(tiny_folder))
    alone = np.concatenate([bertfeat.embed([text], str(tiny_folder)) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5, equal_nan=True)


def test_any_iterable_of_texts(tiny_folder: Path) -> None:
    expected = bertfeat.embed(TEXTS[2:4], str(tiny_folder))
    np.testing.assert_array_equal(bertfeat.embed(tuple(TEXTS[2:4]), str(tiny_folder)), expected)
    np.testing.assert_array_equal(bertfeat.embed(iter(TEXTS[2:4]), str(tiny_folder)), expected)
    assert bertfeat.embed([], str(tiny_folder)).shape == (0, 32)


def test_a_trained_model_separates_meanings() -> None:
    texts = ["a flooded river", "water rose over the fields", "interest rates went up"]
    vectors = bertfeat.embed(texts, normalize=True)
    assert vectors.shape == (3, 384)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > cosines[0, 2] + 0.1


@pytest.mark.parametrize(
    ("texts", "options", "said"),
    [
        ({"text": ["a"]}, {}, "texts is a dict; pass its column of texts"),
        (["a", 7], {}, r"texts\[1\] must be a string, .*, not 7"),
        (["a", None], {}, r"texts\[1\] must be a string, .*, not None"),
        ([b"bytes"], {}, r"texts\[0\] must be a string, .*, not b'bytes'"),
        (["a"], {"pooling": "best"}, "`pooling` 'best' must be one of"),
        (["a"], {"combine": "average"}, "`combine` 'average' must be one of"),
        (["a"], {"layers": "0,1", "combine": "none"}, "gives 2 columns; choose concat, sum or mean"),
        (["a"], {"layers": 9}, "layer 9 is out of range"),
        (["a"], {"layers": []}, "`layers` ''"),
        (["a"], {"device": "tpu"}, "`device` 'tpu'"),
    ],
)
def test_mistakes(texts: object, options: dict[str, object], said: str, tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        bertfeat.embed(texts, str(tiny_folder), **options)  # type: ignore[arg-type]


def test_unknown_model() -> None:
    with pytest.raises(UserError, match="no such folder"):
        bertfeat.embed(["a"], "./nowhere")


def test_an_encoder_gives_the_rows_of_a_store(corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    settings = {"model": str(tiny_folder), "levels": "token,word,sentence", "layers": "1,3", "store_dtype": "float32"}
    store = bertfeat.extract(corpus, tmp_path / "out", **settings)
    tables = Flow.of(ExtractConfig.from_dict(settings)).run(documents_of(TEXTS))
    assert set(tables) == set(store.levels)
    for level, table in tables.items():
        frame = store.polars(level, list(table.columns))
        for name, values in table.columns.items():
            plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
            assert frame[name].to_list() == plain, (level, name)
        for name, vectors in table.vectors.items():
            there = store.valid(level, name)
            assert (table.valid is None and there.all()) or np.array_equal(table.valid, there)
            np.testing.assert_allclose(vectors[there], store.numpy(level, name)[there], rtol=1e-5, atol=1e-5)
