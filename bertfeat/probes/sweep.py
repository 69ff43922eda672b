"""The result of a sweep: a row for each feature, as a table, JSON and a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.choices import Level, Task
from bertfeat.display import counted, html_table, human_time
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import OutputFolder, standing
from bertfeat.durable.records import read_record, seal, to_values
from bertfeat.errors import UserError
from bertfeat.heads.folder import PROBE_FOLDER
from bertfeat.plots.charts import ScoreBar, draw_layer_scores, save
from bertfeat.plots.tables import text_table, write_csv
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT_VERSION = 1
#: The folder of the probe that a choice keeps.
PROBE = "probe"
_FOLDER = OutputFolder("a sweep", ("result.json", "table.csv", "plot.png", "plot.svg", f"{PROBE}/"))
# Columns of the table; some are there if rows have a value for them.
_OPTIONAL = ("store", "head", "limit")
_HEADERS = (
    "store",
    "feature",
    "head",
    "limit",
    "layers",
    "dim",
    "metric",
    "score",
    "deviation",
    "low",
    "high",
    "seconds",
)
#: What to keep in mind beside the weights of a mix.
MIX_CAUTION = (
    "The weights of a mix are not the importance of its layers: what a layer adds depends on its norm too "
    "(Fayyaz et al. 2021)."
)


@dataclass(frozen=True, slots=True)
class SweepRow:
    """The scores of one feature, or mix of layers."""

    feature: str
    layers: tuple[int, ...]
    dim: int
    metric: str
    score: float  # the mean over seeds
    deviation: float | None  # of the seeds; None for one
    low: float | None  # of the bootstrap interval of the first seed's score
    high: float | None
    seconds: float
    values: tuple[float, ...]  # the score of each seed
    mixes: tuple[Mapping[str, Any], ...] = ()  # the learned weights of layers, gamma, and the layers' mean norms
    controls: Mapping[str, int | float] = field(default_factory=dict)  # by their column; of a choice, its costs
    model: str = ""
    store: str | None = None  # its name, among several
    limit: int | None = None  # the number of documents it learned from, in a learning curve
    head: str | None = None  # where several may be compared

    @property
    def name(self) -> str:
        """The feature, with its store if there are several, and with the width and head of a choice."""
        return f"{self.line}: {self.feature}" if self.line else self.feature

    @property
    def line(self) -> str:
        """What rows on one line of a plot have in common."""
        head = f"{self.head}, width {self.controls['width']}" if self.head else None
        return " ".join(part for part in (self.store, head) if part)

    @property
    def bar(self) -> ScoreBar:
        """The score in a plot, with its deviation or, for one seed, its interval."""
        if self.deviation is None:
            return ScoreBar(self.score, self.low, self.high)
        return ScoreBar(self.score, self.score - self.deviation, self.score + self.deviation)

    def cells(self, headers: Sequence[str]) -> list[object]:
        """Return the cells of its line in a table with these columns."""
        own = {name: getattr(self, name) for name in _HEADERS} | {"layers": " ".join(map(str, self.layers))}
        return [own.get(name, self.controls.get(name)) for name in headers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The scores of a head on each feature, layers first; the content of `result.json`.

    `seeds` is empty for a head without randomness. Scores are on the store `dev`, or on the share `held_out` of the
    documents, drawn by `seed`. In a learning curve, each feature has a row for each number of documents. Several stores
    have rows one after the other; then `store`, `plan_hash` and `model` list theirs, with commas.
    """

    store: str
    plan_hash: str
    model: str
    level: Level
    label: str
    head: str
    params: Mapping[str, Any]
    metric: str
    seeds: tuple[int, ...]
    seed: int
    dev: str | None
    held_out: float | None
    n_train: int
    n_dev: int
    n_classes: int
    limit: int | None
    bertfeat: str
    rows: tuple[SweepRow, ...]
    baselines: tuple[SweepRow, ...] = ()  # scores of predictions without features: majority, type
    encoding_s: float | None = None  # the seconds that encoding the stores took; None if they are not known
    task: Task = Task.CLASSIFY
    told_by: str | None = None  # what the task was chosen by; None if it was given, and for texts
    format_version: int = FORMAT_VERSION

    def __repr__(self) -> str:
        best = self.best
        what = f"{self.head} on {self.label!r}, level {self.level}"
        return f"{type(self).__name__}({what}, {len(self.rows)} rows, best {best.name}: {best.metric} {best.score:.4f})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), *self._table())

    @property
    def best(self) -> SweepRow:
        """The row with the best score; of equal scores the first."""
        return max(self.rows, key=lambda row: row.score)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values, with the best feature."""
        return {**to_values(self), "best": self.best.name}

    def table(self) -> str:
        """Return the scores as a table of plain text."""
        return text_table(*self._table())

    __str__ = table

    def mix_lines(self) -> list[str]:
        """Return the weights of the mixes of the first seed, the norms of their layers, and a caution; or nothing."""
        lines = []
        for row in self.rows:
            for mix in row.mixes[:1]:
                numbers = zip(row.layers, mix["weights"], mix["norms"], strict=True)
                shown = ", ".join(f"{layer}: {weight:.3f} ({norm:.1f})" for layer, weight, norm in numbers)
                lines.append(f"{row.name}, weight (mean norm) of each layer: {shown}")
        return [*lines, MIX_CAUTION] if lines else []

    def best_line(self) -> str:
        """Return the best feature with its score, and what it was scored on."""
        best = self.best
        scored_on = self.dev if self.held_out is None else f"{self.held_out:.0%} of the documents, held out"
        return f"best {best.name}, {best.metric} {best.score:.4f} on {scored_on}"

    def reuse_line(self) -> str:
        """Return what the fits had in common: `21 fits used one encoding of 41 s`; empty if the time is not known."""
        n_fits = counted(sum(len(row.values) for row in self.rows), "fit")
        n_encoded = len({row.store for row in self.rows}) + (self.dev is not None)
        encodings = "one encoding" if n_encoded == 1 else f"{n_encoded} encodings"
        return f"{n_fits} used {encodings} of {human_time(self.encoding_s)}" if self.encoding_s else ""

    def plot(self) -> Axes:
        """Draw the scores against the layers; return matplotlib's axes, so that `.figure.savefig(FILE)` writes them."""
        lines = defaultdict[str, dict[int, ScoreBar]](dict)
        combinations: dict[str, ScoreBar] = {}
        for row in self.rows:
            if row.limit is not None:
                lines[row.name][row.limit] = row.bar
            elif row.feature.startswith("layer_"):
                lines[row.line][row.layers[0]] = row.bar
            else:
                combinations[row.name] = row.bar
        by_seeds = any(row.deviation is not None for row in self.rows)
        return draw_layer_scores(
            lines,
            combinations,
            metric=self.metric,
            bars=f"standard deviation over {len(self.seeds)} seeds" if by_seeds else "95 % bootstrap interval",
            title=f"{self.head} on {self.label}, {self.level} level",
            is_curve=self.rows[0].limit is not None,
        )

    def write(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write table.csv, result.json, plot.png and plot.svg; the folder appears when all of them are written."""
        out = check_sweep_folder(folder, overwrite=overwrite)
        with _FOLDER.publish(out, overwrite=overwrite) as new:
            write_csv(new / "table.csv", *self._table())
            save(self.plot(), new / "plot")
            (new / "result.json").write_bytes(seal(self.to_dict()))
            self._write_more(new)
        return out

    def _write_more(self, folder: Path) -> None:
        """Write what a sweep of another kind has besides."""

    def _table(self) -> tuple[list[str], list[list[object]]]:
        """Return the headers of the table, and the cells of its lines."""
        empty = {name for name in _OPTIONAL if all(getattr(row, name) is None for row in self.rows)}
        headers = [name for name in _HEADERS if name not in empty]
        headers[-1:-1] = dict.fromkeys(name for row in self.rows for name in row.controls)
        return headers, [row.cells(headers) for row in (*self.rows, *self.baselines)]


@os_errors(UserError)
def read_sweep(folder: str | Path) -> Sweep:
    """Return the sweep that was written to a folder."""
    return read_record(Sweep, standing(local_path(folder, "a sweep")), "sweep", FORMAT_VERSION, "sweep again")


def check_sweep_folder(folder: str | Path, *, overwrite: bool) -> Path:
    """Return a folder for a sweep's files, which need not be there yet, if they may be written there."""
    out = _FOLDER.check(folder, overwrite=overwrite)
    PROBE_FOLDER.check(out / PROBE, overwrite=overwrite)
    return out
