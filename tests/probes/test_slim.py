"""Slim probes: a choice that keeps the score, its principal axes folded in, and what it says of rows apart."""
# ruff: noqa: N806

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertfeat import Slim, extract, fit_probe, load_probe, slim_probe
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import UserError
from bertfeat.heads.linear import LogisticRegressionProbe, RidgeProbe
from bertfeat.probes.rows import LabelledRows, select_rows
from tests.support.command_line import bertfeat
from tests.support.probe_stores import Stores
from tests.support.probe_streams import ArrayStream

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.numeric
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_head_on_principal_axes_is_a_pipeline_of_scikit_learn_folded_into_one_layer(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 40)) @ rng.normal(size=(40, 40)) + 5).astype(np.float32)
    y = (X[:, :3] @ rng.normal(size=(3, n_classes)) + rng.normal(size=(300, n_classes))).argmax(axis=1)
    for source in (X, ArrayStream(X, (1, 150, 151))):
        probe = LogisticRegressionProbe(n_components=8).fit(source, y)
        oracle = make_pipeline(StandardScaler(), PCA(8), LogisticRegression()).fit(X.astype(np.float64), y)
        assert probe.coef_.shape == (1 if n_classes == 2 else n_classes, 40)
        np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))
        np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=1e-5)
        numbers = RidgeProbe(task="regress", n_components=8).fit(source, X[:, 0])
        oracle = make_pipeline(StandardScaler(), PCA(8), Ridge()).fit(X.astype(np.float64), X[:, 0])
        np.testing.assert_allclose(numbers.predict(X), oracle.predict(X), atol=1e-4)
    with pytest.raises(UserError, match="n_components 41 is too many for 300 vectors 40 wide"):
        LogisticRegressionProbe(n_components=41).fit(X, y)


@pytest.fixture(scope="module")
def slim(stores: Stores) -> Slim:
    return slim_probe(
        stores.train, "domain", features="3,4", widths="full,8", heads="logreg,centroid", seed=2, keep=0.9
    )


@pytest.fixture(scope="module")
def split(stores: Stores) -> list[pl.DataFrame]:
    """Labels of the documents that train, that choose and that report, as the seed 2 splits them."""
    rows = select_rows(stores.train, "sentence", "layer_03", "domain", None)
    rest, dev = rows.split(0.2, 2)
    train, test = rest.split(0.2, 2)
    labels = stores.train.polars("sentence", ["doc_id", "domain"])

    def of(part: LabelledRows) -> pl.DataFrame:
        return labels[part.rows.tolist()]

    assert not {*of(test)["doc_id"]} & {*of(train)["doc_id"], *of(dev)["doc_id"]}
    assert sum(of(part).height for part in (train, dev, test)) == labels.height
    return [of(part) for part in (train, dev, test)]


def test_the_smallest_row_that_keeps_the_share_is_kept(slim: Slim, tmp_path: Path) -> None:
    slim.write(tmp_path / "slim")
    assert {path.name for path in (tmp_path / "slim").iterdir()} == {
        *("table.csv", "result.json", "plot.png", "plot.svg", "probe")
    }
    with (tmp_path / "slim" / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    found = [(row["feature"], row["head"], int(row["width"])) for row in table]
    heads = [("logreg", 384), ("logreg", 8), ("centroid", 384)]
    assert found == [(feature, *head) for feature in ("layer_03", "layer_04") for head in heads]
    best = max(float(row["score"]) for row in table)
    enough = [row for row in table if float(row["score"]) >= 0.9 * best]
    enough.sort(key=lambda row: (int(row["blocks"]), int(row["width"]), row["head"] != "logreg"))
    kept = slim.kept
    assert (enough[0]["feature"], enough[0]["head"]) == (kept.feature, kept.head)
    assert int(enough[0]["width"]) == kept.controls["width"]
    assert all(row.low <= row.score <= row.high and row.controls["texts_per_s"] > 0 for row in slim.rows)
    weights = load_file(open_checkpoint("minilm").weights_files[0])
    left_out = ("pooler", *(f"encoder.layer.{n}." for n in (3, 4, 5)), "embeddings.position_ids")
    three = sum(weight.nbytes for name, weight in weights.items() if not name.startswith(left_out))
    sizes = {row.controls["model_bytes"] for row in slim.rows if row.feature == "layer_03"}
    assert sizes == {three}
    assert {row.controls["row_bytes"] for row in slim.rows} == {2 * 384, 2 * 8}
    # The folder is a sweep for other commands, and is replaced whole.
    assert f"best {slim.best.name}" in bertfeat("inspect", tmp_path / "slim").out
    with pytest.raises(UserError, match="there is a sweep already"):
        slim.write(tmp_path / "slim")
    (tmp_path / "slim" / "probe" / "note").write_text("mine")
    with pytest.raises(UserError, match=r"holds files that are not part of a probe \(note\)"):
        slim.write(tmp_path / "slim", overwrite=True)


def test_the_saved_probe_is_the_one_of_the_table_and_of_the_report(
    slim: Slim, split: list[pl.DataFrame], stores: Stores, tmp_path: Path
) -> None:
    train, dev, test = split
    slim.write(tmp_path / "slim")
    saved = load_probe(tmp_path / "slim" / "probe")
    assert saved.score(stores.train, labels=dev).value == slim.kept.score
    score = saved.score(stores.train, labels=test)
    interval = score.intervals["accuracy"]
    bar = slim.kept_apart
    assert (score.value, interval.low, interval.high) == (bar.score, bar.low, bar.high)
    assert (slim.n_train, slim.n_dev, slim.n_test) == (train.height, dev.height, test.height)
    assert saved.training.n_rows == train.height - saved.training.n_without_vector
    assert saved.training.dev.n_rows == dev.height - saved.training.dev.n_without_vector
    plain = fit_probe(stores.train, "domain", labels=train, feature=3, head="logreg")
    assert plain.score(stores.train, labels=dev).value == slim.rows[0].score
    whole = slim_probe(stores.train, "domain", features="3", widths="full", seed=2)
    np.testing.assert_array_equal(whole.probe.probe.coef_, plain.probe.coef_)
    assert saved.summary()["params"]["n_components"] == slim.kept.controls["width"] == 8


def test_words_numbers_and_several_stores(stores: Stores, tmp_path: Path) -> None:
    settings = {"level": "word", "features": "3", "dev": stores.words_dev, "metric": "accuracy", "max_epochs": 1}
    with pytest.warns(UserWarning, match="`widths` 8 has no effect: axes are for linear heads"):
        tags = slim_probe(stores.words_train, "label", heads="linear", widths="8", **settings)
    assert [(row.metric, row.controls["width"]) for row in tags.rows] == [("accuracy", 384)]
    assert (tags.dev, tags.held_out) == ("words_dev_store", None)
    ids = stores.train.polars("sentence", ["doc_id", "text"])
    lengths = ids.select("doc_id", n=pl.col("text").str.len_chars() / 10)
    options = {"levels": "sentence", "pooling": "max", "id_column": "id", "keep_columns": "domain"}
    other = extract(stores.files["train"], tmp_path / "max", layers="3", **options)
    found = slim_probe([stores.train, other], "n", labels=lengths, task="regress", features="3", widths="16")
    assert [(row.store, row.head, row.metric) for row in found.rows] == [
        *(("train_store", "ridge", "r2"), ("max", "ridge", "r2"))
    ]
    assert found.kept == found.best
    noise = ids.select("doc_id", n=pl.Series(np.random.default_rng(0).normal(size=ids.height)))
    for settings, message in (
        ({"labels": noise, "task": "regress"}, r"the best r2 on dev is -\d+\.\d+, of which no share can be kept"),
        ({"widths": "none"}, "`widths` holds 'none'; write whole numbers above 0, or full"),
        ({"keep": 1.1}, "keep 1.1, test_share 0.2: pass shares"),
        ({"head": "ridge"}, "`head` has no effect here; pass `heads`"),
    ):
        with pytest.raises(UserError, match=message):
            slim_probe(stores.train, "n", **{"labels": lengths, "features": "3", **settings})
