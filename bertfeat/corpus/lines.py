"""Plain text: one document a line."""

from __future__ import annotations

from collections.abc import Iterator

from bertfeat.config import CorpusFormat
from bertfeat.corpus.content import Content, Row, RowError, Start, TextReader, decode, fault
from bertfeat.corpus.linestreams import strip_line_end

PAIR_SEPARATOR = " ||| "


class LineReader(TextReader):
    r"""Reads .txt: a line is a document, an empty or blank one too; what follows the last `\n` is one if not empty."""

    format = CorpusFormat.TXT
    endings = (".txt",)
    has_pairs = True

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield a row a line, from a line on."""
        split = self.config.text_pairs
        for at, number, raw in self.lines(start):
            try:
                text = decode(strip_line_end(raw))
            except RowError as error:
                yield Row(at, number, None, fault(error, raw))
                continue
            yield Row(at, number, None, _pair(text) if split else Content(text))


def _pair(text: str) -> Content:
    """Split at the first separator; a line without one has no second text."""
    first, separator, second = text.partition(PAIR_SEPARATOR)
    return Content(first, second if separator else None)
