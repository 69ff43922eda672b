"""Proteins: a residue is a token row with its place, with the vectors of transformers, whatever the length."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from transformers import EsmcConfig, EsmcModel, EsmConfig, EsmcTokenizer, EsmModel, EsmTokenizer, set_seed

import bertfeat
from bertfeat.store.reader import Store

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

RESIDUES = "LAGVSERTIDPKQNFYMHWC"
VOCABULARY = ["<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, *"XBUZO.-", "<null_1>", "<mask>"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
PLAIN = "".join(random.Random(0).choices(RESIDUES, k=3_000))
SEQUENCES = {
    "one": "M",
    "insulin": "GIVEQCCTSICSLYQLENYCN",
    "rare": "MUZOBX*-.KUZ",
    "lower": "MKtaYIAkqRa",
    "masked": "MK<mask>AYI<mask>A",
    "short": PLAIN[:40],
}
COLUMNS = ["doc_id", "token_index", "token", "char_start", "char_end", "is_special"]


def esm(folder: Path, kind: str) -> tuple[torch.nn.Module, EsmTokenizer | EsmcTokenizer]:
    """Write a random model and its tokenizer; weights are wide, so that a wrong scale or position shows."""
    set_seed(0)
    folder.mkdir()
    if kind == "esmc":
        config = EsmcConfig(**SIZES, vocab_size=64, initializer_range=0.2)
        model, tokenizer = EsmcModel(config), EsmcTokenizer()
    else:
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
        tokens = {"vocab_size": len(VOCABULARY), "pad_token_id": 1, "mask_token_id": 32, "token_dropout": True}
        places = {"max_position_embeddings": 1026, "position_embedding_type": kind}
        model = EsmModel(EsmConfig(**SIZES, **tokens, **places, initializer_range=0.3), add_pooling_layer=False)
        tokenizer = EsmTokenizer(str(folder / "vocab.txt"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer


def fasta(path: Path, sequences: dict[str, str]) -> Path:
    path.write_text("".join(f">{name} of {len(text)}\n{text}\n" for name, text in sequences.items()))
    return path


def rows(store: Store, name: str) -> tuple[pl.DataFrame, np.ndarray]:
    table = store.polars("token", COLUMNS)
    numbers = np.flatnonzero((table["doc_id"] == name).to_numpy())
    return table[numbers], numbers


@pytest.mark.parametrize("kind", ["rotary", "absolute", "esmc"])
def test_residues_have_the_vectors_of_transformers(kind: str, tmp_path: Path) -> None:
    model, tokenizer = esm(tmp_path / kind, kind)
    settings = {"model": str(tmp_path / kind), "layers": "all", "store_dtype": "float32"}
    store = bertfeat.extract(fasta(tmp_path / "a.fasta", SEQUENCES | {"long": PLAIN}), tmp_path / "s", **settings)
    assert store.plan.fields["id_column"] == "id"
    for name, text in SEQUENCES.items():
        found, numbers = rows(store, name)
        given = tokenizer(text, return_tensors="pt")
        assert found["token"].to_list() == tokenizer.convert_ids_to_tokens(given["input_ids"][0].tolist())
        with torch.no_grad():
            states = model(**given, output_hidden_states=True).hidden_states
        for layer, expected in enumerate(states):
            vectors = store.take("token", f"layer_{layer:02d}", numbers)
            np.testing.assert_allclose(vectors, expected[0].numpy(), atol=1e-4 * float(expected.abs().max()))
    found, _ = rows(store, "insulin")
    assert found["token"].to_list() == ["<cls>", *SEQUENCES["insulin"], "<eos>"]
    assert found["char_start"].to_list() == [None, *range(21), None]
    grown = bertfeat.append(store, fasta(tmp_path / "b.fa", {"later": "MKV"}))
    assert rows(grown, "later")[0]["token"].to_list() == ["<cls>", *"MKV", "<eos>"]
    found, _ = rows(store, "long")
    residues = found.filter(~pl.col("is_special"))
    assert (residues["char_start"].to_list(), residues["token"].str.join("").item()) == ([*range(3_000)], PLAIN)


def test_a_thousand_sequences_pass_to_a_probe_of_residues(tmp_path: Path) -> None:
    """The labels are classes of residues: a label of the residue before or after it cannot be learned."""
    esm(tmp_path / "esm", "rotary")
    rng = random.Random(1)
    sequences = {f"P{number}": "".join(rng.choices(RESIDUES, k=rng.randint(5, 20))) for number in range(1_000)}
    path = fasta(tmp_path / "a.fasta", sequences)
    store = bertfeat.extract(path, tmp_path / "s", model=str(tmp_path / "esm"), layers="0", levels="token,sentence")
    assert store.polars("sentence")["doc_id"].to_list() == [*sequences]
    structures = ["".join("HEC"[RESIDUES.index(residue) % 3] for residue in text) for text in sequences.values()]
    labels = (
        pl.DataFrame({"doc_id": [*sequences], "label": structures})
        .with_columns(pl.col("label").str.split(""), token_index=pl.int_ranges(1, pl.col("label").str.len_chars() + 1))
        .explode("label", "token_index")
    )
    probe = bertfeat.fit_probe(store, "label", level="token", feature="layer_00", head="ridge", labels=labels)
    score = probe.score(store, labels=labels, bootstrap=False)
    assert (score.metric, score.value, score.scores.n_rows) == ("accuracy", 1.0, len("".join(structures)))
