"""Pairs of texts, for inference, paraphrase or similarity: frozen features of each text, or of both read together.

    python -m bertfeat.pipelines.sentence_pairs --train train.csv --dev dev.csv --test test.csv --task regress --out sts
    python -m bertfeat.pipelines.sentence_pairs --train nli.jsonl --label relation --out nli --with-finetuning

One table: the cosine of the two vectors; u, v, |u - v| and u * v of them; the features of the two texts read as one
input with segment ids; and the fine-tuned model. Without --test, a fifth of the rows is held out; without --dev, a
tenth of the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl

import bertfeat
from bertfeat.cli.failures import report_failures
from bertfeat.errors import InputError
from bertfeat.pipelines._costs import cost_table, extraction_seconds
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._options import recipe
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._splits import hold_out
from bertfeat.pipelines._training import Settings, check_finetuning, discard, training_options

FILE = click.Path(exists=True, dir_okay=False)


@recipe("sklearn")
@click.option("--train", type=FILE, required=True, help="CSV, TSV, JSONL, Parquet.")
@click.option("--dev", type=FILE, help="Labelled pairs to choose the penalty on.")
@click.option("--test", type=FILE, help="Labelled pairs to test on.")
@click.option("--text-column", default="sentence1", show_default=True)
@click.option("--text-pair-column", default="sentence2", show_default=True)
@click.option("--label", default="label", show_default=True, help="Column with the class or the number.")
@click.option("--task", type=click.Choice(["classify", "regress"]), default="classify", show_default=True)
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--layers", default="-1", show_default=True, help="One layer, or several, which are concatenated.")
@click.option("--pooling", type=click.Choice(["mean", "max", "cls"]), default="mean", show_default=True)
@click.option("--with-finetuning", is_flag=True, help="One more row: the fine-tuned model.")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
@click.option("--limit", type=click.IntRange(min=10), help="Only the first N pairs of each file.")
@training_options
def main(train: str, dev: str | None, test: str | None, label: str, task: str, out: str, **options: Any) -> None:
    """Compare features of pairs of texts on one task."""
    from bertfeat.pipelines._finetuning import encode_splits, finetune, label_texts

    started = time.perf_counter()
    model, with_finetuning = options.pop("model"), options.pop("with_finetuning")
    reading = {name: options.pop(name) for name in ("text_column", "text_pair_column", "limit")}
    encoding = {"model": model, **{name: options.pop(name) for name in ("layers", "pooling")}}
    folder, settings = Path(out), Settings(**options)
    tuning = ("learning_rate", "epochs", "batch_size", "patience")
    check_finetuning(model, "pair", asked=with_finetuning, options=tuning)
    files = {name: path for name, path in {"train": train, "dev": dev, "test": test}.items() if path is not None}
    columns = {"keep_columns": [label], "levels": "sentence", **reading}
    splits = _read(files, settings.seed, {name: value for name, value in columns.items() if value is not None})
    texts = {
        name: label_texts(documents, label, name, quantities=task == "regress") for name, documents in splits.items()
    }
    encode_splits(texts, label)
    splits = {name: split.documents for name, split in texts.items()}
    labels = {name: split.labels for name, split in texts.items()}
    extraction = {**encoding, "levels": "sentence", "combine": "concat", "device": settings.device}
    rows = [
        *_apart(splits, labels, folder / "features", extraction),
        _together(splits, labels, folder / "features", extraction),
    ]
    if with_finetuning:
        tuned = finetune("pair" if task == "classify" else task, splits, label, model, settings, folder / "finetuned")
        scores = {"dev": tuned.scores["dev"].to_dict(), "score": tuned.scores["test"].to_dict()}
        rows.append({"features": "fine-tuned", **tuned.to_dict(), **scores})
    table = cost_table(rows)
    result = {
        "pipeline": "sentence_pairs",
        "files": {name: Path(path).name for name, path in files.items()},
        "task": task,
        **encoding,
        "limit": reading["limit"],
        "seed": settings.seed,
        "n_pairs": {name: len(documents) for name, documents in splits.items()},
        "n_without_label": {name: split.n_without_label for name, split in texts.items()},
        "rows": rows,
        "seconds": time.perf_counter() - started,
    }
    write(folder / "result.json", result)
    write(folder / "table.md", table)
    discard(folder / "finetuned")
    click.echo(table)


def _read(files: Mapping[str, str], seed: int, reading: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Read the files, and hold out rows of train for those that are missing."""
    splits: dict[str, Sequence[Any]] = {name: read_documents(path, **reading) for name, path in files.items()}
    for pair in (pair for part in splits.values() for pair in part if pair.text_pair is None):
        reason = f"column {reading['text_pair_column']!r} is null; give it a text, if only an empty one"
        raise InputError(reason, path=pair.path, row=pair.row)
    rows = hold_out(len(splits["train"]), seed, [name for name in ("test", "dev") if name not in splits])
    return splits | {name: [splits["train"][number] for number in numbers] for name, numbers in rows.items()}


def _apart(
    splits: Mapping[str, Sequence[Any]], labels: Mapping[str, Any], folder: Path, encoding: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Encode each text once, and score the features that are made of two vectors."""
    texts = dict.fromkeys(text for part in splits.values() for pair in part for text in (pair.text, pair.text_pair))
    store = bertfeat.extract(pl.DataFrame({"text": list(texts)}), folder / "texts", **encoding)
    place = {text: number for number, text in enumerate(texts)}
    vectors = store.numpy("sentence", store.features("sentence")[0].name)
    sides = {
        name: [
            # A text without tokens, whose vector is NaN, counts as zeros.
            np.nan_to_num(vectors[[place[text] for text in texts]].astype("float32"))
            for texts in ([pair.text for pair in part], [pair.text_pair for pair in part])
        ]
        for name, part in splits.items()
    }
    made = {"cosine": cosine, "u, v, |u-v|, u*v": combine}
    return [
        _row(name, {split: make(*pair) for split, pair in sides.items()}, labels, [store], vectors.nbytes)
        for name, make in made.items()
    ]


def combine(u: Any, v: Any) -> Any:
    """Return u, v, |u - v| and u * v of pairs of vectors: (n_pairs, 4 * dim) from two (n_pairs, dim).

    As Conneau et al. 2017 (arXiv 1705.02364).
    """
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def cosine(u: Any, v: Any) -> Any:
    """Return the cosine of pairs of vectors, (n_pairs, 1); 0 where one is all zeros."""
    norms = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    return np.asarray((u * v).sum(axis=1) / np.where(norms > 0, norms, 1), dtype=np.float32)[:, None]


def _together(
    splits: Mapping[str, Sequence[Any]], labels: Mapping[str, Any], folder: Path, encoding: Mapping[str, Any]
) -> dict[str, Any]:
    """Encode the two texts of each pair as one input, and score its features."""
    stores = {}
    for name, part in splits.items():
        frame = pl.DataFrame({"text": [pair.text for pair in part], "text_pair": [pair.text_pair for pair in part]})
        stores[name] = bertfeat.extract(frame, folder / name, text_pair_column="text_pair", **encoding)
    vectors = {name: store.numpy("sentence", store.features("sentence")[0].name) for name, store in stores.items()}
    n_bytes = sum(array.nbytes for array in vectors.values())
    features = {name: np.nan_to_num(array.astype("float32")) for name, array in vectors.items()}
    return _row("both texts as one input", features, labels, stores.values(), n_bytes)


def _row(
    name: str, features: Mapping[str, Any], labels: Mapping[str, Any], stores: Iterable[bertfeat.Store], n_bytes: int
) -> dict[str, Any]:
    from bertfeat.pipelines._correlations import fit_and_score

    started = time.perf_counter()
    head, params, scores = fit_and_score(features, labels)
    return {
        "features": name,
        "head": head,
        **params,
        "dev": scores["dev"].to_dict(),
        "score": scores["test"].to_dict(),
        "seconds": extraction_seconds(stores) + time.perf_counter() - started,
        "n_bytes": n_bytes,
    }


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
