"""Documents in memory, made of texts, lists of words and pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bertfeat.corpus.content import clean
from bertfeat.errors import ConfigError
from bertfeat.records import Document

# A text, a list of words, or a pair of texts.
Text = str | list[str] | tuple[str, str]


def documents_of(texts: Iterable[str], *, what: str = "texts") -> list[Document]:
    """Make documents from texts, numbered from 0; invalid characters such as surrogates are replaced as in files."""
    found = _listed(texts, what)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise ConfigError(f"{what}[{number}] must be a string, not {text!r:.60}")
    return [_document(number, text) for number, text in enumerate(found)]


def documents_from(texts: str | Iterable[Text]) -> list[Document]:
    """Make documents, numbered from 0, from a text, or from texts, lists of words or pairs, all of one kind."""
    listed = [texts] if isinstance(texts, str) else _listed(texts, "texts")
    documents = [_document(number, item) for number, item in enumerate(listed)]
    kinds = [(document.words is not None, document.text_pair is not None) for document in documents]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ConfigError(
                f"texts[{number}] is not of the kind of texts[0]; encode texts, lists of words and pairs apart"
            )
    return documents


def _listed(texts: Iterable[object], what: str) -> list[object]:
    if isinstance(texts, str):
        raise ConfigError(f"{what} takes a list of texts, not one string; put the text into a list")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        # The items of a table are the names of its columns.
        raise ConfigError(f"{what} is a {type(texts).__name__}; pass its column of texts")
    return list(texts)


def _document(number: int, item: object) -> Document:
    parts = [item] if isinstance(item, str) else list(item) if isinstance(item, list | tuple) else [None]
    is_pair = isinstance(item, tuple)
    if not all(isinstance(part, str) for part in parts) or (is_pair and len(parts) != 2):
        raise ConfigError(
            f"texts[{number}] must be a string, a list of words, or a pair of texts as a tuple, not {item!r:.60}"
        )
    cleaned = [clean(str(part)) for part in parts]
    if isinstance(item, list):
        return Document(number, number, " ".join(cleaned), words=tuple(cleaned))
    return Document(number, number, cleaned[0], text_pair=cleaned[1] if is_pair else None)
