"""Only the rows one needs: the kept rows of a run are those of a whole run, filtered by polars, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat.errors import BertfeatWarning, ConfigError, PlanMismatch, UserError
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.estimation import estimate
from bertfeat.records import Document, Pack
from bertfeat.store.compaction import compact
from bertfeat.store.verification import verify
from tests.support.command_line import bertfeat as run_command
from tests.support.command_line import refused
from tests.support.drill import Zygote, result_files, run_killed_at, run_pooled
from tests.support.fakes import Features, grouped, letters, pairs, run, texts, word_lists
from tests.support.families import SENTENCES
from tests.support.store_fakes import write_jsonl

pytestmark = [pytest.mark.usefixtures("one_thread", "no_fsync"), pytest.mark.numeric]

TEXTS = texts("ab c", "", "a b c d e f g h i", "abcdefghijkl a", "c d", "e f")
LISTS = word_lists(["ab", "", "c", "d"], [], ["abcdefgh", "i", "j", "k"], ["a"])
WINDOWS = {"max_length": 6, "stride": 2}


def frame(found: Features, level: str) -> pl.DataFrame:
    table = found.tables[level]
    columns = {name: found.column(level, name) for name in table.columns}
    for name in table.vectors:
        columns[name] = [None if np.isnan(row).any() else row.tolist() for row in found.vectors(level, name)]
    return pl.DataFrame(columns, infer_schema_length=None)


def expected(whole: pl.DataFrame, rows: str | None, positions: list[int]) -> pl.DataFrame:
    kept = whole if rows is None else whole.filter(pl.sql_expr(rows))
    place, n = pl.int_range(pl.len()).over("doc_id"), pl.len().over("doc_id")
    return kept.filter(place.is_in(positions) | (place - n).is_in(positions)) if positions else kept


@pytest.mark.parametrize(
    ("documents", "levels", "settings"),
    [
        (TEXTS, "token,word,sentence", {}),
        (TEXTS, "token", WINDOWS),
        *((TEXTS, "word,sentence", {**WINDOWS, "word_pooling": how}) for how in ("first", "last", "mean", "max")),
        (LISTS, "word", {"max_length": 6, "on_overlong": "truncate"}),
        (pairs(("a b", "c d e f g h"), ("abcd", "c"), ("", "a")), "token,word", {"max_length": 9, "stride": 1}),
        (grouped("a b", "c", "d e f g", "a", groups="xxyy"), "token,word", {"document_context": True, **WINDOWS}),
    ],
)
@pytest.mark.parametrize(
    ("rows", "positions"),
    [
        ("char_start % 2 = 0 and doc_id != 1", []),
        ("doc_id in (0, 3) or word_index = 1", []),
        ("char_start = max(char_start)", []),
        ("word_index > 90", []),
        (None, [0, -1]),
        ("word_index > 0", [1, -2]),
    ],
)
def test_kept_rows_are_those_of_a_whole_run(
    documents: list[Document], levels: str, settings: dict[str, Any], rows: str | None, positions: list[int]
) -> None:
    same: dict[str, Any] = {"levels": levels, "layers": "1,3", "combine": "none,sum", **settings}
    whole = run(documents, letters(given_words=documents is LISTS), **same)
    some = run(documents, letters(given_words=documents is LISTS), rows=rows, positions=positions, **same)
    reference = rows and rows.replace("max(char_start)", "max(char_start) over (partition by doc_id)")
    for level in levels.split(","):
        wanted = frame(whole, level)
        if level != "sentence":
            wanted = expected(wanted, reference, positions)
            assert some.text.counts()[f"n_dropped_{level}_rows"] == whole.tables[level].n_rows - len(wanted)
        assert frame(some, level).rows() == wanted.rows()
    n_encoded = sum(pack.n_tokens for pack in some.packs)
    assert n_encoded <= sum(pack.n_tokens for pack in whole.packs)
    if "sentence" not in levels and rows == "word_index > 90":
        assert n_encoded == 0


@pytest.mark.parametrize("settings", [{"pooling": "max"}, {"pooling": "weightedmean", **WINDOWS}, {"pooling": "cls"}])
def test_sentences_are_filtered_where_they_are_the_only_level(settings: dict[str, Any]) -> None:
    whole = run(TEXTS, letters(), levels="sentence", **settings)
    some = run(TEXTS, letters(), levels="sentence", rows="n_tokens = 2 and text != 'c d'", **settings)
    assert frame(some, "sentence").rows() == frame(whole, "sentence").filter(doc_id=5).rows()
    assert sum(pack.n_tokens for pack in some.packs) == 4


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Any]:
    """A corpus with a kept column, of several shards, and the settings of a run that keeps some tokens."""
    lines = [{"id": f"d{n}", "text": " ".join(SENTENCES[n % 6].split()[: 2 + n % 9]), "n": n} for n in range(24)]
    corpus = write_jsonl(tmp_path_factory.mktemp("corpus") / "a.jsonl", lines)
    settings = {"inputs": str(corpus), "model": str(model), "id_column": "id", "layers": "1,2", "shard_bytes": 20_000}
    kept = {
        "levels": "token,sentence",
        "keep_columns": "n",
        "rows": "n % 3 > 0 and not is_special",
        "positions": "0,last",
    }
    return settings | kept


@pytest.mark.promise("workers", "kill")
def test_workers_and_kills_do_not_change_a_byte(tmp_path: Path, asked: dict[str, Any], warm: Zygote) -> None:
    some = bertfeat.extract(output=tmp_path / "some", **asked)
    assert len(some.manifest.shards) > 2
    whole = bertfeat.extract(output=tmp_path / "whole", **asked | {"rows": None, "positions": ()})
    sentences = whole.polars("sentence")
    assert some.polars("sentence").equals(sentences)
    joined = whole.polars("token").join(sentences.select("doc_id", "n"), on="doc_id", maintain_order="left")
    wanted = expected(joined, asked["rows"], [0, -1]).drop("n")
    # All windows are encoded, for the sentences: the packs are the same.
    assert some.polars("token").equals(wanted)
    dropped = whole.n_rows("token") - len(wanted)
    assert sum(receipt.counts["n_dropped_token_rows"] for receipt in some.receipts()) == dropped
    assert estimate(asked["inputs"], some_config(asked)).n_rows == {"token": len(wanted), "sentence": 24}
    assert verify(some.path).is_good
    assert recheck(some.path, n_documents=5).is_good
    (tmp_path / "pids").mkdir()
    assert (
        warm.run(run_pooled, warm.address, str(tmp_path / "pids"), str(tmp_path / "two"), asked | {"workers": 2}) == 0
    )
    assert result_files(tmp_path / "two") == result_files(some.path)
    assert warm.run(run_killed_at, 21, str(tmp_path / "killed"), asked) == -signal.SIGKILL
    with pytest.raises(PlanMismatch, match="`rows` was 'n % 3 > 0 and not is_special', now 'n > 2'; "):
        bertfeat.extract(output=tmp_path / "killed", **asked | {"rows": "n > 2"})
    with pytest.raises(PlanMismatch, match="`positions` was -1,0, now not set; "):
        bertfeat.extract(output=tmp_path / "killed", **asked | {"positions": ()})
    bertfeat.extract(output=tmp_path / "killed", **asked)
    assert result_files(tmp_path / "killed") == result_files(some.path)


def some_config(asked: dict[str, Any]) -> bertfeat.ExtractConfig:
    return bertfeat.ExtractConfig.from_dict({name: value for name, value in asked.items() if name != "inputs"})


def test_an_append_keeps_rows_as_the_store_does(tmp_path: Path, asked: dict[str, Any]) -> None:
    grown = bertfeat.extract(
        output=tmp_path / "s", **asked | {"levels": "word", "keep_columns": "", "rows": "word_index > 4"}
    )
    # The first rows are of documents without a row: their ids are not there.
    assert grown.polars("word")["doc_id"][0] != "d0"
    more = write_jsonl(tmp_path / "b.jsonl", [{"id": "new", "text": "a river and a sea and a bank"}])
    grown = bertfeat.append(grown, more)
    assert grown.polars("word")["word_index"].to_list()[-2:] == [5, 7]
    before = grown.polars("word")
    assert compact(grown, shard_bytes="9MB").polars("word").equals(before)
    summary = run_command("inspect", tmp_path / "s", "--json").json
    assert summary["levels"]["word"]["n_rows"] == len(before)
    assert summary["levels"]["word"]["n_dropped_rows"] > len(before)
    assert summary["metadata"]["rows"] == "word_index > 4"


def test_windows_without_a_kept_row_are_not_encoded(tmp_path: Path, model: Path, packs: list[Pack]) -> None:
    words = " ".join(SENTENCES).split()
    lines = [" ".join(words[(n + k * (n % 11 + 1)) % len(words)] for k in range(50)) for n in range(40)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    same = {"model": str(model), "max_length": 30, "layers": "all", "store_dtype": "float32"}
    whole = bertfeat.extract(tmp_path / "a.txt", tmp_path / "whole", **same)
    n_whole = sum(pack.n_tokens for pack in packs)
    packs.clear()
    where = "token_index % 3 = 0 and doc_id = 7"
    some = bertfeat.extract(tmp_path / "a.txt", tmp_path / "some", rows=where, **same)
    wanted = whole.polars("token").filter(pl.sql_expr(where))
    features = [feature.name for feature in some.features("token")]
    assert some.polars("token").drop(features).equals(wanted.drop(features))
    for name in features:
        np.testing.assert_allclose(some.numpy("token", name), wanted[name].to_numpy(), rtol=0, atol=1e-5)
    assert 0 < sum(pack.n_tokens for pack in packs) < n_whole / 20
    some = bertfeat.extract(tmp_path / "a.txt", tmp_path / "twentieth", rows="token_index % 20 = 0", **same)
    n_bytes = [sum(part.n_bytes for part in store.parts("token")) for store in (some, whole)]
    assert n_bytes[0] / n_bytes[1] == pytest.approx(some.n_rows("token") / whole.n_rows("token"), rel=0.1)


def test_a_cache_knows_which_rows_of_a_text_it_has(tmp_path: Path, model: Path, packs: list[Pack]) -> None:
    (tmp_path / "a.txt").write_text("a river and a sea\n" * 3 + "a fox\n")
    same = {"model": str(model), "layers": "-1", "levels": "token", "store_dtype": "float32"}
    for number, rows in enumerate(("doc_id = 1 and token_index < 4", "doc_id = 2 or token_index = 1", None)):
        plain = bertfeat.extract(tmp_path / "a.txt", tmp_path / f"plain-{number}", rows=rows, **same)
        for name in ("first", "again"):
            packs.clear()
            place = tmp_path / f"{name}-{number}"
            found = bertfeat.extract(tmp_path / "a.txt", place, rows=rows, cache=tmp_path / "cache", **same)
            assert found.polars("token").drop("layer_02").equals(plain.polars("token").drop("layer_02"))
            np.testing.assert_allclose(found.numpy("token", -1), plain.numpy("token", -1), rtol=0, atol=1e-5)
            assert bool(packs) == (name == "first")


@pytest.mark.promise("rows")
def test_no_row_at_all_is_a_valid_empty_store(tmp_path: Path, asked: dict[str, Any]) -> None:
    settings = asked | {"levels": "token", "keep_columns": "", "rows": "token = 'zebra'"}
    store = bertfeat.extract(output=tmp_path / "s", **settings)
    assert (len(store), store.n_rows("token"), store.numpy("token", -1).shape) == (24, 0, (0, 32))
    assert verify(store.path).is_good
    printed = run_command("extract", *flags(settings), "-o", tmp_path / "s")
    assert "rows    token 0 of " in printed.out


def flags(settings: dict[str, Any]) -> list[str]:
    named = {"levels": "level"}
    given = [(named.get(k, k).replace("_", "-"), v) for k, v in settings.items() if k != "inputs" and v]
    return [settings["inputs"], *(f"--{name}={value}" for name, value in given)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"levels": "token,word", "rows": "is_special"}, "--rows 'is_special': no column 'is_special' at level word; "),
        ({"rows": "nope = 3"}, "no column 'nope' at level token; columns are doc_id, token_index, "),
        ({"rows": 'token = "a"'}, "no column 'a' at level token; "),
        ({"rows": "token_index = 'x'"}, "not an SQL condition on these columns: cannot compare string with numeric"),
        ({"rows": "token_index +"}, "not an SQL condition on these columns: "),
        ({"rows": "token_index"}, "--rows 'token_index': gives Int32, where a condition is true or false"),
        ({"rows": "1 = 1"}, "--rows '1 = 1': names no column; columns are doc_id, "),
        ({"rows": " "}, "--rows ' ': not an SQL condition on these columns: "),
        ({"positions": "0,first"}, "--positions 'first' is not a position; write numbers and last, such as 0,1,last"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, asked: dict[str, Any], changed: dict[str, Any], said: str) -> None:
    settings = asked | {"levels": "token", "keep_columns": "", "positions": ""} | changed
    assert said in refused("extract", *flags(settings), "-o", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_positions_and_texts_in_memory() -> None:
    config = bertfeat.ExtractConfig.from_dict
    for given in ("last, 0,-1", ["last", 0], (0, -1)):
        assert config({"positions": given}).positions == (-1, 0)
    assert config({"positions": 3}).positions == (3,)
    for wrong in ("", "1..2", [0.5], ["first"]):
        with pytest.raises(ConfigError, match="is not a position"):
            config({"positions": wrong})
    with pytest.raises(UserError, match="no setting 'rows' for texts in memory"):
        bertfeat.embed(["a"], rows="word = 'a'")  # type: ignore[call-arg]


def test_what_reads_words_knows_of_gaps(tmp_path: Path, model: Path) -> None:
    tags = {"the": "O", "brown": "B-x", "fox": "I-x", "jumps": "O", "and": "O", "buys": "B-y", "sea": "B-x"}
    (tmp_path / "a.conll").write_text(("\n".join(f"{word} {tag}" for word, tag in tags.items()) + "\n\n") * 6)
    same = {"model": str(model), "layers": "-1", "levels": "word", "rows": "label != 'O'"}
    store = bertfeat.extract(tmp_path / "a.conll", tmp_path / "s", **same)
    assert store.polars("word", ["word_index"]).to_series().to_list()[:4] == [1, 2, 5, 6]
    found = bertfeat.search.words_in_context(store, [1, 2])
    assert [context.marked() for context in found] == ["brown [fox] … buys sea", "brown fox … [buys] sea"]
    with pytest.warns(BertfeatWarning, match="holds some words of each document only"):
        probe = bertfeat.fit_probe(store, "label", head="centroid")
    with pytest.warns(BertfeatWarning, match="a tagger and the score of entities take"):
        probe.score(store)
    with pytest.warns(BertfeatWarning, match="for neighbors"):
        bertfeat.fit_probe(store, "word", head="bilstm", params={"max_epochs": 1, "hidden_size": 4})
