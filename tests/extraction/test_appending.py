"""Appends to a finished store: rows, ids, settings, what is refused, and what readers see meanwhile."""

from __future__ import annotations

import json
import shutil

import numpy as np
import polars as pl
import pytest

from bertfeat.durable import steps
from bertfeat.errors import InputError, PlanMismatch, RunError, StoreError, UserError
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.run import append, extract
from bertfeat.store.reader import open_store
from bertfeat.store.verification import mark_for_redoing, verify
from tests.support.command_line import run_cli
from tests.support.drill import orphans, result_files, three_shards, write_corpus
from tests.support.store_fakes import part_at, write_jsonl

pytestmark = [pytest.mark.promise("append"), pytest.mark.usefixtures("one_thread"), pytest.mark.numeric]


@pytest.fixture
def later(tmp_path):
    """Two more inputs, of documents that the corpus lacks."""
    lines = write_corpus(tmp_path / "all.jsonl", 54).read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join(lines[24:48]))
    (tmp_path / "c.jsonl").write_text("".join(lines[48:]))
    return [str(tmp_path / "b.jsonl"), str(tmp_path / "c.jsonl")]


@pytest.fixture(scope="module")
def base(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("base")
    return extract(output=folder / "s", **three_shards(folder, model)).path


@pytest.fixture
def root(tmp_path, base):
    """A store of the inputs in `settings`, which it knows by another path."""
    return shutil.copytree(base, tmp_path / "s")


@pytest.mark.promise("append")
def test_new_shards_come_after_the_old_ones_which_are_not_touched(tmp_path, settings, root, later):
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in root.rglob("*.parquet")}
    for number, inputs in enumerate(later):
        store = append(root, inputs)
        apart = extract(output=tmp_path / f"apart{number}", **settings | {"inputs": inputs})
        before_it, after_it = store.manifest.history[-2:]
        assert after_it.n_shards - before_it.n_shards == len(store.plan.shards) == len(apart.plan.shards)
        for level in apart.levels:
            n_rows = apart.n_rows(level)
            assert store.polars(level).tail(n_rows).equals(apart.polars(level))
            assert np.array_equal(store.numpy(level, -1)[-n_rows:], apart.numpy(level, -1), equal_nan=True)
    assert store.manifest.history[0].n_shards > 1
    for version, n_documents in enumerate((24, 48, 54)):
        earlier = open_store(root, version=version)
        assert (len(earlier), earlier.version) == (n_documents, version)
        for level in earlier.levels:
            assert earlier.polars(level).equals(store.polars(level).head(earlier.n_rows(level)))
    # A glob gives the rows of the newest version, in order.
    for level in store.levels:
        assert pl.read_parquet(root / level / "*.parquet").equals(store.polars(level))
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in before} == before
    assert store.polars("sentence")["doc_id"].to_list() == [f"d{n}" for n in range(54)]
    assert verify(root).is_good
    assert recheck(root, n_documents=12).is_good
    assert orphans(root) == []


def test_an_input_that_is_there_is_left_out_and_the_same_call_does_nothing(settings, root, later):
    grown = append(root, later)
    files = {file: file.stat().st_mtime_ns for file in root.rglob("*") if file.is_file()}
    for inputs in (later, later[0], settings["inputs"]):
        assert append(root, inputs).manifest == grown.manifest
    assert extract(output=root, **settings).manifest == grown.manifest
    with pytest.raises(PlanMismatch, match="the store has grown; pass new inputs with `append`"):
        extract(output=root, **settings | {"inputs": [settings["inputs"], *later]})
    assert {file: file.stat().st_mtime_ns for file in files if file.name != "lock"} == {
        file: time for file, time in files.items() if file.name != "lock"
    }


def test_row_numbers_go_on_over_documents_and_bad_rows(tmp_path, settings):
    paths = [write_corpus(tmp_path / f"{name}.jsonl", 10, bad_every=4) for name in "ab"]
    paths[1].write_text(paths[1].read_text().replace("d", "e"))
    numbered = settings | {"id_column": None, "bad_rows": "quarantine", "inputs": str(paths[0])}
    root = extract(output=tmp_path / "n", **numbered).path
    store = append(root, str(paths[1]))
    bad = [row.index for row in store.bad_rows()]
    assert bad == [1, 5, 9, 11, 15, 19]
    assert store.polars("sentence")["doc_id"].to_list() == [n for n in range(20) if n not in bad]
    assert store.manifest.totals.n_bad_rows == 6


@pytest.fixture
def kept(tmp_path, model):
    """A store of two appends, with columns that are kept."""
    rows = [{"id": name, "text": "One.", "x": 0.5, "n": 1} for name in "abc"]
    settings = {"model": str(model), "levels": "sentence", "layers": "2", "id_column": "id", "keep_columns": "x,n"}
    extract(write_jsonl(tmp_path / "a.jsonl", rows[:1]), tmp_path / "k", **settings)
    append(tmp_path / "k", write_jsonl(tmp_path / "b.jsonl", rows[1:2]))
    return append(tmp_path / "k", write_jsonl(tmp_path / "c.jsonl", rows[2:])).path


def test_what_does_not_fit_the_store_is_refused_with_its_place(tmp_path, kept, tiny_folder):
    before = result_files(kept)
    for rows, changes, message in (
        ([{"id": "y"}, {"id": "a"}], {}, r"x.jsonl:2: id 'a' is in .*k already; leave out"),
        ([{"id": "y"}, {"id": "c"}], {}, r"x.jsonl:2: id 'c' is in .*k already; leave out"),
        ([{"id": "y"}, {"id": "y"}], {}, r"x.jsonl:2: id 'y' appears twice, first at .*x.jsonl:1"),
        ([{"id": 7}], {}, "id 7 is int64, ids before are string"),
        ([{"n": 0.5}], {}, r"kept column 'n' is double, in .*k it is int64"),
        ([{"x": "a"}], {}, r"kept column 'x' is string, in .*k it is double"),
        ([{}], {"layers": "0"}, r"made with other settings: `layers` was 2, now 0"),
        ([{}], {"levels": "word,sentence"}, r"`levels` was sentence, now word,sentence"),
        ([{}], {"id_column": None}, r"`id_column` was 'id', now not set"),
        ([{}], {"model": str(tiny_folder)}, r"made with other settings: .*the digest of the model's weights was"),
    ):
        row = {"id": "y", "text": "Two.", "x": 1, "n": None}
        path = write_jsonl(tmp_path / "x.jsonl", [row | changed for changed in rows])
        with pytest.raises(UserError, match=message):
            append(kept, path, **changes)
        assert result_files(kept) == before


def test_values_that_fit_and_the_settings_of_the_store_may_be_given(tmp_path, kept):
    path = write_jsonl(tmp_path / "x.jsonl", [{"id": "y", "text": "Two.", "x": 1, "n": None}])
    store = append(kept, path, layers="2", store_dtype="float16", workers=1)
    assert store.polars("sentence", ["doc_id", "x", "n"]).tail(1).rows() == [("y", 1.0, None)]
    write_jsonl(tmp_path / "x.jsonl", [{"id": "y", "text": "Two.", "x": 1, "n": None}, {"id": "z", "text": "Three."}])
    with pytest.raises(InputError, match=r"x.jsonl: was added before, and has grown; append a file of its new rows"):
        append(kept, path)


def test_other_versions_are_refused(root, later, monkeypatch):
    monkeypatch.setattr("bertfeat.extraction.plan.__version__", "9.9")
    with pytest.raises(PlanMismatch, match=r"other versions: the version of bertfeat was .*9.9.*install those"):
        append(root, later[1])


def stopped(monkeypatch):
    """Stop a run after its first shard, as a system error does."""

    def hook(name: str) -> None:
        if name == "receipt.durable":
            steps.hook = lambda name: None
            raise RunError("stopped")

    monkeypatch.setattr(steps, "hook", hook)
    return pytest.raises(RunError)


def test_only_a_finished_store_with_documents_grows(tmp_path, settings, later, monkeypatch):
    with pytest.raises(StoreError, match="no such store; leave out `append`"):
        append(tmp_path / "none", later)
    (tmp_path / "none.csv").write_text("id,text\n")
    empty = extract(output=tmp_path / "empty", **settings | {"inputs": str(tmp_path / "none.csv")})
    with pytest.raises(StoreError, match="has no documents"):
        append(empty, later)
    with stopped(monkeypatch):
        extract(output=tmp_path / "half", **settings)
    with pytest.raises(StoreError, match="not complete, 1 of 3 shards are done"):
        append(tmp_path / "half", later)


def test_an_unfinished_append_leaves_the_old_store_and_goes_on_with_its_own_inputs_only(
    settings, root, later, monkeypatch
):
    before = open_store(root).manifest
    with stopped(monkeypatch):
        append(root, later[0])
    assert open_store(root).manifest == before
    assert verify(root).is_good
    assert recheck(root, n_documents=3).is_good
    assert extract(output=root, **settings).manifest == before
    with pytest.raises(StoreError, match=r"an append of .*b.jsonl has not finished; run that command again"):
        append(root, later[1])
    assert len(append(root, later[0])) == 48
    assert len(append(root, later)) == 54
    assert open_store(root).version == 2
    assert verify(root).is_good


def test_a_damaged_shard_of_a_grown_store_is_repeated(settings, root, later):
    append(root, later)
    whole = result_files(root)
    for shard in (1, 4):
        part = part_at(root, "word", shard)
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert mark_for_redoing(root, verify(root)) == (1, 4)
    # A run repeats the shard of its own inputs; the other one stays marked.
    assert len(extract(output=root, **settings)) == 54
    assert verify(root).bad_shards == (4,)
    assert len(append(root, later)) == 54
    assert result_files(root) == whole


@pytest.mark.promise("workers")
@pytest.mark.usefixtures("s3")
def test_an_object_store_grows(settings, later):
    url = "s3://features/grown"
    extract(output=url, **settings)
    assert len(append(url, later[0])) == 48
    store = append(url, later)
    assert len(store) == 54
    assert store.polars("sentence")["doc_id"].to_list() == [f"d{n}" for n in range(54)]
    assert verify(url).is_good
    assert len(extract(output=url, **settings)) == 54


def test_the_command_line_appends_with_the_settings_of_the_store(root, later):
    code, out, err = run_cli("extract", later[0], f"-o{root}", "--append")
    assert (code, err) == (0, [])
    assert "24 documents appended" in out
    assert "already complete; nothing to do" in run_cli("extract", later[0], f"-o{root}", "--append")[1]
    entries = json.loads(run_cli("inspect", str(root), "--json")[1])["appends"]
    assert [(entry["n_documents"], entry["inputs"]) for entry in entries] == [(24, [later[0]])]
    part_at(root, "word", 4).write_bytes(b"x")
    assert "append the same inputs, again to redo 1 shard" in run_cli("verify", str(root))[2][0]
    assert "damaged shards repeated" in run_cli("extract", later[0], f"-o{root}", "--append")[1]
