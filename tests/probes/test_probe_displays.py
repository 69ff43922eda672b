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


def test_a_layer_may_be_given_by_its_number(stores, probe):
    assert probe.spec.feature == stores.train.feature("sentence", -1).name == "layer_06"
    with pytest.raises(UserError, match="no layer 99; layers are 0 to 6"):
        bertfeat.fit_probe(stores.train, "domain", feature=99)


def test_a_probe_is_shown(probe):
    assert (
        repr(probe) == f"FittedProbe({probe.name!r}, centroid on layer_06, level sentence, label 'domain', 3 classes)"
    )
    title, *cells = html_cells(probe._repr_html_())
    assert title == repr(probe)
    shown = dict(zip(cells[1::2], cells[2::2], strict=True))
    assert shown["n_rows"] == str(probe.training.n_rows)
    assert shown["classes"] == "['medical', 'python', 'social']"


def test_scores_are_shown(stores, probe):
    score = probe.score(stores.dev)
    interval = score.intervals["accuracy"]
    between = f"{interval.low:.4f} to {interval.high:.4f}"
    assert repr(score) == f"ProbeScore(accuracy {score.value:.4f} ({between}), {score.scores.n_rows} rows)"
    cells = html_cells(score._repr_html_())
    assert cells[1:9] == ["score", "value", "low", "high", "accuracy", f"{score.value:.4f}", *between.split(" to ")]
    row = score.scores.per_class["medical"]
    assert cells[cells.index("medical") + 1 :][:4] == [*(f"{v:.4f}" for v in row[:3]), str(row.support)]
    assert str(score).startswith("rows      45, ")
    assert repr(probe.score(stores.dev, bootstrap=False)).endswith(
        f"accuracy {score.value:.4f}, {score.scores.n_rows} rows)"
    )


def test_a_sweep_is_shown_as_its_table(stores):
    sweep = bertfeat.sweep_probes(stores.train, "domain", head="centroid", features="layer_05,layer_06")
    best = sweep.best
    assert repr(sweep) == (
        f"Sweep(centroid on 'domain', level sentence, 2 features, best {best.feature}: accuracy {best.score:.4f})"
    )
    assert str(sweep) == sweep.table()
    cells = html_cells(sweep._repr_html_())
    assert cells[0] == repr(sweep)
    assert cells[1:10] == sweep.table().splitlines()[0].split()
    assert cells[10:19] == sweep.table().splitlines()[2].split()


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
