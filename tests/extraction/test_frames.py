"""Data frames as inputs: one table gives the same store, whichever library holds it and however it is cut."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertfeat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import data_frames
from bertfeat.corpus.data_frames import resolve_kind, write_frame
from bertfeat.errors import InputError, PlanMismatch
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.estimation import estimate
from bertfeat.extraction.run import extract
from tests.support.cli_runs import run_cli
from tests.support.drill import result_files, run_killed_at
from tests.support.families import SENTENCES
from tests.support.store_fakes import receipt_files

pytestmark = pytest.mark.usefixtures("one_thread")

N_ROWS = 24
COLUMNS = {
    "unused": [{"a": [number]} for number in range(N_ROWS)],
    "id": list(range(100, 100 + N_ROWS)),
    "kind": [("first", None, "third")[number % 3] for number in range(N_ROWS)],
    "text": [SENTENCES[number % len(SENTENCES)] for number in range(N_ROWS)],
}
TABLE = pa.table(COLUMNS)


def shuffled_then_sorted() -> datasets.Dataset:
    order = list(range(N_ROWS))
    random.Random(1).shuffle(order)
    return datasets.Dataset.from_dict(COLUMNS).select(order).select(np.argsort(order))


FRAMES: dict[str, Callable[[], Any]] = {
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars in chunks": lambda: pl.concat([pl.DataFrame(COLUMNS)[:5], pl.DataFrame(COLUMNS)[5:]], rechunk=False),
    "polars categories": lambda: pl.DataFrame(COLUMNS).with_columns(pl.col("kind", "text").cast(pl.Categorical)),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas objects": lambda: pd.DataFrame(COLUMNS).astype({"text": object, "kind": "category"}),
    "pandas filtered": lambda: pd.DataFrame({name: [values[0], *values] for name, values in COLUMNS.items()})[1:],
    "pandas with an index and other columns": lambda: (
        pd.DataFrame(COLUMNS | {"unused": [object(), 1] * (N_ROWS // 2)})
        .set_index(pd.Index(range(N_ROWS), name="text"))
        .assign(same=1)
        .set_axis([*COLUMNS, "unused"], axis=1)
    ),
    "pyarrow": lambda: TABLE,
    "pyarrow large strings": lambda: pl.DataFrame(COLUMNS).to_arrow(compat_level=pl.CompatLevel.oldest()),
    "pyarrow columns in another order": lambda: TABLE.select(TABLE.column_names[::-1]),
    "reader": lambda: TABLE.to_reader(max_chunksize=7),
    "duckdb": lambda: duckdb.from_arrow(TABLE),
    "dataset": lambda: datasets.Dataset.from_dict(COLUMNS),
    "dataset shuffled, then sorted": shuffled_then_sorted,
}


@pytest.fixture(scope="module")
def settings(model: Path) -> dict[str, Any]:
    named = {"model": str(model), "id_column": "id", "keep_columns": "kind", "layers": "-1", "shard_bytes": 25_000}
    return {**named, "levels": ["word", "sentence"]}


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, Any]:
    return {"model": str(model), "layers": "-1", "levels": "sentence"}


@pytest.fixture(scope="module")
def own_file(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]) -> Path:
    """The Parquet file that bertfeat writes of the table."""
    return write_frame(TABLE, tmp_path_factory.mktemp("own"), ExtractConfig.of(None, settings))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any], own_file: Path) -> dict[str, bytes]:
    return results(extract(own_file, tmp_path_factory.mktemp("whole") / "s", **settings).path)


def results(root: Path) -> dict[str, bytes]:
    """Return the files of a store that must be the same; a plan and a manifest also name the file."""
    return {name: data for name, data in result_files(root).items() if not name.endswith(".json")}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_gives_the_store_of_its_parquet_file(kind, tmp_path, settings, whole, own_file):
    store = extract(FRAMES[kind](), tmp_path / "s", **settings)
    assert len(store.plan.shards) > 2
    assert results(store.path) == whole
    assert [file.path for file in store.manifest.inputs] == ["<frame>"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"], "the copy of the frame is removed"


def test_a_frame_reads_like_a_parquet_file_of_another_library(tmp_path, settings):
    pl.DataFrame(COLUMNS).write_parquet(tmp_path / "polars.parquet")
    theirs = extract(tmp_path / "polars.parquet", tmp_path / "theirs", **settings)
    ours = extract(pl.DataFrame(COLUMNS), tmp_path / "ours", **settings)
    for level in ours.levels:
        assert ours.polars(level).equals(theirs.polars(level))
    assert ours.schema("sentence").columns[-1].type == "string"


def test_bytes_depend_neither_on_batches_nor_on_row_groups_of_the_source(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(data_frames, "_GROUP_ROWS", 5)
    written = set()
    for n_rows in (1, 2, 7, 24):
        (tmp_path / str(n_rows)).mkdir()
        reader = TABLE.to_reader(max_chunksize=n_rows)
        written.add(write_frame(reader, tmp_path / str(n_rows), ExtractConfig.of(None, settings)).read_bytes())
    assert len(written) == 1
    groups = pq.ParquetFile(tmp_path / "24" / "frame.parquet").metadata
    sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    assert sum(sizes) == N_ROWS
    assert max(sizes) == 5


def test_words_in_lists_and_categories_in_lists(tmp_path, model):
    words = {"text": [["the", "bank"], ["a", "river", "of"]], "tags": [["D", "N"], ["D", "N", "P"]]}
    as_categories = pl.DataFrame(words).with_columns(pl.all().cast(pl.List(pl.Categorical)))
    settings = {"model": str(model), "layers": "-1", "levels": "word"}
    settings |= {"is_split_into_words": True, "label_column": "tags"}
    stores = [
        extract(frame, tmp_path / str(number), **settings)
        for number, frame in enumerate([pa.table(words), as_categories, datasets.Dataset.from_dict(words)])
    ]
    assert stores[0].polars("word", ["word", "label"]).rows()[:2] == [("the", "D"), ("bank", "N")]
    assert len({tuple(results(store.path).values()) for store in stores}) == 1


class Counted:
    """A table whose stream is counted, as of a query that runs once for each."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.n_streams = table, 0

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self.n_streams += 1
        return self.table.__arrow_c_stream__(requested_schema)


def test_a_frame_is_read_once_and_a_reader_that_was_read_is_refused(tmp_path, settings):
    counted = Counted(TABLE)
    extract(counted, tmp_path / "s", **settings)
    assert counted.n_streams == 1
    reader = TABLE.to_reader()
    extract(reader, tmp_path / "t", **settings)
    with pytest.raises(InputError, match=r"^<frame>: has no rows left: a RecordBatchReader can be read once; pass a"):
        extract(reader, tmp_path / "u", **settings)
    assert not (tmp_path / "u").exists()


def test_a_killed_run_resumes_with_an_equal_frame(tmp_path, settings, whole, warm):
    code = warm.run(run_killed_at, "receipt.renamed", str(tmp_path / "s"), {**settings, "inputs": TABLE})
    assert code == -signal.SIGKILL
    assert results(tmp_path / "s").items() < whole.items()
    receipt = receipt_files(tmp_path / "s")[0]
    written = receipt.stat().st_mtime_ns
    with pytest.raises(PlanMismatch, match="the data frame has changed since the store was made"):
        extract(pd.DataFrame(COLUMNS)[1:], tmp_path / "s", **settings)
    assert results(extract(pd.DataFrame(COLUMNS), tmp_path / "s", **settings).path) == whole
    assert receipt.stat().st_mtime_ns == written, "the shard that was done is kept"


def test_bad_rows_are_named_by_their_number_in_the_frame(tmp_path, settings):
    broken = pl.DataFrame(COLUMNS).with_columns(text=pl.col("text").replace_strict({SENTENCES[2]: None}, default="a"))
    n_bad = broken["text"].null_count()
    with pytest.raises(InputError, match=r"^<frame>:3: column 'text' holds null"):
        extract(broken, tmp_path / "s", **settings)
    assert list(tmp_path.iterdir()) == []
    store = extract(broken, tmp_path / "s", **settings, bad_rows="quarantine")
    assert (store.bad_rows()[0].path, store.bad_rows()[0].row) == ("<frame>", 3)
    assert store.manifest.totals.n_bad_rows == n_bad
    twice = pl.concat([pl.DataFrame(COLUMNS)] * 2)
    with pytest.raises(InputError, match=r"^<frame>:25: id 100 appears twice, first at <frame>:1; make ids unique"):
        extract(twice, tmp_path / "t", **settings)


BAD: dict[str, tuple[Any, str]] = {
    "no text column": (pd.DataFrame({"body": ["a"], "n": [1]}), "<frame>: no column 'text'; columns are body, n; pass"),
    "no text column, dataset": (datasets.Dataset.from_dict({"t": ["a"]}), "<frame>: no column 'text'; columns are t;"),
    "no text column but an index": (
        pd.DataFrame({"n": [1]}, index=pd.Index(["a"], name="text")),
        "<frame>: no column 'text'; columns are n; pass",
    ),
    "numbers as names": (pd.DataFrame({0: ["a"]}), "<frame>: no column 'text'; columns are 0; pass `text_column`"),
    "numbers as texts": (pl.DataFrame({"text": [1]}), "<frame>:1: column 'text' holds 1, which is not text; "),
    "twice": (pa.table([["a"], ["b"]], names=["text", "text"]), "<frame>: column 'text' appears 2 times"),
    "series of numbers": (pl.Series("text", [1]), "<frame>:1: column 'text' holds 1, which is not text; "),
    "a text in a dict": ({"text": "a text"}, "<frame>: column 'text' is a str; pass a list of values"),
    "columns of two lengths": ({"text": ["a", "b"], "n": [1]}, "<frame>: the dict cannot be read as a table "),
    "a column of two types": ([{"text": "a"}, {"text": 1}], "<frame>: the dict cannot be read as a table "),
    "rows and texts": ([{"text": "a"}, "b"], "inputs holds a dict, which is not a path; pass paths"),
    "mixed objects": (pd.DataFrame({"text": ["a", 1]}), "<frame>: the DataFrame cannot be read as a table "),
    "fails while it is read": (
        lambda: duckdb.sql(
            "select case when range > 3000 then error('torn') else 'a' end::varchar as text from range(9000)"
        ),
        "<frame>: the DuckDBPyRelation cannot be read as a table (Invalid Input Error: torn); convert",
    ),
    "no text column, lazy": (
        pl.LazyFrame({"t": ["a"]}),
        "<frame>: no column 'text'; columns are t; pass `text_column`",
    ),
    "in a list": (
        [pl.DataFrame({"text": ["a"]})],
        "inputs holds a DataFrame, which is not a path; pass paths or a data frame",
    ),
    "splits": (datasets.DatasetDict(), "inputs is a DatasetDict; pass one split"),
    "a stream": (
        datasets.Dataset.from_dict({"text": ["a"]}).to_iterable_dataset(),
        "inputs is a IterableDataset; pass one",
    ),
    "numbers": ([1], "inputs holds a int, which is not a path; pass paths"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_in_one_line_and_nothing_is_written(case, tmp_path, plain):
    make, said = BAD[case]
    inputs = make() if callable(make) else make
    with pytest.raises(InputError) as error:
        extract(inputs, tmp_path / "s", **plain)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_settings_of_files_are_refused(tmp_path, plain):
    with pytest.raises(InputError, match="<frame>: is a data frame, not csv; leave out `format`"):
        extract(TABLE, tmp_path / "s", **plain, format="csv")
    with pytest.raises(InputError, match="<frame>: `text_pairs` does not go with parquet"):
        extract(TABLE, tmp_path / "s", **plain, text_pairs=True)


@pytest.mark.parametrize(
    "empty", [pl.DataFrame(schema={"text": pl.String}), pa.table({"text": pa.array([], "string")})]
)
def test_an_empty_frame_gives_the_empty_store_of_its_parquet_file(empty, tmp_path, plain):
    pq.write_table(pa.table({"text": pa.array([], "string")}), tmp_path / "empty.parquet")
    store = extract(empty, tmp_path / "s", **plain)
    file = extract(tmp_path / "empty.parquet", tmp_path / "t", **plain)
    assert store.n_rows("sentence") == file.n_rows("sentence") == 0


def test_columns_may_be_named_by_the_text_of_a_number(tmp_path, plain):
    store = extract(pd.DataFrame({0: ["a fox"]}), tmp_path / "s", **plain, text_column="0")
    assert store.polars("sentence", ["text"]).rows() == [("a fox",)]


def test_the_deep_check_takes_an_equal_frame_or_its_parquet_file(tmp_path, settings):
    store = extract(TABLE, tmp_path / "s", **settings)
    with pytest.raises(InputError, match="made from a data frame; write it as Parquet and name it with `inputs`"):
        recheck(store.path)
    assert recheck(store.path, pd.DataFrame(COLUMNS)).is_good
    pl.DataFrame(COLUMNS).write_parquet(tmp_path / "table.parquet")
    assert run_cli("verify", str(store.path), "--deep", "--input", str(tmp_path / "table.parquet"))[0] == 0
    with pytest.raises(PlanMismatch, match="the data frame has changed since the store was made"):
        recheck(store.path, TABLE.slice(1))
    shutil.copy(tmp_path / "s/manifests/00000.json", tmp_path / "not.parquet")
    with pytest.raises(InputError, match=r"not\.parquet: Parquet that cannot be read"):
        recheck(store.path, [tmp_path / "not.parquet"])


def test_estimates_and_predictions_take_frames(tmp_path, settings):
    found = estimate(TABLE.to_reader(), ExtractConfig.of(None, settings))
    assert (found.n_documents, found.is_exact) == (N_ROWS, True)
    labelled = TABLE.filter(pa.compute.is_valid(TABLE["kind"]))
    store = extract(labelled, tmp_path / "s", **settings)
    probe = bertfeat.fit_probe(store, "kind", level="sentence", head="centroid")
    written = probe.predict(pl.DataFrame(COLUMNS), tmp_path / "p.parquet", id_column="id")
    assert pl.read_parquet(written.path)["doc_id"].to_list() == COLUMNS["id"]


IN_MEMORY = ["a fox in the river", "bank", "see example.com", "and/or what?", "the end."]
HELD: dict[str, Callable[[], Any]] = {
    "list": lambda: IN_MEMORY,
    "tuple": lambda: tuple(IN_MEMORY),
    "generator": lambda: (text for text in IN_MEMORY),
    "numpy": lambda: np.array(IN_MEMORY),
    "dict of columns": lambda: {"text": IN_MEMORY, "unused": [1, 2.5, None, 3, 4]},
    "dicts": lambda: [{"text": text} | ({"unused": 1} if number > 2 else {}) for number, text in enumerate(IN_MEMORY)],
    "polars Series": lambda: pl.Series("body", IN_MEMORY),
    "polars Series of categories": lambda: pl.Series("body", IN_MEMORY, dtype=pl.Categorical),
    "pandas Series": lambda: pd.Series(IN_MEMORY, name="body", index=range(5, 10)),
    "pyarrow array": lambda: pa.array(IN_MEMORY),
    "pyarrow column": lambda: pa.chunked_array([IN_MEMORY[:2], IN_MEMORY[2:]]),
    "column of a data set": lambda: datasets.Dataset.from_dict({"text": IN_MEMORY})["text"],
    "LazyFrame": lambda: pl.LazyFrame({"text": IN_MEMORY, "unused": pl.Series([{}] * 5, dtype=pl.Object)}),
}


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    frame = pl.DataFrame({"text": IN_MEMORY})
    return write_frame(frame, tmp_path_factory.mktemp("held"), ExtractConfig()).read_bytes()


@pytest.mark.parametrize("kind", HELD)
def test_texts_in_memory_are_read_as_a_frame_with_a_column_of_texts(kind, tmp_path, held):
    frame = resolve_kind(HELD[kind](), ExtractConfig())
    assert write_frame(frame, tmp_path, ExtractConfig()).read_bytes() == held


def test_a_list_of_texts_and_a_series_are_extracted_also_by_the_deep_check_and_a_probe(tmp_path, plain):
    store = extract(IN_MEMORY, tmp_path / "s", **plain)
    assert store.polars("sentence")["text"].to_list() == IN_MEMORY
    series = pd.Series(IN_MEMORY, name="body")
    assert extract(series, tmp_path / "b", **plain, text_column="body").n_rows("sentence") == 5
    assert recheck(store.path, IN_MEMORY).is_good
    bertfeat.append(store, ["one more text", "and another"])
    labels = pl.DataFrame({"doc_id": range(7), "kind": ["a", "b"] * 3 + ["a"]})
    probe = bertfeat.fit_probe(store.path, "kind", level="sentence", head="centroid", labels=labels)
    assert probe.predict(IN_MEMORY, tmp_path / "p.parquet").n_rows == 5


@pytest.mark.parametrize(
    ("inputs", "missing"),
    [
        ("a fox in the river", "a fox in the river"),
        (["bank", "river"], "bank"),
        (["there.txt", "a fox in the river"], "a fox in the river"),
        (["a fox in the river", "there"], "a fox in the river"),
        (["a fox in the river", "not there.csv"], "a fox in the river"),
        (["a fox in the river", "ther*"], "a fox in the river"),
        (["my reviews.cvs"], "my reviews.cvs"),
        (["my folder/corpus"], "my folder/corpus"),
        ([Path("a fox in the river")], "a fox in the river"),
    ],
)
def test_a_wrong_path_in_a_list_is_never_taken_for_a_text(inputs, missing, tmp_path, plain, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("there", "there.txt"):
        (tmp_path / name).write_text("a line\n")
    with pytest.raises(
        InputError, match=r"no such file.*; for texts in memory pass \{'text': \[...\]\}, .*Encoder"
    ) as error:
        extract(inputs, tmp_path / "s", **plain)
    assert error.value.path == missing
    with pytest.raises(InputError, match="no such file"):
        extract(["one text", "another text"], tmp_path / "s", **plain, format="txt")
