"""Pairs of texts, for inference, paraphrase or similarity: frozen features of each text, or of both read together.

python -m bertfeat.pipelines.sentence_pairs --train train.csv --dev dev.csv --test test.csv --task regress -o sts
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl

from bertfeat import Store, extract
from bertfeat.errors import InputError
from bertfeat.pipelines import _recipe
from bertfeat.pipelines._recipe import FILE, Result, features_options, read_splits, recipe, write
from bertfeat.pipelines._training import Settings, check_finetuning, finetuning_options


@recipe("sklearn")
@click.option("--train", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet.")
@click.option("--dev", type=FILE, help="Pairs to choose the penalty on; without it, rows are held out.")
@click.option("--test", type=FILE, help="Pairs to test on; without it, rows are held out.")
@click.option("--text-column", default="sentence1", show_default=True)
@click.option("--text-pair-column", default="sentence2", show_default=True)
@click.option("--label", default="label", show_default=True, help="Column with the class or the number.")
@click.option("--task", type=click.Choice(["classify", "regress"]), default="classify", show_default=True)
@features_options
@finetuning_options
def main(train: str, dev: str | None, test: str | None, label: str, task: str, output: Path, **options: Any) -> Result:
    """Compare features of pairs of texts on one task."""
    from bertfeat.pipelines._finetuning import encode_splits, find_labels, finetune, fit_and_score

    tunes = options.pop("with_finetuning")
    reading = {name: options.pop(name) for name in ("text_column", "text_pair_column")}
    encoding = {name: options.pop(name) for name in ("model", "layers", "pooling")}
    settings = Settings(**options)
    check_finetuning(encoding["model"], "sequence", asked=tunes)
    files = {name: path for name, path in {"train": train, "dev": dev, "test": test}.items() if path is not None}
    splits = read_splits(files, seed=settings.seed, keep_columns=[label], levels="sentence", **reading)
    for pair in (pair for part in splits.values() for pair in part if pair.text_pair is None):
        reason = f"column {reading['text_pair_column']!r} is null; give it a text, if only an empty one"
        raise InputError(reason, path=pair.path, row=pair.row)
    tuned_task = "pair" if task == "classify" else task
    texts = {name: find_labels(tuned_task, part, label, name) for name, part in splits.items()}
    encode_splits(texts, label)
    pairs = {name: split.documents for name, split in texts.items()}
    labels = {name: split.labels for name, split in texts.items()}
    extraction = {**encoding, "levels": "sentence", "combine": "concat", "device": settings.device}

    def add(name: str, features: Mapping[str, Any], stores: Sequence[Store], n_bytes: int) -> None:
        started = time.perf_counter()
        head, scores = fit_and_score(features, labels)
        seconds = _recipe.extraction_seconds(stores) + time.perf_counter() - started
        found = {"dev": scores["dev"].to_dict(), "score": scores["test"].to_dict()}
        rows.append({"features": name, **head, **found, "seconds": seconds, "n_bytes": n_bytes})

    rows: list[dict[str, Any]] = []
    unique = dict.fromkeys(text for part in pairs.values() for pair in part for text in (pair.text, pair.text_pair))
    store = extract(pl.DataFrame({"text": list(unique)}), output / "features" / "texts", **extraction)
    place = {text: number for number, text in enumerate(unique)}
    feature = store.features("sentence")[0].name
    vectors = _vectors(store, feature)
    sides = {
        name: (vectors[[place[pair.text] for pair in part]], vectors[[place[pair.text_pair] for pair in part]])
        for name, part in pairs.items()
    }
    n_bytes = store.numpy("sentence", feature).nbytes
    for name, make in {"cosine": cosine, "u, v, |u-v|, u*v": combine}.items():
        add(name, {split: make(*pair) for split, pair in sides.items()}, [store], n_bytes)
    stores = {}
    for name, part in pairs.items():
        frame = pl.DataFrame({"text": [pair.text for pair in part], "text_pair": [pair.text_pair for pair in part]})
        stores[name] = extract(frame, output / "features" / name, text_pair_column="text_pair", **extraction)
    n_bytes = sum(one.numpy("sentence", feature).nbytes for one in stores.values())
    together = {name: _vectors(one, feature) for name, one in stores.items()}
    add("both texts as one input", together, [*stores.values()], n_bytes)
    if tunes:
        tuned = finetune(tuned_task, pairs, label, encoding["model"], settings, output, "finetuned/model")
        scores = {"dev": tuned.scores["dev"].to_dict(), "score": tuned.scores["test"].to_dict()}
        rows.append({"features": "fine-tuned", **tuned.values, **scores})
    table = _recipe.cost_table(rows)
    write(output / "table.md", table)
    values = {
        "n_pairs": {name: len(part) for name, part in pairs.items()},
        "n_without_label": {name: split.n_without_label for name, split in texts.items()},
        "rows": rows,
    }
    return Result(values, table)


def _vectors(store: Store, feature: str) -> Any:
    """Return vectors as float32, zeros for a text without tokens."""
    return np.nan_to_num(store.numpy("sentence", feature).astype("float32"))


def combine(u: Any, v: Any) -> Any:
    """Return u, v, |u - v| and u * v (Conneau et al. 2017, arXiv 1705.02364): (n_pairs, 4 * dim)."""
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def cosine(u: Any, v: Any) -> Any:
    """Return the cosine of pairs of vectors, (n_pairs, 1); 0 where one is all zeros."""
    norms = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    return np.asarray((u * v).sum(axis=1) / np.where(norms > 0, norms, 1), dtype=np.float32)[:, None]


if __name__ == "__main__":
    main()
