"""`bertfeat audit`: what is wrong with the labels, the splits and the texts of a store."""

from __future__ import annotations

from typing import Any

import click

from bertfeat.cli import options
from bertfeat.errors import require


@click.command(name="audit", cls=options.GroupedCommand)
@click.argument("train", metavar="TRAIN")
@click.argument("test", metavar="[TEST]", required=False)
@options.writes("FOLDER", "Folder of the page and the tables.")
@options.value("Data", "--level", "LEVEL", "word, span or sentence.  [default: the only one stored]")
@options.value("Data", "--feature", "NAME", "Feature.  [default: the only one, or concat_last4]")
@options.value("Data", "--label", "NAME", "Column with the labels; without it, texts alone are looked at.")
@options.value("Data", "--labels", "FILE", "Labels from a table, by doc_id and, for words, word_index.")
@options.value("Data", "--test-labels", "FILE", "The same for TEST.")
@options.count("Run", "--seed", 0, "Seed of folds and samples.")
def audit(train: str, test: str | None, output: str, overwrite: bool, **settings: Any) -> options.Printed:
    """Look for what is wrong with the labels, the splits and the texts of stores, without running the model.

    Labels that may be wrong, with neighbors that disagree; documents of TEST that are in TRAIN, and duplicates;
    documents unlike all others; classes that are taken for each other or are too small; how far TEST is from TRAIN.
    TRAIN and TEST are stores of one model at sentence, word or span level. FOLDER gets audit.html and a Parquet file of
    each finding.

    \b
    Examples:
      bertfeat audit train_features test_features --label intent -o audit
      bertfeat audit reviews tweets -o domains
    """  # noqa: D301
    require("sklearn")
    from bertfeat.audits.build import audit as find
    from bertfeat.audits.result import AUDIT_FOLDER

    AUDIT_FOLDER.check(output, overwrite=overwrite)
    found = find(train, test, progress=options.watched(), **settings)
    found.write(output, overwrite=overwrite)
    values = {"output": output, **found.to_dict()}
    return options.Printed(values, "\n".join([*found.lines(), f"page: {output}/audit.html"]))
