"""Inputs of another kind than their name says, and inputs that cannot be read: one clear line each."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from bertfeat.corpus import resolve_inputs
from bertfeat.corpus.delimited import conll_format
from bertfeat.errors import InputError
from tests.support.corpus_files import compress, documents, read_all, write

BIO = b"EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\nPeter\tB-PER\n\n"
CONLLU = b"# text\n1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_\n2\tbark\tbark\tVERB\tVB\t_\t0\troot\t_\t_\n\n" * 2


# --- CoNLL under another name


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
        b"\n\n",
        b"two words\nof text\n\nand more\n",
        b"blood A\nblood O\nblood O\n\nblood O\nblood O\n",
        b"run VERB\ndog NOUN\nred ADJ\n",
        b"O Captain my Captain\nO the bleeding drops\n\nB-52 bombers\nthe I-95 road\n\nan S-bend there\nU-boats\n" * 3,
        b"\xff\xfe\x00B-PER\n\n" * 9,
        b"one O\n" * 9 + b"\n",
    ],
)
def test_text_does_not_look_like_conll(text: bytes) -> None:
    assert conll_format(text) is None


# --- files


LINES = "".join(f"line {n * n}\n" for n in range(20_000)).encode()
GZ, ZST, SHORT_ZST = compress(LINES, "gz"), compress(LINES, "zst"), compress(b"a\n", "zst")
DAMAGED = "data cannot be read after"


@pytest.mark.parametrize(
    ("ending", "content", "reason"),
    [
        ("gz", gzip.compress(b"a\n", mtime=0) + b"junk", DAMAGED),
        ("zst", SHORT_ZST + b"junk", DAMAGED),
        *((ending, b"no such format", f"{DAMAGED} 0 bytes") for ending in ("gz", "zst")),
        *(("gz", data, DAMAGED) for data in (GZ[: len(GZ) // 2], GZ[:3] + b"\xff" + GZ[4:])),
        *(("zst", data, DAMAGED) for data in (ZST[: len(ZST) // 2], ZST[:3] + b"\x02" + ZST[4:])),
    ],
)
def test_damage_of_compressed_files_is_one_line(tmp_path: Path, ending: str, content: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=rf"a\.txt\.{ending}: its (gzip|zstd) {reason}"):
        read_all(write(tmp_path, f"a.txt.{ending}", content), bad_rows="quarantine")


def test_a_fifo_and_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").symlink_to("/dev/zero")
    for name in ("a.txt", "b.txt"):
        with pytest.raises(InputError, match="is not a regular file; pipe it in"):
            resolve_inputs([str(tmp_path / name)])
