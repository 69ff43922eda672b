"""Entities of tag sequences: where they start and end by conlleval's rules, and how many of them were found.

The rules are those of conlleval.pl (CoNLL-2000 and 2003), with the single-word tag S and the closing tag E of BIOES as
seqeval has them: any sequence of tags has entities, a malformed one too (I-PER after O starts an entity). They serve
BIO (IOB2), IOB1, IOE and BIOES alike, as what a tag means follows from its neighbours. L, U, M and W, which BILOU, BMES
and BMEWO write for E, S, I and S, count as these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.heads.matrices import flatten_labels
from bertfeat.records import BoolArray, IntArray

OUTSIDE = "O"

# Places of prefixes in the tables below; every prefix that the rules do not name is the last one.
_PREFIXES = "O.BIES"
_OTHER = len(_PREFIXES)
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

    Example:
        >>> entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        [Entity(type='PER', start=0, end=2), Entity(type='LOC', start=3, end=4), Entity(type='LOC', start=4, end=5)]
    """
    vocabulary = _Vocabulary()
    spans = _find(vocabulary, vocabulary.codes(list(tags)), np.array([len(tags)], dtype=np.int64))
    columns = (spans.types.tolist(), spans.starts.tolist(), spans.ends.tolist())
    return [Entity(vocabulary.types[code], start, end) for code, start, end in zip(*columns, strict=True)]


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
    vocabulary = _Vocabulary()
    truth, predicted = (
        _find(vocabulary, vocabulary.codes(flatten_labels(y, n_words).tolist()), n_words) for y in (y_true, y_pred)
    )
    matched = truth.only(_matches(truth, predicted))
    n_types, n_sequences = len(vocabulary.types), len(n_words)
    counted = (matched, predicted, truth)
    by_type = [np.bincount(spans.types, minlength=n_types).astype(np.int64) for spans in counted]
    by_sequence = [np.bincount(spans.sequences, minlength=n_sequences).astype(np.int64) for spans in counted]
    occurring = [code for code in range(n_types) if by_type[1][code] or by_type[2][code]]
    occurring.sort(key=vocabulary.types.__getitem__)
    return EntityCounts(
        tuple(vocabulary.types[code] for code in occurring),
        Matches(*(n[occurring] for n in by_type)),
        Matches(*by_sequence),
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


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Entities in order of their ends; starts and ends count words from the start of the sequence."""

    sequences: IntArray
    types: IntArray
    starts: IntArray
    ends: IntArray

    def only(self, chosen: IntArray) -> _Spans:
        return _Spans(self.sequences[chosen], self.types[chosen], self.starts[chosen], self.ends[chosen])


class _Vocabulary:
    """Numbers the tags as they come; of each, its prefix and its type. Number 0 is O."""

    def __init__(self) -> None:
        self.prefixes: list[int] = []
        self.type_codes: list[int] = []
        self.types: list[str] = []
        self._tags: dict[str, int] = {}
        self._type_code_of: dict[str, int] = {}
        self.codes([OUTSIDE])

    def codes(self, tags: list[Any]) -> IntArray:
        """Return the number of each tag."""
        for tag in set(tags).difference(self._tags):
            self._add(tag)
        return np.fromiter((self._tags[tag] for tag in tags), np.int64, len(tags))

    def _add(self, tag: object) -> None:
        if not isinstance(tag, str) or not tag:
            raise UserError(f"{tag!r} is no tag; tags are texts such as O, B-PER and I-PER")
        prefix, kind = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
        if tag[1:2] in ("", "-"):
            prefix = _SAME_AS.get(prefix, prefix)
        if kind not in self._type_code_of:
            self._type_code_of[kind] = len(self.types)
            self.types.append(kind)
        self._tags[tag] = len(self._tags)
        self.prefixes.append(_PREFIXES.index(prefix) if prefix in _PREFIXES else _OTHER)
        self.type_codes.append(self._type_code_of[kind])


def _rules() -> tuple[BoolArray, BoolArray]:
    """Return bool (7, 7) for a prefix and the next: an entity ends between them, one starts, though the type stays."""
    ends, starts = np.zeros((_OTHER + 1, _OTHER + 1), np.bool_), np.zeros((_OTHER + 1, _OTHER + 1), np.bool_)
    outside, begin, inside, end, single = (_PREFIXES.index(prefix) for prefix in "OBIES")
    ends[[end, single], :] = True
    ends[np.ix_([begin, inside], [outside, begin, single])] = True
    starts[:, [begin, single]] = True
    starts[np.ix_([outside, end, single], [inside, end])] = True
    return ends, starts


_ENDS, _STARTS = _rules()
# What lies outside of entities: O, and the full stop, which conlleval takes for it.
_IS_OUTSIDE = np.array([prefix in "O." for prefix in _PREFIXES] + [False])


def _find(vocabulary: _Vocabulary, codes: IntArray, lengths: IntArray) -> _Spans:
    """Find the entities of sequences of tags, given as numbers end to end."""
    n_sequences = len(lengths)
    # An O stands after each sequence, so that every entity ends within its own.
    firsts = np.cumsum(lengths + 1) - (lengths + 1)
    tags = np.zeros(len(codes) + n_sequences, np.int64)
    tags[np.arange(len(codes)) + np.repeat(np.arange(n_sequences), lengths)] = codes
    before = np.zeros_like(tags)
    before[1:] = tags[:-1]

    prefix_of, type_of = np.array(vocabulary.prefixes), np.array(vocabulary.type_codes)
    prefixes, prefixes_before, types = prefix_of[tags], prefix_of[before], type_of[tags]
    is_other_type = types != type_of[before]
    is_end = _ENDS[prefixes_before, prefixes] | (is_other_type & ~_IS_OUTSIDE[prefixes_before])
    is_start = _STARTS[prefixes_before, prefixes] | (is_other_type & ~_IS_OUTSIDE[prefixes])

    ends = np.flatnonzero(is_end)  # never 0: O is before the first
    sequences = np.searchsorted(firsts, ends - 1, side="right") - 1
    last_starts = np.maximum.accumulate(np.where(is_start, np.arange(len(tags)), 0))
    # Tags that are none (a bare X) can end an entity that never started; it starts with the sequence, as in seqeval.
    starts = np.maximum(last_starts[ends - 1], firsts[sequences])
    return _Spans(sequences, types[ends - 1], starts - firsts[sequences], ends - firsts[sequences])


def _matches(truth: _Spans, predicted: _Spans) -> IntArray:
    """Return which true entities were predicted with the same type and borders, as places in `truth`."""
    # At most one entity ends at a word, so that its sequence and end name it.
    width = max((int(spans.ends.max()) for spans in (truth, predicted) if len(spans.ends)), default=0) + 1
    true_keys, predicted_keys = (spans.sequences * width + spans.ends for spans in (truth, predicted))
    _, mine, others = np.intersect1d(true_keys, predicted_keys, assume_unique=True, return_indices=True)
    same = (truth.types[mine] == predicted.types[others]) & (truth.starts[mine] == predicted.starts[others])
    return np.asarray(mine[same], dtype=np.int64)


def _lengths_of(sequences: object) -> IntArray:
    if not isinstance(sequences, Sequence) or any(isinstance(t, str) or not hasattr(t, "__len__") for t in sequences):
        raise UserError("tags are no list of sequences; pass lengths along with tags that lie end to end")
    return np.array([len(tags) for tags in sequences], dtype=np.int64)
