"""Numbers and lists of labels beside a store: what is chosen, fitted, scored, predicted, and kept of JSON lines."""

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bertfeat
from bertfeat import fit_probe
from bertfeat.choices import Task
from bertfeat.errors import UserError
from tests.support.probe_stores import Stores
from tests.support.store_fakes import write_jsonl

pytestmark = [pytest.mark.promise("probes"), pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]


def described(store: bertfeat.Store) -> pl.DataFrame:
    """Return numbers and lists that the texts of a store say: their length, their commas, and some of their letters."""
    texts = store.polars("sentence", ["doc_id", "text"])
    length, commas = texts["text"].str.len_chars() / 7, texts["text"].str.count_matches(",") / 2
    letters = [[letter for letter in "kqx" if letter in text] for text in texts["text"].str.to_lowercase()]
    return texts.select("doc_id").with_columns(
        length=length, both=pl.concat_list(pl.lit(length), pl.lit(commas)), letters=pl.Series(letters)
    )


def test_decimals_are_fitted_as_scikit_learn_does(stores: Stores, tmp_path) -> None:
    labels = described(stores.train)
    probe = fit_probe(stores.train, "length", feature="layer_06", labels=labels)
    assert (probe.probe.head, probe.training.task) == ("ridge", Task.REGRESS)
    assert "decimals" in probe.training.told_by
    rows = np.flatnonzero(stores.train.valid("sentence", "layer_06"))
    vectors, y = stores.train.numpy("sentence", "layer_06")[rows].astype(np.float64), labels["length"].to_numpy()[rows]
    wanted = make_pipeline(StandardScaler(), Ridge()).fit(vectors, y).predict(vectors)
    found = probe.predict(stores.train)
    assert found["prediction"].dtype == pl.Float64
    assert found["prediction"].null_count() == found.height - len(rows) > 0
    assert_allclose(found["prediction"].to_numpy()[rows], wanted, rtol=1e-4)
    score = probe.score(stores.train, labels=labels)
    assert score.metric == "r2"
    assert score.value == pytest.approx(r2_score(y, found["prediction"].to_numpy()[rows]))
    probe.save(tmp_path / "probe")
    assert bertfeat.load_probe(tmp_path / "probe").predict(stores.train).equals(found)


@pytest.mark.parametrize("max_memory", [None, 1])
def test_lists_of_numbers_and_of_labels(stores: Stores, tmp_path, max_memory) -> None:
    labels, dev_labels = described(stores.train), described(stores.dev)
    common = {"labels": labels, "dev": stores.dev, "dev_labels": dev_labels, "max_memory": max_memory}
    both = fit_probe(stores.train, "both", feature="layer_06", alpha=[10.0, 1000.0], **common)
    assert both.probe.fit_report()["dev_score"] == pytest.approx(both.training.scores["r2"].mean)
    assert both.predict(stores.dev)["prediction"].drop_nulls().list.len().unique().to_list() == [2]
    letters = fit_probe(stores.train, "letters", feature="layer_06", C=0.1, **common)
    assert letters.training.counts == dict(labels["letters"].explode().drop_nulls().value_counts().rows()) | {}
    letters.predict(stores.dev, tmp_path / "letters.parquet")
    found = pl.read_parquet(tmp_path / "letters.parquet")
    has = found["prediction"].is_not_null()
    sets = [
        [[letter in row for letter in "kqx"] for row in rows.filter(has)]
        for rows in (dev_labels["letters"], found["prediction"])
    ]
    wanted = f1_score(*map(np.array, sets), average="macro", zero_division=0)
    assert letters.probe.fit_report()["dev_score"] == pytest.approx(wanted)
    assert (found["probability"].list.len() == found["prediction"].list.len()).drop_nulls().all()
    with pytest.raises(UserError, match="`errors` are of one class per row"):
        letters.predict(stores.dev, errors=True, labels=dev_labels)


def test_lists_of_json_lines_are_kept(tmp_path) -> None:
    rows = [{"text": "a b", "tags": ["x", "y"], "n": [1, 2.5]}, {"text": "c", "tags": [], "n": [3]}, {"text": "d"}]
    rows[2] |= {"tags": None, "n": []}
    file = write_jsonl(tmp_path / "lists.jsonl", rows)
    store = bertfeat.extract(file, tmp_path / "store", levels="sentence", layers="-1", keep_columns="tags,n")
    kept = store.polars("sentence", ["tags", "n"])
    assert kept.rows() == [(["x", "y"], [1.0, 2.5]), ([], [3.0]), (None, [])]
    write_jsonl(file, [{"text": "a b", "tags": ["x", 2]}])
    with pytest.raises(UserError, match=r":1: column 'tags' holds \['x', 2\]; give the values of a list one type"):
        bertfeat.extract(file, tmp_path / "other", levels="sentence", keep_columns="tags")
