"""The MLP head and its scalar mix: what they can learn, what they keep, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

from bertfeat.errors import UserError
from bertfeat.heads.neural import MLPProbe, ScalarMix
from tests.support.probe_streams import ArrayStream

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

SMALL = {"hidden_size": 16, "batch_size": 32, "lr": 0.01}


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


def xor(n_rows: int = 400):
    x = np.random.default_rng(0).normal(size=(n_rows, 2)).astype(np.float32)
    return x, np.where(x[:, 0] * x[:, 1] > 0, "same", "other")


def layers(informative: int, n_layers: int = 4, n_rows: int = 500):
    """Return vectors of several layers end to end, of which one tells the class."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, n_rows)
    hidden = rng.normal(size=(n_rows, n_layers, 6)).astype(np.float32)
    hidden[:, informative, :3] += 2.5 * np.eye(3)[y]
    return hidden.reshape(n_rows, -1), y


def test_scalar_mix_is_equation_1_of_peters_et_al():
    mix = ScalarMix(3)
    hidden = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(mix(torch.from_numpy(hidden)).detach().numpy(), hidden.mean(axis=1), rtol=1e-5)
    w = np.array([0.5, -1.0, 2.0])
    with torch.no_grad():
        mix.weights.copy_(torch.from_numpy(w))
        mix.gamma.fill_(1.7)
    shares = np.exp(w) / np.exp(w).sum()
    want = 1.7 * sum(shares[layer] * hidden[:, layer] for layer in range(3))
    np.testing.assert_allclose(mix(torch.from_numpy(hidden)).detach().numpy(), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mix.report()["weights"], shares, rtol=1e-6)
    assert mix.report()["gamma"] == pytest.approx(1.7)


def test_it_does_well_on_digits_in_memory_and_streamed(digits):
    x, y, x_test, y_test = digits
    probe = MLPProbe(max_epochs=8, batch_size=64, lr=0.003)
    in_memory = probe.fit(x, y).score(x_test, y_test)
    streamed = clone(probe).fit(ArrayStream(x, borders=range(100, 1200, 100)), y)
    assert in_memory > 0.95
    assert streamed.score(ArrayStream(x_test, borders=[150, 300]), y_test) == pytest.approx(in_memory, abs=0.025)


def test_the_mix_finds_the_layer_that_tells():
    informative = 2
    x, y = layers(informative)
    probe = MLPProbe(**SMALL, mix=4).fit(x[:400], y[:400])
    mix = probe.fit_report()["mix"]
    assert int(np.argmax(mix["weights"])) == informative
    assert mix["weights"][informative] > 0.8
    assert sum(mix["weights"]) == pytest.approx(1)
    assert mix["gamma"] > 0
    assert probe.score(x[400:], y[400:]) > 0.8
    json.dumps(probe.fit_report(), allow_nan=False)


def test_wrong_parameters_are_named_in_fit():
    x, y = xor(20)
    for params, message in (
        ({"hidden_size": 0}, "hidden_size 0"),
        ({"dropout": 1.0}, "dropout 1.0 is not a number of 0 or more and below 1"),
        ({"weight_decay": [0.1, 0.2]}, "weight_decay is a list and there is no dev"),
        ({"mix": 3}, "mix 3 does not divide vectors 2 wide"),
        ({"class_weight": "most"}, "class_weight 'most'"),
        ({"metric": "entity_f1"}, "metric 'entity_f1' must be one of auto, accuracy, macro_f1, loss"),
        ({"device": "gpu"}, "'gpu' must be one of auto, cpu, mps, cuda"),
        ({"device": "cuda:99"}, "cuda:99"),
    ):
        with pytest.raises(UserError) as caught:
            MLPProbe(**params).fit(x, y)
        assert message in str(caught.value)
