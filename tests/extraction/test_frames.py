"""Data frames as inputs: one table gives the same store, whichever library holds it and however it is cut."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bertfeat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.data_frames import resolve_kind, write_frame
from bertfeat.errors import InputError, PlanMismatch
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.run import extract
from tests.support.command_line import run_cli
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
IDS = ExtractConfig(id_column="id")


def shuffled_then_sorted() -> datasets.Dataset:
    order = list(range(N_ROWS))
    random.Random(1).shuffle(order)
    return datasets.Dataset.from_dict(COLUMNS).select(order).select(np.argsort(order))


FRAMES: dict[str, Callable[[], Any]] = {
    "polars": lambda: pl.DataFrame(COLUMNS),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas with an index and other columns": lambda: (
        pd.DataFrame(COLUMNS | {"unused": [object(), 1] * (N_ROWS // 2)})
        .set_index(pd.Index(range(N_ROWS), name="text"))
        .assign(same=1)
        .set_axis([*COLUMNS, "unused"], axis=1)
    ),
    "pyarrow": lambda: TABLE,
    "pyarrow columns in another order": lambda: TABLE.select(TABLE.column_names[::-1]),
    "reader": lambda: TABLE.to_reader(max_chunksize=7),
    "duckdb": lambda: duckdb.from_arrow(TABLE),
    "dataset": lambda: datasets.Dataset.from_dict(COLUMNS),
    "iterable dataset": lambda: datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset().with_format("numpy"),
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


@pytest.mark.promise("frames")
@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_gives_the_store_of_its_parquet_file(kind, tmp_path, settings, whole, own_file):
    store = extract(FRAMES[kind](), tmp_path / "s", **settings)
    assert len(store.plan.shards) > 2
    assert results(store.path) == whole
    assert [file.path for file in store.manifest.inputs] == ["<frame>"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"], "the copy of the frame is removed"


def test_bytes_do_not_depend_on_batches_of_the_source(tmp_path, settings):
    long = pa.table({"id": range(20_000), "kind": ["a"] * 20_000, "text": [f"text {n}" for n in range(20_000)]})
    written = set()
    for n_rows in (3_000, 20_000):
        (tmp_path / str(n_rows)).mkdir()
        reader = long.to_reader(max_chunksize=n_rows)
        written.add(write_frame(reader, tmp_path / str(n_rows), ExtractConfig.of(None, settings)).read_bytes())
    assert len(written) == 1


def test_a_reader_that_was_read_is_refused(tmp_path, settings):
    reader = TABLE.to_reader()
    reader.read_all()
    with pytest.raises(InputError, match=r"^<frame>: has no rows left: a RecordBatchReader can be read once; pass a"):
        extract(reader, tmp_path / "s", **settings)


@pytest.mark.promise("frames")
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
    "no text column but an index": (
        pd.DataFrame({"n": [1]}, index=pd.Index(["a"], name="text")),
        "<frame>: no column 'text'; columns are n; pass `text_column`",
    ),
    "numbers as texts": (pl.DataFrame({"text": [1]}), "<frame>:1: column 'text' holds 1, which is not text; "),
    "twice": (pa.table([["a"], ["b"]], names=["text", "text"]), "<frame>: column 'text' appears 2 times"),
    "mixed objects": (pd.DataFrame({"text": ["a", 1]}), "<frame>: the DataFrame cannot be read as a table "),
    "fails while it is read": (
        lambda: duckdb.sql(
            "select case when range > 3000 then error('torn') else 'a' end::varchar as text from range(9000)"
        ),
        "<frame>: the DuckDBPyRelation cannot be read as a table (Invalid Input Error: torn); convert",
    ),
    "splits": (datasets.DatasetDict(), "inputs is a DatasetDict; pass one split"),
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


def test_the_deep_check_takes_an_equal_frame_or_its_parquet_file(tmp_path, settings):
    store = extract(TABLE, tmp_path / "s", **settings)
    with pytest.raises(InputError, match="made from a data frame; write it as Parquet and name it with `inputs`"):
        recheck(store.path)
    assert recheck(store.path, pd.DataFrame(COLUMNS)).is_good
    pl.DataFrame(COLUMNS).write_parquet(tmp_path / "table.parquet")
    assert run_cli("verify", str(store.path), "--deep", "--input", str(tmp_path / "table.parquet"))[0] == 0
    with pytest.raises(PlanMismatch, match="the data frame has changed since the store was made"):
        recheck(store.path, TABLE.slice(1))


IN_MEMORY = ["a fox in the river", "bank", "see example.com", "and/or what?", "the end."]
HELD: dict[str, Callable[[], Any]] = {
    "list": lambda: IN_MEMORY,
    "generator": lambda: (text for text in IN_MEMORY),
    "dict of columns": lambda: {"text": IN_MEMORY, "unused": [1, 2.5, None, 3, 4]},
    "dicts": lambda: [{"text": text} | ({"unused": 1} if number > 2 else {}) for number, text in enumerate(IN_MEMORY)],
    "polars Series": lambda: pl.Series("body", IN_MEMORY),
    "pandas Series": lambda: pd.Series(IN_MEMORY, name="body", index=range(5, 10)),
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


def test_a_list_of_texts_is_extracted_appended_checked_and_predicted(tmp_path, plain):
    store = extract(IN_MEMORY, tmp_path / "s", **plain)
    assert store.polars("sentence")["text"].to_list() == IN_MEMORY
    assert recheck(store.path, IN_MEMORY).is_good
    bertfeat.append(store, ["one more text", "and another"])
    labels = pl.DataFrame({"doc_id": range(7), "kind": ["a", "b"] * 3 + ["a"]})
    probe = bertfeat.fit_probe(store.path, "kind", level="sentence", head="centroid", labels=labels)
    assert probe.predict(IN_MEMORY, tmp_path / "p.parquet").n_rows == 5
    assert probe.predict(iter(IN_MEMORY)).equals(probe.predict(IN_MEMORY))
    with pytest.raises(InputError, match=r"names no file.*Path"):
        probe.predict(["corpus.csv", "one more text"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter(["a b", "c"]),
        lambda: ("a b", "c"),
        lambda: np.array(["a b", "c"]),
        lambda: (row for row in [{"text": "a b", "n": 1}, {"text": "c"}]),
        lambda: ["MKTAYIAKQR*", "bank", "and/or", "why?", "https://example.com", ""],
    ],
    ids=["iterator", "tuple", "array", "iterator of rows", "odd texts"],
)
def test_texts_need_no_name_of_a_column(make):
    found = pl.DataFrame(resolve_kind(make(), ExtractConfig()))["text"].to_list()
    assert found == [item if isinstance(item, str) else item["text"] for item in make()]


def test_an_iterator_is_read_batch_by_batch_into_the_same_bytes(tmp_path):
    n_read = 0

    def texts(n_texts: int) -> Iterator[str]:
        nonlocal n_read
        for number in range(n_texts):
            n_read += 1
            yield f"text {number}"

    frame = resolve_kind(texts(10_000), ExtractConfig())
    assert n_read < 5_000
    written = write_frame(frame, tmp_path, ExtractConfig()).read_bytes()
    assert written == write_frame(pl.DataFrame({"text": [*texts(10_000)]}), tmp_path, ExtractConfig()).read_bytes()
    for late, said in (("other.csv", "'text 0' names no file, and 'other.csv' is or may be one"), (1, "holds a int,")):
        with pytest.raises(InputError, match=said):
            write_frame(resolve_kind(chain(texts(5_000), [late]), ExtractConfig()), tmp_path, ExtractConfig())
    rows = [{"text": "a", "id": 1}] * 5_000
    with pytest.raises(InputError, match="cannot be read as a table"):
        write_frame(resolve_kind(chain(rows, [{"text": "b", "id": "x"}]), ExtractConfig()), tmp_path, IDS)


def test_an_iterator_that_never_ends_is_one_line_and_a_limit_bounds_it(tmp_path, plain, monkeypatch):
    n_read = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal n_read
        while True:
            n_read += 1
            yield {"text": f"text {n_read}", "more": 1}

    endless = datasets.IterableDataset.from_generator(rows)
    for name, bound in (("MAX_ITERATED_ROWS", 10_000), ("MAX_ITERATED_BYTES", 100_000)):
        with monkeypatch.context() as patch:
            patch.setattr(f"bertfeat.corpus.data_frames.{name}", bound)
            n_read = 0
            with pytest.raises(InputError, match=r"^<frame>: has more than .*; pass `limit`, the most rows to read$"):
                extract(endless, tmp_path / "s", **plain)
            assert n_read < 20_000
            assert list(tmp_path.iterdir()) == []
    n_read = 0
    assert resolve_kind(endless, ExtractConfig(limit=4_100)).schema.names == ["text", "more"]
    found = pl.from_arrow(resolve_kind(endless, ExtractConfig(limit=4_100)))
    assert len(found) == 2 * 4096
    with pytest.raises(InputError, match="no column 'txt' for `text_column`; did you mean 'text'"):
        extract(datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset(), tmp_path / "s", **plain, text_column="txt")


BOTH_WAYS = r"pass texts as pl\.DataFrame\(\{'text': \[\.\.\.\]\}\) or .*, and paths as Path\(\.\.\.\)$"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("a fox in the river", r"^a fox in the river: no such file .*; " + BOTH_WAYS),
        (["a fox in the river", "not there.csv"], "^'a fox in the river' names no file, and 'not .*; " + BOTH_WAYS),
        ([Path("corpus.csv"), "a fox"], "^'a fox' names no file, and 'corpus.csv' is or may be one; " + BOTH_WAYS),
        (["my folder/corpus"], "^my folder/corpus: no such file .*; " + BOTH_WAYS),
        (["corpus.cvs", "part-*"], "^corpus.cvs: no such file .*; " + BOTH_WAYS),
        (["a text", None], "^inputs holds a NoneType, which is neither a text nor a path; " + BOTH_WAYS),
        ([{"text": "a"}, "a text"], "^inputs holds a str beside rows; " + BOTH_WAYS),
        ("corpus.csv", "^corpus.csv: no such file; check the path"),
        (["corpus.csv"], "^corpus.csv: no such file; check the path"),
        ([Path("a fox in the river")], "^a fox in the river: no such file; check the path"),
    ],
)
def test_what_is_neither_a_file_nor_a_text_is_refused_with_both_ways(inputs, said, tmp_path, plain, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        extract(inputs, tmp_path / "s", **plain)
    with pytest.raises(InputError, match="no such file"):
        extract(["one text", "another text"], tmp_path / "s", **plain, format="txt")
    assert list(tmp_path.iterdir()) == []
