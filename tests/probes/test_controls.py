"""Controls of a sweep on parts of speech: control labels, baselines, codelengths, and the norms beside a mix."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertfeat import extract, sweep_probes
from bertfeat.errors import BertfeatError
from bertfeat.probes.controls import control_labels
from bertfeat.probes.sweep import Sweep, read_sweep
from bertfeat.store.reader import Store
from tests.support.pipeline_runs import run
from tests.support.places import TESTS
from tests.support.probe_stores import Stores

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """The words of UD English EWT by MiniLM, trained and with random weights; its first file is to learn from."""
    folder, texts = tmp_path_factory.mktemp("ewt"), TESTS / "data" / "ud_ewt"
    assert run("random_weights", "minilm", "-o", folder / "minilm").code == 0
    return {
        prefix + name: extract(
            f"{texts}/{name}.conllu", folder / (prefix + name), model=model, levels="word", layers="all"
        )
        for prefix, model in {"": "minilm", "random-": str(folder / "minilm")}.items()
        for name in ("dev", "test")
    }


def swept(words: dict[str, Store], **settings: object) -> Sweep:
    return sweep_probes(words["dev"], "upos", **{"dev": words["test"], "features": range(7), **settings})


@pytest.fixture(scope="module")
def reviewed(words: dict[str, Store]) -> Sweep:
    random = f"random-weights={words['random-dev'].path},random-weights-dev={words['random-test'].path}"
    return swept(words, control=True, mdl=True, baselines=f"majority,type,{random}", C=0.01)


def script_bits(vectors: np.ndarray, labels: np.ndarray, documents: np.ndarray, seed: int) -> float:
    """Return the bits of labels in the online code of the documentation, by scikit-learn alone."""
    classes, order = np.unique(labels), np.random.default_rng(seed).permutation(np.unique(documents))
    rows = [np.flatnonzero(documents == name) for name in order]
    n_rows = np.cumsum([len(one) for one in rows])
    percents = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25, 50, 100)
    ends = sorted({max(2, 1 + np.argmax(n_rows >= max(10, p / 100 * len(labels)))) for p in percents})
    bits = len(np.concatenate(rows[: ends[0]])) * np.log2(len(classes))
    for start, end in itertools.pairwise(ends):
        seen, coded = np.concatenate(rows[:start]), np.concatenate(rows[start:end])
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
        scores = model.fit(vectors[seen], labels[seen]).decision_function(vectors[coded]).astype(float)
        lengths = [len(coded) * np.log2(len(classes))]
        for temperature in (1, 2, 4, 8):
            found = np.zeros((len(coded), len(classes)))
            found[:, np.isin(classes, model.classes_)] = softmax(scores / temperature, axis=1)
            found = (len(seen) * found + 1 / len(classes)) / (len(seen) + 1)
            lengths.append(log_loss(labels[coded], found, labels=classes, normalize=False) / np.log(2))
        bits += np.log2(5) - logsumexp(-np.array(lengths) * np.log(2)) / np.log(2)
    return float(bits)


class TestControlTask:
    def test_labels_depend_on_type_and_seed_alone(self, words: dict[str, Store]) -> None:
        types, upos = (words["dev"].polars("word")[name].to_numpy() for name in ("word", "upos"))
        labels = control_labels(types, upos, 0)
        label_of = dict(zip(types, labels.tolist(), strict=True))
        assert labels.tolist() == [label_of[word] for word in types]
        assert control_labels(types[:300:-1], upos[::-1], 0).tolist() == labels[:300:-1].tolist()
        others = words["test"].polars("word", ["word"])["word"].to_list()
        found = dict(zip(others, control_labels(others, upos, 0).tolist(), strict=True))
        assert len(shared := found.keys() & label_of.keys()) > 100
        assert all(found[word] == label_of[word] for word in shared)
        assert np.mean(labels == control_labels(types, upos, 1)) < 0.3
        names, counts = np.unique(upos, return_counts=True)
        shares = [list(label_of.values()).count(name) / len(label_of) for name in names]
        assert shares == pytest.approx(counts / len(upos), abs=0.04)

    def test_selectivity_falls_from_logreg_to_mlp(self, words: dict[str, Store], reviewed: Sweep) -> None:
        for row in swept(words, features=[1, 4, 6], head="mlp", control=True).rows:
            assert row.controls["selectivity"] < reviewed.rows[row.layers[0]].controls["selectivity"]
            assert row.controls["selectivity"] == pytest.approx(row.score - row.controls["control"])


class TestBaselines:
    def test_trained_weights_are_better_in_each_layer(self, reviewed: Sweep) -> None:
        assert all(row.controls["above_random"] > 0 for row in reviewed.rows[1:])

    def test_the_most_frequent_labels(self, words: dict[str, Store], reviewed: Sweep) -> None:
        train, dev = (words[name].polars("word", ["word", "upos"]) for name in ("dev", "test"))
        usual = train["upos"].mode().sort()[0]
        by_type = train.group_by("word").agg(guess=pl.col("upos").mode().sort().first())
        guesses = dev.join(by_type, on="word", how="left")["guess"].fill_null(usual)
        expected = [(dev["upos"] == guess).mean() for guess in (usual, guesses)]
        assert [row.score for row in reviewed.baselines] == pytest.approx(expected)


class TestCodelength:
    def test_it_is_that_of_a_script(self, words: dict[str, Store], reviewed: Sweep) -> None:
        labels, documents = (words["dev"].polars("word")[name].to_numpy() for name in ("upos", "doc_id"))
        for layer in (0, 4):
            bits = script_bits(words["dev"].numpy("word", layer, np.float32), labels, documents, seed=0)
            found, uniform = reviewed.rows[layer].controls, len(labels) * np.log2(len(set(labels)))
            assert found["codelength"] == pytest.approx(bits / 1000, rel=1e-4)
            assert found["compression"] == pytest.approx(uniform / bits, rel=1e-4)
        least = reviewed.baselines[0].controls["compression"]
        assert 1 < 1.5 * least < min(row.controls["compression"] for row in reviewed.rows)

    @pytest.mark.parametrize("head", ["logreg", "mlp", "knn", "linear"])
    def test_random_labels_are_not_compressed(self, words: dict[str, Store], head: str) -> None:
        keys = words["dev"].polars("word", ["doc_id", "word_index"])
        labels = keys.with_columns(upos=np.random.default_rng(1).integers(17, size=keys.height))
        settings = {"labels": labels, "dev": None, "features": [4], "baselines": "majority"}
        found = swept(words, **settings, head=head, mdl=True)
        for row in (*found.rows, *found.baselines):
            assert row.controls["compression"] == pytest.approx(1, abs=0.02)

    def test_a_stream_gives_the_same(self, words: dict[str, Store], reviewed: Sweep) -> None:
        found = swept(words, features=[4], mdl=True, control=True, C=0.01, max_memory=1)
        in_memory = {name: reviewed.rows[4].controls[name] for name in found.rows[0].controls}
        assert found.rows[0].controls == pytest.approx(in_memory, abs=2e-3)


def test_norms_of_layers_are_beside_the_weights_of_a_mix(words: dict[str, Store]) -> None:
    found = swept(words, features="mix_last4", head="linear", max_epochs=1)
    layers = [StandardScaler().fit_transform(words["dev"].numpy("word", layer, np.float32)) for layer in range(3, 7)]
    assert found.rows[0].mixes[0]["norms"] == pytest.approx(np.linalg.norm(layers, axis=2).mean(axis=1), rel=1e-4)
    assert "Fayyaz" in found.mix_lines()[-1]


def test_what_is_written(reviewed: Sweep, tmp_path: Path) -> None:
    reviewed.write(tmp_path / "sweep")
    assert read_sweep(tmp_path / "sweep").to_dict() == reviewed.to_dict()
    table = pl.read_csv(tmp_path / "sweep" / "table.csv")
    assert table["feature"].to_list()[7:] == ["majority", "type"]
    for name in ("control", "selectivity", "random_weights", "above_random", "codelength", "compression"):
        assert table[name].to_list()[:7] == [row.controls[name] for row in reviewed.rows]


CASES: dict[str, dict[str, Any]] = {
    "head ridge has no probabilities, which mdl needs; it goes with logreg, knn": {"mdl": True, "head": "ridge"},
    "control needs one label per row, and the task is regress": {"control": True, "task": "regress"},
    "baseline 'median': unknown; choose among majority": {"baselines": "median"},
    "name both beside dev": {"baselines": "random-weights={random-dev}"},
    "its rows at level word are not those of": {"dev": None, "baselines": "random-weights={test}"},
    "extracted with the weights of": {"dev": None, "baselines": "random-weights={dev}"},
    "too few labelled documents": {"mdl": True, "dev": None, "limit": 3},
}


def test_what_cannot_be_is_one_line(words: dict[str, Store], stores: Stores) -> None:
    places = {name: store.path for name, store in words.items()}
    for text, settings in CASES.items():
        with pytest.raises(BertfeatError, match=text):
            swept(words, **{**settings, "baselines": settings.get("baselines", "").format(**places)})
    with pytest.raises(BertfeatError, match="control needs words that repeat, and level sentence has texts"):
        sweep_probes(stores.train, "domain", control=True)
