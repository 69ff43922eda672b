"""The notebooks run from top to bottom, print what is stored in them, and show what their text says."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.shown_output import check_shown

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


def test_search(place):
    names = run("3_search")
    assert names["store"].n_rows("sentence") == 206
    assert names["quality"]["recall@10"] == 1
    assert "comment" in {context.word.casefold() for context in names["words"].contexts(names["hits"]["row"])}
