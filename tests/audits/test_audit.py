"""Audits: flipped labels against cleanlab, planted copies and edits, splits, and a page that loads nothing."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from benchmarks.audit import check_rankings, edited, flipped, rankings
from bertfeat.errors import UserError
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")

REVIEWS = ROOT / "examples" / "data" / "reviews.csv"
HOW: dict[str, Any] = {"levels": "sentence", "layers": "-1", "pooling": "model", "keep_columns": "label"}
HOSTILE = "</script><script>alert(1)</script> <img src=http://evil.test/x> & one two three"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """A train and a test half of reviews, and 20 copies, 20 copies in capitals and 40 light edits of the first."""
    folder, rng = tmp_path_factory.mktemp("audits"), random.Random(0)
    frame = pl.read_csv(REVIEWS).select("text", "label")
    frame = frame.filter(pl.col("text").str.count_matches(" ") > 6)
    train, test = frame[:240], frame[240:400]
    words = [word for text in train["text"] for word in text.split()]
    texts = rng.sample(train["text"].to_list(), 80)
    planted = [*texts[:20], *(text.upper() for text in texts[20:40]), *(edited(t, words, rng) for t in texts[40:])]
    copies = pl.DataFrame({"text": [*planted, HOSTILE, ""], "label": ["positive"] * 82})
    frames = {"train": train, "test": test, "copies": copies, "leaking": pl.concat([test, copies[:60]])}
    return {name: bertfeat.extract(data, folder / name, **HOW) for name, data in frames.items()}


def test_copies_and_light_edits_are_found_and_little_else(stores: dict[str, Store]) -> None:
    found = bertfeat.audit(stores["train"], stores["copies"], label="label")
    table = found.duplicates.table.filter(pl.col("side") == "test")
    kinds = dict(table.sort("doc_id").select("doc_id", "in_train").iter_rows())
    assert [kinds.get(row) for row in range(20)] == ["exact"] * 20
    assert [kinds.get(row) for row in range(20, 40)] == ["folded"] * 20
    assert sum(row in kinds for row in range(40, 80)) >= 38
    assert not {80, 81} & set(kinds)
    assert found.duplicates.false_alarms <= 1e-3
    # All 80 were given one label.
    assert table["labels_differ"].any()
    assert dict(found.outliers.select("doc_id", "reason").iter_rows())[81] == "empty"


def test_a_split_at_random_is_not_told_apart_and_other_texts_are(stores: dict[str, Store], tmp_path: Path) -> None:
    same = bertfeat.audit(stores["train"], stores["test"])
    assert same.label_errors is None
    assert same.shift is not None
    assert same.shift.low <= 0.5 <= same.shift.high
    assert same.duplicates.table.height <= 4
    # Copies do not make the sides look more alike than by chance.
    leaking = bertfeat.audit(stores["train"], stores["leaking"]).shift
    assert leaking is not None
    assert leaking.n_documents < 2 * 165
    assert leaking.low <= 0.5 <= leaking.high
    peps = ROOT / "examples" / "data" / "peps.txt"
    other = bertfeat.extract(peps, tmp_path / "peps", **{**HOW, "keep_columns": (), "limit": 240})
    found = bertfeat.audit(stores["train"], other)
    assert found.shift is not None
    assert found.shift.low > 0.9
    assert {"python", "film"} <= set(found.shift.words["word"])
    assert set(found.shift.documents["side"]) == {"train", "test"}


def test_texts_of_an_odd_language_are_outliers_and_few_others(tmp_path: Path) -> None:
    texts = pl.read_csv(REVIEWS)["text"].to_list()[:400]
    others = pl.read_ndjson(ROOT / "tests" / "data" / "odd" / "udhr.jsonl").unique("language", maintain_order=True)
    is_one = (pl.col("language") != "eng") & (pl.col("text").str.count_matches(r"\p{L}") > 40)
    planted = others.filter(is_one)["text"].str.head(90).to_list()[:12]
    store = bertfeat.extract([*texts, *planted], tmp_path / "s", levels="sentence", layers="0")
    outliers = bertfeat.audit(store).outliers.filter(pl.col("reason") == "odd language")
    odd = set(outliers["doc_id"])
    assert sum(row >= len(texts) for row in odd) >= 0.9 * len(planted)
    # Of these reviews, some are in Spanish or Portuguese.
    found = outliers.filter(pl.col("doc_id") < len(texts))["text"]
    assert found.str.contains(r"\b(que|uma|una|filme|los)\b").mean() >= 0.5


def test_groups_differ_only_where_labels_do(tmp_path: Path) -> None:
    one, other = "a class with a long name", "another class with a long name"
    data = {"text": ["a warm film", "a dull film", "so warm", "so dull"] * 6, "label": [one, other] * 11 + [one, one]}
    table = bertfeat.audit(bertfeat.extract(data, tmp_path / "s", **HOW), label="label").duplicates.table
    assert table["group"].n_unique() == 4
    assert set(table.filter("labels_differ")["text"]) == {"so dull"}


def test_flipped_tags_are_ranked_as_well_as_by_cleanlab(tmp_path: Path) -> None:
    store = bertfeat.extract(ROOT / "tests" / "data" / "ud_ewt" / "dev.conllu", tmp_path / "s", levels="word", layers=3)
    ranked = rankings(store, "upos", n_draws=1)
    check_rankings(ranked)
    assert ranked["bertfeat"]["auroc"] > 0.97
    frame, is_flipped = flipped(store, "upos", 0)
    found = bertfeat.audit(store, label="upos", labels=frame)
    assert found.label_errors is not None
    assert found.classes is not None
    assert found.confusions is not None
    places = {key: place for place, key in enumerate(frame.select("doc_id", "word_index").iter_rows())}
    listed = [places[key] for key in found.label_errors.select("doc_id", "word_index").iter_rows()]
    assert is_flipped[listed].sum() >= 0.6 * is_flipped.sum()
    assert is_flipped[listed].mean() >= 0.6
    assert found.label_errors["neighbors"].list.len().max() == 3
    assert found.classes["n_rows"].sum() == frame.height


def test_the_page_loads_nothing_and_the_tables_have_the_rows(stores: dict[str, Store], tmp_path: Path) -> None:
    out = tmp_path / "audit"
    places = [str(stores[name].path) for name in ("train", "copies")]
    values = good("audit", *places, "--label", "label", "-o", out, "--json").json
    assert values["leaks"]["exact"] == 20
    assert values["outliers"]["empty"] == 1
    errors = pl.read_parquet(out / "label_errors.parquet")
    assert errors.height == values["n_label_errors"]
    assert errors["probability"].is_sorted()
    page = (out / "audit.html").read_text("utf-8")
    assert not re.search(r"<script|<img|<[^>]*src=|@import|url\(", page)
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert "train and copies" in page
    refused("audit", places[0], "-o", out)


@pytest.mark.parametrize("levels", ["span", "span,sentence"])
def test_labels_of_spans_and_their_documents(tmp_path: Path, levels: str) -> None:
    about = {"food": ("soup", "bread", "cake", "rice"), "cars": ("engine", "wheel", "brake", "gear")}
    pairs = [(f"the {what} {n} is here", kind) for n in range(6) for kind, own in about.items() for what in own]
    texts = [f"{one}.\n\n{other}." for (one, _), (other, _) in zip(pairs[::2], pairs[1::2], strict=True)]
    kinds = ["cars", *(kind for _, kind in pairs[1:])]
    labels = pl.DataFrame({"doc_id": np.arange(48) // 2, "span_index": np.arange(48) % 2, "kind": kinds})
    store = bertfeat.extract(
        {"text": [*texts, texts[3]]}, tmp_path / "s", levels=levels, layers="-1", chunk="paragraphs"
    )
    found = bertfeat.audit(store, level="span", label="kind", labels=labels)
    suspect = found.label_errors.row(0, named=True)
    assert (suspect["doc_id"], suspect["span_index"], suspect["label"], suspect["suggested"]) == (0, 0, "cars", "food")
    assert suspect["text"] == "the soup 0 is here."
    assert found.n_documents == (25,)
    exact = found.duplicates.table.filter(pl.col("kind") == "exact")
    assert exact["doc_id"].to_list() == [3, 24]
    assert exact["text"][0] == (texts[3] if "sentence" in levels else texts[3].replace("\n\n", " "))


def test_what_cannot_be_audited_is_refused(stores: dict[str, Store], tmp_path: Path) -> None:
    how = {"layers": "-1", "limit": 20}
    tokens = bertfeat.extract(REVIEWS, tmp_path / "tokens", levels="token", **how)
    with pytest.raises(UserError, match="level token: an audit is of texts, words or spans"):
        bertfeat.audit(tokens)
    names = bertfeat.extract(REVIEWS, tmp_path / "names", levels="span", spans="[A-Z]", **how)
    with pytest.raises(UserError, match="an audit needs the texts around spans; extract the sentence level too"):
        bertfeat.audit(names)
    other = bertfeat.extract(REVIEWS, tmp_path / "mean", levels="sentence", **how)
    with pytest.raises(UserError, match="hold different features"):
        bertfeat.audit(stores["train"], other)
    numbers = pl.DataFrame({"doc_id": range(240), "label": [n + 0.5 for n in range(240)]})
    with pytest.raises(UserError, match="one class per row"):
        bertfeat.audit(stores["train"], label="label", labels=numbers)
