"""The result of a sweep: a row for each feature, as a table, JSON and a plot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertfeat.display import html_table
from bertfeat.durable.placecheck import check_folder
from bertfeat.durable.publication import publish_folder, recover
from bertfeat.reports.plots import LayerScores, ScoreBar, plot_layer_scores
from bertfeat.reports.tables import text_table, write_csv
from bertfeat.storage import local_path

_FILES = ("result.json", "table.csv", "plot.png", "plot.svg")
_HEADERS = ("feature", "layers", "dim", "metric", "score", "deviation", "low", "high", "seconds")


@dataclass(frozen=True, slots=True)
class SweepRow:
    """The scores of one feature.

    Attributes:
        feature: The feature, or a mix of layers.
        layers: Its layers.
        dim: Its width.
        metric: The score.
        score: The mean over seeds.
        deviation: The deviation over seeds; None for one seed.
        low: The lower end of the bootstrap interval of the first seed's score; None where the score has none.
        high: Its upper end.
        seconds: The time of reading and fitting.
        values: The score of each seed.
        mixes: The learned mix of each seed: the weights of the layers, and gamma.
    """

    feature: str
    layers: tuple[int, ...]
    dim: int
    metric: str
    score: float
    deviation: float | None
    low: float | None
    high: float | None
    seconds: float
    values: tuple[float, ...]
    mixes: tuple[dict[str, Any], ...] = ()

    def cells(self) -> list[object]:
        """Return the cells of its line in a table."""
        return [" ".join(map(str, self.layers)) if name == "layers" else getattr(self, name) for name in _HEADERS]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The scores of a head on each feature, layers first, and the settings of the sweep as JSON values."""

    rows: tuple[SweepRow, ...]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        best = self.best
        what = f"{self.settings['head']} on {self.settings['label']!r}, level {self.settings['level']}"
        return f"Sweep({what}, {len(self.rows)} features, best {best.feature}: {best.metric} {best.score:.4f})"

    def _repr_html_(self) -> str:
        return html_table(repr(self), _HEADERS, [row.cells() for row in self.rows])

    @property
    def best(self) -> SweepRow:
        """The row with the best score; of equal scores the first."""
        return max(self.rows, key=lambda row: row.score)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        rows = [{**asdict(row), "layers": list(row.layers)} for row in self.rows]
        return {**self.settings, "best": self.best.feature, "rows": json.loads(json.dumps(rows))}

    def table(self) -> str:
        """Return the scores as a table of plain text."""
        return text_table(_HEADERS, [row.cells() for row in self.rows])

    def write(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write table.csv, result.json, plot.png and plot.svg; the folder appears when all of them are written.

        Raises:
            UserError: The folder holds something else, or matplotlib is not installed.
            RunError: The system refused a write; what was there before is unchanged.
        """
        out = check_sweep_folder(folder, overwrite=overwrite)
        with publish_folder(out, lambda: check_folder(out, "a sweep", _FILES, overwrite=overwrite)) as new:
            write_csv(new / "table.csv", _HEADERS, [row.cells() for row in self.rows])
            plot_layer_scores(self._series(), new / "plot")
            (new / "result.json").write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        return out

    def _series(self) -> LayerScores:
        by_seeds = any(row.deviation is not None for row in self.rows)
        n_seeds = len(self.rows[0].values)
        single = {row.layers[0]: row for row in self.rows if row.feature.startswith("layer_")}
        others = {row.feature: row for row in self.rows if not row.feature.startswith("layer_")}
        return LayerScores(
            metric=self.rows[0].metric,
            layers={layer: _bar(row) for layer, row in single.items()},
            combinations={name: _bar(row) for name, row in others.items()},
            bars=f"standard deviation over {n_seeds} seeds" if by_seeds else "95 % bootstrap interval",
            title=f"{self.settings['head']} on {self.settings['label']}, {self.settings['level']} level",
        )


def _bar(row: SweepRow) -> ScoreBar:
    if row.deviation is not None:
        return ScoreBar.of(row.score, row.deviation)
    return ScoreBar(row.score, row.low, row.high)


def check_sweep_folder(folder: str | Path, *, overwrite: bool) -> Path:
    """Return a folder for a sweep's files, which need not be there yet.

    Raises:
        UserError: Something else is already there, or a sweep that must not be replaced, or no folder can be made.
    """
    out = local_path(folder, "a sweep")
    recover(out)
    check_folder(out, "a sweep", _FILES, overwrite=overwrite)
    return out
