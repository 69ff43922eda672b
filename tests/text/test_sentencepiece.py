"""A model folder whose tokenizer is a SentencePiece model alone."""

from __future__ import annotations

import json
from pathlib import Path

import sentencepiece
from transformers import AlbertTokenizer

from bertfeat.records import Document
from bertfeat.text.tokenizer import Tokenizer
from tests.support.families import SENTENCES


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
    tokens = tokenizer.encode([Document(index=0, doc_id=0, text=text)])
    expected = AlbertTokenizer.from_pretrained(str(folder))(text, add_special_tokens=False)["input_ids"]
    assert tokens.ids.tolist() == expected
    slices = [text[a:b] for a, b in zip(tokens.char_start, tokens.char_end, strict=True)]
    assert "".join(slices) == text.replace(" ", "")
