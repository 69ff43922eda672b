"""Fine-tuning of a model on labelled texts, pairs or words: the encoder is trained too, and scored as a probe is.

    python -m bertfeat.pipelines.finetune --task classify --corpus a.csv --test b.csv --label topic --out tuned
    python -m bertfeat.pipelines.finetune --task tag --corpus a.conll --dev b.conll --freeze 0..3 --out tagger

Without --test, a fifth of the rows is held out, and without --dev a tenth of the rest: the same rows as in
sentence_classifier. The folder OUT/model is a model that --model takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bertfeat.cli.failures import report_failures
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import draw_rows, hold_out
from bertfeat.pipelines._training import TASKS, Settings, discard, training_options
from bertfeat.reports.tables import text_table

# Options of reading, as an extraction has them.
READING = ("text_column", "format", "text_pair_column", "is_split_into_words", "document_context")
FILE = click.Path(exists=True, dir_okay=False)


@recipe("accelerate", "sklearn")
@click.option(
    "--task", type=click.Choice(list(TASKS)), required=True, help="Labels of texts, words or pairs, or numbers."
)
@click.option("--corpus", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet; for tag also CoNLL.")
@click.option("--dev", type=FILE, help="Labelled rows to stop on; without it, rows are held out.")
@click.option("--test", type=FILE, help="Labelled rows to test on; without it, rows are held out.")
@click.option("--format", default="auto", show_default=True, help="Format of the files, such as conll.")
@click.option("--text-column", default="text", show_default=True)
@click.option("--text-pair-column", help="Column with the second text: for pair, and for regress if there is one.")
@click.option("--label", default="label", show_default=True, help="Column with the label (CoNLL: the last one).")
@click.option("--is-split-into-words", is_flag=True, help="For tag: the text column holds a list of words.")
@click.option("--document-context", is_flag=True, help="For tag: read sentences among their neighbours (CoNLL).")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--freeze", "frozen", help="Layers that keep their weights, such as 0..4; 0 is the embeddings.")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the model and the result.")
@click.option("--limit", type=click.IntRange(min=10), help="N rows of each file, drawn at random.")
@training_options
def main(task: str, corpus: str, dev: str | None, test: str | None, label: str, out: str, **options: Any) -> None:
    """Train a model with a head for a task, keep the best weights on dev, score them, and save them."""
    from bertfeat.pipelines._finetuning import finetune

    limit, frozen, model = (options.pop(name) for name in ("limit", "frozen", "model"))
    reading = {name: options.pop(name) for name in READING}
    settings, folder = Settings(**options), Path(out)
    context, columns = reading["document_context"], _columns(task, label, **reading)
    if context and (limit or not dev or not test):
        raise click.UsageError("--document-context needs --dev and --test, and no --limit: drawn rows lose neighbours")
    files = {name: path for name, path in {"train": corpus, "dev": dev, "test": test}.items() if path is not None}
    splits = _read(files, columns, limit, settings.seed)
    words = "label" if task == "tag" else label
    tuned = finetune(task, splits, words, model, settings, folder, frozen=frozen, context=context)
    named = {name: Path(path).name for name, path in files.items()}
    write(
        folder / "result.json",
        {"pipeline": "finetune", "files": named, "label": label, "limit": limit, **tuned.to_dict()},
    )
    discard(folder)
    history = tuned.history
    rows = zip(range(1, history.epoch + 1), history.losses, history.scores, strict=True)
    click.echo(text_table(["epoch", "loss", f"{tuned.scores['dev'].metric} on dev"], rows))
    costs = f"{history.seconds:.1f} s, {tuned.n_bytes / 1e6:.1f} MB"
    click.echo(f"kept: epoch {history.best_epoch}, in {tuned.folder}; {costs}")
    click.echo("\n".join(["", *tuned.scores["test"].lines()]))


def _columns(task: str, label: str, **reading: Any) -> dict[str, Any]:
    """Return how files are read for a task."""
    pair, split, context = (reading.pop(name) for name in READING[2:])
    if (split or context) and task != "tag":
        raise click.UsageError("--is-split-into-words and --document-context go with --task tag")
    if pair is not None and task == "tag":
        raise click.UsageError("--text-pair-column goes with --task pair and regress")
    if task != "tag":
        return {**reading, "text_pair_column": pair, "keep_columns": [label], "levels": "sentence"}
    if split and context:
        raise click.UsageError("--document-context is for CoNLL files; columns of words mark no documents")
    if split:
        return {**reading, "is_split_into_words": True, "label_column": label}
    return {**reading, "label_column": None if label == "label" else label, "document_context": context}


def _read(
    files: Mapping[str, str], columns: Mapping[str, Any], limit: int | None, seed: int
) -> dict[str, Sequence[Any]]:
    """Read the documents of each split; those without a file are held out of train."""
    splits: dict[str, Sequence[Any]] = {}
    for name, path in files.items():
        documents = read_documents(path, **columns)
        splits[name] = [documents[row] for row in draw_rows(len(documents), limit)]
    train = splits["train"]
    held = hold_out(len(train), seed, [name for name in ("test", "dev") if name not in splits])
    return splits | {name: [train[row] for row in rows] for name, rows in held.items()}


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
