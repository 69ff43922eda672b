"""Relevance judgements of a retrieval set: TREC's four columns, BEIR's table with a header, or JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertfeat.errors import InputError

# Names of the query, the document and the grade in JSON.
_KEYS = (
    ("query_id", "query-id", "qid"),
    ("doc_id", "corpus-id", "corpus_id", "docid"),
    ("score", "relevance", "rel", "label"),
)

Qrels = dict[str, dict[str, int]]


def read_qrels(path: str | Path) -> Qrels:
    """Return the grade of each judged document, by query; ids are texts.

    A line is `query iteration document grade` (TREC), `query document grade` (BEIR, whose first line is a header), or a
    JSON object with `query_id`, `doc_id` and `score` (or the names of BEIR).

    Raises:
        InputError: The file is missing or empty; or a line is not a judgement, or contradicts one before.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"cannot be read ({(error.strerror or str(error)).lower()})", path=str(path)) from error
    except UnicodeDecodeError:
        raise InputError("is not UTF-8; convert the file", path=str(path)) from None
    qrels: Qrels = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        try:
            query, document, grade = _judgement(line)
        except ValueError:
            if number == 1 and line.split()[0].lower() in (*_KEYS[0], "query", "topic"):
                continue
            raise InputError(
                f"{line!r:.60} is not a judgement; write 'query 0 document grade', 'query document grade', or "
                '{"query_id": ..., "doc_id": ..., "score": ...}',
                path=str(path),
                row=number,
            ) from None
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


def _judgement(line: str) -> tuple[str, str, int]:
    """Return the query, the document and the grade of a line; raise a ValueError if it is none."""
    if line.startswith("{"):
        values: dict[str, Any] = json.loads(line)
        query, document, grade = (next((values[key] for key in keys if key in values), None) for keys in _KEYS)
    else:
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]
        query, *_, document, grade = fields if len(fields) in (3, 4) else []
    number = float(str(grade))
    if query is None or document is None or not number.is_integer():
        raise ValueError
    return str(query), str(document), int(number)
