"""A damaged file never reads to other vectors than pyarrow makes of it, nor where pyarrow refuses it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfeat.errors import StoreError
from bertfeat.store import open_store
from bertfeat.store.footer import read_footer
from bertfeat.store.pagelevels import are_all, are_rows
from bertfeat.store.thrift import CompactReader, Struct, ThriftError
from bertfeat.store.vectors import read_group
from tests.support.places import ROOT
from tests.support.reading_files import (
    NAME,
    by_pages,
    by_pyarrow,
    by_store,
    same,
    table,
    values,
    write_arrow,
    write_polars,
)
from tests.support.store_fakes import make_plan, write_store

DIM = 9
N_ROWS = 14


def outcome(read, *arguments):
    """Return what was read, or None of a file that was refused."""
    try:
        return read(*arguments)
    except (StoreError, pa.ArrowException, OSError, ValueError):
        return None


def check(path, dtype, encoding):
    """Compare with pyarrow; return whether the values were copied from the pages."""
    want = outcome(by_pyarrow, path, dtype, DIM)
    copied = outcome(by_pages, path, dtype, encoding, DIM)
    assert copied is None or (want is not None and same(copied, want))
    return copied is not None


FILES = [
    ("array", "float16", write_arrow, {"data_page_size": 100, "write_batch_size": 5}),
    ("array", "float32", write_polars, {"row_group_size": 8}),
    ("array", "float32", write_arrow, {"data_page_version": "2.0", "write_page_checksum": True}),
    ("binary", "float32", write_arrow, {"row_group_size": 8, "write_statistics": True}),
    ("binary", "float16", write_arrow, {"data_page_version": "2.0", "data_page_size": 100, "write_batch_size": 5}),
]


def pages_end(path):
    """Return where the pages end and the footer begins."""
    data = path.read_bytes()
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


@pytest.mark.parametrize(("encoding", "dtype", "write", "options"), FILES)
def test_every_byte_of_the_pages_flipped(tmp_path, encoding, dtype, write, options):
    path = write(tmp_path / "a.parquet", table(values(N_ROWS, DIM, dtype), encoding).select([NAME]), **options)
    good = path.read_bytes()
    assert check(path, dtype, encoding)
    n_copied = 0
    for place in range(4, pages_end(path)):
        for flip in (1 << place % 8, 0xFF):
            damaged = bytearray(good)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            n_copied += check(path, dtype, encoding)
    # Most bytes are values: whatever these are, they are copied.
    assert n_copied > N_ROWS * DIM


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(FILES), st.data())
def test_pieces_of_pages_exchanged(tmp_path_factory, case, data):
    encoding, dtype, write, options = case
    path = tmp_path_factory.mktemp("damage") / "a.parquet"
    write(path, table(values(N_ROWS, DIM, dtype), encoding).select([NAME]), **options)
    good = path.read_bytes()
    end = pages_end(path)
    start = data.draw(st.integers(4, end - 1))
    piece = data.draw(st.binary(min_size=1, max_size=12))
    damaged = bytearray(good)
    damaged[start : min(end, start + len(piece))] = piece[: min(end, start + len(piece)) - start]
    path.write_bytes(damaged)
    check(path, dtype, encoding)


@pytest.mark.parametrize(("encoding", "dtype", "write", "options"), FILES)
def test_a_file_cut_off_anywhere_is_refused(tmp_path, encoding, dtype, write, options):
    path = write(tmp_path / "a.parquet", table(values(N_ROWS, DIM, dtype), encoding).select([NAME]), **options)
    good = path.read_bytes()
    for length in range(0, len(good), 7):
        path.write_bytes(good[:length])
        with pytest.raises(StoreError, match="cannot be read"):
            by_store(path, dtype, encoding, DIM)


def test_lists_of_other_lengths_than_the_schema_says_are_pyarrows_to_refuse(tmp_path):
    """The levels are looked at: as many values as there should be are not taken for vectors of the right width."""
    path = tmp_path / "a.parquet"
    even = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.field("element", pa.float32(), nullable=False), 2))
    odd = pa.array([[1.0], [2.0, 3.0, 4.0]], pa.list_(pa.field("element", pa.float32(), nullable=False)))
    pq.write_table(pa.table({NAME: even}), path, compression="none", use_dictionary=False, write_statistics=False)
    good = path.read_bytes()
    pq.write_table(pa.table({NAME: odd}), path, compression="none", use_dictionary=False, write_statistics=False)
    pages = path.read_bytes()[4 : pages_end(path)]
    footer = good[-8 - int.from_bytes(good[-8:-4], "little") :]
    assert len(pages) + 4 + len(footer) == len(good)
    path.write_bytes(good[:4] + pages + footer)
    assert by_pages(path, "float32", "array", 2) is None
    with pytest.raises(StoreError, match="cannot be read"):
        by_store(path, "float32", "array", 2)


def naive_levels(data: bytes, bit_width: int, n_levels: int) -> list[int] | None:
    """Decode levels one by one; None if they do not fill the bytes, no more and no less."""
    found: list[int] = []
    place = 0
    while len(found) < n_levels:
        head = shift = 0
        while True:
            if place >= len(data) or shift > 28:
                return None
            head |= (data[place] & 127) << shift
            shift += 7
            place += 1
            if data[place - 1] < 128:
                break
        n_wanted = n_levels - len(found)
        if head & 1:
            n_bytes = (head >> 1) * bit_width
            if not 0 < (head >> 1) * 8 < n_wanted + 8 or place + n_bytes > len(data):
                return None
            bits = int.from_bytes(data[place : place + n_bytes], "little")
            levels = [bits >> n * bit_width & (1 << bit_width) - 1 for n in range((head >> 1) * 8)]
            found += levels[:n_wanted]
            place += n_bytes
        else:
            if not 0 < head >> 1 <= n_wanted or place >= len(data):
                return None
            found += [data[place]] * (head >> 1)
            place += 1
    return found if place == len(data) else None


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@st.composite
def coded_levels(draw):
    """Levels of lists of one length from some place on, in a coding that is one of many."""
    dim, first, n_levels = draw(st.integers(1, 40)), draw(st.integers(0, 100)), draw(st.integers(1, 400))
    levels = [int((first + n) % dim != 0) for n in range(n_levels)]
    data, place = b"", 0
    while place < n_levels:
        run = next((n for n in range(place, n_levels) if levels[n] != levels[place]), n_levels) - place
        if run >= draw(st.sampled_from([1, 4, 8])):
            data += varint(run << 1) + bytes([levels[place]])
            place += run
        else:
            n_groups = draw(st.integers(1, min(4, (n_levels - place + 7) // 8)))
            group = levels[place : place + 8 * n_groups]
            data += varint(n_groups << 1 | 1)
            data += sum(level << n for n, level in enumerate(group)).to_bytes(n_groups, "little")
            place += len(group)
    return data, n_levels, first, dim


@settings(deadline=None, max_examples=300)
@given(coded_levels(), st.data())
def test_levels_of_rows_are_told_from_all_others(coded, data):
    good, n_levels, first, dim = coded
    want = [int((first + n) % dim != 0) for n in range(n_levels)]
    assert naive_levels(good, 1, n_levels) == want
    assert are_rows(good, n_levels, first, dim)
    damaged = bytearray(good)
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=3)):
        damaged[place] = data.draw(st.integers(0, 255))
    damaged = bytes(damaged[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else damaged)
    assert are_rows(damaged, n_levels, first, dim) == (naive_levels(damaged, 1, n_levels) == want)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=12), st.integers(1, 40), st.integers(1, 7))
def test_levels_that_are_all_the_same_are_told_from_all_others(data, n_levels, level):
    want = naive_levels(data, level.bit_length(), n_levels) == [level] * n_levels
    assert are_all(data, n_levels, level) == want
    assert are_all(varint(n_levels << 1) + bytes([level]), n_levels, level)


@pytest.mark.parametrize("dim", [1, 3, 384, 1536])
def test_levels_of_a_large_page(dim):
    row = varint(1 << 1) + b"\x00" + (varint((dim - 1) << 1) + b"\x01" if dim > 1 else b"")
    n_rows = 50_000
    assert are_rows(row * n_rows, n_rows * dim, 0, dim)
    assert not are_rows(row * n_rows, n_rows * dim - 1, 0, dim)
    assert not are_rows(row * n_rows + b"\x02", n_rows * dim, 0, dim)
    if dim > 1:
        wrong = varint(2 << 1) + b"\x00" + varint((dim - 2) << 1) + b"\x01"
        assert not are_rows(row * 1000 + wrong + row * 1000, 2001 * dim, 0, dim)


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_struct_are_an_error_of_one_kind(data):
    reader = CompactReader(data)
    try:
        found = reader.struct()
    except ThriftError:
        return
    assert isinstance(found, Struct)
    assert 0 < reader.position <= len(data)


def test_every_kind_of_field_is_read_or_passed_over():
    data = bytes.fromhex(
        "15 09"  # 1: i32 -5
        "11 12"  # 2: true, 3: false
        "26 80 80 80 80 80 01"  # 5: i64
        "13 07"  # 6: a byte
        "17 00 00 00 00 00 00 f0 3f"  # 7: a double
        "18 03 61 62 63"  # 8: binary
        "19 25 02 04"  # 9: a list of two i32
        "1a 21 01 02"  # 10: a set of two truth values
        "1b 01 58 02 01 61"  # 11: a map of i32 to binary
        "1b 00"  # 12: an empty map
        "1c 15 02 00"  # 13: a struct of i32 1
        "05 c8 01 0e"  # 100: i32 7, its number in full
        "00"
    )
    reader = CompactReader(data)
    found = reader.struct()
    assert found == Struct({1: -5, 100: 7}, {2: True, 3: False}, {13: Struct({1: 1})})
    assert reader.position == len(data)
    for length in range(len(data)):
        with pytest.raises(ThriftError, match="cut off"):
            CompactReader(data[:length]).struct()
    for wrong in ("15 02 05 02 02", "1d 00", "15 ff ff ff ff ff 01", "1c" * 40, "19 f5 ff ff ff ff 0f"):
        with pytest.raises(ThriftError):
            CompactReader(bytes.fromhex(wrong)).struct()


def test_headers_with_long_statistics_are_read(tmp_path):
    """A vector of 40 KB as the least and the greatest makes a header that is longer than what is read at first."""
    vectors = values(20, 10_000, "float32")
    path = write_arrow(tmp_path / "a.parquet", table(vectors, "binary"), write_statistics=True, data_page_size=100_000)
    assert same(by_pages(path, "float32", "binary", 10_000), vectors)
    assert np.array_equal(by_store(path, "float32", "binary", 10_000).view("u4"), vectors.view("u4"))


def damage(tmp_path, n_tries, seed):
    """Damage parts in a process of its own, which an exception of Arrow's or polars' core would end."""
    command = [sys.executable, "-m", "tests.support.part_damage", str(tmp_path), str(seed), str(n_tries)]
    log = tmp_path / "log"
    log.touch()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    last = log.read_text().splitlines()[-1:]
    assert done.returncode == 0, f"ended after {last}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout)
    assert found.pop("examples") == []
    assert set(found) == {"tries", "right", "refused"}
    assert min(found["right"], found["refused"]) > n_tries // 2


def test_damage_anywhere_but_in_the_vectors_own_bytes_is_refused_or_changes_nothing(tmp_path):
    damage(tmp_path, 60, 1)


@pytest.mark.long
def test_10_000_damages_anywhere_but_in_the_vectors_own_bytes(tmp_path):
    damage(tmp_path, 10_000, 2)


def first_page(path, name):
    """Return where the first page of a column begins."""
    with path.open("rb") as file:
        groups = read_footer(file.fileno())
    return next(chunk.start for chunk in groups[0].chunks if chunk.path[0] == name)


PAGE_TYPES = [0x02, 0x08, 0x40]  # an index page, and two that Parquet does not have: pyarrow passes over them


@pytest.mark.parametrize("encoding", ["array", "binary"])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("page_type", PAGE_TYPES)
def test_a_page_of_another_type_is_refused_by_every_reader(tmp_path, encoding, nulls, page_type):
    write_store(tmp_path / "s", make_plan(encoding=encoding), nulls=nulls)
    path = tmp_path / "s/token/part-00000.parquet"
    data = bytearray(path.read_bytes())
    place = first_page(path, "layer_04") + 1
    assert data[place] == 0
    data[place] = page_type
    path.write_bytes(data)
    for read in (
        lambda store: store.numpy("token", "layer_04"),
        lambda store: store.torch("token", "layer_04"),
        lambda store: store.take("token", "mean_last4", [0, 3]),
        lambda store: store.slice("token", "layer_04", 1, 3),
        lambda store: list(store.batches("token", "mean_last4")),
        lambda store: store.valid("token", "layer_04"),
        lambda store: store.polars("token", ["layer_04"]),
        lambda store: store.arrow("token"),
    ):
        with pytest.raises(StoreError, match=r"part-00000.parquet: cannot be read: its bytes are not those"):
            read(open_store(tmp_path / "s"))
    if not nulls:
        assert open_store(tmp_path / "s").numpy("token", "layer_03").shape == (12, 4), "other columns are copied"


@pytest.mark.parametrize("page_type", PAGE_TYPES)
def test_rows_that_pyarrow_passes_over_are_missed(tmp_path, page_type):
    path = write_arrow(tmp_path / "a.parquet", table(values(N_ROWS, DIM, "float32"), "array").select([NAME]))
    data = bytearray(path.read_bytes())
    data[first_page(path, NAME) + 1] = page_type
    path.write_bytes(data)
    with pq.ParquetFile(path) as file:
        assert file.read_row_group(0).num_rows < N_ROWS
        with pytest.raises(ValueError, match=f"of its {N_ROWS} rows"):
            read_group(file, 0, [NAME])
