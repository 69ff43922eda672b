"""Views, scans and data sets of a level: other libraries hold the rows and vectors that `numpy` gives."""

from __future__ import annotations

import pickle
import subprocess
import sys

import datasets
import duckdb
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.store.reader import open_store
from bertfeat.store.writer import open_for_writing
from tests.support import store_fakes
from tests.support.places import ROOT
from tests.support.store_fakes import KINDS, make_plan, make_result, n_bytes_read, part_at, write_store

SHARDS = (260, 0, 7, 5)
COLUMNS = ["word", "layer_05", "doc_id", "mean_last4", "label"]


@pytest.fixture(scope="module", params=[(*KINDS[0], "concat"), (*KINDS[3], "none")], ids=str)
def store(request, tmp_path_factory):
    """A store with several row groups per part, and null vectors in the third part."""
    dtype, encoding, combine = request.param
    folder = tmp_path_factory.mktemp("views") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_fakes, "HIDDEN", 4096)
        plan = make_plan(SHARDS, levels=(Level.WORD,), combine=combine, dtype=dtype, encoding=encoding)
        with open_for_writing(folder, plan) as writer:
            for shard in writer.pending():
                writer.commit(shard, make_result(plan, shard, nulls=shard.index == 2))
            writer.complete()
    return open_store(folder)


def rows_of(column):
    """Return vectors as an array (n_rows, dim), NaN where one is None."""
    dim = max(len(row) for row in column if row is not None)
    return np.array([np.full(dim, np.nan) if row is None else np.asarray(row) for row in column], np.float32)


TAKEN = {
    "polars": lambda view: pl.DataFrame(view).to_dict(as_series=False),
    "pyarrow": lambda view: pa.table(view).to_pydict(),
    "pandas": lambda view: pd.DataFrame.from_arrow(view).to_dict("list"),
    "duckdb": lambda view: dict(
        zip(COLUMNS, zip(*duckdb.sql("select * from view").fetchall(), strict=True), strict=True)
    ),
    "datasets": lambda view: datasets.Dataset(pa.table(view)).to_dict(),
    "narwhals": lambda view: nw.from_arrow(view, backend="pyarrow").to_dict(as_series=False),
    "scan": lambda view: view.scan().collect().to_dict(as_series=False),
}


@pytest.mark.parametrize("library", TAKEN)
def test_a_library_takes_stored_and_made_columns(store, library):
    # DuckDB has no half floats.
    view = store["word"].select(*COLUMNS, dtype="float32")
    found, columns = TAKEN[library](view), pq.read_table(store.path / "word", columns=["word", "doc_id", "label"])
    assert list(found) == COLUMNS
    assert len(view) == sum(SHARDS)
    for name in columns.column_names:
        # pandas has NaN for None.
        assert [None if value != value else value for value in found[name]] == columns[name].to_pylist()
    for name in ("layer_05", "mean_last4"):
        np.testing.assert_array_equal(rows_of(found[name]), store.numpy("word", name, "float32"))


def test_all_stored_columns_are_the_default_and_the_stored_type_stays(store):
    whole = pa.table(store["word"])
    assert whole.schema.equals(store["word"].schema, check_metadata=True)
    assert tuple(whole.column_names) == store.columns("word")
    assert whole.equals(store.arrow("word"))
    feature = store.features("word")[-1]
    assert whole.schema.field(feature.name).type.value_type == getattr(pa, store.manifest.store_dtype)()
    assert whole[feature.name].is_valid().to_numpy().tolist() == store.valid("word", feature.name).tolist()
    assert pl.DataFrame(store["word"]).equals(store.polars("word"))
    with pytest.raises(UserError, match="no column 'wrod' at level word; did you mean 'word'"):
        store["word"].select("wrod")
    with pytest.raises(UserError, match="dtype int8 must be float32, or float"):
        store["word"].select(dtype="int8")


def test_a_scan_gives_what_polars_computes_from_the_whole_table(store):
    columns = [*COLUMNS, "concat_last4"]
    whole, scan = store.polars("word", columns), store.scan("word", columns)
    odd, first = pl.col("doc_id") % 2 == 1, pl.col("mean_last4").arr.first() > 400
    for change in (
        lambda frame: frame.select("mean_last4", "doc_id"),
        lambda frame: frame.filter(odd).select("concat_last4"),
        lambda frame: frame.filter(first & odd).select("word", "layer_05"),
        lambda frame: frame.filter(odd).head(30),
        lambda frame: frame.head(262).filter(odd).select("layer_05"),
        lambda frame: frame.slice(258, 9).select("label", "mean_last4"),
        lambda frame: frame.filter(pl.col("mean_last4").is_null()),
        lambda frame: frame.filter(pl.lit(value=False)),
        lambda frame: frame.select(pl.len()),
        lambda frame: frame.group_by("label", maintain_order=True).agg(pl.col("layer_05").is_null().sum()),
    ):
        assert change(scan).collect().equals(change(whole.lazy()).collect())


def test_a_scan_reads_only_the_columns_and_rows_that_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(store_fakes, "HIDDEN", 384)
    write_store(tmp_path / "s", make_plan((4000, 4000), combine="none"))
    store = open_store(tmp_path / "s")
    scan, n_column = store.scan("token", ["doc_id", "token_index", "mean_last4", "concat_05_06"]), 8000 * 384 * 2
    few = scan.filter(pl.col("token_index") % 400 == 0)
    n_few = few.select(pl.len()).collect().item() / 8000
    assert 0 < n_few < 0.02
    for frame, n_bytes in (
        (scan.select("doc_id"), 0.05),
        (scan.select("concat_05_06"), 2.05),
        (scan.select("mean_last4").head(2000), 1.05),
        # A read takes bytes between rows that are close together.
        (few.select("concat_05_06"), 0.05 + 4 * n_few),
    ):
        before = n_bytes_read()
        frame.collect()
        assert n_bytes_read() - before < n_bytes * n_column + 300_000


@pytest.mark.parametrize(
    ("query", "code"),
    [("frame.cast({'token': pl.Int64}).collect(engine='streaming')", 1), ("next(frame.collect_batches())", 0)],
    ids=["an error", "rows that are not taken"],
)
def test_a_process_ends_as_it_would_when_a_scan_stops_early(tmp_path, monkeypatch, query, code):
    monkeypatch.setattr(store_fakes, "HIDDEN", 1536)
    write_store(tmp_path / "s", make_plan((8000, 8000), combine="none"))
    script = f"""
import polars as pl
from bertfeat import open_store
frame = open_store({str(tmp_path / "s")!r}).scan("token", ["token", "mean_last4", "concat_05_06"])
{query}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("encoding", ["array", "binary"])
def test_vectors_say_what_they_are_in_parts_and_in_views(tmp_path, encoding):
    plan = make_plan(levels=(Level.SENTENCE,), encoding=encoding)
    plan.metadata.update(model="owner/name", revision="1f2e", pooling="model", sentence_model="mean, then normalizes")
    write_store(tmp_path / "s", plan)
    view = open_store(tmp_path / "s")["sentence"].select("text", "layer_03", "mean_last4")
    same = {"model": "owner/name", "revision": "1f2e", "pooling": "model", "normalized": "true", "dim": "4"}
    expected = {b"layers": b"[3]", b"combine": b"none"} | {key.encode(): same[key].encode() for key in same}
    assert pq.read_schema(part_at(tmp_path / "s", "sentence", 0)).field("layer_03").metadata == expected
    assert view.schema.field("layer_03").metadata == expected
    assert view.schema.field("mean_last4").metadata == expected | {b"layers": b"[3, 4, 5, 6]", b"combine": b"mean"}
    # A file that another program makes of a view has them too.
    pq.write_table(pa.table(view), tmp_path / "other.parquet")
    assert pq.read_schema(tmp_path / "other.parquet").equals(view.schema, check_metadata=True)


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_of_torch_gives_each_row_with_a_vector_and_its_label_once(store, n_workers):
    data = store.torch_dataset("word", "mean_last4", label="label")
    labels, vectors = store.polars("word", ["label"])["label"].to_numpy(), store.numpy("word", "mean_last4", "float32")
    whole = [row for row in range(len(labels)) if labels[row] is not None and not np.isnan(vectors[row]).any()]
    assert data.rows.tolist() == whole
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=n_workers, generator=generator)
    found, classes = zip(*loader, strict=True)
    assert [len(batch) for batch in found] == [64] * (len(whole) // 64) + [len(whole) % 64]
    named = [data.classes[number] for number in torch.cat(classes).tolist()]
    order = [labels.tolist().index(label) for label in named]
    assert sorted(order) == whole != order
    assert torch.equal(torch.cat(found), torch.from_numpy(vectors[order]))


def test_items_of_torch_without_labels_and_with_numbers(store):
    data = store.torch_dataset("word", -1)
    vectors = store.numpy("word", -1, "float32")[store.valid("word", -1)]
    assert len(data) == len(vectors)
    assert torch.equal(data[-1], torch.from_numpy(vectors[-1]))
    assert torch.equal(torch.stack(list(data)), torch.from_numpy(vectors))
    numbered = store.torch_dataset("word", -1, label="doc_id")
    assert numbered.classes is None
    # A worker that is spawned gets the data set like this.
    again = pickle.loads(pickle.dumps(numbered))
    assert torch.equal(again[3][0], data[3])
    assert [int(label) for _, label in again.__getitems__([5, 2])] == [5, 2]
