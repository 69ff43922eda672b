"""A classifier of texts, fitted, scored and saved: one extraction, a linear probe, its errors by class.

    python -m bertfeat.pipelines.sentence_classifier --corpus train.csv --test test.csv --label category --out banking
    python -m bertfeat.pipelines.sentence_classifier --corpus reviews.jsonl --label stars --out out --with-finetuning

Without --test, a fifth of the rows is held out. L2 is chosen on a tenth of the rest. With --with-finetuning, the model
is also trained itself, and a table has both with the seconds and bytes that they cost.
"""

from __future__ import annotations

import textwrap
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import polars as pl

import bertfeat
from bertfeat.pipelines._costs import cost_table, extraction_seconds, feature_bytes
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import draw_rows, hold_out
from bertfeat.pipelines._training import SEED, Settings, check_finetuning, discard, finetuning_options
from bertfeat.reports.plots import plot_confusion

L2 = [0.01, 0.1, 1.0, 10.0]
# head -> the parameter of its L2 strength
CHOSEN_BY = {"logreg": "C", "svm": "C", "ridge": "alpha"}


@recipe("sklearn", "matplotlib")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), required=True, help="CSV, TSV, JSONL, Parquet.")
@click.option("--test", type=click.Path(exists=True, dir_okay=False), help="Labelled texts to test on.")
@click.option("--text-column", default="text", show_default=True)
@click.option("--label", default="label", show_default=True, help="Column with the class.")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--layers", default="-1", show_default=True, help="One layer, or several, which are concatenated.")
@click.option("--pooling", type=click.Choice(["mean", "max", "cls"]), default="mean", show_default=True)
@click.option("--head", type=click.Choice([*CHOSEN_BY, "centroid", "knn", "mlp"]), default="logreg", show_default=True)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
@click.option("--limit", type=click.IntRange(min=10), help="N rows of each file, drawn at random.")
@click.option("--seed", type=SEED, default=0, show_default=True)
@finetuning_options
def main(
    corpus: str,
    test: str | None,
    text_column: str,
    label: str,
    model: str,
    layers: str,
    pooling: str,
    head: str,
    out: str,
    limit: int | None,
    seed: int,
    with_finetuning: bool,
    finetuning_epochs: int,
    finetuning_rate: float,
) -> None:
    """Train a classifier of texts on frozen features, score it, save it, and keep its predictions."""
    started = time.perf_counter()
    check_finetuning(model, "classify", asked=with_finetuning)
    folder = Path(out)
    frames = _split(_read(corpus, limit), None if test is None else _read(test, limit), text_column, label, seed)
    stores = {}
    for name, frame in frames.items():
        path = folder / "corpus" / f"{name}.parquet"
        write(path, frame.select(text_column, label))
        stores[name] = bertfeat.extract(
            path,
            folder / "features" / name,
            model=model,
            levels="sentence",
            layers=layers,
            combine="concat",
            pooling=pooling,
            text_column=text_column,
            keep_columns=[label],
        )
    params: dict[str, Any] = {CHOSEN_BY[head]: L2} if head in CHOSEN_BY else {}
    probe = bertfeat.fit_probe(
        stores["train"], label, level="sentence", head=head, dev=stores["dev"], seed=seed, **params
    )
    score = probe.score(stores["test"])
    probe.save(folder / "probe", overwrite=True)
    confusion = score.scores.confusion
    plot_confusion(confusion.labels, confusion.matrix, folder / "confusion")
    write(folder / "predictions.parquet", probe.predict(stores["test"]))
    result = {
        "pipeline": "sentence_classifier",
        "corpus": Path(corpus).name,
        "test": None if test is None else Path(test).name,
        "model": stores["train"].metadata["model"],
        "feature": probe.spec.feature,
        "pooling": pooling,
        "head": head,
        "n_rows": {name: store.n_rows("sentence") for name, store in stores.items()},
        "training": asdict(probe.training),
        "score": score.to_dict(),
    }
    shown = score.lines()
    if with_finetuning:
        settings = Settings(learning_rate=finetuning_rate, epochs=finetuning_epochs, batch_size=16, seed=seed)
        result["rows"] = _rows(stores, probe, score.to_dict(), folder, text_column, settings)
        shown += ["", cost_table(result["rows"])]
    result["seconds"] = time.perf_counter() - started
    write(folder / "result.json", result)
    discard(folder / "finetuned")
    click.echo("\n".join(shown))


def _rows(
    stores: dict[str, bertfeat.Store],
    probe: bertfeat.FittedProbe,
    score: dict[str, Any],
    folder: Path,
    text_column: str,
    settings: Settings,
) -> list[dict[str, Any]]:
    """Fine-tune the model on the rows that the probe learns from; return score and costs of both."""
    from bertfeat.pipelines._finetuning import finetune

    columns = {"text_column": text_column, "keep_columns": [probe.label], "levels": "sentence"}
    splits = {name: read_documents(folder / "corpus" / f"{name}.parquet", **columns) for name in stores}
    tuned = finetune("classify", splits, probe.label, probe.spec.model, settings, folder / "finetuned")
    return [
        {
            "features": f"{probe.spec.feature}, {probe.probe.head}",
            "score": score,
            "seconds": extraction_seconds(stores.values()) + probe.training.seconds,
            "n_bytes": feature_bytes(stores.values(), probe.spec),
        },
        {"features": "fine-tuned", "score": tuned.scores["test"].to_dict(), **tuned.to_dict()},
    ]


def _read(path: str, limit: int | None) -> pl.DataFrame:
    """Read a table by its file ending."""
    suffixes = Path(path).suffixes
    try:
        if ".parquet" in suffixes:
            frame = pl.read_parquet(path)
        elif ".jsonl" in suffixes:
            frame = pl.read_ndjson(path, infer_schema_length=None)
        else:
            # As in the corpus readers, the cells of a .csv are text.
            separator = "\t" if ".tsv" in suffixes else ","
            frame = pl.read_csv(path, separator=separator, infer_schema=False).fill_null("")
    except pl.exceptions.PolarsError as error:
        raise click.UsageError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from error
    return frame[draw_rows(len(frame), limit)]


def _split(
    frame: pl.DataFrame, test: pl.DataFrame | None, text_column: str, label: str, seed: int
) -> dict[str, pl.DataFrame]:
    """Hold out a fifth for the test, unless there is a file, and a tenth of the rest to choose L2 on."""
    if label == text_column:
        raise click.UsageError(f"--label and --text-column are both {label!r}; name two columns")
    for name, part in {"--corpus": frame, "--test": test}.items():
        for option, column in {"--label": label, "--text-column": text_column}.items():
            if part is not None and column not in part.columns:
                columns = ", ".join(textwrap.shorten(one, 40, placeholder="...") for one in part.columns[:20])
                raise click.UsageError(f"{name}: no column {column!r}; columns are {columns}; pass {option}")
    parts = hold_out(len(frame), seed, ["dev"] if test is not None else ["test", "dev"])
    held = {name: frame[rows] for name, rows in parts.items()}
    return held if test is None else {**held, "test": test}


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
