"""Reads of a whole store: the values that were written, through bertfeat and through other libraries."""

from __future__ import annotations

import datetime
from base64 import b64encode

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.choices import Level
from bertfeat.errors import StoreError, UserError
from bertfeat.records import Column, FeatureColumn, LevelTable, ShardResult
from bertfeat.store.manifest import Totals
from bertfeat.store.reader import open_store
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import (
    HIDDEN,
    LAST4,
    layer_values,
    make_plan,
    make_result,
    vectors_of,
    write_store,
)

N_ROWS = 12


@pytest.fixture(params=["array", "binary"])
def encoding(request):
    return request.param


@pytest.fixture(params=["float16", "float32"])
def dtype(request):
    return request.param


def expected(name: str, plan) -> np.ndarray:
    feature = next(f for f in plan.schemas[Level.TOKEN].features if f.name == name)
    return vectors_of(feature, 0, N_ROWS, plan.fields["store_dtype"])


def test_the_array_encoding_opens_in_five_libraries(tmp_path, dtype):
    plan = make_plan(dtype=dtype)
    write_store(tmp_path / "s", plan)
    every = str(tmp_path / "s" / "token" / "*.parquet")
    want = expected("layer_04", plan)
    by_pyarrow = pq.read_table(tmp_path / "s" / "token")["layer_04"]
    by_polars = pl.scan_parquet(every).select("layer_04").collect()["layer_04"]
    by_pandas = pd.read_parquet(tmp_path / "s" / "token")["layer_04"]
    by_duckdb = duckdb.sql(f"select layer_04 from '{every}'").fetchall()
    np.testing.assert_array_equal(np.array(by_pyarrow.to_pylist(), dtype), want)
    np.testing.assert_array_equal(by_polars.to_numpy(), want)
    np.testing.assert_array_equal(np.stack(by_pandas.to_list()), want)
    np.testing.assert_array_equal(np.array([row[0] for row in by_duckdb], dtype), want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_array_encoding_opens_in_hugging_face_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    plan = make_plan()
    write_store(tmp_path / "s", plan)
    every = str(tmp_path / "s" / "token" / "*.parquet")
    loaded = datasets.Dataset.from_parquet(every, cache_dir=str(tmp_path / "cache"))
    assert loaded["token"][:] == open_store(tmp_path / "s").polars("token")["token"].to_list()
    np.testing.assert_array_equal(np.array(loaded["layer_04"][:], np.float16), expected("layer_04", plan))


def test_every_reader_of_the_store_gives_the_same_vectors(tmp_path, encoding, dtype):
    plan = make_plan(encoding=encoding, dtype=dtype)
    write_store(tmp_path / "s", plan)
    store = open_store(tmp_path / "s")
    for name in ("layer_03", "concat_last4"):
        want = expected(name, plan)
        assert store.numpy("token", name).dtype == want.dtype
        np.testing.assert_array_equal(store.numpy("token", name), want)
        np.testing.assert_array_equal(store.torch("token", name).numpy(), want)
        np.testing.assert_array_equal(store.polars("token", [name])[name].to_numpy(), want)
        np.testing.assert_array_equal(store.scan("token").select(name).collect()[name].to_numpy(), want)
        assert store.valid("token", name).all()
    assert store.arrow("token", ["token", "doc_id"]).column_names == ["token", "doc_id"]
    assert store.arrow("token")["doc_id"].to_pylist() == list(range(N_ROWS))
    assert store.n_rows("token") == N_ROWS
    assert store.levels == (Level.TOKEN,)
    assert store.columns("token")[:4] == ("doc_id", "token_index", "token", "layer_03")
    assert store.feature("token", "mean_last4") == FeatureColumn("mean_last4", LAST4, "mean", HIDDEN)
    assert store.plan == plan
    assert [receipt.counts["n_documents"] for receipt in store.receipts()] == [5, 4, 3]
    n_bytes = sum(part.n_bytes for part in store.parts("token"))
    assert store.manifest.totals == Totals(3, {"token": 12}, {"token": n_bytes}, 0, {"n_documents": 12, "tokens": 24})


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda store: store.take("token", "layer_03", [1, 12]), "no row 12; rows are 0 to 11"),
        (lambda store: store.rows("token", [-1], ["doc_id"]), "no row -1"),
        (lambda store: store.slice("token", "layer_03", 3, 13), "no rows 3 to 13 at level token, which has 12"),
        (lambda store: store.arrow("token", ["text"]), "no column 'text' at level token; columns are doc_id, "),
        (lambda store: store.rows("token", [0], ["tokn"]), "no column 'tokn' .*; did you mean 'token'"),
        (lambda store: store.batches("token", "layer_03", batch_size=0), "batch_size 0"),
        (lambda store: store.numpy("token", "layer_02"), "no feature 'layer_02' at .*: layer_03, .*, concat_last4"),
        (lambda store: store.numpy("token", "mean_all"), "no feature 'mean_all' at .*: layer_03, .*, concat_last4"),
        (lambda store: store.numpy("token", "layer_3"), "no feature 'layer_3' at .*; did you mean 'layer_03'"),
        (lambda store: store.scan("word"), "no level 'word'; levels are token"),
        (lambda store: store.scan("tokens"), "no level 'tokens'; did you mean 'token'"),
        (lambda store: store.shard(3), "no shard 3"),
    ],
)
def test_a_missing_row_level_column_or_feature_is_named(tmp_path, read, message):
    write_store(tmp_path / "s", make_plan())
    with pytest.raises(UserError, match=message):
        read(open_store(tmp_path / "s"))


def test_rows_without_vectors_are_null_in_the_part_and_nan_in_arrays(tmp_path, encoding, dtype):
    plan = make_plan(levels=(Level.WORD,), encoding=encoding, dtype=dtype)
    write_store(tmp_path / "s", plan, nulls=True)
    store = open_store(tmp_path / "s")
    assert [part.runs for part in store.parts("word")] == [None] * 3
    valid = np.array([row % 3 != 1 for n in (5, 4, 3) for row in range(n)])
    np.testing.assert_array_equal(store.valid("word", "layer_06"), valid)
    for name in ("layer_06", "concat_last4", "concat_05_06"):
        got = store.numpy("word", name)
        assert np.isnan(got[~valid]).all()
        assert np.isfinite(got[valid]).all()
    assert store.polars("word")["layer_06"].is_null().to_list() == (~valid).tolist()
    assert store.arrow("word")["layer_06"].is_null().to_pylist() == (~valid).tolist()
    np.testing.assert_array_equal(store.numpy("word", "layer_06")[valid], layer_values(0, N_ROWS, 6, dtype)[valid])


KEPT = {
    "uint8": [1, None, 255],
    "double": [0.1, None, float("inf")],
    "large_string": ["a", None, ""],
    "date32[day]": [datetime.date(2020, 2, 29), None, datetime.date(1, 1, 1)],
    "timestamp[ms, tz=Europe/Berlin]": [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None, None],
    "list<element: string>": [["a", None], None, []],
    "struct<a: int64, b: string>": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
}


@pytest.mark.parametrize("null_rows", [False, True])
def test_kept_columns_keep_their_values_whatever_their_type(tmp_path, null_rows, encoding):
    columns = [Column("doc_id", "int64", nullable=False), *(Column(name, name) for name in KEPT)]
    unnamed = [pa.timestamp("ms", "Europe/Berlin"), pa.list_(pa.string())]
    unnamed.append(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    odd = pa.schema(list(zip(list(KEPT)[-3:], unnamed, strict=True)))
    plan = make_plan(
        (3,),
        levels=(Level.SENTENCE,),
        columns={Level.SENTENCE: tuple(columns)},
        kept_schema=b64encode(odd.serialize().to_pybytes()).decode(),
        encoding=encoding,
    )
    table = LevelTable(
        Level.SENTENCE,
        3,
        {"doc_id": [0, 1, 2], **KEPT},
        {f.name: vectors_of(f, 0, 3, "float16") for f in plan.schemas[Level.SENTENCE].features},
        valid=np.array([True, False, True]) if null_rows else None,
    )
    with open_for_writing(tmp_path / "s", plan) as writer:
        writer.commit(plan.shards[0], ShardResult({Level.SENTENCE: table}, (), {}, {}))
        writer.complete()
    store = open_store(tmp_path / "s")
    for read in (store.arrow("sentence").to_pydict(), store.polars("sentence").to_dict(as_series=False)):
        assert {name: read[name] for name in KEPT} == KEPT


def test_no_rows_make_a_valid_store_with_its_schema(tmp_path, encoding):
    for name, shards in (("none", ()), ("some", (0, 2, 0))):
        write_store(tmp_path / name, make_plan(shards, encoding=encoding, levels=tuple(Level)))
        store = open_store(tmp_path / name)
        rows = sum(shards)
        assert store.numpy("word", "concat_last4").shape == (rows, 4 * HIDDEN)
        assert store.scan("token").collect().height == store.arrow("sentence").num_rows == rows
        assert store.valid("word", "layer_03").shape == (rows,)
        assert sum(len(batch.vectors) for batch in store.batches("word", "layer_03")) == rows


def test_the_error_of_an_incomplete_store_says_how_to_finish_it(tmp_path):
    plan = make_plan()
    with open_for_writing(tmp_path / "s", plan) as writer:
        with pytest.raises(StoreError, match="no shard is done yet"):
            open_store(tmp_path / "s", allow_incomplete=True).numpy("token", "layer_03")
        for shard in (plan.shards[0], plan.shards[2]):
            writer.commit(shard, make_result(plan, shard))
    with pytest.raises(StoreError, match=r"not complete, 2 of 3 shards are done; run the command .* again"):
        open_store(tmp_path / "s")
    store = open_store(tmp_path / "s", allow_incomplete=True)
    assert store.polars("token")["doc_id"].to_list() == [0, 1, 2, 3, 4, 9, 10, 11]


def test_a_store_reads_without_its_private_folder_and_through_links(tmp_path):
    write_store(tmp_path / "s", make_plan())
    # Names are not patterns.
    snapshot = tmp_path / "snapshot[1]*"
    for name in ("token", "manifests"):
        (snapshot / name).mkdir(parents=True)
    for file in [*(tmp_path / "s/manifests").iterdir(), *(tmp_path / "s/token").iterdir()]:
        (snapshot / file.relative_to(tmp_path / "s")).symlink_to(file)
    store = open_store(snapshot)
    assert store.numpy("token", "layer_03").shape == (store.scan("token").collect().height, HIDDEN)
    with pytest.raises(StoreError, match="copy the store with its _bertfeat folder"):
        store.plan  # noqa: B018
