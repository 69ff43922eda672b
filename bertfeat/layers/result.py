"""Result of a comparison of layers: a row for each layer, matrices of all pairs, a table, plots and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.display import html_table
from bertfeat.durable.publication import OutputFolder
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError, did_you_mean
from bertfeat.layers.plots import Panel, draw_panel, layer_page, plot_panels
from bertfeat.plots.tables import text_table, write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS_FOLDER = OutputFolder("a comparison of layers", ("layers.json", "layers.csv", "layers.html", "layers.png"))
Matrix = tuple[tuple[float | None, ...], ...]

# The titles of the figures against the layers; layers.html explains each.
_LINES = {
    "anisotropy": "Anisotropy",
    "anisotropy_centered": "Anisotropy, centred",
    "top3_anisotropy": "Anisotropy from three dimensions",
    "self_similarity": "Self-similarity of words",
    "within_sentence": "Similarity within a document",
    "norm_mean": "Mean norm",
    "norm_sd": "Deviation of the norm",
    "top3_share": "Share of the three largest dimensions",
    "effective_rank": "Effective rank",
    "intrinsic_dimension": "Intrinsic dimension",
    "cka_other": "CKA with the same layer of the other store",
    "rsa_other": "RSA with the same layer of the other store",
}
# The same for figures of all pairs of layers.
_MATRICES = {
    "cka": "CKA of all pairs of layers",
    "cka_debiased": "CKA of all pairs of layers, debiased",
    "neighbor_overlap": "Common nearest neighbours of all pairs of layers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """The measures of one layer of a `side`, "store" or "other"; None where one is not defined (docs/layers.md)."""

    side: str
    feature: str
    dim: int
    anisotropy: float | None
    anisotropy_centered: float | None
    top3_anisotropy: float | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerComparison:
    """The measures of the layers of a store, or of two; made by `Store.layers`, and what layers.json holds.

    Attributes:
        rows: A row for each layer: those of the store, then those of the other store.
        cka: Linear CKA of all pairs of `rows`, (n_layers, n_layers); in all matrices None where a layer is constant.
        cka_debiased: The same from unbiased estimates.
        neighbor_overlap: The mean share of common nearest neighbours of all pairs of `rows`, (n_layers, n_layers).
        moved: For each layer that both stores have, the words that moved most, the farthest first.
    """

    store: str
    model: str
    other: str | None
    other_model: str | None
    level: str
    n_rows: int
    n_documents: int
    n_types: int
    n_sample: int
    n_neighbors: int
    min_count: int | None
    seed: int
    bertfeat: str
    rows: tuple[LayerRow, ...]
    cka: Matrix
    cka_debiased: Matrix
    neighbor_overlap: Matrix
    moved: Mapping[str, tuple[MovedWord, ...]]

    def __repr__(self) -> str:
        stores = f"{self.store} and {self.other}" if self.other else self.store
        return f"LayerComparison({stores}, level {self.level}, {len(self.rows)} layers, {self.n_rows} rows)"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html_table(repr(self), *self._cells())

    def table(self) -> str:
        """Return the measures as a table of plain text."""
        return text_table(*self._cells())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        content: dict[str, Any] = to_values(self)
        return content

    def plot(self, name: str = "cka") -> Axes:
        """Draw a measure against the layers, or a matrix of all pairs of layers, and return matplotlib's axes.

        Args:
            name: An attribute of `LayerRow`, `cka`, `cka_debiased` or `neighbor_overlap`.

        Raises:
            UserError: There is no such measure here, or matplotlib is not installed.

        Examples:
            >>> open_store("features").layers().plot("anisotropy").figure.savefig("anisotropy.png")  # doctest: +SKIP
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
        out = LAYERS_FOLDER.check(folder, overwrite=overwrite)
        content, panels, cells = self.to_dict(), self._panels(), self._cells()
        with LAYERS_FOLDER.publish(out, overwrite=overwrite) as new:
            write_csv(new / "layers.csv", *cells)
            plot_panels(list(panels.values()), new / "layers.png")
            (new / "layers.html").write_text(layer_page(content, panels, cells), encoding="utf-8")
            (new / "layers.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return out

    def _cells(self) -> tuple[list[str], list[list[object]]]:
        """Return the header and the cells of the table, without columns that have no value."""
        lines = [asdict(row) | {"top3_dimensions": " ".join(map(str, row.top3_dimensions))} for row in self.rows]
        kept = [name for name in lines[0] if any(line[name] is not None for line in lines)]
        kept = [name for name in kept if name != "side" or self.other]
        return kept, [[line[name] for name in kept] for line in lines]

    def _panels(self) -> dict[str, Panel]:
        """Return what can be drawn, by the names of the measures."""
        places = {name: place for place, name in enumerate(sorted({row.feature for row in self.rows}))}
        features = [name.removeprefix("layer_") for name in places]
        found = {}
        for name, title in _LINES.items():
            lines: dict[str, list[tuple[int, float]]] = {}
            for row in self.rows:
                if (value := getattr(row, name)) is not None:
                    lines.setdefault(row.side, []).append((places[row.feature], value))
            if lines:
                found[name] = Panel(title, features, {side: sorted(points) for side, points in lines.items()})
        sides = [f"{row.side} " if self.other else "" for row in self.rows]
        labels = [side + row.feature.removeprefix("layer_") for side, row in zip(sides, self.rows, strict=True)]
        return found | {name: Panel(title, labels, matrix=getattr(self, name)) for name, title in _MATRICES.items()}
