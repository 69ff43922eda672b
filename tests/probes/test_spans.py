"""Probes of spans: labels come with them, documents stay whole, and a rule finds the spans of new texts again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bertfeat
from bertfeat import fit_probe
from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.probes.comparison import compare_probes
from bertfeat.probes.fitted import FittedProbe, load_probe
from bertfeat.probes.fitting import sweep_probes
from bertfeat.probes.rows import select_rows
from bertfeat.probes.slim import slim_probe
from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.probe_stores import blocks

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = {
    "text": [f"{who} came to {place} .\n\n{place} is far ." for who in ("Ann", "Bob", "Eve") for place in "PQRS"],
    "kind": ["a", "b"] * 6,
}
PATTERN = r"\b[A-Z]\w*"


def mentions_of(tagged: list[str]) -> list[dict[str, Any]]:
    """Return the entities of sentences in the BIO scheme, each with its words and type."""
    found: list[dict[str, Any]] = []
    for doc_id, block in enumerate(tagged):
        for word, line in enumerate(block.splitlines()):
            tag, _, kind = line.split("\t")[-1].partition("-")
            if tag == "B":
                found.append({"doc_id": doc_id, "word_start": word, "word_end": word + 1, "type": kind})
            elif tag == "I":
                found[-1]["word_end"] = word + 1
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spans")


@pytest.fixture(scope="module")
def mentions(folder: Path) -> list[Store]:
    """The entities of WNUT-17 as spans of given words: a store to learn from, and one of other sentences."""
    with_entity, made = [block for block in blocks("wnut17_test.conll") if "\tB-" in block], []
    for name, own in (("train", with_entity[:-40]), ("dev", with_entity[-40:])):
        corpus, spans = folder / f"{name}.conll", folder / f"{name}.csv"
        corpus.write_text("\n\n".join(own) + "\n", "utf-8")
        pl.DataFrame(mentions_of(own)).write_csv(spans)
        how: dict[str, Any] = {"levels": "span", "spans": str(spans), "span_pooling": "ends", "layers": "4,5"}
        made.append(bertfeat.extract(corpus, folder / name, **how))
    return made


@pytest.fixture(scope="module")
def typed(mentions: list[Store]) -> FittedProbe:
    return fit_probe(mentions[0], "type", feature=5)


@pytest.fixture(scope="module")
def names(folder: Path) -> Store:
    return bertfeat.extract(
        TEXTS, folder / "names", levels="span", spans=PATTERN, layers="5,6", combine="none,concat", keep_columns="kind"
    )


def test_entity_types_from_spans(mentions: list[Store], typed: FittedProbe) -> None:
    score = typed.score(mentions[1])
    types = mentions[1].polars("span", ["type"])["type"]
    majority = types.value_counts()["count"].max() / len(types)  # type: ignore[operator]
    assert score.values["accuracy"] > majority + 0.2
    assert score.intervals["accuracy"].low > majority


def test_the_spans_of_a_document_stay_together(names: Store) -> None:
    rows = select_rows(names, Level.SPAN, "layer_06", "kind", None)
    assert rows.lengths is not None
    assert rows.lengths.tolist() == [3] * 12, "what a bootstrap draws, and a split"
    sweep = sweep_probes(names, "kind", features="layer_06", hold_out=0.25)
    assert (sweep.n_train, sweep.n_dev) == (27, 9)


def test_new_texts_have_spans_by_the_same_rule(names: Store, folder: Path) -> None:
    probe = fit_probe(names, "kind", feature="concat_05_06")
    want = probe.predict(names)
    assert want.columns == ["doc_id", "span_index", "text", "prediction", "probability"]
    assert want["text"][:3].to_list() == ["Ann", "P", "P"]
    probe.save(folder / "probe")
    again = load_probe(folder / "probe")
    assert again.predict(TEXTS["text"]).equals(want)
    got = again.predict(TEXTS, columns="char_start", label="kind")
    assert got.select(want.columns).equals(want)
    assert got.select("char_start", "kind").equals(names.polars("span", ["char_start", "kind"]))
    assert again.predict(["no name here"]).height == 0
    alone = {"levels": "span", "chunk": "paragraphs", "chunk_context": "alone", "pooling": "cls", "layers": "-1"}
    chunks = bertfeat.extract(TEXTS, folder / "chunks", keep_columns="kind", **alone)
    probe = fit_probe(chunks, "kind")
    assert probe.predict(TEXTS["text"]).equals(probe.predict(chunks))
    got = probe.predict(TEXTS, columns="truncated", label="kind")
    assert got["prediction"].equals(probe.predict(chunks)["prediction"])
    assert got["kind"].equals(chunks.polars("span", ["kind"])["kind"]), "kept with the documents"
    with pytest.raises(UserError, match="level span needs the spans of a text"):
        again.ship(folder / "shipped")
    shipped = probe.ship(folder / "shipped")
    assert shipped.labels == ("a", "b")


def test_spans_of_a_file_must_be_given_again(typed: FittedProbe, folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"learned from a file of spans.*; extract the texts with a file of their spans"
    ):
        typed.predict(["Ann came"])
    typed.save(folder / "typed")
    said = refused("probe", "predict", folder / "typed", folder / "dev.conll", "-o", folder / "o.csv", "--quiet")
    assert "learned from a file of spans" in said


def test_two_spans(folder: Path) -> None:
    rows = [
        {"doc_id": n, "char_start": 0, "char_end": 3, "char_start_2": 12, "char_end_2": 13, "kind": kind}
        for n, kind in enumerate(TEXTS["kind"])
    ]
    pl.DataFrame(rows).write_csv(folder / "pairs.csv")
    spans = str(folder / "pairs.csv")
    texts = {"text": TEXTS["text"]}
    pairs = bertfeat.extract(texts, folder / "pairs", levels="span", spans=spans, span_pair="concat", layers="5,6")
    best = slim_probe(pairs, "kind", heads="centroid", features="layer_05", hold_out=0.3, test_share=0.3)
    assert best.probe.predict(pairs)["prediction"].null_count() == 0
    with pytest.raises(UserError, match="learned from a file of spans"):
        best.probe.predict(texts)


def test_other_work_with_probes(mentions: list[Store], typed: FittedProbe, folder: Path) -> None:
    train, dev = mentions
    sweep = sweep_probes(train, "type", head="centroid", dev=dev, features="layer_04,mean_04_05", baselines="majority")
    assert [row.feature for row in (*sweep.rows, *sweep.baselines)] == ["layer_04", "mean_04_05", "majority"]
    coded = good(
        *("probe", "sweep", train.path, "--label", "type", "--features", "5", "--mdl", "--dev", dev.path, "--json"),
        *("--head", "logreg", "-o", folder / "sweep"),
    )
    assert coded.json["rows"][0]["controls"]["compression"] > 1
    other = fit_probe(train, "type", feature=4, head="centroid")
    compared = compare_probes(typed, other, dev)
    assert sum(compared.right.values()) == dev.n_rows("span")
    assert compared.mcnemar_p is None, "several rows belong to one document"
    for settings, message in (
        ({"control": True}, "control needs words that repeat, and level span has texts"),
        ({"baselines": "type"}, "type needs words that repeat"),
        ({"head": "bilstm"}, "head bilstm tags the words or tokens of a document"),
    ):
        with pytest.raises(UserError, match=message):
            sweep_probes(train, "type", dev=dev, **settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="extract with labels in the table of `spans`, or pass labels"):
        fit_probe(bertfeat.extract(TEXTS, folder / "bare", levels="span", spans=PATTERN, layers="0"), "kind")
