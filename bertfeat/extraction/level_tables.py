"""The tables of a shard: the rows of each level, and the columns before its vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertfeat.choices import Level, SpanPair, StoreDtype, UnknownWords
from bertfeat.config import ExtractConfig
from bertfeat.encoder.device_copies import Fetches, gathering_device
from bertfeat.encoder.sentence_model import SentenceModel
from bertfeat.extraction.pooling import EmbeddingBuffer, Finish, LevelBuffer, SpanBuffer, counts_of, modes_of
from bertfeat.extraction.resolution import Resolved
from bertfeat.ragged import run_of, starts_of
from bertfeat.records import BoolArray, Document, IntArray, LevelSchema, LevelTable, SpanRows
from bertfeat.store.conditions import table_rows_where
from bertfeat.text.alignment import (
    Units,
    WordRows,
    documents_at,
    kept_tokens,
    sentence_units,
    token_units,
    without_unknown,
    word_rows,
    word_units,
)
from bertfeat.text.spans import span_units, tokens_of_spans
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens
from bertfeat.text.windows import Windows

Values = Sequence[Any] | npt.NDArray[Any]
Buffer = LevelBuffer | SpanBuffer | EmbeddingBuffer


@dataclass(frozen=True, slots=True)
class ShardText:
    """The documents of a shard, their tokens and windows, and the positions that each level's rows are pooled from.

    `units` has one entry per pooling mode, of each of two spans. `n_unknown` counts the tokens that static vectors
    lack; None for an encoder. `spans` are the rows of the span level. If chunks are encoded alone, `alone` are these as
    documents, and the units of that level are of its windows. `kept`, bool (n_rows,), says for a level which of its
    rows are stored, if not all are.
    """

    documents: Sequence[Document]
    tokens: Tokens
    windows: Windows
    words: WordRows | None
    units: Mapping[Level, Sequence[Units]]
    n_unknown: int | None = None
    spans: SpanRows | None = None
    alone: ShardText | None = None
    kept: Mapping[Level, BoolArray] = field(default_factory=dict)

    @property
    def needed_windows(self) -> BoolArray | None:
        """Which windows some row is pooled from, bool (n_windows,); None where every token has a row."""
        if not self.kept and not self.units.keys() <= {Level.SPAN}:
            return None
        units = [each for level, units in self.units.items() if not self.is_alone(level) for each in units]
        return sum((np.diff(each.window_starts) for each in units), np.zeros(len(self.windows), np.int64)) > 0

    def is_alone(self, level: Level) -> bool:
        """Return whether the rows of a level are pooled from the windows of `alone`."""
        return level is Level.SPAN and self.alone is not None

    @property
    def n_tokens_of_documents(self) -> IntArray:
        """The tokens of each document, or of its chunks if only these are encoded: int64 (n_documents,)."""
        if self.alone is None or self.spans is None or self.tokens.n_documents:
            whole: IntArray = self.tokens.n_texts.sum(axis=1)
            return whole
        n_tokens, n_documents = self.alone.tokens.n_texts.sum(axis=1), len(self.documents)
        return np.bincount(self.spans.document, weights=n_tokens, minlength=n_documents).astype(np.int64)

    def counts(self) -> dict[str, int]:
        """Return the numbers of tokens, windows and dropped rows, for the receipt."""
        texts = [self] if self.alone is None else [self, self.alone]
        n_tokens = sum(int(text.tokens.n_texts.sum()) for text in texts)
        return {
            "n_tokens": n_tokens,
            "n_truncated_tokens": n_tokens - sum(int(kept_tokens(text.tokens, text.windows).sum()) for text in texts),
            "n_windows": sum(len(text.windows) for text in texts),
            **({} if self.n_unknown is None else {"n_unknown_tokens": sum(text.n_unknown or 0 for text in texts)}),
            **{f"n_dropped_{level}_rows": int((~kept).sum()) for level, kept in self.kept.items()},
        }


def align(
    documents: Sequence[Document],
    tokens: Tokens,
    windows: Windows,
    tokenizer: Tokenizer,
    config: ExtractConfig,
    sentence: SentenceModel | None,
    spans: SpanRows | None = None,
    alone: ShardText | None = None,
) -> ShardText:
    """Find the rows of every requested level, and the positions that each row is pooled from.

    `alone` are the chunks of `spans` as documents, if they are encoded alone: their sentences are the spans.
    """
    units: dict[Level, list[Units]] = {}
    words: WordRows | None = None
    for level in config.levels:
        modes = modes_of(level, config, sentence)
        if level is Level.TOKEN:
            units[level] = [token_units(windows)]
        elif level is Level.WORD:
            given = bool(documents) and documents[0].words is not None
            words = word_rows(tokens, windows, documents, given_words=given)
            units[level] = [word_units(words, tokens, windows, mode.takes) for mode in modes]
        elif level is Level.SPAN and alone is not None:
            units[level] = [*alone.units[Level.SENTENCE]]
        elif level is Level.SPAN:
            assert spans is not None
            pair = [spans] if spans.second is None else [spans, spans.second]
            units[level] = [span_units(each, tokens, windows, mode.takes) for each in pair for mode in modes]
        else:
            counts = counts_of(config, sentence)
            units[level] = [
                sentence_units(tokens, windows, tokenizer, mode.takes, counts, weighted=mode.is_weighted)
                for mode in modes
            ]
    n_unknown = None
    if (unknown_id := tokenizer.unknown_id) is not None:
        n_unknown = int(np.count_nonzero(tokens.ids == unknown_id))
        for level in units:
            has_own_windows = level is Level.SPAN and alone is not None
            of_several = level in (Level.SENTENCE, Level.SPAN)
            if not has_own_windows and (of_several or config.unknown_words is UnknownWords.NULL):
                units[level] = [without_unknown(unit, windows, unknown_id) for unit in units[level]]
    return ShardText(documents, tokens, windows, words, units, n_unknown, spans, alone)


def keep_rows(
    text: ShardText, schemas: Mapping[Level, LevelSchema], config: ExtractConfig, tokenizer: Tokenizer
) -> ShardText:
    """Keep the rows for which `rows` is true and, of those of each document, the ones at `positions`."""
    kept: dict[Level, BoolArray] = {}
    for level in config.filtered_levels:
        document = run_of(np.diff(document_starts(level, text)))
        kept[level] = np.ones(len(document), dtype=np.bool_)
        if config.rows is not None:
            columns = _columns(level, text, schemas[level], tokenizer)
            if level is not Level.SENTENCE and Level.SENTENCE in schemas:
                others = _columns(Level.SENTENCE, text, schemas[Level.SENTENCE], tokenizer)
                columns = {**{name: _taken(values, document) for name, values in others.items()}, **columns}
            kept[level] = table_rows_where(config.rows, level, schemas, columns, document)
        if config.positions:
            rows = np.flatnonzero(kept[level])
            kept[level][rows] = _are_at(document[rows], config.positions)
    units = {
        level: [each.of_rows(kept[level]) if level in kept else each for each in units]
        for level, units in text.units.items()
    }
    alone = text.alone
    if alone is not None and Level.SPAN in kept:
        alone = dataclasses.replace(
            alone, units={Level.SENTENCE: units[Level.SPAN]}, kept={Level.SENTENCE: kept[Level.SPAN]}
        )
    return dataclasses.replace(text, units=units, alone=alone, kept=kept)


def _are_at(document: IntArray, positions: Sequence[int]) -> BoolArray:
    """Return which rows of documents, ascending (n_rows,), are at positions; negative ones count from the end."""
    number = np.arange(len(document))
    from_start, from_end = (number - np.searchsorted(document, document, side=side) for side in ("left", "right"))
    return np.isin(from_start, positions) | np.isin(from_end, positions)


def make_buffers(
    text: ShardText,
    schemas: Mapping[Level, LevelSchema],
    config: ExtractConfig,
    resolved: Resolved,
    finish: Finish | None,
    device: torch.device,
) -> dict[Level, Buffer]:
    """Allocate the vectors of each level, on the encoder's device if it is a GPU with enough memory."""
    n_values = sum(units[0].n_rows * f.dim for level, units in text.units.items() for f in schemas[level].features)
    n_bytes = n_values * config.store_dtype.width
    if finish is not None:
        of_texts = [units for level in config.text_levels for units in text.units[level]]
        n_bytes += sum(4 * resolved.model.hidden_size * units.n_rows for units in of_texts)
    where = gathering_device(device, n_bytes)

    def build(where: torch.device) -> dict[Level, Buffer]:
        buffers: dict[Level, Buffer] = {}
        for level, units in text.units.items():
            features, modes = schemas[level].features, modes_of(level, config, resolved.sentence)
            if len(units) > 1 and level not in config.text_levels:
                pair, n_parts = config.span_pair, len(units) // (2 if config.span_pair is SpanPair.DIFF else 1)
                own = [dataclasses.replace(feature, dim=feature.dim // n_parts) for feature in features]
                kind = StoreDtype.FLOAT32 if pair is SpanPair.DIFF else config.store_dtype
                all_modes = [*modes, *modes] if config.joins_spans else modes
                halves = [LevelBuffer(*each, own, kind, where) for each in zip(units, all_modes, strict=True)]
                buffers[level] = SpanBuffer(halves, features, pair, config.store_dtype)
                continue
            if finish is None or level not in config.text_levels:
                buffers[level] = LevelBuffer(units[0], modes[0], features, config.store_dtype, where)
                continue
            pooled = [dataclasses.replace(features[0], dim=resolved.model.hidden_size)]
            parts = [LevelBuffer(*pair, pooled, StoreDtype.FLOAT32, where) for pair in zip(units, modes, strict=True)]
            buffers[level] = EmbeddingBuffer(parts, finish, config.store_dtype)
        return buffers

    try:
        return build(where)
    except torch.OutOfMemoryError:
        # The free memory may be fragmented.
        return build(torch.device("cpu"))


def level_table(
    level: Level,
    text: ShardText,
    buffer: Buffer,
    schema: LevelSchema,
    tokenizer: Tokenizer,
    fetches: Fetches,
) -> LevelTable:
    """Make the table of a level; the vectors have their values only after `fetches.wait`."""
    columns = _columns(level, text, schema, tokenizer)
    if level in text.kept:
        rows = np.flatnonzero(text.kept[level])
        columns = {name: _taken(values, rows) for name, values in columns.items()}
    valid = buffer.valid
    return LevelTable(
        level=level,
        n_rows=len(valid),
        columns=columns,
        vectors={name: fetches.fetch(vectors) for name, vectors in buffer.vectors.items()},
        valid=None if bool(valid.all()) else valid,
    )


def document_starts(level: Level, text: ShardText) -> IntArray:
    """Return the first stored row of each document at a level, and their number: int64 (n_documents + 1,)."""
    starts = np.arange(len(text.documents) + 1)
    if level is Level.WORD:
        assert text.words is not None
        starts = np.searchsorted(text.words.document, starts)
    elif level is Level.TOKEN:
        flat = np.flatnonzero(text.windows.kept)
        starts = np.searchsorted(documents_at(flat, text.tokens, text.windows), starts)
    elif level is Level.SPAN:
        assert text.spans is not None
        starts = np.searchsorted(text.spans.document, starts)
    return starts_of(text.kept[level].astype(np.int64))[starts] if level in text.kept else starts


def rows_by_document(text: ShardText) -> Iterator[list[Any]] | None:
    """Return the spans of each document, and the numbers of its stored rows at each filtered level; None without."""
    if not text.kept and text.spans is None:
        return None
    whole, pieces = dataclasses.replace(text, kept={}), []
    for level, kept in text.kept.items():
        found = np.split(kept, document_starts(level, whole)[1:])[:-1]
        pieces.append([np.flatnonzero(rows).tolist() for rows in found])
    for spans in [each for each in (text.spans, text.spans and text.spans.second) if each is not None]:
        bounds = np.stack([spans.char_start, spans.char_end], axis=1)
        pieces.append([rows.tolist() for rows in np.split(bounds, document_starts(Level.SPAN, whole)[1:])[:-1]])
    return map(list, zip(*pieces, strict=True))


def _columns(level: Level, text: ShardText, schema: LevelSchema, tokenizer: Tokenizer) -> dict[str, Values]:
    """Return the columns of all rows of a level, in the order of its schema."""
    if level is Level.TOKEN:
        columns = _token_columns(text, tokenizer)
    elif level is Level.WORD:
        columns = _word_columns(text)
    elif level is Level.SPAN:
        columns = _span_columns(text)
    else:
        columns = _sentence_columns(text)
    for name in [column.name for column in schema.columns if column.name not in columns]:
        if level is Level.WORD:
            columns[name] = [value for document in text.documents for value in document.annotations[name]]
        else:
            values = [document.kept.get(name) for document in text.documents]
            columns[name] = (
                values if text.spans is None or level is Level.SENTENCE else _taken(values, text.spans.document)
            )
    return {column.name: columns[column.name] for column in schema.columns}


def _taken(values: Values, rows: IntArray) -> Values:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]


def _token_columns(text: ShardText, tokenizer: Tokenizer) -> dict[str, Values]:
    tokens, windows = text.tokens, text.windows
    # Windows are in the order of the documents, and each token is kept in one window only: so the kept positions, in
    # order, are the rows.
    flat = np.flatnonzero(windows.kept)
    document, token_id, source = documents_at(flat, tokens, windows), windows.input_ids[flat], windows.source[flat]
    special = source < 0

    def of_source(values: npt.NDArray[Any]) -> Values:
        # Special tokens have index -1, which is the appended entry; it is masked.
        return np.ma.MaskedArray(np.append(values, 0).astype(np.int32)[source], mask=special)

    return {
        "doc_id": _doc_ids(text, document),
        "token_index": (np.arange(len(flat)) - np.searchsorted(document, document)).astype(np.int32),
        "token": tokenizer.vocabulary[token_id],
        "token_id": token_id.astype(np.int32),
        "word_index": of_source(tokens.word),
        "char_start": of_source(tokens.char_start),
        "char_end": of_source(tokens.char_end),
        "is_special": special,
        "segment": of_source(_in_second(tokens, np.arange(len(tokens.ids)))),
    }


def _word_columns(text: ShardText) -> dict[str, Values]:
    words = text.words
    assert words is not None
    if text.documents and text.documents[0].words is not None:
        in_second = np.zeros(len(words.word), dtype=np.bool_)
        surfaces = [word for document in text.documents for word in document.words or ()]
    else:
        in_second = _in_second(text.tokens, words.first_token)
        texts = [text for d in text.documents for text in (d.text, d.text_pair or "")]
        number = (2 * words.document + in_second).tolist()
        bounds = zip(number, words.char_start.tolist(), words.char_end.tolist(), strict=True)
        surfaces = [texts[i][start:end] for i, start, end in bounds]
    return {
        "doc_id": _doc_ids(text, words.document),
        "word_index": words.word.astype(np.int32),
        "word": surfaces,
        "char_start": words.char_start,
        "char_end": words.char_end,
        "n_tokens": words.n_tokens.astype(np.int32),
        "segment": in_second.astype(np.int8),
    }


def _span_columns(text: ShardText) -> dict[str, Values]:
    spans, documents = text.spans, text.documents
    assert spans is not None
    of = text if text.alone is None else text.alone
    kept = starts_of(kept_tokens(of.tokens, of.windows).astype(np.int64))
    first, last = tokens_of_spans(spans, of.tokens) if of is text else (of.tokens.starts[:-1], of.tokens.starts[1:])
    number = np.arange(len(spans.document)) - np.searchsorted(spans.document, spans.document)
    columns: dict[str, Values] = {
        "doc_id": _doc_ids(text, spans.document),
        "span_index": number.astype(np.int32),
        "char_start": spans.char_start,
        "char_end": spans.char_end,
        "text": spans.texts(documents),
        "n_tokens": (kept[last] - kept[first]).astype(np.int32),
    }
    if (second := spans.second) is not None:
        columns |= {"char_start_2": second.char_start, "char_end_2": second.char_end, "text_2": second.texts(documents)}
    return {**columns, **spans.columns}


def _sentence_columns(text: ShardText) -> dict[str, Values]:
    tokens, windows, documents = text.tokens, text.windows, text.documents
    kept = starts_of(kept_tokens(tokens, windows).astype(np.int64))
    n_kept = kept[tokens.starts[1:]] - kept[tokens.starts[:-1]]
    pairs = [document.text_pair for document in documents]
    return {
        "doc_id": _doc_ids(text, np.arange(len(documents))),
        "text": [document.text for document in documents],
        # Without pairs, a kept column may have this name.
        **({"text_pair": pairs} if any(pair is not None for pair in pairs) else {}),
        "n_tokens": n_kept.astype(np.int32),
        "n_windows": _n_windows(tokens, windows).astype(np.int32),
        "truncated": n_kept < tokens.n_texts.sum(axis=1),
    }


def _n_windows(tokens: Tokens, windows: Windows) -> IntArray:
    """Return the number of windows that the rows of each document come from, special tokens included."""
    flat = np.flatnonzero(windows.kept)
    document, window = documents_at(flat, tokens, windows), run_of(windows.lengths)[flat]
    is_new = np.ones(len(flat), dtype=np.bool_)
    is_new[1:] = (np.diff(document) != 0) | (np.diff(window) != 0)
    return np.bincount(document[is_new], minlength=tokens.n_documents)


def _in_second(tokens: Tokens, token: IntArray) -> BoolArray:
    """Return whether each token in `token` belongs to the second text of its document: bool (len(token),)."""
    if not len(tokens.ids):
        return np.zeros(len(token), dtype=np.bool_)
    is_second: BoolArray = token >= tokens.pair_starts[tokens.document[token]]
    return is_second


def _doc_ids(text: ShardText, document: IntArray) -> Values:
    ids = [d.doc_id for d in text.documents]
    # Without documents, an array of objects fits both types.
    is_int = bool(ids) and all(isinstance(doc_id, int) for doc_id in ids)
    return np.array(ids, dtype=np.int64 if is_int else object)[document]
