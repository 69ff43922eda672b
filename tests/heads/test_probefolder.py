"""Saved probes: the same in a new process, or refused, and never a pickle."""

# ruff: noqa: N806
from __future__ import annotations

import json

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file
from sklearn.datasets import make_classification

from bertfeat import __version__
from bertfeat.durable.records import seal
from bertfeat.errors import RunError, UserError
from bertfeat.heads.folder import load_probe, save_probe
from bertfeat.heads.registry import make_head

HEADS = {
    "logreg": {"C": [0.1, 1.0]},
    "svm": {"class_weight": "balanced"},
    "ridge": {"alpha": np.float64(2.5)},
    "centroid": {"metric": "euclidean"},
    "knn": {"k": np.int64(3), "weights": "distance"},
    "mlp": {"hidden_size": 8, "max_epochs": 2, "mix": 2, "n_layers": 2},
}
EXTRA = {"features": {"model": "tiny", "layers": [3, 4]}, "seed": 7, "note": "a ü \U0001f600", "none": None}


def rows(n_classes=3):
    X, y = make_classification(n_samples=120, n_features=12, n_informative=8, n_classes=n_classes, random_state=1)
    return X.astype(np.float32), np.array(["PER", "LOC", "ÜBER"])[y]


def fitted(head="logreg", n_classes=3, labels=None):
    X, y = rows(n_classes)
    if labels is not None:
        y = np.asarray(labels)[np.unique(y, return_inverse=True)[1]]
    return make_head(head, **HEADS[head]).fit(X, y, dev=(X[:40], y[:40]))


def outputs(probe) -> dict[str, np.ndarray]:
    X, _ = rows()
    names = [name for name in ("predict", "predict_proba", "decision_function") if hasattr(probe, name)]
    return {name: getattr(probe, name)(X) for name in names}


@pytest.mark.parametrize("head", HEADS)
def test_a_loaded_probe_is_the_same(tmp_path, head):
    probe = fitted(head, n_classes=2 if head == "ridge" else 3)
    save_probe(probe, tmp_path / "probe", EXTRA)
    loaded, extra = load_probe(tmp_path / "probe")
    assert extra == EXTRA
    assert type(loaded) is type(probe)
    assert loaded.get_params() == probe.get_params()
    assert loaded.fit_report() == probe.fit_report()
    assert loaded.classes_.dtype == probe.classes_.dtype
    assert loaded.n_features_in_ == 12
    for name, want in outputs(probe).items():
        got = outputs(loaded)[name]
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    save_probe(loaded, tmp_path / "again", extra)
    for name in ("probe.json", "weights.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "probe" / name).read_bytes()


@pytest.mark.promise("saved")
def test_the_folder_holds_json_and_safetensors(tmp_path):
    save_probe(fitted(), tmp_path / "new" / "probe", EXTRA)
    folder = tmp_path / "new" / "probe"
    assert sorted(path.name for path in folder.iterdir()) == ["probe.json", "weights.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["probe"]
    document = json.loads((folder / "probe.json").read_text())
    weights = (folder / "weights.safetensors").read_bytes()
    assert document["weights"] == {"n_bytes": len(weights), "digest": xxhash.xxh3_128_hexdigest(weights)}
    assert (document["format_version"], document["bertfeat"], document["head"]) == (1, __version__, "logreg")
    assert document["params"]["C"] == [0.1, 1.0]
    assert document["classes"]["values"] == ["LOC", "PER", "ÜBER"]
    assert document["extra"] == EXTRA
    assert set(load_file(folder / "weights.safetensors")) == {"coef", "intercept", "mean", "scale"}


def test_a_probe_without_its_weights_or_of_another_head_is_refused(tmp_path):
    save_probe(fitted(), tmp_path / "probe", {})
    document = tmp_path / "probe" / "probe.json"
    content = json.loads(document.read_text())
    document.write_bytes(seal({**content, "head": "forest"}))
    with pytest.raises(UserError, match=r"cannot be loaded as a probe: no head 'forest'; .*; save the probe again"):
        load_probe(tmp_path / "probe")
    (tmp_path / "probe" / "weights.safetensors").unlink()
    document.write_bytes(seal(content))
    with pytest.raises(UserError, match=r"weights.safetensors: cannot be read: no such file.*; save the probe again"):
        load_probe(tmp_path / "probe")


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    target = tmp_path / "probe"
    save_probe(fitted(), target, {"new": False})

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(RunError, match="probe: no space left on device; free space and run"):
            save_probe(fitted("ridge"), target, {"new": True}, overwrite=True)
    assert load_probe(target)[1] == {"new": False}
    assert [path.name for path in tmp_path.iterdir()] == ["probe"]
