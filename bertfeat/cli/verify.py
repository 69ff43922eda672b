"""`bertfeat verify`: is every byte of a store what it was when it was written?"""

from __future__ import annotations

import json

import click


@click.command(name="verify")
@click.argument("store", metavar="STORE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(store: str, as_json: bool) -> None:
    """Check every digest, row count and schema of a store, and the manifest against receipts against parts.

    Exit code 1 and the name of each bad file where something is wrong; extract with the same settings redoes just
    the shards that are named.
    """
    from bertfeat.cli.progress import human_bytes
    from bertfeat.errors import CheckFailed
    from bertfeat.store.verification import verify

    report = verify(store)
    if as_json:
        problems = [{"shard": p.shard, "part": p.part, "reason": p.reason} for p in report.problems]
        checked = {"n_parts": report.n_parts, "n_rows": report.n_rows, "n_bytes": report.n_bytes}
        click.echo(json.dumps({"good": report.is_good, "problems": problems, **checked}))
    else:
        for problem in report.problems:
            click.echo(str(problem))
    if not report.is_good:
        raise CheckFailed(
            f"{store}: {len(report.problems)} problems; extract again with the same settings to mend them"
        )
    if not as_json:
        click.echo(
            f"{store}: good; {report.n_parts:,} parts, {report.n_rows:,} rows, {human_bytes(report.n_bytes)} checked"
        )
