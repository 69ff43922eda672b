"""CoNLL-U's comments in a store."""

from __future__ import annotations

from pathlib import Path

from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.run import extract
from tests.support.places import ROOT

UD = ROOT / "tests" / "data" / "ner" / "ud_ewt_test.conllu"


def comments(name: str) -> list[str]:
    lines = UD.read_text().splitlines()
    return [line.partition(" = ")[2] for line in lines if line.startswith(f"# {name} = ")]


def test_sentences_and_words_name_their_sentence(tmp_path: Path, model: Path) -> None:
    settings = {"model": str(model), "layers": "0", "shard_bytes": 20_000}
    store = extract(UD, tmp_path / "s", levels="word,sentence", limit=40, id_column="sent_id", **settings)
    frame = store.polars("sentence", ["doc_id", "sent_id", "newdoc_id"])
    assert len(store.plan.shards) > 2
    assert frame["doc_id"].to_list() == frame["sent_id"].to_list() == comments("sent_id")[:40]
    assert (
        frame["newdoc_id"].unique(maintain_order=True).to_list()
        == comments("newdoc id")[: frame["newdoc_id"].n_unique()]
    )
    words = store.polars("word", ["doc_id", "sent_id"])
    assert words["sent_id"].to_list() == words["doc_id"].to_list()
    assert not recheck(store.path).problems
