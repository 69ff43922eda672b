"""The result of a comparison of layers: a row for each layer, matrices of all pairs, a table, plots and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.display import html_table
from bertfeat.durable.placecheck import check_folder
from bertfeat.durable.publication import publish_folder, recover
from bertfeat.errors import UserError, did_you_mean
from bertfeat.geometry.layerfigures import LINES, MATRICES
from bertfeat.geometry.layerpage import page
from bertfeat.reports.layerplots import Panel, draw_panel, plot_panels
from bertfeat.reports.tables import text_table, write_csv
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FILES = ("layers.json", "layers.csv", "layers.html", "layers.png")
Matrix = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """The measures of one layer; None where one is not defined.

    Attributes:
        side: "store", or "other" for the second store.
        feature: The layer.
        dim: Its width.
        anisotropy: The mean cosine of all pairs of rows (Ethayarajh 2019).
        anisotropy_centred: The same in the sample, after the mean of all rows is subtracted.
        self_similarity: The mean cosine of the occurrences of a word, over word types (Ethayarajh 2019).
        within_sentence: The mean cosine of the rows of a document, over documents.
        norm_mean: The mean length of the vectors.
        norm_sd: The standard deviation of their lengths.
        top3_share: The share of the three largest dimensions in the squared length.
        top3_dimensions: The numbers of these dimensions.
        effective_rank: The exponential of the entropy of the covariance's spectrum (Roy & Vetterli 2007).
        intrinsic_dimension: The two-nearest-neighbour dimension of the sample (Facco et al. 2017).
        cka_other: Linear CKA with the same layer of the other store (Kornblith et al. 2019).
        rsa_other: The Spearman correlation of the cosines of pairs, with the same layer of the other store.
    """

    side: str
    feature: str
    dim: int
    anisotropy: float | None
    anisotropy_centred: float | None
    self_similarity: float | None
    within_sentence: float | None
    norm_mean: float | None
    norm_sd: float | None
    top3_share: float | None
    top3_dimensions: tuple[int, ...]
    effective_rank: float | None
    intrinsic_dimension: float | None
    cka_other: float | None
    rsa_other: float | None


@dataclass(frozen=True, slots=True)
class MovedWord:
    """A word type, its rows, and how far it moved between two stores: 0 not at all, about 1 no relation left."""

    word: str
    n_rows: int
    shift: float


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """The measures of the layers of a store, or of two; made by `compare_layers`.

    Attributes:
        rows: A row for each layer: those of the store, then those of the other store.
        cka: Linear CKA of all pairs of `rows`, (n_layers, n_layers); None where a layer is constant.
        neighbour_overlap: The mean share of common nearest neighbours of all pairs of `rows`, (n_layers, n_layers).
        moved: For each layer that both stores have, the words that moved most, the farthest first.
        settings: The stores, the level, the counts and the seed as JSON values.
    """

    rows: tuple[LayerRow, ...]
    cka: Matrix
    neighbour_overlap: Matrix
    moved: Mapping[str, tuple[MovedWord, ...]]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        other = f" and {self.settings['other']}" if self.settings["other"] else ""
        what = f"{self.settings['store']}{other}, level {self.settings['level']}"
        return f"LayerComparison({what}, {len(self.rows)} layers, {self.settings['n_rows']} rows)"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html_table(repr(self), *self._cells())

    def table(self) -> str:
        """Return the measures as a table of plain text."""
        return text_table(*self._cells())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content = {
            **self.settings,
            "rows": [asdict(row) for row in self.rows],
            "cka": self.cka,
            "neighbour_overlap": self.neighbour_overlap,
            "moved": {name: [asdict(word) for word in words] for name, words in self.moved.items()},
        }
        found: dict[str, Any] = json.loads(json.dumps(content))
        return found

    def plot(self, name: str = "cka") -> Axes:
        """Draw a measure against the layers, or a matrix of all pairs of layers, and return matplotlib's axes.

        Args:
            name: An attribute of `LayerRow`, `cka` or `neighbour_overlap`.

        Raises:
            UserError: There is no such measure here, or matplotlib is not installed.

        Examples:
            >>> compare_layers("features").plot("anisotropy").figure.savefig("anisotropy.png")  # doctest: +SKIP
        """
        there = self._panels()
        if name not in there:
            raise UserError(f"no figure {name!r}; {did_you_mean(name, there) or 'there are ' + ', '.join(there)}")
        return draw_panel(there[name])

    def write(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write layers.csv, layers.json, layers.html and layers.png; the folder appears when all are there.

        Raises:
            UserError: The folder holds something else, or matplotlib is not installed.
            RunError: The system refused a write; what was there before is unchanged.
        """
        out = check_layers_folder(folder, overwrite=overwrite)
        panels = self._panels()
        with publish_folder(
            out, lambda: check_folder(out, "a comparison of layers", _FILES, overwrite=overwrite)
        ) as new:
            write_csv(new / "layers.csv", *self._cells())
            plot_panels(list(panels.values()), new / "layers")
            (new / "layers.html").write_text(page(self.to_dict(), panels), encoding="utf-8")
            (new / "layers.json").write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        return out

    def _cells(self) -> tuple[list[str], list[list[object]]]:
        """Return the header and the cells of the table, without columns that have no value."""
        lines = [asdict(row) | {"top3_dimensions": " ".join(map(str, row.top3_dimensions))} for row in self.rows]
        kept = [name for name in lines[0] if any(line[name] is not None for line in lines)]
        kept = [name for name in kept if name != "side" or self.settings["other"]]
        return kept, [[line[name] for name in kept] for line in lines]

    def _panels(self) -> dict[str, Panel]:
        """Return what can be drawn, by the names of the measures."""
        features = list(dict.fromkeys(row.feature for row in self.rows))
        found: dict[str, Panel] = {}
        for figure in LINES:
            lines = {side: self._points(side, figure.name, features) for side in ("store", "other")}
            if any(lines.values()):
                shown = {side: line for side, line in lines.items() if line}
                found[figure.name] = Panel(figure.title, [_short(name) for name in features], lines=shown)
        sides = [f"{row.side} " if self.settings["other"] else "" for row in self.rows]
        labels = [side + _short(row.feature) for side, row in zip(sides, self.rows, strict=True)]
        for figure in MATRICES:
            found[figure.name] = Panel(figure.title, labels, matrix=getattr(self, figure.name))
        return found

    def _points(self, side: str, name: str, features: list[str]) -> list[tuple[int, float]]:
        values = [(features.index(row.feature), getattr(row, name)) for row in self.rows if row.side == side]
        return [(place, value) for place, value in values if value is not None]


def check_layers_folder(folder: str | Path, *, overwrite: bool) -> Path:
    """Return a folder for the files of a comparison, which need not be there yet.

    Raises:
        UserError: Something else is already there, or a comparison that must not be replaced, or no folder can be made.
    """
    out = local_path(folder, "a comparison of layers")
    recover(out)
    check_folder(out, "a comparison of layers", _FILES, overwrite=overwrite)
    return out


def _short(feature: str) -> str:
    return feature.removeprefix("layer_")
