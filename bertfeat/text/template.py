"""Templates: the special tokens that a tokenizer puts around one text and around two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.records import IntArray


@dataclass(frozen=True, slots=True)
class Specials:
    """A run of special tokens: their ids and their segment ids, both int64 (n,)."""

    ids: IntArray
    type_ids: IntArray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Template:
    """The special tokens before, between and after the texts, and the segment ids of the texts themselves.

    For one text, `middle` is empty. BERT: `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`; XLNet: `A <sep> <cls>`.
    """

    prefix: Specials
    middle: Specials
    suffix: Specials
    type_ids: tuple[int, int]

    @property
    def n_specials(self) -> int:
        """Special tokens in a window."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)


def read_templates(backend: BackendTokenizer) -> tuple[Template, Template]:
    """Find the templates for one text and for two of a tokenizer's own post-processor.

    A short text is encoded with special tokens, and each run of them is taken out. This works for every kind of
    post-processor (template, BERT, RoBERTa, sequences of them).

    Raises:
        ValueError: No text that was tried has tokens.
    """
    for text in ("a", "1", ".", *sorted(backend.get_vocab())[:2000]):
        if backend.encode(text, add_special_tokens=False).ids:
            return _template(backend.encode(text)), _template(backend.encode(text, text))
    raise ValueError("it turns no text into a token; its vocabulary is empty or broken")


def _template(encoding: Encoding) -> Template:
    sequence = encoding.sequence_ids
    in_text = [i for i, number in enumerate(sequence) if number is not None]
    first, last = in_text[0], in_text[-1]
    end_of_first = max(i for i in in_text if sequence[i] == 0) + 1
    start_of_second = next((i for i in in_text if sequence[i] == 1), end_of_first)
    ids, types = np.asarray(encoding.ids, dtype=np.int64), np.asarray(encoding.type_ids, dtype=np.int64)
    return Template(
        prefix=Specials(ids[:first], types[:first]),
        middle=Specials(ids[end_of_first:start_of_second], types[end_of_first:start_of_second]),
        suffix=Specials(ids[last + 1 :], types[last + 1 :]),
        type_ids=(int(types[first]), int(types[last])),
    )
