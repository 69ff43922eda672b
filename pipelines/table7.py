"""Table 7 of the BERT paper on any labelled CoNLL corpus: the best layers for a tagger.

Devlin et al. 2019 (arXiv 1810.04805v2, section 5.4): frozen features of one extraction, the first sub-token of each
word, maximal document context, a two-layer BiLSTM of 768 units, no CRF, the mean of 5 seeds. Their corpus, CoNLL-2003,
may not be redistributed; the table also shows their figures, of BERT-base, cased, on its development set.

    python -m bertfeat.pipelines.table7 --train eng.train --dev eng.testa --test eng.testb --out table7
    python -m bertfeat.pipelines.table7 --train a.conllu --dev b.conllu --label upos --out pos --limit 1000 --seeds 2

With --with-finetuning, one more row is the model trained itself, and the table has the seconds and bytes of each row.
With --static FILE, one more row has the vectors of GloVe, word2vec or fastText: words without context.
"""

from __future__ import annotations

import io
import statistics
import time
from codecs import BOM_UTF8
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from bertfeat import Store, extract
from bertfeat.cli.failures import report_failures
from bertfeat.errors import InputError
from bertfeat.pipelines._costs import cost_cells, extraction_seconds, feature_bytes
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._options import recipe, refuse_given
from bertfeat.pipelines._outputs import write
from bertfeat.pipelines._static import static_settings
from bertfeat.pipelines._training import Settings, check_finetuning, discard, finetuning_options
from bertfeat.reports.tables import markdown_table

FILE = click.Path(exists=True, dir_okay=False)
# feature set -> the paper's F1 on the development set of CoNLL-2003
PAPER = {
    "Embeddings": 91.0,
    "Second-to-last hidden": 95.6,
    "Last hidden": 94.9,
    "Weighted sum of last four": 95.9,
    "Concatenated last four": 96.1,
    "Weighted sum of all layers": 95.5,
}
PAPER_TUNED = 96.4


@recipe("sklearn")
@click.option("--train", type=FILE, required=True, help="Sentences to learn from.")
@click.option("--dev", type=FILE, required=True, help="The file to choose on.")
@click.option("--test", type=FILE, help="The test file, if there is one.")
@click.option("--label", default="label", show_default=True, help="Column with the tags (CoNLL: the last one).")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the features and the result.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N sentences of each file.")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Trainings of each set.")
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
@click.option("--static", type=click.Path(exists=True), help="A file of word vectors: one more row, without context.")
@finetuning_options
def main(out: str, model: str, label: str, limit: int | None, seeds: int, static: str | None, **options: Any) -> None:
    """Extract the features of a corpus once, train a tagger on each feature set of the paper's Table 7, and compare."""
    head, context, tunes = (options[name] for name in ("head", "document_context", "with_finetuning"))
    params = {"max_epochs": options["max_epochs"]}
    if head == "bilstm":
        params["hidden_size"] = options["hidden_size"]
    else:
        refuse_given(("hidden_size",), "is for --head bilstm; leave it out")
    folder = Path(out)
    files = {name: Path(options[name]) for name in ("train", "dev", "test") if options[name] is not None}
    of_static = static_settings(model, static)
    check_finetuning(model, "tag", asked=tunes)
    context = context == "on" or (context == "auto" and all(map(_marks_documents, files.values())))
    click.echo(f"document context: {'on' if context else 'off'}", err=True)
    inputs = {name: _first_sentences(path, limit, folder, name) for name, path in files.items()}
    columns: dict[str, Any] = {"label_column": None if label == "label" else label, "document_context": context}

    def extracted(ending: str, **settings: Any) -> dict[str, Store]:
        settings = {"levels": "word", "combine": "none", **columns, **settings}
        return {
            name: extract(path, folder / "features" / f"{name}{ending}", format=_kind(path), **settings)
            for name, path in inputs.items()
        }

    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        line = f"{row['features']}: {row['metric']} on dev {_cell(row['dev'])}, {row['seconds']:.0f} s"
        click.echo(line, err=True)

    stores = extracted("", model=model, layers="all")
    # The reader names the chosen column `label`.
    training = {"label": "label" if "label" in stores["train"].columns("word") else label, "head": head, **params}
    for name, chosen in _feature_sets(stores["train"].metadata["n_layers"]).items():
        add(_train(name, chosen, stores, seeds, **training))
    if static is not None:
        ones = extracted("-static", **{**of_static, "document_context": False})
        row = _train(f"Static: {Path(static).name}", {"feature": "layer_00"}, ones, seeds, **training)
        counts = [store.manifest.totals.counts for store in ones.values()]
        n_words = {name: sum(count[name] for count in counts) for name in ("n_unknown_tokens", "n_tokens")}
        add({**row, **n_words, "weights_sha256": ones["train"].metadata["weights_sha256"]})
    if tunes:
        how = {"learning_rate": options["finetuning_rate"], "epochs": options["finetuning_epochs"]}
        settings = Settings(batch_size=16, **how)
        add(_finetune(inputs, columns, model, settings, folder, seeds))
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
    write(folder / "result.json", result)
    for seed in range(seeds):
        discard(folder / "finetuned" / str(seed))
    table = _table(rows, costs=tunes)
    write(folder / "table.md", table)
    click.echo(table)


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


def _train(name: str, chosen: dict[str, Any], stores: dict[str, Store], seeds: int, **training: Any) -> dict[str, Any]:
    """Train one feature set with each seed, and score dev and test."""
    from bertfeat import fit_probe

    started = time.perf_counter()
    training |= {"level": "word", "dev": stores["dev"], **chosen}
    probes = [fit_probe(stores["train"], seed=seed, **training) for seed in range(seeds)]
    scores = {
        split: [probe.score(store, bootstrap=False).scores for probe in probes]
        for split, store in stores.items()
        if split != "train"
    }
    metric = "accuracy" if scores["dev"][0].entities is None else "entity_f1"
    return {
        "features": name,
        **chosen,
        "metric": metric,
        **{split: _summary([100 * one.value(metric) for one in found]) for split, found in scores.items()},
        "mixes": [probe.training.fit_report["mix"] for probe in probes if "mix" in probe.training.fit_report],
        "paper": PAPER.get(name),
        "seconds": time.perf_counter() - started,
        "seconds_of_one": extraction_seconds(stores.values()) + probes[-1].training.seconds,
        "n_bytes": feature_bytes(stores.values(), probes[-1].spec),
    }


def _finetune(
    inputs: dict[str, Path], columns: dict[str, Any], model: str, settings: Settings, folder: Path, seeds: int
) -> dict[str, Any]:
    """Fine-tune the model with each seed on the sentences of the features, and score dev and test."""
    from bertfeat.pipelines._finetuning import finetune

    splits = {name: read_documents(path, format=_kind(path), **columns) for name, path in inputs.items()}
    context = columns["document_context"]
    tuned = [
        finetune("tag", splits, "label", model, replace(settings, seed=seed), path, context=context)
        for seed, path in ((seed, folder / "finetuned" / str(seed)) for seed in range(seeds))
    ]
    return {
        "features": "Fine-tuned",
        "metric": tuned[0].scores["dev"].metric,
        **{split: _summary([100 * one.scores[split].value for one in tuned]) for split in splits if split != "train"},
        "paper": PAPER_TUNED,
        "trainings": [one.to_dict() for one in tuned],
        "seconds": sum(one.history.seconds for one in tuned),
        "seconds_of_one": tuned[0].history.seconds,
        "n_bytes": tuned[0].n_bytes,
    }


def _kind(path: Path) -> str:
    return "conllu" if ".conllu" in path.suffixes else "conll"


def _marks_documents(path: Path) -> bool:
    return any(line.startswith((b"-DOCSTART-", b"# newdoc")) for line in _lines(path))


def _first_sentences(path: Path, n_sentences: int | None, folder: Path, name: str) -> Path:
    """Copy the first sentences of a CoNLL file, if there is a limit; lines that only mark a document do not count."""
    if n_sentences is None:
        return path
    n, inside, kept = 0, False, list[bytes]()
    for line in _lines(path):
        if n == n_sentences:
            break
        if line.strip() and not line.startswith((b"#", b"-DOCSTART-")):
            inside = True
        elif inside and not line.strip():
            n, inside = n + 1, False
        kept.append(line)
    target = folder / f"{name}.{n_sentences}.{_kind(path)}"
    try:
        write(target, b"".join(kept).decode())
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 ({error})", path=str(path)) from error
    return target


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file with their ends; a .gz or .zst is decompressed."""
    try:
        with pa.input_stream(str(path)) as stream:
            return [*io.BytesIO(stream.read().removeprefix(BOM_UTF8))]
    except OSError as error:
        raise InputError(f"cannot be read ({error})", path=str(path)) from error


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
    table = markdown_table([*lines[0]], [[*line.values()] for line in lines]) + "\n"
    for row in rows:
        if "n_unknown_tokens" in row:
            n_unknown = f"{row['n_unknown_tokens']:,} of {row['n_tokens']:,}"
            table += f"\n{row['features']}: zeros for {n_unknown} words, which it lacks.\n"
    n_zero = sum(round(row["dev"]["mean"], 1) == 0 for row in rows)
    if n_zero:
        found = f"{n_zero} of {len(rows)} rows have the score 0: nothing was learned."
        table += f"\n{found} Train on more sentences or epochs.\n"
    return table


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
