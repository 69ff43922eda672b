"""`bertfeat static`: the mean vector of each word type of a store, as a file of word vectors."""

from __future__ import annotations

import json

import click

from bertfeat.cli.options import RUN, GroupedCommand, option, output_options

_WHAT = "What"


@click.command(name="static", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@option(RUN, "-o", "--output", required=True, metavar="FILE", help="File to write: word2vec's text format.")
@option(_WHAT, "--level", metavar="LEVEL", help="word or token.  [default: the only one stored]")
@option(_WHAT, "--feature", metavar="NAME", help="Such as layer_11.  [default: the only one]")
@option(
    _WHAT, "--min-count", type=click.IntRange(min=1), default=1, show_default=True, help="Rarer types are left out."
)
@option(_WHAT, "--lower", is_flag=True, help="Count words that differ in upper case as one type.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a file that is already there.")
@output_options
def command(
    store: str,
    output: str,
    level: str | None,
    feature: str | None,
    min_count: int,
    lower: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the mean vector of each word type: static vectors that need no download (Bommasani et al. 2020).

    The most frequent types come first. Rows without a vector do not count; types with whitespace, which the format
    cannot hold, are left out and counted. FILE is a model for `bertfeat extract --model`.
    """
    from bertfeat.cli.progress import counted, human_bytes
    from bertfeat.exports.wordtypes import write_word_types
    from bertfeat.store.reader import open_store

    written = write_word_types(
        open_store(store),
        output,
        level=level,
        feature=feature,
        min_count=min_count,
        lower=lower,
        overwrite=overwrite,
        progress=False if quiet or as_json else None,
    )
    if as_json:
        click.echo(json.dumps({"output": str(written.path), **written.counts()}))
    elif not quiet:
        rare = f"; {counted(written.n_rare, 'type')} rarer than {min_count}" if written.n_rare else ""
        spaced = f"; {counted(written.n_left_out, 'type')} left out (whitespace)" if written.n_left_out else ""
        types = f"{counted(written.n_types, 'type')} of {counted(written.n_rows, 'row')}"
        size = f"{written.feature} of {written.dim} values, {human_bytes(written.n_bytes)}"
        click.echo(f"{written.path}: {types}, {size}{rare}{spaced}")
