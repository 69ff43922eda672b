"""The recipes: those on probes give the result of their parts, and each refuses mistakes in one line."""

from __future__ import annotations

import gzip
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

NAMES = [path.stem for path in sorted((ROOT / "pipelines").glob("[!_]*.py"))]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str | Path, ...]:
    """Train, dev and test of BC5CDR's chemicals and diseases, as the options of a recipe."""
    folder = tmp_path_factory.mktemp("bc5cdr")
    sentences = blocks("bc5cdr_test.tsv")
    cuts = {"train": slice(0, 40), "dev": slice(40, 60), "test": slice(60, 80)}
    for name, cut in cuts.items():
        (folder / f"{name}.tsv").write_text("\n\n".join(sentences[cut]) + "\n\n", encoding="utf-8")
    return tuple(word for name in cuts for word in (f"--{name}", folder / f"{name}.tsv"))


@pytest.mark.usefixtures("one_thread")
def test_table7(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    model = build_model("bert", tmp_path / "bert", num_hidden_layers=6, max_position_embeddings=64)
    vectors = tmp_path / "glove.txt"
    vectors.write_text("the 0.5 1\nof -1 0.25\n")
    asked = ("--head", "linear", "--seeds", 2, "--max-epochs", 2, "--static", vectors, "--model", model)
    found = result_of(tmp_path / "out", "table7", *words, *asked, "--with-finetuning", "--epochs", 1)
    papers = {row["features"]: row["paper"] for row in found["rows"]}
    assert papers == {
        "Embeddings": 91.0,
        "Second-to-last hidden": 95.6,
        "Last hidden": 94.9,
        "Weighted sum of last four": 95.9,
        "Concatenated last four": 96.1,
        "Weighted sum of all layers": 95.5,
        "Static: glove.txt": None,
        "Fine-tuned": 96.4,
    }
    for row in found["rows"]:
        assert row["metric"] == "entity_f1"
        assert len(row["dev"]["scores"]) == len(row["test"]["scores"]) == 2
        assert row["dev"]["mean"] == pytest.approx(sum(row["dev"]["scores"]) / 2)
    mixes = [[len(mix["weights"]) for mix in row.get("mixes", ())] for row in found["rows"]]
    assert mixes == [[], [], [], [4, 4], [], [6, 6], [], []]
    header, *lines = (tmp_path / "out" / "table.md").read_text("utf-8").splitlines()
    assert header == "| features | dev | test | seconds | MB | paper (CoNLL-2003 dev) |"
    n_all, (*frozen, static, fine) = sum(found["n_words"].values()), found["rows"]
    assert 0.8 * n_all < static["n_unknown_tokens"] < n_all
    assert f"Static: glove.txt: zeros for {static['n_unknown_tokens']:,} of {n_all:,} words, which it lacks." in lines
    assert [row["n_bytes"] for row in frozen] == [n_all * 32 * 2 * n_layers for n_layers in (1, 1, 1, 4, 4, 6)]
    assert fine["seconds"] == pytest.approx(sum(one["seconds"] for one in fine["trainings"]))
    # One row again, by its parts.
    stores = {name: bertfeat.open_store(tmp_path / "out" / "features" / name) for name in ("train", "dev", "test")}
    how = {"level": "word", "feature": "layer_06", "head": "linear", "seed": 1, "max_epochs": 2}
    score = bertfeat.fit_probe(stores["train"], "label", dev=stores["dev"], **how).score(stores["test"])
    assert found["rows"][2]["test"]["scores"][1] == pytest.approx(100 * score.scores.value("entity_f1"))


def test_table7_turns_document_context_on_where_documents_are_marked(tmp_path: Path, tiny_folder: Path) -> None:
    sentences = blocks("ud_ewt_test.conllu")
    # Cut within a document; the second half gets its own mark.
    texts = {"train": "\n\n".join(sentences[:20]), "dev": "# newdoc id = second\n" + "\n\n".join(sentences[20:40])}
    (tmp_path / "train.conllu").write_text(texts["train"] + "\n\n", encoding="utf-8")
    (tmp_path / "dev.conllu.gz").write_bytes(gzip.compress((texts["dev"] + "\n\n").encode()))
    asked = ("--label", "upos", "--head", "linear", "--seeds", 1, "--max-epochs", 2, "--model", tiny_folder)
    files = ("--train", tmp_path / "train.conllu", "--dev", tmp_path / "dev.conllu.gz")
    found = result_of(tmp_path / "out", "table7", *files, *asked)
    assert found["document_context"]
    assert {row["metric"] for row in found["rows"]} == {"accuracy"}
    assert bertfeat.open_store(tmp_path / "out" / "features" / "dev").metadata["document_context"]


@pytest.mark.usefixtures("one_thread")
def test_sentence_classifier(tiny_folder: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [row for row in corpus(0, 25) if row["text"] != " "])
    asked = ("--corpus", path, "--label", "domain", "--model", tiny_folder, "--epochs", 1)
    found = result_of(tmp_path / "out", "sentence_classifier", *asked, "--with-finetuning")
    assert found["training"]["fit_report"]["C"] in [0.01, 0.1, 1.0, 10.0]
    stores = [bertfeat.open_store(tmp_path / "out" / "features" / name) for name in ("train", "dev", "test")]
    predictions = pl.read_parquet(tmp_path / "out" / "predictions.parquet")
    truth = stores[2].polars("sentence", ["domain"])["domain"]
    assert (predictions["prediction"] == truth).mean() == pytest.approx(found["score"]["accuracy"])
    assert bertfeat.load_probe(tmp_path / "out" / "probe").predict(stores[2]).equals(predictions)
    frozen, fine = found["rows"]
    assert frozen["score"] == found["score"]
    assert frozen["n_bytes"] == sum(store.numpy("sentence", found["feature"]).nbytes for store in stores)
    taken = sum(sum(receipt.seconds.values()) for store in stores for receipt in store.receipts())
    assert frozen["seconds"] == pytest.approx(taken + found["training"]["seconds"])
    # The command for fine-tuning alone holds out the same rows, and so has the same score.
    alone = result_of(tmp_path / "alone", "finetune", "--task", "classify", *asked)
    assert alone["scores"]["test"] == fine["score"]


def test_a_mistake_is_one_line(words: tuple[str | Path, ...], tiny_folder: Path, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": f"x {n}", "label": "ab"[n % 2], "one": 1} for n in range(20)])
    few = write_jsonl(tmp_path / "few.jsonl", [{"text": "x", "label": "a"}, {"text": "y", "label": "b"}])
    pair = write_jsonl(tmp_path / "pair.jsonl", [{"a": "x", "b": None, "d": n} for n in range(9)])
    qrels, gpt2 = tmp_path / "qrels.txt", build_model("gpt2", tmp_path / "gpt2")
    qrels.write_text("q 0 c 1\n", encoding="utf-8")
    odd, config = tmp_path / "odd.json", tmp_path / "config.json"
    odd.write_text('{"data": [{}]}', encoding="utf-8")
    config.write_text('{"model_type": "brt"}')
    tsv, train = words[1], ("--train", rows, "--text-column", "text", "--text-pair-column")
    classify, tag = ("--corpus", rows, "--task", "classify"), ("--corpus", tsv, "--format", "conll", "--task", "tag")
    search = ("--corpus", few, "--text-column", "text", "--id-column", "label")
    model = ("--model", tiny_folder)
    for name, asked, message in [
        ("sentence_classifier", ("--corpus", rows, "--label", "one"), "holds one class alone"),
        ("sentence_classifier", ("--corpus", rows, "--label", "topic"), "no row has a column 'topic'"),
        ("sentence_classifier", ("--corpus", rows, "--epochs", 2), "--epochs is for fine-tuning; pass --with-finetun"),
        ("table7", (*words, "--static", tiny_folder), "is a contextual model; name word vectors"),
        ("finetune", ("--corpus", rows, "--task", "regress"), "is not a number; --task regress takes numbers"),
        ("finetune", ("--corpus", rows, "--task", "pair"), "rows have one text; --task pair needs --text-pair-column"),
        ("finetune", ("--corpus", rows, "--task", "tag"), "its rows are texts; --task tag takes words with labels"),
        ("finetune", ("--corpus", few, "--task", "classify"), "2 rows are too few to train on and to hold out test"),
        ("finetune", (*classify, "--text-pair-column", "label"), "use --task pair"),
        ("finetune", (*classify, "--freeze", "0..9"), "out of range"),
        ("finetune", (*classify, "--document-context"), "go with --task tag"),
        ("finetune", (*tag, "--document-context", "--dev", tsv), "--document-context needs --dev and --test"),
        ("sentence_pairs", (*train, "text", "--task", "regress"), "is not a number; --task regress takes numbers"),
        ("sentence_pairs", ("--train", pair, "--text-column", "a", *train[4:], "b", "--label", "d"), "'b' is null"),
        ("adapt", ("--corpus", rows), "pass --model, or --from-scratch with a config.json, and not both"),
        ("adapt", ("--corpus", rows, *model, "--max-length", 65), "is more than the 64 tokens that the model takes"),
        ("adapt", ("--corpus", rows, *model, "--limit", 1), "documents of the corpus: 1; one to train on and one to"),
        ("adapt", ("--corpus", rows, "--model", gpt2), "transformers has no head for masked words for gpt2"),
        ("adapt", ("--corpus", rows, "--from-scratch", config), "not a config of transformers"),
        ("masked_words", ("a [MASK]", "--model", "minilm"), "its files do not have a trained head for masked words"),
        ("masked_words", ("--corpus", rows, "a [MASK]", *model), "pass texts with a mask, or --corpus, and not both"),
        ("question_answering", ("--corpus", odd), "not a SQuAD file"),
        ("semantic_search", ("--corpus", odd), "not a SQuAD file"),
        ("semantic_search", search, "pass --queries and --qrels"),
        ("semantic_search", (*search, "--queries", few, "--qrels", qrels), "none of 2 documents is relevant to"),
        ("semantic_search", (*search, "--transforms", "white"), "transform 'white'"),
        ("near_duplicates", ("--corpus", rows, "--text-column", "body"), "no column 'body'"),
        ("word_senses", ("--word", "bank"), "pass either --corpus or --store"),
        ("word_senses", ("--word", "bank", "--corpus", rows, "--layer", 1, *model), "0 occurrences of 'bank'; choose"),
    ]:
        assert message in refusal(name, *asked, "--output", tmp_path / name), (name, asked)
        assert not (tmp_path / name / "result.json").exists()


def test_all_recipes_are_listed_and_help_has_two_names() -> None:
    listed = run("__main__")
    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()[2:]] == NAMES
    assert all(len(line) > 40 for line in listed.out.splitlines()[2:])
    for name in ["__main__", *NAMES]:
        short, long = run(name, "-h"), run(name, "--help")
        assert short == long
        assert "-h, --help" in long.out


# For a new process without the extra: each recipe shows its help, and one says what is missing.
BARE = """
import importlib, sys
for name in ("accelerate", "sklearn", "scipy", "joblib", "threadpoolctl", "matplotlib", "jinja2"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    main = importlib.import_module(f"bertfeat.pipelines.{name}").main
    try:
        main(["--help"])
    except SystemExit as done:
        assert done.code == 0
importlib.import_module("bertfeat.pipelines.adapt").main(["--corpus", "empty.csv", "--output", "out"])
"""


def test_without_the_extra_a_recipe_is_one_line_and_shows_its_help(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BARE, *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 2, done.stderr
    needs = "this recipe needs accelerate and matplotlib: pip install 'bertfeat[probes,train]'"
    assert done.stderr.splitlines() == [f"bertfeat: {needs}"]
    assert done.stdout.count("-h, --help") == len(NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.csv"]
