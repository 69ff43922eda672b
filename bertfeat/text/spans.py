"""Spans: stretches of characters of documents, found by a rule or given, and the positions that each is pooled from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bertfeat.config import CHUNK
from bertfeat.errors import ConfigError, require
from bertfeat.ragged import begins_run, overlapping, ragged_arange, run_of
from bertfeat.records import Document, IntArray, SpanRows
from bertfeat.text.alignment import Takes, Units, ends_of_runs
from bertfeat.text.tokens import Tokens
from bertfeat.text.windows import Windows

# A function from a text to the bounds of its spans, in order.
Find = Callable[[str], Iterable[tuple[int, int]]]
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_WORDS = "words:"


def find_spans(documents: Sequence[Document], tokens: Tokens | None, spans: str | None, chunk: str | None) -> SpanRows:
    """Find the spans of documents by the pattern of `spans`, or cut them by `chunk`; for some, `tokens` are needed."""
    if needs_tokens(chunk):
        assert tokens is not None
        rule = _rule(chunk)
        return _token_chunks(tokens, int(rule["size"]), int(rule["overlap"] or 0))
    find = _finder(spans, chunk)
    found_in = [list(find(document.text)) for document in documents]
    bounds = np.array([pair for pairs in found_in for pair in pairs], np.int32).reshape(-1, 2)
    document = run_of(np.array([len(pairs) for pairs in found_in], np.int64))
    return SpanRows(document, bounds[:, 0], bounds[:, 1])


def needs_tokens(chunk: str | None) -> bool:
    """Return whether chunks are cut between tokens, so that these must be known first."""
    return chunk is not None and _rule(chunk)["size"] is not None


def _rule(chunk: str | None) -> re.Match[str]:
    rule = CHUNK.fullmatch(chunk or "")
    assert rule is not None
    return rule


def _finder(spans: str | None, chunk: str | None) -> Find:
    if spans is not None:
        pattern = _pattern(spans)
        return lambda text: (found.span() for found in pattern.finditer(text) if found[0])
    if chunk == "paragraphs":
        return lambda text: _between(text, _BLANK_LINES.finditer(text))
    return _sentence_finder(_rule(chunk)["language"] or "en")


def _pattern(spans: str) -> re.Pattern[str]:
    """Return the pattern of `words:A,B`, whole words in upper or lower case, or of a regular expression."""
    if not spans.startswith(_WORDS):
        try:
            return re.compile(spans)
        except re.error as error:
            raise ConfigError(f"`spans` {spans!r} is neither a file nor a regular expression ({error})") from None
    words = [word.strip() for word in spans.removeprefix(_WORDS).split(",") if word.strip()]
    if not words:
        raise ConfigError(f"`spans` {spans!r} names no word; write words:bank,banks")
    # The longest first, because the first that fits is taken.
    either = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE)


def _between(text: str, separators: Iterable[re.Match[str]]) -> Iterator[tuple[int, int]]:
    start = 0
    for separator in separators:
        yield from _stripped(text, start, separator.start())
        start = separator.end()
    yield from _stripped(text, start, len(text))


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds without whitespace around; nothing if that is all there is."""
    piece = text[start:end]
    if stripped := piece.strip():
        start += len(piece) - len(piece.lstrip())
        yield start, start + len(stripped)


def _sentence_finder(language: str) -> Find:
    require("sentencex", what="chunks of sentences need")
    from sentencex import get_sentence_boundaries

    def find(text: str) -> Iterator[tuple[int, int]]:
        for each in get_sentence_boundaries(language, text):
            yield from _stripped(text, each["start_index"], each["end_index"])

    return find


def _token_chunks(tokens: Tokens, size: int, overlap: int) -> SpanRows:
    """Cut documents into chunks of up to `size` tokens that end between words, if no word is longer than a chunk."""
    is_first = begins_run(tokens.document, tokens.word)
    chunks: list[tuple[int, int, int]] = []
    for document, (begin, end) in enumerate(zip(tokens.starts[:-1].tolist(), tokens.starts[1:].tolist(), strict=True)):
        firsts = np.append(np.flatnonzero(is_first[begin:end]) + begin, end)
        while begin < end:
            stop = min(begin + size, end)
            if stop < end and (at := int(firsts[np.searchsorted(firsts, stop, "right") - 1])) > begin:
                stop = at
            chunks.append((document, begin, stop))
            if stop == end:
                break
            back = int(firsts[np.searchsorted(firsts, stop - overlap, "right") - 1])
            begin = back if begin < back else stop
    table = np.array(chunks, np.int64).reshape(-1, 3)
    return SpanRows(table[:, 0], tokens.char_start[table[:, 1]], tokens.char_end[table[:, 2] - 1])


def tokens_of_spans(spans: SpanRows, tokens: Tokens) -> tuple[IntArray, IntArray]:
    """Return the first token that overlaps each span, and the end of those that do: two arrays (n_rows,)."""
    # Keys ascend over all documents.
    own, other = spans.document << 32, tokens.document << 32
    return overlapping(own + spans.char_start, own + spans.char_end, other + tokens.char_start, other + tokens.char_end)


def span_units(spans: SpanRows, tokens: Tokens, windows: Windows, takes: Takes) -> Units:
    """Return the units of the span level: of each token that overlaps a span, the state that the token level keeps."""
    first, last = tokens_of_spans(spans, tokens)
    flat = np.flatnonzero(windows.kept & (windows.source >= 0))
    place_of = np.full(len(tokens.ids), -1, np.int64)
    place_of[windows.source[flat]] = flat
    row, place = run_of(last - first), place_of[ragged_arange(first, last - first)]
    row, place = row[place >= 0], place[place >= 0]
    if takes is not Takes.ALL:
        ends = ends_of_runs(row, takes)
        row, place = row[ends], place[ends]
    window = run_of(windows.lengths)[place]
    # The kept tokens of a window lie side by side.
    begins = np.flatnonzero(begins_run(row, window))
    n = np.diff(np.append(begins, len(row)))
    order = begins[(by_window := np.argsort(window[begins], kind="stable"))]
    row, n, window, place = row[order], n[by_window], window[order], place[order]
    return Units.build(windows, len(spans.document), row, window, n, ragged_arange(place - windows.starts[window], n))


def chunk_documents(spans: SpanRows, documents: Sequence[Document]) -> list[Document]:
    """Return each span as a document of its own."""
    owners = (documents[number] for number in spans.document.tolist())
    return [
        Document(owner.index, owner.doc_id, text, path=owner.path, row=owner.row)
        for owner, text in zip(owners, spans.texts(documents), strict=True)
    ]
