"""The model's own fast tokenizer: documents in, flat token arrays with characters and words out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.errors import CheckpointError, checkpoint_errors
from bertfeat.records import BoolArray, Document, Int32Array, IntArray
from bertfeat.text.ragged import run_of, starts_of, word_bounds
from bertfeat.text.surface import BLANK_PIECES, find_surface
from bertfeat.text.template import Template, read_templates

# Large enough to keep the tokenizer's threads busy, small enough that its per-token objects stay some ten megabytes.
_BATCH_CHARS = 1_000_000
_BATCH_DOCUMENTS = 4_000

# No model has an embedding matrix of so many rows; the tables here and in `tokenizers` grow with the largest id.
_MAX_IDS = 10_000_000
# Characters that a normalizer may put in place of one; known ones put fewer than 20.
_MAX_REPLACEMENT = 1_000

Encodings = list[tuple[Encoding, Encoding | None]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a run of documents, without special tokens, laid end to end.

    Arrays over tokens, (n_tokens,): `ids`; `char_start` and `char_end`, in characters of the document's text (or
    second text), without surrounding blanks; `word`, the word's number in its document (words of a second text count
    on); `is_blank`, whether it stands for nothing but blanks. Arrays over documents: `starts`
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
        given_words: Documents come as lists of words.
        cls_id: The id of the classification token, or None where the model has none.
        vocabulary: The token strings by id: object (n_ids,).
        is_blank_piece: Which of them are nothing but the sign for a blank: bool (n_ids,).
    """

    def __init__(
        self,
        backend: BackendTokenizer,
        *,
        cls_id: int | None,
        given_words: bool = False,
        folder: Path = Path("tokenizer"),
        n_ids: int | None = None,
    ) -> None:
        """Wrap a tokenizer of the `tokenizers` library.

        Args:
            backend: The tokenizer; its truncation and padding are switched off, since windows and packs replace them.
            cls_id: The id of the classification token, if there is one.
            given_words: Documents come as lists of words. Byte-level tokenizers then see each word with a blank
                before it, as `transformers` demands for `is_split_into_words`.
            folder: What messages name as the place of a fault.
            n_ids: Rows of the model's embedding matrix, where they are known; a larger id is refused on use.

        Raises:
            CheckpointError: The tokenizer turns nothing into tokens, or its special tokens have ids beyond `n_ids`.
        """
        backend = _adapted(backend, given_words=given_words)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._folder = folder
        self.given_words = given_words
        self.cls_id = cls_id
        with checkpoint_errors(folder, "its tokenizer does not work"):
            self.single, self.pair = read_templates(backend)
        pieces = backend.get_vocab(with_added_tokens=True)
        n_pieces = max(pieces.values()) + 1
        self._n_ids = n_pieces if n_ids is None else n_ids
        self.vocabulary: npt.NDArray[np.object_] = np.full(max(n_pieces, self._n_ids), "", dtype=object)
        self.vocabulary[list(pieces.values())] = list(pieces)
        self.is_blank_piece: BoolArray = np.array([p != "" and p.strip(BLANK_PIECES) == "" for p in self.vocabulary])
        for template in (self.single, self.pair):
            for specials in (template.prefix, template.middle, template.suffix):
                self._check_ids(specials.ids)

    @classmethod
    def load(cls, folder: Path, *, given_words: bool = False, n_ids: int | None = None) -> Tokenizer:
        """Load the tokenizer of a model folder; nothing is fetched and no code of the folder runs.

        Args:
            folder: The model folder.
            given_words: Documents come as lists of words.
            n_ids: Rows of the model's embedding matrix, where they are known; a larger id is refused on use.

        Raises:
            CheckpointError: The folder has no tokenizer, or only one without character offsets, or one that does not
                belong to a model of `n_ids` rows.
        """
        backend, cls_id = _load_backend(folder)
        return cls(backend, cls_id=cls_id, given_words=given_words, folder=folder, n_ids=n_ids)

    def template(self, *, pair: bool) -> Template:
        """Return what surrounds one text, or two."""
        return self.pair if pair else self.single

    def merges(self, pair: str) -> bool:
        """Tell whether the normalizer makes one of two characters, so that they are not the sum of what each gives."""
        normalizer = self._backend.normalizer
        if normalizer is None:
            return False
        whole, first, second = (normalizer.normalize_str(text) for text in (pair, *pair))
        return bool(whole != first + second)

    def encode(self, documents: Sequence[Document]) -> Tokens:
        """Tokenize documents, in batches.

        Args:
            documents: In corpus order; all with words, or all without, as this tokenizer was made for.
        """
        tokens = _flatten(self._encodings(documents), documents, self)
        self._check_ids(tokens.ids)
        return tokens

    def count(self, documents: Sequence[Document]) -> IntArray:
        """Return the number of tokens of each document, special tokens left out: int64 (n_documents,)."""
        lengths = [len(e) + (len(p) if p else 0) for batch in self._encodings(documents) for e, p in batch]
        return np.array(lengths, dtype=np.int64)

    def _check_ids(self, ids: IntArray) -> None:
        """Refuse ids that the model's embedding matrix does not have; an added token may have one that never occurs."""
        largest = int(ids.max(initial=0))
        if largest >= self._n_ids:
            piece = self.vocabulary[largest] if largest < len(self.vocabulary) else ""
            raise CheckpointError(
                f"{self._folder}: the tokenizer gives token {piece!r:.60} the id {largest}, but the model's embedding "
                f"matrix has {self._n_ids} rows; put the model's own tokenizer into its folder"
            )

    def _encodings(self, documents: Sequence[Document]) -> Iterator[Encodings]:
        for batch in _batches(documents):
            if self.given_words:
                texts: list[str] | list[list[str]] = [list(document.words or ()) for document in batch]
            else:
                texts = [document.text for document in batch]
            first = self._backend.encode_batch(texts, is_pretokenized=self.given_words, add_special_tokens=False)
            pairs = [document.text_pair for document in batch if document.text_pair is not None]
            second = iter(self._backend.encode_batch(pairs, add_special_tokens=False)) if pairs else iter(())
            yield [(e, None if d.text_pair is None else next(second)) for d, e in zip(batch, first, strict=True)]


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


def _flatten(batches: Iterable[Encodings], documents: Sequence[Document], tokenizer: Tokenizer) -> Tokens:
    ids, offsets, words, n_first, n_second, is_pair = _columns(batches)
    starts = starts_of(n_first + n_second)
    tokens = Tokens(
        ids=ids,
        char_start=offsets[:, 0].copy(),
        char_end=offsets[:, 1].copy(),
        word=words,
        is_blank=np.zeros(len(ids), dtype=np.bool_),
        starts=starts,
        pair_starts=starts[:-1] + n_first,
        is_pair=is_pair,
    )
    document = tokens.document
    if tokenizer.given_words:
        _shift_to_words(tokens, document, documents)
    texts = [text for d in documents for text in (d.text, d.text_pair) if text is not None]
    # The number of each token's text: one a document, and one more for every second text up to and with its own.
    in_pair = np.arange(len(ids)) >= tokens.pair_starts[document]
    text = document + (np.cumsum(is_pair) - is_pair)[document] + in_pair
    tokens.is_blank[:] = find_surface(
        texts,
        text,
        tokens.char_start,
        tokens.char_end,
        is_prefix=tokenizer.is_blank_piece[tokens.ids],
        merges=tokenizer.merges,
    )
    if not tokenizer.given_words:
        _number_words(tokens, document, in_pair)
    return tokens


def _columns(
    batches: Iterable[Encodings],
) -> tuple[IntArray, Int32Array, Int32Array, IntArray, IntArray, BoolArray]:
    """Return ids, offsets (n, 2) and words of all tokens, and of each document its tokens and whether it is a pair.

    Batch by batch, for the encodings take many times the memory of these arrays.
    """
    ids, offsets, words = [np.zeros(0, np.int64)], [np.zeros((0, 2), np.int32)], [np.zeros(0, np.int32)]
    n_first: list[int] = []
    n_second: list[int] = []
    is_pair: list[bool] = []
    chain = itertools.chain.from_iterable
    for batch in batches:
        sequences = [e for pair in batch for e in pair if e is not None]
        n = sum(map(len, sequences))
        ids.append(np.fromiter(chain(e.ids for e in sequences), np.int64, n))
        offsets.append(np.fromiter(chain(chain(e.offsets for e in sequences)), np.int32, 2 * n).reshape(-1, 2))
        words.append(np.fromiter(chain(e.word_ids for e in sequences), np.int32, n))
        n_first += [len(first) for first, _ in batch]
        n_second += [0 if second is None else len(second) for _, second in batch]
        is_pair += [second is not None for _, second in batch]
    counts = np.array(n_first, np.int64), np.array(n_second, np.int64)
    return np.concatenate(ids), np.concatenate(offsets), np.concatenate(words), *counts, np.array(is_pair, np.bool_)


def _shift_to_words(tokens: Tokens, document: IntArray, documents: Sequence[Document]) -> None:
    """Turn offsets in a word into offsets in the text, which is the words joined by one blank."""
    n_words, start, _ = word_bounds([document.words or () for document in documents])
    shift = start[starts_of(n_words)[document] + tokens.word].astype(np.int32)
    tokens.char_start[:] += shift
    tokens.char_end[:] += shift


def _number_words(tokens: Tokens, document: IntArray, in_pair: BoolArray) -> None:
    """Number the words of a document 0, 1, 2, ... over both its texts, in the order of their tokens."""
    is_first = np.ones(len(tokens.ids), dtype=np.bool_)
    is_first[1:] = (np.diff(tokens.word) != 0) | (np.diff(document) != 0) | (np.diff(in_pair) != 0)
    number = starts_of(is_first.astype(np.int64))
    tokens.word[:] = number[1:] - 1 - number[tokens.starts[document]]


def _adapted(backend: BackendTokenizer, *, given_words: bool) -> BackendTokenizer:
    """Return a byte-level tokenizer that leaves offsets alone and, for given words, sees a blank before each."""
    text = backend.to_str()
    if "trim_offsets" not in text:
        return backend
    state = json.loads(text)
    # It would trim blanks by the look of the pieces, and take a character off a word that has none before it.
    for node in _nodes(state["post_processor"]):
        if "trim_offsets" in node:
            node["trim_offsets"] = False
    if given_words:
        _prefix_words(state)
    return BackendTokenizer.from_str(json.dumps(state))


def _prefix_words(state: dict[str, Any]) -> None:
    nodes = _nodes(state["pre_tokenizer"])
    splitters = [node for node in nodes if "pretokenizers" not in node]
    if splitters and splitters[0]["type"] == "ByteLevel":
        splitters[0]["add_prefix_space"] = True
    elif any(node["type"] == "ByteLevel" for node in splitters):
        # After another splitter the flag would put a blank before each part of a word.
        own = [state["normalizer"]] if state["normalizer"] else []
        state["normalizer"] = {"type": "Sequence", "normalizers": [*own, {"type": "Prepend", "prepend": " "}]}


def _nodes(node: object) -> list[dict[str, Any]]:
    """Return the objects in a part of a tokenizer's JSON, outer ones first."""
    if isinstance(node, list):
        return [found for child in node for found in _nodes(child)]
    if isinstance(node, dict):
        return [node, *(found for child in node.values() for found in _nodes(child))]
    return []


def _load_backend(folder: Path) -> tuple[BackendTokenizer, int | None]:
    """Return the tokenizer of a model folder as transformers configures it, and the id of its classification token."""
    from transformers import AutoTokenizer

    remedy = "correct the file or download the model again"
    if not (folder / "tokenizer.json").exists():
        remedy = "save a tokenizer.json, or for SentencePiece models pip install 'bertfeat[sentencepiece]'"
    with checkpoint_errors(lambda: _file_at_fault(folder), "the tokenizer cannot be loaded", remedy):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        if not tokenizer.is_fast:
            raise CheckpointError(
                f"{folder}: {type(tokenizer).__name__} has no fast version, and so no character offsets; "
                "save a tokenizer.json into the folder"
            )
        pieces = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
        piece, largest = max(pieces.items(), key=lambda item: item[1], default=("", 0))
        # Asked before `to_str`, which makes a table as long as the largest id.
        if largest >= _MAX_IDS:
            raise CheckpointError(
                f"{folder}: the tokenizer gives token {piece!r:.60} the id {largest}; expected less than {_MAX_IDS}"
            )
        backend = BackendTokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        if backend.normalizer is not None:
            _check_normalizer(folder, json.loads(backend.normalizer.__getstate__()))
        return backend, tokenizer.cls_token_id


def _check_normalizer(folder: Path, state: object) -> None:
    """Refuse a normalizer that would fill the memory: replacements multiply where one follows another."""
    contents = [str(node.get("content") or "") for node in _nodes(state) if node.get("type") == "Replace"]
    n_chars = math.prod(max(1, len(content)) for content in contents)
    if n_chars > _MAX_REPLACEMENT:
        raise CheckpointError(
            f"{folder}: the tokenizer's normalizer replaces one character by {n_chars}; "
            f"expected at most {_MAX_REPLACEMENT}"
        )


def _file_at_fault(folder: Path) -> Path:
    """Return the first file that does not even load alone, or the folder where none is so bad."""
    from transformers import AutoConfig

    def load(name: str) -> None:
        if name == "config.json":
            AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        elif name == "tokenizer.json":
            BackendTokenizer.from_file(str(folder / name))
        elif not isinstance(json.loads((folder / name).read_bytes()), dict):
            raise TypeError(name)

    files = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    for name in files:
        try:
            with checkpoint_errors(folder, name):
                if (folder / name).exists():
                    load(name)
        except CheckpointError:
            return folder / name
    return folder
