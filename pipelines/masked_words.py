"""Words that a language model expects, and how likely it finds those of a text.

python -m bertfeat.pipelines.masked_words --model MODEL "Paris is the [MASK] of France." -k 5
python -m bertfeat.pipelines.masked_words --model MODEL --corpus sentences.txt -o scores
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import polars as pl
import torch

import bertfeat
from bertfeat.devices import resolve_device
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import CheckpointError, InputError
from bertfeat.pipelines._recipe import FILE, OUTPUT, Result, read_documents, recipe, refuse_given, write
from bertfeat.pipelines._training import has_head, open_task_model
from bertfeat.plots.tables import text_table
from bertfeat.progress import reporting
from bertfeat.records import Document, Float64Array, IntArray
from bertfeat.text.spans import lay_windows
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens

# What people write for a mask, whatever the token of the model is.
MASK = "[MASK]"
# Limits of a batch: tokens, and logits (256 MB of float32).
_MAX_TOKENS = 4096
_MAX_LOGITS = 64 << 20
_DOCUMENTS_AT_ONCE = 64
# Models whose tokens see earlier tokens only; others, such as XLNet, would see the word that they predict.
_CAUSAL = ("gpt2", "openai-gpt")


@recipe(extraction="text_column id_column limit device")
@click.argument("texts", nargs=-1)
@click.option("--model", required=True, help="Model with a trained head for words: package, folder, or hub id.")
@click.option("-k", type=click.IntRange(min=1), default=5, show_default=True, help="Words for each mask.")
@click.option("--layers", default="-1", show_default=True, help="Layers of the states at the masks, with --output.")
@click.option("--corpus", type=FILE, help="Instead of texts: a file to score.")
@click.option("-o", "--output", type=OUTPUT, help="Folder of the results.")
def main(texts: tuple[str, ...], model: str, corpus: str | None, output: Path | None, **reading: Any) -> Result:
    """Guess the words of masks in TEXTS, or score the words of a corpus."""
    if bool(texts) == (corpus is not None):
        raise click.UsageError("pass texts with a mask, or --corpus, and not both")
    device, k, layers = (reading.pop(name) for name in ("device", "k", "layers"))
    if corpus is None:
        refuse_given(reading, "is for --corpus")
        return _fill(texts, LanguageModel(model, device), k, layers, output)
    if output is None:
        raise click.UsageError("--corpus needs --output, the folder of the scores")
    documents = read_documents(corpus, **reading)
    if not documents:
        raise click.UsageError(f"{corpus}: has no documents")
    language = LanguageModel(model, device, given_words=documents[0].words is not None)
    return _score(language, documents, output)


def _fill(texts: Sequence[str], language: LanguageModel, k: int, layers: str, output: Path | None) -> Result:
    """Find the words for each mask; keep them with the states at the masks in masks.parquet."""
    words = language.fill(texts, k)
    shown = words.drop("char_end")
    if output is not None:
        frame = pl.DataFrame({"text": [language.with_mask(text) for text in texts]})
        how: Any = {"model": language.name, "levels": "token", "layers": layers, "device": str(language.device)}
        store = bertfeat.extract(frame, output / "features", overwrite=True, **how)
        states = store.polars("token").filter(pl.col("token_id") == language.mask_id)
        ranked = words.group_by("doc_id", "char_start", maintain_order=True).agg("word", "probability")
        kept = ["doc_id", "char_start", "char_end", *(feature.name for feature in store.features("token"))]
        joined = states.select(kept).join(ranked, on=["doc_id", "char_start"], maintain_order="left")
        write(output / "masks.parquet", joined)
    return Result({"words": words.to_dicts()}, text_table(shown.columns, shown.rows()))


def _score(language: LanguageModel, documents: Sequence[Any], output: Path) -> Result:
    """Write a row for each word and for each document, and sum them up."""
    words = pl.concat(language.score_words(documents)).with_columns(surprisal=-pl.col("log_prob") / math.log(2))
    sums = words.group_by("doc_id", maintain_order=True).agg(
        pl.len().alias("n_words"), *(pl.col(name).sum() for name in ("n_tokens", "log_prob", "surprisal"))
    )
    known = words.drop_nulls("log_prob")
    if not len(known):
        raise click.UsageError("the corpus has no words that can be scored; pass texts of several words")
    write(output / "words.parquet", words)
    write(output / "documents.parquet", sums)
    log_prob = float(known["log_prob"].sum())
    values = {
        "n_documents": len(documents),
        "n_words": len(words),
        "n_words_without_score": len(words) - len(known),
        "log_prob": log_prob,
        "surprisal_per_word": -log_prob / math.log(2) / len(known),
        "perplexity_per_token": math.exp(-log_prob / int(known["n_tokens"].sum())),
    }
    score = "log-likelihood" if language.is_causal else "pseudo-log-likelihood"
    rows = [(name.replace("_", " "), value) for name, value in values.items()]
    return Result({"score": score, **values}, text_table([score, ""], rows))


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


if __name__ == "__main__":
    main()
