"""`bertfeat probe sweep`: one head on each layer and each combination of layers."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.options import RUN, GroupedCommand, option, output_options
from bertfeat.cli.probe_options import check_store_and_head, fit_options, head_params

_HELP = """Fit and score a head on each layer of STORE and each combination of layers.

One extraction with --layers all serves the whole sweep. Written are table.csv, result.json, plot.png and plot.svg.
Without --dev, a share of the documents is held out.

\b
Examples:
  bertfeat probe sweep features -o layers --level word --label upos --dev dev_features
  bertfeat probe sweep features -o layers --label intent --features layer_00,layer_06,mean_last4
"""


@click.command(name="sweep", cls=GroupedCommand, help=_HELP, short_help="Score a head on each layer of a store.")
@click.argument("store", metavar="STORE")
@option(RUN, "-o", "--output", required=True, metavar="DIR", help="Folder of the table and the plots.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a sweep that is already there.")
@output_options
@option("Data", "--features", metavar="A,B", help="Features or layers; mix_last4 is a scalar mix.  [default: all]")
@option(
    "Data", "--hold-out", type=float, metavar="SHARE", default=0.2, show_default=True, help="Documents to score on."
)
@fit_options
def sweep(store: str, output: str, overwrite: bool, as_json: bool, quiet: bool, **settings: Any) -> None:
    """Fit and score a head on each layer of STORE and each combination of layers."""
    from bertfeat.probes.sweepresult import check_sweep_folder

    chosen = head_params(settings)
    check_sweep_folder(output, overwrite=overwrite)
    check_store_and_head(store, settings)
    from bertfeat.probes.sweeps import sweep_probes

    found = sweep_probes(store, **settings, progress=False if quiet or as_json else None, **chosen)
    found.write(output, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps({"output": output, **found.to_dict()}))
    elif not quiet:
        # Without seeds, the head is not random.
        once = settings["seeds"] > 1 and not found.seeds
        note = f"\nseeds     {settings['head']} gives the same result with every seed; fitted once" if once else ""
        click.echo(f"{found.table()}\n\n{output}: {found.best_line()}{note}")
