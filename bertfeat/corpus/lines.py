"""Reader of plain text: one document per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Row, Start, TextReader, decode
from bertfeat.corpus.linestreams import strip_line_end

_PAIR_SEPARATOR = " ||| "


class LineReader(TextReader):
    r"""Reads .txt: each line is a document, empty lines too; text after the last `\n` is one if not empty."""

    format = CorpusFormat.TXT
    endings = (".txt",)
    has_pairs = True

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per line, from a line on."""
        return self.line_rows(start, lambda raw: {"text": decode(strip_line_end(raw))})

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the text of a line, or two."""
        if not config.text_pairs:
            return Content(values["text"])
        first, separator, second = values["text"].partition(_PAIR_SEPARATOR)
        return Content(first, second if separator else None)
