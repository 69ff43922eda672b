"""`bertfeat probe` from the command line: its output, its files, and one line for every mistake."""

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
    out = tmp_path_factory.mktemp("probe") / "domains"
    good("probe", "fit", stores.train.path, "-o", out, "--label", "domain", "--quiet")
    return out


@pytest.fixture(scope="module")
def word_probe(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("probe") / "ner"
    options = "--level word --feature layer_06 --head linear --param max_epochs=2 --param lr=0.01 --quiet"
    good("probe", "fit", stores.words_train.path, "-o", out, *options.split())
    return out


# Options of `probe fit`, and the value that their refusal names.
MISTAKES = """--label nothing | 'nothing'
--label one | 'one'
--level paragraph | 'paragraph'
--feature layer_12 | 'layer_12'
--head forest | 'forest'
--head bilstm | --level word
--mix last4 | --mix
--head mlp --mix 9..12 | layer 9
--head mlp --mix x | 'x'
--param depth=3 | 'depth'
--param C | 'C'
--param C=1 --param C=2 | C
--metric accuracy --param metric=accuracy | metric
--param C=a | 'a'
--param seed=1 | 'seed=1'
--param store=x | 'store'
--metric rouge --dev {dev} | 'rouge'
--class-weight heavy | 'heavy'
--seeds 0 | --seeds
--max-memory lots | 'lots'
--labels nowhere.csv | nowhere.csv
--dev nowhere | nowhere""".splitlines()


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
        options = "--head linear --seeds 2 --seed 4 --param max_epochs=1 --mix 5..6 --class-weight balanced --json"
        train, dev = stores.words_train.path, stores.words_dev.path
        found = good(
            "probe", "fit", train, "-o", tmp_path / "p", "--dev", dev, "--level", "word", *options.split()
        ).json
        assert (found["head"], found["spec"]["level"], found["spec"]["feature"]) == ("linear", "word", "concat_05_06")
        assert (found["seeds"], found["params"]["mix"], found["params"]["class_weight"]) == ([4, 5], 2, "balanced")
        assert (found["classes"], found["metric"]) == (sorted(found["counts"]), "entity_f1")
        assert set(found["scores"]) == {"entity_f1", "accuracy", "macro_f1"}
        assert len(found["fit_report"]["mix"]["weights"]) == 2

    def test_a_fit_that_does_not_converge_gives_a_warning(self, stores: Stores, tmp_path: Path) -> None:
        options = ("--label", "domain", "--param", "max_iter=1")
        result = good("probe", "fit", stores.train.path, "-o", tmp_path / "p", *options)
        assert result.err.startswith("bertfeat: warning: logreg stopped after 1 iterations")
        assert result.err.count("\n") == 1
        again = good("probe", "fit", stores.train.path, "-o", tmp_path / "q", *options, "--json").json
        assert [f"bertfeat: warning: {text}\n" for text in again["warnings"]] == [result.err]

    @pytest.mark.parametrize("mistake", MISTAKES)
    def test_mistakes(self, stores: Stores, tmp_path: Path, mistake: str) -> None:
        options, _, value = mistake.partition(" | ")
        label = [] if "--label " in options else ["--label", "domain"]
        flags = options.format(dev=stores.dev.path).split()
        assert value in refused("probe", "fit", stores.train.path, "-o", tmp_path / "p", *label, *flags)
        assert list(tmp_path.iterdir()) == []

    def test_a_wrong_output_is_refused_before_the_fit(
        self, stores: Stores, probe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = ["probe", "fit", stores.train.path, "--label", "domain", "--head", "centroid"]
        (tmp_path / "mine.txt").write_text("x")
        with monkeypatch.context() as patch:
            patch.setattr("bertfeat.probes.fitting.fit_probe", lambda *_, **__: pytest.fail("it was fitted"))
            assert "--overwrite" in refused(*base, "-o", probe)
            for over in ([], ["--overwrite"]):
                assert "mine.txt" in refused(*base, "-o", tmp_path, *over)
                assert "mine.txt" in refused(*base, "-o", tmp_path / "mine.txt", *over)
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

    def test_mistakes(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        nowhere = tmp_path / "nowhere"
        for arguments, value in (
            ((probe, stores.dev.path, "--label", "x"), "'x'"),
            ((probe, nowhere), str(nowhere)),
            ((nowhere, stores.dev.path), str(nowhere)),
            ((probe, tmp_path), str(tmp_path)),
            ((tmp_path, stores.dev.path), "probe.json"),
            ((probe, stores.words_dev.path), "level sentence"),
        ):
            assert value in refused("probe", "score", *arguments)


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
        good(*base, "--columns", "label,char_start")
        frame = pl.read_csv(tmp_path / "o.csv")
        assert frame.columns == ["doc_id", "word_index", "word", "label", "char_start", "prediction", "probability"]
        found = good(*base, "--errors", "--json").json
        n_wrong = frame.filter(pl.col("label").ne_missing(pl.col("prediction"))).height
        assert (found["n_rows"], found["n_gold"]) == (n_wrong, stores.words_dev.n_rows("word"))

    def test_mistakes(self, probe: Path, stores: Stores, tmp_path: Path) -> None:
        (tmp_path / "o.parquet").write_text("mine")
        (tmp_path / "lines.txt").write_text("One.\n")
        store, csv, before = stores.dev.path, stores.files["dev"], sorted(tmp_path.iterdir())
        for what, out, flags, value in (
            (store, "o.parquet", "", "--overwrite"),
            (store, "o.tsv", "", ".parquet or .csv"),
            (store, "p.parquet", "--text-column x", "--text-column"),
            (tmp_path / "no.txt", "p.parquet", "", "no.txt"),
            (csv, "p.parquet", "--text-column body", "'body'"),
            (tmp_path / "lines.txt", "p.parquet", "--text-column body", "'body'"),
            (store, "p.parquet", "--keep-columns domain", "--keep-columns"),
        ):
            assert value in refused("probe", "predict", probe, what, "-o", tmp_path / out, *flags.split())
        assert (sorted(tmp_path.iterdir()), (tmp_path / "o.parquet").read_text()) == (before, "mine")


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

    @pytest.mark.parametrize("flags", ["--features layer_00", "--features ,", "--head forest", "--head bilstm"])
    def test_mistakes(self, stores: Stores, tmp_path: Path, flags: str) -> None:
        base = ["probe", "sweep", stores.train.path, "-o", tmp_path / "s", "--label", "domain"]
        value = "features is empty" if flags.endswith(",") else flags.split()[1]
        assert value in refused(*base, *flags.split())
        assert not (tmp_path / "s").exists()
