"""Long texts in pieces: the pieces tokenize exactly as the whole, in every family; limits where that cannot be."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

import bertfeat
from bertfeat.choices import Level, OnOverlong
from bertfeat.corpus.content import clean
from bertfeat.errors import InputError
from bertfeat.extraction import plan
from bertfeat.extraction.estimation import estimate
from bertfeat.text import pieces, tokenizer
from bertfeat.text.pieces import Cutter
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens
from bertfeat.text.windows import cut_windows
from tests.support.fakes import pairs, texts, word_lists
from tests.support.families import build_tokenizer
from tests.text.test_odd_text import MADE, sources

KINDS = ("wordpiece", "bpe", "unigram", "minilm")
# Parts of the tokenizers of published models that differ from those of `families`.
QUOTES = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
PLAIN = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
STRIP = normalizers.Strip(left=False)
SPACES, UNDERLINES = (normalizers.Replace(Regex(" {2,}"), space) for space in (" ", "▁"))
LINES = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
METASPACE = pre_tokenizers.Metaspace()
WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), METASPACE])
LLAMA3, QWEN2 = (pre_tokenizers.Split(Regex(regex), "isolated") for regex in (pieces._LLAMA3, pieces._QWEN2))
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PARTS: dict[str, tuple[str, Any, Any]] = {
    "albert": ("unigram", normalizers.Sequence([*QUOTES, *PLAIN]), WORDS),
    "rembert": ("unigram", normalizers.Sequence([*QUOTES, SPACES, normalizers.NFKC()]), METASPACE),
    "big_bird": ("unigram", normalizers.Sequence([STRIP, UNDERLINES]), METASPACE),
    "deberta-v2": ("unigram", normalizers.Sequence([LINES, normalizers.NFC(), STRIP]), METASPACE),
    "modernbert": ("bpe", normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "roberta-prefix": ("bpe", None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "eurobert": ("bpe", None, pre_tokenizers.Sequence([LLAMA3, BYTES])),
    "qwen2": ("bpe", normalizers.NFC(), pre_tokenizers.Sequence([QWEN2, BYTES])),
    "whitespace": ("wordpiece", normalizers.BertNormalizer(lowercase=False), pre_tokenizers.Whitespace()),
}
ADDED = [
    AddedToken("<mask>", lstrip=True, special=True),
    AddedToken("  ", normalized=True),
    AddedToken("   ", normalized=True),
    AddedToken("fox", single_word=True, normalized=True),
    AddedToken("(", normalized=False),
    AddedToken("<r>", rstrip=True, special=True),
]


def make(name: str, folder: Path, minilm: Path) -> Tokenizer:
    if name == "minilm":
        return Tokenizer.load(minilm)
    kind, normalizer, pre_tokenizer = PARTS.get(name, (name, None, None))
    backend = BackendTokenizer.from_file(str(build_tokenizer(kind, folder / name) / "tokenizer.json"))
    if name in PARTS:
        # A setter takes no None.
        state = {**json.loads(backend.to_str()), "normalizer": None}
        backend = BackendTokenizer.from_str(json.dumps(state))
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizer
    # The tokenizers library panics where Strip meets added tokens of spaces.
    backend.add_tokens([token for token in ADDED if token.content.strip() or name not in ("big_bird", "deberta-v2")])
    return Tokenizer(backend, cls_id=0)


@pytest.fixture(scope="module", params=[*KINDS, *PARTS])
def any_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Any:
    return make(request.param, tmp_path_factory.mktemp("pieces"), minilm_folder)


def odd_texts() -> list[str]:
    """Return long texts of odd parts: every naughty string with every kind of space around it, and random mixtures."""
    rng = random.Random(15)
    parts = [
        part for found in sources().values() for part in rng.sample(found, min(len(found), 200)) if len(part) < 300
    ]
    spaces = [" ", " ", " ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\u3000", "\xa0", "", ". ", "。\n", "。\n\u3000"]
    glued = [" <mask> ", "fox ", "<r> ", " fox\n", "\u0301", " \u0301", "\u0d4e ", "中文", "''", "`` ", "'s "]
    long = "".join(part + rng.choice(spaces) for part in parts)
    mixed = "".join(
        rng.choice(["a", "Word", "9", "né", "한", "\U0001f469\u200d", *spaces, *glued]) for _ in range(2_000)
    )
    blank = "a" + " " * 700 + "b" + "\n" * 700 + "中" * 700 + " c" * 700
    return [clean(found) for found in (long, mixed, blank, *MADE)]


def assert_same(ours: Tokens, whole: Tokens) -> None:
    for field in dataclasses.fields(Tokens):
        mine, its = getattr(ours, field.name), getattr(whole, field.name)
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its, err_msg=field.name)


def in_pieces(monkeypatch: pytest.MonkeyPatch, n_chars: int) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHARS", n_chars)
    monkeypatch.setattr(tokenizer, "_BATCH_CHARS", 20_000)


def test_pieces_tokenize_as_the_whole(any_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    found = odd_texts()
    documents = [*texts(*found), *pairs((found[1], found[2]), ("", found[1]), (found[1], ""))]
    whole = any_tokenizer.encode(documents)
    for n_chars in (1, 40):
        in_pieces(monkeypatch, n_chars)
        assert sum(1 for _ in any_tokenizer._cutter.pieces(documents)) > 200
        assert_same(any_tokenizer.encode(documents), whole)
        assert any_tokenizer.count(documents).tolist() == np.diff(whole.starts).tolist()


@pytest.mark.parametrize("kind", KINDS[:3])
def test_given_words_in_pieces(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tokenizer.load(build_tokenizer(kind, tmp_path / kind), given_words=True)
    documents = word_lists(*([*found.split(" "), "", " "] for found in odd_texts()[:3]), [], [""], ["a"])
    whole = made.encode(documents)
    for n_chars in (1, 50):
        in_pieces(monkeypatch, n_chars)
        assert sum(1 for _ in made._cutter.pieces(documents)) > 200
        assert_same(made.encode(documents), whole)


@pytest.mark.parametrize("max_length", [7, 30])
def test_truncated_documents_lose_only_what_truncation_takes(
    max_length: int, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tokenizer.load(minilm_folder)
    long, mixed = odd_texts()[:2]
    both = [(long, mixed), (mixed, long), ("a few words", mixed), (mixed, "a few words"), (mixed, mixed), ("", mixed)]
    documents = [*texts(long, mixed, "short", ""), *pairs(*both)]
    limits = WindowLimits(max_length, 2, OnOverlong.TRUNCATE)
    whole = made.encode(documents)
    in_pieces(monkeypatch, 50)
    cut = made.encode(documents, max_tokens=limits.max_tokens([Level.TOKEN, Level.SENTENCE]))
    assert len(cut.ids) < len(whole.ids) / 20
    assert cut.n_texts.tolist() == whole.n_texts.tolist()
    ours, theirs = cut_windows(cut, made, limits, documents), cut_windows(whole, made, limits, documents)
    assert ours.input_ids.tolist() == theirs.input_ids.tolist()
    assert ours.starts.tolist() == theirs.starts.tolist()
    kept, all_kept = ours.source[ours.source >= 0], theirs.source[theirs.source >= 0]
    for name in ("char_start", "char_end", "word", "is_blank", "document"):
        assert getattr(cut, name)[kept].tolist() == getattr(whole, name)[all_kept].tolist()
    assert WindowLimits(9, 2, OnOverlong.TRUNCATE).max_tokens([Level.WORD]) is None
    assert WindowLimits(9, 2).max_tokens([Level.TOKEN]) is None


# Changes that make a tokenizer look over the places where others are cut.
CHANGES: dict[str, tuple[str, Any]] = {
    "no pre-tokenizer": ("", None),
    "another splitter": ("pre_tokenizer", pre_tokenizers.Punctuation()),
    "own regex": ("pre_tokenizer", pre_tokenizers.Split(Regex("a b|."), "isolated")),
    "unsplit": ("pre_tokenizer", pre_tokenizers.Metaspace(split=False)),
    "strip": ("normalizer", normalizers.Strip()),
    "prepend": ("normalizer", normalizers.Prepend("x")),
    "replace": ("normalizer", normalizers.Replace("a b", "c")),
    "remove": ("normalizer", normalizers.Replace(" ", "")),
    "added": ("token", "a b"),
    "rstrip": ("token", AddedToken("a", rstrip=True)),
}


def unsuited(part: str, value: Any) -> BackendTokenizer:
    backend = BackendTokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    if part:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if part == "token":
        backend.add_tokens([value])
    elif part:
        setattr(backend, part, value)
    return backend


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_that_looks_over_cuts_gets_the_text_whole(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cutter = Cutter(unsuited(*CHANGES[change]), given_words=False)
    monkeypatch.setattr(pieces, "PIECE_CHARS", 5)
    (document,) = texts("a b " * 30)
    assert [piece.text for piece in cutter.pieces([document])] == [document.text]
    monkeypatch.setattr(pieces, "MAX_UNCUT_CHARS", 100)
    with pytest.raises(InputError, match=r"document 0 has .* more than 100 characters \(from character 0 on\).*cut"):
        list(cutter.pieces([document]))


def test_a_stretch_without_a_place_for_a_cut_is_refused_and_a_short_one_kept(
    minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tokenizer.load(minilm_folder)
    monkeypatch.setattr(pieces, "PIECE_CHARS", 5)
    monkeypatch.setattr(pieces, "MAX_UNCUT_CHARS", 20)
    found = ["word " * 9 + "x" * 15 + " end", "中" * 90, "-" * 20]
    assert made.encode(texts(*found)).n_documents == 3
    with pytest.raises(InputError, match=r"document 0 .* more than 20 characters \(from character 8 on\)"):
        made.encode(texts("word and " + "-" * 30))
    given = Tokenizer.load(minilm_folder, given_words=True)
    with pytest.raises(InputError, match=r"document 1 has a word of more than 20 characters"):
        given.encode(word_lists(["a"], ["b", "x" * 21]))


def refusals(folder: Path, model: Path, document: str, **settings: Any) -> list[str]:
    """Return how extraction, its estimate and its in-memory form refuse a document of a corpus, if they do."""
    corpus = folder / "corpus.txt"
    corpus.write_text(f"short\n{document}\n", encoding="utf-8")
    refused = []
    settings = {"model": str(model), "levels": "sentence", "layers": "-1", **settings}
    for call in (
        lambda: bertfeat.extract(corpus, folder / "out", **settings),
        lambda: estimate(corpus, bertfeat.ExtractConfig.from_dict(settings)),
        lambda: bertfeat.embed(["short", document], str(model)),
    ):
        try:
            call()
        except InputError as error:
            refused.append(str(error))
    assert (folder / "out").exists() is (len(refused) < 2)
    return refused


def test_documents_over_the_limits_are_refused_before_anything_is_written(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHARS", 50)
    monkeypatch.setattr(pieces, "MAX_UNCUT_CHARS", 200)
    monkeypatch.setattr(tokenizer, "MAX_DOCUMENT_TOKENS", 300)
    # The plan's sample has texts below this only, which never reach the true limits.
    monkeypatch.setattr(plan, "_SAMPLE_CHARS", 50)
    long = "a b " * 200
    refused = refusals(tmp_path, tiny_folder, long)
    assert len(refused) == 3
    assert refused[0].startswith(f"{tmp_path}/corpus.txt:2: document 1 has 400 tokens or more, over the limit of 300")
    assert "`on_overlong='truncate'`" in refused[0]
    assert len(refusals(tmp_path, tiny_folder, long, on_overlong="truncate", levels="word")) == 3
    assert len(refusals(tmp_path, tiny_folder, "-" * 201)) == 3
    store_only = refusals(tmp_path, tiny_folder, long, on_overlong="truncate")
    assert len(store_only) == 1  # embed cuts nothing off
    store = bertfeat.open_store(tmp_path / "out")
    assert store.polars("sentence", ["truncated"])["truncated"].to_list() == [False, True]
