"""The model's own fast tokenizer: documents in, flat arrays of tokens with characters and words out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.errors import CheckpointError, TokenizingError, checkpoint_errors, is_panic
from bertfeat.records import BoolArray, Document, IntArray, excess_of
from bertfeat.text.backend import adapted, load_backend
from bertfeat.text.surface import SPACE_PIECES
from bertfeat.text.template import Template, read_templates
from bertfeat.text.tokens import Columns, Encoded, Piece, Prompted, Tokens, columns_of, document_error, join_columns

# Large enough to keep the tokenizer's threads busy; its objects per token then take about ten megabytes.
_BATCH_CHARS = 1_000_000
_BATCH_DOCUMENTS = 4_000


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
        unknown_id: The id of unknown words, if they have no vector.
        looks_up: What is looked up in a table of static vectors; empty for an encoder.
        chars_per_token: If texts are cut to some tokens, they are first cut to that many characters per token.

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
        unknown_id: int | None = None,
        looks_up: str = "",
        chars_per_token: int | None = None,
    ) -> None:
        self.prompt = prompt
        self.unknown_id = unknown_id
        self.looks_up = looks_up
        self._chars_per_token = chars_per_token
        backend = adapted(backend, given_words=given_words)
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
        n_tokens = np.zeros_like(n_cut)
        max_chars = None
        if max_tokens is not None and self._chars_per_token is not None:
            max_chars = max_tokens * self._chars_per_token
            n_cut[:, 0] = [len(document.text) > max_chars for document in documents]
            n_cut[:, 1] = [len(document.text_pair or "") > max_chars for document in documents]
        parts = [self._columns([], [])]
        prompts: list[list[int]] = []
        for batch in self._batches(documents, max_chars):
            encodings = self._prompted(batch, self._encoded(batch, documents))
            prompts += [encoding.prompt_ids for encoding in encodings if isinstance(encoding, Prompted)]
            n_tokens[[piece.document for piece in batch], [piece.number for piece in batch]] = [*map(len, encodings)]
            parts.append(self._columns(batch, encodings))
        tokens = join_columns(parts, n_tokens, n_cut, documents, prompts, given_words=self.given_words)
        self._check_ids(tokens.ids)
        self._check_ids(tokens.prompt_ids)
        return tokens

    def _columns(self, pieces: list[Piece], encodings: list[Encoded]) -> Columns:
        return columns_of(
            pieces,
            encodings,
            given_words=self.given_words,
            has_words=self._has_words,
            is_blank_piece=self.is_blank_piece,
            merges=self.merges,
        )

    def count_prompt(self) -> int:
        """Return the number of tokens that the prompt has alone, without special tokens."""
        return int(self.count([Document(index=0, doc_id=0, text="", words=() if self.given_words else None)])[0])

    def count(self, documents: Sequence[Document]) -> IntArray:
        """Return the number of tokens of each document and its prompt, without special tokens: int64 (n_documents,)."""
        n_tokens = np.zeros(len(documents), dtype=np.int64)
        for batch in self._batches(documents):
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

    def _batches(self, documents: Sequence[Document], max_chars: int | None = None) -> Iterator[list[Piece]]:
        """Yield the texts of documents, cut after `max_chars` characters, in batches."""
        batch: list[Piece] = []
        n_chars = 0
        for piece in self._pieces(documents, max_chars):
            batch.append(piece)
            n_chars += len(piece.text)
            if n_chars >= _BATCH_CHARS or len(batch) >= _BATCH_DOCUMENTS:
                yield batch
                batch, n_chars = [], 0
        if batch:
            yield batch

    def _pieces(self, documents: Iterable[Document], max_chars: int | None) -> Iterator[Piece]:
        for number, document in enumerate(documents):
            if reason := excess_of(document.text, document.text_pair):
                raise document_error(document, reason)
            if self.given_words:
                yield Piece(number, 0, document.text, [*(document.words or ())])
                continue
            yield Piece(number, 0, document.text[:max_chars])
            if document.text_pair is not None:
                yield Piece(number, 1, document.text_pair[:max_chars])

    def _prompted(self, batch: list[Piece], encodings: list[Encoding]) -> list[Encoded]:
        """Take the tokens of the prompt out of the encodings of first texts."""
        if not self.prompt:
            return [*encodings]
        n_words, n_chars = len(self.prompt.split()) if self.given_words else None, len(self.prompt)
        return [
            encoding if piece.number else Prompted(encoding, n_chars, n_words)
            for piece, encoding in zip(batch, encodings, strict=True)
        ]

    def _input(self, piece: Piece) -> str | list[str]:
        """Return what is tokenized: the first text of a document follows the prompt."""
        prompt = "" if piece.number else self.prompt
        return prompt + piece.text if piece.words is None else [*prompt.split(), *piece.words]

    def _encoded(self, batch: list[Piece], documents: Sequence[Document]) -> list[Encoding]:
        """Tokenize a batch; if that fails, one text at a time, to name the document at fault."""
        texts = [self._input(piece) for piece in batch]
        try:
            return self._backend.encode_batch(texts, is_pretokenized=self.given_words, add_special_tokens=False)
        except BaseException as error:
            if isinstance(error, MemoryError) or not (isinstance(error, Exception) or is_panic(error)):
                raise
            if len(batch) == 1:
                said = (str(error).strip() or type(error).__name__).splitlines()[0]
                reason = f"cannot be tokenized: the model's tokenizer failed: {said}; leave the document out"
                raise document_error(documents[batch[0].document], reason, TokenizingError) from error
        return [encoding for piece in batch for encoding in self._encoded([piece], documents)]
