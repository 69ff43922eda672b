"""`bertfeat probe fit`: from a labelled store to a saved probe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from bertfeat.cli.options import RUN, GroupedCommand, option, output_options
from bertfeat.cli.probe_options import check_store_and_head, fit_options, head_params, warn

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe
    from bertfeat.probes.probedescription import UsedRows

_HELP = """Fit a probe to the features of STORE and save it.

Vectors that do not fit into memory are streamed from the store. A list of values for C, alpha or weight_decay is
chosen from on --dev; so is the best of several seeds.

\b
Examples:
  bertfeat probe fit features -o intents --label intent
  bertfeat probe fit features -o intents --label intent --param C=0.01,0.1,1 --dev dev_features
  bertfeat probe fit features -o ner --level word --feature concat_last4 --head bilstm --dev dev_features --seeds 5
  bertfeat probe fit features -o ner --level word --mix 9..12 --head linear --dev dev_features
"""


@click.command(name="fit", cls=GroupedCommand, help=_HELP, short_help="Fit a probe to a store and save it.")
@click.argument("store", metavar="STORE")
@option(RUN, "-o", "--output", required=True, metavar="DIR", help="Folder of the probe.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a probe that is already there.")
@output_options
@option("Data", "--feature", metavar="NAME", help="Feature.  [default: the only one, or concat_last4]")
@option("Data", "--mix", metavar="LAYERS", help="Layers that a neural head weighs in a scalar mix: 9..12.")
@fit_options
def fit(store: str, output: str, overwrite: bool, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Fit a probe to the features of STORE and save it."""
    from bertfeat.probes.probedescription import check_probe_folder

    chosen = head_params(settings)
    check_probe_folder(output, overwrite=overwrite)
    check_store_and_head(store, settings)
    from bertfeat.probes.fitting import fit_probe

    fitted = fit_probe(store, **settings, progress=False if quiet or as_json else None, **chosen)
    fitted.save(output, overwrite=overwrite)
    for text in fitted.training.fit_report.get("warnings", []):
        warn(text)
    if as_json:
        click.echo(json.dumps({"probe": output, **fitted.summary()}))
    elif not quiet:
        click.echo("\n".join(_lines(output, fitted)))


def _lines(output: str, fitted: FittedProbe) -> list[str]:
    from bertfeat.cli.probe_summary import scores_text
    from bertfeat.display import printable

    notes, head = fitted.training, fitted.probe.head
    where = f"{fitted.spec.feature} at level {fitted.level}"
    lines = [
        f"{output}: {head} on {where}, {notes.n_rows:,} rows of {notes.n_documents:,} documents, "
        f"{notes.n_classes} classes" + (", streamed" if notes.streamed else "")
    ]
    lines += _left_out(notes, "train")
    if notes.n_seeds_asked > 1 and not notes.seeds:
        lines.append(f"seeds     {head} gives the same result with every seed; fitted once")
    if notes.dev is not None:
        lines += [f"dev       {scores_text(notes)}", *_left_out(notes.dev, "dev")]
        if notes.dev.unseen_labels:
            counts = ", ".join(f"{printable(name)} ({n:,} rows)" for name, n in notes.dev.unseen_labels.items())
            lines.append(f"dev       labels that train has not seen, counted as errors: {counts}")
    lines += _kept(notes.fit_report, fitted.probe.penalty_name)
    return lines


def _left_out(rows: UsedRows, name: str) -> list[str]:
    from bertfeat.cli.probe_summary import left_out

    return [f"{name:<9} left out: {missing}"] if (missing := left_out(rows)) else []


def _kept(report: Mapping[str, Any], penalty: str | None) -> list[str]:
    """Return the penalty chosen on dev and the learned weights of layers."""
    lines = []
    if penalty and len(report.get("tried", [])) > 1:
        lines.append(f"chosen    {penalty} {report[penalty]:g} of {len(report['tried'])} values, on dev")
    if "mix" in report:
        weights = ", ".join(f"{weight:.3f}" for weight in report["mix"]["weights"])
        lines.append(f"mix       weights {weights}, lowest layer first; gamma {report['mix']['gamma']:.3f}")
    return lines
