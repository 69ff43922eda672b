"""Masked words, as in BERT's pre-training: the tokens of a window that a model has to guess.

Devlin et al. 2019, section 3.1 and appendix A.1 (arXiv 1810.04805); whole words as in google-research/bert.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertfeat.errors import CheckpointError
from bertfeat.pipelines._models import NO_LABEL, TaskModel
from bertfeat.records import BoolArray, IntArray

_MASKED_SHARE = 0.15
# Of the chosen tokens, this share is replaced by the mask token, one more tenth by a random token; the rest is kept.
_REPLACED, _RANDOM = 0.8, 0.1


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids as masking needs them.

    Attributes:
        mask_id: The id of the mask token.
        padding_id: The id that fills a window up.
        is_special: Whether an id is a special token, the unknown word included; those are never masked (n_ids,).
        ordinary: The ids that a token may be replaced by (n,).
    """

    mask_id: int
    padding_id: int
    is_special: BoolArray
    ordinary: IntArray

    @classmethod
    def of(cls, opened: TaskModel, specials: IntArray) -> Vocabulary:
        """Return the vocabulary of a model whose windows have these special tokens."""
        tokenizer, n_ids = opened.tokenizer, opened.checkpoint.n_ids
        known = np.array(sorted(tokenizer.get_vocab().values()))
        if known[-1] >= n_ids:
            raise CheckpointError(
                f"{opened.checkpoint.name}: its tokenizer has the id {known[-1]}, but the model has {n_ids} "
                "embeddings; use another model"
            )
        is_special = np.zeros(n_ids, dtype=bool)
        is_special[[*specials, *tokenizer.all_special_ids]] = True
        return cls(tokenizer.mask_token_id, tokenizer.pad_token_id or 0, is_special, known[~is_special[known]])


def mask(
    ids: IntArray, words: IntArray, vocabulary: Vocabulary, random: np.random.Generator, *, whole_words: bool
) -> tuple[IntArray, IntArray]:
    """Mask the tokens of one window; return its ids as the model sees them, and the labels.

    15 % of the tokens that are not special are chosen, at least one. Of them, 80 % become the mask token, 10 % a random
    token, and 10 % stay.

    Args:
        ids: The token ids (n_tokens,).
        words: The number of each token's word (n_tokens,).
        vocabulary: The vocabulary.
        random: Chooses the tokens.
        whole_words: Choose words, in random order, as long as their tokens are at most 15 % together.
    """
    candidates = np.flatnonzero(~vocabulary.is_special[ids])
    n_chosen = max(1, round(_MASKED_SHARE * len(candidates)))
    if whole_words:
        chosen = candidates[_whole_words(words[candidates], n_chosen, random)]
    else:
        chosen = random.permutation(candidates)[:n_chosen]
    seen, labels = ids.copy(), np.full_like(ids, NO_LABEL)
    labels[chosen] = ids[chosen]
    kind = random.random(len(chosen))
    seen[chosen[kind < _REPLACED]] = vocabulary.mask_id
    drawn = chosen[(kind >= _REPLACED) & (kind < _REPLACED + _RANDOM)]
    seen[drawn] = random.choice(vocabulary.ordinary, len(drawn))
    return seen, labels


def _whole_words(words: IntArray, most: int, random: np.random.Generator) -> BoolArray:
    """Choose words with at most that many tokens together, or one word; return which tokens (n_tokens,) are chosen."""
    _, of_token, sizes = np.unique(words, return_inverse=True, return_counts=True)
    is_chosen = np.zeros(len(sizes), dtype=bool)
    left = most
    for word in random.permutation(len(sizes)).tolist():
        if sizes[word] <= left or left == most:
            is_chosen[word] = True
            left -= sizes[word]
        if left <= 0:
            break
    return is_chosen[of_token]
