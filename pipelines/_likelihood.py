"""Probabilities of words by a language model: what it expects at a mask, and how likely each word of a text is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from bertfeat.devices import resolve_device
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import CheckpointError, InputError
from bertfeat.pipelines._training import has_head, open_task_model
from bertfeat.progress import reporting
from bertfeat.records import Document, Float64Array, IntArray
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens
from bertfeat.text.window_ranges import lay_windows

# What people write for a mask, whatever the token of the model is.
MASK = "[MASK]"
# Limits of a batch: tokens, and logits (256 MB of float32).
_MAX_TOKENS = 4096
_MAX_LOGITS = 64 << 20
_DOCUMENTS_AT_ONCE = 64
# Models whose tokens see earlier tokens only; others, such as XLNet, would see the word that they predict.
_CAUSAL = ("gpt2", "openai-gpt")


class _Query(NamedTuple):
    """A window, (n_window,) token ids; the m places in it whose logits predict tokens, and the numbers of these."""

    ids: IntArray
    read_at: IntArray
    tokens: IntArray


class LanguageModel:
    """A model with a trained head for masked words or, if its family has none, for next words."""

    def __init__(self, name: str, device: str, *, given_words: bool = False) -> None:
        self.name = name
        checkpoint = open_checkpoint(name)
        kind = checkpoint.family.model_type
        self.is_causal = not has_head(kind, "masked")
        if self.is_causal and kind not in _CAUSAL:
            raise CheckpointError(f"{name}: {kind} predicts neither masked nor next words here; use another model")
        opened = open_task_model(name, "causal" if self.is_causal else "masked", trained=True)
        self.device = resolve_device(device)[0]
        self._model = opened.model.eval().to(self.device)
        self._n_ids = checkpoint.n_ids
        self._decode = opened.tokenizer.decode
        self.mask_token: str | None = opened.tokenizer.mask_token
        self.mask_id: int | None = opened.tokenizer.mask_token_id
        self.tokenizer = Tokenizer.load(checkpoint.folder, given_words=given_words, n_ids=checkpoint.n_ids)
        template, first = self.tokenizer.single, getattr(opened.model.config, "bos_token_id", None)
        self._prefix, self._suffix = template.prefix.ids, template.suffix.ids
        if self.is_causal and not len(self._prefix) and first is not None:
            self._prefix = np.array([first])
        self._capacity = checkpoint.max_length - len(self._prefix) - len(self._suffix)

    def with_mask(self, text: str) -> str:
        """Return a text with the model's own mask in place of `[MASK]`."""
        if self.mask_token is None or self.is_causal:
            raise CheckpointError(f"{self.name}: has no mask; choose a model that fills masks")
        if MASK not in text and self.mask_token not in text:
            raise InputError(f"text {text!r:.60} has no mask; write {MASK} where the word is to be guessed")
        return text.replace(MASK, self.mask_token)

    def fill(self, texts: Sequence[str], k: int) -> pl.DataFrame:
        """Return the k most probable tokens of each mask, with its place in `with_mask(text)`."""
        tokens = self.tokenizer.encode([Document(i, i, self.with_mask(text)) for i, text in enumerate(texts)])
        rows = []
        for query, logits in self._run(self._windows(tokens)):
            for token, scores in zip(query.tokens.tolist(), logits.softmax(-1), strict=True):
                if tokens.ids[token] == self.mask_id:
                    best = scores.topk(min(k, len(scores)))
                    place = int(tokens.document[token]), int(tokens.char_start[token]), int(tokens.char_end[token])
                    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
                    for rank, (value, found) in enumerate(pairs, 1):
                        rows.append((*place, rank, self._decode([found]).strip(), value))
        names = ["doc_id", "char_start", "char_end", "rank", "word", "probability"]
        return pl.DataFrame(rows, names, orient="row").sort("doc_id", "char_start", "rank")

    def score_words(self, documents: Sequence[Document]) -> Iterator[pl.DataFrame]:
        """Yield the words of documents, as the word level has them, with `log_prob`, a natural logarithm or null."""
        with reporting(None) as progress:
            for start in range(0, len(documents), _DOCUMENTS_AT_ONCE):
                progress.stage("scoring documents", start, len(documents))
                part = documents[start : start + _DOCUMENTS_AT_ONCE]
                tokens = self.tokenizer.encode(part)
                found = np.full(len(tokens.ids), np.nan)
                for query, logits in self._run(self._windows(tokens) if self.is_causal else self._masked(tokens)):
                    targets = torch.from_numpy(tokens.ids[query.tokens]).to(logits.device)
                    found[query.tokens] = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].cpu().numpy()
                yield _words(part, tokens, found)

    def _windows(self, tokens: Tokens) -> Iterator[_Query]:
        """Yield the windows of documents; each token is asked for in one of them, where its context is largest."""
        n = len(self._prefix)
        for start, end in zip(tokens.starts[:-1].tolist(), tokens.starts[1:].tolist(), strict=True):
            done = 0
            for first, last, keep, stop in lay_windows(end - start, self._capacity, self._capacity // 2):
                # Only what comes before a token counts: the earlier of two windows has more of it.
                if self.is_causal:
                    keep, stop, done = done, last, last
                kept = np.arange(keep, stop)
                read_at = kept - first + n - self.is_causal
                ids = np.concatenate([self._prefix, tokens.ids[start + first : start + last], self._suffix])
                if len(kept):
                    yield _Query(ids, read_at[read_at >= 0], (start + kept)[read_at >= 0])

    def _masked(self, tokens: Tokens) -> Iterator[_Query]:
        """Yield a window for each token, in which it and the later tokens of its word are masked."""
        assert self.mask_id is not None, "models of masked words have a mask"
        document, word = tokens.document, tokens.word
        for window in self._windows(tokens):
            last = len(window.ids) - len(self._suffix)
            for place, token in zip(window.read_at.tolist(), window.tokens.tolist(), strict=True):
                rest = slice(token, token + last - place)
                is_same = (document[rest] == document[token]) & (word[rest] == word[token])
                n_masked = len(is_same) if is_same.all() else int(is_same.argmin())
                ids = window.ids.copy()
                ids[place : place + n_masked] = self.mask_id
                yield _Query(ids, np.array([place]), np.array([token]))

    def _run(self, queries: Iterable[_Query]) -> Iterator[tuple[_Query, torch.Tensor]]:
        """Yield each query with the logits of what it asks for: float32 (m, n_ids)."""
        most = min(_MAX_TOKENS, _MAX_LOGITS // self._n_ids)
        # Padding changes the states of some models, such as MobileBERT: a batch has queries of one length.
        for length, alike in itertools.groupby(queries, lambda query: len(query.ids)):
            while batch := [*itertools.islice(alike, max(1, most // length))]:
                ids = torch.from_numpy(np.stack([query.ids for query in batch])).to(self.device)
                with torch.no_grad():
                    logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float()
                for query, found in zip(batch, logits, strict=True):
                    yield query, found[torch.from_numpy(query.read_at)]


def _words(documents: Sequence[Document], tokens: Tokens, log_probs: Float64Array) -> pl.DataFrame:
    """Return a row for each word: the sum over its tokens; null if one of them has no probability."""
    columns = ("document", "word", "char_start", "char_end")
    frame = pl.DataFrame({**{name: getattr(tokens, name) for name in columns}, "log_prob": log_probs})
    words = frame.group_by("document", word_index="word", maintain_order=True).agg(
        pl.col("char_start").min(),
        pl.col("char_end").max(),
        pl.len().cast(pl.Int32).alias("n_tokens"),
        pl.col("log_prob").sum().fill_nan(None),
    )
    places = words.select("document", "char_start", "char_end").rows()
    kind = pl.Int64 if isinstance(documents[0].doc_id, int) else pl.String
    return words.select(
        pl.Series("doc_id", [documents[number].doc_id for number, _, _ in places], kind),
        "word_index",
        pl.Series("word", [documents[number].text[start:end] for number, start, end in places], pl.String),
        *("char_start", "char_end", "n_tokens", "log_prob"),
    )
