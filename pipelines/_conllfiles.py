"""Finder of the CoNLL files of a corpus: train, dev and test in a folder, their format, and their first sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from bertfeat.choices import CorpusFormat
from bertfeat.corpus import resolve_inputs
from bertfeat.corpus.linestreams import open_stream, read_lines
from bertfeat.durable.publication import publish_bytes

# The words of file names, in order of precedence: testa is the dev set of CoNLL-2003 (eng.train, eng.testa, eng.testb).
SPLITS = {"dev": ("dev", "valid", "testa"), "train": ("train",), "test": ("test",)}
ENDINGS = (".conll", ".conllu", ".tsv", ".iob2", ".bio", ".txt", ".annotated", ".train", ".testa", ".testb")


def find_files(corpus: str | None, train: str | None, dev: str | None, test: str | None) -> dict[str, Path]:
    named = {"train": train, "dev": dev, "test": test}
    if corpus is not None:
        if any(named.values()):
            raise click.UsageError("--corpus names the folder of all files; drop --train, --dev and --test")
        names = sorted(path for path in Path(corpus).iterdir() if path.suffix in ENDINGS)
        splits = [_split_of(path.name) for path in names]
        for split in SPLITS:
            found = [path for path, its in zip(names, splits, strict=True) if its == split]
            if len(found) > 1:
                several = ", ".join(path.name for path in found)
                raise click.UsageError(f"{corpus}: {several} may be {split}; pass --train, --dev and --test instead")
            named[split] = str(found[0]) if found else None
    missing = [split for split in ("train", "dev") if named[split] is None]
    if missing:
        raise click.UsageError(f"no {' and no '.join(missing)} file; pass --corpus, or --train and --dev")
    return {split: Path(path) for split, path in named.items() if path is not None}


def _split_of(name: str) -> str | None:
    return next((split for split, words in SPLITS.items() if any(word in name.lower() for word in words)), None)


def marks_documents(path: Path) -> bool:
    return any(line.startswith((b"-DOCSTART-", b"# newdoc")) for line in _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, decompressed, with their ends; an extraction checks them."""
    (file,) = resolve_inputs([str(path)], CorpusFormat(conll_kind(path)))
    with open_stream(file) as stream:
        for _, _, line in read_lines(stream, 0, 1):
            yield line


def conll_kind(path: Path) -> str:
    return "conllu" if ".conllu" in path.suffixes else "conll"


def first_sentences(path: Path, n_sentences: int | None, folder: Path, name: str) -> Path:
    """Copy the first sentences of a CoNLL file, if there is a limit; lines that only mark a document do not count."""
    if n_sentences is None:
        return path
    target = folder / f"{name}.{n_sentences}.{conll_kind(path)}"
    n = 0
    inside = False
    kept = []
    for line in _lines(path):
        if line.strip() and not line.startswith((b"#", b"-DOCSTART-")):
            inside = True
        elif inside and not line.strip():
            n, inside = n + 1, False
        kept.append(line)
        if n == n_sentences:
            break
    publish_bytes(target, b"".join(kept))
    return target
