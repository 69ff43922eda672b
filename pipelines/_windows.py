"""Windows of a corpus, for the recipe that trains on plain text: its documents, a held-out share, and their tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfeat.errors import InputError
from bertfeat.pipelines._documents import read_documents
from bertfeat.records import BoolArray, Document, IntArray

# The texts of a document, in order.
Texts = list[str]
# Texts that are tokenized at once.
_N_AT_ONCE = 1_000


def read_texts(path: str, **settings: Any) -> tuple[list[Texts], str]:
    """Return the texts of each document of a file, and what says which rows are one document.

    A document is a run of rows with the same group (a document column, or the borders of a CoNLL file); in a .txt that
    has empty lines, the lines between two of them; else one row. Texts without a character are left out.

    Args:
        path: The file.
        settings: Those of an extraction that say how files are read.

    Raises:
        InputError: The file or a row cannot be read.
    """
    # Without context, a column of documents is refused.
    rows = read_documents(path, **settings, document_context="document_column" in settings)
    is_text = settings.get("format") == "txt" or ("format" not in settings and ".txt" in Path(path).suffixes)
    if any(row.group is not None for row in rows):
        parted_by, keys = "groups", [row.index if row.group is None else row.group for row in rows]
    elif is_text and any(not row.text.strip() for row in rows):
        parted_by, keys = "empty lines", np.cumsum([not row.text.strip() for row in rows]).tolist()
    else:
        parted_by, keys = "rows", [row.index for row in rows]
    return list(_grouped(rows, keys)), parted_by


def _grouped(rows: Sequence[Document], keys: Sequence[int | str]) -> Iterator[Texts]:
    for _, group in itertools.groupby(zip(keys, rows, strict=True), key=lambda pair: pair[0]):
        if texts := [row.text for _, row in group if row.text.strip()]:
            yield texts


def hold_out(documents: Sequence[Texts], share: float, *, least: int) -> tuple[list[Texts], list[Texts]]:
    """Split documents at random, always alike: those to train on, and about that share of all characters.

    Args:
        documents: The texts of each document.
        share: The most characters to hold out, as a share of all.
        least: The fewest documents of both parts; the held-out ones may have more characters for it.

    Raises:
        InputError: There are too few documents.
    """
    if len(documents) < 2 * least:
        raise InputError(
            f"documents of the corpus: {len(documents)}; at least {least} to train on and {least} to hold out are "
            "needed; mark more, by empty lines in a .txt or with --document-column"
        )
    sizes = [sum(map(len, texts)) for texts in documents]
    left = share * sum(sizes)
    held: set[int] = set()
    for number in np.random.default_rng(0).permutation(len(documents)).tolist():
        if sizes[number] <= left and len(held) < len(documents) - least:
            held.add(number)
            left -= sizes[number]
    if len(held) < least:
        held = set(np.argsort(sizes, kind="stable")[:least].tolist())
    parts: tuple[list[Texts], list[Texts]] = ([], [])
    for number, texts in enumerate(documents):
        parts[number in held].append(texts)
    return parts


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of documents, end to end, without special tokens.

    Attributes:
        ids: The token ids (n_tokens,).
        words: The number of each token's word, counted through all documents (n_tokens,).
        begins_text: Whether a token is the first one of a text (n_tokens,).
        ends: Where each document ends (n_documents,).
    """

    ids: IntArray
    words: IntArray
    begins_text: BoolArray
    ends: IntArray

    def joined(self, separator: IntArray) -> Tokens:
        """Return the tokens with special ones between two documents; those are of the word -1."""
        at = np.repeat(self.ends[:-1], len(separator))
        ids = np.insert(self.ids, at, np.tile(separator, len(self.ends) - 1))
        ends = self.ends + np.arange(len(self.ends)) * len(separator)
        return Tokens(ids, np.insert(self.words, at, -1), np.insert(self.begins_text, at, values=False), ends)


def tokens_of(documents: Sequence[Texts], tokenizer: Any) -> Tokens:
    """Tokenize documents with a fast tokenizer of transformers; those without a token are left out."""
    ids: list[IntArray] = []
    begins_word: list[BoolArray] = []
    for batch in _batches(documents):
        encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
        for number, found in enumerate(encoded["input_ids"]):
            words = encoded.word_ids(number)
            ids.append(np.asarray(found, dtype=np.int64))
            pairs = zip([None, *words], words, strict=False)
            begins_word.append(np.array([word is None or word != before for before, word in pairs], dtype=bool))
    lengths = np.array([len(found) for found in ids], dtype=np.int64)
    begins_text = np.zeros(lengths.sum(), dtype=bool)
    begins_text[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    last_text = np.cumsum([len(texts) for texts in documents]) - 1
    ends = np.unique(np.cumsum(lengths)[last_text])
    return Tokens(np.concatenate(ids), np.cumsum(np.concatenate(begins_word)), begins_text, ends[ends > 0])


def _batches(documents: Sequence[Texts]) -> Iterator[Texts]:
    texts = itertools.chain.from_iterable(documents)
    while batch := list(itertools.islice(texts, _N_AT_ONCE)):
        yield batch


def pieces(start: int, end: int, most: int) -> IntArray:
    """Cut a run of tokens into the fewest pieces of at most that many tokens, of nearly equal lengths: (n, 2)."""
    n_pieces = -(-(end - start) // most)
    bounds = start + np.arange(n_pieces + 1) * (end - start) // max(1, n_pieces)
    return np.stack([bounds[:-1], bounds[1:]], axis=1)
