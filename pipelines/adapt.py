"""Encoders trained further on plain text, or from random weights, by masked words and next sentences.

    python -m bertfeat.pipelines.adapt --corpus texts.txt --model minilm --out adapted
    python -m bertfeat.pipelines.adapt --corpus texts.txt --from-scratch config.json --nsp --out small

Writes the folder model, which --model takes, result.json, and the learning curve. The table has the scores on held-out
documents before and after. The same command resumes a run that was killed.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import bertfeat
from bertfeat.pipelines._maskedexamples import Examples
from bertfeat.pipelines._models import MODEL, TaskModel, check_model_place, replace_model
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._pretraining import HeldOut, is_tied, open_masked_model, pretrain
from bertfeat.pipelines._scratch import make_model
from bertfeat.pipelines._training import Settings, discard, training_options
from bertfeat.pipelines._windows import hold_out, read_texts
from bertfeat.reports.plots import plot_lines
from bertfeat.reports.tables import text_table

_USUAL_LENGTH = 128


@recipe("matplotlib")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), required=True, help="Any format of extract.")
@click.option("--model", help="Installed model package, folder, or hub id.")
@click.option(
    "--from-scratch", type=click.Path(exists=True, dir_okay=False), help="A config.json: start from random weights."
)
@click.option("--nsp", is_flag=True, help="Next sentences beside masked words.")
@click.option("--whole-words", is_flag=True, help="Mask whole words.")
@click.option("--text-column", default="text", show_default=True)
@click.option("--document-column", help="Column that is the same in the rows of a document.")
@click.option("--format", "format_", help="Format of the corpus, if its ending does not show it.")
@click.option("--limit", type=click.IntRange(min=1), help="The first N rows only.")
@click.option(
    "--max-length", type=click.IntRange(min=1), help="Tokens of a window; by default 128, or the model's limit."
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    help="Share of the text to score on.",
)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
@training_options
def main(
    corpus: str,
    model: str | None,
    from_scratch: str | None,
    nsp: bool,
    whole_words: bool,
    text_column: str,
    document_column: str | None,
    format_: str | None,
    limit: int | None,
    max_length: int | None,
    held_out: float,
    out: str,
    **training: Any,
) -> None:
    """Train an encoder on plain text, and write a folder that --model takes."""
    started = time.perf_counter()
    if (model is None) == (from_scratch is None):
        raise click.UsageError("pass --model, or --from-scratch with a config.json, and not both")
    folder, settings = Path(out), Settings(**training)
    reading = {"text_column": text_column, "document_column": document_column, "format": format_, "limit": limit}
    documents, parted_by = read_texts(corpus, **{name: value for name, value in reading.items() if value is not None})
    parts = hold_out(documents, held_out, least=2 if nsp else 1)
    if from_scratch is not None:
        model = str(folder / "start")
        head = "pretraining" if nsp else "masked"
        texts = list(itertools.chain.from_iterable(parts[0]))
        make_model(from_scratch, texts, head, folder / "start", seed=settings.seed)
    opened = open_masked_model(str(model), nsp=nsp, seed=settings.seed)
    check_model_place(opened, folder / MODEL)
    length = _length(max_length, opened)
    examples, others = (Examples(part, opened, length, nsp=nsp, whole_words=whole_words) for part in parts)
    if examples.n_tokens < length:
        raise bertfeat.errors.InputError(
            f"{corpus}: {examples.n_tokens} tokens to train on are fewer than a window of {length}; use more text or a "
            "smaller --max-length"
        )
    asked = {"nsp": nsp, "whole_words": whole_words}
    scored = HeldOut(others, settings.batch_size)
    course = pretrain(opened, examples, scored, settings, folder, identity={**asked, "held_out": others.digest()})
    replace_model(opened, folder / MODEL)
    _draw(course.curve(), folder)
    result = {
        "pipeline": "adapt",
        "corpus": Path(corpus).name,
        "model": None if from_scratch else model,
        "from_scratch": None if from_scratch is None else Path(from_scratch).name,
        "new_weights": opened.new_weights,
        "tied_embeddings": is_tied(opened.model),
        **asked,
        "max_length": length,
        "documents_by": parted_by,
        "n_documents": {"train": len(parts[0]), "held_out": len(parts[1])},
        "n_tokens": {"train": examples.n_tokens, "held_out": others.n_tokens},
        "n_tokens_left_out": {"train": examples.n_left_out, "held_out": others.n_left_out},
        "n_windows": {"train": len(examples.lengths), "held_out": len(others.lengths)},
        "settings": asdict(settings),
        "before": asdict(course.before),
        "after": asdict(course.after),
        "most_frequent_token": {"masked_accuracy": scored.guessed(examples.most_frequent())},
        "training": course.history.report(),
        "curve": course.curve(),
        "seconds": time.perf_counter() - started,
    }
    write(folder / "result.json", result)
    discard(folder)
    if left_out := examples.n_left_out + others.n_left_out:
        click.echo(f"{corpus}: {left_out} tokens are in no window; see result.json", err=True)
    click.echo(_table(result))


def _length(asked: int | None, opened: TaskModel) -> int:
    """Return the tokens of a window."""
    if asked is not None and asked > opened.max_length:
        raise click.UsageError(f"--max-length {asked} is more than the {opened.max_length} tokens that the model takes")
    return min(_USUAL_LENGTH, opened.max_length) if asked is None else asked


def _draw(curve: list[dict[str, float]], folder: Path) -> None:
    titles = {"loss": "training, mean of the epoch", "held_out_loss": "held out"}
    lines = {
        title: [(point["step"], point[name]) for point in curve if name in point] for name, title in titles.items()
    }
    plot_lines(lines, folder / "curve", axis_names=("step", "loss"))


def _table(result: dict[str, Any]) -> str:
    """Return the scores on the held-out documents as a table."""
    names = {"loss": "loss", "masked_accuracy": "masked words", "next_accuracy": "next sentences"}
    if not result["nsp"]:
        del names["next_accuracy"]
    titles = {"before": "before", "after": "after", "most_frequent_token": "most frequent token"}
    rows = [[title, *(result[row].get(name) for name in names)] for row, title in titles.items()]
    return text_table(["held-out documents", *names.values()], rows)


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
