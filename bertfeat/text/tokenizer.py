"""The model's own fast tokenizer: documents in, flat arrays of tokens with characters and words out."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, models, normalizers
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.durable.files import os_errors
from bertfeat.errors import CheckpointError, TokenizingError, checkpoint_errors, is_panic
from bertfeat.ragged import begins_run, ragged_arange, run_of, starts_of, word_bounds
from bertfeat.records import BoolArray, Document, Int32Array, IntArray, excess_of
from bertfeat.text.backend import adapt, check_ids, load_backend
from bertfeat.text.surface import SPACE_PIECES, find_spaces, find_surface
from bertfeat.text.template import read_templates
from bertfeat.text.tokens import Columns, Tokens, document_error, join_columns, text_starts

# Large enough to keep the tokenizer's threads busy; its objects per token then take about ten megabytes.
_BATCH_CHARS = 1_000_000
_BATCH_TEXTS = 4_000


class _Text(NamedTuple):
    document: Document
    text: str
    prompt: str = ""


class Tokenizer:
    """A fast tokenizer with its templates.

    Args:
        backend: The tokenizer of the `tokenizers` library; its truncation and padding are switched off.
        cls_id: The id of the classification token, if there is one.
        given_words: Documents are lists of words. Byte-level tokenizers then see a space before each word, as
            transformers demands for `is_split_into_words`.
        folder: The model folder, for messages.
        n_ids: Rows of the model's embedding matrix, if known; larger ids are refused on use.
        unknown_id: The id of unknown words, if they have no vector.
        looks_up: What is looked up in a table of static vectors; empty for an encoder.
        chars_per_token: If texts are cut to some tokens, they are first cut to that many characters per token.

    Attributes:
        prompt: A text that is put before each document and tokenized together with it; empty at first.
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
        unknown_id: int | None = None,
        looks_up: str = "",
        chars_per_token: int | None = None,
    ) -> None:
        self.prompt = ""
        self.unknown_id = unknown_id
        self.looks_up = looks_up
        self._chars_per_token = chars_per_token
        adapt(backend, given_words=given_words)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._folder = folder
        self.given_words = given_words
        self.cls_id = cls_id
        with checkpoint_errors(folder, "its tokenizer does not work"):
            self.single, self.pair = read_templates(backend)
            # Those of Llama and Gemma hand the whole text to their BPE model.
            self._has_words = len({*backend.encode("a b", add_special_tokens=False).word_ids}) > 1
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
    def load(cls, folder: Path, *, given_words: bool = False, n_ids: int | None = None) -> Tokenizer:
        """Load the tokenizer of a model folder, without a download and without running code of the folder.

        Raises:
            CheckpointError: The folder has no tokenizer with character offsets, or it does not fit a model of `n_ids`
                rows.
        """
        backend, cls_id = load_backend(folder)
        return cls(backend, cls_id=cls_id, given_words=given_words, folder=folder, n_ids=n_ids)

    @classmethod
    @os_errors(CheckpointError)
    def load_static(cls, folder: Path, *, given_words: bool, n_ids: int, is_uncased: bool | None) -> Tokenizer:
        """Load the tokenizer of a model2vec folder, without special tokens; its unknown token has no vector.

        Args:
            folder: The folder.
            given_words: Documents are lists of words.
            n_ids: The ids that have a vector.
            is_uncased: For word vectors, whose given words are looked up whole: whether they are lower-cased; else
                None.

        Raises:
            CheckpointError: The folder's tokenizer.json cannot be used.
        """
        path = folder / "tokenizer.json"
        with checkpoint_errors(path, "the tokenizer cannot be loaded"):
            backend = BackendTokenizer.from_file(str(path))
            check_ids(folder, backend)
            backend.post_processor = None
            # Only Unigram names its unknown token by an id.
            is_unigram, name = isinstance(backend.model, models.Unigram), getattr(backend.model, "unk_token", None)
            unknown_id = json.loads(backend.to_str())["model"].get("unk_id") if is_unigram else None
            if isinstance(name, str):
                unknown_id = backend.token_to_id(name)
        if is_uncased is None:
            looks_up, chars_per_token = "tokens", int(np.median([len(token) for token in backend.get_vocab()]))
        else:
            # Word vectors read a text whole.
            looks_up, chars_per_token = "words, text lower-cased" if is_uncased else "words", None
            if given_words:
                backend.pre_tokenizer, backend.normalizer = None, normalizers.Lowercase() if is_uncased else None
        return cls(
            backend,
            cls_id=None,
            given_words=given_words,
            folder=folder,
            n_ids=n_ids,
            unknown_id=unknown_id,
            looks_up=looks_up,
            chars_per_token=chars_per_token,
        )

    def with_prompt(self, prompt: str) -> Tokenizer:
        """Return this tokenizer with another prompt."""
        other = copy.copy(self)
        other.prompt = prompt
        return other

    def merges(self, pair: str) -> bool:
        """Return whether the normalizer joins two characters: together they give another text than one by one."""
        normalizer = self._backend.normalizer
        if normalizer is None:
            return False
        whole, first, second = (normalizer.normalize_str(text) for text in (pair, *pair))
        return bool(whole != first + second)

    def encode(self, documents: Sequence[Document], *, max_tokens: int | None = None) -> Tokens:
        """Tokenize documents in batches.

        Args:
            documents: In corpus order; all with words or all without, as `given_words` says.
            max_tokens: The most tokens of a text that are needed. Static vectors need no more characters than that many
                tokens of their median length have.

        Raises:
            InputError: A document has too many characters.
            TokenizingError: The tokenizer fails on a document.
        """
        n_cut = np.zeros((len(documents), 2), dtype=np.int64)
        max_chars = None
        if max_tokens is not None and self._chars_per_token is not None:
            max_chars = max_tokens * self._chars_per_token
            n_cut[:, 0] = [len(document.text) > max_chars for document in documents]
            n_cut[:, 1] = [len(document.text_pair or "") > max_chars for document in documents]
        parts = [self._columns([]), *map(self._columns, self._batches(documents, max_chars))]
        tokens = join_columns(parts, n_cut, documents, given_words=self.given_words)
        self._check_ids(tokens.ids)
        self._check_ids(tokens.prompt_ids)
        return tokens

    def count_prompt(self) -> int:
        """Return the number of tokens that the prompt has alone, without special tokens."""
        return int(self.count([Document(index=0, doc_id=0, text="", words=() if self.given_words else None)])[0])

    def count(self, documents: Sequence[Document]) -> IntArray:
        """Return the number of tokens of each document and its prompt, without special tokens: int64 (n_documents,)."""
        lengths = [len(encoding) for batch in self._batches(documents) for encoding in self._encodings(batch)]
        return np.diff(starts_of(np.array(lengths, dtype=np.int64))[text_starts(documents)])

    def _check_ids(self, ids: IntArray) -> None:
        """Refuse ids that the model's embedding matrix does not have; only ids that occur are checked."""
        largest = int(ids.max(initial=0))
        if largest >= self._n_ids:
            piece = self.vocabulary[largest] if largest < len(self.vocabulary) else ""
            raise CheckpointError(
                f"{self._folder}: the tokenizer gives token {piece!r:.60} the id {largest}, but the model's embedding "
                f"matrix has {self._n_ids} rows; put the model's own tokenizer into its folder"
            )

    def _batches(self, documents: Sequence[Document], max_chars: int | None = None) -> Iterator[list[_Text]]:
        """Yield the texts of documents in batches; the first text of a document follows the prompt."""
        batch: list[_Text] = []
        n_chars = 0
        # Given words are not cut.
        end = None if self.given_words else max_chars
        for document in documents:
            if reason := excess_of(document.text, document.text_pair):
                raise document_error(document, reason)
            found = [_Text(document, document.text[:end], self.prompt)]
            if document.text_pair is not None:
                found.append(_Text(document, document.text_pair[:end]))
            batch += found
            n_chars += sum(len(text.text) for text in found)
            if n_chars >= _BATCH_CHARS or len(batch) >= _BATCH_TEXTS:
                yield batch
                batch, n_chars = [], 0
        if batch:
            yield batch

    def _encodings(self, batch: Sequence[_Text]) -> list[Encoding]:
        """Tokenize a batch; if that fails, one text at a time, to name the document at fault."""
        inputs = [
            [*text.prompt.split(), *(text.document.words or ())] if self.given_words else text.prompt + text.text
            for text in batch
        ]
        try:
            return self._backend.encode_batch(inputs, is_pretokenized=self.given_words, add_special_tokens=False)
        except BaseException as error:
            if isinstance(error, MemoryError) or not (isinstance(error, Exception) or is_panic(error)):
                raise
            if len(batch) == 1:
                said = (str(error).strip() or type(error).__name__).splitlines()[0]
                reason = f"cannot be tokenized: the model's tokenizer failed: {said}; leave the document out"
                raise document_error(batch[0].document, reason, TokenizingError) from error
        return [encoding for text in batch for encoding in self._encodings([text])]

    def _columns(self, batch: Sequence[_Text]) -> Columns:
        """Tokenize a batch into arrays, which take much less memory than encodings."""
        encodings, chain = self._encodings(batch), itertools.chain.from_iterable
        lengths = np.array(list(map(len, encodings)), dtype=np.int64)
        n, number = int(lengths.sum()), run_of(lengths)
        ids = np.fromiter(chain(e.ids for e in encodings), np.int64, n)
        offsets = np.fromiter(chain(chain(e.offsets for e in encodings)), np.int32, 2 * n).reshape(-1, 2)
        word = np.fromiter(chain(e.word_ids for e in encodings), np.int32, n)
        start, end = offsets[:, 0].copy(), offsets[:, 1].copy()
        n_prompt, prompt_ids = np.zeros_like(lengths), ids[:0]
        if self.prompt:
            # Offsets count in the word if words are given, else in the prompt with its text.
            sizes = [len(text.prompt.split() if self.given_words else text.prompt) for text in batch]
            before = np.array(sizes, dtype=np.int32)[number]
            # A token that has characters of both belongs to the text.
            is_text = word >= before if self.given_words else (end > before) | (before == 0)
            starts, hits = starts_of(lengths)[:-1], np.append(np.flatnonzero(is_text), n)
            n_prompt = np.minimum(hits[np.searchsorted(hits, starts)] - starts, lengths)
            prompt_ids, lengths = ids[ragged_arange(starts, n_prompt)], lengths - n_prompt
            own = ragged_arange(starts + n_prompt, lengths)
            ids, start, end, word, number, before = ids[own], start[own], end[own], word[own], number[own], before[own]
            if self.given_words:
                word -= before
            else:
                start, end = np.maximum(start - before, 0), end - before
        if self.given_words:
            # Offsets count in the word; the text is the words joined by one space.
            n_words, word_start, _ = word_bounds([text.document.words or () for text in batch])
            shift = word_start[starts_of(n_words)[number] + word].astype(np.int32)
            start, end = start + shift, end + shift
        else:
            word = begins_run(word, number).astype(np.int32)
        texts, is_prefix = [text.text for text in batch], self.is_blank_piece[ids]
        is_blank = find_surface(texts, number, start, end, is_prefix=is_prefix, merges=self.merges)
        if not self.given_words and not self._has_words:
            word = _spaced_words(texts, number, start, is_blank=is_blank, is_prefix=is_prefix)
        return Columns(lengths, n_prompt, prompt_ids, ids, start, end, word, is_blank)


def _spaced_words(
    texts: Sequence[str], number: IntArray, start: Int32Array, *, is_blank: BoolArray, is_prefix: BoolArray
) -> Int32Array:
    """Return 1 for each token that begins a word, and 0 for the others.

    A word begins after whitespace; a token that is only the character for a space is part of the word after it.
    """
    is_space = np.append(find_spaces("".join(texts)), False)
    at = start + starts_of(np.array([len(text) for text in texts], dtype=np.int64))[:-1][number]
    is_first = begins_run(number)
    is_first[1:] |= (is_space[at[1:] - 1] | is_blank[1:]) & (np.diff(start) != 0) & ~is_prefix[:-1]
    return is_first.astype(np.int32)
