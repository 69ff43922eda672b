"""Inputs that are far larger than their files: memory is bounded, and the message names the row."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertfeat.corpus import linestreams, parquet
from bertfeat.errors import InputError
from bertfeat.records import Document
from tests.support.corpus_files import bad_rows, documents, read_all, texts, write
from tests.support.places import ROOT

# Reads the texts of a file through the corpus in a separate process; prints them, and the growth of memory in MB.
READER = """
import json, resource, sys
from tests.support.corpus_files import open_corpus, plan
import pyarrow.parquet
from bertfeat.corpus import parquet
def peak():
    # The peak of this program alone: that of getrusage includes the process that started it.
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) >> 10
before = peak()
try:
    corpus = open_corpus(sys.argv[1], **json.loads(sys.argv[2]))
    rows = (row for shard in plan(corpus) for row in corpus.read(shard))
    said = [getattr(row, "reason", None) or str(len(row.text)) for row in rows]
except Exception as error:
    said = [f"{type(error).__name__}: {error}"]
print(json.dumps([said[:3], len(said), peak() - before]))
"""


def _read_apart(path: Path, **settings: object) -> tuple[list[str], int, int]:
    said, n_rows, grown = _run(READER, str(path), json.dumps(settings))
    return said, n_rows, grown


def _run(script: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


def _write_repeats(path: Path, kind: str, text: str, n_rows: int) -> Path:
    """Write a Parquet file whose rows repeat one text at no cost."""
    values: Any = pa.array([text]).dictionary_encode().take(pa.array([0] * n_rows, pa.int32()))
    options: dict[str, Any] = {}
    if kind == "prefixes":
        values = [text] * n_rows
        options = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
    if kind == "list":
        values = pa.ListArray.from_arrays(pa.array([0, n_rows], pa.int32()), values)
    pq.write_table(pa.table({"text": values}), path, compression="zstd", **options)
    return path


@pytest.mark.parametrize("kind", ["dictionary", "prefixes"])
def test_rows_that_repeat_a_long_text_are_decoded_few_at_a_time(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write_repeats(tmp_path / "a.parquet", kind, "a" * 100_000, 300)
    largest = []
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1_000_000)
    monkeypatch.setattr(parquet, "_excess", lambda batch: largest.append(batch.num_rows))
    assert [len(text) for text in texts(path)] == [100_000] * 300
    assert max(largest) < 10


def test_a_list_that_repeats_a_long_word_is_refused_before_it_is_built(tmp_path: Path) -> None:
    path = _write_repeats(tmp_path / "a.parquet", "list", "a" * 1_000_000, 2_000)
    (bad,) = bad_rows(path, is_split_into_words=True)
    assert (bad.row, bad.raw) == (1, None)
    assert "the row has 2,000,000,000 bytes, 64,000,000 are the most that are read" in bad.reason


def test_a_list_of_too_many_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = pa.array([["a"], ["b"] * 5_000, ["c"]])
    pq.write_table(pa.table({"text": words}), tmp_path / "a.parquet")
    monkeypatch.setattr(linestreams, "MAX_ROW_VALUES", 1_000)
    rows = read_all(tmp_path / "a.parquet", is_split_into_words=True, bad_rows="quarantine")
    found = [row.words if isinstance(row, Document) else row.reason[:34] for row in rows]
    assert found == [("a",), "the row has more than 1,000 values", ("c",)]
    monkeypatch.setattr(parquet, "MAX_LIST_VALUES", 5_000)
    with pytest.raises(InputError, match="row group 0 has 5,002 values in the lists of column 'text"):
        read_all(tmp_path / "a.parquet", is_split_into_words=True)


def test_one_parquet_row_beyond_the_limit_is_bad_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"text": ["a", "b" * 900, "c"], "k": ["", "d" * 101, ""]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    monkeypatch.setattr(linestreams, "MAX_ROW_BYTES", 1_000)
    rows = read_all(tmp_path / "a.parquet", bad_rows="quarantine", keep_columns="k", levels="sentence")
    found = [row.text if isinstance(row, Document) else row.reason[:23] for row in rows]
    assert found == ["a", "the row has 1,001 bytes", "c"]
    with pytest.raises(InputError, match=r"a\.parquet:2: the row has 1,001 bytes, 1,000 are the most.*quarantine"):
        read_all(tmp_path / "a.parquet", keep_columns="k", levels="sentence")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.conll"])
def test_a_line_beyond_the_limit_is_passed_over(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"a.jsonl": '{"text": "%s"}', "a.csv": '"%s\n""x"""', "a.conll": "%s O\n"}.get(name, "%s")
    long = line % ("x" * 3_000_000)
    short = {"a.jsonl": '{"text": "a"}', "a.conll": "a O\n"}.get(name, "a")
    path = write(tmp_path, name, ("text\n" if name == "a.csv" else "") + f"{short}\n{long}\n{short}\n")
    monkeypatch.setattr(linestreams, "MAX_ROW_BYTES", 2_000_000)
    rows = read_all(path, bad_rows="quarantine", levels="word")
    assert [row.text if isinstance(row, Document) else row.raw for row in rows] == ["a", None, "a"]
    assert rows[1].reason.startswith("the row has 3,000,0")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("a.jsonl", '{"text": "a", "x": [%s1]}' % ("1," * 3_000)),
        ("a.jsonl", '{"text": "a", "x": [%s1]}' % ("[]," * 2_000)),
        ("a.csv", "a" + "," * 3_000),
        ("a.conll", "a O\n" * 3_000),
    ],
)
def test_a_row_of_too_many_values_is_refused_before_it_is_parsed(
    tmp_path: Path, name: str, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, name, ("text\n" if name == "a.csv" else "") + row + "\n")
    monkeypatch.setattr(linestreams, "MAX_ROW_VALUES", 1_000)
    (bad,) = bad_rows(path, levels="word")
    assert "more than 1,000" in bad.reason


def test_commas_in_a_text_are_not_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ',[{\\"' * 3_000
    monkeypatch.setattr(linestreams, "MAX_ROW_VALUES", 1_000)
    monkeypatch.setattr(linestreams, "BLOCK_BYTES", 100)
    assert texts(write(tmp_path, "a.jsonl", json.dumps({"text": text}) + "\n")) == [text]
    assert texts(write(tmp_path, "a.csv", 'text\n"' + ",a\n" * 3_000 + '"\n')) == [",a\n" * 3_000]


@pytest.mark.parametrize("empty", [b"\n", b"\n \n\t\n\r\n", b"\n" * 1_500 + b" " * 2_000_000 + b"\n"])
@pytest.mark.parametrize(
    ("name", "header", "row"), [("a.jsonl", b"", b'{"text": "a"}\n'), ("a.csv", b"text,b\n", b"a,b\n")]
)
def test_empty_lines_are_bad_before_a_row_and_dropped_at_the_end(
    tmp_path: Path, name: str, header: bytes, row: bytes, empty: bytes
) -> None:
    gap = empty * (2 + 5_000 // len(empty))
    rows = read_all(write(tmp_path, name, header + row + gap + row + gap), bad_rows="quarantine")
    lines, first = gap.splitlines(keepends=True), 2 if header else 1
    assert [found.raw for found in rows[1:-1]] == lines
    assert [found.row for found in rows] == list(range(first, first + len(lines) + 2))
    assert [rows[0].text, rows[-1].text] == ["a", "a"]


def test_a_hundred_thousand_empty_lines_take_no_memory(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' + b"\n" * 100_000))
    said, _, grown = _read_apart(path)
    assert said == ["1"]
    assert grown < 20


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dictionary", "prefixes", "list", "a page", "lines jsonl", "lines csv", "a line"])
def test_small_files_that_would_take_all_memory(tmp_path: Path, kind: str) -> None:
    settings: dict[str, object] = {"bad_rows": "quarantine"}
    if kind.startswith("lines"):
        head = b'{"text": "a"}\n' if "jsonl" in kind else b"text\na\n"
        path = write(tmp_path, f"a.{kind.split()[1]}.gz", gzip.compress(head + b"\n" * 2_000_000))
    elif kind == "a line":
        path = write(tmp_path, "a.txt.gz", gzip.compress(b"a" * 250_000_000 + b"\nb\n"))
    elif kind == "a page":
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"text": ["a" * 300_000_000, "b"]}), path, use_dictionary=False, compression="zstd")
    else:
        path = _write_repeats(tmp_path / "a.parquet", kind, "a" * 40_000_000, 20)
        settings["is_split_into_words"] = kind == "list"
    said, _, grown = _read_apart(path, **settings)
    assert said[0] in ("1", "40000000") or "the most that are read" in said[0]
    assert grown < 600


# Changes bytes of a footer one by one and reads the file: a C++ exception that Python cannot catch ends this process.
CHANGES = """
import json, random, sys
from collections import Counter
from pathlib import Path
from tests.support.corpus_files import texts
from bertfeat.errors import InputError
path, n_changes = Path(sys.argv[1]), int(sys.argv[2])
data, random, found = path.read_bytes(), random.Random(1), Counter()
length = int.from_bytes(data[-8:-4], "little")
expected = texts(path)
for _ in range(n_changes):
    place = len(data) - 8 - random.randrange(1, length + 1)
    value = random.choice([data[place] ^ 1 << random.randrange(8), random.randrange(256)])
    path.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
    try:
        found["right" if texts(path) == expected else "other rows"] += 1
    except InputError as error:
        found["one line" if "\\n" not in str(error) else "lines"] += 1
print(json.dumps(found))
"""


def _parquet_of(path: Path, **options: object) -> Path:
    table = pa.table({"text": [f"text {n % 7}" for n in range(200)], "k": [["a", "b"]] * 200, "id": list(range(200))})
    pq.write_table(table, path, **options)
    return path


def test_a_changed_byte_of_a_footer_is_one_line_or_changes_no_row(tmp_path: Path) -> None:
    found = _run(CHANGES, str(_parquet_of(tmp_path / "a.parquet")), "300")
    assert set(found) == {"right", "one line"}


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "row_group_size": 50},
        {"use_dictionary": False, "compression": "none", "write_page_index": True},
        {"data_page_version": "2.0", "write_statistics": False},
    ],
    ids=["plain", "zstd", "no dictionary", "version 2"],
)
def test_2500_changed_bytes_of_a_footer(tmp_path: Path, options: dict[str, object]) -> None:
    found = _run(CHANGES, str(_parquet_of(tmp_path / "a.parquet", **options)), "2500")
    assert set(found) == {"right", "one line"}


def test_a_page_that_arrow_skips_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(9)]}), path, use_dictionary=False, compression="none")
    assert len(documents(path)) == 9
    data = bytearray(path.read_bytes())
    # The type in the header of the first page, from data page (0) to a type that does not exist.
    assert data[4:6] == b"\x15\x00"
    data[5] = 8
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet: .*write the file again"):
        read_all(path)
