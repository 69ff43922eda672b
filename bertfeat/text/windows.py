"""Windows: the parts of documents that go through the encoder at once, laid end to end in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertfeat.ragged import ragged_arange, starts_of
from bertfeat.records import BoolArray, Document, IntArray
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens
from bertfeat.text.window_ranges import Ranges, WindowLimits, context_ranges, document_ranges


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a shard, ready to be packed; flat arrays over all their tokens, special ones included.

    `input_ids`, `type_ids`: int64 (n,). `source`: int64 (n,), the number of the token in the shard, or -1 for a special
    token. `kept`: bool (n,), whether the token is kept from this window. `starts`: int64 (n_windows + 1,).
    """

    ranges: Ranges
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
    lay = context_ranges if context else document_ranges
    ranges = lay(tokens, tokenizer, limits, documents)
    # A window is six ranges of the tokens of all texts, of all prompts and of both templates, end to end.
    templates = (tokenizer.single, tokenizer.pair)
    specials = [part for template in templates for part in (template.prefix, template.middle, template.suffix)]
    ids = np.concatenate([tokens.ids, tokens.prompt_ids, *(part.ids for part in specials)])
    n_texts, n_prompts = len(tokens.ids), len(tokens.prompt_ids)
    edges = n_texts + n_prompts + starts_of(np.array([len(part) for part in specials]))
    number = tokens.is_pair[ranges.document].astype(np.int64)
    prefix, middle, suffix = (np.stack([edges[i + 3 * number], edges[i + 1 + 3 * number]], axis=1) for i in range(3))
    prompt = n_texts + np.stack([tokens.prompt_starts[ranges.document + end] for end in (0, 1)], axis=1)
    bounds = np.stack([prefix, prompt, ranges.first, middle, ranges.second, suffix], axis=1)
    lengths = bounds[..., 1] - bounds[..., 0]
    n = lengths.reshape(-1)
    place = ragged_arange(bounds[..., 0].reshape(-1), n)
    # Narrow the ranges to what is kept; the tokens of a prompt are of no row.
    bounds[:, [0, 3]] *= ranges.is_start[:, None, None]
    bounds[:, 1] = 0
    bounds[:, 2], bounds[:, 4] = ranges.keep_first, ranges.keep_second
    bounds[:, 5] *= ranges.is_end[:, None]
    kept = place >= np.repeat(bounds[..., 0], n)
    kept &= place < np.repeat(bounds[..., 1], n)
    types = np.array([[0, first, first, 0, second, 0] for first, second in (t.type_ids for t in templates)])
    type_ids = np.repeat(types[number], n)
    is_special = place >= n_texts + n_prompts
    type_ids[is_special] = np.concatenate([part.type_ids for part in specials])[place[is_special] - n_texts - n_prompts]
    return Windows(
        ranges=ranges,
        input_ids=ids[place],
        type_ids=type_ids,
        source=np.where(place < n_texts, place, -1),
        kept=kept,
        starts=starts_of(lengths.sum(axis=1)),
    )
