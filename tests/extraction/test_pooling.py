"""Pooling with values known by hand: segments to vectors, layers to features, windows merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bertfeat.choices import Combine, Pooling, StoreDtype, WordPooling
from bertfeat.encoder.sentence_model import SentenceMode
from bertfeat.extraction import pooling
from bertfeat.extraction.pooling import MODES, LevelBuffer, combine_layers
from bertfeat.records import FeatureColumn
from bertfeat.text.alignment import Takes, token_units
from bertfeat.text.packing import make_pack
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import CLS, FakeStates, at, letters, letters_backend, run, texts

pytestmark = pytest.mark.numeric

STATES = torch.tensor([[1.0, -1.0], [2.0, -2.0], [4.0, -4.0], [8.0, -8.0]])


@pytest.mark.parametrize(
    ("mode", "positions", "starts", "expected"),
    [
        ("first", [3, 0], [0, 1], [[8, -8], [1, -1]]),
        ("max", [0, 2, 3], [0, 2], [[4, -1], [8, -8]]),
        # The sum: it is divided when the last part of the row has come.
        ("mean", [0, 2, 3], [0, 2], [[5, -5], [8, -8]]),
    ],
)
def test_segments_become_vectors(
    mode: str, positions: list[int], starts: list[int], expected: list[list[float]]
) -> None:
    found = MODES[mode].reduce(STATES, torch.tensor(positions), torch.tensor(starts), None)
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_of_half_precision_states_adds_up_in_float32(dtype: torch.dtype) -> None:
    states = torch.full((1000, 1), 1.0, dtype=dtype)
    states[0] = 2048
    found = MODES["mean"].reduce(states, torch.arange(1000), torch.tensor([0]), None)
    assert found.dtype == torch.float32
    assert found.item() == 2048 + 999


def test_every_name_has_a_mode_that_fits_its_level() -> None:
    assert set(MODES) == {*WordPooling, *Pooling, *SentenceMode} - {Pooling.MODEL}
    assert {MODES[name].takes for name in WordPooling} <= {Takes.ALL, Takes.FIRST, Takes.LAST}
    of_sentences = {MODES[name].takes for name in {*Pooling, *SentenceMode} - {Pooling.MODEL}}
    assert of_sentences == {Takes.ALL, Takes.LAST, Takes.CLS, Takes.WINDOW}


def test_the_sum_of_half_precision_layers_is_taken_in_float32() -> None:
    layers = [torch.tensor([[2048.0]], dtype=torch.float16), torch.tensor([[1.0]], dtype=torch.float16)]
    assert combine_layers(layers, Combine.SUM).tolist() == [[2049]]
    assert combine_layers(layers, Combine.MEAN).tolist() == [[1024.5]]


@pytest.mark.parametrize("combine", ["none", "concat", "none,concat", "none,concat,sum,mean"])
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


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 6, "on_overlong": "truncate"},
        {"max_length": 6, "stride": 2, "word_pooling": "max", "combine": "none,sum"},
        {"levels": "sentence", "pooling": "pooler"},
        {"levels": "sentence", "pooling": "pooler", "specials": False},
        {"specials": False},
    ],
)
def test_no_vector_has_values_of_uninitialized_memory(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoilt:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def empty(self, shape: tuple[int, ...], **kind: Any) -> torch.Tensor:
            return torch.full(shape, torch.nan, **kind)

    monkeypatch.setattr(pooling, "torch", Spoilt())
    backend = letters_backend()
    if not settings.pop("specials", True):
        backend.post_processor = None
    tokenizer = Tokenizer(backend, cls_id=CLS)
    found = run(texts("ab c", "", "a b c d e f g h i", "hello"), tokenizer, **settings)
    n_without = dict.fromkeys(found.tables, 0)
    for level, table in found.tables.items():
        for vectors in table.vectors.values():
            assert not np.isnan(vectors).any()
        if table.valid is not None:
            n_without[level] = int((~table.valid).sum())
            assert all((vectors[~table.valid] == 0).all() for vectors in table.vectors.values())
    has_specials = tokenizer.single.n_specials > 0
    # The empty text has no token of its own, and without special ones no window.
    assert n_without["sentence"] == (0 if has_specials and settings.get("pooling") == "pooler" else 1)


def test_a_combination_is_rounded_once() -> None:
    class Half(FakeStates):
        def layer(self, index: int) -> torch.Tensor:
            return torch.full((self.pack.n_tokens, 1), 1 + 2.0**-11)

    text = run(texts("a"), letters(), levels="token").text
    columns = [FeatureColumn("sum_01_02", (1, 2), "sum", 1), FeatureColumn("layer_01", (1,), "none", 1)]
    buffer = LevelBuffer(token_units(text.windows), MODES["first"], columns, StoreDtype.FLOAT16)
    pack = make_pack(text.windows, np.array([0]))
    buffer.add(pack, Half(pack))
    # Each layer rounds to 1, their sum to 2 + 2 ** -10 (to even: 2), and not to the sum of rounded layers by chance.
    assert buffer.vectors["layer_01"][0, 0] == 1
    assert buffer.vectors["sum_01_02"][0, 0] == np.float16(2 + 2.0**-10)
    assert buffer.vectors["sum_01_02"].dtype is torch.float16


@pytest.mark.parametrize("max_batch_tokens", [6, 7, 13, 1000])
@pytest.mark.parametrize(("pooling", "expected"), [("mean", [21 / 9, 1.5]), ("max", [3, 2])])
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
