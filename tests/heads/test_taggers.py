"""The taggers: what they can learn, whatever the batches, and that sequences come back as they went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertfeat.errors import UserError
from bertfeat.heads.entities import entity_scores
from bertfeat.heads.neural import BiLSTMTagger, LinearTagger
from bertfeat.heads.sequences import Sequences
from tests.support.probe_streams import ArrayStream

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

SMALL = {"hidden_size": 16, "lr": 0.01, "device": "cpu"}
DIM = 6


def words(n_sequences: int, seed: int, max_words: int = 8):
    """Return sentences of noisy one-hot words of three kinds, and the kinds; some sentences are empty."""
    rng = np.random.default_rng(seed)
    kinds = [rng.integers(0, 3, rng.integers(0, max_words + 1)) for _ in range(n_sequences)]
    vectors = []
    for kind in kinds:
        sentence = rng.normal(size=(len(kind), DIM)).astype(np.float32) * 0.3
        sentence[np.arange(len(kind)), kind] += 1
        vectors.append(sentence)
    return vectors, kinds


def kinds_of(n_sequences: int, seed: int):
    vectors, kinds = words(n_sequences, seed)
    return vectors, [[f"kind{k}" for k in kind] for kind in kinds]


def previous(n_sequences: int, seed: int):
    """Label each word by the kind of the word before it."""
    vectors, kinds = words(n_sequences, seed)
    return vectors, [[f"after{k}" for k in [0, *kind[:-1]][: len(kind)]] for kind in kinds]


def tags(n_sequences: int, seed: int):
    """Label runs of the kinds 1 and 2 as entities."""
    vectors, kinds = words(n_sequences, seed)
    labels = []
    for kind in kinds:
        before = [0, *kind[:-1]]
        labels.append(["O" if k == 0 else f"{'I' if k == b else 'B'}-K{k}" for k, b in zip(kind, before, strict=False)])
    return vectors, labels


@pytest.fixture(scope="module")
def fitted():
    x, y = previous(150, seed=1)
    return BiLSTMTagger(**SMALL, max_epochs=15).fit(x, y, dev=previous(50, seed=2))


def test_the_bilstm_learns_what_needs_context_and_the_linear_tagger_cannot(fitted):
    x, y = previous(60, seed=3)
    assert fitted.score(x, y) > 0.97
    linear = LinearTagger(lr=0.01).fit(*previous(150, seed=1), dev=(x, y))
    assert linear.score(x, y) < 0.6


def test_a_prediction_does_not_depend_on_the_batch(fitted):
    x, _ = previous(40, seed=5)
    x.append(np.random.default_rng(0).normal(size=(300, DIM)).astype(np.float32))
    together = fitted.predict_proba(x)
    alone = [fitted.predict_proba([sentence])[0] for sentence in x]
    reverse = fitted.predict_proba(x[::-1])[::-1]
    for a, b, c in zip(together, alone, reverse, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
        np.testing.assert_allclose(a, c, atol=2e-6)


def test_the_bilstm_equals_torchs_own_on_one_sentence(fitted):
    x, _ = previous(10, seed=6)
    sentence = max(x, key=len)
    network = fitted.network_
    scaled = (torch.from_numpy(sentence) - network.mean) / network.scale
    with torch.no_grad():
        states, _ = network.body.lstm(scaled[:, None])
        want = torch.softmax(network.body.output(states[:, 0]), dim=1).numpy()
    np.testing.assert_allclose(fitted.predict_proba([sentence])[0], want, atol=2e-6)


def test_tags_are_scored_and_stopped_by_entities():
    x, y = tags(150, seed=1)
    x_dev, y_dev = tags(60, seed=2)
    tagger = BiLSTMTagger(**SMALL, max_epochs=15).fit(x, y, dev=(x_dev, y_dev))
    report = tagger.fit_report()
    assert report["metric"] == "entity_f1"
    found = entity_scores(y_dev, [labels.tolist() for labels in tagger.predict(x_dev)])
    assert tagger.score(x_dev, y_dev) == found.f1 == report["dev_score"] > 0.8


def test_wrong_data_is_refused(fitted):
    x, y = kinds_of(20, seed=1)
    longest = max(range(20), key=lambda i: len(x[i]))
    no_words = [np.zeros((0, DIM), np.float32)]
    bad = [sentence.copy() for sentence in x]
    bad[longest][0, 0] = np.inf
    row = sum(len(sentence) for sentence in x[:longest])
    tagger = LinearTagger(max_epochs=1)
    inside = Sequences(ArrayStream(np.zeros((6, DIM), np.float32), borders=[2]), [3, 3])
    for call, message in (
        (lambda: tagger.fit(x, y[::-1]), "different lengths"),
        (lambda: tagger.fit([], []), "X is not a list of arrays"),
        (lambda: tagger.fit(no_words, [[]]), "holds no labels"),
        (lambda: BiLSTMTagger(batch_tokens=0).fit(x, y), "batch_tokens 0"),
        (lambda: fitted.predict([np.zeros((3, 2))]), f"vectors 2 wide; the probe was fitted on vectors {DIM} wide"),
        (lambda: fitted.predict(bad), f"row {row}: its vector holds NaN or infinity"),
        (lambda: fitted.predict(inside), "ends inside a sequence"),
    ):
        with pytest.raises(UserError, match=message):
            call()
