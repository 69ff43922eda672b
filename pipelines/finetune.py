"""Fine-tuning of a model on labelled texts, pairs or words: the encoder is trained too, and scored as a probe is.

    python -m bertfeat.pipelines.finetune --task classify --corpus a.csv --test b.csv --label topic --out tuned
    python -m bertfeat.pipelines.finetune --task tag --corpus a.conll --dev b.conll --freeze 0..3 --out tagger

Without --test, a fifth of the rows is held out, and without --dev a tenth of the rest: the same rows as in
sentence_classifier. The folder OUT/model is a model that --model takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertfeat.cli.failures import report_failures
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import draw_rows, hold_out
from bertfeat.pipelines._training import TASKS, Settings, discard, training_options
from bertfeat.reports.tables import text_table

if TYPE_CHECKING:
    from bertfeat.pipelines._finetuning import FineTuned

FILE = click.Path(exists=True, dir_okay=False)


@recipe("accelerate", "sklearn")
@click.option(
    "--task", type=click.Choice(list(TASKS)), required=True, help="Labels of texts, words or pairs, or numbers."
)
@click.option("--corpus", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet; for tag also CoNLL.")
@click.option("--dev", type=FILE, help="Labelled rows to stop on; without it, rows are held out.")
@click.option("--test", type=FILE, help="Labelled rows to test on; without it, rows are held out.")
@click.option("--format", "kind", default="auto", show_default=True, help="Format of the files, such as conll.")
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
def main(
    task: str,
    corpus: str,
    dev: str | None,
    test: str | None,
    kind: str,
    text_column: str,
    text_pair_column: str | None,
    label: str,
    is_split_into_words: bool,
    document_context: bool,
    model: str,
    frozen: str | None,
    out: str,
    limit: int | None,
    **training: Any,
) -> None:
    """Train a model with a head for a task, keep the best weights on dev, score them, and save them."""
    from bertfeat.pipelines._finetuning import finetune

    if (is_split_into_words or document_context) and task != "tag":
        raise click.UsageError("--is-split-into-words and --document-context go with --task tag")
    if text_pair_column is not None and task == "tag":
        raise click.UsageError("--text-pair-column goes with --task pair and regress")
    if document_context and is_split_into_words:
        raise click.UsageError("--document-context is for CoNLL files; columns of words mark no documents")
    if document_context and (limit or not dev or not test):
        raise click.UsageError("--document-context needs --dev and --test, and no --limit: drawn rows lose neighbours")
    columns: dict[str, Any] = {"text_column": text_column, "format": kind}
    if task != "tag":
        columns |= {"text_pair_column": text_pair_column, "keep_columns": [label], "levels": "sentence"}
    elif is_split_into_words:
        columns |= {"is_split_into_words": True, "label_column": label}
    else:
        columns |= {"label_column": None if label == "label" else label, "document_context": document_context}
    splits = _read({"train": corpus, "dev": dev, "test": test}, columns, limit, training["seed"])
    folder = Path(out)
    tuned = finetune(
        task,
        splits,
        "label" if task == "tag" else label,
        model,
        Settings(**training),
        folder,
        frozen=frozen,
        context=document_context,
    )
    result = {
        "pipeline": "finetune",
        "files": {name: path and Path(path).name for name, path in {"train": corpus, "dev": dev, "test": test}.items()},
        "label": label,
        "limit": limit,
        **tuned.to_dict(),
    }
    write(folder / "result.json", result)
    discard(folder)
    click.echo(_shown(tuned))


def _read(
    files: Mapping[str, str | None], columns: Mapping[str, Any], limit: int | None, seed: int
) -> dict[str, Sequence[Any]]:
    """Read the documents of each split; those without a file are held out of train."""
    splits: dict[str, Sequence[Any]] = {}
    for name, path in files.items():
        if path is not None:
            documents = read_documents(path, **columns)
            splits[name] = [documents[row] for row in draw_rows(len(documents), limit)]
    missing = [name for name in files if name not in splits]
    train = splits["train"]
    return splits | {name: [train[row] for row in rows] for name, rows in hold_out(len(train), seed, missing).items()}


def _shown(tuned: FineTuned) -> str:
    history, score = tuned.history, tuned.scores["test"]
    rows = zip(range(1, history.epoch + 1), history.losses, history.scores, strict=True)
    table = text_table(["epoch", "loss", f"{tuned.scores['dev'].metric} on dev"], rows)
    kept = f"kept: epoch {history.best_epoch}, in {tuned.folder}; {history.seconds:.1f} s, {tuned.n_bytes / 1e6:.1f} MB"
    return "\n".join([table, kept, "", *score.lines()])


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
