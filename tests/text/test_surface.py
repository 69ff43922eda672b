"""Surface: the characters of each token, where they differ from the offsets of the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers, pre_tokenizers
from transformers import AlbertTokenizer, AutoTokenizer

from bertfeat.text.tokenizer import Tokenizer
from tests.support.fakes import texts, word_lists
from tests.support.families import SENTENCES, build_tokenizer


def surface(tokenizer: Tokenizer, text: str | list[str]) -> list[tuple[str, str]]:
    """Return each token of a text, or of given words, with its slice of the text."""
    (document,) = texts(text) if isinstance(text, str) else word_lists(text)
    tokens = tokenizer.encode([document])
    spans = zip(tokenizer.vocabulary[tokens.ids], tokens.char_start, tokens.char_end, strict=True)
    return [(str(piece), document.text[start:end]) for piece, start, end in spans]


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


def test_a_sentencepiece_model_is_converted_and_keeps_its_offsets(tmp_path: Path) -> None:
    corpus = tmp_path / "train.txt"
    corpus.write_text("\n".join(SENTENCES), encoding="utf-8")
    folder = tmp_path / "albert"
    folder.mkdir()
    ids = {"unk_id": 1, "pad_id": 0, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    sizes = {"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / "spiece"), **ids, **sizes)
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}), encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    text = SENTENCES[0]
    tokens = tokenizer.encode(texts(text))
    expected = AlbertTokenizer.from_pretrained(str(folder))(text, add_special_tokens=False)["input_ids"]
    assert tokens.ids.tolist() == expected
    assert "".join(chars for _, chars in surface(tokenizer, text)) == text.replace(" ", "")
