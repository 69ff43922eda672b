"""`bertfeat probe`: classifiers on the features of a store."""

from __future__ import annotations

import click

from bertfeat.cli.groups import Group
from bertfeat.cli.probe_fit import fit
from bertfeat.cli.probe_sweep import sweep
from bertfeat.cli.probe_use import predict, score

_HELP = """Fit, score and apply classifiers on the features of a store.

A probe remembers which model, layers and pooling its features came from: it refuses others, and labels raw text by
extracting it with these settings.

\b
Examples:
  bertfeat probe fit features -o ner --level word --label label --head bilstm --dev dev_features
  bertfeat probe score ner test_features
  bertfeat probe predict ner notes.txt -o tagged.parquet
  bertfeat probe sweep features -o layers --level word --label label --dev dev_features
"""


@click.group(name="probe", cls=Group, help=_HELP)
def command() -> None:
    """Fit, score and apply classifiers on the features of a store."""


for _subcommand in (fit, score, predict, sweep):
    command.add_command(_subcommand)
