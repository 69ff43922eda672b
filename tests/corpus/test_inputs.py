"""Inputs: files with format, compression and digest, or an error that says what to do."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bertfeat.choices import CorpusFormat
from bertfeat.corpus import resolve_inputs, spool_stdin
from bertfeat.errors import InputError
from tests.support.corpus_files import write


@pytest.mark.parametrize(
    ("name", "expected", "compression"),
    [
        ("a.txt", "txt", None),
        ("a.jsonl.gz", "jsonl", "gzip"),
        ("a.ndjson", "jsonl", None),
        ("a.v2.csv.zst", "csv", "zstd"),
        ("a.parquet", "parquet", None),
        ("a.iob2.gz", "conll", "gzip"),
        ("a.conllu", "conllu", None),
    ],
)
def test_format_and_compression_follow_the_ending(
    tmp_path: Path, name: str, expected: str, compression: str | None
) -> None:
    (file,) = resolve_inputs([str(write(tmp_path, name, b"x"))])
    assert (file.format, file.compression) == (expected, compression)
    # A format that is given overrides the ending, but not the compression.
    (file,) = resolve_inputs([str(tmp_path / name)], CorpusFormat.CONLL)
    assert (file.format, file.compression) == ("conll", compression)


def test_globs_are_sorted_and_a_file_may_come_twice(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c[1].txt"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.txt").mkdir()
    files = resolve_inputs([str(tmp_path / "*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "c[1].txt")])
    assert [Path(file.path).name for file in files] == ["a.txt", "b.txt", "c[1].txt", "a.txt", "c[1].txt"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.txt", None, "no such file"),
        ("a\udcff.txt", None, "its name is not UTF-8; rename the file"),
        ("*.jsonl", None, "no file matches"),
        ("a.xml", b"{}", "ending '.xml' names no format"),
        ("a", b"x", "pass `format`"),
        ("a.txt.bz2", b"x", "ending '.bz2' names no format; save it as one of .txt, "),
        ("", None, "is a folder"),
        ("-", None, "standard input"),
    ],
)
def test_errors_are_one_line_and_name_the_cause(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        resolve_inputs(["-" if name == "-" else str(tmp_path / name)])
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_stdin_is_spooled_under_a_name_made_from_its_bytes(tmp_path: Path) -> None:
    data = b"one\ntwo\n" * 200_000
    first = spool_stdin(io.BytesIO(data), tmp_path)
    assert first.read_bytes() == data
    assert spool_stdin(io.BytesIO(data), tmp_path) == first
    (file,) = resolve_inputs(["-"], spooled=first)
    assert (file.path, file.format) == (str(first), "txt")
    (file,) = resolve_inputs(["-"], CorpusFormat.JSONL, spooled=first)
    assert file.format == "jsonl"
    assert list(tmp_path.iterdir()) == [first]
