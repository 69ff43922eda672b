"""Entities of tag sequences: where they start and end by conlleval's rules, and how many of them were found.

The rules are those of conlleval.pl (CoNLL-2000 and 2003), with the single-word tag S and the closing tag E of BIOES as
seqeval has them: any sequence of tags has entities, a malformed one too (I-PER after O starts an entity). They serve
BIO (IOB2), IOB1, IOE and BIOES alike, as what a tag means follows from its neighbours. L, U, M and W, which BILOU, BMES
and BMEWO write for E, S, I and S, count as these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.heads.matrices import flatten_labels
from bertfeat.records import IntArray

OUTSIDE = "O"

_SAME_AS = {"L": "E", "U": "S", "M": "I", "W": "S"}
_TYPED = re.compile(r"[BIESLUMW]-.+", re.DOTALL)
_BARE = re.compile(r"[BIESLUMW]")


class Entity(NamedTuple):
    """An entity: its type and the words from `start` to `end - 1`."""

    type: str
    start: int
    end: int


class LabelScores(NamedTuple):
    """Precision, recall and F1 of one label, 0 where they are undefined; `support` is how often it occurs in truth."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Entities that were found with type and both borders (`tp`), predicted (`n_pred`), and there (`n_true`).

    All are int64 (n,), one a type or one a sequence.
    """

    tp: IntArray
    n_pred: IntArray
    n_true: IntArray

    def scores(self) -> list[LabelScores]:
        """Return the scores of each."""
        rows = zip(self.tp.tolist(), self.n_pred.tolist(), self.n_true.tolist(), strict=True)
        return [LabelScores(*precision_recall_f1(*row), row[2]) for row in rows]


@dataclass(frozen=True, slots=True, eq=False)
class EntityCounts:
    """How many entities were found, by type (sorted, those of truth or prediction) and by sequence."""

    types: tuple[str, ...]
    by_type: Matches
    by_sequence: Matches

    def scores(self) -> EntityScores:
        """Return the scores that follow from the counts."""
        tp, n_pred, n_true = (int(n.sum()) for n in (self.by_type.tp, self.by_type.n_pred, self.by_type.n_true))
        per_type = dict(zip(self.types, self.by_type.scores(), strict=True))
        macro_f1 = sum(scores.f1 for scores in per_type.values()) / max(1, len(per_type))
        precision, recall, f1 = precision_recall_f1(tp, n_pred, n_true)
        return EntityScores(precision, recall, f1, macro_f1, tp, n_pred, n_true, per_type)


@dataclass(frozen=True, slots=True, eq=False)
class EntityScores:
    """Scores of entities: precision, recall and F1 of all, as conlleval reports them; of each type; their mean F1."""

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
    """Return whether labels are chunk tags, such as O, B-PER and I-PER, and not parts of speech or other classes.

    All of them are O or a prefix (B, I, E, S, L, U, M, W) with a type, and one at least is not O. A prefix of this kind
    alone proves little (S-32 and L-34 are sizes), so that O, or a tag with B or I, must be among them. Prefixes without
    a type are tags only beside O and together with B or I: O, B, I; but not S, M, L.
    """
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


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sequence of tags, in order of their ends.

    Raises:
        UserError: A tag is no text, or empty.

    Examples:
        >>> entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        [Entity(type='PER', start=0, end=2), Entity(type='LOC', start=3, end=4), Entity(type='LOC', start=4, end=5)]
    """
    return list(starmap(Entity, _spans(tags)))


def entity_counts(y_true: object, y_pred: object, lengths: npt.ArrayLike | None = None) -> EntityCounts:
    """Count the entities of truth and prediction, and those that both have.

    Args:
        y_true: Tags, one list a sequence, or flat (n_words,) where `lengths` are given.
        y_pred: Likewise.
        lengths: int (n_sequences,): the words of each sequence; no entity crosses from one into the next.

    Raises:
        UserError: The numbers of words differ, or a tag is no text or empty.
    """
    n_words = _lengths_of(y_true) if lengths is None else np.asarray(lengths, dtype=np.int64)
    truth, predicted = (_by_sequence(flatten_labels(y, n_words), n_words) for y in (y_true, y_pred))
    sides = [[a & b for a, b in zip(truth, predicted, strict=True)], predicted, truth]
    counted = [Counter(name for found in side for name, _, _ in found) for side in sides]
    types = sorted(counted[1].keys() | counted[2].keys())
    return EntityCounts(
        tuple(types),
        Matches(*(np.array([counts[name] for name in types], dtype=np.int64) for counts in counted)),
        Matches(*(np.array([len(found) for found in side], dtype=np.int64) for side in sides)),
    )


def entity_scores(y_true: object, y_pred: object, lengths: npt.ArrayLike | None = None) -> EntityScores:
    """Score predicted entities; right is one with the type and both borders of a true one. See `entity_counts`."""
    return entity_counts(y_true, y_pred, lengths).scores()


def precision_recall_f1(tp: float, n_pred: float, n_true: float) -> tuple[float, float, float]:
    """Return precision, recall and F1 of counts, each 0 where it is undefined."""
    return (
        tp / n_pred if n_pred else 0.0,
        tp / n_true if n_true else 0.0,
        2 * tp / (n_pred + n_true) if n_pred + n_true else 0.0,
    )


def _by_sequence(tags: npt.NDArray[Any], lengths: IntArray) -> list[set[tuple[str, int, int]]]:
    """Return type, start and end of the entities of sequences of tags that lie end to end."""
    ends, flat = np.cumsum(lengths).tolist(), tags.tolist()
    return [set(_spans(flat[end - n : end])) for n, end in zip(lengths.tolist(), ends, strict=True)]


def _spans(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield type, start and end of the entities of a sequence."""
    before, start = OUTSIDE, 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        ended, starts = _border(before, tag)
        if ended is not None:
            # A tag such as X can end an entity that never started: the last start holds, as in seqeval.
            yield ended, start, place
        if starts:
            start = place
        before = tag


@lru_cache(1 << 16)
def _border(before: str, tag: str) -> tuple[str | None, bool]:
    """Return the type of the entity that ends between two tags, None for none, and whether one starts."""
    (last, last_type), (prefix, kind) = _parsed(before), _parsed(tag)
    # The full stop lies outside of entities too: conlleval takes it for O.
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


def _lengths_of(sequences: object) -> IntArray:
    if not isinstance(sequences, Sequence) or any(isinstance(t, str) or not hasattr(t, "__len__") for t in sequences):
        raise UserError("tags are no list of sequences; pass lengths along with tags that lie end to end")
    return np.array([len(tags) for tags in sequences], dtype=np.int64)
