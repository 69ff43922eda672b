"""`bertfeat index`: its output and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertfeat.store.reader import Store
from tests.support.command_line import good, refused
from tests.support.index_stores import contents, documents, shared_store, tiny_store

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

FEATURE = "layer_06"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return shared_store(tmp_path_factory, "base")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Store:
    return tiny_store(tmp_path_factory.mktemp("tiny") / "s", tiny_folder)


@pytest.fixture(scope="module")
def index(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of sentences; not to be changed."""
    out = tmp_path_factory.mktemp("index") / "sentences.index"
    good("index", "build", store.path, "-o", out, "--level", "sentence", "--feature", FEATURE, "--transform", "center")
    return out


# Flags of `index build`, and the value that their refusal names.
MISTAKES = """| --level token or --level word or --level sentence
--level page | 'page'
--level word --feature layer_02 | 'layer_02'
--level word --metric angle | 'angle'
--level word --transform whitten | 'whitten'
--level word --factory PQ5 | 'PQ5'
--level word --factory HNSW32,SQ8 --max-memory 1MB | 1.0 MB
--level word --max-memory plenty | --max-memory 'plenty'
--level word --recall 95 | 95
--level word --seed -1 | -1
--level word --threads 0 | 0""".splitlines()


class TestBuild:
    def test_facts_and_silence_on_a_rerun(self, tiny: Store, tmp_path: Path) -> None:
        command = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "word", "--threads", "1")
        first = good(*command)
        assert first.err == ""
        for words in (str(tmp_path / "i"), f"{tiny.n_rows('word')}", "Flat", "cosine", "recall at 10"):
            assert words in first.out
        assert "already built" not in first.out
        assert "already built; nothing to do" in good(*command).out
        assert good(*command, "--quiet").out == ""

    def test_json(self, tiny: Store, tmp_path: Path) -> None:
        command = ("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "token", "--json")
        command = (*command, "--factory", "IVF8,SQ8", "--metric", "l2", "--transform", "pca:8", "--recall", "0.8")
        summary = good(*command).json
        assert summary["was_complete"] is False
        assert summary["factory"] == "IVF8,SQ8"
        assert (summary["dim"], summary["index_dim"], summary["metric"]) == (32, 8, "l2")
        assert summary["transform"] == "pca:8"
        assert summary["parameters"]["nprobe"] >= 1
        assert 0.8 <= summary["recall_at_10"] <= 1
        assert summary["n_bytes"] == (tmp_path / "i" / "index.faiss").stat().st_size
        assert summary["settings"]["recall"] == 0.8
        assert summary["store"] == str(tiny.path.resolve())
        again = good(*command).json
        assert again.pop("was_complete") is True
        assert again == {name: value for name, value in summary.items() if name != "was_complete"}

    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_wrong_flags(self, tiny: Store, tmp_path: Path, mistake: str) -> None:
        flags, _, value = mistake.partition("| ")
        assert value in refused("index", "build", tiny.path, "-o", tmp_path / "i", *flags.split())
        assert list(tmp_path.iterdir()) == []

    def test_wrong_places(self, tiny: Store, tmp_path: Path) -> None:
        build = ("index", "build", tiny.path, "--level", "word", "-o")
        (tmp_path / "notes").write_text("mine")
        for place, value in (("notes", "notes"), ("none/i", "none"), (".", "notes")):
            assert value in refused(*build, tmp_path / place)
        good(*build, tmp_path / "i")
        assert set(before := contents(tmp_path / "i")) == {"index.faiss", "rows.parquet"}
        assert "metric was 'cosine', now 'l2'" in refused(*build, tmp_path / "i", "--metric", "l2")
        assert contents(tmp_path / "i") == before
        good(*build, tmp_path / "i", "--metric", "l2", "--overwrite")
        assert contents(tmp_path / "i") != before


class TestEval:
    def test_eval(self, index: Path) -> None:
        shown = good("index", "eval", index, "--n-queries", "20").out
        assert {"recall@1", "recall@10", "queries"} <= {line.split()[0] for line in shown.splitlines()}
        measured = good("index", "eval", index, "--n-queries", "20", "--json").json
        assert (measured["n_queries"], measured["recall@1"], measured["recall@100"]) == (20, 1.0, None)
        assert measured["bytes_per_vector"] > 4 * 384
        assert measured["build_s"] > 0
        assert measured["retrieval"] is None


class TestUpdate:
    def test_update(self, tiny: Store, tmp_path: Path, tiny_folder: Path) -> None:
        good("index", "build", tiny.path, "-o", tmp_path / "i", "--level", "sentence")
        grown = tiny_store(tmp_path / "grown", tiny_folder, documents(11), levels="sentence")
        assert "3 vectors added" in good("index", "update", tmp_path / "i", grown.path).out
        assert "no new rows; nothing to do" in good("index", "update", tmp_path / "i", grown.path).out
        assert good("index", "update", tmp_path / "i", grown.path, "--json").json["n_added"] == 0
        assert good("index", "update", tmp_path / "i", grown.path, "--quiet").out == ""
