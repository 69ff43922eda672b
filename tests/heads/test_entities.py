"""Entities of tag sequences against seqeval, on any tags, and against what conlleval.pl counts."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

from bertfeat.heads.entities import entity_scores, entity_spans, is_tag_scheme

BIOES = ["O", "B", "I", "E", "S"] + [f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "A-B")]
# Texts that are not tags: seqeval takes the first character for the prefix and warns.
ODD = [*BIOES, ".", "X", "X-PER", "O-PER", "B-", "I--", "NOUN", "IPER", "b-PER", "-", "B_PER", "2-LOC"]
# What conlleval.pl (2004-01-26) prints: true phrases, found ones, correct ones; a slash ends a sentence.
CONLLEVAL = [
    ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 2, 2, 2),
    ("B-PER I-PER I-PER O", "B-PER I-PER O O", 1, 1, 0),
    ("I-PER I-PER O", "B-PER I-LOC O", 1, 2, 0),
    ("O I-PER I-LOC O", "O B-PER B-LOC O", 2, 2, 2),
    ("B-PER B-PER", "B-PER I-PER", 2, 1, 0),
    ("O O O", "O I-PER O", 0, 1, 0),
    ("B-PER I-PER / I-PER", "B-PER I-PER / B-PER", 2, 2, 2),
    ("B-A-B I-A-C O", "B-A-B I-A-B O", 2, 1, 0),
    ("O I I O", "O B I O", 1, 1, 1),
    ("I-A E-A I-A E-A", "I-A I-A I-A E-A", 2, 1, 0),
    ("E-A E-A O", "B-A B-A O", 2, 2, 2),
    ("B-PER I-PER O I-ORG I-ORG B-ORG", "B-PER I-PER I-PER O I-ORG I-ORG", 3, 2, 0),
]
TAGS = ["O B-PER I-PER", "O O B-corporation I-creative-work", "O U-PER", "O B I", "O B-GENE M-GENE E-GENE W-GENE"]
OTHER_LABELS = [
    "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X _",
    "$ '' , -LRB- -RRB- . : CC CD DT EX FW IN JJ LS MD NN NNP PRP PRP$ RB RP SYM TO UH VB WP$ `` HYPH",
    "acl acl:relcl advmod case cc:preconj det iobj nmod:poss nsubj:pass obl root",
    "O",
    "S-32 M-34 L-36",
    "O B-PER NOUN",
]


def seqeval_entities(tags: list[str]) -> list[tuple[str, int, int]]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*seems not to be NE tag", UserWarning)
        return [(kind, start, end + 1) for kind, start, end in get_entities(list(tags))]


def with_prefixes(tags: list[str], **renamed: str) -> list[str]:
    return [renamed.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def sentences(alphabet: list[str]) -> st.SearchStrategy[list[list[tuple[str, str]]]]:
    pair = st.tuples(st.sampled_from(alphabet), st.sampled_from(alphabet))
    same = st.sampled_from(alphabet).map(lambda tag: (tag, tag))
    return st.lists(st.lists(pair | same, max_size=8), min_size=1, max_size=6)


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.sampled_from(BIOES), max_size=12)
    | st.lists(st.sampled_from(ODD), max_size=8)
    | st.lists(st.text("OBIES.-_xN\u00e9 ", min_size=1, max_size=4), max_size=8)
)
def test_entities_are_seqevals(tags: list[str]) -> None:
    assert list(entity_spans(tags)) == seqeval_entities(tags)


@settings(max_examples=120, deadline=None)
@given(sentences(BIOES))
def test_scores_are_seqevals(pairs: list[list[tuple[str, str]]]) -> None:
    y_true, y_pred = ([[pair[side] for pair in sentence] for sentence in pairs] for side in (0, 1))
    found = entity_scores(y_true, y_pred)
    micro = precision_recall_fscore_support(y_true, y_pred, average="micro", zero_division=0)
    assert (found.precision, found.recall, found.f1, found.n_true) == pytest.approx(micro)
    per_type = precision_recall_fscore_support(y_true, y_pred, average=None, zero_division=0)
    assert len(found.per_type) == len(per_type[0])
    assert list(found.per_type) == sorted(found.per_type)
    for scores, *theirs in zip(found.per_type.values(), *per_type, strict=True):
        assert tuple(scores) == pytest.approx(tuple(theirs))
    if found.per_type:
        macro = precision_recall_fscore_support(y_true, y_pred, average="macro", zero_division=0)
        assert found.macro_f1 == pytest.approx(macro[2])
    else:
        assert found.macro_f1 == 0


@pytest.mark.parametrize(("y_true", "y_pred", "n_true", "n_predicted", "n_correct"), CONLLEVAL)
def test_counts_are_those_of_conlleval(y_true: str, y_pred: str, n_true: int, n_predicted: int, n_correct: int) -> None:
    nested = ([sentence.split() for sentence in tags.split("/")] for tags in (y_true, y_pred))
    found = entity_scores(*nested)
    assert (found.n_true, found.n_predicted, found.n_correct) == (n_true, n_predicted, n_correct)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(["O", *(f"{p}-{kind}" for p in "BILU" for kind in ("PER", "LOC"))]), max_size=10))
def test_bilou_and_bmewo_count_as_bioes(tags: list[str]) -> None:
    as_bioes = with_prefixes(tags, L="E", U="S")
    assert list(entity_spans(tags)) == seqeval_entities(as_bioes)
    assert list(entity_spans(with_prefixes(as_bioes, I="M", S="W"))) == seqeval_entities(as_bioes)


def test_tag_schemes_are_recognized() -> None:
    for labels in TAGS:
        assert is_tag_scheme(labels.split()), labels
    for other in [*(labels.split() for labels in OTHER_LABELS), [0, 1], ["O", None, "B-PER"]]:
        assert not is_tag_scheme(other), other
