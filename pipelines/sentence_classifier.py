"""A classifier of texts, fitted, scored and saved: one extraction, a linear probe, its errors by class.

    python -m bertfeat.pipelines.sentence_classifier --corpus train.csv --test test.csv --label category --out banking
    python -m bertfeat.pipelines.sentence_classifier --corpus reviews.jsonl --label stars --out out --with-finetuning

Without --test, a fifth of the rows is held out. L2 is chosen on a tenth of the rest. With --with-finetuning, the model
is also trained itself, and a table has both with the seconds and bytes that they cost.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import polars as pl

from bertfeat import Store, extract
from bertfeat.cli.failures import report_failures
from bertfeat.pipelines._costs import cost_table, extraction_seconds, feature_bytes
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import draw_rows, hold_out
from bertfeat.pipelines._training import SEED, Settings, check_finetuning, discard, finetuning_options
from bertfeat.reports.plots import plot_confusion

FILE = click.Path(exists=True, dir_okay=False)
L2 = [0.01, 0.1, 1.0, 10.0]
# head -> the parameter of its L2 strength
CHOSEN_BY = {"logreg": "C", "svm": "C", "ridge": "alpha"}


@recipe("sklearn", "matplotlib")
@click.option("--corpus", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet.")
@click.option("--test", type=FILE, help="Labelled texts to test on.")
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
    corpus: str, test: str | None, text_column: str, label: str, head: str, out: str, seed: int, **options: Any
) -> None:
    """Train a classifier of texts on frozen features, score it, save it, and keep its predictions."""
    from bertfeat import fit_probe

    started = time.perf_counter()
    limit, tunes = options["limit"], options["with_finetuning"]
    settings = {name: options[name] for name in ("model", "layers", "pooling")}
    check_finetuning(settings["model"], "classify", asked=tunes)
    folder = Path(out)
    columns: dict[str, Any] = {"text_column": text_column, "keep_columns": [label], "levels": "sentence"}
    frames = {name: _read(path, columns, limit) for name, path in {"train": corpus, "test": test}.items() if path}
    # A fifth is for the test, unless there is a file, and a tenth of the rest is to choose L2 on.
    missing = ["test", "dev"] if test is None else ["dev"]
    held = hold_out(len(frames["train"]), seed, missing)
    frames |= {name: frames["train"][rows] for name, rows in held.items()}
    stores = {}
    for name in ("train", "dev", "test"):
        path = folder / "corpus" / f"{name}.parquet"
        write(path, frames[name])
        stores[name] = extract(path, folder / "features" / name, combine="concat", **settings, **columns)
    params: dict[str, Any] = {CHOSEN_BY[head]: L2} if head in CHOSEN_BY else {}
    probe = fit_probe(stores["train"], label, level="sentence", head=head, dev=stores["dev"], seed=seed, **params)
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
        "pooling": settings["pooling"],
        "head": head,
        "n_rows": {name: store.n_rows("sentence") for name, store in stores.items()},
        "training": asdict(probe.training),
        "score": score.to_dict(),
    }
    shown = score.lines()
    if tunes:
        how = {"learning_rate": options["finetuning_rate"], "epochs": options["finetuning_epochs"]}
        training = Settings(batch_size=16, seed=seed, **how)
        result["rows"] = _rows(stores, probe, score.to_dict(), folder, columns, training)
        shown += ["", cost_table(result["rows"])]
    result["seconds"] = time.perf_counter() - started
    write(folder / "result.json", result)
    discard(folder / "finetuned")
    click.echo("\n".join(shown))


def _read(path: str, columns: dict[str, Any], limit: int | None) -> pl.DataFrame:
    """Read texts and labels, or some of the rows at random."""
    documents = read_documents(path, **columns)
    (label,) = columns["keep_columns"]
    values = {columns["text_column"]: [one.text for one in documents], label: [one.kept[label] for one in documents]}
    return pl.DataFrame(values, strict=False)[draw_rows(len(documents), limit)]


def _rows(
    stores: dict[str, Store],
    probe: Any,
    score: dict[str, Any],
    folder: Path,
    columns: dict[str, Any],
    settings: Settings,
) -> list[dict[str, Any]]:
    """Fine-tune the model on the rows that the probe learns from; return score and costs of both."""
    from bertfeat.pipelines._finetuning import finetune

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


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
