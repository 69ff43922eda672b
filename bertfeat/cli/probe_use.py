"""`bertfeat probe score` and `bertfeat probe predict`: a saved probe on other data."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.failures import warned
from bertfeat.cli.options import RUN, GroupedCommand, corpus_options, option, output_options, refuse_given

_ROWS = "Rows and columns"
_PREDICT_HELP = """Label a corpus, or a store, and write Parquet or CSV.

INPUT is a store's folder, or files as `bertfeat extract` reads them (- for standard input). Text is extracted with the
probe's own settings: model, layers, pooling, window. The output has doc_id (at word level word_index and word, at token
level token_index and token), the columns of --columns, prediction, and probability if the head has any; rows without a
vector have neither. --errors writes only the rows that differ from their gold label.

\b
Examples:
  bertfeat probe predict intents new.csv -o labelled.parquet --text-column body --id-column key
  bertfeat probe predict ner features -o tagged.parquet
  bertfeat probe predict intents test.csv -o wrong.csv --columns text --errors
"""
# The option that --columns stands for.
_WITHOUT = {"keep_columns"}
# Options that a store takes too.
_OF_PREDICTIONS = ("columns", "errors", "label", "labels")


@click.command(name="score", cls=GroupedCommand, short_help="Score a probe on a labelled store.")
@click.argument("probe", metavar="PROBE")
@click.argument("store", metavar="STORE")
@option("Data", "--label", metavar="NAME", help="Column with the labels.  [default: that of the fit]")
@option("Data", "--labels", metavar="FILE", help="Labels in a .csv, .tsv, .jsonl or .parquet, joined by doc_id.")
@option(RUN, "--no-intervals", is_flag=True, help="No bootstrap intervals.")
@option(RUN, "--json", "as_json", is_flag=True, help="Print the scores as one JSON object.")
def score(probe: str, store: str, label: str | None, labels: str | None, no_intervals: bool, as_json: bool) -> None:
    """Score PROBE on the labels of STORE.

    Accuracy, macro F1, each class, entities where labels are tags such as B-PER, and bootstrap intervals.
    Labels that the probe has not seen, and rows without a vector, count as errors.
    """
    _check_probe_and_store(probe, store)
    from bertfeat.probes.fitted import load_probe

    found = load_probe(probe).score(store, label=label, labels=labels, bootstrap=not no_intervals)
    if as_json:
        click.echo(json.dumps({"probe": probe, "store": store, **found.to_dict()}))
    else:
        click.echo("\n".join(found.lines()))


@click.command(
    name="predict", cls=GroupedCommand, help=_PREDICT_HELP, short_help="Label a corpus or a store with a probe."
)
@click.argument("probe", metavar="PROBE")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@option(RUN, "-o", "--output", required=True, metavar="FILE", help="File to write: .parquet or .csv.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a file that is already there.")
@output_options
@option(_ROWS, "--columns", metavar="A,B", help="Further columns, of the rows, documents or input; gold labels.")
@option(_ROWS, "--errors", is_flag=True, help="Only rows that differ from their gold label.")
@option(_ROWS, "--label", metavar="NAME", help="Column with the gold labels.  [default: that of the fit]")
@option(_ROWS, "--labels", metavar="FILE", help="Gold labels in a .csv, .tsv, .jsonl or .parquet, joined by doc_id.")
@corpus_options
@option("Computing", "--device", metavar="DEVICE", default="auto", show_default=True, help="Where text is encoded.")
def predict(
    probe: str, inputs: tuple[str, ...], output: str, overwrite: bool, as_json: bool, quiet: bool, **settings: Any
) -> None:
    """Label a corpus, or a store, and write Parquet or CSV."""
    from bertfeat.storage import as_path

    asked = {name: settings.pop(name) for name in _OF_PREDICTIONS}
    asked["columns"] = asked["columns"] or ()
    is_store = len(inputs) == 1 and inputs[0] != "-" and as_path(inputs[0]).is_dir()
    if is_store:
        refuse_given(settings, "is for reading text; INPUT is a store")
    _check_probe_and_store(probe, inputs[0] if is_store else None)
    from bertfeat.corpus import Paths
    from bertfeat.probes.fitted import load_probe

    fitted = load_probe(probe)
    given = {} if is_store else {name: value for name, value in settings.items() if value is not None}
    asked |= {"overwrite": overwrite, "progress": False if quiet or as_json else None}
    written = fitted.predict(inputs[0] if is_store else Paths(inputs), output, **asked, **given)
    if as_json:
        counts = {str(name): count for name, count in sorted(written.counts.items())}
        rows = {"n_rows": written.n_rows, "n_without_prediction": written.n_without, "counts": counts}
        rows |= {"n_bad_rows": written.n_set_aside, "n_gold": written.n_gold}
        facts = {"output": output, "probe": probe, "level": str(fitted.level), **rows, "warnings": warned()}
        click.echo(json.dumps(facts))
    elif not quiet:
        errors = "" if written.n_gold is None else f" wrong of {written.n_gold:,} with a label"
        without = f", {written.n_without:,} of them without a prediction" if written.n_without else ""
        aside = f"; {written.n_set_aside:,} rows of the input could not be read" if written.n_set_aside else ""
        click.echo(f"{output}: {written.n_rows:,} {fitted.level} rows{errors}{without}{aside}")


def _check_probe_and_store(probe: str, store: str | None) -> None:
    """Report a missing or damaged probe or store before scikit-learn loads, which takes a second."""
    from bertfeat.probes.probedescription import describe_probe
    from bertfeat.store.storedescription import StoreDescription

    describe_probe(probe)
    if store is not None:
        StoreDescription.at(store)


predict.params = [param for param in predict.params if param.name not in _WITHOUT]
