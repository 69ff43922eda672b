"""Inputs of another kind than their name says, settings that a format cannot follow, and damaged files: one line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from bertfeat.config import ExtractConfig
from bertfeat.corpus import resolve_inputs
from bertfeat.corpus.delimited import conll_format
from bertfeat.errors import ConfigError, InputError
from tests.support.corpus_files import compress, documents, read_all, write

BIO = b"EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\nPeter\tB-PER\n\n"
CONLLU = b"# text\n1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n2\tbark\tbark\tVERB\tVB\t_\t0\troot\t_\t_\n\n" * 2


@pytest.mark.parametrize(("content", "wanted"), [(BIO, "conll"), (CONLLU, "conllu")])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_that_look_like_conll_are_refused(tmp_path: Path, name: str, content: bytes, wanted: str) -> None:
    path = write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(InputError, match=rf"CoNLL; pass `format='{wanted}'` \(or `format='txt'` if it is not\)"):
        read_all(path)
    assert documents(path, format=wanted, levels="word")[0].words
    assert documents(path, format="txt")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"two words\nof text\n\nand more\n",
        b"run VERB\ndog NOUN\nred ADJ\n",
        b"O Captain my Captain\nO the bleeding drops\n\nB-52 bombers\nthe I-95 road\n\nan S-bend there\nU-boats\n" * 3,
    ],
)
def test_text_does_not_look_like_conll(text: bytes) -> None:
    assert conll_format(text) is None


LINES = "".join(f"line {n * n}\n" for n in range(20_000)).encode()
GZ, ZST = compress(LINES, "gz"), compress(LINES, "zst")


@pytest.mark.promise("input-damage")
@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("gz", gzip.compress(b"a\n", mtime=0) + b"junk"),
        ("gz", b"no such format"),
        ("gz", GZ[: len(GZ) // 2]),
        ("gz", GZ[:3] + b"\xff" + GZ[4:]),
        ("zst", compress(b"a\n", "zst") + b"junk"),
        ("zst", b"no such format"),
        ("zst", ZST[: len(ZST) // 2]),
        ("zst", ZST[:3] + b"\x02" + ZST[4:]),
    ],
)
def test_damage_of_compressed_files_is_one_line(tmp_path: Path, ending: str, content: bytes) -> None:
    with pytest.raises(InputError, match=rf"a\.txt\.{ending}: its (gzip|zstd) data cannot be read after"):
        read_all(write(tmp_path, f"a.txt.{ending}", content), bad_rows="quarantine")


def test_a_fifo_and_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").symlink_to("/dev/zero")
    for name in ("a.txt", "b.txt"):
        with pytest.raises(InputError, match="is not a regular file; pipe it in"):
            resolve_inputs([str(tmp_path / name)])


@pytest.mark.parametrize(
    ("name", "content", "settings", "said"),
    [
        ("a.txt", "text\n", {"id_column": "id"}, "`id_column` does not go with txt"),
        ("a.csv", "text\n", {"is_split_into_words": True}, "`is_split_into_words` does not go with csv"),
        ("a.csv", "text\n", {"label_column": "x", "levels": "word"}, "`keep_columns`"),
        ("a.jsonl", "text\n", {"text_pairs": True}, "`text_pairs` does not go with jsonl; it goes with txt"),
        ("a.jsonl", "text\n", {"label_column": "x", "levels": "word"}, "labels the words of `is_split_into_words`"),
        ("a.jsonl", "text\n", {"no_header": True}, "does not go with jsonl; it goes with csv, tsv"),
        ("a.txt", "text\n", {"document_context": True}, "does not say which rows are one document.*`document_column`"),
        ("a.fasta", ">a\nMKV\n", {"document_context": True}, "pass `document_column`, which goes with jsonl, "),
        ("a.csv", "id,body\n1,a\n", {}, r"a\.csv: no column 'text'; columns are id, body; pass `text_column`; if that"),
        ("a.csv", "id,body\n1,a\n", {"text_column": "1"}, "no column '1' for `text_column`; columns are id, body; if"),
        ("a.csv", "id;text\n1;a\n", {}, "columns are id;text; .*; if that is not a header, pass `delimiter`, `no_h"),
        ("a.tsv", "Aspirin\tB-Chemical\nhelps\tO\n\n", {}, "columns are Aspirin, B-Chemical; .* or `format`$"),
        ("a.csv", "text,text\n1,a\n", {}, "column 'text' appears 2 times"),
        ("a.csv", "text\na\n", {"id_column": "x"}, "no column 'x' for `id_column`; columns are text; if that is"),
        ("a.csv", "\ntext\nhello\n", {}, ":1: the first row cannot be read: the line is empty; remove it$"),
        ("a.csv", "a,b\nc,d\n", {"no_header": True}, "no column 'text'; columns are column_1, column_2; pass `text_c"),
        ("a.parquet", "PAR1 but not really PAR1", {}, r"a\.parquet: Parquet that cannot be read"),
    ],
)
def test_a_setting_or_a_column_that_a_file_does_not_have_is_refused(
    tmp_path: Path, name: str, content: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read_all(write(tmp_path, name, content), **settings)


@pytest.mark.parametrize("delimiter", ["", ";;", "é", "comma"])
def test_a_delimiter_is_one_character(delimiter: str) -> None:
    with pytest.raises(ConfigError, match=r"`delimiter` .* must be one ASCII character"):
        ExtractConfig(delimiter=delimiter)
