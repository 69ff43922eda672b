"""The page on extending: its package is installed and its diffs are applied to a copy of bertfeat, and both run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertfeat import extensions
from bertfeat.errors import UserError
from tests.support.places import ROOT

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import bertfeat
from bertfeat.cli import group

model, place = sys.argv[1], Path(sys.argv[2])
assert Path(bertfeat.__file__).is_relative_to(place), bertfeat.__file__
out = {}

animals, plants = ["cat", "dog", "fox", "owl"], ["oak", "fig", "elm", "ivy"]
(place / "a.tok").write_text("".join(f"{one}  {two} \\n" for one in animals for two in plants))
store = bertfeat.extract(place / "a.tok", place / "words", model=model, levels="word", layers="-1")
out["words"] = store.polars("word", ["word"])["word"].to_list()

lines = ["".join(word + " " for word in animals[:n] * 30) for n in (1, 2, 3, 4)]
rows = [{"text": line, "kind": "even" if n % 2 else "odd"} for n, line in enumerate(lines * 6)]
(place / "a.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
settings = dict(model=model, levels="token,sentence", layers="-1", keep_columns="kind", store_dtype="float32")
store = bertfeat.extract(place / "a.jsonl", place / "store", pooling="min", max_length=20, stride=4, **settings)
out["n_chars"] = store.polars("sentence", ["n_chars"])["n_chars"].to_list()
out["lengths"] = [len(row["text"]) for row in rows]
tokens = store.polars("token", ["doc_id", "is_special"])
states, minima = store.numpy("token", "layer_03"), store.numpy("sentence", "layer_03")
own = ~tokens["is_special"].to_numpy()
wanted = [states[own & (tokens["doc_id"].to_numpy() == doc)].min(axis=0) for doc in range(len(rows))]
out["error"] = float(np.abs(minima - wanted).max())
out["n_windows"] = int(store.polars("sentence", ["n_windows"])["n_windows"].max())

words = ["extract", str(place / "a.jsonl"), "-o", str(place / "again"), "--pooling", "min", "--level", "sentence"]
group([*words, "--layers", "0", "--model", model, "--quiet"], standalone_mode=False)
out["by_flag"] = len(bertfeat.open_store(place / "again"))

probe = bertfeat.fit_probe(store, "kind", level="sentence", feature="layer_03", head="manhattan")
probe.save(place / "probe")
predicted = bertfeat.load_probe(place / "probe").predict(store)
points = minima - minima.mean(axis=0)
points /= np.where(minima.std(axis=0) > 1e-6, minima.std(axis=0), 1)
kinds = np.array([row["kind"] for row in rows])
far = [np.abs(points - points[kinds == kind].mean(axis=0)).sum(axis=1) for kind in ("even", "odd")]
out["predicted"] = predicted["prediction"].to_list()
out["nearest"] = np.array(["even", "odd"])[np.argmin(far, axis=0)].tolist()

bertfeat.export(store, place / "a.fvecs", to="fvecs", level="sentence", feature="layer_03")
read = np.fromfile(place / "a.fvecs", np.int32).reshape(len(rows), -1)
out["sizes"] = sorted(set(read[:, 0].tolist()))
out["is_exported"] = bool((read[:, 1:].view(np.float32) == minima).all())
out["recorded"] = [bertfeat.open_store(place / name).plan.fields["extensions"] for name in ("words", "store")]

index = bertfeat.build_index(store, place / "index", level="token", feature="layer_03", transform="soften", metric="ip")
turned = index.transform.apply(states[own]).astype(np.float64)
out["variances"] = np.cov(turned.T).tolist()
out["expected"] = np.sqrt(np.linalg.eigvalsh(np.cov(states[own].astype(np.float64).T))[::-1]).tolist()
print(json.dumps(out))
"""


def apply(text: str, root: Path) -> None:
    """Apply a diff without line numbers: each hunk replaces a text that its file holds exactly once."""
    for part in re.split(r"^--- ", text, flags=re.MULTILINE)[1:]:
        head, *hunks = part.split("\n@@\n")
        path = root / head.split("+++ b/")[1].strip()
        source = path.read_text() if path.exists() else ""
        for hunk in hunks:
            lines = hunk.rstrip("\n").split("\n")
            before = "".join(line[1:] + "\n" for line in lines if line[:1] != "+")
            after = "".join(line[1:] + "\n" for line in lines if line[:1] != "-")
            assert source.count(before) == 1 or not source, f"{path.name}: not once: {before}"
            source = source.replace(before, after) if source else after
        path.write_text(source)


@pytest.fixture(scope="module")
def found(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the extended package."""
    place = tmp_path_factory.mktemp("extended")
    # With what Python has compiled: only the files that change are compiled again.
    shutil.copytree(ROOT / "bertfeat", place / "bertfeat")
    page = (ROOT / "docs" / "extending.md").read_text()
    diffs = re.findall(r"^```diff\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(diffs) == 2
    for diff in diffs:
        apply(diff, place)
    files = re.findall(r"^```\w+\n# ([\w/]+\.\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(files) == 5
    for name, text in files:
        (place / "more" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "more" / name).write_text(text)
    words = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", place, place / "more"]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)
    (place / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(place / "script.py"), str(tiny_folder), str(place)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def test_a_corpus_format(found: dict[str, Any]) -> None:
    assert found["words"][:4] == ["cat", "oak", "cat", "fig"]
    assert len(found["words"]) == 32


def test_a_pooling(found: dict[str, Any]) -> None:
    assert found["n_windows"] > 1
    assert found["error"] == 0
    assert found["by_flag"] == 24


def test_a_probe_head(found: dict[str, Any]) -> None:
    assert found["predicted"] == found["nearest"]
    assert set(found["predicted"]) == {"even", "odd"}


def test_an_export(found: dict[str, Any]) -> None:
    assert found["sizes"] == [32]
    assert found["is_exported"]


def test_a_store_records_the_packages_that_made_it(found: dict[str, Any]) -> None:
    assert found["recorded"] == [["bertfeat-more 1.0"], ["bertfeat-more 1.0"]]


def test_a_package_that_is_missing_or_broken_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = metadata.EntryPoint("odd", "json:no_such_name", "bertfeat.heads")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group, name: [broken] if name == broken.name else [])
    for name, said in (("odd", "json:no_such_name cannot be loaded"), ("none", "no installed package adds 'none'")):
        with pytest.raises(UserError, match=said):
            extensions.load("heads", name)


def test_an_index_transform(found: dict[str, Any]) -> None:
    variances, expected = np.array(found["variances"]), np.array(found["expected"])
    large = expected > 1e-2 * expected[0]
    np.testing.assert_allclose(np.diag(variances)[large], expected[large], rtol=1e-3)
    assert np.abs(variances - np.diag(np.diag(variances))).max() < 1e-3 * expected[0]


def test_a_column(found: dict[str, Any]) -> None:
    assert found["n_chars"] == found["lengths"]
