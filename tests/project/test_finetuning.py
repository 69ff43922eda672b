"""Fine-tuning: it learns, its losses are those of transformers, it survives a kill, and its model can be extracted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import bertfeat
from bertfeat.durable.file_lock import folder_lock
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.pipelines._documents import hold_out, read_documents
from bertfeat.pipelines._finetuning import Examples, FineTuned, finetune, label_texts, label_words, make_examples
from bertfeat.pipelines._models import NO_LABEL, TaskModel, open_task_model
from bertfeat.pipelines._scores import correlate
from bertfeat.pipelines._training import Settings, make_trainer
from bertfeat.records import Document
from tests.support.drill import Zygote
from tests.support.families import SENTENCES, build_model
from tests.support.pipeline_runs import refusal, result_of, run, run_killed
from tests.support.places import ROOT
from tests.support.probe_stores import blocks, write_jsonl

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

FAST = Settings(learning_rate=4e-3, epochs=15, batch_size=6, patience=2, device="cpu")
COLOURS, ANIMALS = ("brown", "red", "lazy"), ("fox", "dog", "sea shell", "cat")
WORDS = [word.strip(".,;:!") for sentence in SENTENCES for word in sentence.split()]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model("bert", tmp_path_factory.mktemp("bert"), num_hidden_layers=1)


def document(number: int, text: str, *, pair: str | None = None, **kept: Any) -> Document:
    return Document(number, number, text, text_pair=pair, kept=kept, path="rows.jsonl", row=number + 1)


def sentence(number: int, words: Sequence[str], tags: Sequence[str | None]) -> Document:
    return Document(number, number, " ".join(words), words=tuple(words), annotations={"label": tags})


def rows_of(task: str, n_rows: int = 24) -> list[Document]:
    """Rows of a task that is easy to learn."""
    random = np.random.default_rng(7)
    rows = []
    for number in range(n_rows):
        words = [WORDS[place] for place in random.integers(len(WORDS), size=3 + number % 6)]
        text, is_even = " ".join(words), number % 2 == 0
        if task == "tag":
            rows.append(sentence(number, words, ["B-LONG" if len(word) > 4 else "O" for word in words]))
        elif task == "pair":
            rows.append(document(number, text, pair=text if is_even else "Zürich naïve 42", label=is_even))
        else:
            label: Any = float(is_even) if task == "regress" else ("even" if is_even else "uneven")
            rows.append(document(number, f"{'cats' if is_even else 'pounds'} {text}", label=label))
    return rows


def tuned(task: str, model: Path, folder: Path, settings: Settings = FAST, **options: Any) -> FineTuned:
    rows = rows_of(task)
    splits = {"train": rows, "dev": rows, "test": rows[:12]}
    return finetune(task, splits, "label", str(model), settings, folder / "model", folder / "checkpoints", **options)


def prepared(task: str, rows: Sequence[Document], folder: Path, **config: Any) -> tuple[TaskModel, Examples]:
    """A model with a head, and the examples of rows, whose targets are their labels."""
    is_tag = task == "tag"
    opened = open_task_model(str(folder), "token" if is_tag else "sequence", seed=3, **config)
    texts = label_words(rows, "label", "rows") if is_tag else label_texts(rows, "label", "rows", quantities=True)
    return opened, make_examples(
        texts, opened, np.unique(texts.labels, return_inverse=True)[1] if is_tag else texts.labels
    )


def predicted(opened: TaskModel, examples: Examples, batch_size: int) -> Any:
    """The prediction of a trainer."""
    collator = (
        transformers.DataCollatorWithPadding
        if examples.texts.is_labelled is None
        else transformers.DataCollatorForTokenClassification
    )
    trainer = make_trainer(
        opened.model, [], replace(FAST, batch_size=batch_size), Path("unused"),
        collator=collator(opened.tokenizer), made_of=None, dev=None, score=lambda _: 0.0,
    )  # fmt: skip
    trainer.compute_metrics = None
    return trainer.predict(examples.inputs)


@pytest.mark.parametrize("task", ["classify", "pair", "tag", "regress"])
def test_a_small_task_is_learned(task: str, tiny: Path, tmp_path: Path) -> None:
    found = tuned(task, tiny, tmp_path)
    score = found.scores["test"]
    if task == "regress":
        assert score.value > 0.8
        assert found.values["n_classes"] is None
        return
    assert score.value == 1
    assert found.history.epoch == found.history.best_epoch + 2, "no epoch after it is better"
    assert score.metric == ("entity_f1" if task == "tag" else "accuracy")
    names = open_checkpoint(str(tmp_path / "model")).config["id2label"]
    assert [*names.values()] == [str(label) for label in score.scores.per_class]


def test_a_word_is_labelled_at_its_first_sub_token(tiny: Path) -> None:
    rows = [sentence(0, ["Überraschung", "fox", "shells"], ["a", "b", None]), sentence(1, ["She", "naïve"], ["b", "a"])]
    opened, examples = prepared("tag", rows, tiny, num_labels=2)
    assert examples.texts.n_without_label == 1
    words = [list(row.words or ()) for row in rows]
    theirs = opened.tokenizer(words, is_split_into_words=True)
    for number, tags in enumerate([(0, 1, NO_LABEL), (1, 0)]):
        assert examples.inputs[number]["input_ids"] == theirs["input_ids"][number]
        labels, word_of = [NO_LABEL] * len(theirs["input_ids"][number]), theirs.word_ids(number)
        for word, tag in enumerate(tags):
            labels[word_of.index(word)] = tag
        assert examples.inputs[number]["labels"] == labels
    assert len(theirs.word_ids(0)) > 7, "words have several sub-tokens"


def test_pairs_are_cut_to_a_window(tiny: Path) -> None:
    rows = [document(n, text, pair="a red fox", label=n / 3) for n, text in enumerate(SENTENCES[:3])]
    opened, examples = prepared("regress", rows, tiny, num_labels=1, problem_type="regression")
    length = opened.checkpoint.max_length
    theirs = opened.tokenizer(
        [row.text for row in rows], [row.text_pair for row in rows], truncation="longest_first", max_length=length
    )
    assert [one["input_ids"] for one in examples.inputs] == theirs["input_ids"]
    assert [one["token_type_ids"] for one in examples.inputs] == theirs["token_type_ids"]
    assert [one["labels"] for one in examples.inputs] == [0, 1 / 3, 2 / 3]
    n_long = sum(len(opened.tokenizer(row.text, row.text_pair)["input_ids"]) > length for row in rows)
    assert examples.n_cut == n_long > 0


@pytest.mark.parametrize("model_type", ["gpt2", "xlnet", "roberta"])
def test_padding_does_not_change_the_outputs(model_type: str, tmp_path: Path) -> None:
    folder = build_model(model_type, tmp_path / model_type, num_labels=1)
    rows = [document(n, text, label=n) for n, text in enumerate((*SENTENCES[:3], "a", "red fox"))]
    opened, examples = prepared("regress", rows, folder, num_labels=1)
    alone, together = (predicted(opened, examples, size).predictions for size in (1, 5))
    assert np.ptp(alone) > 1e-4
    np.testing.assert_allclose(together, alone, rtol=0, atol=0.01 * np.ptp(alone))


def test_each_word_of_a_long_sentence_has_a_prediction(tiny: Path) -> None:
    words = (WORDS * 3)[:140]
    rows = [sentence(0, words, ["O"] * len(words)), sentence(1, ["fox"], ["B-X"])]
    opened, examples = prepared("tag", rows, tiny, num_labels=2)
    assert len(examples.inputs) > 10
    assert examples.is_read.all()
    found = predicted(opened, examples, 4)
    assert examples.outputs(found).shape == (141, 2)
    # A word is predicted where its context is largest: as in one of two windows that overlap by a quarter.
    places = [np.flatnonzero(labels != NO_LABEL) for labels in found.label_ids[1:-2]]
    assert min(place[0] for place in places) > 2
    score = examples.score(found, np.array(["B-X", "O"]), bootstrap=True)
    assert score.intervals["accuracy"].n_units == 2, "sentences are drawn"


def test_correlations_are_those_of_scipy() -> None:
    random = np.random.default_rng(3)
    true = random.integers(6, size=80).astype(float)
    predicted = true + random.normal(size=80)
    found = correlate(true, predicted, bootstrap=True)
    assert found.pearson == pytest.approx(stats.pearsonr(true, predicted).statistic)
    assert found.spearman == pytest.approx(stats.spearmanr(true, predicted).statistic)
    for name, interval in found.intervals.items():
        assert interval.low < getattr(found, name) < interval.high
    assert correlate(true, np.ones(80), bootstrap=False).value == 0


def test_a_killed_run_ends_with_the_same_weights(tiny: Path, tmp_path: Path, warm: Zygote) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": row.text, **row.kept} for row in rows_of("classify")])
    asked = ("finetune", "--task", "classify", "--corpus", path, "--model", tiny, "--epochs", 2, "--batch-size", 4)
    whole = result_of(tmp_path / "whole", *asked)
    assert warm.run(run_killed, 7, *asked, "--output", tmp_path / "killed") == -signal.SIGKILL
    assert {one.name for one in (tmp_path / "killed").iterdir()} == {".lock", ".checkpoints"}
    assert [one.name for one in (tmp_path / "killed" / ".checkpoints").glob("*/*")] == ["checkpoint-5"]
    continued = result_of(tmp_path / "killed", *asked)
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert {one.name for one in (tmp_path / "killed").iterdir()} == {"model", "result.json"}
    for result in (whole, continued):
        for part in (result, result["training"]):
            part.pop("seconds")
    assert whole == continued


def test_a_second_recipe_in_one_folder_is_refused(tiny: Path, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": row.text, **row.kept} for row in rows_of("classify")])
    (tmp_path / "out").mkdir()
    with folder_lock(tmp_path / "out", ".lock", "is running a recipe"):
        for name in (("finetune", "--task", "classify"), ("sentence_classifier",)):
            said = refusal(*name, "--corpus", rows, "--model", tiny, "--output", tmp_path / "out")
            assert said.startswith(f"bertfeat: {tmp_path / 'out'}: process {os.getpid()} on host ")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def test_the_model_of_a_fine_tuning_is_extracted(tmp_path: Path) -> None:
    model = build_model("bert", tmp_path / "original", num_hidden_layers=6)
    reviews = ROOT / "examples" / "data" / "reviews.csv"
    asked = ("--task", "classify", "--corpus", reviews, "--limit", 24, "--epochs", 1, "--freeze", "0..4")
    asked = (*asked, "--model", model)
    found = result_of(tmp_path, "finetune", *asked)
    assert found["frozen_layers"] == [0, 1, 2, 3, 4]
    assert found["n_rows"] == {"train": 18, "dev": 2, "test": 4}
    files = list((tmp_path / "model").iterdir())
    assert found["n_bytes"] == sum(path.stat().st_size for path in files)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES[:2]), encoding="utf-8")
    stores = [
        bertfeat.extract(texts, tmp_path / name, model=model, levels="sentence", layers="all")
        for name, model in {"frozen": str(model), "tuned": str(tmp_path / "model")}.items()
    ]
    for layer in range(7):
        vectors = [store.numpy("sentence", layer) for store in stores]
        assert np.array_equal(*vectors) == (layer <= 4), layer


def test_the_row_of_a_sentence_classifier(tiny: Path, tmp_path: Path) -> None:
    rows = [{"text": row.text, "label": row.kept["label"]} for row in rows_of("classify", 50)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    asked = ("--corpus", path, "--model", tiny, "--seed", 3)
    ran = run("sentence_classifier", *asked, "--with-finetuning", "--epochs", 1, "--output", tmp_path / "both")
    assert ran.code == 0, ran.err
    result = json.loads((tmp_path / "both" / "result.json").read_text(encoding="utf-8"))
    frozen, fine = result["rows"]
    assert frozen["score"] == result["score"]
    stores = [bertfeat.open_store(tmp_path / "both" / "features" / name) for name in ("train", "dev", "test")]
    assert frozen["n_bytes"] == sum(store.numpy("sentence", "layer_01").nbytes for store in stores)
    taken = sum(sum(receipt.seconds.values()) for store in stores for receipt in store.receipts())
    assert frozen["seconds"] == pytest.approx(taken + result["training"]["seconds"])
    model = tmp_path / "both" / "finetuned" / "model"
    assert fine["n_bytes"] == sum(file.stat().st_size for file in model.iterdir())
    heads = ran.out.splitlines()[-4]
    assert heads == "| features | accuracy | 95 % interval | seconds | MB |"
    assert [line.split(" | ")[0] for line in ran.out.splitlines()[-2:]] == ["| concat_01, logreg", "| fine-tuned"]
    # The command for fine-tuning alone holds out the same rows, and so has the same score.
    alone = result_of(tmp_path / "alone", "finetune", "--task", "classify", *asked, "--epochs", 1)
    assert alone["scores"]["test"] == fine["score"]
    held = [rows[row]["text"] for row in hold_out(50, 3)["test"]]
    assert stores[2].polars("sentence", ["text"])["text"].to_list() == held


def test_the_row_of_table7(tiny: Path, tmp_path: Path) -> None:
    sentences = blocks("bc5cdr_test.tsv")
    for name, cut in {"train": slice(0, 20), "dev": slice(20, 30), "test": slice(30, 40)}.items():
        (tmp_path / f"{name}.tsv").write_text("\n\n".join(sentences[cut]) + "\n\n", encoding="utf-8")
    files = [word for name in ("train", "dev", "test") for word in (f"--{name}", tmp_path / f"{name}.tsv")]
    asked = (*files, "--model", tiny, "--head", "linear", "--seeds", 2, "--max-epochs", 1)
    tuning = ("--with-finetuning", "--epochs", 1, "--document-context", "on")
    result = result_of(tmp_path / "out", "table7", *asked, *tuning)
    *frozen, fine = result["rows"]
    header, _, *lines = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()
    assert header == "| features | dev | test | seconds | MB | paper (CoNLL-2003 dev) |"
    assert lines[6].startswith("| Fine-tuned |")
    assert lines[6].endswith("| 96.4 |")
    n_words = sum(result["n_words"].values())
    assert [row["n_bytes"] for row in frozen] == [n_words * 32 * 2 * n_layers for n_layers in (1, 1, 1, 1, 2, 1)]
    assert fine["metric"] == "entity_f1"
    assert [len(fine[split]["scores"]) for split in ("dev", "test")] == [2, 2]
    assert fine["seconds"] == pytest.approx(sum(one["seconds"] for one in fine["trainings"]))
    assert not list((tmp_path / "out" / "finetuned").rglob("checkpoint-*"))
    windows = fine["trainings"][0]["n_windows"]
    assert windows["dev"] > 10


def test_each_choice_counts(tiny: Path, tmp_path: Path) -> None:
    """Document context, frozen layers and the seed change what is learned, and do not continue another training."""
    settings = replace(FAST, learning_rate=1e-12, epochs=1)
    among, alone = (tuned("tag", tiny, tmp_path / "out", settings, context=on) for on in (True, False))
    assert among.values["n_windows"]["train"] < 24 <= alone.values["n_windows"]["train"]
    assert among.values["n_rows"] == alone.values["n_rows"]
    frozen = tuned("tag", tiny, tmp_path / "out", settings, frozen="0")
    assert frozen.values["frozen_layers"] == [0]
    tuned("tag", tiny, tmp_path / "other", replace(settings, seed=1))
    assert len(list((tmp_path / "out" / "checkpoints").iterdir())) == 3
    heads = [
        open_task_model(str(tmp_path / name / "model"), "token").model.classifier.weight for name in ("out", "other")
    ]
    assert not torch.allclose(*heads, atol=1e-6), "a new head is drawn by the seed"


def test_a_model_that_predicts_one_class_only_says_so(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    tuned("classify", tiny, tmp_path, replace(FAST, learning_rate=1e-9, epochs=1))
    said = capsys.readouterr().err.splitlines()[-1]
    remedy = "raise --epochs (1) or --learning-rate (1e-09), or use more rows"
    assert said.startswith("test: the trained model predicts ")
    assert said.endswith(f" alone; {remedy}")


def test_labels_that_train_lacks_are_errors_and_named(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    rows = rows_of("classify")
    other = [*rows[:9], document(99, "a new one", label="new"), document(98, "no label", label=None)]
    long = [*other, document(97, " ".join(WORDS * 2), label="uneven")]
    settings = replace(FAST, epochs=1)
    found = finetune(
        "classify",
        {"train": rows, "dev": other, "test": long},
        "label",
        str(tiny),
        settings,
        tmp_path / "model",
        tmp_path,
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[:1] == ["test: 1 of 11 texts are cut to the model's window"]
    assert found.values["n_without_label"] == {"train": 0, "dev": 1, "test": 1}
    score = found.scores["test"].to_dict()
    assert score["unseen_labels"] == {"new": 1}
    assert score["accuracy"] <= 10 / 11


def test_a_mistake_is_one_line(tiny: Path, tmp_path: Path) -> None:
    rows = [{"text": row.text, "pair": "b", "label": row.kept["label"], "one": 1} for row in rows_of("classify")]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    words = tmp_path / "words.conll"
    words.write_text("A B-X\nb O\n\nC B-X\n\n" * 6, encoding="utf-8")
    numbers = write_jsonl(tmp_path / "numbers.jsonl", [{"text": "a", "label": n} for n in range(12)])
    few = write_jsonl(tmp_path / "few.jsonl", rows[:2])
    model, out = ("--model", tiny), tmp_path / "out"
    (tmp_path / "taken" / "model").mkdir(parents=True)
    for asked, message in [
        (("classify", "--corpus", path, "--label", "one"), "train: column 'one' holds one class alone, 1"),
        (("classify", "--corpus", path, "--label", "topic"), "no row has a column 'topic'"),
        (("regress", "--corpus", path), "label 'even' is not a number; --task regress takes numbers"),
        (("regress", "--corpus", path, "--label", "one"), "train: all values of column 'one' are 1; they must differ"),
        (("pair", "--corpus", path), "its rows have one text; --task pair needs --text-pair-column"),
        (("classify", "--corpus", path, "--text-pair-column", "pair"), "use --task pair"),
        (("classify", "--corpus", path, "--dev", numbers), "give the label column the same type in all data"),
        (("classify", "--corpus", path, "--freeze", "0..9"), "out of range"),
        (("classify", "--corpus", path, "--document-context"), "go with --task tag"),
        (("tag", "--corpus", words, "--document-context", "--dev", words), "--document-context needs --dev and --test"),
        (("tag", "--corpus", words, "--text-pair-column", "b"), "--text-pair-column goes with --task pair and regress"),
        (("classify", "--corpus", few), "2 rows are too few to train on and to hold out test and dev"),
        (("tag", "--corpus", path), "its rows are texts; --task tag takes words with labels"),
        (("tag", "--corpus", words, "--label", "upos"), "no word column 'upos'"),
    ]:
        assert message in refusal("finetune", "--task", asked[0], *model, *asked[1:], "--output", out)
        assert not out.exists()
    taken = ("--task", "classify", "--corpus", path, "--output", tmp_path / "taken")
    assert "is there and was not made by a recipe" in refusal("finetune", *taken, *model)
    build_model("bert", tmp_path / "taken" / "model", num_hidden_layers=1)
    assert "is the model to start from" in refusal("finetune", *taken, "--model", tmp_path / "taken" / "model")


def test_words_may_come_as_lists(tiny: Path, tmp_path: Path) -> None:
    rows = [{"text": list(row.words or ()), "ner": row.annotations["label"]} for row in rows_of("tag")]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    asked = ("--task", "tag", "--corpus", path, "--label", "ner", "--is-split-into-words", "--model", tiny)
    found = result_of(tmp_path / "out", "finetune", *asked, "--epochs", 1)
    assert found["scores"]["test"]["metric"] == "entity_f1"
    documents = read_documents(path, is_split_into_words=True, label_column="ner")
    assert sum(found["n_rows"].values()) == sum(len(one.words or ()) for one in documents)
