"""Odd text: no crash, no row that shifts, and at all levels every slice is the token's surface."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders

import bertfeat
from bertfeat.corpus.content import clean
from bertfeat.records import Document
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import Features, run
from tests.support.families import build_tokenizer
from tests.support.places import TESTS

DATA = TESTS / "data"
KINDS = ("wordpiece", "bpe", "unigram", "minilm")

MADE = [
    "",
    " \t \u00a0\u3000 ",
    "nul \x00 inside\x00",
    "lone \ud800 surrogate \udfff\udc00",
    "👨‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb, 🇨🇭 Switzerland, 1️⃣",
    "e\u0301 e\u0323\u0301 \u0301lead, cafe\u0301, a\u0301\u0301\u0301\u0301",
    "\u1112\u1161\u11ab\u1100\u1173\u11af 한글",
    "\u202eright to left\u202c \u2067שלום\u2069 abc مرحبا",
    "line\u2028separator\u2029paragraph\x85next\x1cfile",
    "ﬁne ﬀ ½ ㎏ Ⅷ ｶﾞ Ａ ﷺ",
    "İstanbul ıi ß ŉ ΑΣ",
    "क्षि নি ကြီး ปั้น ཀྵ",
    "▁low ▁ Ġ ##x [CLS] [SEP] [MASK] <s> </s> <unk>",
    "Z" + "\u0300\u0323\u0489" * 40 + "algo",
]


def sources() -> dict[str, list[str]]:
    udhr = [json.loads(line)["text"] for line in (DATA / "odd" / "udhr.jsonl").read_text("utf-8").splitlines()]
    # Every letter with an accent, decomposed and not, every compatible form; and a mark of every class.
    forms = [f"{chr(code)}" for code in range(0xA0, 0x3400) if unicodedata.decomposition(chr(code))]
    normal = [" ".join(unicodedata.normalize(form, c) for form in ("NFC", "NFD", "NFKC", "NFKD")) for c in forms]
    marks = [f"a{chr(c)} b{chr(c)}b" for c in range(0x300, 0x3100) if unicodedata.combining(chr(c))]
    return {
        "made": MADE,
        "blns": json.loads((DATA / "corpus" / "blns" / "blns.json").read_text("utf-8")),
        "udhr": udhr,
        "unicode": [*normal, *marks],
    }


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    if request.param == "minilm":
        return minilm_folder
    return build_tokenizer(request.param, tmp_path_factory.mktemp("tokenizers") / request.param)


SPECIALS = {"[CLS]", "[SEP]", "[MASK]", "[PAD]", "<s>", "</s>", "<mask>", "<pad>"}
UNKNOWN = {"[UNK]", "<unk>"}


def check_tokens(found: Features, tokenizer: BackendTokenizer, texts: Sequence[str]) -> int:
    """Assert that every slice is the surface of its token; return how many characters were looked at.

    Tokens may share a character (the bytes of one, the two letters of a ligature), so runs of them that do are
    compared as a whole with what the tokenizer's own normalizer makes of the slice.
    """
    level = found.tables["token"]
    special = np.asarray(level.columns["is_special"])
    document = np.asarray(level.columns["doc_id"])[~special]
    start = np.asarray(level.columns["char_start"])[~special]
    end = np.asarray(level.columns["char_end"])[~special]
    piece = np.asarray(level.columns["token"])[~special]
    normalizer = tokenizer.normalizer
    is_bytes = tokenizer.token_to_id("Ġ") is not None
    n_checked = 0
    first = 0
    while first < len(piece):
        text = texts[document[first]]
        last, reach = first + 1, end[first]
        while last < len(piece) and document[last] == document[first] and start[last] < reach:
            reach, last = max(reach, end[last]), last + 1
        assert 0 <= start[first] <= reach <= len(text)
        assert first == 0 or document[first] != document[first - 1] or start[first] >= start[first - 1]
        for token in range(first, last):
            surface = text[start[token] : end[token]]
            assert surface == surface.strip() or not surface.strip(), (surface, piece[token])
        surface = text[start[first] : reach]
        pieces = piece[first:last].tolist()
        if SPECIALS & set(pieces):
            assert pieces == [surface]
        elif is_bytes and not UNKNOWN & set(pieces):
            assert decoders.ByteLevel().decode(pieces).strip() == surface.strip(), (surface, pieces)
            n_checked += len(surface)
        elif not UNKNOWN & set(pieces):
            made_text = "".join(p.removeprefix("##") for p in pieces).replace("▁", " ").strip()
            expected = normalizer.normalize_str(surface) if normalizer else surface
            assert made_text == expected.replace("▁", " ").strip(), (surface, pieces)
            n_checked += len(surface)
        first = last
    return n_checked


def check_words(found: Features, texts: Sequence[str]) -> None:
    words = found.tables["word"].columns
    spans = zip(words["doc_id"], words["char_start"], words["char_end"], words["word"], strict=True)
    last = (-1, 0)
    for document, start, end, word in spans:
        assert texts[document][start:end] == word
        assert word
        assert word == word.strip() or not word.strip()
        if document == last[0]:
            # One character may hold several words: U+FDFA is a whole sentence to NFKC.
            assert start >= last[1] - 1, "words overlap"
        last = (document, end)


@pytest.mark.parametrize("name", ["made", "blns", "udhr", "unicode"])
def test_slices_are_surfaces_at_all_levels(folder: Path, name: str) -> None:
    texts = [clean(text) for text in sources()[name]]
    documents = [Document(i, i, text) for i, text in enumerate(texts)]
    settings = {"max_length": 30, "stride": 7, "max_batch_tokens": 500, "word_pooling": "mean", "chunk": "tokens:7:3"}
    found = run(documents, Tokenizer.load(folder), levels="token,word,span,sentence", **settings)
    assert check_tokens(found, BackendTokenizer.from_file(str(folder / "tokenizer.json")), texts) > 100
    check_words(found, texts)
    spans = (found.column("span", name) for name in ("doc_id", "char_start", "char_end", "text"))
    assert all(texts[document][start:end] == text for document, start, end, text in zip(*spans, strict=True))
    assert found.column("sentence", "text") == texts
    assert not any(found.column("sentence", "truncated"))
    assert found.vectors("token")[:, 2].tolist() == found.column("token", "token_id")
    assert all(place is not None for place in found.places("word"))


@pytest.mark.promise("spans")
@pytest.mark.parametrize("rule", [r"\S+\s+\S+", "words:the,Ⅷ,ß,и,人", "sentences", "paragraphs"])
def test_spans_by_every_rule_are_slices_with_the_tokens_that_overlap_them(folder: Path, rule: str) -> None:
    texts = [clean(text) for name, found in sources().items() for text in found if name != "unicode"]
    documents = [Document(i, i, text) for i, text in enumerate(texts)]
    is_chunk = rule in ("sentences", "paragraphs")
    settings = {"max_length": 30, "stride": 7, "max_batch_tokens": 500, "chunk" if is_chunk else "spans": rule}
    found = run(documents, Tokenizer.load(folder), levels="token,span", **settings)
    # Special tokens have no place.
    places = ([-1 if at is None else at for at in found.column("token", name)] for name in ("char_start", "char_end"))
    of_token, starts, ends = found.column("token", "doc_id"), *map(np.array, places)
    first = np.searchsorted(of_token, np.arange(len(texts) + 1))
    pieces: list[list[str]] = [[] for _ in texts]
    columns = (found.column("span", name) for name in ("doc_id", "char_start", "char_end", "text", "n_tokens"))
    for document, start, end, text, n_tokens in zip(*columns, strict=True):
        assert texts[document][start:end] == text != ""
        pieces[document].append(text)
        own = slice(*first[document : document + 2])
        overlap = np.flatnonzero((starts[own] < end) & (ends[own] > start))
        # Between two of them may be one without a character of its own.
        assert n_tokens == (overlap[-1] + 1 - overlap[0] if len(overlap) else 0)
    assert sum(map(len, pieces)) > 4
    if is_chunk:
        # Nothing is left out but whitespace.
        assert ["".join("".join(own).split()) for own in pieces] == ["".join(text.split()) for text in texts]


@pytest.mark.promise("odd-text")
def test_odd_text_goes_through_a_real_model_to_the_store(tmp_path: Path) -> None:
    texts = [*MADE, *sources()["udhr"][:30]]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    store = bertfeat.extract(path, tmp_path / "store", levels="token,word,sentence", layers="-1", combine="none")
    sentences = store.arrow("sentence")
    assert sentences["text"].to_pylist() == [clean(text) for text in texts]
    tokens = store.arrow("token").select(["doc_id", "token", "char_start", "char_end", "is_special"]).to_pylist()
    words = store.arrow("word").select(["doc_id", "word", "char_start", "char_end"]).to_pylist()
    assert all(clean(texts[w["doc_id"]])[w["char_start"] : w["char_end"]] == w["word"] for w in words)
    n_tokens = np.bincount([t["doc_id"] for t in tokens if not t["is_special"]], minlength=len(texts))
    assert n_tokens.tolist() == sentences["n_tokens"].to_pylist()
    vectors = sentences["layer_06"].to_pylist()
    assert [vector is None for vector in vectors] == (n_tokens == 0).tolist()
    assert np.isfinite(store.numpy("token", "layer_06")).all()
