"""Windows: the parts of documents that go through the encoder at once, laid end to end in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertfeat.ragged import ragged_arange, starts_of
from bertfeat.records import BoolArray, Document, IntArray
from bertfeat.text.context import context_spans
from bertfeat.text.spans import Spans, WindowLimits, document_spans
from bertfeat.text.template import Specials, Template
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a shard, ready to be packed; flat arrays over all their tokens, special ones included.

    `input_ids`, `type_ids`: int64 (n,). `source`: int64 (n,), the number of the token in the shard, or -1 for a special
    token. `kept`: bool (n,), whether the token is kept from this window. `starts`: int64 (n_windows + 1,).
    """

    spans: Spans
    input_ids: IntArray
    type_ids: IntArray
    source: IntArray
    kept: BoolArray
    starts: IntArray

    @property
    def lengths(self) -> IntArray:
        """Tokens of each window: int64 (n_windows,)."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


def cut_windows(
    tokens: Tokens, tokenizer: Tokenizer, limits: WindowLimits, documents: Sequence[Document], *, context: bool = False
) -> Windows:
    """Cut documents into windows with their special tokens: each alone or, for document context, with its neighbours.

    Raises:
        InputError: A document is too long and `limits.on_overlong` is `error`.
    """
    lay = context_spans if context else document_spans
    spans = lay(tokens, tokenizer, limits, documents)
    is_pair = tokens.is_pair[spans.document]
    n_tokens = np.diff(spans.first, axis=1)[:, 0] + np.diff(spans.second, axis=1)[:, 0]
    n_tokens += tokens.n_prompt[spans.document]
    starts = starts_of(n_tokens + np.where(is_pair, tokenizer.pair.n_specials, tokenizer.single.n_specials))
    windows = Windows(
        spans=spans,
        input_ids=np.zeros(starts[-1], dtype=np.int64),
        type_ids=np.zeros(starts[-1], dtype=np.int64),
        source=np.full(starts[-1], -1, dtype=np.int64),
        kept=np.zeros(starts[-1], dtype=np.bool_),
        starts=starts,
    )
    for pair in (False, True):
        chosen = np.flatnonzero(is_pair == pair)
        if len(chosen):
            _fill(windows, chosen, tokens, tokenizer.template(pair=pair))
    return windows


def _fill(windows: Windows, chosen: IntArray, tokens: Tokens, template: Template) -> None:
    spans, at = windows.spans, windows.starts[:-1][chosen]
    at = _fill_specials(windows, at, template.prefix, spans.is_start[chosen])
    at = _fill_prompt(windows, at, spans.document[chosen], tokens, template.type_ids[0])
    at = _fill_text(windows, at, spans.first[chosen], spans.keep_first[chosen], tokens, template.type_ids[0])
    at = _fill_specials(windows, at, template.middle, spans.is_start[chosen])
    at = _fill_text(windows, at, spans.second[chosen], spans.keep_second[chosen], tokens, template.type_ids[1])
    _fill_specials(windows, at, template.suffix, spans.is_end[chosen])


def _fill_specials(windows: Windows, at: IntArray, specials: Specials, kept: BoolArray) -> IntArray:
    for offset in range(len(specials)):
        windows.input_ids[at + offset] = specials.ids[offset]
        windows.type_ids[at + offset] = specials.type_ids[offset]
        windows.kept[at + offset] = kept
    return at + len(specials)


def _fill_prompt(windows: Windows, at: IntArray, document: IntArray, tokens: Tokens, type_id: int) -> IntArray:
    """Put the prompt of each window's document there; its tokens are of no row, so that they are not kept."""
    lengths = tokens.n_prompt[document]
    target = ragged_arange(at, lengths)
    windows.input_ids[target] = tokens.prompt_ids[ragged_arange(tokens.prompt_starts[document], lengths)]
    windows.type_ids[target] = type_id
    return at + lengths


def _fill_text(
    windows: Windows, at: IntArray, text: IntArray, keep: IntArray, tokens: Tokens, type_id: int
) -> IntArray:
    lengths = text[:, 1] - text[:, 0]
    target, source = ragged_arange(at, lengths), ragged_arange(text[:, 0], lengths)
    windows.input_ids[target] = tokens.ids[source]
    windows.type_ids[target] = type_id
    windows.source[target] = source
    windows.kept[target] = (source >= np.repeat(keep[:, 0], lengths)) & (source < np.repeat(keep[:, 1], lengths))
    return at + lengths
