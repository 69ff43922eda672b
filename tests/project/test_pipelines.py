"""The pipelines on probes: each runs on small real data and gives the result of its parts."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import bertfeat
from tests.support.families import build_model
from tests.support.pipeline_runs import refusal, result_of, run
from tests.support.places import ROOT
from tests.support.probe_stores import blocks, corpus, write_jsonl

N_SENTENCES = 40


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train, dev and test of BC5CDR's chemicals and diseases, as a folder of CoNLL files."""
    folder = tmp_path_factory.mktemp("bc5cdr")
    sentences = blocks("bc5cdr_test.tsv")
    cuts = {"train": slice(0, 80), "devel": slice(80, 120), "test": slice(120, 160)}
    for name, cut in cuts.items():
        (folder / f"{name}.tsv").write_text("\n\n".join(sentences[cut]) + "\n\n", encoding="utf-8")
    return folder


@pytest.mark.usefixtures("one_thread")
def test_table7(words: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = build_model("bert", tmp_path_factory.mktemp("model"), num_hidden_layers=6, max_position_embeddings=64)
    vectors = tmp_path / "glove.txt"
    vectors.write_text("the 0.5 1\nof -1 0.25\n")
    files = ("--train", words / "train.tsv", "--dev", words / "devel.tsv", "--test", words / "test.tsv")
    said = refusal("table7", *files, "--output", tmp_path / "none", "--static", model)
    assert "is a contextual model; name word vectors" in said
    said = refusal("table7", *files, "--output", tmp_path / "none", "--model", vectors)
    assert "holds static vectors, without layers to compare; pass it as --static" in said
    assert not (tmp_path / "none").exists()
    asked = ("--head", "linear", "--limit", N_SENTENCES, "--seeds", 2, "--max-epochs", 2)
    asked = (*asked, "--static", vectors, "--model", model)
    done = run("table7", *files, "--output", tmp_path, *asked)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert [row["features"] for row in found["rows"]] == [
        "Embeddings",
        "Second-to-last hidden",
        "Last hidden",
        "Weighted sum of last four",
        "Concatenated last four",
        "Weighted sum of all layers",
        "Static: glove.txt",
    ]
    assert [row["paper"] for row in found["rows"]] == [91.0, 95.6, 94.9, 95.9, 96.1, 95.5, None]
    assert not found["document_context"]
    for row in found["rows"]:
        assert row["metric"] == "entity_f1"
        assert len(row["dev"]["scores"]) == len(row["test"]["scores"]) == 2
        assert row["dev"]["mean"] == pytest.approx(sum(row["dev"]["scores"]) / 2)
    mixes = [[len(mix["weights"]) for mix in row["mixes"]] for row in found["rows"]]
    assert mixes == [[], [], [], [4, 4], [], [6, 6], []]
    table = (tmp_path / "table.md").read_text("utf-8")
    header, *lines = table.splitlines()
    assert header == "| features | dev | test | paper (CoNLL-2003 dev) |"
    n_zero = sum(row["dev"]["mean"] < 0.05 for row in found["rows"])
    assert n_zero > 0, "so few sentences teach nothing"
    static = bertfeat.open_store(tmp_path / "features" / "train-static")
    assert static.valid("word", "layer_00").all()
    n_all, n_unknown = sum(found["n_words"].values()), found["rows"][-1]["n_unknown_tokens"]
    assert 0.8 * n_all < n_unknown < n_all
    lacking = f"Static: glove.txt: zeros for {n_unknown:,} of {n_all:,} words, which it lacks."
    remark = f"{n_zero} of 7 rows have the score 0: nothing was learned. Train on more sentences or epochs."
    assert lines[8:] == ["", lacking, "", remark]
    assert table in done.out
    stores = {name: bertfeat.open_store(tmp_path / "features" / name) for name in ("train", "dev", "test")}
    assert {name: store.n_rows("word") for name, store in stores.items()} == found["n_words"]
    assert stores["train"].polars("word", ["doc_id"])["doc_id"].n_unique() == N_SENTENCES
    # One row again, by its parts.
    asked = {"level": "word", "feature": "layer_06", "head": "linear", "seed": 1, "max_epochs": 2}
    probe = bertfeat.fit_probe(stores["train"], "label", dev=stores["dev"], **asked)
    score = probe.score(stores["test"], bootstrap=False).scores.value("entity_f1")
    assert found["rows"][2]["test"]["scores"][1] == pytest.approx(100 * score)


def test_table7_turns_document_context_on_where_documents_are_marked(tmp_path: Path, tiny_folder: Path) -> None:
    sentences = blocks("ud_ewt_test.conllu")
    assert any("# newdoc" in sentence for sentence in sentences[:20])
    # Cut within a document; the second half gets its own mark.
    texts = {"train": "\n\n".join(sentences[:20]), "dev": "# newdoc id = second\n" + "\n\n".join(sentences[20:40])}
    (tmp_path / "train.conllu").write_text(texts["train"] + "\n\n", encoding="utf-8")
    (tmp_path / "dev.conllu.gz").write_bytes(gzip.compress((texts["dev"] + "\n\n").encode()))
    asked = ("--label", "upos", "--head", "linear", "--seeds", 1, "--max-epochs", 2, "--limit", 20)
    asked = (*asked, "--model", tiny_folder)
    files = ("--train", tmp_path / "train.conllu", "--dev", tmp_path / "dev.conllu.gz")
    found = result_of(tmp_path / "out", "table7", *files, *asked)
    assert found["document_context"]
    assert {row["metric"] for row in found["rows"]} == {"accuracy"}
    assert bertfeat.open_store(tmp_path / "out" / "features" / "dev").metadata["document_context"]


def test_sentence_classifier(tmp_path: Path) -> None:
    rows = [row for row in corpus(0, 25) if row["text"] != " "]
    path = write_jsonl(tmp_path / "train.jsonl", rows)
    found = result_of(tmp_path / "out", "sentence_classifier", "--corpus", path, "--label", "domain")
    n_rows = found["n_rows"]
    assert sum(n_rows.values()) == len(rows)
    assert n_rows["test"] == len(rows) // 5
    assert found["training"]["fit_report"]["C"] in [0.01, 0.1, 1.0, 10.0]
    # Medical abstracts, tweets and Python proposals are easy to separate.
    assert found["score"]["accuracy"] > 0.9
    assert {path.name for path in (tmp_path / "out").glob("confusion.*")} == {"confusion.png", "confusion.svg"}
    predictions = pl.read_parquet(tmp_path / "out" / "predictions.parquet")
    test = bertfeat.open_store(tmp_path / "out" / "features" / "test")
    truth = test.polars("sentence", ["domain"])["domain"]
    assert (predictions["prediction"] == truth).mean() == pytest.approx(found["score"]["accuracy"])
    again = bertfeat.load_probe(tmp_path / "out" / "probe").predict(test)
    assert again.equals(predictions)


def test_a_mistake_is_one_line(words: Path, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", corpus(0, 5))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a"\n')
    lines = tmp_path / "lines.txt"
    lines.write_text("One.\n")
    of_words = ("--is-split-into-words", "--document-context")
    classifier, out = ("sentence_classifier", "--corpus", rows, "--label"), ("--output", tmp_path / "out")
    files = ("--train", words / "train.tsv", "--dev", words / "devel.tsv")
    for asked, message in [
        ((*classifier, "one"), "holds one class alone"),
        ((*classifier, "topic"), "no row has a column 'topic'"),
        (
            (*classifier, "one", "--text-column", "body"),
            "no column 'body' for --text-column; columns are id, text, domain",
        ),
        (("sentence_classifier", "--corpus", broken, "--label", "one"), "broken.jsonl:1: "),
        (("table7", *files, "--head", "linear", "--hidden-size", 8), "--hidden-size is for --head bilstm"),
        (
            ("adapt", "--corpus", lines, "--model", "minilm", "--text-column", "b"),
            "has no columns for --text-column 'b'",
        ),
        (("finetune", "--task", "tag", "--corpus", rows, *of_words), "--document-context is for CoNLL files"),
    ]:
        assert message in refusal(*asked, *out)


def test_table7_names_a_byte_that_is_not_utf8_and_no_flag_that_it_lacks(tmp_path: Path) -> None:
    latin = tmp_path / "latin.conll"
    latin.write_bytes("Jürgen O\n\n".encode("latin-1"))
    ran = run("table7", "--train", latin, "--dev", latin, "--output", tmp_path / "out")
    assert ran.code == 2
    *_, last = ran.err.splitlines()
    assert last.startswith(f"bertfeat: {latin}:1: line 1: byte 0xfc at position 1 is not UTF-8")
    assert "Traceback" not in ran.err
    assert "--bad-rows" not in ran.err


def test_all_recipes_are_listed_and_help_has_two_names() -> None:
    names = [path.stem for path in sorted((ROOT / "pipelines").glob("[!_]*.py"))]
    listed = run("__main__")
    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()[2:]] == names
    assert all(len(line) > 40 for line in listed.out.splitlines()[2:])
    for name in ["__main__", *names]:
        short, long = run(name, "-h"), run(name, "--help")
        assert short == long
        assert "-h, --help" in long.out


# For a new process: without the extra, each recipe shows its help; with what it asks for, it may say what is missing.
BARE = """
import click, contextlib, importlib, io, json, sys
for name in ("accelerate", "sklearn", "scipy", "joblib", "threadpoolctl", "matplotlib", "jinja2"):
    sys.modules[name] = None
import bertfeat
found = {}
for name in sys.argv[2:]:
    main = importlib.import_module(f"bertfeat.pipelines.{name}").main
    asked = []
    for param in main.params:
        if param.required:
            kind = param.type
            place = "out" if param.name in ("output", "target") else sys.argv[1]
            value = kind.choices[0] if isinstance(kind, click.Choice) else place
            asked += [param.opts[0], value]
    for words in (["--help"], asked):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                main(words)
                code = 0
            except SystemExit as done:
                code = done.code
        found.setdefault(name, []).append([code, said.getvalue()])
print(json.dumps(found))
"""


def test_without_the_extra_a_recipe_is_one_line_and_shows_its_help(tmp_path: Path) -> None:
    both, plots, probes = "scikit-learn and matplotlib", "matplotlib", "scikit-learn"
    needs = dict.fromkeys(("sentence_classifier", "word_senses"), both)
    needs |= {"adapt": "accelerate and matplotlib", "semantic_search": plots}
    needs |= dict.fromkeys(("finetune", "question_answering"), "accelerate and scikit-learn")
    needs |= dict.fromkeys(("sentence_pairs", "table7"), probes)
    needs |= dict.fromkeys(("masked_words", "near_duplicates", "random_weights", "vector_table"))
    assert needs.keys() == {path.stem for path in (ROOT / "pipelines").glob("[!_]*.py")}
    (tmp_path / "empty.csv").touch()
    command = [sys.executable, "-c", BARE, "empty.csv", *needs]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path, env=env)
    found = json.loads(done.stdout)
    for name, missing in needs.items():
        (code, shown), (refused, said) = found[name]
        assert (code, "-h, --help" in shown) == (0, True), shown
        assert refused == 2
        assert said.count("\n") == 1, said
        if missing:
            extras = "probes,train" if "accelerate" in missing else "probes"
            assert said == f"bertfeat: this recipe needs {missing}: pip install 'bertfeat[{extras}]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["empty.csv"]


def test_labels_of_a_csv_are_text_or_missing(tmp_path: Path, tiny_folder: Path) -> None:
    cells = [f"row {n} of {'cats' if n % 2 else 'dogs'},{'' if n % 9 == 0 else n % 2}" for n in range(90)]
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "\n".join(cells) + "\na late one,unsure\n")
    found = result_of(
        tmp_path / "out", "sentence_classifier", "--corpus", path, "--head", "centroid", "--model", tiny_folder
    )
    classes = json.loads((tmp_path / "out" / "probe" / "probe.json").read_text())["classes"]["values"]
    assert {"0", "1"} <= set(classes) <= {"0", "1", "unsure"}
    assert found["training"]["n_without_label"] > 0
