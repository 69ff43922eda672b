"""Entities of tag sequences, also of malformed ones, as conlleval.pl and, for BIOES, seqeval count them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.heads.sequences import flatten_labels

OUTSIDE = "O"

_Spans = set[tuple[str, int, int]]  # type, start and end of entities
# What BILOU, BMES and BMEWO write for tags of BIOES.
_SAME_AS = {"L": "E", "U": "S", "M": "I", "W": "S"}
_TYPED = re.compile(r"[BIESLUMW]-.+", re.DOTALL)
_BARE = re.compile(r"[BIESLUMW]")


class LabelScores(NamedTuple):
    """Precision, recall and F1 of one label, 0 where they are undefined; `support` is how often it occurs in truth."""

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def of(cls, n_right: int, n_true: int, n_predicted: int) -> LabelScores:
        """Return the scores of counts."""
        f1 = 2 * n_right / max(n_true + n_predicted, 1)
        return cls(n_right / max(n_predicted, 1), n_right / max(n_true, 1), f1, n_true)


@dataclass(frozen=True, slots=True, eq=False)
class EntityScores:
    """Scores of entities: precision, recall and F1 of all, as conlleval reports them; of each type; the mean F1."""

    precision: float
    recall: float
    f1: float
    macro_f1: float
    n_correct: int
    n_predicted: int
    n_true: int
    per_type: dict[str, LabelScores]

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values."""
        return {**asdict(self), "per_type": {name: scores._asdict() for name, scores in self.per_type.items()}}


def is_tag_scheme(labels: Iterable[object]) -> bool:
    """Return whether labels are chunk tags, such as O, B-PER and I-PER, and not sizes (S-32, L-34; S, M, L)."""
    # With a type, O or a tag with B or I must be among them; without types, both O and B or I.
    tags = set(labels)
    if not all(isinstance(tag, str) for tag in tags):
        return False
    inside = {str(tag) for tag in tags if tag != OUTSIDE}
    typed = {tag for tag in inside if _TYPED.fullmatch(tag)}
    if not all(_BARE.fullmatch(tag) for tag in inside - typed):
        return False
    has_outside = len(inside) < len(tags)
    has_begin = any(tag[0] in "BI" for tag in inside)
    return (has_outside or has_begin) if typed else (has_outside and has_begin)


def entity_scores(y_true: Any, y_pred: object, lengths: npt.ArrayLike | None = None) -> EntityScores:
    """Score predicted entities of lists of tags, or of flat tags (n_words,) with `lengths`, int (n_sequences,)."""
    sets = entity_sets(y_true, y_pred, lengths)
    right, predicted, true = (Counter(name for found in sets for name, _, _ in found[side]) for side in range(3))
    types = sorted(predicted.keys() | true.keys())
    per_type = {name: LabelScores.of(right[name], true[name], predicted[name]) for name in types}
    n_right, n_predicted, n_true = right.total(), predicted.total(), true.total()
    of_all = LabelScores.of(n_right, n_true, n_predicted)
    macro_f1 = sum(scores.f1 for scores in per_type.values()) / max(1, len(per_type))
    return EntityScores(*of_all[:3], macro_f1, n_right, n_predicted, n_true, per_type)


def entity_sets(y_true: Any, y_pred: object, lengths: npt.ArrayLike | None = None) -> list[tuple[_Spans, ...]]:
    """Return the entities of each sequence: those that are right, predicted and true; see `entity_scores`."""
    n_words = np.asarray([len(tags) for tags in y_true] if lengths is None else lengths, dtype=np.int64)
    ends = np.cumsum(n_words)[:-1]
    parts = zip(*(np.split(flatten_labels(y, n_words), ends) for y in (y_true, y_pred)), strict=True)
    found = ([set(entity_spans(tags.tolist())) for tags in sides] for sides in parts)
    return [(true & predicted, predicted, true) for true, predicted in found]


def entity_spans(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield type, start and end of the entities of one sequence of tags, in order of their ends."""
    before, start = OUTSIDE, 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        ended, starts = _border(before, tag)
        if ended is not None:
            # A tag such as X can end an entity that never started: it has the last start, as in seqeval.
            yield ended, start, place
        if starts:
            start = place
        before = tag


@lru_cache(1 << 16)
def _border(before: str, tag: str) -> tuple[str | None, bool]:
    """Return the type of the entity that ends between two tags, None for none, and whether one starts."""
    (last, last_type), (prefix, kind) = _parsed(before), _parsed(tag)
    # conlleval treats the full stop as O.
    ends = last in "ES" or (last in "BI" and prefix in "OBS") or (kind != last_type and last not in "O.")
    starts = prefix in "BS" or (prefix in "IE" and last in "OES") or (kind != last_type and prefix not in "O.")
    return last_type if ends else None, starts


@lru_cache(1 << 16)
def _parsed(tag: object) -> tuple[str, str]:
    """Return the prefix and the type of a tag."""
    if not isinstance(tag, str) or not tag:
        raise UserError(f"{tag!r} is not a tag; tags are texts such as O, B-PER and I-PER")
    prefix, kind = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
    return _SAME_AS.get(prefix, prefix) if tag[1:2] in ("", "-") else prefix, kind
