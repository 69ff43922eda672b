"""Vectors that are copied from pages are those that pyarrow decodes, whoever wrote the file; others are decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.errors import StoreError
from bertfeat.store.pages import find_chunks, find_runs
from bertfeat.store.partvectors import KnownRuns, opened_vectors
from bertfeat.store.plain import read_rows, take_rows
from tests.support.reading_files import (
    NAME,
    by_pages,
    by_pyarrow,
    by_store,
    layout,
    part_of,
    same,
    stored,
    table,
    values,
    write_arrow,
)
from tests.support.reading_files import write_polars as by_polars

KINDS = [(dtype, encoding) for dtype in ("float16", "float32") for encoding in ("array", "binary")]
DIMS = [1, 3, 8, 20, 100, 384, 1021]


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data_page_version": "2.0"},
        {"data_page_size": 1000, "write_batch_size": 7},
        {"data_page_size": 1000, "write_batch_size": 64, "data_page_version": "2.0", "row_group_size": 77},
        {"write_page_checksum": True, "write_statistics": True, "write_page_index": True, "row_group_size": 100},
        {"store_schema": True, "version": "1.0"},
    ],
    ids=str,
)
def test_files_of_pyarrow(tmp_path, dtype, encoding, dim, options):
    vectors = values(230, dim, dtype)
    for nullable in (False, True):
        data = table(vectors, encoding, nullable_elements=nullable)
        path = write_arrow(tmp_path / f"{nullable}.parquet", data, **options)
        got = by_pages(path, dtype, encoding, dim)
        assert got is not None, "the fast path was not taken"
        assert same(got, vectors)
        assert same(got, by_pyarrow(path, dtype, dim))
        assert same(got, by_store(path, dtype, encoding, dim))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("options", [{}, {"data_page_size": 1000}, {"row_group_size": 77}], ids=str)
def test_files_of_polars(tmp_path, dtype, dim, options):
    vectors = values(230, dim, dtype)
    for nullable in (False, True):
        path = by_polars(tmp_path / "a.parquet", table(vectors, "array", nullable_elements=nullable), **options)
        got = by_pages(path, dtype, "array", dim)
        assert got is not None, "the fast path was not taken"
        assert same(got, vectors)
        assert same(got, by_pyarrow(path, dtype, dim))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_pages_of_megabytes_and_many_row_groups(tmp_path, dtype):
    vectors = values(9000, 384, dtype)
    for encoding in ("array", "binary"):
        for options in ({"row_group_size": 4000}, {"data_page_size": 64 << 20}, {"data_page_version": "2.0"}):
            path = write_arrow(tmp_path / "a.parquet", table(vectors, encoding), **options)
            assert same(by_pages(path, dtype, encoding, 384), vectors)
    assert same(by_pages(by_polars(tmp_path / "b.parquet", table(vectors, "array")), dtype, "array", 384), vectors)


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"use_dictionary": True},
        {"use_dictionary": False, "column_encoding": {"leaf": "BYTE_STREAM_SPLIT"}},
        {"compression": "lz4", "write_page_checksum": True},
    ],
    ids=str,
)
def test_what_is_compressed_or_encoded_is_decoded(tmp_path, dtype, encoding, options):
    vectors = values(50, 12, dtype)
    leaf = NAME if encoding == "binary" else f"{NAME}.list.element"
    if "column_encoding" in options:
        options = {**options, "column_encoding": {leaf: "BYTE_STREAM_SPLIT"}}
    path = write_arrow(tmp_path / "a.parquet", table(vectors, encoding), **options)
    assert by_pages(path, dtype, encoding, 12) is None
    assert same(by_store(path, dtype, encoding, 12), vectors)


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.98])
def test_nulls_are_decoded_and_become_nan(tmp_path, dtype, encoding, version, rate):
    vectors = values(300, 12, dtype)
    valid = np.random.default_rng(0).random(300) < rate
    data = table(vectors, encoding, valid=valid)
    path = write_arrow(tmp_path / "a.parquet", data, data_page_version=version, row_group_size=120)
    got = by_store(path, dtype, encoding, 12)
    assert by_pages(path, dtype, encoding, 12) is None
    assert np.isnan(got[~valid]).all()
    assert same(got[valid], vectors[valid])
    assert same(got, by_pyarrow(path, dtype, 12))


def test_only_the_row_groups_with_nulls_are_decoded(tmp_path):
    vectors = values(30, 12, "float32")
    valid = np.arange(30) != 15
    path = write_arrow(tmp_path / "a.parquet", table(vectors, "array", valid=valid), row_group_size=10)
    known = KnownRuns()
    with opened_vectors(part_of(path, "float32", "array", 12), stored(12), known) as part:
        for group in range(3):
            part.read(group, range(10), np.empty((10, 12), np.float32))
    assert [runs is None for runs in known.runs.values()] == [False, True, False]


def test_no_rows(tmp_path):
    for encoding in ("array", "binary"):
        path = write_arrow(tmp_path / "a.parquet", table(values(0, 12, "float32"), encoding))
        assert by_store(path, "float32", encoding, 12).shape == (0, 12)


def refuses(path, dtype="float32", encoding="array"):
    with pq.ParquetFile(path) as file, path.open("rb") as opened:
        assert find_chunks(opened.fileno(), file, NAME, layout(dtype, encoding)) == [None]


def test_other_types_are_not_taken_for_vectors(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {
        "doubles": pa.array([[0.5, 1.0]], pa.list_(pa.float64(), 2)),
        "a list of any length": pa.array([[0.5, 1.0]], pa.list_(pa.float32())),
        "numbers": pa.array([7], pa.int32()),
        "a struct": pa.array([{"a": 1.0}]),
        "lists of lists": pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float32(), 2), 1)),
        "binary of any length": pa.array([b"abcd"]),
    }
    for column in columns.values():
        for encoding in ("array", "binary"):
            refuses(write_arrow(path, pa.table({NAME: column})), encoding=encoding)
    refuses(write_arrow(path, pa.table({"other": [1]})))
    refuses(write_arrow(path, table(values(3, 4, "float32"), "array")), dtype="float16")
    refuses(write_arrow(path, table(values(3, 4, "float32"), "array")), encoding="binary")
    refuses(write_arrow(path, table(values(3, 4, "float32"), "binary")), encoding="array")


def test_columns_that_begin_alike_are_told_apart(tmp_path):
    vectors = values(40, 12, "float32")
    data = table(vectors, "array")
    data = data.append_column(f"{NAME}_more", data[NAME]).append_column(f"{NAME}.list.other", pa.array(range(40)))
    path = write_arrow(tmp_path / "a.parquet", data)
    assert same(by_pages(path, "float32", "array", 12), vectors)


def test_a_file_that_is_cut_off_while_it_is_open_is_named(tmp_path):
    path = write_arrow(tmp_path / "a.parquet", table(values(4000, 384, "float32"), "array"))
    message = r"a.parquet: cannot be read: the file ends at byte 1000000; run bertfeat verify"
    out = np.empty((4000, 384), np.float32)

    def read():
        with opened_vectors(part_of(path, "float32", "array", 384), stored(384), KnownRuns()) as part:
            part.read(0, range(1), out[:1])
            with path.open("r+b") as file:
                file.truncate(1_000_000)
            part.read(0, range(4000), out)

    with pytest.raises(StoreError, match=message):
        read()


@pytest.mark.parametrize(("dtype", "encoding"), KINDS)
@pytest.mark.parametrize("options", [{}, {"data_page_size": 1000, "write_batch_size": 7}], ids=str)
def test_parts_of_rows_that_begin_on_one_page_and_end_on_the_next(tmp_path, dtype, encoding, options):
    vectors = values(700, 100, dtype)
    path = write_arrow(tmp_path / "a.parquet", table(vectors, encoding), **options)
    rng = np.random.default_rng(0)
    with pq.ParquetFile(path) as file, path.open("rb") as opened:
        runs = find_runs(opened.fileno(), find_chunks(opened.fileno(), file, NAME, layout(dtype, encoding))[0])
        for start, width in ((0, 100), (0, 1), (99, 1), (30, 40)):
            for n_rows in (1, 2, 50, 700):
                rows = np.sort(rng.choice(700, n_rows, replace=False))
                # The rows of what is filled stand apart: a layer in a concatenation.
                out = np.zeros((n_rows, 150), dtype)
                take_rows(opened.fileno(), runs, rows, start, out[:, 20 : 20 + width])
                assert same(out[:, 20 : 20 + width], vectors[rows, start : start + width])
                assert not out[:, :20].any()
                assert not out[:, 20 + width :].any()
                first = int(rng.integers(0, 701 - n_rows))
                read_rows(opened.fileno(), runs, first, start, out[:, 20 : 20 + width])
                assert same(out[:, 20 : 20 + width], vectors[first : first + n_rows, start : start + width])
        with pytest.raises(ValueError, match="bytes"):
            read_rows(opened.fileno(), runs, 1, 0, np.empty((700, 100), dtype))
        with pytest.raises(ValueError, match="bytes"):
            take_rows(opened.fileno(), runs, np.array([3, 700]), 0, np.empty((2, 100), dtype))
