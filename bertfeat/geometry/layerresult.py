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
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError, did_you_mean
from bertfeat.reports.layerpage import layer_page
from bertfeat.reports.layerplots import Panel, draw_panel, plot_panels
from bertfeat.reports.tables import text_table, write_csv
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FILES = ("layers.json", "layers.csv", "layers.html", "layers.png")
Matrix = tuple[tuple[float | None, ...], ...]


# The title of each figure against the layers, and what it means.
_LINES = {
    "anisotropy": "Anisotropy. The mean cosine of two random rows (Ethayarajh 2019): near 0, vectors point in all "
    "directions; near 1, all point the same way, and the cosine of a pair says little before this value is subtracted.",
    "anisotropy_centred": "Anisotropy, centred. The same after the mean of all rows is subtracted: near 0, the mean "
    "was all that rows had in common; well above 0, a few rows lie far away from all others.",
    "top3_anisotropy": "Anisotropy from three dimensions. How much of the anisotropy comes from the three dimensions "
    "that add most to it (Timkey & van Schijndel 2021).",
    "self_similarity": "Self-similarity of words. The mean cosine of two occurrences of one word (Ethayarajh 2019): 1 "
    "means that context changes nothing; compare it with the anisotropy of the same layer.",
    "within_sentence": "Similarity within a document. The mean cosine of the rows of a document with their mean "
    "(Ethayarajh 2019): the higher, the more alike the words of a text are; compare it with the anisotropy.",
    "norm_mean": "Mean norm. The mean length of the vectors: in a sum of layers, those with long vectors count most.",
    "norm_sd": "Deviation of the norm. The standard deviation of the lengths of the vectors.",
    "top3_share": "Share of the three largest dimensions. The part of the squared length that three dimensions hold: "
    "if it is large, they decide most of every cosine and inner product.",
    "effective_rank": "Effective rank. How many directions the variance fills, as if it were spread evenly: the "
    "exponential of the entropy of the covariance's eigenvalues (Roy & Vetterli 2007).",
    "intrinsic_dimension": "Intrinsic dimension. The dimension of the surface that rows lie on, curved or not, from "
    "the distances to the two nearest neighbours (Facco et al. 2017).",
    "cka_other": "CKA with the same layer of the other store. 1 means the same geometry up to rotation and scale, 0 "
    "no linear relation (Kornblith et al. 2019). Too high where rows are few: the debiased values are below.",
    "rsa_other": "RSA with the same layer of the other store. The rank correlation (Spearman) of the cosines of all "
    "pairs of sampled rows in the two stores: 1 means the same order, 0 no relation (Kriegeskorte et al. 2008).",
}
# The same for figures of all pairs of layers.
_MATRICES = {
    "cka": "CKA of all pairs of layers. Linear CKA (Kornblith et al. 2019): 1 means that two layers are the same up to "
    "rotation and scale. It is too high where rows are few: without any relation it can be as large as the number of "
    "dimensions over the number of rows.",
    "cka_debiased": "CKA of all pairs of layers, debiased. The same from unbiased estimates (Song et al. 2012; Nguyen "
    "et al. 2021): about 0 where two layers have no linear relation, also with few rows.",
    "neighbour_overlap": "Common nearest neighbours of all pairs of layers. The share of the nearest neighbours of a "
    "sampled row, by cosine, that are its neighbours in both layers (Huh et al. 2024).",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """The measures of one layer; None where one is not defined. See docs/layers.md for each.

    Attributes:
        side: "store", or "other" for the second store.
        feature: The layer.
        dim: Its width.
        top3_dimensions: The numbers of the dimensions of `top3_share`, the largest first.
    """

    side: str
    feature: str
    dim: int
    anisotropy: float | None
    anisotropy_centred: float | None
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
    """The measures of the layers of a store, or of two; made by `Store.layers`.

    Attributes:
        rows: A row for each layer: those of the store, then those of the other store.
        cka: Linear CKA of all pairs of `rows`, (n_layers, n_layers); in all matrices None where a layer is constant.
        cka_debiased: The same from unbiased estimates.
        neighbour_overlap: The mean share of common nearest neighbours of all pairs of `rows`, (n_layers, n_layers).
        moved: For each layer that both stores have, the words that moved most, the farthest first.
        settings: The stores, the level, the counts and the seed as JSON values.
    """

    rows: tuple[LayerRow, ...]
    cka: Matrix
    cka_debiased: Matrix
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
        content = to_values(self)
        return {**content.pop("settings"), **content}

    def plot(self, name: str = "cka") -> Axes:
        """Draw a measure against the layers, or a matrix of all pairs of layers, and return matplotlib's axes.

        Args:
            name: An attribute of `LayerRow`, `cka`, `cka_debiased` or `neighbour_overlap`.

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
        out = check_layers_folder(folder, overwrite=overwrite)
        content, panels, cells = self.to_dict(), list(self._panels().values()), self._cells()
        with publish_folder(out, lambda: _check(out, overwrite)) as new:
            write_csv(new / "layers.csv", *cells)
            plot_panels(panels, new / "layers")
            (new / "layers.html").write_text(layer_page(content, panels, cells), encoding="utf-8")
            (new / "layers.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return out

    def _cells(self) -> tuple[list[str], list[list[object]]]:
        """Return the header and the cells of the table, without columns that have no value."""
        lines = [asdict(row) | {"top3_dimensions": " ".join(map(str, row.top3_dimensions))} for row in self.rows]
        kept = [name for name in lines[0] if any(line[name] is not None for line in lines)]
        kept = [name for name in kept if name != "side" or self.settings["other"]]
        return kept, [[line[name] for name in kept] for line in lines]

    def _panels(self) -> dict[str, Panel]:
        """Return what can be drawn, by the names of the measures."""
        places = {name: place for place, name in enumerate(sorted({row.feature for row in self.rows}))}
        features = [name.removeprefix("layer_") for name in places]
        sides = [f"{row.side} " if self.settings["other"] else "" for row in self.rows]
        labels = [side + row.feature.removeprefix("layer_") for side, row in zip(sides, self.rows, strict=True)]
        found = {}
        for name, text in {**_LINES, **_MATRICES}.items():
            title, meaning = text.split(". ", 1)
            if name in _MATRICES:
                found[name] = Panel(title, meaning, labels, matrix=getattr(self, name))
                continue
            known = [(row.side, places[row.feature], getattr(row, name)) for row in self.rows]
            lines = {
                side: sorted((place, value) for one, place, value in known if one == side and value is not None)
                for side in ("store", "other")
            }
            if any(lines.values()):
                shown = {side: line for side, line in lines.items() if line}
                found[name] = Panel(title, meaning, features, lines=shown)
        return found


def check_layers_folder(folder: str | Path, *, overwrite: bool) -> Path:
    """Return a folder for the files of a comparison, which need not be there yet.

    Raises:
        UserError: Something else is already there, or a comparison that must not be replaced, or no folder can be made.
    """
    out = local_path(folder, "a comparison of layers")
    recover(out)
    _check(out, overwrite)
    return out


def _check(folder: Path, overwrite: bool) -> None:
    check_folder(folder, "a comparison of layers", _FILES, overwrite=overwrite)
