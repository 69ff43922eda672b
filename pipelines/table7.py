"""Table 7 of the BERT paper on any labelled CoNLL corpus: the best layers for a tagger.

Devlin et al. 2019 (arXiv 1810.04805v2, section 5.4): frozen features of one extraction, the first sub-token of each
word, maximal document context, a two-layer BiLSTM of 768 units, no CRF, the mean of 5 seeds. Their corpus, CoNLL-2003,
may not be redistributed; the table also shows their figures, of BERT-base, cased, on its development set.

    python -m bertfeat.pipelines.table7 --corpus FOLDER --out table7  # with *train*, *dev*, *test* in FOLDER
    python -m bertfeat.pipelines.table7 --train a.conll --dev b.conll --test c.conll --out table7 --limit 1000 --seeds 2
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click

import bertfeat
from bertfeat.reports.tables import markdown_table

# feature set -> the paper's F1 on the development set of CoNLL-2003
PAPER = {
    "Embeddings": 91.0,
    "Second-to-last hidden": 95.6,
    "Last hidden": 94.9,
    "Weighted sum of last four": 95.9,
    "Concatenated last four": 96.1,
    "Weighted sum of all layers": 95.5,
}
# The words of file names, in order of precedence: testa is the dev set of CoNLL-2003 (eng.train, eng.testa, eng.testb).
SPLITS = {"dev": ("dev", "valid", "testa"), "train": ("train",), "test": ("test",)}
ENDINGS = (".conll", ".conllu", ".tsv", ".iob2", ".bio", ".txt", ".annotated", ".train", ".testa", ".testb")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--corpus", type=click.Path(exists=True, file_okay=False), help="Folder with train, dev and test files.")
@click.option("--train", type=click.Path(exists=True, dir_okay=False), help="Instead of --corpus: the train file.")
@click.option("--dev", type=click.Path(exists=True, dir_okay=False), help="The dev file.")
@click.option("--test", type=click.Path(exists=True, dir_okay=False), help="The test file, if there is one.")
@click.option("--label", default="label", show_default=True, help="Column with the tags (CoNLL: the last one).")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the features and the result.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N sentences of each file.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Trainings of each feature set."
)
@click.option("--head", type=click.Choice(["bilstm", "linear"]), default="bilstm", show_default=True)
@click.option("--hidden-size", type=click.IntRange(min=1), default=768, show_default=True, help="Units of the BiLSTM.")
@click.option("--max-epochs", type=click.IntRange(min=1), default=30, show_default=True)
@click.option(
    "--document-context",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Encode sentences among their neighbours; auto: where the files mark documents.",
)
def main(
    corpus: str | None,
    train: str | None,
    dev: str | None,
    test: str | None,
    label: str,
    model: str,
    out: str,
    limit: int | None,
    seeds: int,
    head: str,
    hidden_size: int,
    max_epochs: int,
    document_context: str,
) -> None:
    """Extract the features of a corpus once, train a tagger on each feature set of the paper's Table 7, and compare."""
    folder = Path(out)
    files = _find_files(corpus, train, dev, test)
    context = document_context == "on" or (document_context == "auto" and all(map(_marks_documents, files.values())))
    click.echo(f"document context: {'on' if context else 'off'}", err=True)
    stores = {
        name: _extract(path, folder, name, model=model, label=label, limit=limit, context=context)
        for name, path in files.items()
    }
    params: dict[str, Any] = {"max_epochs": max_epochs}
    if head == "bilstm":
        params["hidden_size"] = hidden_size
    rows = []
    for name, chosen in _feature_sets(stores["train"].metadata["n_layers"]).items():
        rows.append(
            _train(name, chosen, stores, label=_label(stores["train"], label), head=head, seeds=seeds, **params)
        )
        click.echo(_line(rows[-1]), err=True)
    result = {
        "pipeline": "table7",
        "model": stores["train"].metadata["model"],
        "weights_sha256": stores["train"].metadata["weights_sha256"],
        "files": {name: path.name for name, path in files.items()},
        "n_words": {name: store.n_rows("word") for name, store in stores.items()},
        "limit": limit,
        "document_context": context,
        "head": head,
        "params": params,
        "seeds": seeds,
        "rows": rows,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    table = _table(rows, tests="test" in stores)
    (folder / "table.md").write_text(table, encoding="utf-8")
    click.echo(table)


def _find_files(corpus: str | None, train: str | None, dev: str | None, test: str | None) -> dict[str, Path]:
    named = {"train": train, "dev": dev, "test": test}
    if corpus is not None:
        if any(named.values()):
            raise click.UsageError("--corpus names the folder of all files; drop --train, --dev and --test")
        names = sorted(path for path in Path(corpus).iterdir() if path.suffix in ENDINGS)
        splits = [_split_of(path.name) for path in names]
        for split in SPLITS:
            found = [path for path, its in zip(names, splits, strict=True) if its == split]
            if len(found) > 1:
                several = ", ".join(path.name for path in found)
                raise click.UsageError(f"{corpus}: {several} may be {split}; pass --train, --dev and --test instead")
            named[split] = str(found[0]) if found else None
    missing = [split for split in ("train", "dev") if named[split] is None]
    if missing:
        raise click.UsageError(f"no {' and no '.join(missing)} file; pass --corpus, or --train and --dev")
    return {split: Path(path) for split, path in named.items() if path is not None}


def _split_of(name: str) -> str | None:
    return next((split for split, words in SPLITS.items() if any(word in name.lower() for word in words)), None)


def _marks_documents(path: Path) -> bool:
    with path.open(encoding="utf-8") as lines:
        return any(line.startswith(("-DOCSTART-", "# newdoc")) for line in lines)


def _extract(
    path: Path, folder: Path, name: str, *, model: str, label: str, limit: int | None, context: bool
) -> bertfeat.Store:
    """Extract all layers of a file, one row per word; a second run finds the store complete."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "conllu" if path.suffix == ".conllu" else "conll"
    if limit is not None:
        path = _head(path, limit, folder / f"{name}.{limit}.{kind}")
    return bertfeat.extract(
        path,
        folder / "features" / name,
        format=kind,
        model=model,
        levels="word",
        layers="all",
        combine="none",
        label_column=None if label == "label" else label,
        document_context=context,
    )


def _head(path: Path, n_sentences: int, target: Path) -> Path:
    """Copy the first sentences of a CoNLL file; lines that only mark a document do not count."""
    n = 0
    inside = False
    kept = []
    with path.open(encoding="utf-8", newline="") as lines:
        for line in lines:
            if line.strip() and not line.startswith(("#", "-DOCSTART-")):
                inside = True
            elif inside and not line.strip():
                n, inside = n + 1, False
            kept.append(line)
            if n == n_sentences:
                break
    target.write_text("".join(kept), encoding="utf-8", newline="")
    return target


def _label(store: bertfeat.Store, label: str) -> str:
    # The reader names the chosen column `label`.
    return "label" if "label" in store.columns("word") else label


def _feature_sets(n_layers: int) -> dict[str, dict[str, str]]:
    """Return the features of each row of the table: a stored or derived feature, or a learned mix of layers."""
    lowest = max(1, n_layers - 3)
    chosen = (
        {"feature": "layer_00"},
        {"feature": f"layer_{n_layers - 1:02d}"},
        {"feature": f"layer_{n_layers:02d}"},
        {"mix": f"{lowest}..{n_layers}"},
        {"feature": "concat_last4"},
        {"mix": f"1..{n_layers}"},
    )
    return dict(zip(PAPER, chosen, strict=True))


def _train(
    name: str,
    chosen: dict[str, Any],
    stores: dict[str, bertfeat.Store],
    *,
    label: str,
    head: str,
    seeds: int,
    **params: Any,
) -> dict[str, Any]:
    """Train one feature set with each seed, and score dev and test."""
    started = time.perf_counter()
    scores: dict[str, list[float]] = {split: [] for split in stores if split != "train"}
    mixes = []
    metric = ""
    for seed in range(seeds):
        probe = bertfeat.fit_probe(
            stores["train"], label, level="word", head=head, dev=stores["dev"], seed=seed, **chosen, **params
        )
        for split, found in scores.items():
            score = probe.score(stores[split], bootstrap=False)
            metric = "accuracy" if score.scores.entities is None else "entity_f1"
            found.append(100 * score.scores.value(metric))
        if "mix" in probe.training["fit_report"]:
            mixes.append(probe.training["fit_report"]["mix"])
    return {
        "features": name,
        **chosen,
        "metric": metric,
        **{
            split: {"scores": found, "mean": statistics.fmean(found), "deviation": _deviation(found)}
            for split, found in scores.items()
        },
        "mixes": mixes,
        "paper": PAPER[name],
        "seconds": time.perf_counter() - started,
    }


def _deviation(values: list[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _cell(summary: dict[str, Any]) -> str:
    spread = "" if summary["deviation"] is None else f" ± {summary['deviation']:.1f}"
    return f"{summary['mean']:.1f}{spread}"


def _line(row: dict[str, Any]) -> str:
    return f"{row['features']}: {row['metric']} on dev {_cell(row['dev'])}, {row['seconds']:.0f} s"


def _table(rows: list[dict[str, Any]], *, tests: bool) -> str:
    heads = ["features", "dev", *(["test"] if tests else []), "paper (CoNLL-2003 dev)"]
    lines = [
        [row["features"], _cell(row["dev"]), *([_cell(row["test"])] if tests else []), f"{row['paper']:.1f}"]
        for row in rows
    ]
    n_zero = sum(round(row["dev"]["mean"], 1) == 0 for row in rows)
    remark = (
        f"\n{n_zero} of {len(rows)} rows have the score 0: nothing was learned. Train on more sentences or epochs.\n"
    )
    return f"{markdown_table(heads, lines)}\n{remark if n_zero else ''}"


if __name__ == "__main__":
    with bertfeat.report_failures():
        main(standalone_mode=False)
