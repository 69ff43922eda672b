"""`bertfeat verify`: check that every byte of a store is as it was written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from bertfeat.cli.options import refuse_given

if TYPE_CHECKING:
    from bertfeat.store.verification import VerifyReport


@click.command(name="verify")
@click.argument("store", metavar="STORE")
@click.option("--deep", is_flag=True, help="Also encode some documents of the inputs again and compare.")
@click.option("--documents", type=click.IntRange(min=1), default=16, show_default=True, help="How many, with --deep.")
@click.option("--input", "inputs", multiple=True, metavar="FILE", help="Where the inputs are now, with --deep.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only what is wrong.")
def command(store: str, deep: bool, documents: int, inputs: tuple[str, ...], as_json: bool, quiet: bool) -> None:
    """Check the digest of every file of a store, and that its manifest, plans and receipts agree.

    If something is wrong, the exit code is 1 and each bad file is named. The bad shards are marked in the store, and
    the same extract command does only these again. Nothing else is written; the store may be read-only.
    """
    if not deep:
        refuse_given(("documents", "inputs"), "goes with --deep; add it")
    from bertfeat.cli.progress import counted, human_bytes
    from bertfeat.errors import CheckFailed
    from bertfeat.store.storedescription import StoreDescription
    from bertfeat.store.verification import verify

    if deep:
        StoreDescription.at(store).require_model("--deep", "leave it out to check the digests")
    checked = verify(store, progress=False if quiet or as_json else None)
    report, again = checked, None
    remedy = "" if report.is_good else _remedy(store, report)
    if report.is_good and deep:
        from bertfeat.corpus import Paths
        from bertfeat.extraction.deepcheck import recheck

        report = again = recheck(store, Paths(inputs) or None, n_documents=documents)
        remedy = "encoded again they differ: other versions, another machine, or an edited store"
    if as_json:
        problems = [{"shard": p.shard, "part": p.part, "reason": p.reason} for p in report.problems]
        counts = {"n_parts": checked.n_parts, "n_rows": checked.n_rows, "n_bytes": checked.n_bytes}
        n_again = again.n_rows if again else None
        click.echo(
            json.dumps({"good": report.is_good, "problems": problems, **counts, "n_rows_encoded_again": n_again})
        )
    else:
        for problem in report.problems:
            click.echo(str(problem))
    if not report.is_good:
        raise CheckFailed(f"{store}: {counted(len(report.problems), 'problem')}; {remedy}")
    if not as_json and not quiet:
        size = f"{counted(checked.n_parts, 'part')}, {checked.n_rows:,} rows, {human_bytes(checked.n_bytes)} checked"
        same = f"; {again.n_rows:,} of these rows encoded again, with the same vectors" if again else ""
        click.echo(f"{store}: good; {size}{same}")


def _remedy(store: str, report: VerifyReport) -> str:
    """Mark damaged shards; return the remedy."""
    from bertfeat.cli.appends import inputs_of_shards
    from bertfeat.cli.progress import counted
    from bertfeat.errors import BertfeatError
    from bertfeat.store.verification import mark_for_redoing

    try:
        shards = mark_for_redoing(store, report)
    except BertfeatError as error:
        return f"not marked for redoing: {error}"
    what = counted(len(shards), "shard") if shards else "what is missing or wrong"
    if inputs := inputs_of_shards(store, shards):
        return f"append {inputs} again to redo {what}"
    return f"run the same {_command_of(store)} command again to redo {what}"


def _command_of(store: str) -> str:
    """Return the command that made a store."""
    from bertfeat.store.folder import folder_at
    from bertfeat.store.manifest import IMPORTED, newest_readable

    manifest = newest_readable(folder_at(store))
    return "import" if manifest is not None and IMPORTED in manifest.metadata else "extract"
