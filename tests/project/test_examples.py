"""The examples and the notebooks run, print what they promise or what is stored in them, and write beside nothing."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.shown_output import check_shown

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Examples with a corpus or settings of their own; all others share the first one's store.
OWN_STORE = {
    *("02_word_features_conll", "03_character_spans", "09_long_documents", "10_layers", "11_probe", "12_search"),
    *("17_target_word", "18_passages"),
}
SAID = {
    "01_extract": ["token: 10122 rows", "(10122, 1536)"],
    "02_word_features_conll": ["B-location", "closest to the mean entity:"],
    "03_character_spans": ["__future__", "coding conventions", "(3, 768)"],
    "04_read_polars": ["conventions", "rows: 10122"],
    "05_read_pandas": ["(9710, 384) float16"],
    "06_read_duckdb": ["function ", "mean cosine"],
    "07_read_torch": ["(10122, 384) torch.float16", "loss of the last batch:"],
    "08_embed": ["-> Heavy rain", "-> Mortgages"],
    "09_long_documents": ["two of them special"],
    "10_layers": ["layer_00 -> layer_01", "(120, 1536)"],
    "11_probe": ["classes: ", "F1 of entities on train: 0.", "Merkel     "],
    "12_search": ["206 vectors", "1. 0.", "nearest to document 0: [0, "],
    "13_update_index": ["monday:  60 vectors", "tuesday: 90 vectors", "found as document 75 with a cosine of 1.00"],
    "14_bertopic": ["topic 0: ", "docstring"],
    "15_keybert": ["river"],
    "17_target_word": ["2020", "computing"],
    "18_passages": ["1. 0.", "docstrings", "functions -> functions"],
    "16_heads": ["LogisticRegressionProbe(C=0.01): 0.", "CentroidProbe(): 0.", "prediction: positive"],
}
# Examples that are skipped where a library is not installed.
NEEDS = {"14_bertopic": "bertopic", "15_keybert": "keybert"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    monkeypatch.chdir(ROOT)
    before = {entry.name for entry in ROOT.iterdir()}
    output = folder / (path.stem if path.stem in OWN_STORE else "shared")
    out = io.StringIO()
    with mock.patch.object(sys, "argv", [str(path), str(output)]), contextlib.redirect_stdout(out):
        runpy.run_path(str(path), run_name="__main__")
    for words in SAID[path.stem]:
        assert words in out.getvalue()
    assert {entry.name for entry in ROOT.iterdir()} - before <= {"__pycache__"}, (
        "an example writes only to its own folder"
    )


NOTEBOOKS = ROOT / "examples" / "notebooks"


def stored_text(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own that has the data where the notebooks look for them."""
    (tmp_path / "data").symlink_to(ROOT / "examples" / "data")
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    plt.switch_backend("agg")
    yield tmp_path
    plt.close("all")


def run(name: str) -> dict[str, Any]:
    """Run the code cells in one namespace, compare what they print with what is stored, and return the namespace."""
    names: dict[str, Any] = {}
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in [cell for cell in cells if cell["cell_type"] == "code"]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), names)
        check_shown(stored_text(cell), printed.getvalue())
    return names


def test_features_to_scikit_learn(place):
    accuracy = run("1_features_to_scikit_learn")["accuracy"]
    assert len(accuracy) == 8
    middle = [accuracy[f"layer_{layer:02d}"] for layer in (3, 4, 5)]
    assert np.mean(middle) > max(accuracy[name] for name in ("layer_00", "layer_01", "layer_06")) + 0.01
    assert accuracy["concat_last4"] > max(middle) - 0.03


def test_layers_of_a_word(place):
    names = run("2_layers_of_a_word")
    alike, other = np.array(names["alike"]), np.array(names["other"])
    assert abs(alike[0] - other[0]) < 0.03
    assert (alike[1:] - other[1:]).min() > 0.03
    axis = names["plane"][:, 0]
    assert max(axis[:4]) < min(axis[4:]) or min(axis[:4]) > max(axis[4:])


def test_search_in_a_notebook(place):
    names = run("3_search")
    assert names["store"].n_rows("sentence") == 206
    assert names["quality"]["recall@10"] == 1
    assert "comment" in {context.word.casefold() for context in names["words"].contexts(names["hits"]["row"])}
