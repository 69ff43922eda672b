"""Minibatches: every row once, in memory and streamed, and nothing held out is learned from."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from bertfeat.errors import UserError
from bertfeat.heads.batching import BatchSize, batches, hold_out
from bertfeat.heads.neural import MLPProbe
from bertfeat.heads.sequences import Sequences
from tests.support.probe_streams import ArrayStream

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"hidden_size": 16, "batch_size": 32, "lr": 0.01}


def labelled(n_rows: int):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n_rows, 5)).astype(np.float32), np.arange(n_rows) % 3


def numbered(lengths, n_chunks: int | None = None) -> Sequences:
    """Return sequences whose rows hold their own number, in memory or as a stream."""
    lengths = np.asarray(lengths)
    rows = np.arange(lengths.sum(), dtype=np.float32)[:, None].repeat(2, axis=1)
    if n_chunks is None:
        return Sequences(rows, lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    borders = sorted({int(starts[len(lengths) * i // n_chunks]) for i in range(1, n_chunks)})
    return Sequences(ArrayStream(rows, borders), lengths)


def lengths_with_gaps(n: int = 200):
    return np.random.default_rng(0).integers(0, 12, n)


@pytest.mark.parametrize("n_chunks", [None, 7])
@pytest.mark.parametrize("order", ["shuffled", "ordered"])
def test_batches_hold_every_row_once_and_keep_their_limits(order, n_chunks):
    data = numbered(lengths_with_gaps(), n_chunks)
    size = BatchSize(max_sequences=10, max_rows=40)
    rng = np.random.default_rng(3)
    found = list(batches(data, size, rng if order == "shuffled" else None))
    seen = np.concatenate([batch.rows for batch in found])
    assert sorted(seen.tolist()) == list(range(data.vectors.shape[0]))
    for batch in found:
        np.testing.assert_array_equal(batch.vectors[:, 0].numpy(), batch.rows)
        assert (np.diff(batch.rows) > 0).all()
        assert 1 <= len(batch.lengths) <= 10
        assert batch.lengths.min() > 0
        assert batch.lengths.sum() == len(batch.rows) <= 40
    # Little would be lost to padding.
    padded = sum(len(batch.lengths) * batch.lengths.max() for batch in found)
    assert padded < (1.05 if n_chunks is None else 1.6) * len(seen)


def test_an_error_of_the_reading_thread_reaches_the_caller():
    class Stream(ArrayStream):
        def read(self, chunk):
            if chunk == 2:
                raise UserError("part 2 is damaged")
            return super().read(chunk)

    x, y = labelled(60)
    with pytest.raises(UserError, match="part 2 is damaged"):
        MLPProbe(**SMALL, standardize=False, early_stopping=False).fit(Stream(x, [20, 40]), y)
    assert not any(thread.name.startswith("bertfeat-chunks") for thread in threading.enumerate())


def test_whole_sequences_are_held_out_and_not_learned_from():
    data = numbered(lengths_with_gaps(), n_chunks=4)
    held, rows, is_left = hold_out(data, 0.2, np.random.default_rng(0), None)
    assert len(held) == int(0.2 * (data.lengths > 0).sum())
    np.testing.assert_array_equal(held.vectors.array[:, 0], rows)
    np.testing.assert_array_equal(held.lengths, data.lengths[~is_left])
    learned = np.concatenate([batch.rows for batch in batches(data, BatchSize(10, 40), taking_part=is_left)])
    assert sorted([*learned, *rows]) == list(range(data.vectors.shape[0]))
