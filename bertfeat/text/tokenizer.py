"""The model's own fast tokenizer: documents in, flat token arrays with characters and words out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.errors import CheckpointError
from bertfeat.records import BoolArray, Document, Int32Array, IntArray
from bertfeat.text.ragged import run_of, starts_of
from bertfeat.text.template import Template, read_templates

# Large enough to keep the tokenizer's threads busy, small enough that its per-token objects stay a few megabytes.
_BATCH_CHARS = 1_000_000
_BATCH_DOCUMENTS = 1_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a run of documents, without special tokens, laid end to end.

    Arrays over tokens, (n_tokens,): `ids`; `char_start` and `char_end`, in characters of the document's text (or
    second text), without surrounding blanks; `word`, the word's number in its document (words of a second text count
    on), or -1; `is_blank`, whether it stands for nothing but blanks. Arrays over documents: `starts`
    (n_documents + 1,), where a document's tokens start; `pair_starts` (n_documents,), where those of its second text
    start (the document's end if it has none); `is_pair` (n_documents,).
    """

    ids: IntArray
    char_start: Int32Array
    char_end: Int32Array
    word: Int32Array
    is_blank: BoolArray
    starts: IntArray
    pair_starts: IntArray
    is_pair: BoolArray

    @property
    def n_documents(self) -> int:
        """Documents, empty ones included."""
        return len(self.is_pair)

    @property
    def document(self) -> IntArray:
        """The number of each token's document: int64 (n_tokens,)."""
        return run_of(np.diff(self.starts))


class Tokenizer:
    """The fast tokenizer of a model folder.

    Attributes:
        single: What surrounds one text.
        pair: What surrounds two texts.
        cls_id: The id of the classification token, or None where the model has none.
        vocabulary: The token strings by id.
    """

    def __init__(self, backend: BackendTokenizer, *, cls_id: int | None, given_words: bool = False) -> None:
        """Wrap a tokenizer of the `tokenizers` library.

        Args:
            backend: The tokenizer; its truncation and padding are switched off, since windows and packs replace them.
            cls_id: The id of the classification token, if there is one.
            given_words: Documents come as lists of words. Byte-level tokenizers then see each word with a blank
                before it, as `transformers` demands for `is_split_into_words`.
        """
        if given_words:
            backend = _with_prefix_space(backend)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._given_words = given_words
        self.cls_id = cls_id
        self.single, self.pair = read_templates(backend)
        size = backend.get_vocab_size(with_added_tokens=True)
        self.vocabulary: tuple[str, ...] = tuple(backend.id_to_token(i) or "" for i in range(size))

    @classmethod
    def load(cls, folder: Path, *, given_words: bool = False) -> Tokenizer:
        """Load the tokenizer of a model folder; nothing is fetched and no code of the folder runs.

        Raises:
            CheckpointError: The folder has no tokenizer, or only one without character offsets.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise CheckpointError(f"{folder}: its tokenizer cannot be loaded: {_first_line(error)}") from error
        if not tokenizer.is_fast:
            raise CheckpointError(
                f"{folder}: {type(tokenizer).__name__} has no fast version, and so no character offsets; "
                "save a tokenizer.json into the folder"
            )
        backend = BackendTokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        return cls(backend, cls_id=tokenizer.cls_token_id, given_words=given_words)

    def template(self, *, pair: bool) -> Template:
        """Return what surrounds one text, or two."""
        return self.pair if pair else self.single

    def encode(self, documents: Sequence[Document]) -> Tokens:
        """Tokenize documents, in batches.

        Args:
            documents: In corpus order; all with words, or all without, as this tokenizer was made for.
        """
        return _flatten(list(self._encodings(documents)), documents, given_words=self._given_words)

    def count(self, documents: Sequence[Document]) -> IntArray:
        """Return the number of tokens of each document, special tokens left out: int64 (n_documents,)."""
        return np.array([len(e.ids) + (len(p.ids) if p else 0) for e, p in self._encodings(documents)], dtype=np.int64)

    def _encodings(self, documents: Sequence[Document]) -> Iterator[tuple[Encoding, Encoding | None]]:
        for batch in _batches(documents):
            if self._given_words:
                texts: list[str] | list[list[str]] = [list(document.words or ()) for document in batch]
            else:
                texts = [document.text for document in batch]
            first = self._backend.encode_batch(texts, is_pretokenized=self._given_words, add_special_tokens=False)
            pairs = [document.text_pair for document in batch if document.text_pair is not None]
            second = iter(self._backend.encode_batch(pairs, add_special_tokens=False)) if pairs else iter(())
            for document, encoding in zip(batch, first, strict=True):
                yield encoding, None if document.text_pair is None else next(second)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    n_chars = 0
    for document in documents:
        batch.append(document)
        n_chars += len(document.text)
        if n_chars >= _BATCH_CHARS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, n_chars = [], 0
    if batch:
        yield batch


def _flatten(
    encodings: Sequence[tuple[Encoding, Encoding | None]], documents: Sequence[Document], *, given_words: bool
) -> Tokens:
    sequences = [e for pair in encodings for e in pair if e is not None]
    n_first = np.array([len(first.ids) for first, _ in encodings], dtype=np.int64)
    n_second = np.array([len(second.ids) if second else 0 for _, second in encodings], dtype=np.int64)
    starts = starts_of(n_first + n_second)
    flat_offsets = itertools.chain.from_iterable(itertools.chain.from_iterable(e.offsets for e in sequences))
    offsets = np.fromiter(flat_offsets, dtype=np.int32).reshape(-1, 2)
    tokens = Tokens(
        ids=np.fromiter(itertools.chain.from_iterable(e.ids for e in sequences), dtype=np.int64),
        char_start=offsets[:, 0].copy(),
        char_end=offsets[:, 1].copy(),
        word=np.fromiter(
            (-1 if w is None else w for w in itertools.chain.from_iterable(e.word_ids for e in sequences)), np.int32
        ),
        is_blank=np.zeros(len(offsets), dtype=np.bool_),
        starts=starts,
        pair_starts=starts[:-1] + n_first,
        is_pair=np.array([second is not None for _, second in encodings], dtype=np.bool_),
    )
    if given_words:
        _shift_to_words(tokens, documents)
    _trim_blanks(tokens, documents)
    if not given_words:
        _number_words(tokens)
    return tokens


def _shift_to_words(tokens: Tokens, documents: Sequence[Document]) -> None:
    """Turn offsets in a word into offsets in the text, which is the words joined by one blank."""
    lengths = [np.array([len(word) for word in document.words or ()], dtype=np.int64) for document in documents]
    word_starts = np.concatenate([starts_of(n + 1)[:-1] for n in lengths] or [np.zeros(0, np.int64)])
    first_word = starts_of(np.array([len(n) for n in lengths], dtype=np.int64))[:-1]
    shift = word_starts[first_word[tokens.document] + tokens.word].astype(np.int32) if len(tokens.ids) else 0
    tokens.char_start[:] += shift
    tokens.char_end[:] += shift


def _trim_blanks(tokens: Tokens, documents: Sequence[Document]) -> None:
    """Take blanks off both ends of each token's characters.

    SentencePiece and byte-level tokenizers count the blank before a word to its first token; a slice of the text
    should be the surface alone. A token of nothing but blanks keeps them.
    """
    texts = [text for d in documents for text in (d.text, d.text_pair) if text is not None]
    joined = "".join(texts)
    if not joined:
        return
    blank = np.array([c.isspace() for c in sorted(set(joined))], dtype=np.bool_)
    codes = np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32)
    is_blank = blank[np.searchsorted(np.unique(codes), codes)]
    text_starts = starts_of(np.array([len(text) for text in texts], dtype=np.int64))[:-1]
    # The number of each token's text: one a document, and one more for every second text up to and with its own.
    in_pair = np.arange(len(tokens.ids)) >= tokens.pair_starts[tokens.document]
    n_pairs_before = starts_of(tokens.is_pair.astype(np.int64))[:-1]
    origin = text_starts[tokens.document + n_pairs_before[tokens.document] + in_pair]
    position = np.arange(len(codes))
    next_ink = np.minimum.accumulate(np.where(is_blank, len(codes), position)[::-1])[::-1]
    last_ink = np.maximum.accumulate(np.where(is_blank, -1, position))
    has_extent = tokens.char_end > tokens.char_start
    start = tokens.char_start[has_extent] + origin[has_extent]
    end = tokens.char_end[has_extent] + origin[has_extent]
    new_start, new_end = next_ink[start], last_ink[end - 1] + 1
    has_ink = new_start < new_end
    tokens.is_blank[has_extent] = ~has_ink
    tokens.char_start[has_extent] = np.where(has_ink, new_start, start) - origin[has_extent]
    tokens.char_end[has_extent] = np.where(has_ink, new_end, end) - origin[has_extent]


def _number_words(tokens: Tokens) -> None:
    """Number the words of a document 0, 1, 2, ... over both its texts, in the order of their tokens."""
    if not len(tokens.ids):
        return
    document = tokens.document
    in_pair = np.arange(len(tokens.ids)) >= tokens.pair_starts[document]
    is_first = np.ones(len(tokens.ids), dtype=np.bool_)
    is_first[1:] = (np.diff(tokens.word) != 0) | (np.diff(document) != 0) | (np.diff(in_pair) != 0)
    is_first &= tokens.word >= 0
    number = np.cumsum(is_first)
    before = np.concatenate([[0], number])[tokens.starts[:-1]]
    tokens.word[:] = np.where(tokens.word >= 0, number - 1 - before[document], -1)


def _with_prefix_space(backend: BackendTokenizer) -> BackendTokenizer:
    state = json.loads(backend.to_str())

    def visit(node: object) -> None:
        if isinstance(node, dict):
            if node.get("type") == "ByteLevel" and "add_prefix_space" in node:
                node["add_prefix_space"] = True
            for child in node.values():
                visit(child)
        elif isinstance(node, list):
            for child in node:
                visit(child)

    visit(state.get("pre_tokenizer"))
    return BackendTokenizer.from_str(json.dumps(state))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
