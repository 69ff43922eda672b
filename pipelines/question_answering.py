"""Answers to questions about paragraphs: spans by a frozen encoder with a head, beside a fine-tuned model.

    python -m bertfeat.pipelines.question_answering --corpus xquad.en.json -o xquad --with-finetuning
    python -m bertfeat.pipelines.question_answering --corpus train-v1.1.json --dev dev-v1.1.json -o squad

On files in SQuAD's format. Writes predictions, model, table.md and result.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import polars as pl

from bertfeat.pipelines import _answering, _training
from bertfeat.pipelines._recipe import FILE, Result, cost_cells, draw_rows, recipe, write
from bertfeat.plots.tables import markdown_table


@recipe("accelerate", "sklearn")
@click.option("--corpus", type=FILE, required=True, help="SQuAD 1.1 or 2.0 .json.")
@click.option("--dev", type=FILE, help="SQuAD .json to score on.")
@click.option("--max-answer-tokens", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--head-learning-rate", type=_training.RATE, default=1e-3, show_default=True, help="On the frozen model.")
@click.option("--head-epochs", type=click.IntRange(min=1), default=15, show_default=True, help="On the frozen model.")
@click.option("--freeze", "frozen", help="Layers that fine-tuning keeps, such as 0..4; 0 is the embeddings.")
@click.option("--limit", type=click.IntRange(min=1), help="N questions of each file, drawn at random.")
@_training.finetuning_options
def main(corpus: str, dev: str | None, model: str, output: Path, limit: int | None, **options: Any) -> Result:
    """Find the answers of questions in their paragraphs by a frozen and by a fine-tuned model, and compare."""
    with_finetuning, frozen = options.pop("with_finetuning"), options.pop("frozen")
    _training.check_finetuning(model, "question", ("frozen", "learning_rate", "epochs"), asked=with_finetuning)
    n_tokens = options.pop("max_answer_tokens")
    head = {"learning_rate": options.pop("head_learning_rate"), "epochs": options.pop("head_epochs")}
    settings = _training.Settings(**options)
    opened = _training.open_task_model(model, "question", seed=settings.seed)
    _training.check_model_place(opened, output / "model")
    files = {"train": corpus} if dev is None else {"train": corpus, "dev": dev}
    splits = {name: _answering.read_squad(path) for name, path in files.items()}
    splits = {name: [part[row] for row in sorted(draw_rows(len(part), limit))] for name, part in splits.items()}
    n_articles = len({question.article for question in splits["train"]})
    if dev is None:
        if n_articles < 2:
            raise click.UsageError(f"{corpus}: has questions about one article only; pass --dev")
        n_held = max(1, n_articles // 5)
        splits["train"], splits["dev"] = _answering.hold_out_articles(splits["train"], n_held, settings.seed)
        n_articles -= n_held
    paragraphs = {question.context for question in splits["train"]}
    unanswerable = _answering.has_unanswerable(splits["train"])
    # A tenth of the articles, if there are ten, chooses the epoch.
    chosen = _answering.hold_out_articles(splits["train"], n_articles // 10, settings.seed)
    splits["train"], splits["chosen_on"] = chosen
    asked = splits["dev"]

    def add(name: str, predictions: Sequence[_answering.Prediction], training: Mapping[str, Any] | None = None) -> None:
        frame = pl.DataFrame(predictions, schema_overrides={"no_answer_score": pl.Float64}, orient="row")
        write(output / "predictions" / f"{name}.parquet", frame)
        answers = {one.id: one.answer for one in predictions}
        write(output / "predictions" / f"{name}.json", answers)
        scores = _answering.summarize(asked, answers, settings.seed)
        click.echo(f"{name}: exact match {scores['exact_match']:.1f}, F1 {scores['f1']:.1f}", err=True)
        seconds = None if training is None else training["seconds"]
        rows.append({"answers_by": name, **scores, "seconds": seconds, "n_bytes": None, "training": training})

    rows: list[dict[str, Any]] = []
    add("sentence", [_answering.best_sentence(question) for question in asked])
    all_layers = f"0..{opened.checkpoint.n_layers}"
    add("frozen", *_answering.learn(opened, splits, replace(settings, **head), output, n_tokens, all_layers))
    if with_finetuning:
        opened = _training.open_task_model(model, "question", seed=settings.seed)
        add("finetuned", *_answering.learn(opened, splits, settings, output, n_tokens, frozen))
    rows[-1]["n_bytes"] = _training.replace_model(opened, output / "model")
    table = _table(rows)
    write(output / "table.md", table + "\n")
    values = {
        "weights_sha256": opened.checkpoint.weights_sha256,
        "unanswerable": unanswerable,
        "official_script": "2.0" if _answering.has_unanswerable(asked) else "1.1",
        "n_questions": {name: len(splits[name]) for name in ("train", "chosen_on", "dev")},
        "n_dev_questions_on_train_paragraphs": sum(question.context in paragraphs for question in asked),
        "rows": rows,
    }
    return Result(values, table)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in rows:
        bounds = row["f1_interval"]
        interval = None if bounds is None else f"{bounds[0]:.1f} to {bounds[1]:.1f}"
        costs = cost_cells(row["seconds"], row["n_bytes"])
        lines.append([row["answers_by"], f"{row['exact_match']:.1f}", f"{row['f1']:.1f}", interval, *costs])
    return markdown_table(["answers by", "exact match", "F1", "F1, 95 %", "seconds", "MB"], lines)


if __name__ == "__main__":
    main()
