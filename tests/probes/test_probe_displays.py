"""Displays of a probe, its scores and a sweep in Python and in a notebook; layers by number."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import bertfeat
from bertfeat.errors import UserError
from bertfeat.probes.fitted import FittedProbe
from tests.support.probe_stores import Stores
from tests.support.shown_output import html_cells

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def probe(stores: Stores) -> FittedProbe:
    return bertfeat.fit_probe(stores.train, "domain", feature=-1, head="centroid")


def test_labels_are_escaped(stores):
    odd = stores.dev.polars("sentence", ["doc_id", "domain"]).rename({"domain": "<b>"})
    odd = odd.with_columns(odd["<b>"].replace_strict({"medical": "<i>&", "social": "s", "python": "p"}))
    probe = bertfeat.fit_probe(stores.dev, "<b>", feature=-1, head="centroid", labels=odd)
    for shown in (probe, probe.score(stores.dev, labels=odd)):
        assert "<b>" not in shown._repr_html_()
        assert "<i>" not in shown._repr_html_()
        assert any("<i>&" in cell for cell in html_cells(shown._repr_html_()))


def test_scores_and_sweeps_are_drawn(stores, probe, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    score = probe.score(stores.dev, bootstrap=False)
    confusion = score.scores.confusion
    axes = score.confusion()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(confusion.labels)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    drawn = {tuple(map(int, text.get_position()[::-1])): int(text.get_text()) for text in axes.texts}
    assert drawn == {place: n for place, n in np.ndenumerate(confusion.matrix) if n}
    # Text between dollar signs stays text.
    odd = replace(score.scores, confusion=replace(confusion, labels=("$a_1$ $", "b", "c")))
    replace(score, scores=odd).confusion().figure.savefig(tmp_path / "odd.svg")
    sweep = bertfeat.sweep_probes(stores.train, "domain", head="centroid", features="layer_05,layer_06,mean_last4")
    axes = sweep.plot()
    scores = {row.feature: row.score for row in sweep.rows}
    assert axes.lines[0].get_xydata().tolist() == [[5, scores["layer_05"]], [6, scores["layer_06"]]]
    assert [text.get_text() for text in axes.get_legend().texts] == [f"mean_last4  {scores['mean_last4']:.3f}"]
    axes.figure.savefig(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    # The user's own plots look as before.
    assert dict(matplotlib.rcParams) == before
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (score.confusion, sweep.plot):
        with pytest.raises(UserError, match="plots need matplotlib"):
            draw()
