"""Surface: the characters of each token, where they differ from the offsets of the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as BackendTokenizer
from transformers import AlbertTokenizer, AutoTokenizer

from bertfeat.errors import CheckpointError
from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import texts, word_lists
from tests.support.families import SENTENCES, build_tokenizer


def surface(tokenizer: Tokenizer, text: str | list[str]) -> list[tuple[str, str]]:
    """Return each token of a text, or of given words, with its slice of the text."""
    (document,) = texts(text) if isinstance(text, str) else word_lists(text)
    tokens = tokenizer.encode([document])
    spans = zip(tokenizer.vocabulary[tokens.ids], tokens.char_start, tokens.char_end, strict=True)
    return [(str(piece), document.text[start:end]) for piece, start, end in spans]


# The words of Qwen 2.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def unigram(pieces: str, normalizer: Any) -> Tokenizer:
    """Make a SentencePiece-like tokenizer that knows the pieces named, and `▁`."""
    backend = BackendTokenizer(models.Unigram([("<unk>", -20.0), *((p, -1.0) for p in ["▁", *pieces.split()])], 0))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return Tokenizer(backend, cls_id=None)


def roberta_like(*, before: Any = None) -> BackendTokenizer:
    """Make a byte-level tokenizer that trims offsets itself, as RoBERTa's does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(["<s>", "</s>", *alphabet])}
    backend = BackendTokenizer(models.BPE(vocabulary, []))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=before is None)
    backend.pre_tokenizer = byte_level if before is None else pre_tokenizers.Sequence([before, byte_level])
    backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True)
    return backend


def test_a_decomposed_accent_belongs_to_its_letter(minilm_folder: Path) -> None:
    bert = Tokenizer.load(minilm_folder)
    assert surface(bert, "cafe\u0301 au") == [("cafe", "cafe\u0301"), ("au", "au")]
    assert surface(bert, "❤\ufe0f x")[0] == ("[UNK]", "❤\ufe0f")
    # A mark after a space, or at the start, belongs to no token.
    assert surface(bert, "\u0301a \u0301b") == [("a", "a"), ("b", "b")]


def test_composed_characters_keep_all_that_they_were_made_of() -> None:
    nfkc = unigram("é 한 ガ f i x", normalizers.NFKC())
    assert surface(nfkc, "e\u0301x") == [("▁", ""), ("é", "e\u0301"), ("x", "x")]
    assert surface(nfkc, "\u1112\u1161\u11abx") == [("▁", ""), ("한", "\u1112\u1161\u11ab"), ("x", "x")]
    assert surface(nfkc, "ｶﾞx") == [("▁", ""), ("ガ", "ｶﾞ"), ("x", "x")]
    assert surface(nfkc, "ﬁx") == [("▁", ""), ("f", "ﬁ"), ("i", "ﬁ"), ("x", "x")]


def test_spaces_are_trimmed_and_whitespace_tokens_keep_theirs(tmp_path: Path) -> None:
    bpe = Tokenizer.load(build_tokenizer("bpe", tmp_path / "bpe"))
    found = surface(bpe, "an  an\tan ")
    assert found == [("an", "an"), ("Ġ", " "), ("Ġa", "a"), ("n", "n"), ("ĉ", "\t"), ("an", "an"), ("Ġ", " ")]
    tokens = bpe.encode(texts("an  an\t"))
    assert tokens.is_blank.tolist() == [False, True, False, False, True]


def test_byte_level_offsets_of_given_words_are_not_trimmed_twice() -> None:
    # The library would trim a space that is in the prefix but not in the text: "ab" would start at its b.
    tokenizer = Tokenizer(roberta_like(), cls_id=0, given_words=True)
    before = ("Ġ", "")
    expected = [before, ("a", "a"), ("b", "b"), before, ('"', '"'), before, ("Ã", "é"), ("©", "é")]
    assert surface(tokenizer, ["ab", '"', "", "é"]) == expected
    assert surface(Tokenizer(roberta_like(), cls_id=0), "a b") == [("a", "a"), ("Ġ", " "), ("b", "b")]


@pytest.mark.parametrize(
    "splitter",
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(QWEN2), "isolated")],
    ids=["digits", "qwen2"],
)
def test_a_splitter_before_byte_level_gives_a_word_one_space(splitter: Any) -> None:
    # Llama's order: a space before each part of "a1" would make two words of it.
    backend = roberta_like(before=splitter)
    tokenizer = Tokenizer(backend, cls_id=0, given_words=True)
    assert surface(tokenizer, ["a1", "b"]) == [("Ġ", ""), ("a", "a"), ("1", "1"), ("Ġ", ""), ("b", "b")]


@pytest.mark.parametrize(
    ("normalizer", "splitter"),
    [
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
        (normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")),
        (None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        (None, pre_tokenizers.Metaspace(prepend_scheme="never")),
    ],
    ids=["llama", "gemma", "mistral", "never"],
)
def test_given_words_have_one_space_before_each_where_spaces_are_pieces(normalizer: Any, splitter: Any) -> None:
    """As in a text, where a word and the same word after a space have different pieces."""
    backend = BackendTokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁b": 4}, [("▁", "b")]))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    tokenizer = Tokenizer(backend, cls_id=None, given_words=True)
    assert surface(tokenizer, ["a", "ba"]) == [("▁", ""), ("a", "a"), ("▁b", "b"), ("a", "a")]


def test_given_words_equal_transformers_with_prefix_space(tmp_path: Path) -> None:
    folder = build_tokenizer("bpe", tmp_path / "bpe")
    words = ["The", "river's", "", "naïve", "42"]
    tokens = Tokenizer.load(folder, given_words=True).encode(word_lists(words))
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    state["pre_tokenizer"]["add_prefix_space"] = True
    (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    peer = AutoTokenizer.from_pretrained(str(folder))(words, is_split_into_words=True, add_special_tokens=False)
    assert tokens.ids.tolist() == peer["input_ids"]
    assert tokens.word.tolist() == peer.word_ids()


def test_a_tokenizer_that_knows_nothing_is_refused() -> None:
    backend = BackendTokenizer(models.BPE())
    with pytest.raises(CheckpointError, match="no text into a token"):
        Tokenizer(backend, cls_id=None)


def test_a_sentencepiece_model_is_converted_and_keeps_its_offsets(tmp_path: Path) -> None:
    corpus = tmp_path / "train.txt"
    corpus.write_text("\n".join(SENTENCES), encoding="utf-8")
    folder = tmp_path / "albert"
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "spiece"),
        vocab_size=120,
        unk_id=1,
        pad_id=0,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    text = SENTENCES[0]
    tokens = tokenizer.encode(texts(text))
    expected = AlbertTokenizer.from_pretrained(str(folder))(text, add_special_tokens=False)["input_ids"]
    assert tokens.ids.tolist() == expected
    assert "".join(chars for _, chars in surface(tokenizer, text)) == text.replace(" ", "")
