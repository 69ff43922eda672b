"""CoNLL columns and CoNLL-U: words, word columns, sentences, documents, and bad lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertfeat.errors import InputError
from bertfeat.records import Column, Document
from tests.support.corpus_files import bad_rows, documents, open_corpus, plan, read_all, write

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER

-DOCSTART- -X- -X- O
BRUSSELS NNP B-NP B-LOC
# # B-NP O
"""

INDEXED = """# newdoc id = weblog
# sent_id = weblog-1
# text = 1 of two
1\t1\tO\t-\t-
2\tof\tO\t-\t-
3\ttwo\tB-X\t-\tann

# newdoc id = other
# text = Short
1\tShort\tO
2\t\tO
"""

CONLLU = """# newdoc id = a
# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\tMood=Ind\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\tX=1
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tnull\t_\t_\t_\t_\t_\t_\t_\t_

# text = New York
1\tNew York\tNew York\tPROPN\t_\t_\t0\troot\t_\t_
"""


def test_conll_2003_with_spaces_between_columns(tmp_path: Path) -> None:
    first, second, third = documents(write(tmp_path, "a.conll", CONLL_2003))
    assert (first.text, first.words, first.row) == ("EU rejects", ("EU", "rejects"), 3)
    assert first.annotations == {
        "column_2": ["NNP", "VBZ"],
        "column_3": ["B-NP", "B-VP"],
        "column_4": ["B-ORG", "O"],
        "label": ["B-ORG", "O"],
    }
    assert first.group == second.group != third.group
    # A hash sign with all its tags is a word, and a border needs no blank line around it.
    assert third.words == ("BRUSSELS", "#")


def test_columns_that_count_words_and_may_lack_notes(tmp_path: Path) -> None:
    first, second = documents(write(tmp_path, "a.iob2", INDEXED), label_column="3", levels="word")
    assert first.words == ("1", "of", "two")
    assert first.annotations["label"] == ["O", "O", "B-X"]
    assert first.annotations["column_5"] == ["-", "-", "ann"]
    # Notes may be missing.
    assert (second.words, second.annotations["column_4"]) == (("Short", ""), [None, None])
    assert first.group != second.group
    (bad,) = bad_rows(write(tmp_path, "a.iob2", INDEXED))
    assert bad.reason == "line 10 has 3 columns where the file has 5"


def test_conllu_takes_the_syntactic_words(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", CONLLU)
    first, second = documents(path, label_column="upos", levels="word")
    assert first.words == ("vamos", "nos", "a", "el", "mar")
    assert first.annotations["label"] == first.annotations["upos"] == ["VERB", "PRON", "ADP", "DET", "NOUN"]
    assert first.annotations["misc"] == ["_", "X=1", "_", "_", "_"]
    assert (first.row, second.row, second.words, second.text) == (4, 14, ("New York",), "New York")
    assert first.group == second.group == "0:1"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\nb\n\nc", [("a", "b"), ("c",)]),
        ("\ufeffa\tX\r\nb\tY\r\n  \t \r\nc\tX\n\n\n", [("a", "b"), ("c",)]),
        ("a\u00a0b X\nc\u2028d Y\n", [("a\u00a0b", "c\u2028d")]),
        ("# comment\n#\tX\n# sentence of many words\na\tY\n", [("#", "a")]),
        ("-DOCSTART-\n\n-DOCSTART- O\n", []),
        ("", []),
    ],
)
def test_words_of_odd_files(tmp_path: Path, content: str, expected: list[tuple[str, ...]]) -> None:
    assert [row.words for row in documents(write(tmp_path, "a.conll", content))] == expected


def test_a_line_with_other_columns_makes_its_sentence_bad(tmp_path: Path) -> None:
    (bad,) = bad_rows(write(tmp_path, "a.conllu", "x" + "\t_" * 9 + "\n"))
    assert "line 1 starts with 'x', which is not a word id" in bad.reason
    path = write(tmp_path, "a.conll", "a\tX\nb\tY\n\nc\tX\nd\nÿ\tY\n\ne\tX\n")
    with pytest.raises(InputError, match=r"a\.conll:4: line 5 has 1 columns where the file has 2; .*quarantine"):
        read_all(path)
    first, bad, last = read_all(path, bad_rows="quarantine")
    assert bad.raw == "c\tX\nd\nÿ\tY\n".encode()
    assert (first.words, last.index, last.words) == (("a", "b"), 2, ("e",))


def test_label_columns_have_a_number_or_a_name_and_agree_over_files(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", CONLL_2003)
    assert documents(path, label_column="2", levels="word")[1].annotations["label"] == ["NNP"]
    assert documents(path, label_column="column_3", levels="word")[1].annotations["label"] == ["B-NP"]
    for wrong in ("upos", "5"):
        with pytest.raises(InputError, match=f"no word column '{wrong}'; columns are column_2, .* or 2 to 4; pass"):
            read_all(path, label_column=wrong, levels="word")
    two, three = write(tmp_path, "2.conll", "a\tX\n"), write(tmp_path, "3.conll", "a\tN\tX\n")
    with pytest.raises(InputError, match=r"3\.conll: word columns: column_2, column_3, label; in .*2\.conll: "):
        plan(open_corpus(two, three))


IDS = CONLLU + "\n# newdoc\n# sent_id=3 a\n1\tx\tx\tX\t_\t_\t0\troot\t_\t_\n\n1\ty\ty\tX\t_\t_\t0\troot\t_\t_\n"


def test_comments_of_conllu_are_columns_from_any_sentence_on(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", IDS)
    expected = [("1", "a"), (None, "a"), ("3 a", None), (None, None)]
    for cost in (1, 1 << 30):
        corpus = open_corpus(path, levels="sentence,word")
        shards = plan(corpus, cost)
        found = [row for shard in reversed(shards) for row in reversed(list(corpus.read(shard)))][::-1]
        assert [(row.kept["sent_id"], row.kept["newdoc_id"]) for row in found] == expected  # type: ignore[union-attr]
    assert corpus.schema().kept == (Column("sent_id", "string"), Column("newdoc_id", "string"))
    assert [column.name for column in corpus.schema().annotations][-3:] == ["label", "sent_id", "newdoc_id"]


def test_sent_id_is_an_id(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conllu", IDS)
    with pytest.raises(InputError, match=r"a\.conllu:14: the sentence has no sent_id; write '# sent_id = ...' before"):
        read_all(path, id_column="sent_id")
    rows = read_all(path, id_column="sent_id", bad_rows="quarantine")
    assert [row.doc_id for row in rows if isinstance(row, Document)] == ["1", "3 a"]
    with pytest.raises(InputError, match=r"a\.conllu: `id_column` 'other' must be sent_id"):
        read_all(path, id_column="other")
