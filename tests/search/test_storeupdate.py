"""Update of an index with new rows: it is then the same as a new one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bertfeat
from bertfeat.errors import BertfeatWarning, UserError
from bertfeat.serve.answers import Answers
from bertfeat.store.compaction import compact
from bertfeat.store.reader import Store
from tests.support.command_line import good
from tests.support.index_stores import contents, documents, tiny_store, write_jsonl
from tests.support.runner_fakes import Heard

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Store, Store]:
    """A small store, and the same with more rows."""
    folder = tmp_path_factory.mktemp("tiny")
    return tuple(tiny_store(folder / str(n), tiny_folder, documents(n), levels="sentence,word") for n in (8, 12))


class TestUpdate:
    @pytest.mark.parametrize(
        ("level", "metric", "transform"),
        [("sentence", "l2", "none"), ("word", "cosine", "truncate:16")],
    )
    def test_flat_is_the_same_as_a_new_index(
        self, tiny: tuple[Store, Store], tmp_path: Path, level: str, metric: str, transform: str
    ) -> None:
        store, grown = tiny
        how = {"metric": metric, "transform": transform, "factory": "Flat", "threads": 1}
        settings = {"level": level, **how}
        bertfeat.build_index(store, tmp_path / "index", **settings).close()
        heard = Heard()
        with bertfeat.open_index(tmp_path / "index").update(grown, progress=heard) as updated:
            assert updated.store is grown
            with bertfeat.build_index(grown, tmp_path / "new", **settings) as new:
                assert updated.n_vectors == new.n_vectors > updated.description.measured["n_vectors_trained_on"]
                query = documents()[3]["text"] if level == "sentence" else "the [bank] of the river"
                assert updated.search(query, 20).equals(new.search(query, 20))
                assert updated.origin.rows_digest == new.origin.rows_digest
                for name in ("recall_at_10", "n_queries", "bytes_per_vector"):
                    assert updated.description.measured[name] == new.description.measured[name]
        assert contents(tmp_path / "index") == contents(tmp_path / "new")
        assert heard.said[0] == "comparing rows"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "new"]

    def test_other_indexes_are_tuned_and_measured_again(self, tiny: tuple[Store, Store], tmp_path: Path) -> None:
        settings = {"level": "word", "factory": "IVF8,PQ16x4fs,Refine(SQ8)", "transform": "center", "threads": 1}
        bertfeat.build_index(tiny[0], tmp_path / "index", recall=0.9, **settings).close()
        learned = contents(tmp_path / "index")["transform.safetensors"]
        with bertfeat.open_index(tmp_path / "index").update(tiny[1]) as updated:
            assert updated.description.n_vectors == tiny[1].n_rows("word")
            assert updated.description.measured["recall_at_10"] >= 0.9
            assert contents(tmp_path / "index")["transform.safetensors"] == learned
            # New rows are found as well as old ones.
            last = tiny[1].n_rows("word") - 1
            found = updated.search(tiny[1].take("word", "layer_03", [last]), 1, columns=["row"])
            assert found["row"].to_list() == [last]


class TestRefused:
    def test_a_store_with_other_rows_before(self, tiny: tuple[Store, Store], tmp_path: Path, tiny_folder: Path) -> None:
        bertfeat.build_index(tiny[0], tmp_path / "index", level="word").close()
        before = contents(tmp_path / "index")
        rows = documents(12)
        for name, changed in {
            "renamed": [{**rows[0], "id": "other"}, *rows[1:]],
            "reworded": [*rows[:5], {**rows[5], "text": rows[5]["text"].upper() + " again"}, *rows[6:]],
        }.items():
            store = tiny_store(tmp_path / name, tiny_folder, changed, levels="sentence,word")
            with pytest.raises(UserError, match=r"its first 447 rows are not those of .*index"):
                bertfeat.open_index(tmp_path / "index").update(store)
        assert contents(tmp_path / "index") == before


@pytest.mark.parametrize(("level", "compacts"), [("sentence", False), ("word", True)])
def test_after_an_append_the_indexed_rows_are_found_and_a_warning_names_the_command(
    tiny_folder: Path, tmp_path: Path, level: str, compacts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shorter form of a path is shown: from here, the absolute one.
    monkeypatch.chdir("/usr/lib")
    store, rows = tiny_store(tmp_path / "a", tiny_folder, documents(8), levels="sentence,word"), documents(12)
    if compacts:
        store = compact(store)
    index, queries = tmp_path / "my index", store.take(level, "layer_03", [0, 5, 11])
    how = {"where": "n > 2", "columns": ["row", "doc_id", "n", "text"]}
    bertfeat.build_index(store, index, level=level, threads=1).close()
    text = ("search", index, "on the [bank]" if level == "word" else "on the bank", "--where", "n > 2")
    with bertfeat.open_index(index) as held:
        expected, printed = held.search(queries, 50, **how), good(*text)
        assert printed.err == ""
        for part in (rows[len(documents(8)) :], [{"id": "later", "text": "He sat on the bank", "label": None, "n": 9}]):
            more = write_jsonl(tmp_path / "more.jsonl", part)
            grown = bertfeat.append(store, more)
            # An index that is open keeps the rows that it knows.
            assert held.search(queries, 50, **how).equals(expected)
            n_rows = grown.n_rows(level)
            said = (
                f"{n_rows - store.n_rows(level)} of {n_rows} {level} rows are not in {index} yet; run bertfeat index "
            )
            said += f"update '{index}' {store.path}"
            with bertfeat.open_index(index) as opened:
                with pytest.warns(BertfeatWarning, match=re.escape(said)) as found:
                    assert opened.search(queries, 50, **how).equals(expected)
                assert len(found) == 1
                if level == "word":
                    assert opened.contexts(expected["row"][:9]) == held.contexts(expected["row"][:9])
            with bertfeat.open_index(index) as opened, pytest.warns(BertfeatWarning, match="not in"):
                Answers(opened)
            again = good(*text)
            assert again.out == printed.out
            assert again.err == f"bertfeat: warning: {store.path}: {said}\n"
        with pytest.raises(UserError, match="before rows were added; run bertfeat index update"):
            bertfeat.build_index(grown, index, level=level, threads=1)
    good("index", "update", index, store.path)
    with bertfeat.open_index(index) as opened:
        assert "later" in opened.search(grown.take(level, "layer_03", [n_rows - 1]), 1)["doc_id"]
    assert good(*text).err == ""
