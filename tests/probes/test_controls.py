"""Controls of a sweep on parts of speech: control labels, baselines, codelengths, and the norms beside a mix."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.special import logsumexp, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from bertfeat import extract, fit_probe, sweep_probes
from bertfeat.errors import BertfeatError
from bertfeat.probes.controls import control_labels, mixture_bits
from bertfeat.probes.sweep import Sweep, read_sweep
from bertfeat.store.reader import Store
from tests.support.pipeline_runs import run
from tests.support.places import TESTS
from tests.support.probe_stores import Stores

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

EWT = TESTS / "data" / "ud_ewt"
LAYERS = list(range(7))


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """The words of UD English EWT by MiniLM, trained and with random weights; its first file is to learn from."""
    folder = tmp_path_factory.mktemp("ewt")
    assert run("random_weights", "minilm", "-o", folder / "minilm").code == 0
    models = {"": "minilm", "random-": str(folder / "minilm")}
    return {
        prefix + name: extract(
            EWT / f"{name}.conllu", folder / (prefix + name), model=model, levels="word", layers="all"
        )
        for prefix, model in models.items()
        for name in ("dev", "test")
    }


def swept(words: dict[str, Store], **settings: object) -> Sweep:
    return sweep_probes(words["dev"], "upos", **{"dev": words["test"], "features": LAYERS, **settings})


@pytest.fixture(scope="module")
def reviewed(words: dict[str, Store]) -> Sweep:
    random = f"random-weights={words['random-dev'].path},random-weights-dev={words['random-test'].path}"
    return swept(words, control=True, mdl=True, baselines=f"majority,type,{random}", C=0.01)


def script_bits(vectors: np.ndarray, labels: np.ndarray, documents: np.ndarray, seed: int) -> float:
    """Return the bits of labels in the online code of the documentation, by scikit-learn alone."""
    classes, names = np.unique(labels), np.unique(documents)
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    rows = [np.flatnonzero(documents == name) for name in order]
    ends: list[int] = []
    for percent in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25, 50, 100):
        n_documents, n_rows = 0, 0
        while n_documents < 2 or n_rows < max(10, percent / 100 * len(labels)):
            n_rows += len(rows[n_documents])
            n_documents += 1
        if n_documents not in ends:
            ends.append(n_documents)
    bits = len(np.concatenate(rows[: ends[0]])) * np.log2(len(classes))
    for start, end in itertools.pairwise(ends):
        seen, coded = np.concatenate(rows[:start]), np.concatenate(rows[start:end])
        scaler = StandardScaler().fit(vectors[seen])
        model = LogisticRegression(C=0.01, max_iter=1000).fit(scaler.transform(vectors[seen]), labels[seen])
        scores = model.decision_function(scaler.transform(vectors[coded]))
        lengths = [len(coded) * np.log2(len(classes))]
        for temperature in (1, 2, 4, 8):
            found = np.zeros((len(coded), len(classes)))
            found[:, np.isin(classes, model.classes_)] = softmax(scores / temperature, axis=1)
            careful = (len(seen) * found + 1 / len(classes)) / (len(seen) + 1)
            lengths.append(log_loss(labels[coded], careful, labels=classes, normalize=False) / np.log(2))
        bits += np.log2(5) - logsumexp(-np.array(lengths) * np.log(2)) / np.log(2)
    return float(bits)


class TestControlTask:
    def test_labels_depend_on_type_and_seed_alone(self, words: dict[str, Store]) -> None:
        frame = words["dev"].polars("word", ["word", "upos"])
        types, upos = frame["word"].to_list(), frame["upos"].to_numpy()
        labels = control_labels(types, upos, 0)
        label_of = dict(zip(types, labels.tolist(), strict=True))
        assert labels.tolist() == [label_of[word] for word in types]
        others = words["test"].polars("word", ["word"])["word"].to_list()
        assert control_labels(types[:300:-1], upos[::-1], 0).tolist() == labels[:300:-1].tolist()
        known = [(word, label) for word, label in zip(others, control_labels(others, upos, 0), strict=True)]
        assert len([word for word in others if word in label_of]) > 500
        assert all(label == label_of[word] for word, label in known if word in label_of)
        assert np.mean(labels == control_labels(types, upos, 1)) < 0.3
        # Among types, labels are as frequent as among the words.
        drawn = np.array(list(label_of.values()))
        for name in np.unique(upos):
            share = np.mean(upos == name)
            assert np.mean(drawn == name) == pytest.approx(share, abs=4 * np.sqrt(share / len(drawn)))

    def test_selectivity_falls_from_logreg_to_mlp(self, words: dict[str, Store], reviewed: Sweep) -> None:
        found = swept(words, features=[1, 3, 6], head="mlp", control=True)
        for row in found.rows:
            linear = reviewed.rows[row.layers[0]]
            assert row.controls["selectivity"] < linear.controls["selectivity"]
            assert row.controls["selectivity"] == pytest.approx(row.score - row.controls["control"])


class TestBaselines:
    def test_training_is_worth_something_in_each_layer(self, reviewed: Sweep) -> None:
        assert all(row.controls["above_random"] > 0 for row in reviewed.rows[1:])

    def test_majority_and_type(self, words: dict[str, Store], reviewed: Sweep) -> None:
        train, dev = (words[name].polars("word", ["word", "upos"]) for name in ("dev", "test"))
        usual = train["upos"].mode().sort()[0]
        by_type = train.group_by("word").agg(pl.col("upos").mode().sort().first().alias("guess"))
        guesses = dev.join(by_type, on="word", how="left")["guess"].fill_null(usual)
        expected = [(dev["upos"] == guess).mean() for guess in (usual, guesses)]
        assert [row.feature for row in reviewed.baselines] == ["majority", "type"]
        assert [row.score for row in reviewed.baselines] == pytest.approx(expected)
        assert reviewed.best in reviewed.rows


class TestCodelength:
    def test_it_is_that_of_a_script(self, words: dict[str, Store], reviewed: Sweep) -> None:
        frame = words["dev"].polars("word", ["doc_id", "upos"])
        labels, documents = frame["upos"].to_numpy().astype(str), frame["doc_id"].to_numpy()
        for layer in (0, 4):
            vectors = words["dev"].numpy("word", layer)
            bits = script_bits(vectors, labels, documents, seed=0)
            found = reviewed.rows[layer].controls
            assert found["codelength"] == pytest.approx(bits / 1000, rel=1e-4)
            uniform = len(labels) * np.log2(len(set(labels)))
            assert found["compression"] == pytest.approx(uniform / bits, rel=1e-4)

    @pytest.mark.parametrize("head", ["logreg", "mlp", "knn", "linear"])
    def test_random_labels_are_not_compressed(self, words: dict[str, Store], head: str) -> None:
        keys = words["dev"].polars("word", ["doc_id", "word_index"])
        drawn = np.random.default_rng(1).integers(17, size=keys.height)
        found = swept(
            words,
            labels=keys.with_columns(upos=drawn),
            dev=None,
            features=[4],
            head=head,
            mdl=True,
            baselines="majority",
        )
        for row in (*found.rows, *found.baselines):
            assert row.controls["compression"] == pytest.approx(1, abs=0.02)

    def test_parts_of_speech_are_compressed_beyond_their_frequencies(self, reviewed: Sweep) -> None:
        least = reviewed.baselines[0].controls["compression"]
        assert least > 1
        assert all(row.controls["compression"] > 1.5 * least for row in reviewed.rows)

    def test_a_stream_gives_the_same(self, words: dict[str, Store], reviewed: Sweep) -> None:
        found = swept(words, features=[4], mdl=True, control=True, C=0.01, max_memory=1)
        for name, value in found.rows[0].controls.items():
            assert value == pytest.approx(reviewed.rows[4].controls[name], abs=2e-3)

    def test_it_is_hardly_longer_than_the_best_of_its_codes(self) -> None:
        probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=50)
        codes = probabilities.argmax(axis=1)
        assert mixture_bits(probabilities, 3 - codes, 10**9) <= 100 + np.log2(5)
        plain = -np.log2(probabilities[np.arange(50), codes]).sum()
        assert mixture_bits(probabilities, codes, 10**9) == pytest.approx(plain, abs=np.log2(5) + 1e-6)


def test_norms_of_layers_are_beside_the_weights_of_a_mix(words: dict[str, Store]) -> None:
    for standardize in (True, False):
        settings = {"head": "linear", "standardize": standardize, "max_epochs": 1}
        mix = fit_probe(words["dev"], "upos", mix="4,6", **settings).training.fit_report["mix"]
        layers = [words["dev"].numpy("word", layer, np.float32) for layer in (4, 6)]
        if standardize:
            layers = [StandardScaler().fit_transform(layer) for layer in layers]
        assert mix["norms"] == pytest.approx([np.linalg.norm(one, axis=1).mean() for one in layers], rel=1e-4)
    found = swept(words, features="mix_last4", head="linear", max_epochs=1)
    assert "Fayyaz" in found.mix_lines()[-1]


def test_what_is_written(reviewed: Sweep, tmp_path: Path) -> None:
    reviewed.write(tmp_path / "sweep")
    assert read_sweep(tmp_path / "sweep").to_dict() == reviewed.to_dict()
    table = pl.read_csv(tmp_path / "sweep" / "table.csv")
    names = ["control", "selectivity", "random_weights", "above_random", "codelength", "compression"]
    assert table.columns[-7:] == [*names, "seconds"]
    assert table["compression"].to_list()[:7] == [row.controls["compression"] for row in reviewed.rows]
    assert table["feature"].to_list()[7:] == ["majority", "type"]


def test_what_cannot_be_is_one_line(words: dict[str, Store], stores: Stores) -> None:
    word_cases: dict[str, dict[str, object]] = {
        "head ridge has no probabilities, which mdl needs; use one of logreg, knn": {"mdl": True, "head": "ridge"},
        "baseline 'median': unknown": {"baselines": "median"},
        "write random-weights=FOLDER": {"baselines": ["random-weights"]},
        "it takes no folder": {"baselines": "type=x"},
        "name both beside dev": {"baselines": f"random-weights={words['random-dev'].path}"},
        "its rows at level word are not those": {"dev": None, "baselines": f"random-weights={words['test'].path}"},
        "extracted with the weights of": {"dev": None, "baselines": f"random-weights={words['dev'].path}"},
        "too few labelled documents": {"mdl": True, "dev": None, "limit": 3},
    }
    for text, settings in word_cases.items():
        with pytest.raises(BertfeatError, match=text):
            swept(words, **settings)
    with pytest.raises(BertfeatError, match="control needs words that repeat, and level sentence has texts"):
        sweep_probes(stores.train, "domain", control=True)
    with pytest.raises(BertfeatError, match="`mdl` has no effect here; it is for sweep_probes"):
        fit_probe(words["dev"], "upos", feature=1, mdl=True)
