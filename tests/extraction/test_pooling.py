"""Pooling with values known by hand: segments to vectors, layers to features, windows merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bertfeat.choices import Combine
from bertfeat.extraction.pooling import MODES, combine_layers
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import CLS, at, letters, letters_backend, run, texts

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_of_half_precision_states_adds_up_in_float32(dtype: torch.dtype) -> None:
    states = torch.full((1000, 1), 1.0, dtype=dtype)
    states[0] = 2048
    found = MODES["mean"].reduce(states, torch.arange(1000), torch.tensor([0]), None)
    assert found.dtype == torch.float32
    assert found.item() == 2048 + 999


def test_the_sum_of_half_precision_layers_is_taken_in_float32() -> None:
    layers = [torch.tensor([[2048.0]], dtype=torch.float16), torch.tensor([[1.0]], dtype=torch.float16)]
    assert combine_layers(layers, Combine.SUM).tolist() == [[2049]]
    assert combine_layers(layers, Combine.MEAN).tolist() == [[1024.5]]


@pytest.mark.parametrize("combine", ["concat", "none,concat,sum,mean"])
def test_every_combination_of_layers_at_every_level(combine: str) -> None:
    # [CLS] a ##b c [SEP]
    found = run(texts("ab c"), letters(), layers="1,3", combine=combine, word_pooling="mean")
    for level, places in (("token", [0, 1, 2, 3, 4]), ("word", [1.5, 3]), ("sentence", [2])):
        place = np.array(places)
        first, second = 1000 + place, 3000 + place
        expected = {
            "none": {"layer_01": first, "layer_03": second},
            "concat": {"concat_01_03": np.stack([first, -first, second, -second])},
            "sum": {"sum_01_03": first + second},
            "mean": {"mean_01_03": (first + second) / 2},
        }
        wanted = {name: values for how in combine.split(",") for name, values in expected[how].items()}
        vectors = found.tables[level].vectors
        assert list(vectors) == list(wanted)
        for name, values in wanted.items():
            columns = [0, 1, 3, 4] if name.startswith("concat") else [0]
            assert vectors[name][:, columns].T.tolist() == np.atleast_2d(values).tolist()


def test_a_combination_is_rounded_once() -> None:
    found = run(texts("a"), letters(), layers="1,3", combine="sum", store_dtype="float16")
    # 1001 and 3001; float16 has no 3001, and layer 3 alone becomes 3000.
    assert found.vectors("token", "sum_01_03")[1, 0] == 4002


@pytest.fixture
def spoilt_memory() -> Iterator[None]:
    """Let torch fill memory that is not initialized with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("spoilt_memory")
@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 6, "on_overlong": "truncate"},
        {"max_length": 6, "stride": 2, "word_pooling": "max", "combine": "none,sum"},
        {"levels": "sentence", "pooling": "pooler"},
    ],
)
def test_no_vector_has_values_of_uninitialized_memory(settings: dict[str, Any]) -> None:
    assert torch.empty(1).isnan().all()
    backend = letters_backend()
    # The empty text has no token of its own, and without special ones no window.
    backend.post_processor = None
    found = run(texts("ab c", "", "a b c d e f g h i", "hello"), Tokenizer(backend, cls_id=CLS), **settings)
    for table in found.tables.values():
        for vectors in table.vectors.values():
            assert not np.isnan(vectors).any()
            assert table.valid is None or (vectors[~table.valid] == 0).all()
    assert found.tables["sentence"].valid.tolist() == [True, False, True, True]


@pytest.mark.parametrize("max_batch_tokens", [6, 13, 1000])
@pytest.mark.parametrize(("pooling", "expected"), [("mean", [21 / 9, 1.5]), ("max", [3, 2]), ("cls", [0, 0])])
def test_windows_of_several_packs_merge_into_one_row(
    max_batch_tokens: int, pooling: str, expected: list[float]
) -> None:
    # Windows abcd, cdef, efgh, ghi, of which abc, de, fg, hi are kept, at 1 2 3, 2 3, 2 3, 2 3.
    limits = {"max_length": 6, "stride": 2, "max_batch_tokens": max_batch_tokens}
    found = run(texts("a b c d e f g h i", "a b"), letters(), **limits, pooling=pooling)
    assert found.places("sentence") == pytest.approx(at(*expected), abs=1e-3)


def test_the_pooler_is_that_of_the_first_window() -> None:
    settings = {"max_length": 6, "stride": 2, "levels": "sentence", "pooling": "pooler"}
    found = run(texts("a", "a b c d e f g h i", "a b"), letters(), **settings)
    # Window numbers 0, 1 (of four), 5; their lengths with the special tokens; the fake's third value.
    assert found.vectors("sentence", "pooler").tolist() == [[0, 3, 7], [1, 6, 7], [5, 4, 7]]
