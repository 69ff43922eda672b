"""Table 7 of the BERT paper on any labelled CoNLL corpus: the best layers for a tagger.

    python -m bertfeat.pipelines.table7 --train eng.train --dev eng.testa --test eng.testb -o table7
    python -m bertfeat.pipelines.table7 --train a.conllu --dev b.conllu --label upos -o pos --limit 1000 --seeds 2

Devlin et al. 2019 (arXiv 1810.04805v2, section 5.4): the first sub-token of each word, a two-layer BiLSTM of 768 units,
no CRF, the mean of 5 seeds. The table also has their figures, of BERT-base, cased.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bertfeat import Store, extract
from bertfeat.pipelines._recipe import FILE, Result, cost_cells, costs_of, read_documents, recipe, write
from bertfeat.pipelines._training import TASKS, Settings, check_finetuning, finetuning_options, static_settings
from bertfeat.plots.tables import markdown_table

# The F1 of the fine-tuned model in the paper, on the development set of CoNLL-2003, as those of the features below.
FINE_TUNED = 96.4


@recipe("sklearn")
@click.option("--train", type=FILE, required=True, help="Sentences to learn from.")
@click.option("--dev", type=FILE, required=True, help="The file to choose on.")
@click.option("--test", type=FILE, help="The test file, if there is one.")
@click.option("--label", default="label", show_default=True, help="Column with the tags (CoNLL: the last one).")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N sentences of each file.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Trainings of each set.")
@click.option("--head", type=click.Choice(["bilstm", "linear"]), default="bilstm", show_default=True)
@click.option("--max-epochs", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--static", type=click.Path(exists=True), help="A file of word vectors: one more row, without context.")
@finetuning_options
def main(label: str, model: str, static: str | None, output: Path, seeds: int, **options: Any) -> Result:
    """Extract the features of a corpus once, train a tagger on each feature set of the paper's Table 7, and compare."""
    head, tunes, limit = (options.pop(name) for name in ("head", "with_finetuning", "limit"))
    size = {"hidden_size": 768} if head == "bilstm" else {}
    params = {"max_epochs": options.pop("max_epochs"), **size}
    paths = {name: options.pop(name) for name in ("train", "dev", "test")}
    files = {name: Path(path) for name, path in paths.items() if path is not None}
    of_static = static_settings(static)
    check_finetuning(model, TASKS["tag"], asked=tunes)
    context = all(map(_marks_documents, files.values()))
    settings = Settings(**options)
    reader_label = None if label == "label" else label
    columns: dict[str, Any] = {"label_column": reader_label, "document_context": context, "limit": limit}

    def extracted(ending: str, **how: Any) -> dict[str, Store]:
        how = {"levels": "word", "combine": "none", "device": settings.device, **columns, **how}
        return {
            name: extract(path, output / "features" / f"{name}{ending}", format=_kind(path), **how)
            for name, path in files.items()
        }

    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(f"{row['features']}: {row['metric']} on dev {_cell(row['dev'])}, {row['seconds']:.0f} s", err=True)

    stores = extracted("", model=model, layers="all")
    each_seed = range(settings.seed, settings.seed + seeds)
    # The reader names the chosen column `label`.
    training = {"label": "label" if "label" in stores["train"].columns("word") else label, "head": head, **params}
    for name, (chosen, paper) in _feature_sets(stores["train"].metadata["n_layers"]).items():
        add(_train(name, chosen, paper, stores, each_seed, **training))
    if static is not None:
        ones = extracted("-static", **{**of_static, "document_context": False})
        row = _train(f"Static: {Path(static).name}", {"feature": "layer_00"}, None, ones, each_seed, **training)
        counts = [store.manifest.totals.counts for store in ones.values()]
        n_words = {name: sum(count[name] for count in counts) for name in ("n_unknown_tokens", "n_tokens")}
        add({**row, **n_words, "weights_sha256": ones["train"].metadata["weights_sha256"]})
    if tunes:
        splits = {name: read_documents(path, format=_kind(path), **columns) for name, path in files.items()}
        add(_finetune(splits, model, settings, each_seed, output, context=context))
    table = _table(rows, costs=tunes)
    write(output / "table.md", table + "\n")
    values = {
        "weights_sha256": stores["train"].metadata["weights_sha256"],
        "n_words": {name: store.n_rows("word") for name, store in stores.items()},
        "document_context": context,
        "rows": rows,
    }
    return Result(values, table)


def _feature_sets(n_layers: int) -> dict[str, tuple[dict[str, str], float]]:
    """Return the features of each row of the table, or a learned mix of layers, with the paper's F1."""
    return {
        "Embeddings": ({"feature": "layer_00"}, 91.0),
        "Second-to-last hidden": ({"feature": f"layer_{n_layers - 1:02d}"}, 95.6),
        "Last hidden": ({"feature": f"layer_{n_layers:02d}"}, 94.9),
        "Weighted sum of last four": ({"mix": f"{max(1, n_layers - 3)}..{n_layers}"}, 95.9),
        "Concatenated last four": ({"feature": "concat_last4"}, 96.1),
        "Weighted sum of all layers": ({"mix": f"1..{n_layers}"}, 95.5),
    }


def _train(
    name: str, chosen: Any, paper: float | None, stores: dict[str, Store], seeds: Sequence[int], **training: Any
) -> dict[str, Any]:
    """Train one feature set with each seed, and score dev and test."""
    from bertfeat import fit_probe

    started = time.perf_counter()
    training |= {"level": "word", "dev": stores["dev"], **chosen}
    probes = [fit_probe(stores["train"], seed=seed, **training) for seed in seeds]
    scores = {
        split: [probe.score(store, bootstrap=False) for probe in probes]
        for split, store in stores.items()
        if split != "train"
    }
    metric = scores["dev"][0].metric
    return {
        "features": name,
        **chosen,
        "metric": metric,
        **{split: _summary([100 * one.values[metric] for one in found]) for split, found in scores.items()},
        "mixes": [probe.training.fit_report["mix"] for probe in probes if "mix" in probe.training.fit_report],
        "paper": paper,
        "seconds": time.perf_counter() - started,
        **dict(zip(("seconds_of_one", "n_bytes"), costs_of(probes[-1], stores.values()), strict=True)),
    }


def _finetune(
    splits: Mapping[str, Any], model: str, settings: Settings, seeds: Sequence[int], output: Path, *, context: bool
) -> dict[str, Any]:
    """Fine-tune the model with each seed on the sentences of the features, and score dev and test."""
    from bertfeat.pipelines._finetuning import finetune

    tuned = []
    for seed in seeds:
        how = replace(settings, seed=seed)
        tuned.append(finetune("tag", splits, "label", model, how, output, f"finetuned/{seed}/model", context=context))
    return {
        "features": "Fine-tuned",
        "metric": tuned[0].scores["dev"].metric,
        **{split: _summary([100 * one.scores[split].value for one in tuned]) for split in splits if split != "train"},
        "paper": FINE_TUNED,
        "trainings": [one.values for one in tuned],
        "seconds": sum(one.history.seconds for one in tuned),
        "seconds_of_one": tuned[0].history.seconds,
        "n_bytes": tuned[0].values["n_bytes"],
    }


def _kind(path: Path) -> str:
    return "conllu" if ".conllu" in path.suffixes else "conll"


def _marks_documents(path: Path) -> bool:
    """Return whether a file has borders of documents; a sentence before the first one is in group 0 of its file."""
    return any(not str(one.group).endswith(":0") for one in read_documents(path, format=_kind(path)))


def _summary(scores: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"scores": scores, "mean": statistics.fmean(scores), "deviation": deviation}


def _cell(summary: dict[str, Any]) -> str:
    spread = "" if summary["deviation"] is None else f" ± {summary['deviation']:.1f}"
    return f"{summary['mean']:.1f}{spread}"


def _table(rows: list[dict[str, Any]], *, costs: bool) -> str:
    lines = []
    for row in rows:
        cells: dict[str, object] = {"features": row["features"]}
        cells |= {split: _cell(row[split]) for split in ("dev", "test") if split in row}
        if costs:
            cells |= zip(("seconds", "MB"), cost_cells(row["seconds_of_one"], row["n_bytes"]), strict=True)
        lines.append({**cells, "paper (CoNLL-2003 dev)": "" if row["paper"] is None else f"{row['paper']:.1f}"})
    parts = [markdown_table([*lines[0]], [[*line.values()] for line in lines])]
    for row in rows:
        if "n_unknown_tokens" in row:
            n_unknown = f"{row['n_unknown_tokens']:,} of {row['n_tokens']:,}"
            parts.append(f"{row['features']}: zeros for {n_unknown} words, which it lacks.")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
