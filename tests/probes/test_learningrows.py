"""Reading of training data: labelled rows, and the same vectors in memory and as a stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.probes.config import LabelTable
from bertfeat.probes.rows import Dataset, read_vectors, select_rows
from bertfeat.store.reader import Store
from bertfeat.vectors.array import ArrayVectors, chunks_of
from tests.support.probe_stores import Stores, numbered, word_frame, write_fake
from tests.support.store_fakes import HIDDEN, part_at

DIM = 4 * HIDDEN
LENGTHS = [[3, 1, 4], [2, 2], [5]]


def read_dataset(
    store: Store,
    level: str,
    feature: str,
    label: str,
    *,
    labels: LabelTable | None = None,
    limit: int | None = None,
    max_memory: int = 1 << 40,
) -> Dataset:
    rows = select_rows(store, Level(level), feature, label, labels, limit)
    return read_vectors(store, feature, rows, max_memory)


def label_of(doc: int, word: int) -> str | None:
    return None if (doc + word) % 4 == 3 else f"L{(doc + word) % 2}"


def shards_of_words() -> list[dict[Level, pl.DataFrame]]:
    shards, doc = [], 0
    for lengths in LENGTHS:
        shards.append({Level.WORD: word_frame(doc, lengths, label_of)})
        doc += len(lengths)
    return shards


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Documents of 3, 1, 4, 2, 2 and 5 words in three shards; words 4 and 12 have no vector."""
    return write_fake(
        tmp_path_factory.mktemp("words") / "store",
        shards_of_words(),
        numbered,
        valid=lambda level, start, stop: ~np.isin(np.arange(start, stop), [4, 12]),
    )


def expected_rows(store: Store) -> list[tuple[int, int, str]]:
    """Row, document and label of each word that takes part, found one by one."""
    found = []
    for row, (doc, word, _, label) in enumerate(store.polars("word", ["doc_id", "word_index", "word", "label"]).rows()):
        assert label == label_of(doc, word)
        if label is not None and row not in (4, 12):
            found.append((row, doc, label))
    return found


class TestDataset:
    def test_rows_without_vector_or_label_are_left_out_and_counted(self, words: Store) -> None:
        data = read_dataset(words, "word", "concat_last4", "label")
        rows = expected_rows(words)
        assert data.rows.rows.tolist() == [row for row, _, _ in rows]
        assert data.rows.labels.tolist() == [label for _, _, label in rows]
        assert isinstance(data.X, ArrayVectors)
        np.testing.assert_array_equal(data.X.array, numbered(Level.WORD, 0, 17)[data.rows.rows])
        docs = [doc for _, doc, _ in rows]
        assert data.rows.lengths.tolist() == [docs.count(doc) for doc in sorted(set(docs))]
        n_null = sum(label is None for label in words.polars("word", ["label"])["label"])
        assert (data.labelled.n_total, data.labelled.n_without_label) == (17, n_null)
        assert len(data.labelled.rows) - len(data.rows.rows) == 17 - n_null - len(rows)

    def test_a_stream_reads_the_same(self, words: Store) -> None:
        whole = read_dataset(words, "word", "concat_last4", "label")
        data = read_dataset(words, "word", "concat_last4", "label", max_memory=1)
        assert data.is_streamed
        assert not whole.is_streamed
        small = data.labelled.stream(words, "concat_last4", 3 * DIM * 4)
        assert len(small.chunks) > 3
        for stream in (data.X, small):
            np.testing.assert_array_equal(np.concatenate([v for _, v in chunks_of(stream)]), whole.X.array)
        assert data.rows.labels.tolist() == whole.rows.labels.tolist()
        borders = {0, *np.cumsum(data.rows.lengths).tolist()}
        assert {chunk.start for chunk in small.chunks} <= borders
        np.testing.assert_array_equal(data.rows.lengths, whole.rows.lengths)

    def test_documents_are_split_whole(self, words: Store) -> None:
        found = select_rows(words, Level.WORD, "concat_last4", "label", None)
        train, held = found.split(0.3, seed=1)
        assert not set(train.documents) & set(held.documents)
        assert sorted([*train.rows, *held.rows]) == found.rows.tolist()
        assert len(np.unique(held.documents)) == 2
        with pytest.raises(UserError, match="too few labelled documents"):
            select_rows(words, Level.WORD, "concat_last4", "label", None, limit=1).split(0.3, seed=0)


class TestTokens:
    def test_a_words_label_belongs_to_its_first_token(self, stores: Stores) -> None:
        store = stores.words_dev
        data = read_dataset(store, "token", "layer_06", "label")
        labels = {
            (doc, word): label for doc, word, label in store.polars("word", ["doc_id", "word_index", "label"]).rows()
        }
        want, seen = [], set()
        for row, key in enumerate(store.polars("token", ["doc_id", "word_index"]).rows()):
            if key[1] is not None and key not in seen:
                seen.add(key)
                want.append((row, labels[key]))
        assert data.rows.rows.tolist() == [row for row, _ in want]
        assert data.rows.labels.tolist() == [label for _, label in want]
        assert data.labelled.source.of_words
        assert data.labelled.n_total == len(want)
        # The first token's vector is the word's, as the words were pooled.
        words_with_vector = read_dataset(store, "word", "layer_06", "label")
        np.testing.assert_array_equal(data.X.array, words_with_vector.X.array)


class TestStream:
    def test_nan_in_a_vector_is_named(self, tmp_path: Path) -> None:
        store = write_fake(tmp_path / "s", shards_of_words(), numbered)
        part, vector = part_at(store.path, "word", 1), store.take("word", "concat_last4", [9])
        part.write_bytes(part.read_bytes().replace(vector.tobytes(), np.full_like(vector, np.nan).tobytes()))
        message = r"concat_last4 of word row 9 \(document 3\) holds NaN or infinity; run bertfeat verify"
        with pytest.raises(UserError, match=message):
            read_dataset(store, "word", "concat_last4", "label")
        streamed = read_dataset(store, "word", "concat_last4", "label", max_memory=1)
        with pytest.raises(UserError, match=message):
            list(chunks_of(streamed.X))


class TestLabels:
    def test_a_table_is_joined_by_its_keys(self, words: Store, tmp_path: Path) -> None:
        rows = words.polars("word", ["doc_id", "word_index"]).with_row_index("n")
        table = rows.select("doc_id", "word_index", tag=pl.format("T{}", pl.col("n") % 3))[::-2]
        table.write_csv(tmp_path / "labels.csv")
        for labels in (table, tmp_path / "labels.csv"):
            data = read_dataset(words, "word", "layer_03", "tag", labels=labels)
            assert data.rows.rows.tolist() == [row for row in range(0, 17, 2) if row not in (4, 12)]
            assert data.rows.labels.tolist() == [f"T{row % 3}" for row in data.rows.rows]

    def test_a_table_that_cannot_be_joined_is_refused(self, words: Store) -> None:
        key = {"doc_id": [0], "word_index": [0]}
        for labels, message in (
            ({"doc_id": [0, 1, 0], "word_index": [1, 0, 1], "x": list("abc")}, "doc_id 0, word_index 1 occurs 2 times"),
            ({"doc_id": [70], "word_index": [0], "x": ["a"]}, "none of its 1 rows is for a row of .*store"),
            ({"doc_id": [0], "x": ["a"]}, "no column 'word_index'; columns are doc_id, x"),
            ({**key, "x": [0.5]}, "column 'x' holds 0.5, not classes"),
        ):
            with pytest.raises(UserError, match=message):
                read_dataset(words, "word", "layer_03", "x", labels=pl.DataFrame(labels))

    def test_a_missing_column_names_those_that_could_be_labels(self, stores: Stores) -> None:
        with pytest.raises(UserError, match=r"no label column 'x' at level sentence; .* are domain, is_medical, one"):
            read_dataset(stores.train, "sentence", "concat_last4", "x")
