"""What a user meets beside the straight way: outputs that cannot be, other machines, odd settings and labels."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from bertfeat import fit_probe, load_probe, memory, sweep_probes
from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import check_labels
from bertfeat.heads.mlp import MLPProbe
from bertfeat.heads.registry import HEADS, make_head
from bertfeat.heads.scores import score_rows
from bertfeat.memory import free_memory
from bertfeat.probes.features import choose_feature
from tests.probes.test_fitting import classes_store
from tests.project.test_pipelines import result, run
from tests.support.command_line import bertfeat as bertfeat_cli
from tests.support.command_line import good
from tests.support.probe_stores import Stores, corpus, make_stores, write_jsonl

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return make_stores(tmp_path_factory.getbasetemp())


def refused(*arguments: str | Path) -> str:
    """Run a command that must end with exit code 2 and one line; return the line."""
    found = bertfeat_cli(*arguments)
    assert found.code == 2, (found.code, found.err)
    assert found.err.startswith("bertfeat: ")
    assert found.err.count("\n") == 1, found.err
    return found.err


class TestOutputs:
    """Hours of fitting must not end in a folder that could have been seen to be wrong at the start."""

    def test_a_probe_that_holds_more_than_a_probe_is_refused_before_the_fit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = classes_store(tmp_path / "s")
        command = ["probe", "fit", store.path, "--level", "word", "--head", "centroid", "-o", tmp_path / "p"]
        good(*command)
        (tmp_path / "p" / "notes.txt").write_text("mine")
        monkeypatch.setattr("bertfeat.probes.fitting.fit_probe", lambda *_, **__: pytest.fail("it was fitted"))
        assert "not empty and no probe (it has notes.txt)" in refused(*command, "--overwrite")

    @pytest.mark.parametrize("kind", ["fit", "sweep"])
    def test_a_folder_that_cannot_be_made_is_refused_before_the_fit(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("fitting.fit_probe", "sweeps.sweep_probes"):
            monkeypatch.setattr(f"bertfeat.probes.{name}", lambda *_, **__: pytest.fail("it was fitted"))
        file = tmp_path / "file"
        file.write_text("mine")
        for out in (file / "p", file / "deep" / "p"):
            assert f"{file} is not a folder; choose another --output" in refused("probe", kind, tmp_path, "-o", out)
        assert file.read_text() == "mine"

    def test_folders_that_are_not_there_yet_are_made(self, tmp_path: Path) -> None:
        store = classes_store(tmp_path / "s")
        base = [store.path, "--level", "word", "--head", "centroid"]
        good("probe", "fit", *base, "-o", tmp_path / "a" / "b" / "p")
        good("probe", "sweep", *base, "--features", "concat_last4", "-o", tmp_path / "c" / "d" / "s")
        assert load_probe(tmp_path / "a" / "b" / "p").probe.head == "centroid"
        assert (tmp_path / "c" / "d" / "s" / "table.csv").is_file()


class TestSettings:
    def test_seeds_need_a_dev_split_to_be_compared_on(self, tmp_path: Path) -> None:
        store = classes_store(tmp_path / "s")
        with pytest.raises(UserError, match="seeds 2 and there is no dev split to choose the best of them on"):
            fit_probe(store, "label", level="word", head="mlp", seeds=2)

    @pytest.mark.parametrize("seed", [1 << 63, -1])
    def test_a_seed_that_torch_cannot_take(self, seed: int) -> None:
        with pytest.raises(UserError, match=rf"seed {seed} is no whole number of 0 or more, and below 2\*\*63"):
            MLPProbe(seed=seed).fit(np.eye(4), ["a", "b", "a", "b"])

    def test_a_network_that_memory_cannot_hold(self) -> None:
        with pytest.raises(RunError, match="memory of device cpu does not suffice to train; use a smaller hidden_size"):
            MLPProbe(hidden_size=1 << 55).fit(np.eye(4), ["a", "b", "a", "b"])

    def test_layers_of_a_mix_as_a_list(self, stores: Stores) -> None:
        store, level = stores.words_train, stores.words_train.schema("word").level
        assert choose_feature(store, level, None, [6, 5]) == choose_feature(store, level, None, "5..6")
        with pytest.raises(UserError, match=r"mix \[\] is no layers"):
            choose_feature(store, level, None, [])

    def test_features_of_a_sweep_with_commas(self, stores: Stores) -> None:
        found = sweep_probes(stores.words_train, "label", level="word", head="centroid", features="layer_03, layer_06")
        assert [row.feature for row in found.rows] == ["layer_03", "layer_06"]


class TestUnfitted:
    @pytest.mark.parametrize("head", HEADS)
    def test_use_before_fit_is_scikit_learns_error(self, head: str) -> None:
        probe = clone(make_head(head))
        vectors = [np.zeros((2, 3), np.float32)] if probe.is_tagger else np.zeros((2, 3), np.float32)
        for use in (lambda: probe.predict(vectors), probe.fit_report):
            with pytest.raises(NotFittedError):
                use()


class TestLabels:
    @pytest.mark.parametrize("values", [["a", 1], ["a", True], ["a", 1.5]])
    def test_labels_of_several_kinds_are_not_made_text(self, values: list) -> None:
        with pytest.raises(UserError, match=r"y holds values of type .*str.* all of one kind"):
            check_labels(values)

    def test_labels_of_numpys_own_types(self) -> None:
        found = check_labels(np.array([np.int64(3), np.int64(4)], dtype=object))
        assert found.tolist() == [3, 4]
        assert check_labels([np.str_("a"), "b"]).tolist() == ["a", "b"]
        assert check_labels(pl.Series(["a", "b"])).tolist() == ["a", "b"]

    def test_empty_labels_are_none(self, tmp_path: Path) -> None:
        """An empty cell of a .csv comes as an empty text; such rows are unlabelled, and "" is no class."""
        store = classes_store(tmp_path / "s")
        keys = store.polars("word", ["doc_id", "word_index", "label"])
        table = keys.with_columns(label=pl.when(pl.col("word_index") == 0).then(pl.lit("")).otherwise("label"))
        fitted = fit_probe(store, "label", level="word", head="centroid", labels=table)
        assert (fitted.training["n_without_label"], fitted.training["n_rows"]) == (40, 120)
        assert "" not in fitted.probe.classes_
        assert fitted.score(store, labels=table).n_without_label == 40

    def test_a_table_without_a_label_says_so(self, tmp_path: Path) -> None:
        store = classes_store(tmp_path / "s")
        table = store.polars("word", ["doc_id", "word_index"]).with_columns(label=pl.lit(None, pl.String))
        with pytest.raises(UserError, match="a frame: column 'label' holds no labels"):
            fit_probe(store, "label", level="word", labels=table)

    def test_what_is_no_table_of_labels(self, tmp_path: Path) -> None:
        store = classes_store(tmp_path / "s")
        with pytest.raises(UserError, match="labels are a LazyFrame; pass a file or a polars DataFrame"):
            fit_probe(store, "label", level="word", labels=store.scan("word"))  # type: ignore[arg-type]

    def test_labels_of_another_kind_name_column_and_probe(self, stores: Stores) -> None:
        fitted = fit_probe(stores.train, "is_medical", head="centroid")
        with pytest.raises(UserError) as caught:
            fitted.score(stores.dev, label="domain")
        message = str(caught.value)
        assert message.startswith(f"{stores.dev.path}: column 'domain' holds labels such as '")
        assert message.endswith("', those of probe centroid such as 0; use one kind")

    def test_counts_of_labels_are_whole_where_no_row_is_right(self) -> None:
        found = score_rows(["a", "b", "b"], ["c", "c", "c"], ["a", "b", "c"])
        supports = [scores.support for scores in found.per_class.values()]
        assert supports == [1, 2, 0]
        assert all(type(support) is int for support in supports)
        assert "2.0" not in "\n".join(found.lines())

    def test_labels_do_not_steer_the_terminal(self, stores: Stores, tmp_path: Path) -> None:
        table = stores.dev.polars("sentence", ["doc_id"]).with_columns(domain=pl.lit("\x1b[31mred"))
        table.write_parquet(tmp_path / "labels.parquet")
        shown = good(
            "probe", "fit", stores.train.path, "-o", tmp_path / "p", "--label", "domain", "--head", "centroid",
            "--dev", stores.dev.path, "--dev-labels", tmp_path / "labels.parquet",
        ).out  # fmt: skip
        assert "labels that train has not seen" in shown
        assert "\x1b" not in shown


class TestOtherMachines:
    def test_a_probe_of_a_gpu_loads_where_there_is_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = classes_store(tmp_path / "s")
        fitted = fit_probe(store, "label", level="word", head="mlp", max_epochs=1, device="cpu")
        expected = fitted.predict(store)
        # As if it had been trained there.
        fitted.probe.set_params(device="cuda:1")
        fitted.save(tmp_path / "p")
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        loaded = load_probe(tmp_path / "p")
        assert loaded.probe.device == "cuda:1"
        assert loaded.predict(store).equals(expected)
        with pytest.raises(UserError, match="torch sees no CUDA device here"):
            loaded.probe.fit(np.eye(4), ["a", "b", "a", "b"])

    def test_memory_is_that_of_the_control_group(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        group = tmp_path / "job"
        group.mkdir()
        (group / "memory.max").write_text("500000000\n")
        (group / "memory.current").write_text("300000000\n")
        (group / "memory.stat").write_text("anon 1\ninactive_file 50000000\n")
        names = ("memory.max", "memory.current", "inactive_file")
        assert list(memory._of_group(tmp_path, "/job/step", names)) == [250_000_000]
        (group / "memory.max").write_text("max\n")
        assert list(memory._of_group(tmp_path, "/job/step", names)) == []
        monkeypatch.setattr(memory, "_of_groups", lambda: iter([7]))
        assert free_memory() == 7

    def test_memory_is_that_of_the_address_space(self) -> None:
        limit = 1 << 32
        script = "from bertfeat.memory import free_memory; print(free_memory())"
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
        assert 0 < int(done.stdout) < limit


class TestPipelines:
    @pytest.mark.parametrize(
        "names", [("eng.train", "eng.testa", "eng.testb"), ("train.txt", "testa.txt", "testb.txt")]
    )
    def test_table7_knows_the_files_of_conll_2003(self, names: tuple[str, str, str], tmp_path: Path) -> None:
        for name, city in zip(names, ("Rome", "Paris", "Oslo"), strict=True):
            sentence = f"She O\nlives O\nin O\n{city} B-LOC\n\n"
            (tmp_path / name).write_text(f"-DOCSTART- O\n\n{sentence * 3}", encoding="utf-8")
        code, printed = run(
            "table7", "--corpus", tmp_path, "--out", tmp_path / "out", "--head", "linear", "--seeds", 1,
            "--max-epochs", 1,
        )  # fmt: skip
        assert code == 0, printed
        assert result(tmp_path / "out")["files"] == dict(zip(("train", "dev", "test"), names, strict=True))

    def test_a_mistake_is_one_line(self, tmp_path: Path) -> None:
        rows = write_jsonl(tmp_path / "rows.jsonl", corpus(0, 5))
        broken = tmp_path / "broken.jsonl"
        broken.write_text('{"text": "a"\n')
        cases = {
            ("sentence_classifier", rows, "--label", "one"): "holds one class alone",
            ("sentence_classifier", rows, "--label", "one", "--text-column", "body"): "no column 'body'; columns are",
            ("sentence_classifier", broken, "--label", "one"): "broken.jsonl: cannot be read",
            ("layer_sweep", rows, "--level", "sentence", "--label", "topic"): "no row has a column 'topic'",
            ("table7", tmp_path): "no train and no dev file",
        }
        for n, ((name, path, *options), message) in enumerate(cases.items()):
            code, printed = run(name, "--corpus", path, "--out", tmp_path / str(n), *options)
            assert code == 2, printed
            assert printed.splitlines()[-1].startswith("bertfeat: ")
            assert message in printed.splitlines()[-1]
            assert "Traceback" not in printed

    def test_labels_of_a_csv_are_text_and_empty_ones_none(self, tmp_path: Path) -> None:
        cells = [f"row {n} of {'cats' if n % 2 else 'dogs'},{'' if n % 9 == 0 else n % 2}" for n in range(90)]
        path = tmp_path / "rows.csv"
        path.write_text("text,label\n" + "\n".join(cells) + "\na late one,unsure\n")
        code, printed = run("sentence_classifier", "--corpus", path, "--head", "centroid", "--out", tmp_path / "out")
        assert code == 0, printed
        classes = json.loads((tmp_path / "out" / "probe" / "probe.json").read_text())["classes"]["values"]
        assert {"0", "1"} <= set(classes) <= {"0", "1", "unsure"}
        assert result(tmp_path / "out")["training"]["n_without_label"] > 0
