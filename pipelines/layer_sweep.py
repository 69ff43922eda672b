"""Scores by layer, from one extraction of all layers: the layers of a network in which a property is found.

    python -m bertfeat.pipelines.layer_sweep --corpus train.conllu --dev dev.conllu --label upos --out pos
    python -m bertfeat.pipelines.layer_sweep --corpus reviews.csv --level sentence --label stars --out stars

Writes result.json, and table.csv, plot.png and plot.svg into the folder sweep. Without --dev, a fifth of the documents
is held out. With --static FILE, one more row has the vectors of GloVe, word2vec or fastText: words without context.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import bertfeat
from bertfeat.pipelines._options import recipe, refuse_given
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._static import static_settings


@recipe("sklearn", "matplotlib")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), required=True, help="Labelled texts or words.")
@click.option("--dev", type=click.Path(exists=True, dir_okay=False), help="The texts to score on.")
@click.option("--level", type=click.Choice(["word", "sentence"]), default="word", show_default=True)
@click.option("--format", "format_", help="Format of the files, if their ending does not show it.")
@click.option("--text-column", default="text", show_default=True, help="Sentence level: the column with the text.")
@click.option("--label", default="label", show_default=True, help="Column with the class or tag.")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option(
    "--head", default="logreg", show_default=True, help="logreg, svm, ridge, centroid, knn, mlp, linear, bilstm."
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
@click.option("--limit", type=click.IntRange(min=2), help="Train on the first N documents only.")
@click.option("--static", type=click.Path(exists=True), help="A file of word vectors: one more row, without context.")
def main(
    corpus: str,
    dev: str | None,
    level: str,
    format_: str | None,
    text_column: str,
    label: str,
    model: str,
    head: str,
    seeds: int,
    out: str,
    limit: int | None,
    static: str | None,
) -> None:
    """Train one probe on each layer and each combination of layers, and plot score against layer."""
    started = time.perf_counter()
    if level == "word":
        refuse_given(("text_column",), "is for --level sentence; leave it out")
    folder, static_row = Path(out), static_settings(static, level)
    settings: dict[str, Any] = {"model": model, "levels": level, "layers": "all", "combine": "none"}
    if level == "sentence":
        settings |= {"text_column": text_column, "keep_columns": [label]}
    elif label != "label":
        settings |= {"label_column": label}
    if format_ is not None:
        settings["format"] = format_
    inputs = {name: path for name, path in {"train": corpus, "dev": dev}.items() if path is not None}

    def swept(ending: str, **others: Any) -> Any:
        stores = {
            name: bertfeat.extract(path, folder / "features" / f"{name}{ending}", **{**settings, **others})
            for name, path in inputs.items()
        }
        column = "label" if level == "word" and "label" in stores["train"].columns("word") else label
        return bertfeat.sweep_probes(
            stores["train"], column, level=level, head=head, dev=stores.get("dev"), seeds=seeds, limit=limit
        )

    sweep = swept("")
    if static:
        row = swept("-static", **static_row).rows[0]
        sweep = replace(sweep, rows=(*sweep.rows, replace(row, feature=f"static {Path(static).name}", layers=())))
    sweep.write(folder / "sweep", overwrite=True)
    result = {
        "pipeline": "layer_sweep",
        "corpus": Path(corpus).name,
        "dev": None if dev is None else Path(dev).name,
        "model": sweep.model,
        "level": level,
        "label": label,
        "head": head,
        "limit": limit,
        "sweep": sweep.to_dict(),
        "seconds": time.perf_counter() - started,
    }
    write(folder / "result.json", result)
    click.echo(sweep.table())


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
