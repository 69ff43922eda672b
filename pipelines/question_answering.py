"""Answers to questions about paragraphs: spans by frozen features, linear and BiLSTM, beside a fine-tuned model.

    python -m bertfeat.pipelines.question_answering --corpus xquad.en.json --out xquad --with-finetuning
    python -m bertfeat.pipelines.question_answering --corpus train-v1.1.json --dev dev-v1.1.json --out squad --layers -1

Devlin et al. 2019 (arXiv 1810.04805v2, sections 4.2 and 4.3), on files in SQuAD's format. Without --dev, a fifth of the
articles is held out. A tenth of the other articles chooses the epoch. Exact match and F1 are those of the official
scripts. Writes the predictions of each row (Parquet with offsets, and the official JSON), table.md and result.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import bertfeat
from bertfeat.pipelines._costs import cost_cells, extraction_seconds
from bertfeat.pipelines._models import MODEL, TaskModel, check_model_place, freeze, open_task_model, replace_model
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import draw_rows
from bertfeat.pipelines._squad import (
    Prediction,
    Question,
    best_sentence,
    has_unanswerable,
    hold_out_articles,
    read_squad,
    summarize,
    write_predictions,
)
from bertfeat.pipelines._training import Settings, digest_of, discard, refuse_without_finetuning, training_options
from bertfeat.reports.tables import markdown_table

if TYPE_CHECKING:
    from bertfeat.pipelines._answering import Task

HEADS = ("linear", "bilstm")


@recipe("sklearn")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), required=True, help="SQuAD 1.1 or 2.0 .json.")
@click.option("--dev", type=click.Path(exists=True, dir_okay=False), help="SQuAD .json to score on.")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--layers", default="last4", show_default=True, help="Of the frozen features; several are concatenated.")
@click.option("--max-length", type=click.IntRange(min=8), help="Tokens of a window; by default what the model takes.")
@click.option("--max-answer-tokens", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--hidden-size", type=click.IntRange(min=1), default=128, show_default=True, help="Units of the BiLSTM.")
@click.option(
    "--head-learning-rate", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True, help="Frozen."
)
@click.option("--head-epochs", type=click.IntRange(min=1), default=15, show_default=True, help="On frozen features.")
@click.option("--with-finetuning", is_flag=True, help="Also train the whole model, by the options below.")
@click.option("--freeze", "frozen", help="Layers that fine-tuning keeps, such as 0..4; 0 is the embeddings.")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the features and the results.")
@click.option("--limit", type=click.IntRange(min=1), help="N questions of each file, drawn at random.")
@training_options
def main(
    corpus: str,
    dev: str | None,
    model: str,
    layers: str,
    max_length: int | None,
    max_answer_tokens: int,
    hidden_size: int,
    head_learning_rate: float,
    head_epochs: int,
    with_finetuning: bool,
    frozen: str | None,
    out: str,
    limit: int | None,
    **training: Any,
) -> None:
    """Find the answers of questions in their paragraphs by frozen features and by fine-tuning, and compare."""
    if not with_finetuning:
        refuse_without_finetuning("frozen", "learning_rate", "epochs")
    folder = Path(out)
    settings = Settings(**training)
    splits = _split(_read(corpus, limit), None if dev is None else _read(dev, limit), corpus, settings.seed)
    # A model that has no such head is refused before the features are extracted.
    opened = open_task_model(model, "question", seed=settings.seed) if with_finetuning else None
    if opened is not None:
        check_model_place(opened, folder / MODEL)
        if frozen is not None:
            freeze(opened, frozen)
    stores = {
        name: _extract(
            splits[name], folder, name, model=model, layers=layers, max_length=max_length, device=settings.device
        )
        for name in ("train", "dev")
    }
    task = _task(splits, folder, settings, max_answer_tokens)
    feature = stores["train"].features("token")[0].name
    rows = [_row("sentence", [best_sentence(question) for question in splits["dev"]], task)]
    for head in HEADS:
        row = _head_row(task, head, stores, feature, hidden_size, head_learning_rate, head_epochs)
        rows.append(row)
    if opened is not None:
        rows.append(_finetuned_row(task, opened, stores["train"], frozen))
    result = {
        "pipeline": "question_answering",
        "corpus": Path(corpus).name,
        "dev": None if dev is None else Path(dev).name,
        "model": stores["train"].metadata["model"],
        "weights_sha256": stores["train"].metadata["weights_sha256"],
        "feature": feature,
        "max_length": stores["train"].metadata["max_length"],
        "stride": stores["train"].metadata["stride"],
        "limit": limit,
        "max_answer_tokens": max_answer_tokens,
        "unanswerable": task.no_answers,
        "official_script": "2.0" if has_unanswerable(splits["dev"]) else "1.1",
        "n_questions": {"train": len(task.train), "chosen_on": len(task.chosen_on), "dev": len(task.dev)},
        **_remarks(splits, stores),
        "rows": rows,
    }
    write(folder / "result.json", result)
    table = _table(rows)
    write(folder / "table.md", table + "\n")
    for row in rows:
        discard(folder / "training" / row["answers_by"])
    click.echo(table)


def _read(path: str, limit: int | None) -> list[Question]:
    questions = read_squad(path)
    return [questions[number] for number in sorted(draw_rows(len(questions), limit))]


def _split(questions: list[Question], dev: list[Question] | None, corpus: str, seed: int) -> dict[str, list[Question]]:
    """Hold out a fifth of the articles, unless there is a file, and return the questions in the order of the files."""
    if dev is None:
        n_articles = len({question.article for question in questions})
        if n_articles < 2:
            raise click.UsageError(f"{corpus}: has questions about one article only; pass --dev")
        questions, dev = hold_out_articles(questions, max(1, n_articles // 5), seed)
    return {"train": questions, "dev": dev}


def _task(splits: Mapping[str, list[Question]], folder: Path, settings: Settings, max_answer_tokens: int) -> Task:
    """Return what all rows learn; a tenth of the articles, if there are ten, chooses the epoch."""
    from bertfeat.pipelines._answering import Task

    n_articles = len({question.article for question in splits["train"]})
    train, chosen_on = hold_out_articles(splits["train"], n_articles // 10, settings.seed)
    no_answers = has_unanswerable(splits["train"])
    identity = {
        "questions": digest_of([[asdict(question) for question in part] for part in (train, chosen_on)]),
        "max_answer_tokens": max_answer_tokens,
    }
    return Task(
        train=train,
        chosen_on=chosen_on,
        dev=splits["dev"],
        max_answer_tokens=max_answer_tokens,
        no_answers=no_answers,
        settings=settings,
        folder=folder,
        identity=identity,
    )


def _extract(questions: Sequence[Question], folder: Path, name: str, **settings: Any) -> bertfeat.Store:
    """Extract the tokens of each question with its paragraph; a second run finds the store complete."""
    path = folder / "corpus" / f"{name}.jsonl"
    lines = [json.dumps({"id": one.id, "question": one.text, "context": one.context}) for one in questions]
    write(path, "\n".join(lines) + "\n")
    return bertfeat.extract(
        path,
        folder / "features" / name,
        id_column="id",
        text_column="question",
        text_pair_column="context",
        levels="token",
        combine="concat",
        **settings,
    )


def _head_row(
    task: Task,
    head: str,
    stores: Mapping[str, bertfeat.Store],
    feature: str,
    hidden_size: int,
    learning_rate: float,
    epochs: int,
) -> dict[str, Any]:
    """Train a head on frozen features; its seconds and bytes are those of the features too."""
    from bertfeat.pipelines._answering import fit_head

    decides = {"head": head, "hidden_size": hidden_size, "features": stores["train"].manifest.plan_hash}
    own = replace(
        task,
        settings=replace(task.settings, learning_rate=learning_rate, epochs=epochs),
        folder=task.folder / "training" / head,
        identity={**task.identity, **decides},
    )
    predictions, report = fit_head(own, head, hidden_size, stores, feature)
    return _row(
        head,
        predictions,
        task,
        seconds=extraction_seconds(stores.values()) + report["seconds"],
        n_bytes=sum(part.n_bytes for store in stores.values() for part in store.parts("token")),
        training=report,
    )


def _finetuned_row(task: Task, opened: TaskModel, store: bertfeat.Store, frozen: str | None) -> dict[str, Any]:
    """Fine-tune the model, on the windows of the extraction, and save it."""
    from bertfeat.pipelines._answering import fine_tune

    meta = store.metadata
    decides = {name: meta[name] for name in ("weights_sha256", "tokenizer_sha256", "max_length", "stride")}
    own = replace(
        task,
        folder=task.folder / "training" / "finetuned",
        identity={**task.identity, **decides, "freeze": frozen},
    )
    predictions, report = fine_tune(own, opened, meta["max_length"], meta["stride"])
    return _row(
        "finetuned",
        predictions,
        task,
        seconds=report["seconds"],
        n_bytes=replace_model(opened, task.folder / MODEL),
        training=report,
    )


def _row(name: str, predictions: Sequence[Prediction], task: Task, **more: Any) -> dict[str, Any]:
    """Score the answers to the questions of dev, and write them."""
    write_predictions(task.folder / "predictions", name, predictions)
    scores = summarize(task.dev, {one.id: one.answer for one in predictions}, task.settings.seed)
    row = {"answers_by": name, **scores, "seconds": None, "n_bytes": None, "training": None, **more}
    click.echo(f"{name}: exact match {row['exact_match']:.1f}, F1 {row['f1']:.1f}", err=True)
    return row


def _remarks(splits: Mapping[str, list[Question]], stores: Mapping[str, bertfeat.Store]) -> dict[str, int]:
    """Count what a reader of the scores should know, and say so."""
    paragraphs = {question.context for question in splits["train"]}
    counts = {
        "n_dev_questions_on_train_paragraphs": sum(question.context in paragraphs for question in splits["dev"]),
        "n_cut_question_tokens": sum(
            receipt.counts["n_truncated_tokens"] for store in stores.values() for receipt in store.receipts()
        ),
    }
    texts = ("questions of dev are about paragraphs of train", "tokens of questions do not fit beside the paragraph")
    for n, text in zip(counts.values(), texts, strict=True):
        if n:
            click.echo(f"{n} {text}", err=True)
    return counts


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        bounds = row["f1_interval"]
        interval = None if bounds is None else f"{bounds[0]:.1f} to {bounds[1]:.1f}"
        costs = [None, None] if row["seconds"] is None else cost_cells(row["seconds"], row["n_bytes"])
        lines.append([row["answers_by"], f"{row['exact_match']:.1f}", f"{row['f1']:.1f}", interval, *costs])
    return markdown_table(["answers by", "exact match", "F1", "F1, 95 %", "seconds", "MB"], lines)


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
