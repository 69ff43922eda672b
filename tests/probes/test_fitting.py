"""Fitting on stores: against scikit-learn by hand, streamed against in memory, seeds, dev, scores, saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from seqeval.metrics import f1_score as seqeval_f1
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertfeat import fit_probe, load_probe
from bertfeat.choices import Level
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.probes.config import ProbeConfig
from bertfeat.probes.description import MeanScore
from bertfeat.probes.fitted import FittedProbe
from bertfeat.store.reader import Store
from tests.support.probe_stores import METADATA, Stores, numbered, word_frame, write_fake
from tests.support.store_fakes import HIDDEN

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"hidden_size": 16, "max_epochs": 3, "lr": 0.01}


@pytest.fixture(scope="module")
def tagger(stores: Stores) -> FittedProbe:
    """A small BiLSTM, the best of two seeds on dev."""
    return fit_probe(
        stores.words_train, "label", level="word", head="bilstm", dev=stores.words_dev, seeds=2, seed=7, **SMALL
    )


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """Words of three classes, and others to score on."""
    folder = tmp_path_factory.mktemp("classes")
    return classes_store(folder / "s"), classes_store(folder / "d", first_doc=100)


def classes_store(folder: Path, *, n_documents: int = 40, n_classes: int = 3, first_doc: int = 0) -> Store:
    """Words whose vectors lie around the mean of their class."""

    def label(doc: int, word: int) -> str:
        return f"c{(doc * 7 + word) % n_classes}"

    frames = [word_frame(first_doc + start, [4] * 10, label) for start in range(0, n_documents, 10)]
    labels = pl.concat(frames)["label"].to_list()
    rng = np.random.default_rng(first_doc)
    means = np.random.default_rng(99).normal(size=(n_classes, 4 * HIDDEN))
    rows = np.array([means[int(name[1:])] for name in labels]) + rng.normal(size=(len(labels), 4 * HIDDEN))
    return write_fake(folder, [{Level.WORD: frame} for frame in frames], lambda level, start, stop: rows[start:stop])


class TestFit:
    def test_it_is_what_scikit_learn_gives_by_hand(self, stores: Stores) -> None:
        fitted = fit_probe(stores.train, "domain")
        frame = stores.train.polars("sentence", ["domain"])
        has = stores.train.valid("sentence", "concat_last4")
        vectors = stores.train.numpy("sentence", "concat_last4")[has].astype(np.float32)
        by_hand = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        by_hand.fit(vectors, frame["domain"].to_numpy()[has].astype(str))
        test = stores.dev.numpy("sentence", "concat_last4")
        has_test = stores.dev.valid("sentence", "concat_last4")
        want = by_hand.predict_proba(test[has_test].astype(np.float32))
        got = fitted.predict(stores.dev)
        assert got["prediction"].is_null().to_list() == (~has_test).tolist()
        found = got.filter(pl.col("prediction").is_not_null())
        assert found["prediction"].to_list() == by_hand.classes_[want.argmax(axis=1)].tolist()
        np.testing.assert_allclose(found["probability"], want.max(axis=1), atol=2e-3)
        assert fitted.training.n_rows == int(has.sum())
        assert fitted.training.n_without_vector == int((~has).sum()) == 3
        assert fitted.training.counts == dict(frame.filter(has)["domain"].value_counts().sort("domain").rows())

    def test_scores_count_rows_without_a_vector_as_errors(self, stores: Stores) -> None:
        fitted = fit_probe(
            stores.words_train, "label", level="word", feature="layer_06", dev=stores.words_dev, head="ridge"
        )
        frame = fitted.predict(stores.words_dev)
        truth = stores.words_dev.polars("word", ["label"])["label"]
        guess = frame["prediction"].fill_null("none")
        found = fitted.score(stores.words_dev)
        assert found.scores.n_without_vector == frame["prediction"].null_count() > 0
        assert found.scores.accuracy == pytest.approx(accuracy_score(truth, guess))
        labels = sorted(set(truth) | set(frame["prediction"].drop_nulls()))
        assert found.scores.macro_f1 == pytest.approx(f1_score(truth, guess, labels=labels, average="macro"))
        tags = pl.DataFrame({"doc": frame["doc_id"], "truth": truth, "guess": frame["prediction"].fill_null("O")})
        by_document = tags.group_by("doc", maintain_order=True).agg("truth", "guess")
        want = seqeval_f1(by_document["truth"].to_list(), by_document["guess"].to_list())
        assert found.metric == "entity_f1"
        assert found.value == pytest.approx(want)
        assert set(found.intervals) == {"entity_f1", "accuracy", "macro_f1", "auroc", "average_precision"}
        assert found.intervals["entity_f1"].low <= found.value <= found.intervals["entity_f1"].high
        assert found.intervals["entity_f1"].n_units == len(by_document)
        assert fitted.training.scores["entity_f1"] == MeanScore(found.value, None, 1)

    def test_the_best_seed_on_dev_is_kept(self, tagger: FittedProbe, stores: Stores) -> None:
        notes = tagger.training
        assert notes.seeds == (7, 8)
        scores = {trial["seed"]: trial["dev"]["entity_f1"] for trial in notes.trials}
        assert notes.seed == max(scores, key=scores.__getitem__)
        values = list(scores.values())
        summary = notes.scores["entity_f1"]
        assert summary.mean == pytest.approx(np.mean(values))
        assert summary.deviation == pytest.approx(np.std(values, ddof=1))
        assert tagger.score(stores.words_dev, bootstrap=False).value == pytest.approx(max(values))
        alone = fit_probe(
            stores.words_train, "label", level="word", head="bilstm", dev=stores.words_dev, seed=8, **SMALL
        )
        assert alone.training.trials[0]["dev"]["entity_f1"] == scores[8]


class TestStreaming:
    def test_a_streamed_fit_finds_the_same(self, classes: tuple[Store, Store]) -> None:
        store, test = classes
        in_memory = fit_probe(store, "label", level="word")
        streamed = fit_probe(store, "label", level="word", max_memory=1000)
        assert (in_memory.training.streamed, streamed.training.streamed) == (False, True)
        one, other = in_memory.predict(test), streamed.predict(test)
        assert one["prediction"].to_list() == other["prediction"].to_list()
        np.testing.assert_allclose(one["probability"], other["probability"], atol=1e-3)


class TestRefusals:
    def test_settings_that_cannot_be_used(self, stores: Stores, tmp_path: Path) -> None:
        for arguments, message in (
            ({"metric": "entity_f1", "dev": stores.dev}, "metric 'entity_f1' must be one of auto, accuracy, macro_f1"),
            ({"mix": "last4", "head": "mlp", "feature": "layer_06"}, "name two features"),
            ({"config": ProbeConfig(), "head": "ridge"}, "'head' beside config"),
            ({"seeds": 2, "head": "mlp"}, "seeds 2 and there is no dev split to choose the best of them on"),
        ):
            with pytest.raises(UserError, match=message):
                fit_probe(stores.train, "domain", **arguments)

    def test_a_store_of_other_features_is_refused_with_both_settings(
        self, classes: tuple[Store, Store], tmp_path: Path
    ) -> None:
        fitted = fit_probe(classes[0], "label", level="word", head="centroid")
        frame = {Level.WORD: word_frame(0, [3], lambda doc, n: "c0")}
        other = write_fake(
            tmp_path / "other", [frame], numbered, word_pooling="mean", model="x", weights_sha256="9" * 64
        )
        message = (
            rf"features: probe centroid has model '{METADATA['model']}', model weights aaaa.*…, pooling 'first'; store "
            r"other has model 'x', model weights 9999.*…, pooling 'mean'; extract with the settings of probe centroid, "
        )
        for use in (fitted.score, fitted.predict, lambda s: fitted.predict(s, tmp_path / "o.parquet")):
            with pytest.raises(UserError, match=message):
                use(other)
        with pytest.raises(UserError, match=r"store s and store other hold different features"):
            fit_probe(classes[0], "label", level="word", dev=other)
        assert not (tmp_path / "o.parquet").exists()


class TestSaving:
    def test_a_loaded_probe_predicts_the_same(self, tagger: FittedProbe, stores: Stores, tmp_path: Path) -> None:
        used = {"ner": (tagger, stores.words_dev), "is_medical": (fit_probe(stores.train, "is_medical"), stores.dev)}
        for name, (fitted, store) in used.items():
            fitted.save(tmp_path / name)
            with pytest.raises(UserError, match="there is a probe already"):
                fitted.save(tmp_path / name)
            assert str(tmp_path) not in (tmp_path / name / "probe.json").read_text(), "a probe holds no path"
            loaded = load_probe(tmp_path / name)
            assert loaded.predict(store).equals(fitted.predict(store))
            assert to_values(loaded.training) == to_values(fitted.training)
            assert (loaded.name, loaded.summary()["head"]) == (name, fitted.probe.head)


def test_empty_labels_are_left_out(classes: tuple[Store, Store]) -> None:
    store, _ = classes
    keys = store.polars("word", ["doc_id", "word_index", "label"])
    table = keys.with_columns(label=pl.when(pl.col("word_index") == 0).then(pl.lit("")).otherwise("label"))
    fitted = fit_probe(store, "label", level="word", head="centroid", labels=table)
    assert (fitted.training.n_without_label, fitted.training.n_rows) == (40, 120)
    assert "" not in fitted.probe.classes_
    assert fitted.score(store, labels=table).n_without_label == 40
    with pytest.raises(UserError, match="a frame: column 'label': no row at level word has a label"):
        fit_probe(store, "label", level="word", labels=keys.with_columns(label=pl.lit(None, pl.String)))


def test_a_probe_of_a_gpu_loads_where_there_is_none(
    classes: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = classes
    fitted = fit_probe(store, "label", level="word", head="mlp", max_epochs=1, device="cpu")
    expected = fitted.predict(store)
    # As if it had been trained there.
    fitted.probe.set_params(device="cuda:1")
    fitted.save(tmp_path / "p")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    loaded = load_probe(tmp_path / "p")
    assert loaded.probe.device == "cuda:1"
    assert loaded.predict(store).equals(expected)
    with pytest.raises(UserError, match="torch sees no CUDA device here"):
        loaded.probe.fit(np.eye(4), ["a", "b", "a", "b"])
