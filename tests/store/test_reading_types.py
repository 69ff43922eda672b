"""Reads in another float type, of layers by number, and as a pandas frame; and what a notebook shows of a store."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.store.reader import open_store
from tests.support.shown_output import html_cells
from tests.support.store_fakes import N_LAYERS, make_plan, without_runs, write_store


@pytest.fixture(params=["copied", "decoded"])
def store(request, tmp_path):
    """A store of float16 vectors, some of them null."""
    plan = make_plan(levels=(Level.TOKEN, Level.WORD), encoding="binary" if request.param == "copied" else "array")
    write_store(tmp_path / "s", plan, nulls=request.param == "decoded")
    if request.param == "decoded":
        without_runs(tmp_path / "s")
    return open_store(tmp_path / "s")


@pytest.mark.parametrize("dtype", ["float16", "float32", np.float64, ">f4"])
def test_another_float_type_is_that_of_the_stored_values(store, dtype):
    for feature in ("layer_04", "mean_last4"):
        stored = store.numpy("token", feature)
        found = store.numpy("token", feature, dtype=dtype)
        assert (stored.dtype, found.dtype) == (np.float16, np.dtype(dtype))
        np.testing.assert_array_equal(found, stored.astype(dtype))
        np.testing.assert_array_equal(store.slice("token", feature, 2, 9, dtype), stored[2:9].astype(dtype))
    with pytest.raises(UserError, match=r"^dtype 'int32' must be a float type: float16, float32 or float64$"):
        store.numpy("token", "layer_04", dtype="int32")


def test_a_number_names_a_layer_in_every_read(store):
    for number, name in ((4, "layer_04"), (-1, "layer_06"), (np.int64(-2), "layer_05")):
        want = store.numpy("word", name)
        np.testing.assert_array_equal(store.numpy("word", number), want)
        np.testing.assert_array_equal(store.slice("word", number, 3, 7), want[3:7])
        np.testing.assert_array_equal(store.take("word", number, [5, 0]), want[[5, 0]])
        np.testing.assert_array_equal(store.valid("word", number), store.valid("word", name))
        assert store.polars("word", [number]).equals(store.polars("word", [name]))
    for number, message in ((N_LAYERS + 1, "^no layer 7; layers are 0 to 6, and -1 is the last one$"), (1.5, "a name")):
        with pytest.raises(UserError, match=message):
            store.numpy("token", number)


def test_a_pandas_frame_holds_what_read_parquet_gives_with_vectors_as_arrays(store):
    found = store.polars("word").to_pandas()
    assert list(found.columns) == list(store.columns("word"))
    read = pd.concat([pd.read_parquet(store.path / part.path) for part in store.parts("word")], ignore_index=True)
    for name in ("doc_id", "word", "label"):
        pd.testing.assert_series_equal(found[name], read[name])
    valid = store.valid("word", "layer_05")
    np.testing.assert_array_equal(np.stack(found["layer_05"][valid]), store.numpy("word", "layer_05")[valid])
    assert found["layer_05"][~valid].isna().all()


def test_a_notebook_shows_the_levels_and_every_text_is_escaped(tmp_path):
    place = tmp_path / "<script>alert(1)<"
    write_store(place / "a\nb", make_plan())
    store = open_store(place / "a\nb")
    assert "<script>" not in store._repr_html_()
    title, *cells = html_cells(store._repr_html_())
    assert title == f"{place}/a b: 12 documents, model tiny"
    assert cells[:7] == ["level", "rows", "columns", "features", "token", "12", "doc_id, token_index, token"]
    assert len(store) == 12
    assert len(repr(store).splitlines()) == 1
