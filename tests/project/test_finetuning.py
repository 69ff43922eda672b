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
import polars as pl
import pytest
import transformers
from scipy import stats

import bertfeat
from bertfeat.durable.file_lock import folder_lock
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.pipelines._finetuning import Examples, find_labels, finetune, fit_and_score, make_examples, score_outputs
from bertfeat.pipelines._training import NO_LABEL, Settings, TaskModel, make_trainer, open_task_model
from bertfeat.pipelines.sentence_pairs import combine, cosine
from bertfeat.records import Document
from tests.support.drill import Zygote
from tests.support.families import SENTENCES, build_model
from tests.support.pipeline_runs import refusal, result_of, run_killed
from tests.support.places import ROOT, TESTS
from tests.support.probe_stores import write_jsonl

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

FAST = Settings(learning_rate=4e-3, epochs=15, batch_size=6, patience=2, device="cpu")
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


def prepared(task: str, rows: Sequence[Document], folder: Path, **config: Any) -> tuple[TaskModel, Examples]:
    """A model with a head, and the examples of rows, whose targets are their labels."""
    is_tag = task == "tag"
    opened = open_task_model(str(folder), "token" if is_tag else "sequence", seed=3, **config)
    texts = find_labels(task, rows, "label", "rows")
    targets = np.unique(texts.labels, return_inverse=True)[1] if is_tag else texts.labels
    return opened, make_examples(texts, opened, targets)


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
    rows = rows_of(task)
    found = finetune(task, {"train": rows, "dev": rows, "test": rows[:12]}, "label", str(tiny), FAST, tmp_path)
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
    found = score_outputs(true, predicted, np.zeros(0), bootstrap=True)
    assert found.metric == "spearman"
    assert found.values["pearson"] == pytest.approx(stats.pearsonr(true, predicted).statistic)
    assert found.value == pytest.approx(stats.spearmanr(true, predicted).statistic)
    for name, interval in found.intervals.items():
        assert interval.low < found.values[name] < interval.high
    assert score_outputs(true, np.ones(80), np.zeros(0), bootstrap=True).value == 0


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
    assert found["n_bytes"] == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    for layer in range(7):
        models = (str(model), str(tmp_path / "model"))
        vectors = [bertfeat.embed(SENTENCES[:2], model=model, layers=str(layer)) for model in models]
        assert np.array_equal(*vectors) == (layer <= 4), layer


def test_labels_that_train_lacks_are_errors_and_named(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    rows = rows_of("classify")
    other = [*rows[:9], document(99, "a new one", label="new"), document(98, "no label", label=None)]
    long = [*other, document(97, " ".join(WORDS * 2), label="uneven")]
    settings = replace(FAST, epochs=1)
    splits = {"train": rows, "dev": other, "test": long}
    found = finetune("classify", splits, "label", str(tiny), settings, tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:1] == ["test: 1 of 11 texts are cut to the model's window"]
    assert found.values["n_without_label"] == {"train": 0, "dev": 1, "test": 1}
    score = found.scores["test"].to_dict()
    assert score["unseen_labels"] == {"new": 1}
    assert score["accuracy"] <= 10 / 11


XQUAD = TESTS / "data" / "xquad_en" / "xquad.en.json"
SIZES = {"train": 300, "dev": 50, "test": 50}


def test_features_of_two_vectors() -> None:
    first = np.array([[1.0, -2.0], [0.0, 0.0]], np.float32)
    second = np.array([[3.0, 1.0], [1.0, 1.0]], np.float32)
    assert combine(first, second).tolist() == [[1, -2, 3, 1, 2, 3, 3, -2], [0, 0, 1, 1, 1, 1, 0, 0]]
    expected = [1 / (5**0.5 * 10**0.5), 0]
    assert cosine(first, second)[:, 0].tolist() == pytest.approx(expected)


def test_heads_learn_classes_and_quantities() -> None:
    random = np.random.default_rng(0)
    vectors = {split: random.standard_normal((n, 8)).astype(np.float32) for split, n in SIZES.items()}
    quantities = {split: X[:, 0].astype(np.float64) * 2 + 1 for split, X in vectors.items()}
    head, scores = fit_and_score(vectors, quantities)
    assert head["head"] == "ridge"
    assert scores["test"].value > 0.99
    classes = {split: np.where(X[:, 1] > 0, "b", "a") for split, X in vectors.items()}
    head, scores = fit_and_score(vectors, classes)
    assert head["head"] == "logreg"
    assert scores["test"].value > 0.9


def test_each_way_to_compare_pairs_is_a_row(tmp_path: Path) -> None:
    model = build_model("bert", tmp_path / "bert", max_position_embeddings=128)
    articles = json.loads(XQUAD.read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    rows = [
        (asked["question"], paragraphs[number - number % 2]["context"].split(". ")[0], "no" if number % 2 else "yes")
        for number, paragraph in enumerate(paragraphs)
        for asked in paragraph["qas"]
    ]
    frame = pl.DataFrame(rows, ["question", "paragraph", "label"], orient="row")
    frame.write_csv(tmp_path / "pairs.csv")
    asked = ("--text-column", "question", "--text-pair-column", "paragraph", "--model", model)
    asked += ("--train", tmp_path / "pairs.csv", "--with-finetuning", "--epochs", 1)
    found = result_of(tmp_path / "out", "sentence_pairs", *asked)
    assert found["n_pairs"] == {"train": 65, "dev": 7, "test": 18}
    by_name = {row["features"]: row for row in found["rows"]}
    assert list(by_name) == ["cosine", "u, v, |u-v|, u*v", "both texts as one input", "fine-tuned"]
    assert {row["score"]["n_rows"] for row in found["rows"]} == {18}
    texts = bertfeat.open_store(tmp_path / "out" / "features" / "texts")
    assert texts.n_rows("sentence") == len({*frame["question"], *frame["paragraph"]}), "each text is encoded once"
    assert by_name["cosine"]["n_bytes"] == texts.n_rows("sentence") * 32 * 2
    # Both texts as one input: the vectors are those of the pairs.
    store = bertfeat.open_store(tmp_path / "out" / "features" / "test")
    together = bertfeat.embed(store.polars("sentence", ["text", "text_pair"]).rows(), model=str(model))
    stored = store.numpy("sentence", store.features("sentence")[0].name)
    assert np.allclose(stored, together, rtol=2**-10, atol=1e-3), "stored as float16"
    assert bertfeat.embed(["a text"], model=str(tmp_path / "out" / "finetuned" / "model")).shape == (1, 32)
