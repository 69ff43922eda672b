"""Examples of BERT's pre-training: windows of documents, masked and paired at random.

Masked words and next sentences as in Devlin et al. 2019, section 3.1 and appendix A.1 (arXiv 1810.04805). Masks and
pairs are drawn again in each step, as in Liu et al. 2019, section 4.1 (arXiv 1907.11692).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from bertfeat.errors import ConfigError, InputError
from bertfeat.pipelines._masking import Vocabulary, mask
from bertfeat.pipelines._models import NO_LABEL, TaskModel
from bertfeat.pipelines._windows import Texts, pieces, tokens_of
from bertfeat.records import BoolArray, IntArray
from bertfeat.text.template import read_templates

# The fewest tokens of a window beside its special ones: each piece of a document then has two, and can be cut.
_LEAST_ROOM = 4


class Examples:
    """Windows of documents: end to end for masked words alone; each document by itself with next sentences.

    Attributes:
        lengths: The tokens of each window, special tokens included.
        n_tokens: Tokens of their texts.
        n_left_out: Tokens of windows without a known word, and with next sentences of documents of one token.
    """

    def __init__(
        self,
        documents: Sequence[Texts],
        opened: TaskModel,
        max_length: int,
        *,
        nsp: bool = False,
        whole_words: bool = False,
    ) -> None:
        """Tokenize documents and cut them into windows of at most that many tokens.

        Raises:
            CheckpointError: The tokenizer does not fit the model.
            ConfigError: A window has no room beside its special tokens.
            InputError: The documents have no known word, or a pair has no second document.
        """
        backend = opened.tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        single, pair = read_templates(backend)
        self._template, self._nsp, self._whole_words = pair if nsp else single, nsp, whole_words
        specials = np.concatenate([part.ids for part in (pair.prefix, pair.middle, pair.suffix)])
        self._vocabulary = Vocabulary.of(opened, specials)
        room = max_length - self._template.n_specials
        if room < _LEAST_ROOM:
            raise ConfigError(f"--max-length {max_length} leaves {room} tokens beside special ones; use a larger one")
        self._tokens = tokens_of(documents, opened.tokenizer)
        n_tokens = len(self._tokens.ids)
        if nsp:
            self._cut_documents(room)
        else:
            self._tokens = self._tokens.joined(pair.middle.ids)
            self._bounds = pieces(0, len(self._tokens.ids), room)
            self._document = np.zeros(len(self._bounds), dtype=np.int64)
        self._leave_out()
        self.n_tokens = int(_counts(self._tokens.words > 0, self._bounds).sum())
        self.n_left_out = n_tokens - self.n_tokens
        self.lengths = [int(end - start) + self._template.n_specials for start, end in self._bounds]

    def digest(self) -> str:
        """Return a sha256 (hex) of all that the windows are made of."""
        parts = (self._tokens.ids, self._tokens.words, self._tokens.begins_text, self._bounds, self._document)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def most_frequent(self) -> int:
        """Return the id of the most frequent token."""
        ids = self._tokens.ids
        return int(np.bincount(ids[~self._vocabulary.is_special[ids]]).argmax())

    def make_batch(self, rows: Sequence[int], random: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return the inputs of windows, masked at random, with their labels."""
        width = max(self.lengths[row] for row in rows)
        shape = (len(rows), width)
        names = ("input_ids", "attention_mask", "token_type_ids", "labels")
        batch = {name: np.zeros(shape, dtype=np.int64) for name in names}
        batch["input_ids"][:], batch["labels"][:] = self._vocabulary.padding_id, NO_LABEL
        is_random = np.zeros(len(rows), dtype=np.int64)
        for place, row in enumerate(rows):
            first, second, is_random[place] = self._texts_of(row, random)
            ids, words, types = self._window(first, second)
            seen, labels = mask(ids, words, self._vocabulary, random, whole_words=self._whole_words)
            for name, values in zip(names, (seen, np.ones_like(ids), types, labels), strict=True):
                batch[name][place, : len(ids)] = values
        inputs = {name: torch.from_numpy(values) for name, values in batch.items()}
        if self._nsp:
            return {**inputs, "next_sentence_label": torch.from_numpy(is_random)}
        del inputs["token_type_ids"]
        return inputs

    def _cut_documents(self, room: int) -> None:
        """Cut each document into windows of its own."""
        ends = self._tokens.ends
        starts = np.concatenate([[0], ends[:-1]])
        bounds = np.stack([starts, ends], axis=1)[ends - starts >= 2]
        cut = [pieces(start, end, room) for start, end in bounds.tolist()]
        self._bounds = np.concatenate([np.zeros((0, 2), dtype=np.int64), *cut])
        self._document = np.repeat(np.arange(len(cut)), np.array([len(part) for part in cut], dtype=np.int64))
        self._document_ends = bounds[:, 1]

    def _leave_out(self) -> None:
        """Leave out windows without a token that can be masked."""
        is_kept = _counts(~self._vocabulary.is_special[self._tokens.ids], self._bounds) > 0
        self._bounds, self._document = self._bounds[is_kept], self._document[is_kept]
        if self._nsp and (n_documents := len(np.unique(self._document))) < 2:
            raise InputError(
                f"documents of two words or more: {n_documents}; next sentences need 2 to train on and 2 to hold out; "
                "mark more documents, or leave out --nsp"
            )
        if not len(self._bounds):
            raise InputError("a part of the corpus has no word that the tokenizer knows; use more text")

    def _texts_of(self, row: int, random: np.random.Generator) -> tuple[slice, slice, bool]:
        """Return the tokens of a window's texts, and whether the second is a random one."""
        start, end = self._bounds[row].tolist()
        if not self._nsp:
            return slice(start, end), slice(end, end), False
        cut = self._cut_of(row, random)
        if random.random() < 0.5:
            return slice(start, cut), slice(cut, end), False
        # The windows of a document are neighbours: draw among the others.
        first, last = np.searchsorted(self._document, [self._document[row], self._document[row] + 1]).tolist()
        other = int(random.integers(len(self._bounds) - (last - first)))
        other += (last - first) * (other >= first)
        begin = self._cut_of(other, random)
        return slice(start, cut), slice(begin, min(begin + end - cut, self._document_ends[self._document[other]])), True

    def _cut_of(self, row: int, random: np.random.Generator) -> int:
        """Return where the second text of a window begins, at random: at a text of the document, or else at a word."""
        start, end = self._bounds[row].tolist()
        places = np.flatnonzero(self._tokens.begins_text[start + 1 : end])
        if not len(places):
            places = np.flatnonzero(np.diff(self._tokens.words[start:end]))
        return int(start + 1 + random.choice(places if len(places) else end - start - 1))

    def _window(self, first: slice, second: slice) -> tuple[IntArray, IntArray, IntArray]:
        """Return ids, words and segment ids of a window; special tokens are of the word -1."""
        template, tokens = self._template, self._tokens
        around, texts = (template.prefix, template.middle, template.suffix), (first, second)
        ids, words, types = [around[0].ids], [np.full(len(around[0]), -1)], [around[0].type_ids]
        for text, type_id, specials in zip(texts, template.type_ids, around[1:], strict=True):
            ids += [tokens.ids[text], specials.ids]
            words += [tokens.words[text], np.full(len(specials), -1)]
            types += [np.full(text.stop - text.start, type_id), specials.type_ids]
        return np.concatenate(ids), np.concatenate(words), np.concatenate(types)


def _counts(is_counted: BoolArray, bounds: IntArray) -> IntArray:
    """Return how many tokens of each window are counted."""
    so_far = np.concatenate([[0], np.cumsum(is_counted)])
    return np.diff(so_far[bounds])[:, 0]
