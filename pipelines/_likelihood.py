"""Probabilities of words by a language model: what it expects at a mask, and how likely each word of a text is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from bertfeat.cli.options import refuse_given
from bertfeat.devices import resolve_device
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import CheckpointError, InputError
from bertfeat.pipelines._models import TaskModel, has_head, open_task_model
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
# Models whose tokens see earlier tokens only. transformers has heads for next words for others too (XLNet), but run
# like this they would see the word that they predict.
_CAUSAL = ("gpt2", "openai-gpt")


def refuse_ignored(*, texts: bool, out: bool) -> None:
    """Refuse options of the command that the other use of it reads.

    Raises:
        UsageError: Such an option is given.
    """
    if not texts:
        refuse_given(("k", "layers"), "is for texts with a mask, not for --corpus")
        return
    refuse_given(("text_column", "id_column", "limit"), "is for --corpus")
    if not out:
        refuse_given(("layers",), "is for --out, which keeps the states at the masks")


@dataclass(frozen=True, slots=True)
class _Query:
    """A window, and the places in it whose tokens are asked for.

    `ids` (n,) are the window's tokens, special tokens included, masks included; `places` (m,) are in the window, the
    token there is predicted from the logits at `read_at` (m,); `tokens` (m,) are their numbers in `Tokens`.
    """

    ids: IntArray
    places: IntArray
    read_at: IntArray
    tokens: IntArray


class LanguageModel:
    """A model with a trained head for masked words, or for next words.

    Args:
        name: Installed model package, folder, or hub id.
        device: Where to compute: auto, cpu, mps, or cuda:N.
        given_words: Texts are lists of words.

    Attributes:
        name: The name that was given.
        is_causal: Whether it predicts next words; a model that can predict masked words does that.

    Raises:
        CheckpointError: There is no such model, it has no trained head for words, or no mask token for its head.
    """

    def __init__(self, name: str, device: str, *, given_words: bool = False) -> None:
        self.name = name
        checkpoint = open_checkpoint(name)
        self.is_causal = not has_head(checkpoint, "masked")
        if self.is_causal and checkpoint.family.model_type not in _CAUSAL:
            raise CheckpointError(
                f"{name}: {checkpoint.family.model_type} predicts neither masked nor next words here; use another model"
            )
        self._opened = open_task_model(name, "causal" if self.is_causal else "masked", trained=True)
        self.device = resolve_device(device)[0]
        self._model = self._opened.model.eval().to(self.device)
        self.tokenizer = Tokenizer.load(checkpoint.folder, given_words=given_words, n_ids=checkpoint.n_ids)
        self._prefix, self._suffix = self._specials(self._opened)
        self.mask_id: int | None = self._opened.tokenizer.mask_token_id
        if self.mask_id is None and not self.is_causal:
            raise CheckpointError(f"{name}: its tokenizer has no mask token; use another model")
        self._capacity = checkpoint.max_length - len(self._prefix) - len(self._suffix)

    def fill(self, texts: Sequence[str], k: int) -> pl.DataFrame:
        """Return the most probable tokens of each mask in some texts.

        Returns:
            Columns `doc_id` (the text's number), `char_start`, `char_end` (of the mask in `with_masks(text)`), `rank`,
            `word`, `probability`; k rows for each mask.

        Raises:
            InputError: A text has no mask.
        """
        documents = [Document(index=i, doc_id=i, text=self.with_masks(text)) for i, text in enumerate(texts)]
        tokens = self.tokenizer.encode(documents)
        is_mask = tokens.ids == self.mask_id
        for number in range(len(texts)):
            if not is_mask[tokens.starts[number] : tokens.starts[number + 1]].any():
                raise InputError(f"text {number + 1} has no mask; write {MASK} where the word is to be guessed")
        queries = [query for query in self._windows(tokens) if len(query.places)]
        rows = []
        for query, logits in self._run(queries):
            for token, scores in zip(query.tokens.tolist(), logits.softmax(-1), strict=True):
                if is_mask[token]:
                    best = scores.topk(min(k, len(scores)))
                    place = int(tokens.document[token]), int(tokens.char_start[token]), int(tokens.char_end[token])
                    for rank, (value, found) in enumerate(zip(*map(torch.Tensor.tolist, best), strict=True), 1):
                        rows.append((*place, rank, self._opened.tokenizer.decode([found]).strip(), value))
        names = ["doc_id", "char_start", "char_end", "rank", "word", "probability"]
        return pl.DataFrame(rows, names, orient="row").sort("doc_id", "char_start", "rank")

    def with_masks(self, text: str) -> str:
        """Return a text with the model's own mask in place of `[MASK]`.

        Raises:
            CheckpointError: The model has no mask.
        """
        if self.is_causal:
            raise CheckpointError(f"{self._opened.checkpoint.name}: has no mask; choose a model that fills masks")
        return text.replace(MASK, self._opened.tokenizer.mask_token)

    def score_words(self, documents: Sequence[Document]) -> Iterator[pl.DataFrame]:
        """Yield the words of documents, as the word level has them, with their log probability.

        For a model of next words it is that of the word after all words before it in the window. For a model of masked
        words it is the pseudo-log-likelihood of Salazar et al. (2020, arXiv 1910.14659) in the form of Kauf and
        Ivanova (2023, arXiv 2305.10588), within-word left-to-right: each token is predicted with itself and the later
        tokens of its word masked. It is null where nothing comes before a word and the model has no first token.

        Yields:
            Frames with the columns `doc_id`, `word_index`, `word`, `char_start`, `char_end`, `n_tokens` and `log_prob`,
            a natural logarithm.
        """
        with reporting(None) as progress:
            for start in range(0, len(documents), _DOCUMENTS_AT_ONCE):
                progress.stage("scoring documents", start, len(documents))
                part = documents[start : start + _DOCUMENTS_AT_ONCE]
                tokens = self.tokenizer.encode(part)
                yield _words(part, tokens, self._log_probs(tokens))

    def _log_probs(self, tokens: Tokens) -> Float64Array:
        """Return the log probability of each token; NaN where nothing comes before it."""
        found = np.full(len(tokens.ids), np.nan)
        for query, logits in self._run(self._windows(tokens) if self.is_causal else self._masked(tokens)):
            targets = torch.from_numpy(tokens.ids[query.tokens]).to(logits.device)
            found[query.tokens] = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].cpu().numpy()
        return found

    def _specials(self, opened: TaskModel) -> tuple[IntArray, IntArray]:
        """Return the special tokens around a text; a model of next words begins with its first token, if it has one."""
        template = self.tokenizer.single
        if self.is_causal and not len(template.prefix) and opened.model.config.bos_token_id is not None:
            return np.array([opened.model.config.bos_token_id]), template.suffix.ids
        return template.prefix.ids, template.suffix.ids

    def _windows(self, tokens: Tokens) -> Iterator[_Query]:
        """Yield the windows of documents; each token is asked for in one of them, where its context is largest.

        The context of a model of next words is what comes before a token: the earlier of two windows has more of it.
        """
        n = len(self._prefix)
        for start, end in zip(tokens.starts[:-1].tolist(), tokens.starts[1:].tolist(), strict=True):
            if start == end:
                continue
            done = 0
            for first, last, keep, stop in lay_windows(end - start, self._capacity, self._capacity // 2):
                if self.is_causal:
                    keep, stop, done = done, last, last
                inside = tokens.ids[start + first : start + last]
                kept = np.arange(keep, stop)
                places = kept - first + n
                read_at = places - 1 if self.is_causal else places
                asked = read_at >= 0
                ids = np.concatenate([self._prefix, inside, self._suffix])
                yield _Query(ids, places[asked], read_at[asked], (start + kept)[asked])

    def _masked(self, tokens: Tokens) -> Iterator[_Query]:
        """Yield a window for each token, in which it and the later tokens of its word are masked."""
        assert self.mask_id is not None, "a model without a mask is refused"
        n = len(self._suffix)
        for window in self._windows(tokens):
            for place, token in zip(window.places.tolist(), window.tokens.tolist(), strict=True):
                ids = window.ids.copy()
                last = place
                while last < len(ids) - n and _same_word(tokens, token, token + last - place):
                    ids[last] = self.mask_id
                    last += 1
                yield _Query(ids, *(np.array([number]) for number in (place, place, token)))

    def _run(self, queries: Iterator[_Query] | Sequence[_Query]) -> Iterator[tuple[_Query, torch.Tensor]]:
        """Yield each query with the logits of what it asks for: float32 (m, n_ids)."""
        waiting: list[_Query] = []
        checkpoint = self._opened.checkpoint
        for query in queries:
            length = len(query.ids)
            most = min(_MAX_TOKENS, max(length, _MAX_LOGITS // checkpoint.n_ids))
            # Padding changes the states of some models, such as MobileBERT.
            if waiting and (length != len(waiting[0].ids) or length * (len(waiting) + 1) > most):
                yield from self._batch(waiting)
                waiting = []
            waiting.append(query)
        if waiting:
            yield from self._batch(waiting)

    @torch.no_grad()
    def _batch(self, queries: Sequence[_Query]) -> list[tuple[_Query, torch.Tensor]]:
        ids = torch.from_numpy(np.stack([query.ids for query in queries])).to(self.device)
        logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float()
        return [(query, logits[row, torch.from_numpy(query.read_at)]) for row, query in enumerate(queries)]


def _same_word(tokens: Tokens, one: int, other: int) -> bool:
    return bool(tokens.word[one] == tokens.word[other] and other < tokens.starts[tokens.document[one] + 1])


def _words(documents: Sequence[Document], tokens: Tokens, log_probs: Float64Array) -> pl.DataFrame:
    """Return a row for each word: the sum over its tokens; null if one of them has no probability."""
    frame = pl.DataFrame(
        {
            "document": tokens.document,
            "word_index": tokens.word,
            "char_start": tokens.char_start,
            "char_end": tokens.char_end,
            "log_prob": log_probs,
        }
    )
    words = frame.group_by("document", "word_index", maintain_order=True).agg(
        pl.col("char_start").min(), pl.col("char_end").max(), pl.len().alias("n_tokens"), pl.col("log_prob").sum()
    )
    places = zip(*(words[name].to_list() for name in ("document", "char_start", "char_end")), strict=True)
    surfaces = [documents[number].text[start:end] for number, start, end in places]
    kind = pl.Int64 if isinstance(documents[0].doc_id, int) else pl.String
    ids = [documents[number].doc_id for number in words["document"].to_list()]
    named = words.with_columns(pl.Series("doc_id", ids, kind), pl.Series("word", surfaces, pl.String))
    return named.select(
        *("doc_id", "word_index", "word", "char_start", "char_end"),
        pl.col("n_tokens").cast(pl.Int32),
        pl.col("log_prob").fill_nan(None),
    )
