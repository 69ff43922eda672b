"""Paragraph for a paper on how the vectors of a store were made, with BibTeX entries: only what the store records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertfeat.choices import ChunkContext, Level, OnOverlong, Pooling
from bertfeat.display import counted, printable
from bertfeat.encoder.families import STATIC
from bertfeat.exports.card import model_name
from bertfeat.levels import pooling_of
from bertfeat.store.description import StoreDescription
from bertfeat.store.manifest import IMPORTED
from bertfeat.store.plan_file import SPANS_DIGEST


def methods(path: str) -> tuple[str, str]:
    """Return a paragraph on how the vectors of the store at a path or URL were made, and BibTeX entries."""
    store, bibtex = StoreDescription.at(path), Path(__file__).with_suffix(".bib").read_text("utf-8")
    meta, model = store.metadata, printable(model_name(store))
    # The first entry is that of bertfeat, the others are about encoders.
    cited = bibtex.strip().split("\n\n")[: 1 if meta["family"] in (IMPORTED, STATIC.model_type) else None]
    entries = "\n\n".join(cited).replace("VERSION", meta["versions"]["bertfeat"])
    text = printable(" ".join([*_made(store, model), *(_level(store, level) for level in store.levels)]))
    return text, f"{entries}\n\nCite {model} too, as its authors ask."


def _made(store: StoreDescription, model: str) -> Iterator[str]:
    """Yield sentences on the documents, the model and the versions."""
    meta, counts, dtype = store.metadata, store.manifest.totals.counts, store.manifest.store_dtype
    documents = counted(counts["n_documents"], "document")
    libraries = ", ".join(f"{name} {version}" for name, version in meta["versions"].items())
    if IMPORTED in meta:
        files = " and ".join(f"{file['file']} (sha256 {file['sha256']})" for file in meta[IMPORTED])
        yield f"Vectors of {model} for {documents} were imported from {files} with {libraries} and stored in {dtype}."
        return
    is_static, blocks = meta["family"] == STATIC.model_type, counted(meta["n_layers"], "block")
    network = f"{meta['family']}, {blocks}, layer 0 is the output of the embedding layer"
    kind = "static vectors" if is_static else network
    yield f"{documents} ({counted(counts['n_tokens'], 'token')}) were encoded by {model} ({kind}; sha256 of its weights"
    yield f"{meta['weights_sha256']}) with {libraries}, computed in {meta['compute_dtype']} on {meta['device_kind']}"
    yield f"and stored in {dtype}."
    if meta.get("prompt"):
        yield f"The prompt {meta['prompt']!r} was put before each document."
    if kept := [f"{name} {printable(str(meta[name]))}" for name in ("rows", "positions") if meta.get(name)]:
        yield f"Only chosen rows were kept: {', '.join(kept)}."
    if not is_static:
        context = " with their neighbors" if meta["document_context"] else ""
        overlap = f" that share {meta['stride']}" if meta["on_overlong"] == OnOverlong.WINDOW and not context else ""
        yield f"Documents were read{context} in windows of at most {meta['max_length']} tokens{overlap};"
        yield f"{counted(counts['n_truncated_tokens'], 'token')} were cut off."


def _level(store: StoreDescription, level: Level) -> str:
    """Return a sentence on the rows and columns of a level, and on how tokens were pooled."""
    meta, pooling = store.metadata, pooling_of(level, store.metadata) or ""
    columns = ", ".join(f"{column.name} ({counted(column.dim, 'value')})" for column in store.features(level))
    of_texts = level is Level.SENTENCE or (level is Level.SPAN and meta.get("chunk_context") == ChunkContext.ALONE)
    if of_texts and pooling == Pooling.MODEL:
        pooling = f"the model's own sentence embedding, {meta['sentence_model']}"
    elif of_texts and pooling in (Pooling.MEAN, Pooling.MAX, Pooling.WEIGHTEDMEAN):
        pooling += " of all tokens" if meta["include_special_tokens"] else " without special tokens"
    how = f"; pooling: {pooling}" if pooling else ""
    if level is Level.SPAN:
        rule = f"chunks by {meta['chunk']}" if meta.get("chunk") else f"spans by {meta['spans']}"
        how += f"; {'spans of a table' if SPANS_DIGEST in meta else rule}{', each encoded alone' if of_texts else ''}"
        how += f", two per row ({meta['span_pair']})" if meta.get("span_pair") else ""
    return f"Level {level}: {counted(store.n_rows(level), 'row')}, {columns}{how}."
