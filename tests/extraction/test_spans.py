"""Spans: rows for stretches of characters, pooled from the token rows that overlap them, or encoded alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.errors import ConfigError, RunError
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.estimation import estimate
from bertfeat.store.compaction import compact
from bertfeat.store.verification import verify
from tests.support.command_line import refused
from tests.support.drill import Zygote, result_files, run_killed_at
from tests.support.fakes import grouped, letters, run, texts, word_lists
from tests.support.families import SENTENCES, build_model
from tests.support.store_fakes import write_jsonl

pytestmark = [pytest.mark.usefixtures("one_thread", "no_fsync"), pytest.mark.numeric]

TEXTS = texts("ab c", "", "a b c d e f g h i", "abcdefghijkl a", "c d", "e f")
LISTS = word_lists(["ab", "", "c", "d"], [], ["abcdefgh", "i", "j", "k"], ["a"])
REDUCE = {"mean": np.mean, "max": np.max, "first": lambda rows, axis: rows[0], "last": lambda rows, axis: rows[-1]}


@pytest.mark.parametrize(
    ("documents", "settings"),
    [
        (TEXTS, {}),
        (TEXTS, {"max_length": 6, "stride": 2}),
        (TEXTS, {"max_length": 6, "stride": 2, "on_overlong": "truncate"}),
        (TEXTS, {"max_length": 7, "stride": 2, "prompt": "x y "}),
        (LISTS, {"max_length": 6, "stride": 1}),
        (grouped("a b", "c", "d e f g", "a", groups="xxyy"), {"document_context": True, "max_length": 6, "stride": 2}),
    ],
)
@pytest.mark.parametrize("rule", [{"spans": "b.*f|(?<=e)f+|c d|a"}, {"chunk": "tokens:3:2"}, {"spans": "words:C,ab"}])
@pytest.mark.parametrize("pooling", [*REDUCE, "ends"])
@pytest.mark.promise("spans")
def test_a_span_is_pooled_from_the_token_rows_that_overlap_it(
    documents: Any, settings: dict[str, Any], rule: dict[str, str], pooling: str
) -> None:
    same = {"levels": "token,span", "span_pooling": pooling, "layers": "1,3", "combine": "none,concat,sum"}
    asked = {**same, **rule, **settings}
    found = run(documents, letters(given_words=documents is LISTS).with_prompt(asked.pop("prompt", "")), **asked)
    bounds = np.ma.filled(np.ma.array([found.column("token", name) for name in ("char_start", "char_end")], object), -1)
    starts, ends = (np.array([-1 if place is None else place for place in side]) for side in bounds)
    of_token, n_rows = np.array(found.column("token", "doc_id")), found.tables["span"].n_rows  # type: ignore[index]
    keys = ("doc_id", "char_start", "char_end", "text", "n_tokens")
    rows = list(zip(*(found.column("span", name) for name in keys), strict=True))
    assert n_rows
    for row, (document, start, end, text, n_tokens) in enumerate(rows):
        assert documents[document].text[start:end] == text
        own = np.flatnonzero((of_token == document) & (starts < end) & (ends > start))
        assert len(own) == n_tokens
        for layer in ("layer_01", "layer_03", "sum_01_03"):
            vector, tokens = found.vectors("span", layer)[row], found.vectors("token", layer)[own]
            if not len(own):
                assert np.isnan(vector).all()
            elif pooling == "ends":
                np.testing.assert_array_equal(vector, np.concatenate([tokens[0], tokens[-1]]))
            else:
                np.testing.assert_allclose(vector, REDUCE[pooling](tokens, axis=0), rtol=1e-6)
        both = [found.vectors("span", layer)[row] for layer in ("layer_01", "layer_03")]
        np.testing.assert_array_equal(found.vectors("span", "concat_01_03")[row], np.concatenate(both))


@pytest.mark.parametrize("settings", [{}, {"max_length": 6, "stride": 2}])
def test_a_span_over_the_whole_text_is_its_sentence(settings: dict[str, Any]) -> None:
    found = run(TEXTS, letters(), levels="span,sentence", spans="(?s).+", **settings)
    sentences = found.vectors("sentence")[[bool(document.text) for document in TEXTS]]
    np.testing.assert_array_equal(found.vectors("span"), sentences)


def test_only_windows_with_a_span_are_encoded() -> None:
    assert sum(pack.n_tokens for pack in run(TEXTS, letters(), levels="span", spans="words:ab").packs) == 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": f"d{n}", "text": "\n\n".join(SENTENCES[n % 6 : n % 6 + 3]), "n": n} for n in range(12)]
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "a.jsonl", rows)


@pytest.fixture(scope="module")
def mentions(corpus: Path) -> Path:
    """A table of two spans per row, some nested, and a label of each."""
    rows = [
        {"doc_id": f"d{n}", "char_start": n % 3, "char_end": 8, "char_start_2": 2, "char_end_2": 5 + n, "label": n % 2}
        for n in (3, 0, 3, 7, 11)
    ]
    path = corpus.with_name("pairs.csv")
    pl.DataFrame(rows).write_csv(path)
    return path


@pytest.mark.parametrize(
    ("family", "levels", "pooling", "chunk", "prompt"),
    [
        (None, "span", "mean", "paragraphs", None),
        (None, "word,span,sentence", "cls", "sentences", None),
        (None, "span", "model", "tokens:9:3", None),
        (None, "span", "mean", "tokens:9", "query: "),
        ("bert", "span", "pooler", "paragraphs", None),
        ("roberta", "token,span", "max", "sentences", "query: "),
        ("modernbert", "span", "mean", "tokens:9:3", None),
        ("qwen3", "span", "lasttoken", "paragraphs", "query: "),
    ],
)
@pytest.mark.promise("spans")
def test_chunks_alone_are_encoded_as_texts(
    tmp_path: Path, corpus: Path, family: str | None, levels: str, pooling: str, chunk: str, prompt: str | None
) -> None:
    asked = {"chunk": chunk, "chunk_context": "alone", "store_dtype": "float32", "limit": 4}
    model = "minilm" if family is None else str(build_model(family, tmp_path / "model"))
    same: dict[str, Any] = {"model": model, "pooling": pooling, "layers": "-1", "prompt": prompt}
    store = bertfeat.extract(corpus, tmp_path / "s", levels=levels, **same, **asked)
    spans = store.polars("span")
    vectors = store.numpy("span", spans.columns[-1])
    own = bertfeat.embed(spans["text"].to_list(), **same)
    np.testing.assert_allclose(vectors, own, atol=1e-5, rtol=0)
    assert spans.height > 8
    whole = pl.read_ndjson(corpus)["text"]
    for row in spans.iter_rows(named=True):
        assert whole[row["doc_id"]][row["char_start"] : row["char_end"]] == row["text"]


@pytest.mark.parametrize("levels", ["span", "word,span", "word,span,sentence"])
@pytest.mark.promise("spans")
def test_chunks_alone_of_static_vectors_leave_out_unknown_words(tmp_path: Path, glove: Path, levels: str) -> None:
    unknown, known = "zzz qqq", SENTENCES[0]
    texts = [f"{known}\n\n{unknown}\n\n{known} zzz", unknown, f"zzz {SENTENCES[2]}"]
    same: dict[str, Any] = {"model": str(glove), "store_dtype": "float32"}
    store = bertfeat.extract(texts, tmp_path / "s", levels=levels, chunk="paragraphs", chunk_context="alone", **same)
    chunks = store.polars("span")["text"].to_list()
    own = bertfeat.extract(chunks, tmp_path / "own", levels="sentence", **same)
    (feature,) = [each.name for each in own.features("sentence")]
    vectors = own.numpy("sentence", feature)
    assert np.isnan(vectors).all(axis=1).tolist() == [text == unknown for text in chunks]
    np.testing.assert_array_equal(store.numpy("span", feature), vectors)
    # Tokens are counted in the documents and in the chunks, where both are encoded.
    counts, of_chunks = store.manifest.totals.counts, own.manifest.totals.counts
    for name in ("n_unknown_tokens", "n_tokens"):
        assert counts[name] == (1 if levels == "span" else 2) * of_chunks[name]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_table_brings_its_columns_and_pairs(tmp_path: Path, corpus: Path, mentions: Path, ending: str) -> None:
    frame, path = pl.read_csv(mentions), tmp_path / f"m.{ending}"
    write = {"parquet": frame.write_parquet, "jsonl": frame.write_ndjson}
    write.get(ending, lambda place: frame.write_csv(place, separator="\t" if ending == "tsv" else ","))(path)
    same: dict[str, Any] = {"id_column": "id", "layers": "-2,-1", "combine": "none,concat", "store_dtype": "float32"}
    same |= {"levels": "span", "spans": str(path)}
    joined = bertfeat.extract(corpus, tmp_path / "c", span_pair="concat", keep_columns="n", **same)
    minus = bertfeat.extract(corpus, tmp_path / "d", span_pair="diff", **same)
    rows = joined.polars("span")
    assert rows["doc_id"].to_list() == ["d0", "d3", "d3", "d7", "d11"]
    assert rows["n"].to_list() == [0, 3, 3, 7, 11]
    assert list(map(str, rows["label"])) == ["0", "1", "1", "1", "1"]
    assert rows["text_2"].str.len_chars().to_list() == [3, 6, 6, 10, 14]
    vectors = joined.numpy("span", "layer_06")
    half = vectors.shape[1] // 2
    np.testing.assert_array_equal(minus.numpy("span", "layer_06"), vectors[:, :half] - vectors[:, half:])
    made = np.concatenate([joined.numpy("span", "layer_05"), vectors], axis=1)
    np.testing.assert_array_equal(joined.numpy("span", "concat_05_06"), made)


def test_given_words_have_bounds_in_words(tmp_path: Path) -> None:
    frame = pl.DataFrame({"words": [["Angela", "Merkel", "spoke"], ["in", "New", "York"]]})
    pl.DataFrame({"doc_id": [1, 0], "word_start": [1, 0], "word_end": [3, 2]}).write_csv(tmp_path / "s.csv")
    asked = {"text_column": "words", "is_split_into_words": True, "layers": "-1"}
    store = bertfeat.extract(frame, tmp_path / "s", levels="span", spans=str(tmp_path / "s.csv"), **asked)
    assert store.polars("span", ["text"])["text"].to_list() == ["Angela Merkel", "New York"]
    alone = {**asked, "chunk": "paragraphs", "chunk_context": "alone"}
    with pytest.raises(ConfigError, match="encodes texts, and the corpus gives words; leave it out"):
        bertfeat.extract(frame, tmp_path / "alone", levels="span", **alone)


def test_a_table_that_changes_after_the_plan_ends_the_run(tmp_path: Path, corpus: Path, model: Path) -> None:
    table = write_spans(tmp_path / "s.csv")

    class Changing(bertfeat.Progress):
        def start(self, *_: Any) -> None:
            write_spans(table, char_end=14)

    asked = {"model": str(model), "id_column": "id", "layers": "-1", "levels": "span", "spans": str(table)}
    with pytest.raises(RunError, match="not as in the plan of the run: the digest of the file of `spans` was"):
        bertfeat.extract(corpus, tmp_path / "s", progress=Changing(), **asked)


@pytest.mark.promise("kill")
def test_kills_appends_and_caches_do_not_change_a_row(
    tmp_path: Path, corpus: Path, mentions: Path, model: Path, warm: Zygote
) -> None:
    asked: dict[str, Any] = {"inputs": str(corpus), "model": str(model), "id_column": "id", "layers": "1,2"}
    asked |= {"shard_bytes": 10_000, "levels": "token,span", "spans": str(mentions), "span_pair": "concat"}
    whole = bertfeat.extract(output=tmp_path / "whole", **asked)
    assert len(whole.manifest.shards) > 2
    assert verify(whole.path).is_good
    assert recheck(whole.path, n_documents=5).is_good
    told = {name: value for name, value in asked.items() if name != "inputs"}
    assert estimate(str(corpus), bertfeat.ExtractConfig.from_dict(told)).n_rows["span"] == 5
    assert warm.run(run_killed_at, 21, str(tmp_path / "killed"), asked) == -signal.SIGKILL
    # The bytes of the table count, and not its path.
    moved = mentions.with_name("moved.csv")
    moved.write_bytes(mentions.read_bytes())
    bertfeat.extract(output=tmp_path / "killed", **asked | {"spans": str(moved)})
    assert result_files(tmp_path / "killed") == result_files(whole.path)

    cached = {**asked, "cache": str(tmp_path / "cache")}
    for name in ("first", "second"):
        store = bertfeat.extract(output=tmp_path / name, **cached)
        assert store.polars("span").equals(whole.polars("span"))
    assert sum(receipt.notes["n_cached_documents"] for receipt in store.receipts()) == 12
    others = tmp_path / "others.csv"
    pl.read_csv(mentions).with_columns(pl.col("char_end") + 3).write_csv(others)
    changed = bertfeat.extract(output=tmp_path / "third", **cached | {"spans": str(others)})
    assert not changed.polars("span").equals(whole.polars("span"))
    assert sum(receipt.notes["n_cached_documents"] for receipt in changed.receipts()) == 8

    more = write_jsonl(tmp_path / "more.jsonl", [{"id": "e0", "text": SENTENCES[0], "n": 1}])
    pl.read_csv(mentions).head(1).with_columns(doc_id=pl.lit("e0")).write_csv(others)
    grown = bertfeat.append(whole.path, more, spans=str(others))
    assert grown.polars("span")["doc_id"].to_list()[-2:] == ["d11", "e0"]
    assert compact(whole.path).polars("span").equals(grown.polars("span"))


def test_rows_chooses_spans(tmp_path: Path, corpus: Path) -> None:
    for context in ("document", "alone"):
        asked = {"chunk": "paragraphs", "chunk_context": context, "layers": "-1", "levels": "span"}
        whole = bertfeat.extract(corpus, tmp_path / f"{context}-whole", **asked)
        some = bertfeat.extract(corpus, tmp_path / context, rows="n_tokens > 8", positions="last", **asked)
        last = whole.polars("span").filter(pl.col("n_tokens") > 8).group_by("doc_id", maintain_order=True).last()
        assert some.polars("span", ["doc_id", "span_index", "text"]).equals(last.select("doc_id", "span_index", "text"))


def write_spans(path: Path, **changes: Any) -> Path:
    row = {"doc_id": "d3", "char_start": 0, "char_end": 4} | changes
    pl.DataFrame([{name: value for name, value in row.items() if value is not None}]).write_csv(path)
    return path


@pytest.mark.parametrize(
    ("changes", "flags", "message"),
    [
        ({"char_end": 99_999}, (), "s.csv:1: characters 0 to 99999 are not a span of document 'd3', which has"),
        ({"char_start": 4}, (), "s.csv:1: characters 4 to 4 are not a span of document 'd3'"),
        ({"doc_id": "x"}, (), "s.csv:1: document 'x' is not in the corpus; check the ids, or leave the span out"),
        ({"char_end": "four"}, (), "s.csv:1: char_end 'four' is not a whole number"),
        ({"char_end": None}, (), "spans have doc_id, char_start and char_end"),
        ({"text": "x"}, (), "column 'text' has the name of a column that bertfeat writes; rename it"),
        ({"char_start_2": 0, "char_end_2": 3}, (), "has two spans in each row"),
        ({}, ("--span-pair", "concat"), "--span-pair needs char_start_2 and char_end_2"),
        ({}, ("--chunk", "paragraphs"), "--spans and --chunk both give spans; pass one of them"),
        (None, (), "--level span needs its spans"),
        (None, ("--spans", "a("), "'a(' is neither a file nor a regular expression"),
        (None, ("--spans", "words:,"), "'words:,' names no word; write words:bank,banks"),
        (None, ("--spans", "gone.csv"), "gone.csv: no such file"),
        (None, ("--chunk", "pages"), "'pages' is not a way to cut; write paragraphs, sentences"),
        (None, ("--chunk", "tokens:8:8"), "the overlap leaves no step; make it less than 8"),
        (None, ("--chunk", "paragraphs", "--text-pair-column", "text"), "takes no second text"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, corpus: Path, changes: dict[str, Any] | None, flags: tuple[str, ...], message: str
) -> None:
    spans = () if changes is None else ("--spans", write_spans(tmp_path / "s.csv", **changes))
    place = ("extract", corpus, "-o", tmp_path / "store", "--level", "span", "--id-column", "id")
    assert message in refused(*place, *spans, *flags)
    assert not (tmp_path / "store").exists()


def test_settings_of_spans_without_them_are_refused(tmp_path: Path, corpus: Path) -> None:
    said = refused("extract", corpus, "-o", tmp_path / "s", "--chunk", "paragraphs")
    assert "--chunk would not be stored without the span level" in said
