"""Families from text to store: their own tokenizer and special tokens, all layers, against plain transformers.

The long tests run every family; that the layers of each are right is tested on random tokens in test_families.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

import bertfeat
from tests.support.families import (
    HIDDEN,
    MAX_LENGTH,
    N_LAYERS,
    SENTENCES,
    all_model_types,
    build_model,
    reference_encoder,
)
from tests.support.oracle import assert_close

TEXTS = ("", "a", *(text[:55] for text in SENTENCES), "tabs\tand  spaces", "naïve café")

pytestmark = pytest.mark.usefixtures("one_thread")


def expected_states(model: torch.nn.Module, tokenizer: Any, text: str, model_type: str) -> tuple[list[int], np.ndarray]:
    """Return ids, and float32 (n_layers + 1, n_tokens, hidden), as a user of transformers gets them."""
    # By default, transformers 5 leaves out the segment ids of XLNet, 0 ... 0 2.
    asked = {"return_token_type_ids": True} if model_type == "xlnet" else {}
    inputs = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt", **asked)
    if model_type == "layoutlm":
        inputs["bbox"] = torch.zeros((*inputs["input_ids"].shape, 4), dtype=torch.long)
    if not inputs["input_ids"].numel():
        # A tokenizer without special tokens makes nothing of an empty text.
        return [], np.zeros((N_LAYERS + 1, 0, HIDDEN), np.float32)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    return inputs["input_ids"][0].tolist(), torch.stack([state[0] for state in states]).numpy()


# One of each kind of inputs, path and tokenizer.
OFTEN = (
    "bert roberta xlm-roberta roberta-prelayernorm distilbert albert bert-generation modernbert llama qwen2 "
    "mobilebert xlnet deberta deberta-v2 mpnet longformer xlm markuplm t5 switch_transformers bart mbart bloom"
)


@pytest.mark.parametrize("model_type", all_model_types(lambda name: name in OFTEN.split(), others_long=True))
def test_store_equals_transformers(tmp_path: Path, model_type: str) -> None:
    folder = build_model(model_type, tmp_path / "model")
    compare(folder, model_type, tmp_path)


def compare(folder: Path, model_type: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(text + "\n" for text in TEXTS), encoding="utf-8")
    limits = {"max_length": MAX_LENGTH, "on_overlong": "truncate"}
    settings = {"model": str(folder), "layers": "all", "combine": "none", "store_dtype": "float32", **limits}
    store = bertfeat.extract(corpus, tmp_path / "features", **settings)
    model, tokenizer = reference_encoder(folder), AutoTokenizer.from_pretrained(str(folder))
    rows = store.polars("token", ["doc_id", "token_id"])
    for number, text in enumerate(TEXTS):
        ids, states = expected_states(model, tokenizer, text, model_type)
        mine = np.flatnonzero((rows["doc_id"] == number).to_numpy())
        assert rows["token_id"].to_numpy()[mine].tolist() == ids, text
        for layer in range(N_LAYERS + 1):
            assert_close(store.numpy("token", f"layer_{layer:02d}")[mine], states[layer])


def test_special_tokens_at_the_end(tmp_path: Path) -> None:
    """XLNet puts its special tokens after the text, with a segment of their own."""
    folder = build_model("xlnet", tmp_path / "model")
    file = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    backend.post_processor = processors.TemplateProcessing(
        single="$A:0 </s>:0 <s>:2",
        pair="$A:0 </s>:0 $B:1 </s>:1 <s>:2",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    backend.save(str(file))
    compare(folder, "xlnet", tmp_path)
