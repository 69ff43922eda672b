"""Pieces of long texts: a text is cut so that its pieces have exactly the tokens of the whole text.

A cut comes before a space or line end that follows a letter, a digit or a plain punctuation mark. The normalizers and
pre-tokenizers listed below do not look across such a place, so that both sides have the same tokens alone as together.
The lists hold the components of the supported families. A tokenizer with any other component gets a text whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from tokenizers import Tokenizer as BackendTokenizer

from bertfeat.errors import InputError
from bertfeat.records import Document

PIECE_CHARS = 1 << 16
# The longest piece of text for a tokenizer, which takes up to 600 bytes for each character.
MAX_UNCUT_CHARS = 1 << 20

# Latin, Greek, Cyrillic, ... Hangul. U+0D4E and some letters beyond U+D7A3 form one grapheme with the next character.
_PUNCTUATION = ".,;:!?。，！？"
_LEFT = rf"(?:[^\W_\u0d4e\ud7a4-\U0010ffff]|[{_PUNCTUATION}])"
_CJK = "[\u4e00-\u9fff]"
_SPACES = re.compile(r"[^\s▁][\s▁]")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLIT_REGEXES = {_GPT2, _LLAMA3, _QWEN2}
# These match whitespace only, and a cut does not divide a run of whitespace.
_REPLACE_REGEXES = {" {2,}", r"\s{2,}|[\n\r\t]"}
_LOCAL_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "StripAccents"}
_CHAINS = {
    ("BertPreTokenizer",),
    ("ByteLevel",),
    ("Metaspace",),
    ("Split", "ByteLevel"),
    ("Whitespace",),
    ("WhitespaceSplit",),
    ("WhitespaceSplit", "Metaspace"),
}

Node = dict[str, Any]


class Piece(NamedTuple):
    """A text of a document, or a part of one.

    `document` is the document's number, `text_number` 0 for its first text and 1 for its second. `start` is the place
    of the piece in the text. `words` are its words if words are given, and `first_word` counts those before them.
    `is_cut` tells that its tokens are counted and not kept.
    """

    document: int
    text_number: int
    start: int
    text: str
    words: list[str] | None = None
    first_word: int = 0
    is_cut: bool = False

    @property
    def is_first(self) -> bool:
        """Whether the document begins with this piece."""
        return not (self.start or self.text_number)


class Cutter:
    """Cuts long texts for one tokenizer.

    Args:
        backend: The tokenizer.
        given_words: Documents are lists of words, which every tokenizer handles one by one.
    """

    def __init__(self, backend: BackendTokenizer, *, given_words: bool) -> None:
        self._backend = backend
        self._given_words = given_words
        self._keeps = lru_cache(maxsize=4096)(self._stays_a_letter)

    def pieces(self, documents: Sequence[Document], max_chars: int | None = None) -> Iterator[Piece]:
        """Yield the texts of documents in order, long ones in pieces; running text is cut after `max_chars`.

        Raises:
            InputError: A stretch of more than `MAX_UNCUT_CHARS` characters has no place for a cut.
        """
        for number, document in enumerate(documents):
            if self._given_words:
                yield from self._word_pieces(number, document)
                continue
            for text_number, text in enumerate((document.text, document.text_pair)):
                if text is None:
                    continue
                kept = text[:max_chars]
                if len(text) <= PIECE_CHARS and kept == text:
                    yield Piece(number, text_number, 0, text)
                    continue
                start = 0
                while start < len(text):
                    is_cut = start >= len(kept)
                    end = self._piece_end(text if is_cut else kept, start, document)
                    yield Piece(number, text_number, start, text[start:end], is_cut=is_cut)
                    start = end

    @property
    def has_unknown_regex(self) -> bool:
        """Whether the tokenizer has a regular expression that no supported family has."""
        patterns = [node.get("pattern", {}) for node in (*self._normalizers, *self._pre_tokenizers)]
        known = _SPLIT_REGEXES | _REPLACE_REGEXES
        return any("Regex" in pattern and pattern["Regex"] not in known for pattern in patterns)

    def _word_pieces(self, number: int, document: Document) -> Iterator[Piece]:
        words = list(document.words or ())
        if len(document.text) <= PIECE_CHARS:
            yield Piece(number, 0, 0, document.text, words)
            return
        first = start = end = 0
        for at, word in enumerate(words):
            if len(word) > MAX_UNCUT_CHARS:
                raise _too_long(document, start, "a word")
            if end - start > PIECE_CHARS:
                yield Piece(number, 0, start, document.text[start:end], words[first:at], first)
                first, start = at, end
            end += len(word) + 1
        yield Piece(number, 0, start, document.text[start:], words[first:], first)

    def _piece_end(self, text: str, start: int, document: Document) -> int:
        at, limit = start + PIECE_CHARS, start + MAX_UNCUT_CHARS
        if len(text) <= at:
            return len(text)
        if (end := next(self._cuts(text, at, limit), None)) is not None:
            return end
        if len(text) <= limit:
            return len(text)
        before = list(self._cuts(text, start, at))
        if not before:
            raise _too_long(document, start, "a stretch of text without the end of a word")
        return before[-1]

    def _cuts(self, text: str, start: int, end: int) -> Iterator[int]:
        """Yield the places for a cut after the characters from `start` to `end`."""
        if self._places is not None:
            # The search needs the character after the last place as well.
            for found in self._places.finditer(text, start, end + 1):
                if self._keeps(text[found.end() - 1]):
                    yield found.end()

    @cached_property
    def _normalizers(self) -> list[Node]:
        return _flattened(self._backend.normalizer, "normalizers")

    @cached_property
    def _pre_tokenizers(self) -> list[Node]:
        return _flattened(self._backend.pre_tokenizer, "pretokenizers")

    @cached_property
    def _places(self) -> re.Pattern[str] | None:
        """A pattern that ends at a place for a cut; None if there is no such place for this tokenizer."""
        if not all(map(_is_local, self._normalizers)) or not _splits_at_spaces(self._pre_tokenizers):
            return None
        if not all(map(self._stands_apart, self._added)):
            return None
        spaces = "".join(space for space in " \n" if self._splits_at(space))
        places = [f"{_LEFT}(?=[{spaces}])"] if spaces else []
        if self._parts_cjk:
            places.append(f"{_CJK}(?={_CJK})")
        return re.compile("|".join(places)) if places else None

    @cached_property
    def _added(self) -> list[Any]:
        return list(self._backend.get_added_tokens_decoder().values())

    @cached_property
    def _parts_cjk(self) -> bool:
        """Whether the normalizer makes each Chinese character a word by spaces around it, and does nothing else."""
        only = [node["type"] for node in (*self._normalizers, *self._pre_tokenizers)]
        if only != ["BertNormalizer", "BertPreTokenizer"] or not self._normalizers[0]["handle_chinese_chars"]:
            return False
        # An added token of spaces would match the spaces of two neighbours.
        return not any(re.search(rf"\s|{_CJK}", form) for token in self._added for form in self._forms(token))

    def _normalize(self, text: str) -> str:
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _splits_at(self, space: str) -> bool:
        """Return whether a word ends before `space`, which then belongs to the next word or to none."""
        first, made = self._pre_tokenizers[0], self._normalize(f"a{space}b")
        if first["type"] in ("ByteLevel", "Split"):
            is_safe = space == " " or (first["type"] == "ByteLevel" and not first["add_prefix_space"])
            return is_safe and made == f"a{space}b"
        if first["type"] == "Metaspace":
            return made in ("a b", f"a{first['replacement']}b")
        return made in ("a b", f"a{space}b")

    def _stays_a_letter(self, char: str) -> bool:
        """Return whether the normalizer leaves a character as one that a cut may follow."""
        made = self._normalize(char)
        if self._parts_cjk:
            made = made.strip(" ")
        return made != "" and all(c.isalnum() or c in _PUNCTUATION for c in made)

    def _forms(self, token: Any) -> set[str]:
        return {token.content, self._normalize(token.content)}

    def _stands_apart(self, token: Any) -> bool:
        """Return whether an added token contains no cut, and takes no whitespace from beyond one."""
        forms = self._forms(token)
        if any(_SPACES.search(form) for form in forms):
            return False
        return not (token.rstrip and any(form[-1:].isalnum() or form[-1:] in _PUNCTUATION for form in forms))


def document_error(document: Document, reason: str, kind: type[InputError] = InputError) -> InputError:
    """Return the error of a document, with its id and place."""
    return kind(f"document {document.doc_id!r} {reason}", path=document.path or None, row=document.row or None)


def _too_long(document: Document, start: int, what: str) -> InputError:
    reason = f"has {what} of more than {MAX_UNCUT_CHARS:,} characters (from character {start:,} on)"
    return document_error(document, f"{reason}, the limit for one call of the tokenizer; cut the document up")


def _flattened(component: Any, key: str) -> list[Node]:
    """Return the parts of a normalizer or pre-tokenizer, with those of sequences in their order."""

    def parts(node: Node) -> list[Node]:
        return [part for inner in node[key] for part in parts(inner)] if key in node else [node]

    return [] if component is None else parts(json.loads(component.__getstate__()))


def _is_local(normalizer: Node) -> bool:
    """Return whether a normalizer looks only at single characters, or at runs that no cut divides."""
    if normalizer["type"] == "Strip":
        return not normalizer["strip_left"]
    if normalizer["type"] != "Replace":
        return normalizer["type"] in _LOCAL_NORMALIZERS
    pattern, content = normalizer["pattern"], normalizer["content"]
    if "Regex" in pattern:
        return pattern["Regex"] in _REPLACE_REGEXES and content in (" ", "▁")
    return not any(char.isalnum() or char.isspace() for char in pattern["String"] + content)


def _splits_at_spaces(pre_tokenizers: Sequence[Node]) -> bool:
    if tuple(node["type"] for node in pre_tokenizers) not in _CHAINS:
        return False
    first = pre_tokenizers[0]
    if first["type"] == "Split":
        is_isolated = (first["behavior"], first["invert"]) in (("Isolated", False), ("Removed", True))
        return is_isolated and first["pattern"].get("Regex") in _SPLIT_REGEXES
    if first["type"] == "ByteLevel":
        return bool(first["use_regex"])
    return all(node["split"] for node in pre_tokenizers if node["type"] == "Metaspace")
