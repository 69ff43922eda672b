"""Kept columns of frames: what each type of polars, pandas, pyarrow, DuckDB and datasets is stored as or refused."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.errors import UserError
from bertfeat.extraction.run import extract
from tests.support.cli_runs import run_cli

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["a river", "the bank"]
DAY, NOON, MOMENT = dt.date(2020, 1, 2), dt.time(12), dt.datetime(2020, 1, 2, 12)
IN_UTC = MOMENT.replace(tzinfo=dt.UTC)
SECONDS, TENTH = dt.timedelta(seconds=1), decimal.Decimal("0.1")
UUIDS = [uuid.UUID(int=1), uuid.UUID(int=2)]
UUID_TEXTS, UUID_BYTES = [str(one) for one in UUIDS], [one.bytes for one in UUIDS]
INT64, TEXT, LISTS = pl.Int64, pl.String, pl.List(pl.Int64)
IMAGE = pl.Struct({"bytes": pl.Binary, "path": pl.String})


def ours(values: list[Any], kind: Any = None, stored: Any = None) -> tuple[pl.Series, Any, Any]:
    series = pl.Series(values, dtype=kind)
    return series, stored or series.dtype, values


# Each column, the type that polars reads it as from the store, and its values there.
POLARS: dict[str, tuple[pl.Series, Any, Any]] = {
    **{f"integer {kind}": ours([1, None], kind) for kind in (pl.Int8, pl.Int16, pl.Int32, pl.Int64)},
    **{f"integer {kind}": ours([1, None], kind) for kind in (pl.UInt8, pl.UInt16, pl.UInt32)},
    "UInt64": ours([2**64 - 1, None], pl.UInt64),
    **{f"number {kind}": ours([1.5, None], kind) for kind in (pl.Float16, pl.Float32, pl.Float64)},
    "Boolean": ours([True, None]),
    "String": ours(["x", None]),
    "Categorical": ours(["x", None], pl.Categorical, TEXT),
    "Enum": ours(["x", None], pl.Enum(["x"]), TEXT),
    "Binary": ours([b"\xff", None]),
    "Date": ours([DAY, None]),
    "Time": ours([NOON, None]),
    "Datetime": ours([MOMENT, None]),
    "Datetime in a zone": ours([IN_UTC, None], pl.Datetime("us", "Europe/Berlin")),
    "Duration": ours([SECONDS, None]),
    "Decimal": ours([TENTH, None], pl.Decimal(10, 1)),
    "Null": ours([None, None]),
    "List": ours([[1], None]),
    "List of Categorical": ours([["x"], None], pl.List(pl.Categorical), pl.List(TEXT)),
    "Array": ours([[1, 2], None], pl.Array(pl.Int8, 2)),
    "Struct": ours([{"a": 1, "b": "x"}, {"a": None, "b": None}]),
    "Extension": (pl.Series([1, 2]).ext.to(pl.Extension("an.extension", INT64)), INT64, [1, 2]),
}
PANDAS: dict[str, tuple[Any, Any, Any]] = {
    "object": (pd.Series(["x", None], dtype=object), TEXT, ["x", None]),
    "str": (["x", None], TEXT, ["x", None]),
    "string": (pd.array(["x", None], dtype="string"), TEXT, ["x", None]),
    "category": (pd.Categorical(["x", None]), TEXT, ["x", None]),
    "category of numbers": (pd.Categorical([3, None]), INT64, [3, None]),
    "int64": ([1, 2], INT64, [1, 2]),
    "uint64": (np.array([2**64 - 1, 0], np.uint64), pl.UInt64, [2**64 - 1, 0]),
    "Int64": (pd.array([1, None], dtype="Int64"), INT64, [1, None]),
    "boolean": (pd.array([True, None], dtype="boolean"), pl.Boolean, [True, None]),
    "float16": (np.array([1, 2], np.float16), pl.Float16, [1.0, 2.0]),
    "float with NaN": ([1.5, float("nan")], pl.Float64, [1.5, None]),
    "Float32": (pd.array([1.5, None], dtype="Float32"), pl.Float32, [1.5, None]),
    "Arrow": (pd.array([1, None], dtype="int64[pyarrow]"), INT64, [1, None]),
    "datetime": (pd.to_datetime([MOMENT, None]), pl.Datetime("us"), [MOMENT, None]),
    "datetime in a zone": (pd.to_datetime([IN_UTC, None]), pl.Datetime("us", "UTC"), [IN_UTC, None]),
    "timedelta": (pd.to_timedelta([1, 1], unit="s"), pl.Duration("us"), [SECONDS, SECONDS]),
    "dates": (pd.Series([DAY, None], dtype=object), pl.Date, [DAY, None]),
    "times": (pd.Series([NOON, None], dtype=object), pl.Time, [NOON, None]),
    "decimals": ([TENTH, None], pl.Decimal(1, 1), [TENTH, None]),
    "bytes": ([b"\xff", None], pl.Binary, [b"\xff", None]),
    "lists": ([[1], None], LISTS, [[1], None]),
    "dicts": ([{"a": 1}, {"a": 2}], pl.Struct({"a": INT64}), [{"a": 1}, {"a": 2}]),
    "UUIDs": (UUIDS, TEXT, UUID_TEXTS),
    "interval": (
        pd.interval_range(0, 2),
        pl.Struct({"left": INT64, "right": INT64}),
        [{"left": 0, "right": 1}, {"left": 1, "right": 2}],
    ),
}


def of_type(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def stored_as(kind: Any, values: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, values)


PYARROW: dict[str, tuple[pa.Array, Any, Any]] = {
    "null": (pa.nulls(2), pl.Null, [None, None]),
    "bool": (of_type([True, None], pa.bool_()), pl.Boolean, [True, None]),
    "string_view": (of_type(["x", None], pa.string_view()), TEXT, ["x", None]),
    "large_string": (of_type(["x", None], pa.large_string()), TEXT, ["x", None]),
    "dictionary": (pa.array(["x", None]).dictionary_encode(), TEXT, ["x", None]),
    "binary_view": (of_type([b"x", None], pa.binary_view()), pl.Binary, [b"x", None]),
    "fixed binary": (of_type([b"xy", None], pa.binary(2)), pl.Binary, [b"xy", None]),
    "half": (of_type([1.5, None], pa.float16()), pl.Float16, [1.5, None]),
    "decimal32": (of_type([TENTH, None], pa.decimal32(5, 1)), pl.Decimal(5, 1), [TENTH, None]),
    "decimal64": (of_type([TENTH, None], pa.decimal64(5, 1)), pl.Decimal(5, 1), [TENTH, None]),
    "decimal128": (of_type([TENTH, None], pa.decimal128(5, 1)), pl.Decimal(5, 1), [TENTH, None]),
    "date32": (of_type([DAY, None], pa.date32()), pl.Date, [DAY, None]),
    "date64": (of_type([DAY, None], pa.date64()), pl.Date, [DAY, None]),
    "time32": (of_type([NOON, None], pa.time32("s")), pl.Time, [NOON, None]),
    "time64": (of_type([NOON, None], pa.time64("ns")), pl.Time, [NOON, None]),
    "timestamp in s": (of_type([MOMENT, None], pa.timestamp("s")), pl.Datetime("ms"), [MOMENT, None]),
    "timestamp in ns": (of_type([MOMENT, None], pa.timestamp("ns")), pl.Datetime("ns"), [MOMENT, None]),
    "timestamp in a zone": (
        of_type([IN_UTC, None], pa.timestamp("us", "UTC")),
        pl.Datetime("us", "UTC"),
        [IN_UTC, None],
    ),
    "duration": (of_type([SECONDS, None], pa.duration("ns")), pl.Duration("ns"), [SECONDS, None]),
    "list": (of_type([[1], None], pa.list_(pa.int64())), LISTS, [[1], None]),
    "large_list": (of_type([[1], None], pa.large_list(pa.int64())), LISTS, [[1], None]),
    "fixed list": (of_type([[1, 2], None], pa.list_(pa.int64(), 2)), pl.Array(INT64, 2), [[1, 2], None]),
    "struct": (of_type([{"a": 1}, None], pa.struct({"a": pa.int64()})), pl.Struct({"a": INT64}), [{"a": 1}, None]),
    "map": (
        of_type([[("x", 1)], []], pa.map_(pa.string(), pa.int64())),
        pl.Map(TEXT, INT64),
        [{"x": 1}, {}],
    ),
    "uuid": (of_type([UUID_BYTES[0], None], pa.uuid()), TEXT, [UUID_TEXTS[0], None]),
    "list of uuid": (
        pa.ListArray.from_arrays([0, 1, 2], of_type(UUID_BYTES, pa.uuid())),
        pl.List(pl.Binary),
        [UUID_BYTES[:1], UUID_BYTES[1:]],
    ),
    "struct of uuid": (
        pa.StructArray.from_arrays([of_type(UUID_BYTES, pa.uuid())], ["u"]),
        pl.Struct({"u": pl.Binary}),
        [{"u": one} for one in UUID_BYTES],
    ),
    "bool8": (stored_as(pa.bool8(), of_type([1, None], pa.int8())), pl.Boolean, [True, None]),
    "json": (of_type(["{}", None], pa.json_()), TEXT, ["{}", None]),
    "opaque": (stored_as(pa.opaque(pa.int8(), "t", "v"), of_type([1, None], pa.int8())), pl.Int8, [1, None]),
    "tensor": (
        stored_as(pa.fixed_shape_tensor(pa.int8(), [2]), of_type([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))),
        pl.Array(pl.Int8, 2),
        [[1, 2], [3, 4]],
    ),
}
# SQL, as one value.
DUCKDB: dict[str, tuple[str, Any, Any]] = {
    "BOOLEAN": ("true", pl.Boolean, True),
    "TINYINT": ("1::tinyint", pl.Int8, 1),
    "SMALLINT": ("1::smallint", pl.Int16, 1),
    "INTEGER": ("1::integer", pl.Int32, 1),
    "BIGINT": ("1::bigint", INT64, 1),
    "UTINYINT": ("1::utinyint", pl.UInt8, 1),
    "USMALLINT": ("1::usmallint", pl.UInt16, 1),
    "UINTEGER": ("1::uinteger", pl.UInt32, 1),
    "UBIGINT": ("18446744073709551615::ubigint", pl.UInt64, 2**64 - 1),
    "HUGEINT": ("(-5)::hugeint", pl.Decimal(38, 0), decimal.Decimal(-5)),
    "FLOAT": ("1.5::float", pl.Float32, 1.5),
    "DOUBLE": ("1.5::double", pl.Float64, 1.5),
    "DECIMAL": ("0.1::decimal(10, 1)", pl.Decimal(10, 1), TENTH),
    "VARCHAR": ("'x'", TEXT, "x"),
    "BLOB": ("'x'::blob", pl.Binary, b"x"),
    "UUID": (f"'{UUIDS[0]}'::uuid", TEXT, UUID_TEXTS[0]),
    "ENUM": ("'x'::enum('x')", TEXT, "x"),
    "DATE": ("date '2020-01-02'", pl.Date, DAY),
    "TIME": ("time '12:00:00'", pl.Time, NOON),
    "TIMESTAMP": ("timestamp '2020-01-02 12:00:00'", pl.Datetime("us"), MOMENT),
    "TIMESTAMP_S": ("timestamp_s '2020-01-02 12:00:00'", pl.Datetime("ms"), MOMENT),
    "TIMESTAMP_NS": ("timestamp_ns '2020-01-02 12:00:00'", pl.Datetime("ns"), MOMENT),
    "LIST": ("[1::bigint]", LISTS, [1]),
    "ARRAY": ("array_value(1::bigint, 2)", pl.Array(INT64, 2), [1, 2]),
    "STRUCT": ("{'a': 1::bigint}", pl.Struct({"a": INT64}), {"a": 1}),
    "MAP": ("map {'x': 1::bigint}", pl.Map(TEXT, INT64), {"x": 1}),
    "NULL": ("null", pl.Null, None),
    "STRUCT with a field named BIT": ("{'BIT': 1::bigint}", pl.Struct({"BIT": INT64}), {"BIT": 1}),
}
V = datasets.Value
DATASETS: dict[str, tuple[Any, list[Any], Any, Any]] = {
    "bool": (V("bool"), [True, None], pl.Boolean, [True, None]),
    "int32": (V("int32"), [1, None], pl.Int32, [1, None]),
    "float16": (V("float16"), [1.5, 2.0], pl.Float16, [1.5, 2.0]),
    "large_string": (V("large_string"), ["x", None], TEXT, ["x", None]),
    "binary": (V("binary"), [b"x", None], pl.Binary, [b"x", None]),
    "timestamp": (V("timestamp[us]"), [MOMENT, None], pl.Datetime("us"), [MOMENT, None]),
    "date": (V("date32"), [DAY, None], pl.Date, [DAY, None]),
    "decimal": (V("decimal128(5, 1)"), [TENTH, None], pl.Decimal(5, 1), [TENTH, None]),
    "class": (datasets.ClassLabel(names=["no", "yes"]), [0, 1], INT64, [0, 1]),
    "list": (datasets.List(V("int64")), [[1], [2]], LISTS, [[1], [2]]),
    "large list": (datasets.LargeList(V("int64")), [[1], [2]], LISTS, [[1], [2]]),
    "list of one": (datasets.List(V("int64"), length=1), [[1], [2]], pl.Array(INT64, 1), [[1], [2]]),
    "struct": ({"a": V("int64")}, [{"a": 1}] * 2, pl.Struct({"a": INT64}), [{"a": 1}] * 2),
    "array": (datasets.Array2D((1, 2), "int64"), [[[1, 2]]] * 2, pl.List(LISTS), [[[1, 2]]] * 2),
    "translation": (
        datasets.Translation(["de", "en"]),
        [{"de": "a", "en": "b"}] * 2,
        pl.Struct({"de": TEXT, "en": TEXT}),
        [{"de": "a", "en": "b"}] * 2,
    ),
    "image": (datasets.Image(), [None, None], IMAGE, [None, None]),
}


def of_duckdb() -> duckdb.DuckDBPyRelation:
    columns = ", ".join(f'{sql} as "{name}"' for name, (sql, _, _) in DUCKDB.items())
    return duckdb.sql(f"select unnest(['{TEXTS[0]}', '{TEXTS[1]}']) as text, {columns}")


def of_datasets() -> datasets.Dataset:
    features = {"text": V("string"), **{name: case[0] for name, case in DATASETS.items()}}
    values = {"text": TEXTS, **{name: case[1] for name, case in DATASETS.items()}}
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def columns_of(cases: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {"text": TEXTS, **{name: case[0] for name, case in cases.items()}}


STORED: dict[str, tuple[Callable[[], Any], dict[str, tuple[Any, Any]]]] = {
    "polars": (lambda: pl.DataFrame(columns_of(POLARS)), {name: case[1:] for name, case in POLARS.items()}),
    "pandas": (lambda: pd.DataFrame(columns_of(PANDAS)), {name: case[1:] for name, case in PANDAS.items()}),
    "pyarrow": (lambda: pa.table(columns_of(PYARROW)), {name: case[1:] for name, case in PYARROW.items()}),
    "duckdb": (of_duckdb, {name: (kind, [value] * 2) for name, (_, kind, value) in DUCKDB.items()}),
    "datasets": (of_datasets, {name: case[2:] for name, case in DATASETS.items()}),
}


@pytest.mark.parametrize("library", STORED)
def test_every_type_that_is_kept_is_stored_as_a_type_that_any_reader_knows(library, tmp_path, model):
    make, expected = STORED[library]
    settings = {"model": str(model), "layers": "-1", "levels": "sentence", "keep_columns": list(expected)}
    store = extract(make(), tmp_path / "s", **settings)
    found = store.polars("sentence")
    assert found["text"].to_list() == TEXTS
    assert {name: found.schema[name] for name in expected} == {name: kind for name, (kind, _) in expected.items()}
    values = {name: found[name].to_list() for name in expected}
    assert values == {name: wanted for name, (_, wanted) in expected.items()}


def test_a_uuid_column_of_a_parquet_file_is_read_by_the_command_line_also_as_id(tmp_path, model):
    path, out = tmp_path / "u.parquet", tmp_path / "s"
    pd.DataFrame({"text": TEXTS, "u": UUIDS}).to_parquet(path)
    settings = ["--model", str(model), "--layers", "-1", "--level", "sentence"]
    assert run_cli("extract", str(path), "-o", str(out), *settings, "--id-column", "u", "--keep-columns", "u")[0] == 0
    assert pq.read_table(next((out / "sentence").iterdir()), columns=["doc_id", "u"]).to_pydict() == {
        "doc_id": UUID_TEXTS,
        "u": UUID_TEXTS,
    }


def with_duckdb(sql: str) -> Callable[[], Any]:
    return lambda: duckdb.sql(f"select 'a' as text, {sql} as kind")


def with_polars(values: list[Any], kind: Any) -> Callable[[], Any]:
    return lambda: pl.DataFrame({"text": TEXTS, "kind": pl.Series(values, dtype=kind)})


def with_pandas(values: Any) -> Callable[[], Any]:
    return lambda: pd.DataFrame({"text": TEXTS, "kind": values})


def with_arrow(values: pa.Array) -> Callable[[], Any]:
    return lambda: pa.table({"text": TEXTS, "kind": values})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "polars Object": (with_polars(["good", "bad"], pl.Object), "Object"),
    "polars Int128": (with_polars([5, 5], pl.Int128), "Int128"),
    "polars UInt128": (with_polars([5, 5], pl.UInt128), "UInt128"),
    "polars List of Int128": (with_polars([[5], [5]], pl.List(pl.Int128)), "Int128"),
    "pandas period": (with_pandas(pd.period_range("2020-01", periods=2, freq="M")), "period"),
    "pandas complex": (with_pandas([1j, 1j]), "complex128"),
    "pandas sparse": (with_pandas(pd.arrays.SparseArray([0, 1])), "Sparse"),
    "pandas mixed objects": (with_pandas(pd.Series(["x", 1], dtype=object)), "int"),
    "pyarrow decimal256": (with_arrow(of_type([TENTH] * 2, pa.decimal256(50, 1))), "decimal256"),
    "pyarrow interval": (
        with_arrow(pa.array([pa.MonthDayNano([1, 2, 3])] * 2)),
        "interval",
    ),
    "pyarrow list_view": (with_arrow(of_type([[1], [2]], pa.list_view(pa.int8()))), "list_view"),
    "pyarrow union": (
        with_arrow(pa.UnionArray.from_sparse(of_type([0, 0], pa.int8()), [pa.array([1, 1])])),
        "sparse_union",
    ),
    "pyarrow runs": (
        with_arrow(pa.RunEndEncodedArray.from_arrays(of_type([2], pa.int32()), pa.array(["x"]))),
        "run_end",
    ),
    "duckdb BIT": (with_duckdb("'101'::bit"), r"BIT.*cast\(kind as varchar\)"),
    "duckdb BIT in a list": (with_duckdb("['101'::bit]"), r"BIT\[\]"),
    "duckdb BIT in a map": (with_duckdb("map {'x': '101'::bit}"), "MAP"),
    "duckdb BIGNUM": (with_duckdb("1::bignum"), "BIGNUM"),
    "duckdb TIMETZ": (with_duckdb("'12:00:00+02'::timetz"), "TIME WITH TIME ZONE"),
    "duckdb UHUGEINT": (with_duckdb("5::uhugeint"), "UHUGEINT"),
    "duckdb INTERVAL": (with_duckdb("interval 1 month"), "INTERVAL"),
    "duckdb UNION": (with_duckdb("union_value(a := 1)"), "UNION"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_type_that_cannot_be_kept_is_refused_by_column_before_anything_is_encoded(case, tmp_path):
    make, said = REFUSED[case]
    with pytest.raises(UserError, match=f"(?s)kind.*{said}|{said}.*kind") as error:
        extract(make(), tmp_path / "s", layers="-1", levels="sentence", keep_columns="kind")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["text_column", "id_column"])
def test_python_objects_of_polars_are_refused_as_texts_and_ids_too(setting, tmp_path):
    frame = pl.DataFrame({"text": TEXTS, "other": pl.Series(TEXTS, dtype=pl.Object)})
    with pytest.raises(UserError, match="column 'other' is Object, which is not read; make it text"):
        extract(frame, tmp_path / "s", levels="sentence", **{setting: "other"})


def test_digits_beyond_the_type_are_refused_and_columns_that_are_not_read_do_not_matter(tmp_path, model):
    wide = duckdb.sql("select 'a' as text, 170141183460469231731687303715884105727::hugeint as kind")
    with pytest.raises(UserError, match="does not fit in precision"):
        extract(wide, tmp_path / "s", levels="sentence", keep_columns="kind")
    others = {"object": pl.Series([{}, []], dtype=pl.Object), "wide": pl.Series([5, 5], dtype=pl.Int128)}
    settings = {"model": str(model), "layers": "-1", "levels": "sentence"}
    store = extract(pl.DataFrame({"text": TEXTS, **others}), tmp_path / "s", **settings)
    assert store.polars("sentence")["text"].to_list() == TEXTS


@pytest.mark.parametrize("how", ["with_transform", "set_transform", "set_format"])
def test_a_data_set_with_a_transform_is_refused(how, tmp_path):
    def shouted(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        return {"text": [text.upper() for text in batch["text"]]}

    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    if how == "set_format":
        dataset.set_format("custom", transform=shouted)
    else:
        dataset = getattr(dataset, how)(shouted) or dataset
    with pytest.raises(UserError, match=r"<frame>: has a transform, .*map"):
        extract(dataset, tmp_path / "s", levels="sentence")
