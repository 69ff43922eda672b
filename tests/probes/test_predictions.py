"""Predictions: on raw text what extracting and predicting on the store gives, to the last bit; written whole or not."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import bertfeat
from bertfeat import fit_probe
from bertfeat.choices import Level
from bertfeat.errors import RunError, UserError
from bertfeat.probes.fitted import FittedProbe
from bertfeat.store.reader import Store
from tests.support.probe_stores import MAX_LENGTH, Stores, numbered, word_frame, write_fake
from tests.support.store_fakes import part_at

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"hidden_size": 8, "max_epochs": 2, "early_stopping": False}


@pytest.fixture(scope="module")
def tagger(stores: Stores) -> FittedProbe:
    return fit_probe(stores.words_train, "label", level="word", head="bilstm", mix="last4", **SMALL)


class TestRawText:
    def test_sentences_as_from_the_store(self, sentences: FittedProbe, stores: Stores, tmp_path: Path) -> None:
        want = sentences.predict(stores.dev)
        assert want.columns == ["doc_id", "prediction", "probability"]
        assert want["probability"].null_count() == want["prediction"].null_count() == 3
        written = sentences.predict(stores.files["dev"], tmp_path / "o.parquet", id_column="id", device="cpu")
        assert pl.read_parquet(tmp_path / "o.parquet").equals(want)
        assert [path.name for path in tmp_path.iterdir()] == ["o.parquet"], "the features are gone"
        assert (written.n_rows, written.n_without) == (len(want), 3)
        assert written.counts == dict(want["prediction"].drop_nulls().value_counts().rows())
        texts = stores.dev.polars("sentence", ["text"])["text"].to_list()
        in_memory = sentences.predict(texts)
        assert in_memory["doc_id"].to_list() == list(range(len(texts)))
        assert in_memory.drop("doc_id").equals(want.drop("doc_id"))

    def test_words_as_from_the_store(self, tagger: FittedProbe, stores: Stores, tmp_path: Path) -> None:
        want = tagger.predict(stores.words_dev)
        assert want.columns == ["doc_id", "word_index", "word", "prediction", "probability"]
        assert want.select("doc_id", "word_index", "word").equals(
            stores.words_dev.polars("word", ["doc_id", "word_index", "word"])
        )
        tagger.predict(stores.files["words_dev"], tmp_path / "o.parquet")
        got = pl.read_parquet(tmp_path / "o.parquet")
        assert got.equals(want), "with the probe's own max_length and on_overlong"
        assert got["prediction"].null_count() > 0

    def test_what_is_not_a_list_of_texts(self, sentences: FittedProbe) -> None:
        for texts, message in (
            ("one text", "pass texts as a list"),
            ("a long text " * 500, "'a long text .* is neither a store nor a file; pass texts as a list"),
            ([], "texts is empty"),
            ([1], r"texts\[0\] must be a string, not 1"),
        ):
            with pytest.raises(UserError, match=message):
                sentences.predict(texts)

    def test_another_model_of_the_same_name_is_refused(
        self, sentences: FittedProbe, stores: Stores, tmp_path: Path
    ) -> None:
        spec = dataclasses.replace(sentences.spec, weights_sha256="0" * 64)
        other = FittedProbe(sentences.probe, dataclasses.replace(sentences.training, spec=spec), "old")
        with pytest.raises(UserError, match=r"probe old and model minilm .* has .*weights 000000000000…; "):
            other.predict(stores.files["dev"], tmp_path / "o.parquet")
        assert list(tmp_path.iterdir()) == []


class TestOutput:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        """Three shards of words; some have no vector, and one shard has no rows."""
        frames = [word_frame(0, [3, 2], str_label), word_frame(2, [], str_label), word_frame(2, [4, 1], str_label)]
        return write_fake(
            tmp_path / "store",
            [{Level.WORD: frame} for frame in frames],
            lambda level, start, stop: np.sin(numbered(level, start, stop) * 3),
            valid=lambda level, start, stop: np.arange(start, stop) % 4 != 2,
        )

    @pytest.mark.parametrize("head", ["logreg", "svm"])
    def test_what_is_written_is_what_is_predicted(self, store: Store, tmp_path: Path, head: str) -> None:
        probe = fit_probe(store, "label", level="word", head=head)
        want = probe.predict(store)
        out = tmp_path / "new" / "o.parquet"
        written = probe.predict(store, out)
        assert pl.read_parquet(out).equals(want)
        assert [path.name for path in out.parent.iterdir()] == ["o.parquet"]
        has = store.valid("word", "concat_last4")
        assert want["prediction"].is_not_null().to_list() == has.tolist()
        assert want.height == store.n_rows("word") == written.n_rows
        if head == "svm":
            assert want["probability"].null_count() == want.height
        else:
            assert want["probability"].is_not_null().to_list() == has.tolist()

    def test_a_damaged_part_or_a_full_disk_leaves_the_old_file(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        probe = fit_probe(store, "label", level="word", head="ridge")
        out = tmp_path / "o.parquet"
        out.write_text("mine")

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(RunError, match=r"o\.parquet: no space left on device after \d+ bytes; free space and"):
                probe.predict(store, out, overwrite=True)
        part = part_at(store.path, "word", 2)
        part.write_bytes(part.read_bytes()[:50])
        with pytest.raises(UserError, match=r"part-00002-.*: cannot be read"):
            probe.predict(store, out, overwrite=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["o.parquet", "store"]
        assert out.read_text() == "mine"

    def test_labels_keep_their_type(self, store: Store, tmp_path: Path) -> None:
        keys = store.polars("word", ["doc_id", "word_index"])
        for values, kind in (([4, 9], pl.Int64), ([True, False], pl.Boolean), (["a", "b"], pl.String)):
            labels = keys.with_columns(x=pl.Series([values[n % 2] for n in range(keys.height)]))
            probe = fit_probe(store, "x", level="word", head="knn", k=1, labels=labels)
            probe.save(tmp_path / "p", overwrite=True)
            bertfeat.load_probe(tmp_path / "p").predict(store, tmp_path / "o.parquet", overwrite=True)
            found = pl.read_parquet(tmp_path / "o.parquet")
            assert found["prediction"].dtype == kind
            has = store.valid("word", "concat_last4")
            assert found.filter(has)["prediction"].to_list() == labels.filter(has)["x"].to_list()


def str_label(doc: int, word: int) -> str:
    return f"c{(doc + word) % 2}"


@pytest.fixture(scope="module")
def words(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The words of dev with their texts."""
    config = {
        "levels": ["token", "word", "sentence"],
        "layers": "6",
        "max_length": MAX_LENGTH,
        "on_overlong": "truncate",
    }
    return bertfeat.extract(stores.files["words_dev"], tmp_path_factory.mktemp("w") / "dev", **config)


def confident_first(found: pl.DataFrame, label: str) -> list[tuple[object, ...]]:
    """Return the errors, most probable first, the others in their order, and rows without a prediction last."""
    wrong = found.filter(pl.col(label).ne_missing(pl.col("prediction"))).rows(named=True)
    wrong.sort(key=lambda row: (row["prediction"] is None, -(row["probability"] or 0)))
    return [tuple(row.values()) for row in wrong]


class TestColumnsAndErrors:
    """Gold labels beside predictions, and the rows that are wrong."""

    def test_errors_are_those_of_the_score(self, sentences: FittedProbe, stores: Stores, tmp_path: Path) -> None:
        everything = sentences.predict(stores.dev, columns=["domain"])
        wrong = sentences.predict(stores.dev, errors=True)
        assert wrong.columns == ["doc_id", "domain", "prediction", "probability"]
        assert wrong.rows() == confident_first(everything, "domain")
        scores = sentences.score(stores.dev, bootstrap=False).scores
        assert wrong.height == round((1 - scores.accuracy) * scores.n_rows) > wrong["prediction"].null_count() == 3
        written = sentences.predict(stores.files["dev"], tmp_path / "o.csv", errors=True, id_column="id")
        assert (written.n_rows, written.n_without, written.n_gold) == (wrong.height, 3, everything.height)

    @pytest.mark.parametrize(("head", "level"), [("centroid", "word"), ("bilstm", "token")])
    def test_words_and_tokens(self, words: Store, stores: Stores, tmp_path: Path, level: str, head: str) -> None:
        params = SMALL if head == "bilstm" else {}
        probe = fit_probe(stores.words_train, "label", level=level, feature="layer_06", head=head, **params)
        found = probe.predict(words, columns="text,label")
        names = ["doc_id", f"{level}_index", level]
        assert found.columns == [*names, "text", "label", "prediction", "probability"]
        assert found.drop("text", "label").equals(probe.predict(words))
        texts = words.polars("sentence", ["doc_id", "text"])
        assert found["text"].equals(
            words.polars(level, ["doc_id"]).join(texts, "doc_id", maintain_order="left")["text"]
        )
        gold = words.polars("word")["label"]
        if level == "token":
            # Words that lost their tokens to truncation have no row.
            gold = gold.filter(words.valid("word", "layer_06"))
        assert found["label"].drop_nulls().to_list() == gold.to_list()
        scores = probe.score(words, bootstrap=False).scores
        wrong = probe.predict(words, errors=True)
        assert wrong.height == round((1 - scores.accuracy) * scores.n_rows) > 0
        assert wrong.rows() == confident_first(found.drop("text"), "label")
        assert wrong["probability"].n_unique() > 9 or head == "centroid"
        written = probe.predict(stores.files["words_dev"], tmp_path / "o.parquet", columns="text", errors=True)
        assert written.n_gold == len(gold)
        assert pl.read_parquet(tmp_path / "o.parquet").drop("text").equals(wrong)

    def test_what_cannot_be_shown_is_refused(self, sentences: FittedProbe, stores: Stores, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("fever\n")
        numbers = stores.dev.polars("sentence", ["doc_id"]).with_columns(domain=pl.int_range(pl.len()))
        dev, text, out = stores.dev, tmp_path / "a.txt", tmp_path / "o.parquet"
        calls = {
            "no column 'nix' at level sentence; columns are doc_id": lambda: sentences.predict(dev, columns=["nix"]),
            "no label column 'nix'": lambda: sentences.predict(dev, errors=True, label="nix"),
            "'probability' has the name of a result": lambda: sentences.predict(dev, columns="probability"),
            "holds labels such as 0, probe": lambda: sentences.predict(dev, errors=True, labels=numbers),
            "'domain'; pass gold labels with `labels`": lambda: sentences.predict(text, out, errors=True),
        }
        for message, call in calls.items():
            with pytest.raises(UserError, match=message):
                call()
        assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
