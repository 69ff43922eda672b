"""The examples run, from the root of the repository, and say what they promise."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.support.places import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Examples with a corpus or settings of their own; all others share the first one's store.
OWN_STORE = {"02_word_features_conll", "09_long_documents", "10_layers", "11_probe", "12_search"}
SAID = {
    "01_extract": ["token: 10122 rows", "(10122, 1536)"],
    "02_word_features_conll": ["B-location", "closest to the mean entity:"],
    "03_character_spans": ["__future__", "mean vector of length 384"],
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
