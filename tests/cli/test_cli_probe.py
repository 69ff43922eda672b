"""`bertfeat probe` from the command line: its output, its files, and one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from bertfeat import load_probe
from tests.probes.test_fitting import classes_store
from tests.support.command_line import good, refused
from tests.support.probe_stores import Stores, make_stores

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return make_stores(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def probe(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "domains"
    good("probe", "fit", stores.train.path, "-o", out, "--label", "domain", "--quiet")
    return out


@pytest.fixture(scope="module")
def word_probe(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "ner"
    options = "--level word --feature layer_06 --head linear --param max_epochs=2 --param lr=0.01 --quiet"
    good("probe", "fit", stores.words_train.path, "-o", out, *options.split())
    return out


class TestFit:
    def test_output_and_files(self, stores: Stores, tmp_path: Path) -> None:
        out = tmp_path / "p"
        options = ["--label", "domain", "--dev", stores.dev.path, "--param", "C=0.01,0.1,1", "--metric", "macro_f1"]
        result = good("probe", "fit", stores.train.path, "-o", out, *options)
        for words in (str(out), "logreg", "concat_last4", "sentence", "117", "macro_f1"):
            assert words in result.out
        assert result.err == ""
        assert sorted(path.name for path in out.iterdir()) == ["probe.json", "weights.safetensors"]

    def test_json(self, stores: Stores, tmp_path: Path) -> None:
        options = (
            "--level word --head linear --seeds 2 --seed 4 --param max_epochs=1 --mix 5..6 --class-weight balanced"
        )
        found = good(
            "probe", "fit", stores.words_train.path, "-o", tmp_path / "p", "--dev", stores.words_dev.path, "--json",
            *options.split(),
        ).json  # fmt: skip
        assert (found["head"], found["spec"]["level"], found["spec"]["feature"]) == ("linear", "word", "concat_05_06")
        assert found["seeds"] == [4, 5]
        assert found["params"]["mix"] == 2
        assert found["params"]["class_weight"] == "balanced"
        assert found["classes"] == sorted(found["counts"])
        assert found["metric"] == "entity_f1"
        assert set(found["scores"]) == {"entity_f1", "accuracy", "macro_f1"}
        assert found["scores"]["entity_f1"].keys() == {"mean", "deviation", "n"}
        assert len(found["fit_report"]["mix"]["weights"]) == 2

    def test_a_fit_that_does_not_converge_gives_a_warning(self, stores: Stores, tmp_path: Path) -> None:
        options = ("--label", "domain", "--param", "max_iter=1")
        result = good("probe", "fit", stores.train.path, "-o", tmp_path / "p", *options)
        assert result.err.startswith("bertfeat: warning: logreg stopped after 1 iterations")
        assert result.err.count("\n") == 1
        again = good("probe", "fit", stores.train.path, "-o", tmp_path / "q", *options, "--json").json
        assert [f"bertfeat: warning: {text}\n" for text in again["warnings"]] == [result.err]

    def test_memory_and_limit(self, stores: Stores, tmp_path: Path) -> None:
        base = ["probe", "fit", stores.train.path, "--label", "domain", "--head", "centroid", "--limit", 60, "--json"]
        streamed = good(*base, "-o", tmp_path / "a", "--max-memory", "100kB").json
        whole = good(*base, "-o", tmp_path / "b", "--max-memory", "1GB").json
        assert (streamed["streamed"], whole["streamed"]) == (True, False)
        assert streamed["n_rows"] == whole["n_rows"] == 57

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--label nothing", "'nothing'"),
            ("--label one", "'one'"),
            ("--level paragraph", "'paragraph'"),
            ("--feature layer_12", "'layer_12'"),
            ("--head forest", "'forest'"),
            ("--head bilstm", "--level word or --level token"),
            ("--mix last4", "--mix goes with"),
            ("--head mlp --mix 9..12", "--mix: layer 9"),
            ("--head mlp --mix x", "--mix 'x'"),
            ("--param depth=3", "'depth'"),
            ("--param C", "--param 'C' is not NAME=VALUE"),
            ("--param C=1 --param C=2", "parameter C is given twice"),
            ("--metric accuracy --param metric=accuracy", "parameter metric is given twice"),
            ("--param C=a", "C 'a'"),
            ("--param seed=1", "--param 'seed=1'"),
            ("--param store=x", "no parameter 'store'"),
            ("--metric rouge --dev {dev}", "'rouge'"),
            ("--class-weight heavy", "'heavy'"),
            ("--seeds 0", "'--seeds'"),
            ("--max-memory lots", "'lots'"),
            ("--labels nowhere.csv", "nowhere.csv: no such file"),
            ("--dev nowhere", "nowhere: no such folder"),
        ],
    )
    def test_mistakes(self, stores: Stores, tmp_path: Path, options: str, message: str) -> None:
        label = [] if "--label " in options else ["--label", "domain"]
        flags = options.format(dev=stores.dev.path).split()
        line = refused("probe", "fit", stores.train.path, "-o", tmp_path / "p", *label, *flags)
        assert message in line
        assert list(tmp_path.iterdir()) == []

    def test_a_wrong_output_is_refused_before_the_fit(
        self, stores: Stores, probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = ["probe", "fit", stores.train.path, "--label", "domain", "--head", "centroid"]
        with monkeypatch.context() as patch:
            patch.setattr("bertfeat.probes.fitting.fit_probe", lambda *_, **__: pytest.fail("it was fitted"))
            assert "there is a probe already; choose another --output, or pass --over" in refused(*base, "-o", probe)
            (tmp_path / "mine.txt").write_text("x")
            for over in ([], ["--overwrite"]):
                assert "holds files that are not part of a probe (mine.txt" in refused(*base, "-o", tmp_path, *over)
            assert "not a folder" in refused(*base, "-o", tmp_path / "mine.txt", "--overwrite")
        good(*base, "-o", tmp_path / "p")
        good(*base, "-o", tmp_path / "p", "--overwrite")


class TestScore:
    def test_lines_and_json(self, probe: Path, stores: Stores) -> None:
        shown = good("probe", "score", probe, stores.dev.path).out
        assert shown.startswith("rows      45, 3 of them without a vector (counted as errors)\naccuracy  0.")
        assert "95% intervals (1000 resamples of 45 documents)" in shown
        found = good("probe", "score", probe, stores.dev.path, "--json").json
        assert found["n_rows"] == 45
        assert found["n_without_vector"] == 3
        assert found["metric"] == "accuracy"
        assert set(found["per_class"]) == {"medical", "python", "social"}
        assert found["intervals"]["accuracy"]["low"] <= found["accuracy"] <= found["intervals"]["accuracy"]["high"]
        assert f"accuracy  {found['accuracy']:.4f}" in shown
        assert good("probe", "score", probe, stores.dev.path, "--no-intervals", "--json").json["intervals"] == {}

    def test_entities(self, word_probe: Path, stores: Stores) -> None:
        found = good("probe", "score", word_probe, stores.words_dev.path, "--json").json
        assert found["metric"] == "entity_f1"
        assert found["entity_f1"] == found["entities"]["f1"]
        assert "entity F1 " in good("probe", "score", word_probe, stores.words_dev.path).out

    def test_unseen_labels_are_reported(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        labels = stores.dev.polars("sentence", ["doc_id", "domain"]).with_columns(
            domain=pl.col("domain").replace("social", "legal")
        )
        labels.write_csv(tmp_path / "labels.csv")
        result = good("probe", "score", probe, stores.dev.path, "--labels", tmp_path / "labels.csv")
        assert "legal" in result.out
        found = good("probe", "score", probe, stores.dev.path, "--labels", tmp_path / "labels.csv", "--json").json
        assert found["unseen_labels"] == {"legal": 15}
        assert found["per_class"]["legal"]["recall"] == 0
        dev = ["--dev", stores.dev.path, "--dev-labels", tmp_path / "labels.csv"]
        shown = good("probe", "fit", stores.train.path, "-o", tmp_path / "p", "--label", "domain", *dev).out
        assert "unseen labels" in shown
        assert "legal 14" in shown

    def test_mistakes(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        base = ["probe", "score", probe]
        assert "no label column 'x'" in refused(*base, stores.dev.path, "--label", "x")
        assert "nowhere: no such folder" in refused(*base, tmp_path / "nowhere")
        assert "nowhere: no such folder" in refused("probe", "score", tmp_path / "nowhere", stores.dev.path)
        assert "not a bertfeat store" in refused(*base, tmp_path)
        assert "not a probe: it has no probe.json" in refused("probe", "score", tmp_path, stores.dev.path)
        assert "level sentence" in refused(*base, stores.words_dev.path)

    def test_other_layers_are_refused(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        base = ["extract", stores.files["dev"], "--level", "sentence", "--keep-columns", "domain", "--id-column", "id"]
        good(*base, "-o", tmp_path / "low", "--layers", "1,2")
        for command in (["score", probe, tmp_path / "low"], ["predict", probe, tmp_path / "low", "-o", "o.parquet"]):
            line = refused("probe", *command)
            assert "[3, 4, 5, 6]" in line
            assert "[1, 2]" in line


class TestPredict:
    def test_text_and_store_give_the_same(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        from_store, from_text = tmp_path / "store.parquet", tmp_path / "text.parquet"
        assert str(from_store) in good("probe", "predict", probe, stores.dev.path, "-o", from_store).out
        found = good(
            "probe", "predict", probe, stores.files["dev"], "-o", from_text, "--id-column", "id", "--device", "cpu",
            "--json",
        ).json  # fmt: skip
        assert (found["n_rows"], found["n_without_prediction"], found["n_bad_rows"]) == (45, 3, 0)
        assert sum(found["counts"].values()) == 42
        assert pl.read_parquet(from_store).equals(pl.read_parquet(from_text))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["store.parquet", "text.parquet"]

    def test_words(self, word_probe: Path, stores: Stores, tmp_path: Path) -> None:
        out = tmp_path / "o.parquet"
        result = good("probe", "predict", word_probe, "-", "-o", out, "--quiet", stdin=b"Aspirin lowers fever.\n")
        assert (result.out, result.err) == ("", "")
        frame = pl.read_parquet(out)
        assert frame.columns == ["doc_id", "word_index", "word", "prediction", "probability"]
        assert frame["word"].to_list() == ["Aspirin", "lowers", "fever", "."]
        good("probe", "predict", word_probe, stores.files["words_dev"], "-o", out, "--overwrite")
        assert pl.read_parquet(out).height == stores.words_dev.n_rows("word")

    def test_columns_and_errors(self, word_probe: Path, stores: Stores, tmp_path: Path) -> None:
        base = ["probe", "predict", word_probe, stores.words_dev.path, "-o", tmp_path / "o.csv", "--overwrite"]
        n_rows = stores.words_dev.n_rows("word")
        assert good(*base, "--columns", "label,char_start", "--json").json["n_rows"] == n_rows
        frame = pl.read_csv(tmp_path / "o.csv")
        assert frame.columns == ["doc_id", "word_index", "word", "label", "char_start", "prediction", "probability"]
        found = good(*base, "--errors", "--json").json
        wrong = frame.filter(pl.col("label").ne_missing(pl.col("prediction")))
        assert (found["n_rows"], found["n_gold"]) == (wrong.height, n_rows)
        assert "'upos'" in refused(*base, "--errors", "--label", "upos")

    def test_mistakes(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        base, out = ["probe", "predict", probe], tmp_path / "o.parquet"
        out.write_text("mine")
        assert "there is a file already; choose another --output, or pass --overwrite" in refused(
            *base, stores.dev.path, "-o", out
        )
        assert out.read_text() == "mine"
        assert "name a file that ends in .parquet or .csv" in refused(*base, stores.dev.path, "-o", tmp_path / "o.tsv")
        line = refused(*base, stores.dev.path, "-o", tmp_path / "p.parquet", "--text-column", "x")
        assert "--text-column is for reading text; INPUT is a store" in line
        assert "no such file" in refused(*base, tmp_path / "no.txt", "-o", tmp_path / "p.parquet")
        line = refused(*base, stores.files["dev"], "-o", tmp_path / "p.parquet", "--text-column", "body")
        assert "no column 'body'" in line
        (tmp_path / "lines.txt").write_text("One.\n")
        line = refused(*base, tmp_path / "lines.txt", "-o", tmp_path / "p.parquet", "--text-column", "body")
        assert "lines.txt: has no columns for --text-column 'body'; leave it out" in line
        (tmp_path / "lines.txt").unlink()
        assert "No such option" in refused(*base, stores.dev.path, "-o", out, "--keep-columns", "domain")
        (tmp_path / "o.txt").write_text("x")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["o.parquet", "o.txt"]


class TestSweep:
    def test_table_and_files(self, stores: Stores, tmp_path: Path) -> None:
        options = ["--label", "domain", "--dev", stores.dev.path, "--head", "centroid", "--seeds", 3]
        shown = good("probe", "sweep", stores.train.path, "-o", tmp_path / "s", *options).out
        for name in ("layer_03", "layer_06", "concat_last4", "mean_last4"):
            assert name in shown
        assert " on dev_store" in shown
        names = {path.name for path in (tmp_path / "s").iterdir()}
        assert names == {"table.csv", "result.json", "plot.png", "plot.svg"}
        assert "there is a sweep already" in refused(
            "probe", "sweep", stores.train.path, "-o", tmp_path / "s", "--label", "x"
        )

    def test_json_and_held_out(self, stores: Stores, tmp_path: Path) -> None:
        base = ["probe", "sweep", stores.train.path, "-o", tmp_path / "s", "--label", "domain", "--head", "ridge"]
        found = good(*base, "--features", "3,mean_05_06", "--hold-out", 0.3, "--json").json
        assert [row["feature"] for row in found["rows"]] == ["layer_03", "mean_05_06"]
        assert (found["held_out"], found["seed"]) == (0.3, 0)
        on_disk = json.loads((tmp_path / "s" / "result.json").read_text())
        assert on_disk.pop("check")
        assert {**on_disk, "output": str(tmp_path / "s"), "warnings": []} == found

    def test_mistakes(self, stores: Stores, tmp_path: Path) -> None:
        base = ["probe", "sweep", stores.train.path, "-o", tmp_path / "s", "--label", "domain"]
        assert "no feature 'layer_00'" in refused(*base, "--features", "layer_00")
        assert "features is empty" in refused(*base, "--features", ",")
        assert "no head 'forest'" in refused(*base, "--head", "forest")
        assert "head bilstm tags the words" in refused(*base, "--head", "bilstm")
        assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("kind", ["fit", "sweep"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_fit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fitting.fit_probe", "fitting.sweep_probes"):
        monkeypatch.setattr(f"bertfeat.probes.{name}", lambda *_, **__: pytest.fail("it was fitted"))
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file / "p", file / "deep" / "p"):
        assert f"{file} is not a folder; choose another --output" in refused("probe", kind, tmp_path, "-o", out)
    assert file.read_text() == "mine"


def test_folders_that_are_not_there_yet_are_made(tmp_path: Path) -> None:
    store = classes_store(tmp_path / "s")
    base = [store.path, "--level", "word", "--head", "centroid"]
    good("probe", "fit", *base, "-o", tmp_path / "a" / "b" / "p")
    good("probe", "sweep", *base, "--features", "concat_last4", "-o", tmp_path / "c" / "d" / "s")
    assert load_probe(tmp_path / "a" / "b" / "p").probe.head == "centroid"
    assert (tmp_path / "c" / "d" / "s" / "table.csv").is_file()


def test_labels_do_not_steer_the_terminal(stores: Stores, tmp_path: Path) -> None:
    table = stores.dev.polars("sentence", ["doc_id"]).with_columns(domain=pl.lit("\x1b[31mred"))
    table.write_parquet(tmp_path / "labels.parquet")
    shown = good(
        "probe", "fit", stores.train.path, "-o", tmp_path / "p", "--label", "domain", "--head", "centroid",
        "--dev", stores.dev.path, "--dev-labels", tmp_path / "labels.parquet",
    ).out  # fmt: skip
    assert "[31mred" in shown
    assert "\x1b" not in shown
