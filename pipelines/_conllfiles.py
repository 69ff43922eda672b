"""Finder of the CoNLL files of a corpus: train, dev and test in a folder, their format, and their first sentences."""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from pathlib import Path

import click
import pyarrow as pa

from bertfeat.durable.publication import publish_bytes
from bertfeat.errors import InputError

# The words of file names, in order of precedence: testa is the dev set of CoNLL-2003 (eng.train, eng.testa, eng.testb).
SPLITS = {"dev": ("dev", "valid", "testa"), "train": ("train",), "test": ("test",)}
ENDINGS = (".conll", ".conllu", ".tsv", ".iob2", ".bio", ".txt", ".annotated", ".train", ".testa", ".testb")


def find_files(corpus: str | None, train: str | None, dev: str | None, test: str | None) -> dict[str, Path]:
    """Return the files of train, dev and perhaps test: those that are named, or those in the folder `corpus`."""
    named = {"train": train, "dev": dev, "test": test}
    if corpus is not None:
        if any(named.values()):
            raise click.UsageError("--corpus names the folder of all files; drop --train, --dev and --test")
        names = sorted(path for path in Path(corpus).iterdir() if path.suffix in ENDINGS)
        for split, words in SPLITS.items():
            found = [path for path in names if any(word in path.name.lower() for word in words)]
            if len(found) > 1:
                several = ", ".join(path.name for path in found)
                raise click.UsageError(f"{corpus}: {several} may be {split}; pass --train, --dev and --test instead")
            named[split] = str(found[0]) if found else None
            names = [path for path in names if path not in found]
    missing = [split for split in ("train", "dev") if named[split] is None]
    if missing:
        raise click.UsageError(f"no {' and no '.join(missing)} file; pass --corpus, or --train and --dev")
    return {split: Path(path) for split, path in named.items() if path is not None}


def conll_kind(path: Path) -> str:
    return "conllu" if ".conllu" in path.suffixes else "conll"


def marks_documents(path: Path) -> bool:
    return any(line.startswith((b"-DOCSTART-", b"# newdoc")) for line in _lines(path))


def first_sentences(path: Path, n_sentences: int | None, folder: Path, name: str) -> Path:
    """Copy the first sentences of a CoNLL file, if there is a limit; lines that only mark a document do not count."""
    if n_sentences is None:
        return path
    n, inside, kept = 0, False, list[bytes]()
    for line in _lines(path):
        if n == n_sentences:
            break
        if line.strip() and not line.startswith((b"#", b"-DOCSTART-")):
            inside = True
        elif inside and not line.strip():
            n, inside = n + 1, False
        kept.append(line)
    target = folder / f"{name}.{n_sentences}.{conll_kind(path)}"
    publish_bytes(target, b"".join(kept))
    return target


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file with their ends; a .gz or .zst is decompressed."""
    try:
        with pa.input_stream(str(path)) as stream:
            return [*io.BytesIO(stream.read().removeprefix(BOM_UTF8))]
    except OSError as error:
        raise InputError(f"cannot be read ({error})", path=str(path)) from error
