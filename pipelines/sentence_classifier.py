"""A classifier of texts, fitted, scored and saved: one extraction, a linear probe, its errors by class.

python -m bertfeat.pipelines.sentence_classifier --corpus train.csv --test test.csv --label category -o banking
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import polars as pl

from bertfeat import extract
from bertfeat.pipelines._recipe import FILE, Result, cost_table, costs_of, features_options, read_splits, recipe, write
from bertfeat.pipelines._training import TASKS, Settings, check_finetuning, finetuning_options

L2 = [0.01, 0.1, 1.0, 10.0]


@recipe("sklearn", extraction="text_column model")
@click.option("--corpus", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet.")
@click.option("--test", type=FILE, help="Texts to test on; without it, rows are held out.")
@click.option("--label", default="label", show_default=True, help="Column with the class.")
@features_options
@finetuning_options
def main(corpus: str, test: str | None, label: str, output: Path, **options: Any) -> Result:
    """Train a classifier of texts on frozen features, score it, save it, and keep its predictions."""
    from bertfeat import fit_probe
    from bertfeat.pipelines._finetuning import finetune

    tunes, text_column = options.pop("with_finetuning"), options.pop("text_column")
    encoding = {name: options.pop(name) for name in ("model", "layers", "pooling")}
    settings = Settings(**options)
    check_finetuning(encoding["model"], TASKS["classify"], asked=tunes)
    columns = {"text_column": text_column, "keep_columns": [label], "levels": "sentence"}
    files = {"train": corpus} if test is None else {"train": corpus, "test": test}
    splits = read_splits(files, seed=settings.seed, **columns)
    stores = {}
    how = {"combine": "concat", "device": settings.device, **encoding, **columns}
    for name in ("train", "dev", "test"):
        values = {text_column: [one.text for one in splits[name]], label: [one.kept[label] for one in splits[name]]}
        stores[name] = extract(pl.DataFrame(values, strict=False), output / "features" / name, **how)
    asked: dict[str, Any] = {"level": "sentence", "head": "logreg", "C": L2, "seed": settings.seed}
    probe = fit_probe(stores["train"], label, dev=stores["dev"], **asked)
    score = probe.score(stores["test"])
    probe.save(output / "probe", overwrite=True)
    write(output / "predictions.parquet", probe.predict(stores["test"]))
    result: dict[str, Any] = {
        "feature": probe.spec.feature,
        "n_rows": {name: store.n_rows("sentence") for name, store in stores.items()},
        "training": asdict(probe.training),
        "score": score.to_dict(),
    }
    lines = score.lines()
    if tunes:
        tuned = finetune("classify", splits, label, encoding["model"], settings, output, "finetuned/model")
        seconds, n_bytes = costs_of(probe, stores.values())
        name = f"{probe.spec.feature}, logreg"
        result["rows"] = [
            {"features": name, "score": score.to_dict(), "seconds": seconds, "n_bytes": n_bytes},
            {"features": "fine-tuned", "score": tuned.scores["test"].to_dict(), **tuned.values},
        ]
        lines += ["", cost_table(result["rows"])]
    return Result(result, "\n".join(lines))


if __name__ == "__main__":
    main()
