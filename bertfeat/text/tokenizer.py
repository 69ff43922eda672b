"""The model's own fast tokenizer: documents in, flat arrays of tokens with characters and words out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.errors import CheckpointError, TokenizingError, checkpoint_errors
from bertfeat.ragged import run_of, starts_of, word_bounds
from bertfeat.records import BoolArray, Document, Int32Array, IntArray
from bertfeat.text.backend import adapted, load_backend
from bertfeat.text.pieces import Cutter, Piece, document_error
from bertfeat.text.surface import SPACE_PIECES, find_surface
from bertfeat.text.template import Template, read_templates
from bertfeat.text.watchdog import CallFailed, call_within, held_stderr

# The most tokens of one document; each takes about 150 bytes of memory from here to the encoder.
MAX_DOCUMENT_TOKENS = 3_000_000
# Large enough to keep the tokenizer's threads busy; its objects per token then take about ten megabytes.
_BATCH_CHARS = 1_000_000
_BATCH_DOCUMENTS = 4_000
# The time limit of a call: usual tokenizers are about a hundred times as fast.
_TIMEOUT_S = 60.0
_CHARS_PER_S = 20_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a run of documents, without special tokens, laid end to end.

    Arrays over tokens, (n_tokens,): `ids`; `char_start` and `char_end`, in characters of the document's text (or
    second text), without whitespace around the token; `word`, the word's number in its document (a second text
    continues the count); `is_blank`, whether the token is whitespace only. Arrays over documents: `starts`
    (n_documents + 1,), where a document's tokens start; `pair_starts` (n_documents,), where those of its second text
    start (the document's end if it has none); `is_pair` (n_documents,); `n_cut` (n_documents, 2), the tokens of its
    first and of its second text that were counted and not kept. The tokens of the prompts are apart: `prompt_ids`
    (n_prompt_tokens,), and `prompt_starts` (n_documents + 1,), where those before a document start.
    """

    ids: IntArray
    char_start: Int32Array
    char_end: Int32Array
    word: Int32Array
    is_blank: BoolArray
    starts: IntArray
    pair_starts: IntArray
    is_pair: BoolArray
    n_cut: IntArray
    prompt_ids: IntArray
    prompt_starts: IntArray

    @property
    def n_prompt(self) -> IntArray:
        """The tokens of the prompt before each document: int64 (n_documents,)."""
        return np.diff(self.prompt_starts)

    @property
    def n_texts(self) -> IntArray:
        """The tokens of each document's first and second text, those not kept included: int64 (n_documents, 2)."""
        kept = np.stack([self.pair_starts - self.starts[:-1], self.starts[1:] - self.pair_starts], axis=1)
        return kept + self.n_cut

    @property
    def n_documents(self) -> int:
        """Documents, empty ones included."""
        return len(self.is_pair)

    @property
    def document(self) -> IntArray:
        """The number of each token's document: int64 (n_tokens,)."""
        return run_of(np.diff(self.starts))


class Tokenizer:
    """A fast tokenizer with its templates.

    Args:
        backend: The tokenizer of the `tokenizers` library; its truncation and padding are switched off.
        cls_id: The id of the classification token, if there is one.
        given_words: Documents are lists of words. Byte-level tokenizers then see a space before each word, as
            transformers demands for `is_split_into_words`.
        folder: The model folder, for messages.
        n_ids: Rows of the model's embedding matrix, if known; larger ids are refused on use.
        prompt: A text that is put before each document and tokenized together with it.

    Attributes:
        prompt: That text.
        single: The special tokens around one text.
        pair: The special tokens around two texts.
        vocabulary: The token strings by id: object (n_ids,).
        is_blank_piece: Which of them are only the character for a space: bool (n_ids,).

    Raises:
        CheckpointError: The tokenizer gives no tokens, or its special tokens have ids beyond `n_ids`.
    """

    def __init__(
        self,
        backend: BackendTokenizer,
        *,
        cls_id: int | None,
        given_words: bool = False,
        folder: Path = Path("tokenizer"),
        n_ids: int | None = None,
        prompt: str = "",
    ) -> None:
        self.prompt = prompt
        backend = adapted(backend, given_words=given_words)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._folder = folder
        self._cutter = Cutter(backend, given_words=given_words)
        self.given_words = given_words
        self.cls_id = cls_id
        with checkpoint_errors(folder, "its tokenizer does not work"):
            self.single, self.pair = read_templates(backend)
        pieces = backend.get_vocab(with_added_tokens=True)
        n_pieces = max(pieces.values()) + 1
        self._n_ids = n_pieces if n_ids is None else n_ids
        self.vocabulary: npt.NDArray[np.object_] = np.full(max(n_pieces, self._n_ids), "", dtype=object)
        self.vocabulary[list(pieces.values())] = list(pieces)
        self.is_blank_piece: BoolArray = np.array([p != "" and p.strip(SPACE_PIECES) == "" for p in self.vocabulary])
        for template in (self.single, self.pair):
            for specials in (template.prefix, template.middle, template.suffix):
                self._check_ids(specials.ids)

    @classmethod
    def load(cls, folder: Path, *, given_words: bool = False, n_ids: int | None = None, prompt: str = "") -> Tokenizer:
        """Load the tokenizer of a model folder, without a download and without running code of the folder.

        Raises:
            CheckpointError: The folder has no tokenizer with character offsets, or it does not fit a model of `n_ids`
                rows.
        """
        backend, cls_id = load_backend(folder)
        return cls(backend, cls_id=cls_id, given_words=given_words, folder=folder, n_ids=n_ids, prompt=prompt)

    def with_prompt(self, prompt: str) -> Tokenizer:
        """Return this tokenizer with another prompt."""
        other = copy.copy(self)
        other.prompt = prompt
        return other

    def template(self, *, pair: bool) -> Template:
        """Return the special tokens around one text, or two."""
        return self.pair if pair else self.single

    def merges(self, pair: str) -> bool:
        """Tell whether the normalizer joins two characters: together they give another text than one by one."""
        normalizer = self._backend.normalizer
        if normalizer is None:
            return False
        whole, first, second = (normalizer.normalize_str(text) for text in (pair, *pair))
        return bool(whole != first + second)

    def encode(self, documents: Sequence[Document], *, max_tokens: int | None = None) -> Tokens:
        """Tokenize documents in batches, and long ones in pieces.

        Args:
            documents: In corpus order; all with words or all without, as `given_words` says.
            max_tokens: Keep at least this many tokens of a text, if it has them, and count the others in `n_cut`.

        Raises:
            InputError: A document has more than `MAX_DOCUMENT_TOKENS` tokens that are kept, or cannot be cut into
                pieces.
            TokenizingError: The tokenizer fails on a document or takes too long.
        """
        sizes = _Sizes(documents, max_tokens)
        parts = [_columns([], [], self)]
        prompts: list[list[int]] = []
        for batch, encodings in self._encodings(documents):
            prompts += [encoding.prompt_ids for encoding in encodings if isinstance(encoding, _Prompted)]
            kept = sizes.take(batch, encodings)
            _check_size(sizes.n_kept[batch[0].document : batch[-1].document + 1], documents, batch[0].document)
            parts.append(_columns(*kept, self))
        tokens = _joined(parts, sizes, documents, prompts, given_words=self.given_words)
        self._check_ids(tokens.ids)
        self._check_ids(tokens.prompt_ids)
        return tokens

    def count_prompt(self) -> int:
        """Return the number of tokens that the prompt has alone, without special tokens."""
        return int(self.count([Document(index=0, doc_id=0, text="", words=() if self.given_words else None)])[0])

    def count(self, documents: Sequence[Document]) -> IntArray:
        """Return the number of tokens of each document and its prompt, without special tokens: int64 (n_documents,)."""
        n_tokens = np.zeros(len(documents), dtype=np.int64)
        for batch in _batches(self._cutter.pieces(documents)):
            np.add.at(n_tokens, [piece.document for piece in batch], list(map(len, self._encoded(batch, documents))))
        return n_tokens

    def _check_ids(self, ids: IntArray) -> None:
        """Refuse ids that the model's embedding matrix does not have; only ids that occur are checked."""
        largest = int(ids.max(initial=0))
        if largest >= self._n_ids:
            piece = self.vocabulary[largest] if largest < len(self.vocabulary) else ""
            raise CheckpointError(
                f"{self._folder}: the tokenizer gives token {piece!r:.60} the id {largest}, but the model's embedding "
                f"matrix has {self._n_ids} rows; put the model's own tokenizer into its folder"
            )

    def check_long(self, document: Document, *, max_tokens: int | None) -> None:
        """Refuse a long document that `encode` would refuse.

        Raises:
            InputError: The document has too many tokens, or cannot be cut into pieces.
        """
        if max_tokens is not None:
            for _ in self._cutter.pieces([document]):
                pass
            return
        n_tokens = np.zeros(1, dtype=np.int64)
        for _, encodings in self._encodings([document]):
            n_tokens += sum(map(len, encodings))
            _check_size(n_tokens, [document], 0)

    def _encodings(self, documents: Sequence[Document]) -> Iterator[tuple[list[Piece], list[_Encoded]]]:
        for batch in _batches(self._cutter.pieces(documents)):
            encodings = self._encoded(batch, documents)
            if not self.prompt:
                yield batch, list[_Encoded](encodings)
                continue
            n_words, n_chars = len(self.prompt.split()) if self.given_words else None, len(self.prompt)
            yield (
                batch,
                [
                    _Prompted(encoding, n_chars, n_words) if piece.is_first else encoding
                    for piece, encoding in zip(batch, encodings, strict=True)
                ],
            )

    def _input(self, piece: Piece) -> str | list[str]:
        """Return what is tokenized: the first piece of a document follows the prompt."""
        prompt = self.prompt if piece.is_first else ""
        return prompt + piece.text if piece.words is None else [*prompt.split(), *piece.words]

    def _encoded(self, batch: list[Piece], documents: Sequence[Document]) -> list[Encoding]:
        """Tokenize a batch; if that fails, one piece at a time, to name the document at fault."""
        n_chars = sum(len(piece.text) for piece in batch)
        timeout_s = _TIMEOUT_S + n_chars / _CHARS_PER_S
        texts = [self._input(piece) for piece in batch]
        try:
            with held_stderr() if self._cutter.has_unknown_regex else nullcontext():
                return call_within(
                    lambda: self._backend.encode_batch(
                        texts, is_pretokenized=self.given_words, add_special_tokens=False
                    ),
                    timeout_s,
                )
        except CallFailed as error:
            if len(batch) == 1:
                reason = f"cannot be tokenized: the model's tokenizer {error} on {n_chars:,} characters"
                remedy = "leave the document out, or repair the regular expressions of the tokenizer"
                document = documents[batch[0].document]
                raise document_error(document, f"{reason}; {remedy}", TokenizingError) from None
        return [encoding for piece in batch for encoding in self._encoded([piece], documents)]


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    n_chars = 0
    for piece in pieces:
        batch.append(piece)
        n_chars += len(piece.text)
        if n_chars >= _BATCH_CHARS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, n_chars = [], 0
    if batch:
        yield batch


def _check_size(n_tokens: IntArray, documents: Sequence[Document], first: int) -> None:
    """Refuse a document, from number `first` on, that has too many tokens."""
    total = n_tokens.reshape(len(n_tokens), -1).sum(axis=1)
    if not (total > MAX_DOCUMENT_TOKENS).any():
        return
    number = int(np.argmax(total > MAX_DOCUMENT_TOKENS))
    reason = f"has {total[number]:,} tokens or more, over the limit of {MAX_DOCUMENT_TOKENS:,} for one document"
    remedy = "cut it up, or pass --on-overlong truncate without the word level"
    raise document_error(documents[first + number], f"{reason}; {remedy}")


class _Prompted:
    """The encoding of a text that follows a prompt, without the prompt's tokens, which are in `prompt_ids`.

    A token that has characters of both belongs to the text. `n_words` is the prompt's number of words if words are
    given: offsets count in the word then.
    """

    def __init__(self, encoding: Encoding, n_chars: int, n_words: int | None) -> None:
        words = np.array(encoding.word_ids, dtype=np.int64)
        ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:, 1]
        is_text = ends > n_chars if n_words is None else words >= n_words
        n = int(np.argmax(is_text)) if is_text.any() else len(is_text)
        shift = n_chars if n_words is None else 0
        self.prompt_ids = encoding.ids[:n]
        self.ids = encoding.ids[n:]
        self.offsets = [(max(start - shift, 0), end - shift) for start, end in encoding.offsets[n:]]
        self.word_ids = (words[n:] - (n_words or 0)).tolist()

    def __len__(self) -> int:
        return len(self.ids)


_Encoded = Encoding | _Prompted


class _Sizes:
    """Numbers of the tokens of each document's first and second text, kept or not: int64 (n_documents, 2).

    `n_words_cut` (n_documents,) counts the words of first texts that were not kept and are followed by a second text.
    """

    def __init__(self, documents: Sequence[Document], max_tokens: int | None) -> None:
        self._is_pair = [document.text_pair is not None for document in documents]
        self._max_tokens = max_tokens
        self.n_kept, self.n_cut = np.zeros((2, len(documents), 2), dtype=np.int64)
        self.n_words_cut = np.zeros(len(documents), dtype=np.int64)

    def take(self, batch: list[Piece], encodings: list[_Encoded]) -> tuple[list[Piece], list[_Encoded]]:
        """Count a batch; return the kept part of it."""
        if self._max_tokens is None or not any(piece.start for piece in batch):
            places = [piece.document for piece in batch], [piece.text_number for piece in batch]
            np.add.at(self.n_kept, places, list(map(len, encodings)))
            return batch, encodings
        kept = []
        for piece, encoding in zip(batch, encodings, strict=True):
            place = piece.document, piece.text_number
            if self.n_kept[place] < self._max_tokens:
                self.n_kept[place] += len(encoding)
                kept.append((piece, encoding))
                continue
            self.n_cut[place] += len(encoding)
            if piece.text_number == 0 and self._is_pair[piece.document] and len(encoding):
                self.n_words_cut[piece.document] += 1 + np.count_nonzero(np.diff(np.array(encoding.word_ids, np.int32)))
        return [piece for piece, _ in kept], [encoding for _, encoding in kept]


class _Columns(NamedTuple):
    """The arrays of `Tokens` for some pieces.

    `word` is the word's number in the document if words are given, else 1 for the first token of a word and 0 for the
    others.
    """

    ids: IntArray
    char_start: Int32Array
    char_end: Int32Array
    word: Int32Array
    is_blank: BoolArray


def _columns(pieces: Sequence[Piece], sequences: Sequence[_Encoded], tokenizer: Tokenizer) -> _Columns:
    """Return the arrays of a batch, which take much less memory than the encodings."""
    chain = itertools.chain.from_iterable
    lengths = np.array(list(map(len, sequences)), dtype=np.int64)
    n = int(lengths.sum())
    number = run_of(lengths)
    ids = np.fromiter(chain(e.ids for e in sequences), np.int64, n)
    offsets = np.fromiter(chain(chain(e.offsets for e in sequences)), np.int32, 2 * n).reshape(-1, 2)
    word = np.fromiter(chain(e.word_ids for e in sequences), np.int32, n)
    start, end = offsets[:, 0].copy(), offsets[:, 1].copy()
    if tokenizer.given_words:
        # Offsets count in the word; the text is the words joined by one space.
        n_words, word_start, _ = word_bounds([piece.words or () for piece in pieces])
        shift = word_start[starts_of(n_words)[number] + word].astype(np.int32)
        start, end = start + shift, end + shift
        word += np.array([piece.first_word for piece in pieces], dtype=np.int32)[number]
    else:
        is_first = np.ones(n, dtype=np.bool_)
        is_first[1:] = (np.diff(word) != 0) | (np.diff(number) != 0)
        word = is_first.astype(np.int32)
    is_prefix = tokenizer.is_blank_piece[ids]
    texts = [piece.text for piece in pieces]
    is_blank = find_surface(texts, number, start, end, is_prefix=is_prefix, merges=tokenizer.merges)
    shift = np.array([piece.start for piece in pieces], dtype=np.int32)[number]
    return _Columns(ids, start + shift, end + shift, word, is_blank)


def _joined(
    parts: list[_Columns],
    sizes: _Sizes,
    documents: Sequence[Document],
    prompts: Sequence[Sequence[int]],
    *,
    given_words: bool,
) -> Tokens:
    """Lay the arrays of the batches end to end, and number the words of a document over both its texts."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    # The arrays of the batches are deleted one after the other, so that memory does not hold all of them twice.
    parts.clear()
    ids, char_start, char_end, word, is_blank = (np.concatenate(columns.pop(0)) for _ in _Columns._fields)
    starts = starts_of(sizes.n_kept.sum(axis=1))
    if not given_words and len(word):
        before = np.zeros(len(word) + 1, dtype=np.int32)
        np.cumsum(word, out=before[1:])
        word = before[1:] - 1 - np.repeat(before[starts[:-1]], np.diff(starts))
    tokens = Tokens(
        ids=ids,
        char_start=char_start,
        char_end=char_end,
        word=word,
        is_blank=is_blank,
        starts=starts,
        pair_starts=starts[:-1] + sizes.n_kept[:, 0],
        is_pair=np.array([document.text_pair is not None for document in documents], dtype=np.bool_),
        n_cut=sizes.n_cut,
        prompt_ids=np.fromiter(itertools.chain.from_iterable(prompts), np.int64),
        prompt_starts=starts_of(np.array([*map(len, prompts)] or [0] * len(documents), dtype=np.int64)),
    )
    if sizes.n_words_cut.any():
        second = np.flatnonzero(np.arange(len(ids)) >= tokens.pair_starts[tokens.document])
        tokens.word[second] += sizes.n_words_cut[tokens.document[second]].astype(np.int32)
    return tokens
