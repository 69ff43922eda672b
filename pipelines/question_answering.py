"""Answers to questions about paragraphs: spans by a frozen encoder with a head, beside a fine-tuned model.

    python -m bertfeat.pipelines.question_answering --corpus xquad.en.json --out xquad --with-finetuning
    python -m bertfeat.pipelines.question_answering --corpus train-v1.1.json --dev dev-v1.1.json --out squad

Devlin et al. 2019 (arXiv 1810.04805v2, sections 4.2 and 4.3), on files in SQuAD's format. Without --dev, a fifth of the
articles is held out. A tenth of the other articles chooses the epoch. Exact match and F1 are those of the official
scripts. Writes the predictions of each row (Parquet with offsets, and the official JSON), table.md and result.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import polars as pl

from bertfeat.cli.failures import report_failures
from bertfeat.pipelines._answering import Task
from bertfeat.pipelines._models import MODEL, check_model_place, open_task_model, replace_model
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import draw_rows
from bertfeat.pipelines._squad import (
    Prediction,
    best_sentence,
    has_unanswerable,
    hold_out_articles,
    read_squad,
    summarize,
)
from bertfeat.pipelines._training import Settings, check_finetuning, discard, training_options
from bertfeat.reports.tables import markdown_table

FILE = click.Path(exists=True, dir_okay=False)


@recipe("accelerate", "sklearn")
@click.option("--corpus", type=FILE, required=True, help="SQuAD 1.1 or 2.0 .json.")
@click.option("--dev", type=FILE, help="SQuAD .json to score on.")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--max-length", type=click.IntRange(min=8), help="Tokens of a window; by default what the model takes.")
@click.option("--max-answer-tokens", type=click.IntRange(min=1), default=30, show_default=True)
@click.option(
    "--head-learning-rate", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True, help="Frozen."
)
@click.option("--head-epochs", type=click.IntRange(min=1), default=15, show_default=True, help="On the frozen model.")
@click.option("--with-finetuning", is_flag=True, help="Also train the whole model, by the options below.")
@click.option("--freeze", "frozen", help="Layers that fine-tuning keeps, such as 0..4; 0 is the embeddings.")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
@click.option("--limit", type=click.IntRange(min=1), help="N questions of each file, drawn at random.")
@training_options
def main(corpus: str, dev: str | None, model: str, with_finetuning: bool, out: str, **options: Any) -> None:
    """Find the answers of questions in their paragraphs by a frozen and by a fine-tuned model, and compare."""
    if not with_finetuning:
        check_finetuning(model, "question", asked=False, options=("frozen", "learning_rate", "epochs"))
    max_length, max_answer_tokens, limit = (options.pop(name) for name in ("max_length", "max_answer_tokens", "limit"))
    head = {"learning_rate": options.pop("head_learning_rate"), "epochs": options.pop("head_epochs")}
    frozen = options.pop("frozen")
    folder, settings = Path(out), Settings(**options)
    opened = open_task_model(model, "question", seed=settings.seed)
    check_model_place(opened, folder / MODEL)
    files = {"train": corpus, "dev": dev}
    splits = {name: read_squad(path) for name, path in files.items() if path is not None}
    splits = {name: [part[row] for row in sorted(draw_rows(len(part), limit))] for name, part in splits.items()}
    n_articles = len({question.article for question in splits["train"]})
    if dev is None:
        if n_articles < 2:
            raise click.UsageError(f"{corpus}: has questions about one article only; pass --dev")
        splits["train"], splits["dev"] = hold_out_articles(splits["train"], max(1, n_articles // 5), settings.seed)
        n_articles -= max(1, n_articles // 5)
    # A tenth of the articles, if there are ten, chooses the epoch.
    train, chosen_on = hold_out_articles(splits["train"], n_articles // 10, settings.seed)
    task = Task(
        train=train,
        chosen_on=chosen_on,
        dev=splits["dev"],
        max_answer_tokens=max_answer_tokens,
        no_answers=has_unanswerable(splits["train"]),
        settings=settings,
        folder=folder,
    )
    length = min(max_length or opened.checkpoint.max_length, opened.checkpoint.max_length)
    all_layers = f"0..{opened.checkpoint.n_layers}"
    answers, report = replace(task, settings=replace(settings, **head)).run(opened, length, all_layers)
    rows = [
        _row("sentence", [best_sentence(question) for question in task.dev], task),
        _row("frozen", answers, task, seconds=report["seconds"], training=report),
    ]
    if with_finetuning:
        opened = open_task_model(model, "question", seed=settings.seed)
        answers, report = task.run(opened, length, frozen)
        rows.append(_row("finetuned", answers, task, seconds=report["seconds"], training=report))
    rows[-1]["n_bytes"] = replace_model(opened, folder / MODEL)
    paragraphs = {question.context for question in splits["train"]}
    table = _table(rows)
    result = {
        "pipeline": "question_answering",
        "corpus": Path(corpus).name,
        "dev": None if dev is None else Path(dev).name,
        "model": model,
        "weights_sha256": opened.checkpoint.weights_sha256,
        "max_length": length,
        "limit": limit,
        "max_answer_tokens": max_answer_tokens,
        "unanswerable": task.no_answers,
        "official_script": "2.0" if has_unanswerable(task.dev) else "1.1",
        "n_questions": {"train": len(train), "chosen_on": len(chosen_on), "dev": len(task.dev)},
        "n_dev_questions_on_train_paragraphs": sum(question.context in paragraphs for question in task.dev),
        "rows": rows,
    }
    write(folder / "result.json", result)
    write(folder / "table.md", table + "\n")
    discard(folder)
    click.echo(table)


def _row(name: str, predictions: Sequence[Prediction], task: Task, **more: Any) -> dict[str, Any]:
    """Score the answers to the questions of dev, and write them."""
    columns = {field: [getattr(one, field) for one in predictions] for field in Prediction.__slots__}
    frame = pl.DataFrame(columns, schema_overrides={"no_answer_score": pl.Float64})
    write(task.folder / "predictions" / f"{name}.parquet", frame)
    # What the official scripts read.
    answers = {one.id: one.answer for one in predictions}
    write(task.folder / "predictions" / f"{name}.json", answers)
    scores = summarize(task.dev, answers, task.settings.seed)
    click.echo(f"{name}: exact match {scores['exact_match']:.1f}, F1 {scores['f1']:.1f}", err=True)
    return {"answers_by": name, **scores, "seconds": None, "n_bytes": None, "training": None, **more}


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        bounds = row["f1_interval"]
        interval = None if bounds is None else f"{bounds[0]:.1f} to {bounds[1]:.1f}"
        costs = [
            None if row[name] is None else f"{row[name] / unit:.1f}"
            for name, unit in (("seconds", 1), ("n_bytes", 1e6))
        ]
        lines.append([row["answers_by"], f"{row['exact_match']:.1f}", f"{row['f1']:.1f}", interval, *costs])
    return markdown_table(["answers by", "exact match", "F1", "F1, 95 %", "seconds", "MB"], lines)


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
