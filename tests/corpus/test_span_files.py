"""Files of spans: large tables that workers share, shards of the right size, and columns of any name and type."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.corpus.span_files import SpanFile, open_spans, shared_spans
from bertfeat.corpus.tables import read_table
from bertfeat.errors import InputError, RunError
from bertfeat.extraction.job import open_inputs, open_job
from bertfeat.extraction.run import ShardTask
from bertfeat.records import Document
from tests.support.drill import result_files
from tests.support.store_fakes import write_jsonl

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

N_DOCUMENTS = 1_000


def write_table(path: Path, n_rows: int) -> Path:
    """Write spans of documents in no order, with a number and two columns of texts."""
    number = np.arange(n_rows)
    frame = pl.DataFrame({"doc_id": number * 7919 % N_DOCUMENTS, "char_start": number % 5, "char_end": 5 + number % 3})
    texts = (pl.format("the document with number {}", "doc_id").alias("doc_id"), pl.format("row {}", "n").alias("note"))
    frame = frame.with_columns(pl.Series("n", number)).with_columns(*texts, kind=pl.lit("a kind of many letters"))
    frame.write_parquet(path)
    return path


def some_documents() -> list[Document]:
    return [Document(n, f"the document with number {n}", "eight ch") for n in (900, 3, 17, N_DOCUMENTS)]


def own_memory() -> int:
    """Return the bytes of this process that are not of files."""
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(found["RssAnon"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not say")
@pytest.mark.promise("memory")
def test_a_shared_table_takes_no_memory_of_a_process(tmp_path: Path) -> None:
    path = write_table(tmp_path / "small.parquet", 1_000)
    with shared_spans(str(path), tmp_path) as shared:
        SpanFile.read(shared).of(some_documents())
    path = write_table(tmp_path / "large.parquet", 1_000_000)
    documents = some_documents()
    expected = SpanFile.read(str(path)).of(documents)
    with shared_spans(str(path), tmp_path) as shared:
        before = own_memory()
        mapped = open_spans(shared)
        found = mapped.of(documents)
        assert Path(shared).stat().st_size > 100 << 20
        assert own_memory() - before < 20 << 20
    assert mapped.digest == SpanFile.read(str(path)).digest
    assert np.bincount(found.document).tolist() == [1_000, 1_000, 1_000]
    assert found.columns == expected.columns
    assert found.columns["n"] == sorted(found.columns["n"][:1_000]) + found.columns["n"][1_000:]
    np.testing.assert_array_equal(found.char_start, expected.char_start)
    np.testing.assert_array_equal(found.char_end, np.array(found.columns["n"]) % 3 + 5)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "corpus.jsonl", [{"id": f"d{n}", "text": "a b c d e f"} for n in range(60)])


def settings(**changes: Any) -> dict[str, Any]:
    return {"levels": "span", "id_column": "id", "layers": "-1", **changes}


@pytest.mark.promise("workers")
def test_workers_share_a_table_that_is_gone_at_the_end(tmp_path: Path, corpus: Path) -> None:
    rows = [
        {"doc_id": f"d{n % 60}", "word": "ab"[n % 2], "char_start": n % 4, "char_end": 5 + n % 4} for n in range(300)
    ]
    pl.DataFrame(rows).write_csv(table := tmp_path / "table.csv")
    asked = settings(spans=str(table), shard_bytes=60_000)

    class Changing(bertfeat.Progress):
        def start(self, *_: Any) -> None:
            assert len([*tmp_path.glob("two/_bertfeat/tmp/*")]) == 1

    two = bertfeat.extract(corpus, tmp_path / "two", workers=2, progress=Changing(), **asked)
    assert not [*tmp_path.rglob("*.tmp")]
    assert len(two.manifest.shards) > 3
    one = bertfeat.extract(corpus, tmp_path / "one", workers=1, **asked)
    assert result_files(two.path) == result_files(one.path)


def test_what_workers_get_is_checked_against_the_plan(tmp_path: Path, corpus: Path) -> None:
    row = {"doc_id": "d3", "char_start": 0, "char_end": 4}
    pl.DataFrame([row]).write_csv(table := tmp_path / "table.csv")
    config = bertfeat.ExtractConfig.of(None, settings(spans=str(table), workers=2))
    with open_inputs(str(corpus), tmp_path / "store", config) as files:
        job = open_job(config, files, tmp_path / "store", bertfeat.Progress(), overwrite=False)
        pl.DataFrame([row | {"char_end": 14}]).write_csv(table)
        (tmp_path / "store/_bertfeat/tmp").mkdir(parents=True)
        with job.for_workers() as sent, pytest.raises(RunError, match="the digest of the file of `spans` was"):
            ShardTask(sent)


@pytest.mark.promise("memory")
def test_shards_follow_from_the_spans_of_each_document(tmp_path: Path, corpus: Path) -> None:
    dense = pl.DataFrame({"doc_id": [f"d{40 + n % 20}" for n in range(10_000)], "char_start": 0, "char_end": 3})
    dense.write_parquet(table := tmp_path / "dense.parquet")
    config = bertfeat.ExtractConfig.of(None, settings(spans=str(table), shard_bytes=1_000_000))
    with open_inputs(str(corpus), tmp_path / "store", config) as files:
        plan = open_job(config, files, tmp_path / "store", bertfeat.Progress(), overwrite=False).plan
    n_dense = [len({*range(40, 60)} & {*range(s.first_row, s.first_row + s.n_rows)}) for s in plan.shards]
    # A span has 384 values of two bytes.
    assert max(n_dense) * 500 * 768 <= 1_000_000
    assert len(plan.shards) < 15
    assert plan.shards[0].n_rows > 40


def test_further_columns_may_have_any_name_and_plain_type(tmp_path: Path) -> None:
    further = {"row": [5, 6], "start": ["x", None], "end": [1.5, 2], "day": [datetime.date(2026, 1, 2), None]}
    frame = pl.DataFrame({"doc_id": ["b", "a"], "char_start": [0, 1], "char_end": [2, 3], **further})
    frame.write_parquet(path := tmp_path / "a.parquet")
    found = SpanFile.read(str(path))
    assert [(column.name, column.type) for column in found.columns] == [
        ("row", "int64"),
        ("start", "string"),
        ("end", "double"),
        ("day", "string"),
    ]
    documents = [Document(0, "a", "abcd"), Document(1, "b", "abcd")]
    assert found.of(documents).columns == {
        "row": [6, 5],
        "start": [None, "x"],
        "end": [2, 1.5],
        "day": [None, "2026-01-02"],
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pl.Series([2**63], dtype=pl.UInt64), "column 'n' of UInt64 cannot be stored as Int64"),
        (pl.Series([b"\xff"]), "column 'n' of Binary cannot be stored as String"),
        (pl.Series([[1]]), "column 'n' holds List(Int64); keep plain values only"),
    ],
)
def test_other_values_are_refused_with_their_column(tmp_path: Path, values: pl.Series, message: str) -> None:
    frame = pl.DataFrame({"doc_id": ["a"], "char_start": [0], "char_end": [2], "n": values})
    frame.write_parquet(path := tmp_path / "a.parquet")
    with pytest.raises(InputError) as error:
        SpanFile.read(str(path))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("last", "kind"),
    [(2, pl.Int64), (2.5, pl.Float64), (None, pl.Int64), ("text", None), ([1], None)],
)
def test_a_long_table_has_one_type_per_column(tmp_path: Path, last: object, kind: Any) -> None:
    rows = [{"value": n, "other": []} for n in range(70_000)]
    path = write_jsonl(tmp_path / "a.jsonl", [*rows, {"value": last, "other": ["x"], "late": "y"}])
    if kind is None:
        with pytest.raises(InputError, match="column 'value' holds values of several types"):
            read_table(str(path))
        return
    table = read_table(str(path))
    assert table.schema == {"value": kind, "other": pl.List(pl.String), "late": pl.String}
    assert table["value"].to_list() == [*range(70_000), last]
    assert table["late"].to_list() == [None] * 70_000 + ["y"]
