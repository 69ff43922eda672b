"""`bertfeat index`: what it prints, and what a second call does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import good, refused
from tests.support.index_stores import contents, documents, tiny_store

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


def test_a_build_is_done_once_and_its_settings_change_with_overwrite_only(place: Path, tmp_path: Path) -> None:
    command = ("index", "build", place / "made" / "store", "-o", tmp_path / "i", "--level", "word", "--threads", "1")
    first = good(*command)
    assert first.err == ""
    for words in (str(tmp_path / "i"), "Flat", "cosine", "recall at 10"):
        assert words in first.out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "i").iterdir()}
    assert "already built; nothing to do" in good(*command).out
    assert good(*command, "--quiet").out == ""
    assert "metric was 'cosine', now 'l2'" in refused(*command, "--metric", "l2")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "i").iterdir()} == before
    good(*command, "--metric", "l2", "--overwrite")
    shown = good("inspect", tmp_path / "i", "--json").json
    assert (shown["metric"], shown["level"], set(shown["files"])) == ("l2", "word", {"index.faiss", "rows.parquet"})


def test_eval_measures_an_index(place: Path) -> None:
    command = ("index", "eval", place / "made" / "index", "--n-queries", "20")
    assert {"recall@1", "recall@10", "queries"} <= {line.split()[0] for line in good(*command).out.splitlines()}
    measured = good(*command, "--json").json
    assert (measured["n_queries"], measured["recall@1"], measured["retrieval"]) == (20, 1.0, None)
    assert measured["bytes_per_vector"] > 4 * 32


def test_an_update_adds_new_rows_once_and_refuses_other_stores(place: Path, tmp_path: Path, tiny_folder: Path) -> None:
    good("index", "build", place / "made" / "store", "-o", tmp_path / "i", "--level", "sentence")
    grown = tiny_store(tmp_path / "grown", tiny_folder, documents(15), levels="sentence")
    assert "3 vectors added" in good("index", "update", tmp_path / "i", grown.path).out
    assert "no new rows; nothing to do" in good("index", "update", tmp_path / "i", grown.path).out
    assert good("index", "update", tmp_path / "i", grown.path, "--json").json["n_added"] == 0
    before = contents(tmp_path / "i")
    changed = tiny_store(tmp_path / "changed", tiny_folder, documents()[1:20], levels="sentence")
    assert "fewer than the 31" in refused("index", "update", tmp_path / "i", changed.path)
    assert contents(tmp_path / "i") == before
