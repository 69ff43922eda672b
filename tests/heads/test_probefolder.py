"""Saved probes: the same in a new process, or refused, and never a pickle."""

# ruff: noqa: N806
from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError

from bertfeat import __version__
from bertfeat.errors import RunError, UserError
from bertfeat.heads import probefolder
from bertfeat.heads.probedocument import digest_of
from bertfeat.heads.probefolder import load_probe, save_probe
from bertfeat.heads.registry import make_head

HEADS = {
    "logreg": {"C": [0.1, 1.0]},
    "svm": {"class_weight": "balanced"},
    "ridge": {"alpha": np.float64(2.5)},
    "centroid": {"metric": "euclidean"},
    "knn": {"k": np.int64(3), "weights": "distance"},
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


def forge(folder: Path, change=lambda document: None) -> None:
    """Change a saved probe's document, and write the right digests into it."""
    path = folder / "probe.json"
    document = json.loads(path.read_text())
    weights = (folder / "weights.safetensors").read_bytes()
    document["weights"] = {"sha256": hashlib.sha256(weights).hexdigest(), "n_bytes": len(weights)}
    change(document)
    document["sha256"] = digest_of(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("head", HEADS)
def test_a_loaded_probe_is_the_same(tmp_path, head, n_classes):
    probe = fitted(head, n_classes)
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


def test_a_new_process_predicts_the_same(tmp_path):
    X, _ = rows()
    np.save(tmp_path / "X.npy", X)
    for head in HEADS:
        probe = fitted(head)
        save_probe(probe, tmp_path / head, {})
        np.save(tmp_path / f"{head}.npy", probe.predict(X))
    code = (
        "import sys, numpy as np; from bertfeat.heads.probefolder import load_probe\n"
        "X = np.load('X.npy')\n"
        f"for head in {list(HEADS)}:\n"
        "    probe, _ = load_probe(head)\n"
        "    assert np.array_equal(probe.predict(X), np.load(f'{head}.npy')), head\n"
        "assert 'torch' not in sys.modules\n"
        "print('same')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "same\n", done.stderr


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "a"], "<U9"),
        np.array(["", "\udc80 x"]),
        np.array([5, -3]),
        np.array([2, 1], np.int8),
        np.array([2**64 - 1, 0], np.uint64),
        np.array([True, False]),
        np.array([1, 2], ">i4"),
    ],
)
def test_classes_come_back_as_they_were(tmp_path, labels):
    probe = fitted(n_classes=2, labels=labels)
    save_probe(probe, tmp_path / "probe", {})
    loaded, _ = load_probe(tmp_path / "probe")
    assert loaded.classes_.dtype == probe.classes_.dtype
    assert loaded.classes_.tolist() == sorted(labels.tolist())
    np.testing.assert_array_equal(loaded.predict(rows()[0]), probe.predict(rows()[0]))


def test_the_folder_holds_json_and_safetensors(tmp_path):
    save_probe(fitted(), tmp_path / "new" / "probe", EXTRA)
    folder = tmp_path / "new" / "probe"
    assert sorted(path.name for path in folder.iterdir()) == ["probe.json", "weights.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["probe"]
    document = json.loads((folder / "probe.json").read_text())
    weights = (folder / "weights.safetensors").read_bytes()
    assert document["weights"] == {"sha256": hashlib.sha256(weights).hexdigest(), "n_bytes": len(weights)}
    assert (document["format_version"], document["bertfeat"], document["head"]) == (1, __version__, "logreg")
    assert document["params"]["C"] == [0.1, 1.0]
    assert document["classes"]["values"] == ["LOC", "PER", "ÜBER"]
    assert document["extra"] == EXTRA
    assert set(load_file(folder / "weights.safetensors")) == {"coef", "intercept", "mean", "scale"}
    modules = {
        name.name
        for node in ast.walk(ast.parse(Path(probefolder.__file__).read_text()))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert not modules & {"pickle", "joblib", "marshal", "shelve"}


def test_an_older_probe_is_overwritten_only_if_asked(tmp_path):
    target = tmp_path / "probe"
    target.mkdir()
    save_probe(fitted(), target, {})  # into an empty folder
    with pytest.raises(UserError, match="there is a probe already; choose another `output`, or pass `overwrite`"):
        save_probe(fitted("ridge"), target, {})
    assert load_probe(target)[0].head == "logreg"
    save_probe(fitted("ridge"), target, {}, overwrite=True)
    assert load_probe(target)[0].head == "ridge"
    (target / "weights.safetensors").unlink()
    (target / "weights.safetensors").symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"not part of a probe \(weights.safetensors\)"):
        save_probe(fitted(), target, {}, overwrite=True)


def test_a_name_relative_to_the_current_folder_will_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_probe(fitted(), "probe", {})
    assert load_probe("probe")[0].head == "logreg"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    save_probe(fitted(), ".", {})
    assert load_probe(tmp_path / "here")[0].head == "logreg"


def test_only_fitted_probes_and_json_are_saved(tmp_path):
    with pytest.raises(NotFittedError):
        save_probe(make_head("svm"), tmp_path / "probe", {})
    for extra in ({"x": object()}, {"x": float("nan")}, {(1, 2): 3}):
        with pytest.raises(UserError, match="the probe cannot be saved as JSON: "):
            save_probe(fitted(), tmp_path / "probe", extra)
    save_probe(fitted(), tmp_path / "probe", {"n": np.int64(3), "x": np.arange(2), "t": (1, 2)})
    assert load_probe(tmp_path / "probe")[1] == {"n": 3, "x": [0, 1], "t": [1, 2]}


def test_other_files_are_not_loaded(tmp_path):
    def refused(place, message):
        with pytest.raises(UserError, match=message):
            load_probe(tmp_path / place)

    refused("nowhere", "nowhere: no such folder")
    refused("", r"not a saved probe: it has no probe\.json")
    (tmp_path / "file").write_text("x")
    refused("file", "not a saved probe")
    save_probe(fitted(), tmp_path / "probe", {})
    (tmp_path / "probe" / "weights.safetensors").unlink()
    refused("probe", r"not a saved probe: it has no weights\.safetensors")
    os.mkfifo(tmp_path / "probe" / "weights.safetensors")
    refused("probe", "not a regular file")
    for text in ("", "[]", "{", "null", '{"format_version": 1}', "[" * 100_000, '{"format_version": NaN}', "\xff"):
        (tmp_path / "probe" / "probe.json").write_text(text, encoding="latin-1")
        refused("probe", r"cannot be loaded as a probe: probe\.json")


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(probefolder, "FORMAT_VERSION", 2)
        save_probe(fitted(), tmp_path / "probe", {})
    with pytest.raises(UserError, match="format_version 2, this bertfeat reads up to 1; upgrade bertfeat"):
        load_probe(tmp_path / "probe")


def flips(data: bytes, n_flips: int, seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(n_flips):
        place = int(rng.integers(len(data)))
        yield data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :]
    for _ in range(n_flips // 4):
        cut = int(rng.integers(len(data)))
        yield data[:cut]
        yield data + data[cut:]


@pytest.mark.parametrize("name", ["probe.json", "weights.safetensors"])
@pytest.mark.parametrize("head", ["logreg", "knn"])
def test_a_flipped_byte_is_found_or_changes_nothing(tmp_path, head, name):
    probe = fitted(head)
    save_probe(probe, tmp_path / "probe", EXTRA)
    want = outputs(probe)
    path = tmp_path / "probe" / name
    n_refused = n_same = 0
    messages = set()
    for data in flips(path.read_bytes(), 400, seed=3):
        path.write_bytes(data)
        try:
            loaded, extra = load_probe(tmp_path / "probe")
        except UserError as error:
            n_refused += 1
            messages.add(str(error))
            continue
        # Only whitespace in JSON may change.
        assert name == "probe.json"
        assert extra == EXTRA
        assert loaded.get_params() == probe.get_params()
        for method, got in outputs(loaded).items():
            np.testing.assert_array_equal(got, want[method])
        n_same += 1
    assert not [message for message in messages if "\n" in message]
    assert n_refused > 500
    assert n_refused + n_same == 600


FORGERIES = {
    "head": (lambda d: d.update(head="forest"), "no head 'forest'"),
    "another head": (lambda d: d.update(head="centroid"), "head centroid has no parameter"),
    "another state": (lambda d: d.update(head="centroid", params={}), "holds arrays"),
    "parameter": (lambda d: d["params"].update(depth=3), "no parameter 'depth'"),
    "too few classes": (lambda d: d["classes"]["values"].pop(), r"array coef has shape \(3, 12\), but .* \(1, 12\)"),
    "no classes": (lambda d: d["classes"].update(values=[]), "empty or not sorted"),
    "order": (lambda d: d["classes"]["values"].reverse(), "not sorted"),
    "same class": (lambda d: d["classes"].update(values=["a", "a", "b"]), "not sorted"),
    "label type": (lambda d: d["classes"].update(values=[1, 2, 3]), "not of type '<U4'"),
    "long label": (lambda d: d["classes"].update(values=["a", "b", "longer"]), "not of type '<U4'"),
    "integers": (lambda d: d["classes"].update(dtype="|i1", values=[1, 2, 300]), r"not of type '\|i1'"),
    "booleans": (lambda d: d["classes"].update(dtype="<i8", values=[False, 2, 3]), "not of type '<i8'"),
    "objects": (lambda d: d["classes"].update(dtype="|O"), r"cannot be of type '\|O'"),
    "fractions": (lambda d: d["classes"].update(dtype="<f8", values=[1.0, 2.0, 3.0]), "cannot be of type '<f8'"),
    "no type": (lambda d: d["classes"].update(dtype="nothing"), "not of type 'nothing'"),
    "size": (lambda d: d["classes"].update(dtype="<U200000000"), "cannot be of type"),
    "dtype": (lambda d: d["classes"].update(dtype=3), "not a list of labels"),
    "state": (lambda d: d.update(state={}), "values"),
    "report": (lambda d: d["state"].update(report=3), "report"),
    "weights": (lambda d: d.update(weights={"sha256": "x"}), "not the file that was saved"),
    "field": (lambda d: d.update(more=1), "does not have the fields of a probe"),
    "missing field": (lambda d: d.pop("extra"), "does not have the fields of a probe"),
    "field type": (lambda d: d.update(extra=[]), "does not have the fields of a probe"),
    "version type": (lambda d: d.update(format_version=True), "it has no format_version"),
    "version": (lambda d: d.update(format_version=0), "not the file that was saved"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_every_field_is_checked_even_where_the_digest_is_right(tmp_path, name):
    change, message = FORGERIES[name]
    save_probe(fitted(), tmp_path / "probe", {})
    forge(tmp_path / "probe", change)
    with pytest.raises(UserError, match=f"cannot be loaded as a probe: .*{message}.*; save it again"):
        load_probe(tmp_path / "probe")


ARRAYS = {
    "missing": ("logreg", lambda a: a.pop("mean"), "holds arrays"),
    "unknown": ("svm", lambda a: a.update(more=np.zeros(3)), "holds arrays"),
    "shape": (
        "ridge",
        lambda a: a.update(intercept=np.zeros((3, 1), np.float32)),
        r"array intercept has shape \(3, 1\)",
    ),
    "width": ("logreg", lambda a: a.update(mean=np.zeros(5, np.float32)), r"array mean has shape \(5,\)"),
    "scalar": ("logreg", lambda a: a.update(coef=np.array(1.0)), r"array coef has shape \(\)"),
    "nan": ("logreg", lambda a: a["coef"].fill(np.nan), "array coef holds NaN"),
    "scale": ("centroid", lambda a: a["scale"].fill(0), "array scale holds a number that is not above 0"),
    "vector type": ("knn", lambda a: a.update(vectors=a["vectors"].astype(np.int64)), "array vectors is int64"),
    "codes": ("knn", lambda a: a["codes"].fill(3), "codes beyond its 3 classes"),
    "fewer codes": ("knn", lambda a: a.update(codes=a["codes"][:-1]), "119 codes"),
    "code type": ("knn", lambda a: a.update(codes=a["codes"].astype(np.float32)), r"codes \(float32\)"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_every_array_is_checked_even_where_the_digest_is_right(tmp_path, name):
    head, change, message = ARRAYS[name]
    save_probe(fitted(head), tmp_path / "probe", {})
    path = tmp_path / "probe" / "weights.safetensors"
    arrays = {key: array.copy() for key, array in load_file(path).items()}
    change(arrays)
    save_file(arrays, path)
    forge(tmp_path / "probe")
    with pytest.raises(UserError, match=f"cannot be loaded as a probe: .*{message}"):
        load_probe(tmp_path / "probe")


@pytest.mark.parametrize("k", [0, "5", None])
def test_parameters_of_a_saved_probe_are_checked(tmp_path, k):
    save_probe(fitted("knn"), tmp_path / "probe", {})
    forge(tmp_path / "probe", lambda document: document["params"].update(k=k))
    with pytest.raises(UserError, match=r"k .* is not a whole number"):
        load_probe(tmp_path / "probe")


def test_weights_that_are_not_safetensors_are_refused(tmp_path):
    save_probe(fitted(), tmp_path / "probe", {})
    for data in (b"", b"\x80\x04}.", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0{}      "):
        (tmp_path / "probe" / "weights.safetensors").write_bytes(data)
        forge(tmp_path / "probe")
        with pytest.raises(UserError, match="cannot be loaded as a probe: "):
            load_probe(tmp_path / "probe")


@pytest.mark.parametrize("place", ["bertfeat.heads.probefolder.save_file", "os.fsync", "pathlib.Path.rename"])
def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch, place):
    target = tmp_path / "probe"
    save_probe(fitted(), target, {"new": False})

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    real = Path.rename

    def fail_to_publish(self, to):
        return fail() if self.name.endswith(".tmp") else real(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(place, fail_to_publish if place == "pathlib.Path.rename" else fail)
        with pytest.raises(RunError, match="probe: no space left on device; free space and run"):
            save_probe(fitted("ridge"), target, {"new": True}, overwrite=True)
    assert load_probe(target)[1] == {"new": False}
    assert [path.name for path in tmp_path.iterdir()] == ["probe"]
