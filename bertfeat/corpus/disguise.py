"""Recognition of CoNLL in files whose endings name another format."""

from __future__ import annotations

import re

from bertfeat.choices import CorpusFormat

SNIFFED_BYTES = 1 << 16
_LEAST_LINES = 3
_LEAST_SHARE = 0.8
_MAX_COLUMNS = 20
# https://universaldependencies.org/u/pos/
_UPOS = frozenset(b"ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split())
_SPAN_TAG = re.compile(rb"[BIESLU]-\S+")


def conll_format(head: bytes) -> CorpusFormat | None:
    """Return the CoNLL format of the first bytes of a file, or None if they are something else.

    CoNLL has empty lines between sentences, and at least four in five of the other lines hold a word and its tag: `O`,
    the tag of a span (`B-PER`), or in the last column a tag of Universal Dependencies. Not all tags are `O`.
    """
    n_words = n_tagged = n_ten = n_breaks = 0
    tags: set[bytes] = set()
    for line in head.splitlines() if len(head) < SNIFFED_BYTES else head.splitlines()[:-1]:
        fields = line.split()
        if not fields:
            n_breaks += n_words > 0
        elif not line.startswith((b"#", b"-DOCSTART-")):
            n_words += 1
            n_ten += line.count(b"\t") == 9
            tag = _tag_of(fields)
            if tag is not None:
                n_tagged += 1
                tags.add(tag)
    if n_words < _LEAST_LINES or not n_breaks or n_tagged < _LEAST_SHARE * n_words or tags <= {b"O"}:
        return None
    return CorpusFormat.CONLLU if n_ten >= _LEAST_SHARE * n_words else CorpusFormat.CONLL


def _tag_of(fields: list[bytes]) -> bytes | None:
    """Return the tag of a word line; None if it has none."""
    if not 2 <= len(fields) <= _MAX_COLUMNS:
        return None
    for field in reversed(fields[1:]):
        if field == b"O" or _SPAN_TAG.fullmatch(field):
            return field
    places = (-1, 3) if len(fields) == 10 else (-1,)
    return next((fields[place] for place in places if fields[place] in _UPOS), None)
