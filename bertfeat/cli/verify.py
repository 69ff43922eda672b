"""`bertfeat verify` and `compact`: the files of a store."""

from __future__ import annotations

from typing import Any

import click

from bertfeat.cli import options


@click.command(name="verify", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@options.switch("Run", "--deep", "Also encode some documents of the inputs again and compare.")
@options.count("Run", "--documents", 16, "How many, with --deep.", least=1)
@options.option(
    "Run", "--input", "inputs", multiple=True, metavar="FILE", help="Where the inputs are now, with --deep."
)
@options.prints
def verify(store: str, deep: bool, documents: int, inputs: tuple[str, ...]) -> options.Printed:
    """Check the digest of every file of a store, and that its manifest, plans and receipts agree.

    If something is wrong, the exit code is 1 and each bad file is named. The bad shards are marked in the store, and
    the same extract command does only these again. Nothing else is written; the store may be read-only.
    """
    if not deep:
        options.refuse_given(("documents", "inputs"), "goes with --deep; add it")
    from bertfeat.display import counted, facts
    from bertfeat.errors import BertfeatError, CheckFailed
    from bertfeat.store import verification
    from bertfeat.store.storedescription import StoreDescription

    if deep:
        StoreDescription.at(store).require_model("--deep", "leave it out to check the digests")
    report = verification.verify(store, progress=options.watched())
    counts: dict[str, Any] = {"n_parts": report.n_parts, "n_rows": report.n_rows, "n_bytes": report.n_bytes}
    remedy = "encoded again they differ: other versions, another machine, or an edited store"
    if not report.is_good:
        try:
            shards = verification.mark_for_redoing(store, report)
            what = counted(len(shards), "shard") if shards else "what is missing or wrong"
            remedy = f"run the command that made it, or append the same inputs, again to redo {what}"
        except BertfeatError as error:
            remedy = f"not marked for redoing: {error}"
    elif deep:
        from bertfeat.corpus import Paths
        from bertfeat.extraction.deepcheck import recheck

        report = recheck(store, Paths(inputs) or None, n_documents=documents)
        counts["n_rows_encoded_again"] = report.n_rows
    problems = [{"shard": p.shard, "part": p.part, "reason": p.reason} for p in report.problems]
    values = {"good": report.is_good, "problems": problems, "n_rows_encoded_again": None, **counts}
    if report.is_good:
        return options.Printed(values, f"{store}: good\n{facts(counts)}")
    failure = CheckFailed(f"{store}: {counted(len(problems), 'problem')}; {remedy}")
    return options.Printed(values, "\n".join(map(str, report.problems)), failure)


@click.command(name="compact", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@options.value("Run", "--shard-bytes", "SIZE", "Size of a shard's parts; by default that of the extraction.")
@options.prints
def compact(store: str, shard_bytes: str | None) -> options.Printed:
    """Join the small parts of appends: the same rows and vectors, without an encoder.

    Each append leaves at least one part for each level, however small. Readers see the old parts until the new ones are
    whole; then the old ones are removed, and earlier versions with them. Run the same command again to resume.
    """
    from bertfeat.cli.summary import run_text, store_summary
    from bertfeat.display import counted
    from bertfeat.store import compaction
    from bertfeat.store.reader import open_store

    before = open_store(store)
    made = compaction.compact(before, shard_bytes=shard_bytes, progress=options.watched())
    result = " became ".join(counted(len(one.manifest.shards), "shard") for one in (before, made))
    return options.Printed(summary := store_summary(made), run_text(summary, result))
