"""Files of word vectors: each layout gives the vectors that were written, and damage is refused in one line."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.static_vectors import TokenVectors, WordFile
from bertfeat.errors import CheckpointError
from tests.support.static_files import LAYOUTS, write_model2vec, write_vectors

VECTORS = {
    "the": [1, 2, 3],
    "bank": [0.5, -1, 2.25],
    ",": [1e-5, 0, -7],
    "nan": [0.1, 0.2, 0.3],
    "naïve": [9, 9, 9],
    "</s>": [0, 0, 0],
}


def read(path: Path) -> dict[str, list[float]]:
    found = open_checkpoint(str(path)).static
    table = found.read()[0]
    rows = json.loads((found.file.parent / "tokenizer.json").read_bytes())["model"]["vocab"]
    assert rows.pop("") == len(rows) == found.words.n_words
    assert (table.dtype, table.shape) == (np.float32, (found.n_ids, found.dim))
    assert not table[-1].any()
    return {word: table[row].tolist() for word, row in rows.items()}


def words_of(path: Path) -> WordFile:
    return open_checkpoint(str(path)).static.words


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_vectors_that_were_written(tmp_path: Path, layout: str, packed: str) -> None:
    path = write_vectors(tmp_path / f"{layout}{packed}", VECTORS)
    expected = {word: np.array(values, np.float32).tolist() for word, values in VECTORS.items()}
    assert read(path) == expected
    found = words_of(path)
    assert ("binary" in found.layout, found.is_uncased, found.n_repeated) == (".bin" in layout, True, 0)


def test_numbers_in_any_notation(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("a 1e-3 -.5\r\nb +1 2E2\n\nc 00.25 -0\nd 3. 4\ne 0.1 123456.789\n")
    expected = {"a": [1e-3, -0.5], "b": [1, 200], "c": [0.25, 0], "d": [3, 4], "e": [0.1, 123456.789]}
    assert read(path) == {word: np.array(values, np.float32).tolist() for word, values in expected.items()}


def test_odd_words_are_read_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"the 1 2\n. . . 3 4\nthe 5 6\n\xff\xfe 7 8\nat name@x.org 9 9\n 1 1\n\xc2\xa0 2 2\n<UNK> 0 0\n")
    assert read(path) == {"the": [1, 2], ". . .": [3, 4], "at name@x.org": [9, 9], "\xa0": [2, 2], "<UNK>": [0, 0]}
    assert words_of(path) == WordFile("GloVe text", 5, 1, 2, is_uncased=True, digest=words_of(path).digest)
    path.write_bytes(b"2 2\nNew York 1 2\n4 U 3 4\n")
    assert read(path) == {"New York": [1, 2], "4 U": [3, 4]}


HEADED = b"3 2\na 1 2\nb 3 4\nc 5 6\n"
SPACED = b"3 2\n" + b"".join(word + struct.pack("<2f", 1, 0.3) for word in (b"a ", b"b c ", b"d "))
BINARY = b"2 2\na " + struct.pack("<2f", 1, 2) + b"b " + struct.pack("<2f", 3, 4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a file of word vectors"),
        (b"the quick brown fox\n", ":1: the vector of 'the' holds 'quick', which is not a number"),
        (b"the 1 2\nbank 1\n", ":2: 1 numbers after the word, not 2"),
        (b"the 1 2\nbank nan 2\n", ":2: the vector of 'bank' holds 'nan', which is not a number"),
        (b"the\t1 2\nof\t3 4\n", ":1: vectors of 1 numbers, but most rows have more;"),
        (HEADED.replace(b"3 2", b"4 2"), ":1: the header names 4 words, and there are 3"),
        (HEADED.replace(b"3 2", b"3 3"), ":2: 2 numbers after the word, not 3"),
        (b"0 2\n", "holds no words"),
        (BINARY[:-1], "row 2 is not whole"),
        (BINARY[:-8] + struct.pack("<2f", float("nan"), 1), ": row 2: the vector of 'b' holds 'nan', which is not"),
        # The space of a word moves what follows.
        (SPACED, "is not a word: another one has a space"),
        (gzip.compress(HEADED, mtime=0)[:-12], "cannot be read to its end (Compressed file ended"),
        (struct.pack("<2i", 793712314, 12), "a model of fastText with subwords"),
        (b"\x80\x04\x95", "a pickle"),
        (b"PK\x03\x04xx", "a zip archive"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_folder_of_a_file_is_made_once_and_damage_of_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "cache"))
    path = write_vectors(tmp_path / "glove.txt", VECTORS)
    assert read(path) == read(path)
    (folder,) = (tmp_path / "cache" / "words-1").iterdir()
    made = folder.stat().st_mtime_ns
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"not those that were written; delete {folder}"):
        read(path)
    assert folder.stat().st_mtime_ns == made
    write_vectors(path, {"b": [3, 4, 5]})
    assert read(path) == {"b": [3, 4, 5]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"normalize": "yes"}, "does not fit model2vec: Expected `bool`, got `str` - at `$.normalize`"),
        ({"dtype": "int64"}, "embeddings is I64"),
        ({"mapping": np.full(4, 9)}, "mapping names rows outside"),
        ({"weights": np.ones(1, np.float32)}, "1 weights for"),
    ],
)
def test_a_damaged_model2vec_folder_is_refused(tmp_path: Path, damage: dict[str, Any], said: str) -> None:
    arrays = {name: value for name, value in damage.items() if isinstance(value, np.ndarray)}
    settings = {name: value for name, value in damage.items() if name not in arrays}
    folder = write_model2vec(tmp_path / "m", pieces=["a"], **settings)
    path = folder / "model.safetensors"
    save_file({**load_file(path), **arrays}, path)

    def load() -> None:
        static = open_checkpoint(str(folder)).static
        assert isinstance(static, TokenVectors)
        static.read()

    with pytest.raises(CheckpointError) as caught:
        load()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
