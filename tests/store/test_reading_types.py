"""Reads in another float type, of layers by number, and as a pandas frame; and what a notebook shows of a store."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.store import selection
from bertfeat.store.reader import open_store
from tests.support.places import TESTS
from tests.support.shown_output import html_cells
from tests.support.store_fakes import N_LAYERS, make_plan, without_runs, write_store

GOLDEN = TESTS / "data" / "store"


@pytest.fixture(params=["copied", "decoded"])
def store(request, tmp_path):
    """A store of float16 vectors, some of them null."""
    plan = make_plan(levels=(Level.TOKEN, Level.WORD), encoding="binary" if request.param == "copied" else "array")
    write_store(tmp_path / "s", plan, nulls=request.param == "decoded")
    if request.param == "decoded":
        without_runs(tmp_path / "s")
    return open_store(tmp_path / "s")


@pytest.mark.parametrize("dtype", ["float16", "float32", np.float64, ">f4"])
@pytest.mark.parametrize("feature", ["layer_04", "concat_last4", "mean_last4"])
def test_another_float_type_is_that_of_the_stored_values(store, dtype, feature, monkeypatch):
    monkeypatch.setattr(selection, "_PIECE_BYTES", 64)
    stored = store.numpy("token", feature)
    found = store.numpy("token", feature, dtype=dtype)
    assert (stored.dtype, found.dtype) == (np.float16, np.dtype(dtype))
    np.testing.assert_array_equal(found, stored.astype(dtype))
    np.testing.assert_array_equal(store.slice("token", feature, 2, 9, dtype), stored[2:9].astype(dtype))


@pytest.mark.parametrize("dtype", ["int32", "half a float", object, "complex64"])
def test_other_types_are_refused(store, dtype):
    with pytest.raises(UserError, match=r"^dtype .* must be a float type: float16, float32 or float64$"):
        store.numpy("token", "layer_04", dtype=dtype)


def test_a_number_names_a_layer_in_every_read(store):
    for number, name in ((4, "layer_04"), (-1, "layer_06"), (np.int64(-2), "layer_05")):
        want = store.numpy("word", name)
        assert store.feature("word", number) == store.feature("word", name)
        np.testing.assert_array_equal(store.numpy("word", number), want)
        np.testing.assert_array_equal(store.torch("word", number).numpy(), want)
        np.testing.assert_array_equal(store.valid("word", number), store.valid("word", name))
        np.testing.assert_array_equal(store.slice("word", number, 3, 7), want[3:7])
        np.testing.assert_array_equal(store.take("word", number, [5, 0]), want[[5, 0]])
        assert store.arrow("word", ["word", number]).equals(store.arrow("word", ["word", name]))
        assert store.polars("word", [number]).equals(store.polars("word", [name]))
        assert store.pandas("word", [number]).columns.tolist() == [name]
        batches = [batch.vectors for batch in store.batches("word", number, batch_size=5)]
        np.testing.assert_array_equal(np.concatenate(batches), want)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (N_LAYERS + 1, "^no layer 7; layers are 0 to 6, and -1 is the last one$"),
        (-N_LAYERS - 2, "^no layer -8; layers are 0 to 6"),
        (2, r"^no feature 'layer_02' at level token, nor can it be made from those there are: layer_03, "),
        (1.5, "^feature 1.5 must be a name, or the number of a layer$"),
        (None, "^feature None must be a name"),
    ],
)
def test_a_layer_that_is_not_there_is_named(store, feature, message):
    with pytest.raises(UserError, match=message):
        store.numpy("token", feature)


def test_a_pandas_frame_holds_what_read_parquet_gives_with_vectors_as_arrays(store):
    found = store.pandas("word")
    assert list(found.columns) == list(store.columns("word"))
    parts = [pd.read_parquet(store.path / part.path) for part in store.parts("word")]
    read = pd.concat(parts, ignore_index=True)
    for name in ("doc_id", "word", "label"):
        pd.testing.assert_series_equal(found[name], read[name])
    valid = store.valid("word", "layer_05")
    np.testing.assert_array_equal(np.stack(found["layer_05"][valid]), store.numpy("word", "layer_05")[valid])
    assert found["layer_05"][~valid].isna().all()
    assert list(store.pandas("word", ["label", "doc_id"]).columns) == ["label", "doc_id"]
    with pytest.raises(UserError, match="no column 'x' at level word"):
        store.pandas("word", ["x"])


def test_the_length_is_the_number_of_documents():
    store = open_store(GOLDEN)
    assert len(store) == store.manifest.totals.counts["n_documents"] > 1
    shards = [store.shard(entry.shard) for entry in store.manifest.shards]
    assert sum(map(len, shards)) == len(store)


def test_a_notebook_shows_the_levels_and_every_text_is_escaped(tmp_path, store):
    assert repr(store) == f"Store({str(store.path)!r}, token: 12 rows, word: 12 rows)"
    title, *cells = html_cells(store._repr_html_())
    assert title == f"{store.path}: 12 documents, model tiny"
    assert cells[:4] == ["level", "rows", "columns", "features"]
    assert cells[4:7] == ["token", "12", "doc_id, token_index, token"]
    assert cells[7].startswith("layer_03[4], layer_04[4], ")
    place = tmp_path / "<script>alert(1)<"
    write_store(place / "a\nb", make_plan())
    odd = open_store(place / "a\nb")
    assert "<script>" not in odd._repr_html_()
    assert html_cells(odd._repr_html_())[0].startswith(f"{place}/a b: ")
    assert len(repr(odd).splitlines()) == 1
