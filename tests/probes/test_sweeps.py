"""Sweeps: every layer and combination, scored like a fit of its own, as table, JSON and plots."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bertfeat import extract, fit_probe, sweep_probes
from bertfeat.errors import UserError
from bertfeat.probes.rows import select_rows
from bertfeat.probes.sweep import Sweep
from tests.support.probe_stores import Stores
from tests.support.shown_output import html_cells

pytestmark = pytest.mark.usefixtures("one_thread")
LAYERS = ["layer_03", "layer_04", "layer_05", "layer_06"]


@pytest.fixture(scope="module")
def words(stores: Stores) -> Sweep:
    return sweep_probes(
        stores.words_train, "label", level="word", head="linear", dev=stores.words_dev, seeds=2, max_epochs=2, lr=0.01
    )


class TestSweep:
    def test_layers_combinations_and_mixes(self, words: Sweep) -> None:
        assert [row.feature for row in words.rows] == [*LAYERS, "concat_last4", "mean_last4", "mix_last4"]
        assert [row.dim for row in words.rows] == [384] * 4 + [1536, 384, 1536]
        assert [row.layers for row in words.rows] == [(3,), (4,), (5,), (6,), *[(3, 4, 5, 6)] * 3]
        mixed = words.rows[-1].mixes
        assert len(mixed) == 2
        assert all(sum(mix["weights"]) == pytest.approx(1) for mix in mixed)

    def test_each_row_is_a_fit_of_its_own(self, words: Sweep, stores: Stores) -> None:
        settings = {"level": "word", "head": "linear", "dev": stores.words_dev, "max_epochs": 2, "lr": 0.01}
        row = words.rows[1]
        alone = fit_probe(stores.words_train, "label", feature="layer_04", seeds=2, **settings)
        values = [trial["dev"]["entity_f1"] for trial in alone.training.trials]
        assert list(row.values) == values
        assert row.metric == "entity_f1"
        assert row.score == pytest.approx(np.mean(values))
        assert row.deviation == pytest.approx(np.std(values, ddof=1))
        mix = words.rows[-1]
        alone = fit_probe(stores.words_train, "label", mix="last4", seeds=2, **settings)
        assert [trial["dev"]["entity_f1"] for trial in alone.training.trials] == list(mix.values)

    def test_what_is_written(self, words: Sweep, tmp_path: Path) -> None:
        words.write(tmp_path / "sweep")
        names = {path.name for path in (tmp_path / "sweep").iterdir()}
        assert names == {"table.csv", "result.json", "plot.png", "plot.svg"}
        with (tmp_path / "sweep" / "table.csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        assert [line["feature"] for line in table] == [row.feature for row in words.rows]
        assert [float(line["score"]) for line in table] == [row.score for row in words.rows]
        result = json.loads((tmp_path / "sweep" / "result.json").read_text())
        assert result.pop("check")
        assert result == words.to_dict()
        assert result["best"] == max(words.rows, key=lambda row: row.score).feature
        svg = (tmp_path / "sweep" / "plot.svg").read_text()
        for text in ("entity_f1", "concat_last4", "standard deviation over 2 seeds"):
            assert text in svg
        assert (tmp_path / "sweep" / "plot.png").read_bytes().startswith(b"\x89PNG")

    def test_a_fifth_of_the_documents_is_held_out(self, stores: Stores) -> None:
        arguments = {"head": "centroid", "features": "4, concat_last4", "seed": 3}
        found, again = (sweep_probes(stores.train, "domain", **arguments) for _ in range(2))
        n_rows = stores.train.n_rows("sentence")
        assert (found.n_dev, found.n_train) == (round(n_rows / 5), n_rows - round(n_rows / 5))
        assert (found.held_out, found.seed) == (0.2, 3)
        assert found.seeds == ()
        row = found.rows[0]
        assert row.low <= row.score <= row.high
        assert row.deviation is None
        assert [row.score for row in again.rows] == [row.score for row in found.rows]
        assert [row.feature for row in found.rows] == ["layer_04", "concat_last4"]

    def test_what_cannot_be_swept(self, stores: Stores) -> None:
        for arguments, message in (
            ({"features": []}, "features is empty"),
            ({"feature": "layer_06"}, "`feature` has no effect here; name the `features` of a sweep"),
            ({"hold_out": 1.5}, "`hold_out=1.5` is not between 0 and 1"),
            ({"features": ["mix_last4"]}, "mix_last4: head ridge has no scalar mix"),
            ({"limits": "20,many"}, "`limits` holds 'many'; write whole numbers above 0, or all"),
            ({"limits": [1]}, "column 'domain' in 1 document holds one class alone"),
            ({"limits": "20", "limit": 30}, "`limit=30` beside `limits`"),
            ({"limit": 1}, r"too few labelled documents \(1\) to hold some out for dev; pass `dev`"),
        ):
            with pytest.raises(UserError, match=message):
                sweep_probes(stores.train, **{"label": "domain", "head": "ridge", **arguments})


class TestCurvesAndStores:
    def test_a_learning_curve_draws_nested_documents(self, stores: Stores) -> None:
        settings = {"head": "ridge", "dev": stores.dev, "seed": 3}
        with pytest.warns(UserWarning, match="`limits` 500 has no effect: there are 120 documents to learn from"):
            found = sweep_probes(stores.train, "domain", features="4,6", limits="60,20,500,all", **settings)
        assert [row.feature for row in found.rows] == ["layer_04"] * 3 + ["layer_06"] * 3
        assert [row.limit for row in found.rows] == [20, 60, 120] * 2
        rows = select_rows(stores.train, "sentence", "layer_06", "domain", None)
        few, more = (set(rows.of_documents(size, 3).rows.tolist()) for size in (20, 60))
        assert few < more
        frame = stores.train.polars("sentence", ["doc_id", "domain"])
        for row in found.rows[3:5]:
            labels = frame[rows.of_documents(row.limit, 3).rows.tolist()]
            alone = fit_probe(stores.train, "domain", labels=labels, feature=6, **settings)
            assert row.score == alone.score(stores.dev).value
        whole = sweep_probes(stores.train, "domain", features="4,6", **settings)
        assert [row.score for row in found.rows[2::3]] == [row.score for row in whole.rows]
        lines = found.plot().get_legend_handles_labels()
        assert lines[1] == ["layer_04", "layer_06"]
        assert lines[0][1].get_xydata().tolist() == [[row.limit, row.score] for row in found.rows[3:]]
        assert ["limit" in sweep.table() for sweep in (found, whole)] == [True, False]

    def test_two_stores_are_compared_on_the_same_documents(self, stores: Stores, tmp_path: Path) -> None:
        settings = {"levels": "sentence", "pooling": "max", "id_column": "id", "keep_columns": "domain"}
        other = extract(stores.files["train"], tmp_path / "train_store", layers="5,6", **settings)
        settings = {"head": "ridge", "features": "5,6,mean_05_06"}
        found = sweep_probes([stores.train, other], "domain", **settings)
        alone = [sweep_probes(store, "domain", **settings) for store in (stores.train, other)]
        assert [row.score for row in found.rows] == [row.score for sweep in alone for row in sweep.rows]
        assert [row.store for row in found.rows] == ["train_store"] * 3 + ["train_store (2)"] * 3
        seconds = sum(receipt.seconds["encode"] for store in (stores.train, other) for receipt in store.receipts())
        assert found.encoding_s == round(seconds, 3)
        assert found.reuse_line().startswith("6 fits used 2 encodings of ")
        assert alone[0].reuse_line().startswith("3 fits used one encoding of ")
        handles, named = found.plot().get_legend_handles_labels()
        assert handles[1].get_xydata().tolist() == [[5, found.rows[3].score], [6, found.rows[4].score]]
        assert named[:2] == ["train_store", "train_store (2)"]
        with pytest.raises(UserError, match=r"train_store and .*dev_store have different rows or labels; extract the"):
            sweep_probes([stores.train, stores.dev], "domain", **settings)


def test_labels_are_escaped_in_a_notebook(stores: Stores) -> None:
    odd = stores.dev.polars("sentence", ["doc_id", "domain"]).rename({"domain": "<b>"})
    odd = odd.with_columns(odd["<b>"].replace_strict({"medical": "<i>&", "social": "s", "python": "p"}))
    probe = fit_probe(stores.dev, "<b>", feature=-1, head="centroid", labels=odd)
    for shown in (probe, probe.score(stores.dev, labels=odd)):
        assert "<b>" not in shown._repr_html_()
        assert "<i>" not in shown._repr_html_()
        assert any("<i>&" in cell for cell in html_cells(shown._repr_html_()))


def test_scores_and_sweeps_are_drawn(stores: Stores) -> None:
    score = fit_probe(stores.train, "domain", feature=-1, head="centroid").score(stores.dev, bootstrap=False)
    confusion = score.scores.confusion
    axes = score.confusion()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(confusion.labels)
    drawn = {tuple(map(int, text.get_position()[::-1])): int(text.get_text()) for text in axes.texts}
    assert drawn == {place: n for place, n in np.ndenumerate(confusion.matrix) if n}
    sweep = sweep_probes(stores.train, "domain", head="centroid", features="layer_05,layer_06,mean_last4")
    scores = {row.feature: row.score for row in sweep.rows}
    assert sweep.plot().lines[0].get_xydata().tolist() == [[5, scores["layer_05"]], [6, scores["layer_06"]]]
    assert "layer_05" in " ".join(html_cells(sweep._repr_html_()))
