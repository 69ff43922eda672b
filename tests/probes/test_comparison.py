"""Comparisons of two probes against loops over resamples with scikit-learn's scores, and against counts by hand."""

from __future__ import annotations

from math import comb
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from seqeval.metrics import f1_score as seqeval_f1
from sklearn import metrics as sk

import bertfeat
from bertfeat import compare_probes, fit_probe
from bertfeat.errors import UserError
from bertfeat.heads.bootstrap import resamples
from bertfeat.probes.fitted import FittedProbe
from tests.support.command_line import good
from tests.support.probe_stores import Stores

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.numeric, pytest.mark.promise("probes")]


@pytest.fixture(scope="module")
def weak(stores: Stores) -> FittedProbe:
    return fit_probe(stores.train, "domain", feature="layer_03", head="knn", k=1, limit=20)


def test_differences_are_those_of_a_loop_over_the_same_documents(stores: Stores) -> None:
    heads = {"ridge": 4, "centroid": 6}.items()
    probes = [fit_probe(stores.words_train, "label", level="word", feature=n, head=head) for head, n in heads]
    found = compare_probes(*probes, stores.words_dev, n_resamples=60)
    frames = [probe.predict(stores.words_dev, columns="label").partition_by("doc_id") for probe in probes]
    assert any(part["prediction"].null_count() for part in frames[0])

    def scores(parts: list[pl.DataFrame]) -> list[float]:
        """Return accuracy, entity F1 and macro F1; a row without a prediction is none of the labels, or O."""
        truth = pl.concat(parts)["label"].to_list()
        guesses = pl.concat(parts)["prediction"].fill_null("none").to_list()
        tags = [[part[name].fill_null("O").to_list() for part in parts] for name in ("label", "prediction")]
        labels = sorted({*truth, *guesses} - {"none"})
        macro = sk.f1_score(truth, guesses, labels=labels, average="macro", zero_division=0)
        return [sk.accuracy_score(truth, guesses), seqeval_f1(*tags), macro]

    drawn = []
    for units in resamples(len(frames[0]), 60, seed=0):
        one, other = (np.array(scores([parts[unit] for unit in units])) for parts in frames)
        drawn.append(one - other)
    whole = np.array(scores(frames[0])) - np.array(scores(frames[1]))
    assert sorted(found.differences) == ["accuracy", "entity_f1", "macro_f1"]
    for n, name in enumerate(sorted(found.differences)):
        values, difference = np.array(drawn)[:, n], found.differences[name]
        assert difference.value == pytest.approx(whole[n])
        assert [difference.low, difference.high] == pytest.approx(np.percentile(values, [2.5, 97.5]).tolist())
        rarer = min((values <= 1e-12).sum(), (values >= -1e-12).sum())
        assert difference.p == min(1, 2 * (1 + rarer) / 61)
    assert found.mcnemar_p is None


def test_a_probe_equals_itself(weak: FittedProbe, stores: Stores) -> None:
    found = compare_probes(weak, weak, stores.dev)
    assert {(one.value, one.low, one.high, one.p) for one in found.differences.values()} == {(0, 0, 0, 1)}
    assert (found.agreement, found.kappa, found.mcnemar_p) == (1, 1, 1)
    assert (found.right["only_first"], found.right["only_second"], found.examples.height) == (0, 0, 0)


def test_counts_agreement_and_examples(
    weak: FittedProbe, sentences: FittedProbe, stores: Stores, tmp_path: Path
) -> None:
    found = compare_probes(weak, sentences, stores.dev, columns="text", n_examples=2)
    frame = weak.predict(stores.dev, columns="text,domain").drop("probability")
    frame = frame.rename({"prediction": "first"}).with_columns(second=sentences.predict(stores.dev)["prediction"])
    right = [frame["domain"].eq_missing(frame[name]) for name in ("first", "second")]
    only = [right[0] & ~right[1], right[1] & ~right[0]]
    b, c = (int(side.sum()) for side in only)
    expected = {"both": (right[0] & right[1]).sum(), "only_first": b, "only_second": c}
    assert found.right == {**expected, "neither": frame.height - sum(expected.values())}
    tail = sum(comb(b + c, n) for n in range(min(b, c) + 1)) / 2 ** (b + c)
    assert found.mcnemar_p == pytest.approx(min(1, 2 * tail))
    guesses = frame.select("first", "second").drop_nulls()
    assert found.n_compared == guesses.height < frame.height
    assert [found.agreement, found.kappa] == pytest.approx(
        [score(*guesses.to_numpy().T) for score in (sk.accuracy_score, sk.cohen_kappa_score)]
    )
    assert [one.accuracy for one in found.scores] == [probe.score(stores.dev).value for probe in (weak, sentences)]
    shown = pl.concat([frame.filter(side).head(2) for side in only])
    assert found.examples.drop("right").equals(shown.select(found.examples.columns[:-1]))

    weak.save(tmp_path / "weak")
    sentences.save(tmp_path / "strong")
    base = ["probe", "compare", tmp_path / "weak", tmp_path / "strong", stores.dev.path, "--columns", "text"]
    assert good(*base, "--examples", 2, "--json").json["examples"] == found.examples.to_dicts()
    out = good(*base).out
    assert all(text in out for text in (f"only_first {b}", "1000 resamples of 45 documents", shown["doc_id"][0]))


def test_probes_of_two_stores_and_what_cannot_be_compared(
    sentences: FittedProbe, stores: Stores, tmp_path: Path
) -> None:
    settings = {"levels": "sentence", "layers": "6", "pooling": "max", "id_column": "id", "keep_columns": "domain"}
    train, dev = (bertfeat.extract(stores.files[name], tmp_path / name, **settings) for name in ("train", "dev"))
    other = fit_probe(train, "domain", head="centroid")
    found = compare_probes(sentences, other, stores.dev, dev)
    assert [one.accuracy for one in found.scores] == [sentences.score(stores.dev).value, other.score(dev).value]
    words = fit_probe(stores.words_train, "label", level="word", feature=-1, head="centroid")
    numbers = fit_probe(stores.train, "is_medical", feature=-1, head="centroid")
    for arguments, message in (
        ((sentences, other, stores.dev), "hold different features.*pooling"),
        ((sentences, other, stores.dev, train), "have different rows or labels 'domain'"),
        ((sentences, words, stores.dev), "works at level sentence, probe centroid at level word"),
        ((sentences, numbers, stores.dev), "holds labels such as 'medical', probe centroid such as 0"),
    ):
        with pytest.raises(UserError, match=message):
            compare_probes(*arguments)
    with pytest.raises(UserError, match="column 'first' has the name of a result"):
        compare_probes(sentences, sentences, stores.dev, columns="first")
