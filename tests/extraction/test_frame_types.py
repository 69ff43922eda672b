"""Kept columns of frames: what each type of polars, pandas, pyarrow, DuckDB and datasets is stored as or refused."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Any

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bertfeat.errors import UserError
from bertfeat.extraction.run import extract

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["a river", "the bank"]
DAY, NOON, MOMENT = dt.date(2020, 1, 2), dt.time(12), dt.datetime(2020, 1, 2, 12)
IN_UTC = MOMENT.replace(tzinfo=dt.UTC)
SECONDS, TENTH = dt.timedelta(seconds=1), decimal.Decimal("0.1")
UUIDS = [uuid.UUID(int=1), uuid.UUID(int=2)]
UUID_TEXTS, UUID_BYTES = [str(one) for one in UUIDS], [one.bytes for one in UUIDS]
INT64, TEXT = pl.Int64, pl.String


def ours(values: list[Any], kind: Any = None, stored: Any = None) -> tuple[pl.Series, Any, Any]:
    series = pl.Series(values, dtype=kind)
    return series, stored or series.dtype, values


def arrow(values: list[Any], kind: pa.DataType, stored: Any) -> tuple[pa.Array, Any, Any]:
    return pa.array(values, kind), stored, values


# Each column, the type that polars reads it as from the store, and its values there.
POLARS: dict[str, tuple[pl.Series, Any, Any]] = {
    "UInt64": ours([2**64 - 1, None], pl.UInt64),
    "Float16": ours([1.5, None], pl.Float16),
    "Categorical": ours(["x", None], pl.Categorical, TEXT),
    "Enum": ours(["x", None], pl.Enum(["x"]), TEXT),
    "Binary": ours([b"\xff", None]),
    "Datetime in a zone": ours([IN_UTC, None], pl.Datetime("us", "Europe/Berlin")),
    "Duration": ours([SECONDS, None]),
    "Decimal": ours([TENTH, None], pl.Decimal(10, 1)),
    "Null": ours([None, None]),
    "List of Categorical": ours([["x"], None], pl.List(pl.Categorical), pl.List(TEXT)),
    "Struct": ours([{"a": 1, "b": "x"}, {"a": None, "b": None}]),
    "Extension": (pl.Series([1, 2]).ext.to(pl.Extension("an.extension", INT64)), INT64, [1, 2]),
}
PANDAS: dict[str, tuple[Any, Any, Any]] = {
    "string": (pd.array(["x", None], dtype="string"), TEXT, ["x", None]),
    "category of numbers": (pd.Categorical([3, None]), INT64, [3, None]),
    "Int64": (pd.array([1, None], dtype="Int64"), INT64, [1, None]),
    "float with NaN": ([1.5, float("nan")], pl.Float64, [1.5, None]),
    "datetime in a zone": (pd.to_datetime([IN_UTC, None]), pl.Datetime("us", "UTC"), [IN_UTC, None]),
    "decimals": ([TENTH, None], pl.Decimal(1, 1), [TENTH, None]),
    "lists": ([[1], None], pl.List(INT64), [[1], None]),
    "dicts": ([{"a": 1}, {"a": 2}], pl.Struct({"a": INT64}), [{"a": 1}, {"a": 2}]),
    "UUIDs": (UUIDS, TEXT, UUID_TEXTS),
}
PYARROW: dict[str, tuple[pa.Array, Any, Any]] = {
    "string_view": arrow(["x", None], pa.string_view(), TEXT),
    "dictionary": (pa.array(["x", None]).dictionary_encode(), TEXT, ["x", None]),
    "binary_view": arrow([b"x", None], pa.binary_view(), pl.Binary),
    "decimal32": arrow([TENTH, None], pa.decimal32(5, 1), pl.Decimal(5, 1)),
    "date64": arrow([DAY, None], pa.date64(), pl.Date),
    "timestamp in ns": arrow([MOMENT, None], pa.timestamp("ns"), pl.Datetime("ns")),
    "map": (pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64())), pl.Map(TEXT, INT64), [{"x": 1}, {}]),
    "uuid": (pa.array([UUID_BYTES[0], None], pa.uuid()), TEXT, [UUID_TEXTS[0], None]),
    "struct of uuid": (
        pa.StructArray.from_arrays([pa.array(UUID_BYTES, pa.uuid())], ["u"]),
        pl.Struct({"u": pl.Binary}),
        [{"u": one} for one in UUID_BYTES],
    ),
    "json": arrow(["{}", None], pa.json_(), TEXT),
}
# SQL, as one value.
DUCKDB: dict[str, tuple[str, Any, Any]] = {
    "UBIGINT": ("18446744073709551615::ubigint", pl.UInt64, 2**64 - 1),
    "HUGEINT": ("(-5)::hugeint", pl.Decimal(38, 0), decimal.Decimal(-5)),
    "UUID": (f"'{UUIDS[0]}'::uuid", TEXT, UUID_TEXTS[0]),
    "ENUM": ("'x'::enum('x')", TEXT, "x"),
    "MAP": ("map {'x': 1::bigint}", pl.Map(TEXT, INT64), {"x": 1}),
    "NULL": ("null", pl.Null, None),
    "STRUCT with a field named BIT": ("{'BIT': 1::bigint}", pl.Struct({"BIT": INT64}), {"BIT": 1}),
}
V = datasets.Value
IMAGE = pl.Struct({"bytes": pl.Binary, "path": pl.String})
DATASETS: dict[str, tuple[Any, Any, Any]] = {
    "class": (datasets.ClassLabel(names=["no", "yes"]), INT64, [0, 1]),
    "list of one": (datasets.List(V("int64"), length=1), pl.Array(INT64, 1), [[1], [2]]),
    "struct": ({"a": V("int64")}, pl.Struct({"a": INT64}), [{"a": 1}] * 2),
    "array": (datasets.Array2D((1, 2), "int64"), pl.List(pl.List(INT64)), [[[1, 2]]] * 2),
    "image": (datasets.Image(), IMAGE, [None, None]),
}


def of_columns(cases: dict[str, tuple[Any, Any, Any]]) -> dict[str, Any]:
    return {"text": TEXTS, **{name: column for name, (column, _, _) in cases.items()}}


def of_duckdb() -> duckdb.DuckDBPyRelation:
    columns = ", ".join(f'{sql} as "{name}"' for name, (sql, _, _) in DUCKDB.items())
    return duckdb.sql(f"select unnest(['{TEXTS[0]}', '{TEXTS[1]}']) as text, {columns}")


def of_datasets() -> datasets.Dataset:
    features = {"text": V("string"), **{name: feature for name, (feature, _, _) in DATASETS.items()}}
    values = {"text": TEXTS, **{name: given for name, (_, _, given) in DATASETS.items()}}
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


STORED: dict[str, tuple[Callable[[], Any], dict[str, tuple[Any, Any, Any]]]] = {
    "polars": (lambda: pl.DataFrame(of_columns(POLARS)), POLARS),
    "pandas": (lambda: pd.DataFrame(of_columns(PANDAS)), PANDAS),
    "pyarrow": (lambda: pa.table(of_columns(PYARROW)), PYARROW),
    "duckdb": (of_duckdb, {name: (sql, kind, [value] * 2) for name, (sql, kind, value) in DUCKDB.items()}),
    "datasets": (of_datasets, DATASETS),
}


@pytest.mark.parametrize("library", STORED)
def test_every_type_that_is_kept_is_stored_as_a_type_that_any_reader_knows(library, tmp_path, model):
    make, expected = STORED[library]
    settings = {"model": str(model), "layers": "-1", "levels": "sentence", "keep_columns": list(expected)}
    found = extract(make(), tmp_path / "s", **settings).polars("sentence")
    assert found["text"].to_list() == TEXTS
    assert {name: found.schema[name] for name in expected} == {name: kind for name, (_, kind, _) in expected.items()}
    values = {name: found[name].to_list() for name in expected}
    assert values == {name: wanted for name, (_, _, wanted) in expected.items()}


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "polars Object": (lambda: pl.Series(["good", "bad"], dtype=pl.Object), "Object"),
    "polars List of Int128": (lambda: pl.Series([[5], [5]], dtype=pl.List(pl.Int128)), "Int128"),
    "pandas mixed objects": (lambda: pd.Series(["x", 1], dtype=object), "int"),
    "pyarrow interval": (lambda: pa.array([pa.MonthDayNano([1, 2, 3])] * 2), "interval"),
    "duckdb BIT in a map": (lambda: "map {'x': '101'::bit}", "MAP"),
    "duckdb INTERVAL": (lambda: "interval 1 month", "INTERVAL"),
    "duckdb digits beyond the type": (lambda: "(1e37 * 15)::hugeint", "does not fit in precision"),
}
FRAME_OF: dict[str, Callable[[Any], Any]] = {
    "polars": lambda column: pl.DataFrame({"text": TEXTS, "kind": column}),
    "pandas": lambda column: pd.DataFrame({"text": TEXTS, "kind": column}),
    "pyarrow": lambda column: pa.table({"text": TEXTS, "kind": column}),
    "duckdb": lambda sql: duckdb.sql(f"select 'a' as text, {sql} as kind"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_type_that_cannot_be_kept_is_refused_by_column_before_anything_is_encoded(case, tmp_path):
    make, said = REFUSED[case]
    frame = FRAME_OF[case.partition(" ")[0]](make())
    with pytest.raises(UserError, match=f"(?s){said}") as error:
        extract(frame, tmp_path / "s", layers="-1", levels="sentence", keep_columns="kind")
    assert ("kind" in str(error.value)) == ("digits" not in case)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_with_a_transform_is_refused(tmp_path):
    dataset = datasets.Dataset.from_dict({"text": TEXTS}).with_transform(lambda batch: batch)
    with pytest.raises(UserError, match=r"<frame>: has a transform, .*map"):
        extract(dataset, tmp_path / "s", levels="sentence")
