"""Examples of a task: documents cut into the windows of an extraction, with the labels of texts or of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level, OnOverlong
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.errors import InputError, UserError
from bertfeat.heads.base import Labels
from bertfeat.pipelines._models import NO_LABEL
from bertfeat.probes.learningrows import as_labels, is_given
from bertfeat.ragged import ragged_arange, run_of
from bertfeat.records import BoolArray, Document, IntArray
from bertfeat.text.alignment import Takes, word_rows, word_units
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import Windows, cut_windows


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTexts:
    """The labelled rows of a split: its documents, or their words.

    Attributes:
        documents: The documents; of whole texts only those with a label.
        labels: (n_rows,): classes, or float64 for quantities.
        is_labelled: bool: which of all words have a label; None for whole texts.
        n_without_label: Rows left out because their label is null or empty.
    """

    documents: Sequence[Document]
    labels: Labels
    is_labelled: BoolArray | None
    n_without_label: int


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """The windows of a split, and the place of each row in them.

    Attributes:
        windows: The windows.
        row: int64: the row at each place, -1 for none. The places are the windows, or for words the tokens of all
            windows, where a word is at its first sub-token.
        n_rows: The number of rows.
        lengths: int64 (n_documents,): the words of each document that has any; None if each row is a document.
        n_cut: Documents that were cut to a window.
    """

    windows: Windows
    row: IntArray
    n_rows: int
    lengths: IntArray | None
    n_cut: int

    def places(self, chosen: IntArray) -> IntArray:
        """Return the places in some windows, in order."""
        if self.lengths is None:
            return chosen
        return ragged_arange(self.windows.starts[chosen], self.windows.lengths[chosen])

    def targets(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the code of each place, `NO_LABEL` for none, from those of the rows."""
        found = np.full(len(self.row), NO_LABEL, dtype=codes.dtype)
        found[self.row >= 0] = codes[self.row[self.row >= 0]]
        return found


def label_texts(documents: Sequence[Document], label: str, where: str, *, quantities: bool = False) -> LabelledTexts:
    """Find the labels of whole texts; texts without one are left out.

    Raises:
        UserError: No text has a label, or a label is not of the kind that is asked for.
    """
    values = pl.Series([document.kept.get(label) for document in documents], strict=False)
    given = is_given(values)
    kept = [document for document, is_there in zip(documents, given, strict=True) if is_there]
    if not kept:
        raise UserError(f"{where}: no row has a value in column {label!r}; name the column of the labels")
    found = values.filter(given)
    labels = _quantities(kept, label) if quantities else as_labels(found, f"{where}: column {label!r}")
    return LabelledTexts(kept, labels, None, len(documents) - len(kept))


def label_words(documents: Sequence[Document], label: str, where: str) -> LabelledTexts:
    """Find the labels of words; words without one are left out.

    Raises:
        UserError: The documents are not lists of words, or there is no such column of words.
    """
    for document in documents:
        if document.words is None:
            raise UserError(f"{where}: its rows are texts; --task tag takes words with labels, such as CoNLL files")
        if label not in document.annotations:
            columns = ", ".join(document.annotations) or "none"
            raise UserError(f"{where}: no column {label!r} of words; columns are {columns}; pass --label")
    values = pl.Series([tag for document in documents for tag in document.annotations[label]], dtype=pl.String)
    given = is_given(values)
    if not given.any():
        raise UserError(f"{where}: no word has a value in column {label!r}; name the column of the labels")
    labels = as_labels(values.filter(given), f"{where}: column {label!r}")
    return LabelledTexts(documents, labels, given.to_numpy(), len(values) - len(labels))


def _quantities(documents: Sequence[Document], label: str) -> npt.NDArray[np.float64]:
    numbers = []
    for document in documents:
        value = document.kept[label]
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            reason = f"{label} {value!r:.60} is not a number; --task regress takes numbers"
            raise InputError(reason, path=document.path, row=document.row)
        numbers.append(number)
    return np.array(numbers)


def cut_examples(texts: LabelledTexts, checkpoint: Checkpoint, tokenizer: Tokenizer, *, context: bool) -> Examples:
    """Cut documents into windows: whole texts to one window, lists of words to as many as they take.

    Args:
        texts: The labelled documents.
        checkpoint: The model that reads them.
        tokenizer: Its tokenizer, for words if they are given.
        context: Whether sentences are read with their neighbours.
    """
    of_words = texts.is_labelled is not None
    max_length = checkpoint.max_length
    how = OnOverlong.WINDOW if of_words else OnOverlong.TRUNCATE
    limits = WindowLimits(max_length, max_length // 4, how)
    tokens = tokenizer.encode(
        texts.documents, max_tokens=limits.max_tokens([Level.WORD if of_words else Level.SENTENCE])
    )
    windows = cut_windows(tokens, tokenizer, limits, texts.documents, context=context)
    if texts.is_labelled is None:
        is_pair = np.where(tokens.is_pair, tokenizer.pair.n_specials, tokenizer.single.n_specials)
        if texts.labels.dtype.kind == "f" and not windows.lengths.all():
            empty = texts.documents[int(np.argmin(windows.lengths))]
            raise InputError("the text has no tokens; leave the row out", path=empty.path, row=empty.row)
        n_cut = int((tokens.n_texts.sum(axis=1) + is_pair > max_length).sum())
        return Examples(windows, np.arange(len(windows)), len(texts.labels), None, n_cut)
    words = word_rows(tokens, windows, texts.documents, given_words=True)
    units = word_units(words, tokens, windows, Takes.FIRST)
    window = run_of(np.diff(units.window_starts))
    # Rows are the words that have a label.
    number = np.where(texts.is_labelled, np.cumsum(texts.is_labelled) - 1, -1)
    row = np.full(len(windows.input_ids), -1, dtype=np.int64)
    row[windows.starts[window] + units.positions] = number[units.row]
    lengths = np.unique(words.document[texts.is_labelled], return_counts=True)[1]
    return Examples(windows, row, len(texts.labels), lengths, 0)
