"""The training loop: the best epoch, the weight decay, seeds, and what ends a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import f1_score

from bertfeat.errors import RunError
from bertfeat.heads.neural import BiLSTMTagger, MLPProbe
from bertfeat.heads.sequences import Sequences
from tests.support.probe_streams import ArrayStream

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

SMALL = {"hidden_size": 16, "batch_size": 32, "lr": 0.01}


def blobs(n_rows: int, seed: int, noise: float = 1.2):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_rows)
    return (noise * rng.normal(size=(n_rows, 5)) + np.eye(3, 5)[y] * 2).astype(np.float32), y


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "loss"])
def test_what_is_kept_is_the_best_that_was_seen(metric):
    x, y = blobs(100, seed=0, noise=2)
    x_dev, y_dev = blobs(80, seed=1, noise=2)
    epochs = []
    probe = MLPProbe(**SMALL, metric=metric, max_epochs=15, patience=4)
    report = probe.fit(x, y, dev=(x_dev, y_dev), on_epoch=epochs.append).fit_report()
    assert [e["epoch"] for e in epochs] == list(range(1, report["n_epochs"] + 1))
    assert {e["metric"] for e in epochs} == {metric}
    best = (min if metric == "loss" else max)(e["dev_score"] for e in epochs)
    assert report["dev_score"] == best == epochs[report["best_epoch"] - 1]["dev_score"]
    assert report["n_epochs"] in (15, report["best_epoch"] + 4)
    predicted = probe.predict(x_dev)
    own = -np.log(probe.predict_proba(x_dev)[np.arange(80), y_dev]).mean()
    want = {"accuracy": np.mean(predicted == y_dev), "macro_f1": f1_score(y_dev, predicted, average="macro")}
    assert best == pytest.approx({**want, "loss": own}[metric], rel=1e-5)
    assert report["dev_loss"] == pytest.approx(own, rel=1e-5)


def test_the_weight_decay_is_chosen_on_dev():
    # Each of many columns tells a little of train by chance, and one tells the class.
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 240)
    x = rng.normal(size=(240, 100)).astype(np.float32)
    x[:, 0] += 2 * y
    train, dev = (x[:40], y[:40]), (x[40:], y[40:])
    probe = MLPProbe(**SMALL, max_epochs=40, early_stopping=False, dropout=0.0)
    report = clone(probe).set_params(weight_decay=[0.0, 0.1, 30.0]).fit(*train, dev=dev).fit_report()
    values = (30.0, 0.1, 0.0)
    singles = [clone(probe).set_params(weight_decay=value).fit(*train, dev=dev).score(*dev) for value in values]
    assert [entry["dev_score"] for entry in report["tried"]] == singles
    assert report["dev_score"] == max(singles) > min(singles)
    assert report["weight_decay"] == values[singles.index(max(singles))]


def test_a_loss_that_is_not_finite_ends_the_run_with_its_epoch():
    x, y = blobs(100, seed=0)
    with pytest.raises(
        RunError, match=r"epoch [12]: the (training loss|loss on dev) is (nan|inf).*lower lr than 1e\+30"
    ):
        MLPProbe(lr=1e30, batch_size=10).fit(x, y)


def test_the_same_seed_gives_the_same_weights_streamed_too():
    x, y = blobs(300, seed=0)

    def weights(seed, source):
        return MLPProbe(**SMALL, max_epochs=3, seed=seed).fit(source, y).get_state()["body.output.weight"]

    for make in (lambda: x, lambda: ArrayStream(x, range(50, 300, 50))):
        np.testing.assert_array_equal(weights(1, make()), weights(1, make()))
        assert not np.array_equal(weights(1, make()), weights(2, make()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("head", [MLPProbe(**SMALL, mix=5), BiLSTMTagger(hidden_size=16, lr=0.01, max_epochs=10)])
def test_a_gpu_learns_like_the_cpu(head, monkeypatch):
    # LSTMs are computed with 10 bits of mantissa otherwise.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x, y = blobs(600, seed=0)
    if head.is_tagger:
        x = Sequences(x, [6] * 100)
    before = torch.cuda.get_rng_state()
    on_gpu = clone(head).set_params(device="cuda").fit(x, y)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    on_cpu = clone(head).set_params(device="cpu").fit(x, y)
    assert on_gpu.score(x, y) == pytest.approx(on_cpu.score(x, y), abs=0.03)
    on_cpu.set_state(on_gpu.get_state())
    for a, b in zip(on_cpu.predict_proba(x), on_gpu.predict_proba(x), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
