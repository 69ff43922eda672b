"""`BertFeatures` as scikit-learn uses it, and its cache, which encodes each text once."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import validate_data

import bertfeat
from bertfeat.errors import UserError
from bertfeat.extraction.vector_cache import FILE
from bertfeat.records import Pack
from tests.support.drill import Zygote
from tests.support.families import build_model, note_packs
from tests.support.runner_fakes import wait_until

TEXTS = [f"{first} {second} {n}" for n in range(4) for first in ("one quick", "the slow") for second in ("fox", "sea")]
LABELS = ["fox" in text for text in TEXTS]
POOLINGS = ["mean", "max", "cls", "lasttoken", "weightedmean"]


@pytest.fixture
def features(tiny_folder: Path, tmp_path: Path) -> bertfeat.BertFeatures:
    return bertfeat.BertFeatures(str(tiny_folder), cache=tmp_path / "cache")


def n_windows(packs: list[Pack]) -> int:
    """Return the number of windows of packs, with those that repeat one of them."""
    return sum(len(pack.served[0]) for pack in packs)


class TestScikitLearn:
    def test_vectors_are_those_of_embed(self, tiny_folder: Path) -> None:
        settings: dict[str, Any] = {"layers": [1, 3], "pooling": "max", "normalize": True, "max_length": 8}
        found = bertfeat.BertFeatures(str(tiny_folder), **settings).fit_transform(TEXTS)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, bertfeat.embed(TEXTS, str(tiny_folder), **settings))

    @pytest.mark.parametrize("with_cache", [False, True])
    def test_a_model_that_is_saved_again_is_loaded_again(self, with_cache: bool, tmp_path: Path) -> None:
        model = tmp_path / "model"
        transformer = bertfeat.BertFeatures(str(model), cache=tmp_path / "cache" if with_cache else None)
        for seed in (0, 1):
            build_model("bert", model, seed=seed)
            np.testing.assert_allclose(
                transformer.fit_transform(TEXTS), bertfeat.embed(TEXTS, str(model)), rtol=0, atol=1e-5
            )

    @pytest.mark.parametrize("make", [np.array, pd.Series, pd.DataFrame, pl.Series, pl.DataFrame, pa.array])
    def test_one_column_of_texts_in_any_form(self, make: Callable[[Any], Any], tiny_folder: Path) -> None:
        transformer = bertfeat.BertFeatures(str(tiny_folder))
        expected = transformer.transform(TEXTS)
        np.testing.assert_array_equal(transformer.fit(make(TEXTS)).transform(make(TEXTS)), expected)

    @pytest.mark.parametrize(
        ("settings", "given", "said"),
        [
            ({}, "one text", "X is of type str; pass a list, an array or a Series of texts"),
            ({}, pd.DataFrame({"a": TEXTS, "b": TEXTS}), r"X has 2 columns \(a, b\); pass the one column of texts"),
            ({}, pd.Series(["a", np.nan]), r"X\[1\] must be a string, not nan"),
            ({}, [["a", "b"], ["c"]], r"X\[0\] must be a string, not \['a', 'b'\]"),
            ({"layers": 9}, TEXTS, "layer 9 is out of range"),
            ({"cache": "s3://bucket/cache"}, TEXTS, "a cache must be in a local folder"),
            ({"cache": "cache", "cache_size": "huge"}, TEXTS, "`cache_size` 'huge' is not a size"),
            ({"cache": __file__}, TEXTS, r"test_transformer\.py: not a folder; choose another"),
        ],
    )
    def test_mistakes_are_refused_when_it_is_fitted_not_when_it_is_made(
        self, settings: dict[str, Any], given: Any, said: str, tiny_folder: Path
    ) -> None:
        transformer = bertfeat.BertFeatures(**{"model": str(tiny_folder), **settings})
        with pytest.raises(UserError, match=said):
            transformer.fit_transform(given)

    def test_names_of_the_columns_and_frames_out(self, tiny_folder: Path) -> None:
        transformer = bertfeat.BertFeatures(str(tiny_folder), layers="0,-1")
        series = pd.Series(TEXTS, index=range(7, 7 + len(TEXTS)))
        expected = transformer.fit_transform(series)
        frame = transformer.set_output(transform="pandas").transform(series)
        assert frame.index.equals(series.index)
        assert list(frame.columns) == [f"concat_00_03_{number}" for number in range(64)]
        np.testing.assert_array_equal(frame.to_numpy(), expected)

    def test_a_pickled_copy_has_no_weights_and_encodes_again(self, tiny_folder: Path) -> None:
        transformer = bertfeat.BertFeatures(str(tiny_folder), layers=[1], pooling="cls").fit(TEXTS)
        data = pickle.dumps(transformer)
        assert len(data) < 2_000
        other = pickle.loads(data)
        assert other.get_params() == transformer.get_params()
        np.testing.assert_array_equal(other.transform(TEXTS), transformer.transform(TEXTS))

    def test_a_step_of_pipelines_and_column_transformers(self, tiny_folder: Path) -> None:
        frame = pd.DataFrame({"text": TEXTS, "n": range(len(TEXTS))})
        for column in ("text", ["text"]):
            columns = ColumnTransformer([("bert", bertfeat.BertFeatures(str(tiny_folder)), column)])
            assert columns.fit_transform(frame).shape == (len(TEXTS), 32)
            assert columns.get_feature_names_out()[0] == "bert__layer_03_0"
        model = make_pipeline(columns, LogisticRegression()).fit(frame, LABELS)
        assert model.score(frame, LABELS) == 1


class OfNumbers(bertfeat.BertFeatures):  # type: ignore[misc]
    """`BertFeatures` of rows of numbers written as texts, for the checks of scikit-learn, which pass numbers."""

    def fit(self, X: Any, y: object = None) -> OfNumbers:  # noqa: N803
        super().fit(self._texts(X, reset=True))
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        return super().transform(self._texts(X, reset=False))

    def _texts(self, X: Any, *, reset: bool) -> list[str]:  # noqa: N803
        rows = validate_data(self, X, reset=reset, ensure_min_samples=1)
        return [" ".join(f"{value:.3f}" for value in row) for row in rows]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.one_d_array = tags.input_tags.string = False
        return tags


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_every_check_of_scikit_learn_passes_on_numbers_written_as_texts(tmp_path: Path) -> None:
    shallow = build_model("bert", tmp_path / "bert", num_hidden_layers=1)
    skipped, n_checks = [], 0
    for estimator, check in estimator_checks_generator(OfNumbers(str(shallow))):
        n_checks += 1
        try:
            check(estimator)
        except SkipTest as reason:
            skipped.append(str(reason))
    assert n_checks > 40
    # Vectors come as NumPy arrays: there are no arrays of other libraries to check.
    assert {*skipped} <= {"SCIPY_ARRAY_API is not set: not checking array_api input"}


def fit_transform(model: str, cache: str, n_texts: int, said: str) -> None:
    """Transform texts; write the digest of the vectors and the number of windows that were encoded."""
    packs = note_packs(pytest.MonkeyPatch())
    texts = [f"text {n} of the sea" for n in range(n_texts)]
    vectors = bertfeat.BertFeatures(model, cache=cache).fit_transform(texts)
    Path(said).write_text(f"{hashlib.sha256(vectors.tobytes()).hexdigest()} {n_windows(packs)}")


@pytest.mark.promise("cached")
class TestCache:
    @pytest.mark.parametrize(
        ("pooling", "layers", "combine"),
        [
            ("mean", -1, "concat"),
            ("max", "0,2", "concat"),
            ("cls", "1..3", "sum"),
            ("lasttoken", "all", "mean"),
            ("weightedmean", "0,2", "concat"),
            ("pooler", -1, "concat"),
        ],
    )
    def test_vectors_are_those_without_a_cache(
        self, pooling: str, layers: str | int, combine: str, features: bertfeat.BertFeatures
    ) -> None:
        features.set_params(pooling=pooling, layers=layers, combine=combine, normalize=True)
        texts = [*TEXTS, "", "she sells sea shells by the sea shore " * 20]
        expected = clone(features).set_params(cache=None).transform(texts)
        assert expected.dtype == np.float32
        for _ in range(2):
            np.testing.assert_array_equal(features.transform(texts), expected)

    def test_a_search_over_layers_and_poolings_encodes_each_text_once(
        self, features: bertfeat.BertFeatures, packs: list[Pack]
    ) -> None:
        grid = {"bertfeatures__layers": [0, "all"], "bertfeatures__pooling": POOLINGS}
        search = GridSearchCV(make_pipeline(features, LogisticRegression()), grid, cv=2, error_score="raise")
        search.fit([*TEXTS, *TEXTS], LABELS * 2)
        assert len(search.cv_results_["params"]) == 10
        assert n_windows(packs) == len(TEXTS)

    @pytest.mark.parametrize(
        "change", [{"max_length": 63}, {"include_special_tokens": True}, {"prompt": "query: "}, {"stride": 3}]
    )
    def test_another_setting_has_vectors_of_its_own(
        self, change: dict[str, Any], features: bertfeat.BertFeatures, packs: list[Pack]
    ) -> None:
        features.transform(TEXTS)
        features.set_params(**change).transform(TEXTS)
        assert n_windows(packs) == 2 * len(TEXTS)

    def test_processes_share_a_cache(self, features: bertfeat.BertFeatures, tmp_path: Path, warm: Zygote) -> None:
        """Both begin at once on the same texts; the batches that one commits, the other does not encode."""
        said = [str(tmp_path / name) for name in ("first", "second")]
        running = [warm.fork(fit_transform, features.model, str(features.cache), 300, path) for path in said]
        assert [warm.wait(pid) for pid in running] == [0, 0]
        outputs = [Path(path).read_text().split() for path in said]
        (first, n_first), (second, n_second) = outputs
        assert first == second
        assert int(n_first) + int(n_second) == 300

    def test_a_kill_loses_at_most_a_batch(
        self, features: bertfeat.BertFeatures, tmp_path: Path, packs: list[Pack], warm: Zygote
    ) -> None:
        n_texts = 600
        pid = warm.fork(fit_transform, features.model, str(features.cache), n_texts, str(tmp_path / "said"))
        wait_until(lambda: n_vectors(Path(str(features.cache))) > 0)
        os.kill(pid, signal.SIGKILL)
        warm.wait(pid)
        there = n_vectors(Path(str(features.cache))) // (4 * len(POOLINGS))
        assert there >= 256
        texts = [f"text {n} of the sea" for n in range(n_texts)]
        vectors = features.transform(texts)
        assert n_windows(packs) == n_texts - there
        some = [0, 255, 256, 599]
        expected = clone(features).set_params(cache=None).transform([texts[n] for n in some])
        np.testing.assert_allclose(vectors[some], expected, atol=1e-5)


def n_vectors(folder: Path) -> int:
    """Return the number of vectors that are committed in a cache."""
    if not (folder / FILE).exists():
        return 0
    try:
        with closing(sqlite3.connect(folder / FILE, timeout=60)) as database:
            return int(database.execute("SELECT count(*) FROM vectors").fetchone()[0])
    except sqlite3.OperationalError:  # the table is not there yet
        return 0
