"""`bertfeat probe` from the command line: its output and its files."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.support.command_line import good, refused
from tests.support.probe_stores import Stores, make_stores

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return make_stores(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def probe(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "not" / "there" / "domains"
    options = ["--label", "domain", "--dev", stores.dev.path, "--param", "C=0.01,0.1,1", "--metric", "macro_f1"]
    result = good("probe", "fit", stores.train.path, "-o", out, *options)
    for words in (str(out), "logreg", "concat_last4", "sentence", "117", "macro_f1"):
        assert words in result.out
    assert result.err == ""
    assert sorted(path.name for path in out.iterdir()) == ["probe.json", "weights.safetensors"]
    return out


@pytest.fixture(scope="module")
def word_probe(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "ner"
    options = "--level word --head linear --seeds 2 --seed 4 --param max_epochs=2 --param lr=0.01 --mix 5..6"
    flags = [*options.split(), "--class-weight", "balanced", "--dev", stores.words_dev.path, "--json"]
    found = good("probe", "fit", stores.words_train.path, "-o", out, *flags).json
    assert (found["head"], found["spec"]["level"], found["spec"]["feature"]) == ("linear", "word", "concat_05_06")
    assert (found["seeds"], found["params"]["mix"], found["params"]["class_weight"]) == ([4, 5], 2, "balanced")
    assert (found["classes"], found["metric"]) == (sorted(found["counts"]), "entity_f1")
    assert set(found["scores"]) == {"entity_f1", "accuracy", "macro_f1", "auroc", "average_precision"}
    return out


def test_a_fit_that_does_not_converge_gives_a_warning(stores: Stores, tmp_path: Path) -> None:
    options = ("--label", "domain", "--param", "max_iter=1")
    result = good("probe", "fit", stores.train.path, "-o", tmp_path / "p", *options)
    assert result.err.startswith("bertfeat: warning: logreg stopped after 1 iterations")
    assert result.err.count("\n") == 1
    again = good("probe", "fit", stores.train.path, "-o", tmp_path / "q", *options, "--json").json
    assert [f"bertfeat: warning: {text}\n" for text in again["warnings"]] == [result.err]


def test_a_probe_that_is_there_is_refused_before_the_fit(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["probe", "fit", stores.train.path, "--label", "domain", "--head", "centroid", "-o", tmp_path / "p"]
    good(*base)
    with monkeypatch.context() as patch:
        patch.setattr("bertfeat.probes.fitting.fit_probe", lambda *_, **__: pytest.fail("it was fitted"))
        assert "--overwrite" in refused(*base)
    good(*base, "--overwrite")


def test_score_in_lines_and_json(probe: Path, word_probe: Path, stores: Stores) -> None:
    shown = good("probe", "score", probe, stores.dev.path).out
    assert shown.startswith("rows: 45, 3 of them without a vector (counted as errors)\n")
    assert "95% intervals of accuracy, macro F1: 1000 resamples of 45 documents" in shown
    found = good("probe", "score", probe, stores.dev.path, "--json").json
    assert (found["n_rows"], found["n_without_vector"], found["metric"]) == (45, 3, "accuracy")
    assert set(found["per_class"]) == {"medical", "python", "social"}
    assert found["intervals"]["accuracy"]["low"] <= found["accuracy"] <= found["intervals"]["accuracy"]["high"]
    numbers = (found["accuracy"], found["intervals"]["accuracy"]["low"], found["intervals"]["accuracy"]["high"])
    assert ["accuracy", *(f"{number:.4f}" for number in numbers)] in [line.split() for line in shown.splitlines()]
    found = good("probe", "score", word_probe, stores.words_dev.path, "--no-intervals", "--json").json
    assert (found["metric"], found["intervals"]) == ("entity_f1", {})
    assert found["entity_f1"] == found["entities"]["f1"]


def test_predictions_for_text_and_store_are_the_same(probe: Path, stores: Stores, tmp_path: Path) -> None:
    from_store, from_text = tmp_path / "store.parquet", tmp_path / "text.parquet"
    assert str(from_store) in good("probe", "predict", probe, stores.dev.path, "-o", from_store).out
    flags = ("--id-column", "id", "--device", "cpu", "--json")
    found = good("probe", "predict", probe, stores.files["dev"], "-o", from_text, *flags).json
    assert (found["n_rows"], found["n_without_prediction"], found["n_bad_rows"]) == (45, 3, 0)
    assert sum(found["counts"].values()) == 42
    assert pl.read_parquet(from_store).equals(pl.read_parquet(from_text))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.parquet", "text.parquet"]
    assert "--overwrite" in refused("probe", "predict", probe, stores.dev.path, "-o", from_store)


def test_predictions_of_words_from_standard_input(word_probe: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.parquet"
    result = good("probe", "predict", word_probe, "-", "-o", out, "--quiet", stdin=b"Aspirin lowers fever.\n")
    assert (result.out, result.err) == ("", "")
    frame = pl.read_parquet(out)
    assert frame.columns == ["doc_id", "word_index", "word", "prediction", "probability"]
    assert frame["word"].to_list() == ["Aspirin", "lowers", "fever", "."]


def test_predictions_with_columns_and_errors_alone(word_probe: Path, stores: Stores, tmp_path: Path) -> None:
    base = ["probe", "predict", word_probe, stores.words_dev.path, "-o", tmp_path / "o.csv", "--overwrite"]
    good(*base, "--columns", "label,char_start")
    frame = pl.read_csv(tmp_path / "o.csv")
    assert frame.columns == ["doc_id", "word_index", "word", "label", "char_start", "prediction", "probability"]
    found = good(*base, "--errors", "--json").json
    n_wrong = frame.filter(pl.col("label").ne_missing(pl.col("prediction"))).height
    assert (found["n_rows"], found["n_gold"]) == (n_wrong, stores.words_dev.n_rows("word"))


def test_a_sweep_has_a_table_a_plot_and_the_same_as_json(stores: Stores, tmp_path: Path) -> None:
    base = ["probe", "sweep", stores.train.path, "-o", tmp_path / "s", "--label", "domain", "--head", "ridge"]
    flags = ["--features", "3,mean_05_06", "--hold-out", 0.3]
    found = good(*base, *flags, "--json").json
    assert [row["feature"] for row in found["rows"]] == ["layer_03", "mean_05_06"]
    assert (found["held_out"], found["seed"]) == (0.3, 0)
    on_disk = json.loads((tmp_path / "s" / "result.json").read_text())
    assert on_disk.pop("check")
    assert {**on_disk, "output": str(tmp_path / "s"), "warnings": []} == found
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert names == {"table.csv", "result.json", "plot.png", "plot.svg"}
    shown = good(*base, *flags, "--overwrite").out
    assert all(name in shown for name in ("layer_03", "mean_05_06"))
