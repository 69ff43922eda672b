"""Relevance judgements of a retrieval set: TREC's four columns, BEIR's table with a header, or JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bertfeat.errors import InputError

_QUERY_KEYS = ("query_id", "query-id", "qid")
_DOCUMENT_KEYS = ("doc_id", "corpus-id", "corpus_id", "docid")
_GRADE_KEYS = ("score", "relevance", "rel", "label")

Qrels = dict[str, dict[str, int]]


def read_qrels(path: str | Path) -> Qrels:
    """Return the grade of each judged document, by query; ids are texts.

    A line is `query iteration document grade` (TREC), `query document grade` (BEIR, whose first line is a header), or a
    JSON object with `query_id`, `doc_id` and `score` (or the names of BEIR).

    Raises:
        InputError: The file is missing or empty; or a line is not a judgement, or contradicts one before.
    """
    qrels: Qrels = {}
    for number, line in _lines(Path(path)):
        judged = _json(line) if line.startswith("{") else _fields(line)
        if judged is None:
            if number == 1 and not qrels and _is_header(line):
                continue
            raise InputError(
                f"{line!r:.60} is not a judgement; write 'query 0 document grade', 'query document grade', or "
                '{"query_id": ..., "doc_id": ..., "score": ...}',
                path=str(path),
                row=number,
            )
        query, document, grade = judged
        before = qrels.setdefault(query, {}).setdefault(document, grade)
        if before != grade:
            raise InputError(
                f"document {document!r} has grade {grade} for query {query!r}, and {before} in a line before; keep one",
                path=str(path),
                row=number,
            )
    if not qrels:
        raise InputError("holds no judgements", path=str(path))
    return qrels


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({(error.strerror or str(error)).lower()})", path=str(path)) from error
    for number, raw in enumerate(content.split(b"\n"), 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise InputError("is not UTF-8; convert the file", path=str(path), row=number) from None
        if line:
            yield number, line


def _fields(line: str) -> tuple[str, str, int] | None:
    fields = line.split("\t") if "\t" in line else line.split()
    if len(fields) == 4:
        fields = [fields[0], fields[2], fields[3]]
    if len(fields) != 3:
        return None
    grade = _grade(fields[2])
    return None if grade is None else (fields[0].strip(), fields[1].strip(), grade)


def _json(line: str) -> tuple[str, str, int] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    query, document, grade = (
        next((values[key] for key in keys if key in values), None)
        for keys in (_QUERY_KEYS, _DOCUMENT_KEYS, _GRADE_KEYS)
    )
    number = _grade(grade)
    return None if query is None or document is None or number is None else (str(query), str(document), number)


def _grade(value: object) -> int | None:
    """Return a grade as an integer; None if the value is not a whole number."""
    try:
        number = float(str(value))
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _is_header(line: str) -> bool:
    names = line.replace("\t", " ").split()
    return bool(names) and names[0].lower() in (*_QUERY_KEYS, "query", "topic")
