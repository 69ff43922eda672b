"""Fine-tuning of a model on labelled texts, pairs or words: the encoder is trained too, and scored as a probe is.

python -m bertfeat.pipelines.finetune --task classify --corpus a.csv --test b.csv --label topic -o tuned
python -m bertfeat.pipelines.finetune --task tag --corpus a.conll --dev b.conll --freeze 0..3 -o tagger
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bertfeat.pipelines._recipe import FILE, Result, read_splits, recipe
from bertfeat.pipelines._training import TASKS, Settings, training_options
from bertfeat.plots.tables import text_table


@recipe(
    *("accelerate", "sklearn"),
    extraction="format text_column text_pair_column is_split_into_words document_context model",
)
@click.option("--task", type=click.Choice([*TASKS]), required=True, help="Labels of texts, words or pairs, or numbers.")
@click.option("--corpus", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet; for tag also CoNLL.")
@click.option("--dev", type=FILE, help="Labelled rows to stop on; without it, rows are held out.")
@click.option("--test", type=FILE, help="Labelled rows to test on; without it, rows are held out.")
@click.option("--label", default="label", show_default=True, help="Column with the label (CoNLL: the last one).")
@click.option("--freeze", "frozen", help="Layers that keep their weights, such as 0..4; 0 is the embeddings.")
@click.option("--limit", type=click.IntRange(min=10), help="N rows of each file, drawn at random.")
@training_options
def main(task: str, label: str, output: Path, limit: int | None, **options: Any) -> Result:
    """Train a model with a head for a task, keep the best weights on dev, score them, and save them."""
    from bertfeat.pipelines._finetuning import finetune

    split, context = options["is_split_into_words"], options["document_context"]
    names = ("format", "text_column", "text_pair_column", "is_split_into_words", "document_context")
    reading = {name: options.pop(name) for name in names}
    if task == "tag":
        reading["label_column"] = None if label == "label" and not split else label
    elif split or context:
        raise click.UsageError("--is-split-into-words and --document-context go with --task tag")
    else:
        reading |= {"keep_columns": [label], "levels": "sentence"}
    paths = {"train": options.pop("corpus"), "dev": options.pop("dev"), "test": options.pop("test")}
    files = {name: path for name, path in paths.items() if path is not None}
    if context and (limit or len(files) < 3):
        raise click.UsageError("--document-context needs --dev and --test, and no --limit: drawn rows lose neighbors")
    model, frozen, settings = options.pop("model"), options.pop("frozen"), Settings(**options)
    splits = read_splits(files, seed=settings.seed, n_drawn=limit, **reading)
    words = "label" if task == "tag" else label
    tuned = finetune(task, splits, words, model, settings, output, frozen=frozen, context=context)
    history = tuned.history
    rows = zip(range(1, history.epoch + 1), history.losses, history.scores, strict=True)
    table = text_table(["epoch", "loss", f"{tuned.scores['dev'].metric} on dev"], rows)
    costs = f"{history.seconds:.1f} s, {tuned.values['n_bytes'] / 1e6:.1f} MB"
    kept = f"kept: epoch {history.best_epoch}, in {output / 'model'}; {costs}"
    lines = [table, kept, "", *tuned.scores["test"].lines()]
    return Result(tuned.values, "\n".join(lines))


if __name__ == "__main__":
    main()
