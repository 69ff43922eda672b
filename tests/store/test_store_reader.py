"""What is written comes back the same, through our reader and through everybody else's."""

from __future__ import annotations

import datetime
from base64 import b64encode
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.config import Level
from bertfeat.errors import StoreError, UserError
from bertfeat.records import Column, FeatureColumn, LevelTable, ShardResult
from bertfeat.store import commit_shard, open_for_writing, open_store
from tests.support.store_fakes import (
    HIDDEN,
    LAST4,
    N_LAYERS,
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
    paths = [str(tmp_path / "s" / "token" / f"part-{n:05d}.parquet") for n in range(3)]
    want = expected("layer_04", plan)
    by_pyarrow = pa.concat_tables([pq.read_table(path) for path in paths])["layer_04"]
    by_polars = pl.scan_parquet(paths).select("layer_04").collect()["layer_04"]
    by_pandas = pd.concat([pd.read_parquet(path) for path in paths])["layer_04"]
    by_duckdb = duckdb.sql(f"select layer_04 from read_parquet({paths}) order by doc_id").fetchall()
    np.testing.assert_array_equal(np.array(by_pyarrow.to_pylist(), dtype), want)
    np.testing.assert_array_equal(by_polars.to_numpy(), want)
    np.testing.assert_array_equal(np.stack(by_pandas.to_list()), want)
    np.testing.assert_array_equal(np.array([row[0] for row in by_duckdb], dtype), want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_array_encoding_opens_in_hugging_face_datasets(tmp_path, dtype):
    datasets = pytest.importorskip("datasets")
    plan = make_plan(dtype=dtype)
    write_store(tmp_path / "s", plan)
    paths = [str(tmp_path / "s" / "token" / f"part-{n:05d}.parquet") for n in range(3)]
    loaded = datasets.Dataset.from_parquet(paths, cache_dir=str(tmp_path / "cache"))
    assert loaded["token"][:] == open_store(tmp_path / "s").polars("token")["token"].to_list()
    np.testing.assert_array_equal(np.array(loaded["layer_04"][:], dtype), expected("layer_04", plan))


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
    assert store.plan == plan
    assert [receipt.counts["documents"] for receipt in store.receipts()] == [5, 4, 3]
    assert store.manifest["totals"] == {
        "n_shards": 3,
        "n_rows": {"token": 12},
        "n_bytes": {"token": sum(part.n_bytes for part in store.parts("token"))},
        "n_bad_rows": 0,
        "counts": {"documents": 12, "tokens": 24},
    }


@pytest.mark.parametrize("batch_size", [1, 4, 5, 7, 100])
def test_batches_cross_parts_and_lose_no_row(tmp_path, encoding, batch_size):
    plan = make_plan(encoding=encoding)
    write_store(tmp_path / "s", plan)
    store = open_store(tmp_path / "s")
    batches = list(store.batches("token", "concat_last4", batch_size=batch_size, columns=["doc_id"]))
    assert all(len(batch.vectors) == batch_size for batch in batches[:-1])
    assert [n for batch in batches for n in batch.rows] == list(range(N_ROWS))
    assert [n for batch in batches for n in batch.columns["doc_id"]] == list(range(N_ROWS))
    np.testing.assert_array_equal(np.concatenate([b.vectors for b in batches]), expected("concat_last4", plan))


def test_many_row_groups_come_back_in_order(tmp_path, encoding, monkeypatch):
    monkeypatch.setattr("bertfeat.store.schema._ROW_GROUP_BYTES", 3 * 2 * 8 * HIDDEN)
    plan = make_plan((50, 7), encoding=encoding)
    write_store(tmp_path / "s", plan, nulls=encoding == "binary")
    assert pq.ParquetFile(tmp_path / "s" / "token" / "part-00000.parquet").num_row_groups == 17
    store = open_store(tmp_path / "s")
    got = store.numpy("token", "layer_05")
    valid = store.valid("token", "layer_05")
    np.testing.assert_array_equal(got[valid], layer_values(0, 57, 5, "float16")[valid])
    assert np.isnan(got[~valid]).all()


def test_layers_and_concatenations_are_made_from_each_other(tmp_path, encoding):
    by_layer, by_concat = make_plan(combine="none", encoding=encoding), make_plan(combine="concat", encoding=encoding)
    write_store(tmp_path / "layers", by_layer)
    write_store(tmp_path / "concat", by_concat)
    layers, concat = open_store(tmp_path / "layers"), open_store(tmp_path / "concat")
    np.testing.assert_array_equal(layers.numpy("token", "concat_last4"), concat.numpy("token", "concat_last4"))
    for store in (layers, concat):
        for layer in LAST4:
            want = layer_values(0, N_ROWS, layer, "float16")
            np.testing.assert_array_equal(store.numpy("token", f"layer_{layer:02d}"), want)
        pair = np.concatenate([layer_values(0, N_ROWS, layer, "float16") for layer in (4, 6)], axis=1)
        np.testing.assert_array_equal(store.numpy("token", "concat_04_06"), pair)
        np.testing.assert_array_equal(next(store.batches("token", "concat_04_06")).vectors, pair)
        assert store.numpy("token", "concat_last2").shape == (N_ROWS, 2 * HIDDEN)


def test_sums_and_means_are_made_from_layers_wherever_these_stand(tmp_path, encoding, dtype):
    for combine in ("none", "concat"):
        write_store(tmp_path / combine, make_plan(combine=combine, encoding=encoding, dtype=dtype))
        store = open_store(tmp_path / combine)
        layers = np.stack([layer_values(0, N_ROWS, layer, dtype).astype(np.float32) for layer in LAST4])
        np.testing.assert_array_equal(store.numpy("token", "sum_last4"), layers.sum(0).astype(dtype))
        np.testing.assert_array_equal(store.numpy("token", "mean_last4"), layers.mean(0).astype(dtype))
        np.testing.assert_array_equal(store.numpy("token", "mean_03_05"), layers[[0, 2]].mean(0).astype(dtype))
        assert store.feature("token", "mean_last4") == FeatureColumn("mean_last4", LAST4, "mean", HIDDEN)
        assert store.feature("token", "layer_04") == FeatureColumn("layer_04", (4,), "none", HIDDEN)
        assert store.feature("token", "concat_last4") == FeatureColumn("concat_last4", LAST4, "concat", 4 * HIDDEN)


def test_some_rows_are_the_same_rows_of_all(tmp_path, encoding, monkeypatch):
    monkeypatch.setattr("bertfeat.store.schema._ROW_GROUP_BYTES", 2 * 2 * 8 * HIDDEN)
    write_store(tmp_path / "s", make_plan(encoding=encoding))
    store = open_store(tmp_path / "s")
    frame = store.polars("token", ["token", "doc_id"])
    for feature in ("layer_03", "concat_last4", "mean_last4"):
        whole = store.numpy("token", feature)
        for rows in ([0], [11, 0, 5, 5, 4], list(range(N_ROWS)), [], np.arange(3)[::-1]):
            np.testing.assert_array_equal(store.take("token", feature, rows), whole[np.asarray(rows, np.int64)])
            assert store.rows("token", rows, ["token", "doc_id"]).rows() == [frame.row(int(row)) for row in rows]
        for start, stop in ((0, 0), (0, N_ROWS), (3, 10), (4, 5), (12, 12)):
            np.testing.assert_array_equal(store.slice("token", feature, start, stop), whole[start:stop])


def test_rows_that_are_not_there_are_named(tmp_path):
    write_store(tmp_path / "s", make_plan())
    store = open_store(tmp_path / "s")
    with pytest.raises(UserError, match="no row 12; rows are 0 to 11"):
        store.take("token", "layer_03", [1, 12])
    with pytest.raises(UserError, match="no row -1"):
        store.rows("token", [-1], ["doc_id"])
    with pytest.raises(UserError, match="whole numbers"):
        store.take("token", "layer_03", [0.5])
    with pytest.raises(UserError, match="no rows 3 to 13 at level token, which has 12"):
        store.slice("token", "layer_03", 3, 13)
    with pytest.raises(UserError, match="no column 'x'"):
        store.rows("token", [0], ["x"])


@pytest.mark.parametrize("name", ["layer_02", "concat_all", "concat_02_03", "mean_all", "layer_3", "", "concat_"])
def test_a_feature_that_cannot_be_made_is_named_with_those_there_are(tmp_path, name):
    write_store(tmp_path / "s", make_plan())
    with pytest.raises(UserError, match=r"no feature .* at level token, .*: layer_03, .*, concat_last4"):
        open_store(tmp_path / "s").numpy("token", name)


def test_a_missing_level_column_or_batch_size_is_named(tmp_path):
    write_store(tmp_path / "s", make_plan())
    store = open_store(tmp_path / "s")
    with pytest.raises(UserError, match="no level 'word'; levels are token"):
        store.scan("word")
    with pytest.raises(UserError, match="no column 'text' at level token; columns are doc_id, "):
        store.arrow("token", ["text"])
    with pytest.raises(UserError, match="batch_size 0"):
        store.batches("token", "layer_03", batch_size=0)


def test_rows_without_vectors_are_null_in_the_part_and_nan_in_arrays(tmp_path, encoding, dtype):
    plan = make_plan(levels=(Level.WORD,), encoding=encoding, dtype=dtype)
    write_store(tmp_path / "s", plan, nulls=True)
    store = open_store(tmp_path / "s")
    valid = np.array([row % 3 != 1 for n in (5, 4, 3) for row in range(n)])
    np.testing.assert_array_equal(store.valid("word", "layer_06"), valid)
    for name in ("layer_06", "concat_last4", "concat_05_06"):
        got = store.numpy("word", name)
        assert np.isnan(got[~valid]).all()
        assert np.isfinite(got[valid]).all()
    assert store.polars("word")["layer_06"].is_null().to_list() == (~valid).tolist()
    assert store.arrow("word")["layer_06"].is_null().to_pylist() == (~valid).tolist()
    path = tmp_path / "s" / "word" / "part-00000.parquet"
    assert duckdb.sql(f"select count(layer_06) from '{path}'").fetchall() == [(3,)]
    np.testing.assert_array_equal(store.numpy("word", "layer_06")[valid], layer_values(0, N_ROWS, 6, dtype)[valid])


def test_the_content_of_a_row_without_vector_does_not_reach_the_part(tmp_path, encoding):
    plan = make_plan((4,), encoding=encoding)
    for name, filler in (("a", np.nan), ("b", 7.0)):
        result = make_result(plan, plan.shards[0], nulls=True)
        table = result.tables[Level.TOKEN]
        for vectors in table.vectors.values():
            vectors[~table.valid] = filler
        with open_for_writing(tmp_path / name, plan) as writer:
            writer.commit(plan.shards[0], result)
            writer.complete()
    parts = [(tmp_path / name / "token" / "part-00000.parquet").read_bytes() for name in "ab"]
    assert parts[0] == parts[1]


KEPT = {
    "bool": [True, None, False],
    "uint8": [1, None, 255],
    "float": [0.5, None, float("nan")],
    "double": [0.1, None, float("inf")],
    "large_string": ["a", None, ""],
    "date32[day]": [datetime.date(2020, 2, 29), None, datetime.date(1, 1, 1)],
    "timestamp[us]": [datetime.datetime(2020, 1, 1, 1), None, datetime.datetime(1969, 1, 1)],
    "timestamp[ms, tz=Europe/Berlin]": [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None, None],
    "list<element: string>": [["a", None], None, []],
    "struct<a: int64, b: string>": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
}


@pytest.mark.parametrize("null_rows", [False, True])
def test_kept_columns_keep_their_values_whatever_their_type(tmp_path, null_rows, encoding):
    columns = [Column("doc_id", "int64", nullable=False)]
    columns += [Column(f"kept {n}", name) for n, name in enumerate(KEPT)]
    odd = pa.schema([("kept 8", pa.list_(pa.string())), ("kept 9", pa.struct([("a", pa.int64()), ("b", pa.string())]))])
    plan = make_plan(
        (3,),
        levels=(Level.SENTENCE,),
        columns={Level.SENTENCE: tuple(columns)},
        kept_schema=b64encode(odd.serialize().to_pybytes()).decode(),
        encoding=encoding,
    )
    schema = plan.schemas[Level.SENTENCE]
    table = LevelTable(
        Level.SENTENCE,
        3,
        {"doc_id": [0, 1, 2], **{f"kept {n}": values for n, values in enumerate(KEPT.values())}},
        {f.name: vectors_of(f, 0, 3, "float16") for f in schema.features},
        valid=np.array([True, False, True]) if null_rows else None,
    )
    with open_for_writing(tmp_path / "s", plan) as writer:
        commit_shard(writer.root, plan, plan.shards[0], ShardResult({Level.SENTENCE: table}, (), {}, {}))
        writer.complete()
    store = open_store(tmp_path / "s")
    for read in (store.arrow("sentence").to_pydict(), store.polars("sentence").to_dict(as_series=False)):
        for n, values in enumerate(KEPT.values()):
            for got, want in zip(read[f"kept {n}"], values, strict=True):
                assert got == want or (got != got and want != want)


def test_an_unstorable_column_type_is_refused_before_anything_is_written(tmp_path):
    columns = {Level.SENTENCE: (Column("doc_id", "int64"), Column("price", "decimal256(50, 2)"))}
    with pytest.raises(StoreError, match=r"column 'price' has type decimal256\(50, 2\), which cannot be stored"):
        open_for_writing(tmp_path / "s", make_plan(levels=(Level.SENTENCE,), columns=columns))
    assert not (tmp_path / "s").exists()


def test_no_rows_make_a_valid_store_with_its_schema(tmp_path, encoding):
    for name, shards in (("none", ()), ("empty", (0,)), ("some", (0, 2, 0))):
        write_store(tmp_path / name, make_plan(shards, encoding=encoding, levels=tuple(Level)))
        store = open_store(tmp_path / name)
        rows = sum(shards)
        assert store.numpy("word", "concat_last4").shape == (rows, 4 * HIDDEN)
        assert store.scan("token").collect().height == rows
        assert store.arrow("sentence").num_rows == rows
        assert store.valid("word", "layer_03").shape == (rows,)
        assert sum(len(batch.vectors) for batch in store.batches("word", "layer_03")) == rows
        assert store.polars("sentence").columns[:2] == ["doc_id", "text"]


def test_an_incomplete_store_says_how_to_finish_it(tmp_path):
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


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no such folder"):
        open_store(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"not a bertfeat store: it has no manifest\.json"):
        open_store(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(StoreError, match="not a bertfeat store"):
        open_store(file)


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    plan = make_plan()
    with monkeypatch.context() as patch:
        patch.setattr("bertfeat.store.layout.FORMAT_VERSION", 2)
        write_store(tmp_path / "s", plan)
    with pytest.raises(StoreError, match="format_version 2, this bertfeat reads up to 1; upgrade bertfeat"):
        open_store(tmp_path / "s")
    with pytest.raises(StoreError, match="upgrade bertfeat"):
        open_for_writing(tmp_path / "s", plan)


def test_a_store_reads_without_its_private_folder_and_through_links(tmp_path):
    write_store(tmp_path / "s", make_plan())
    snapshot = tmp_path / "snapshot"
    (snapshot / "token").mkdir(parents=True)
    for file in [tmp_path / "s" / "manifest.json", *(tmp_path / "s" / "token").iterdir()]:
        (snapshot / file.relative_to(tmp_path / "s")).symlink_to(file)
    store = open_store(snapshot)
    assert store.numpy("token", "layer_03").shape == (N_ROWS, HIDDEN)
    with pytest.raises(StoreError, match="copy the store with its _bertfeat folder"):
        store.plan  # noqa: B018


def test_a_damaged_part_is_named_by_every_reader(tmp_path):
    write_store(tmp_path / "s", make_plan())
    path = tmp_path / "s" / "token" / "part-00001.parquet"
    path.write_bytes(path.read_bytes()[:100])
    store = open_store(tmp_path / "s")
    for read in (
        lambda: store.numpy("token", "layer_03"),
        lambda: store.arrow("token"),
        lambda: list(store.batches("token", "layer_03")),
    ):
        with pytest.raises(StoreError, match=r"part-00001.parquet: cannot be read: .*; run bertfeat verify"):
            read()


def test_a_path_with_pattern_characters_is_taken_as_it_is(tmp_path):
    write_store(tmp_path / "s[1]*", make_plan())
    assert open_store(tmp_path / "s[1]*").scan("token").collect().height == N_ROWS


def test_layers_count_from_the_embeddings(tmp_path):
    plan = make_plan()
    assert plan.model.n_layers == N_LAYERS
    write_store(tmp_path / "s", plan)
    assert Path(tmp_path / "s" / "manifest.json").is_file()
    assert open_store(str(tmp_path / "s")).numpy("token", "layer_06")[0, 0] == 600
