"""CoNLL-U: the ten columns of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Sequence

from bertfeat.config import CorpusFormat, ExtractConfig
from bertfeat.corpus.content import Content, RowError
from bertfeat.corpus.sentences import (
    NEW_DOCUMENT,
    LineKind,
    NumberedLine,
    SentenceReader,
    column_names,
    sentence_content,
)
from bertfeat.records import InputFile

# https://universaldependencies.org/format.html; the word columns are those after ID and FORM.
WORD_COLUMNS = ("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_N_COLUMNS = 2 + len(WORD_COLUMNS)


class ConlluReader(SentenceReader):
    """Reads .conllu; words are the syntactic words, so multiword ranges (`3-4`) and empty nodes (`5.1`) are not."""

    format = CorpusFormat.CONLLU
    endings = (".conllu",)

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self._label = self.label_place(WORD_COLUMNS, 3)
        self.annotations = column_names(WORD_COLUMNS, self._label)

    def kind_of(self, line: bytes) -> LineKind:
        """Tell what a line is."""
        if not line.strip():
            return LineKind.BLANK
        if not line.startswith(b"#"):
            return LineKind.WORD
        return LineKind.BOUNDARY if line.startswith(NEW_DOCUMENT) else LineKind.COMMENT

    def content_of(self, lines: Sequence[NumberedLine]) -> Content:
        """Make the content of a sentence; `_` stays as it is given.

        Raises:
            RowError: A line has not ten columns, no id, or bytes that are no UTF-8.
        """
        table = []
        for number, line in lines:
            fields = self.fields_of(number, line, "\t")
            if len(fields) != _N_COLUMNS:
                raise RowError(f"line {number} has {len(fields)} columns where CoNLL-U has {_N_COLUMNS}, tab-separated")
            if fields[0].isdecimal():
                table.append(fields)
            elif not fields[0].replace("-", "").replace(".", "").isdecimal():
                raise RowError(f"line {number} starts with {fields[0]!r}, which is no word id")
        columns = [[fields[place] for fields in table] for place in range(2, _N_COLUMNS)]
        return sentence_content([fields[1] for fields in table], WORD_COLUMNS, columns, self._label)
