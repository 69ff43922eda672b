"""Result of an audit: a frame for each finding, lines that say the most important, a page and Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from bertfeat.audits.duplicates import Duplicates
from bertfeat.audits.shift import Shift
from bertfeat.choices import Level
from bertfeat.display import counted, first_columns, html_table, printable
from bertfeat.durable.publication import OutputFolder
from bertfeat.durable.records import seal
from bertfeat.plots.pages import render_page

_TABLES = ("label_errors", "duplicates", "outliers", "classes", "confusions", "shift_documents", "shift_words")
AUDIT_FOLDER = OutputFolder("an audit", ("audit.html", "audit.json", *(f"{name}.parquet" for name in _TABLES)))
# Rows of a table of the page, characters of a text there, and those of a text in a terminal.
_PAGE_ROWS, _PAGE_TEXT, _LINE_TEXT = 100, 300, 60
# A class that has gained this much recall from twice as many rows has too few.
_GAIN = 0.05


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Audit:
    """The findings of an audit; made by `audit`. docs/audit.md says what each means.

    Attributes:
        label_errors: Rows whose label may be wrong, the most probable first: `suggested`, both probabilities, and
            `neighbors` that have another label. None without labels, as for the next two.
        classes: Of each class its rows, its recall, and its recall if half of the rows, or all, were learned from.
        confusions: Pairs of classes that are taken for each other, with examples.
        duplicates: Groups of documents that are equal or nearly so; `in_train` says how a document of test equals one
            of train.
        outliers: Documents unlike all others, of an odd language, or not read whole.
        shift: How far test is from train; None with one store, or few documents.
        n_not_judged: Labelled rows whose class the probe could not learn from other documents.
    """

    stores: tuple[str, ...]
    model: str
    level: Level
    feature: str
    label: str | None
    seed: int
    bertfeat: str
    n_documents: tuple[int, ...]
    n_labelled: tuple[int, ...]
    duplicates: Duplicates
    outliers: pl.DataFrame
    shift: Shift | None
    label_errors: pl.DataFrame | None = None
    classes: pl.DataFrame | None = None
    confusions: pl.DataFrame | None = None
    n_not_judged: int = 0

    def __repr__(self) -> str:
        return f"Audit({', '.join(self.stores)}, level {self.level})"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html_table(repr(self), ["finding"], [[line] for line in self.lines()])

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of all findings as JSON values; the tables have the rows."""
        names = ("model", "level", "feature", "label", "seed", "bertfeat", "n_not_judged")
        found: dict[str, Any] = {"stores": list(self.stores), **{name: getattr(self, name) for name in names}}
        found |= {"n_documents": list(self.n_documents), "n_labelled": list(self.n_labelled)}
        table = self.duplicates.table
        if self.label_errors is not None and self.confusions is not None:
            found["n_label_errors"] = self.label_errors.height
            found["n_classes_to_grow"] = self._to_grow().height
        found["leaks"] = dict(table.drop_nulls("in_train").group_by("in_train").len().sort("in_train").iter_rows())
        found["n_duplicate_groups"] = table["group"].n_unique()
        found["n_in_groups"] = table.height
        found["n_groups_with_different_labels"] = table.filter("labels_differ")["group"].n_unique()
        found |= {"near_from": self.duplicates.threshold, "false_alarms": self.duplicates.false_alarms}
        found["outliers"] = dict(self.outliers.group_by("reason").len().sort("reason").iter_rows())
        if self.shift is not None:
            shift = self.shift
            found["shift"] = {"accuracy": shift.accuracy, "low": shift.low, "high": shift.high}
            found["shift"] |= {"n_documents": shift.n_documents, "unknown": shift.unknown}
        return found

    def lines(self) -> list[str]:
        """Return the findings as lines to read, each with its worst example."""
        return [line for _, line in self._said()]

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the frames by the names of their files."""
        found = {"label_errors": self.label_errors, "duplicates": self.duplicates.table, "outliers": self.outliers}
        found |= {"classes": self.classes, "confusions": self.confusions}
        if self.shift is not None:
            found |= {"shift_documents": self.shift.documents, "shift_words": self.shift.words}
        return {name: table for name, table in found.items() if table is not None}

    def write(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write audit.html, audit.json and a Parquet file for each table; the folder appears when all are there.

        Raises:
            UserError: The folder holds something else.
            RunError: The system refused a write.
        """
        out = AUDIT_FOLDER.check(folder, overwrite=overwrite)
        page = self._page()
        with AUDIT_FOLDER.publish(out, overwrite=overwrite) as new:
            for name, table in self.tables().items():
                table.write_parquet(new / f"{name}.parquet")
            (new / "audit.html").write_text(page, encoding="utf-8")
            (new / "audit.json").write_bytes(seal(self.to_dict()))
        return out

    def _to_grow(self) -> pl.DataFrame:
        """Return the classes that learn more from more rows."""
        assert self.classes is not None
        gain = pl.col("recall_from_all") - pl.col("recall_from_half")
        return self.classes.filter(gain > _GAIN).sort(gain, descending=True)

    def _said(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each table that has something to say, and the line that says it."""
        numbers, table = self.to_dict(), self.duplicates.table
        if self.label_errors is not None and self.confusions is not None:
            n_rows = sum(self.n_labelled)
            text = f"{numbers['n_label_errors']:,} of {n_rows:,} labels to look at"
            worst = next(self.label_errors.iter_rows(named=True), None)
            if worst is not None:
                text += f"; first {worst['label']}, rather {worst['suggested']}: {_cut(worst['text'], _LINE_TEXT)}"
            yield "label_errors", text
            pair = next(self.confusions.iter_rows(named=True), None)
            if pair is not None:
                which = f"{pair['label']} and {pair['other']} ({pair['n_confused']:,} of {pair['n_rows']:,} rows)"
                yield "confusions", f"classes that are most often taken for each other: {which}"
            if grow := self._to_grow()["label"].to_list():
                yield "classes", f"classes that learn more from more rows: {len(grow)}, {', '.join(grow[:5])}"
        if len(self.stores) == 2:
            leaks = ", ".join(f"{count} {kind}" for kind, count in numbers["leaks"].items()) or "none"
            yield "duplicates", f"documents of test that are in train: {leaks}"
        groups = counted(numbers["n_duplicate_groups"], "group")
        text = f"{groups} of duplicates with {counted(table.height, 'document')}"
        if n_conflicts := numbers["n_groups_with_different_labels"]:
            text += f"; in {n_conflicts} of them labels differ"
        yield "duplicates", text
        reasons = ", ".join(f"{count} {reason}" for reason, count in numbers["outliers"].items()) or "none"
        yield "outliers", f"outliers: {reasons}"
        if self.shift is not None:
            span = f"{self.shift.accuracy:.3f} (95 % interval {self.shift.low:.3f} to {self.shift.high:.3f})"
            yield "shift_documents", f"a probe tells test from train with accuracy {span}; 0.5 is chance"

    def _page(self) -> str:
        """Return the findings as an HTML file that loads nothing, with texts escaped."""
        said: dict[str, list[str]] = {}
        for name, line in self._said():
            said.setdefault(name, []).append(line)
        tables = {name: (table.height, _html(table)) for name, table in self.tables().items()}
        return render_page(Path(__file__).with_name("audit.html"), {**self.to_dict(), "said": said, "tables": tables})


def _html(table: pl.DataFrame) -> str:
    rows = [[_plain(value) for value in row] for row in table.head(_PAGE_ROWS).iter_rows()]
    return html_table("", [name.replace("_", " ") for name in table.columns], rows)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return "; ".join(f"{one['label']}: {_cut(one['text'], _PAGE_TEXT // 3)}" for one in value)
    return _cut(value, _PAGE_TEXT) if isinstance(value, str) else value


def _cut(text: str, length: int) -> str:
    return first_columns(printable(" ".join(text.split())), length)
