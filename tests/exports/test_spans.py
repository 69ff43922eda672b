"""Spans in exports, cards, summaries, maps, measures of layers and views: each row has its text and its document."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import bertfeat
from bertfeat.errors import BertfeatWarning
from bertfeat.exports.card import dataset_card
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("no_fsync")
TEXTS = [f"{who} came to {place} .\n\n{place} is far ." for who in ("Ann", "Bob/Eve") for place in "PQRSTUVWXY"]

PEPS = ROOT / "examples" / "data" / "peps.txt"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    """Names of texts, three or four in each."""
    folder, how = tmp_path_factory.mktemp("spans"), {"layers": "-2,-1", "keep_columns": "n"}
    frame = pl.DataFrame({"text": TEXTS, "n": range(len(TEXTS))})
    return bertfeat.extract(frame, folder / "s", model=str(tiny_folder), levels="span", spans=r"\b[A-Z]\w*", **how)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    folder, how = tmp_path_factory.mktemp("chunks"), {"layers": "-1", "chunk": "paragraphs", "chunk_context": "alone"}
    texts = {"text": TEXTS}
    return bertfeat.extract(texts, folder / "s", model=str(tiny_folder), levels="span", **how)


def test_exports(store: Store, tmp_path: Path) -> None:
    bertfeat.export(store, tmp_path / "npy", to="npy", layers="-1")
    assert np.array_equal(np.load(tmp_path / "npy" / "vectors.npy"), store.numpy("span", "layer_03"))
    lines = [json.loads(line) for line in (tmp_path / "npy" / "rows.jsonl").read_text("utf-8").splitlines()]
    assert lines == store.polars("span", [column.name for column in store.schema("span").columns]).to_dicts()
    bertfeat.export(store, tmp_path / "v.txt", to="word2vec", feature="layer_03")
    keys = [line.split(" ", 1)[0] for line in (tmp_path / "v.txt").read_text("utf-8").splitlines()[1:]]
    assert keys[:3] == ["Ann/0/0", "P/0/1", "P/0/2"]
    assert len({*keys}) == store.n_rows("span")
    said = refused("export", store.path, "-o", tmp_path / "v.jsonl", "--to", "google-jsonl", "--level", "span")
    assert "google-jsonl holds token or word rows" in said


def test_what_is_said_of_spans(store: Store, chunks: Store, tmp_path: Path) -> None:
    assert "| span | a span of characters | 70 |" in dataset_card(store)
    found = good("inspect", store.path, "--methods").out
    assert r"(32 values); pooling: mean; spans by \b[A-Z]\w*." in found
    found = good("inspect", chunks.path, "--methods").out
    assert "pooling: mean without special tokens; chunks by paragraphs, each encoded alone." in found
    corpus, how = PEPS, ("--limit", "3", "--layers", "-1", "--level", "span", "--chunk", "paragraphs")
    in_document = good("extract", corpus, "-o", tmp_path / "document", *how).out
    alone = good("extract", corpus, "-o", tmp_path / "alone", *how, "--chunk-context", "alone").out
    assert "span pooling  mean" in in_document
    assert "--pooling model stores the embedding" not in in_document
    assert "span pooling" not in alone
    assert "--pooling model stores the embedding that the model was trained for" in alone


def test_maps_and_layers(store: Store, tmp_path: Path) -> None:
    store.map(tmp_path / "map.parquet", feature="layer_03", color="n")
    frame = pl.read_parquet(tmp_path / "map.parquet")
    assert frame.columns[:4] == ["doc_id", "span_index", "text", "n"]
    assert frame["text"].equals(store.polars("span", ["text"])["text"])
    with pytest.warns(BertfeatWarning, match="`min_count` has no effect at level span"):
        layers = store.layers(min_count=3)
    assert (layers.n_rows, layers.n_documents, layers.min_count) == (70, 20, None)


def test_views(store: Store) -> None:
    rows = store.scan("span", ["text", "n", "layer_03"]).filter(pl.col("text") == "Eve").collect()
    assert rows["n"].to_list() == [*range(10, 20)]
    order = np.concatenate([batch.rows for batch in store.shuffled("span", "layer_03", batch_size=8)])
    assert sorted(order.tolist()) == list(range(store.n_rows("span"))) != order.tolist()
    vector, label = store.torch_dataset("span", "layer_03", "n")[3]
    assert (label, torch.equal(vector, store.torch("span", "layer_03")[3].float())) == (1, True)
