"""CoNLL-U's comments in a store, and stores that were made before they became columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertfeat.corpus.conll import ConlluReader
from bertfeat.corpus.sentences import SentenceReader
from bertfeat.errors import PlanMismatch
from bertfeat.extraction.deepcheck import recheck
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


def test_a_store_from_before_keeps_its_plan_and_says_what_is_new(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"model": str(model), "layers": "0", "limit": 9}
    with monkeypatch.context() as before:
        before.setattr(ConlluReader, "own_columns", ())
        before.setattr(ConlluReader, "heading", SentenceReader.heading)
        for levels in ("sentence", "token"):
            extract(UD, tmp_path / levels, levels=levels, **settings)
    said = (
        "made with other settings: the list of the format's own columns was not set, now sent_id,newdoc_id; use another"
    )
    with pytest.raises(PlanMismatch, match=said):
        extract(UD, tmp_path / "sentence", levels="sentence", **settings)
    assert not recheck(tmp_path / "sentence").problems
    # Tokens have no such columns.
    plan_hash = extract(UD, tmp_path / "token", levels="token", **settings).plan.plan_hash
    assert extract(UD, tmp_path / "new", levels="token", **settings).plan.plan_hash == plan_hash
