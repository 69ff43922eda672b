"""Tables that read back, and well-formed plots that are the same each time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from bertfeat.errors import UserError
from bertfeat.plots.charts import (
    ScoreBar,
    draw_confusion,
    draw_layer_scores,
    plot_lines,
    plot_points,
    save,
)
from bertfeat.plots.tables import text_table, write_csv

SVG = "{http://www.w3.org/2000/svg}"
SCORES = {
    "": {0: ScoreBar(0.42, 0.41, 0.43), 1: ScoreBar(0.6, 0.61, 0.63), 2: ScoreBar(0.7), 12: ScoreBar(0.8)},
}
MIXES = {"concat_last4": ScoreBar(0.82, 0.816, 0.824), "mix of $all$ layers": ScoreBar(0.821)}


def drawn_scores() -> Axes:
    bars, title = "standard deviation over 5 seeds", "BC5CDR <dev> & more"
    return draw_layer_scores(SCORES, MIXES, metric="entity F1", bars=bars, title=title)


def texts_of(svg: Path) -> str:
    """Return all that is written in a plot: its texts are drawn as shapes, each with its words in a comment."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(svg, parser).getroot()
    assert root.tag == SVG + "svg"
    assert len(list(root.iter(SVG + "path"))) > 5
    return "\n".join(node.text or "" for node in root.iter() if node.tag is ElementTree.Comment)


def test_text_table_lines_up() -> None:
    rows = [["layer_12", 0.91234, 768], ["概念", None, np.int64(3072)], ["a\n\x1b[31m", np.float32(0.5), 1]]
    assert text_table(["feature", "F1", "dim"], rows).splitlines() == [
        "feature       F1   dim",
        "--------  ------  ----",
        "layer_12  0.9123   768",
        "概念           -  3072",
        "a \ufffd[31m   0.5000     1",
    ]
    assert text_table(["a", "b"], []) == "a  b\n-  -"
    spans = text_table(["head", "score"], [["svm", "0.91 ± 0.01"], ["bilstm", "±0.2"]])
    assert spans.splitlines()[-1] == "bilstm         ±0.2"


def test_csv_is_plain(tmp_path: Path) -> None:
    rows = [[np.float64(0.1), None], [np.int32(3), 'x,"y"'], [1e-300, "a\nb"]]
    assert write_csv(tmp_path / "t.csv", ["a", "b"], rows) == tmp_path / "t.csv"
    assert (tmp_path / "t.csv").read_bytes() == b'a,b\n0.1,\n3,"x,""y"""\n1e-300,"a\nb"\n'


def test_layer_scores_as_png_and_svg(tmp_path: Path) -> None:
    png, svg = save(drawn_scores(), tmp_path / "plot.v1")
    assert (png, svg) == (tmp_path / "plot.v1.png", tmp_path / "plot.v1.svg")
    assert imread(png).ndim == 3
    written = texts_of(svg)
    names = ("concat_last4  0.820", "mix of $all$ layers  0.821", "bars: standard deviation over 5 seeds")
    assert all(text in written for text in ("entity F1", "layer (0: embeddings)", *names))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.v1.png", "plot.v1.svg"]


def test_a_confusion_matrix_as_png_and_svg(tmp_path: Path) -> None:
    labels = ["NOUN", "PRP$", "$", "B-$x$"]
    matrix = np.diag([10, 217, 3, 0]) + np.eye(4, k=1, dtype=int) * 44
    _, svg = save(draw_confusion(labels, matrix), tmp_path / "confusion")
    written = texts_of(svg).splitlines()
    assert {"predicted", "true", "217", "44", *labels} <= {text.strip() for text in written}


def test_points_as_png_and_svg(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    points = random.normal(size=(60, 2))
    groups = ["river", "money", "中文"] * 20
    labels = ["", "a bank of sand", *[""] * 58]
    _, svg = plot_points(points, groups, labels, tmp_path / "senses", title="bank", axis_names=("PC 1", "PC 2"))
    written = texts_of(svg)
    for text in ("river (20)", "money (20)", "中文 (20)", "a bank of sand", "bank", "PC 1", "PC 2"):
        assert text in written


def test_lines_as_png_and_svg(tmp_path: Path) -> None:
    lines = {"training": [(10.0, 4.0), (20.0, 3.0)], "held $out$": [(0.0, 9.0), (10.0, 5.0), (20.0, 4.5)]}
    _, svg = plot_lines(lines, tmp_path / "curve", axis_names=("step", "loss"))
    assert all(text in texts_of(svg) for text in ("training", "held $out$", "step", "loss"))


def test_the_same_plot_gives_the_same_svg_whatever_the_users_style(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    points, groups = np.arange(12.0).reshape(6, 2), list("aabbcc")
    found = []
    for name in ("one", "two"):
        if name == "two":
            monkeypatch.setitem(matplotlib.rcParams, "font.size", 31.0)
            monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "other")
            monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
        (tmp_path / name).mkdir()
        plot_points(points, groups, list("uvwxyz"), tmp_path / name / "points")
        found.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert found[0] == found[1]
    assert b"<dc:date>" not in found[0]["points.svg"]
    assert matplotlib.rcParams["font.size"] == 31.0, "the user's settings are left as they were"


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"plots need matplotlib: pip install 'bertfeat\[probes\]'"):
        save(drawn_scores(), tmp_path / "plot")


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda stem: save(draw_confusion(["a"], [[1, 2]]), stem), r"shape \(1, 2\) does not match 1 labels"),
        (lambda stem: plot_lines({}, stem, axis_names=("", "")), "needs points"),
        (lambda stem: plot_lines({"a": [(0, np.nan)]}, stem, axis_names=("", "")), "all of them finite"),
        (lambda stem: plot_points([[1, 2, 3]], ["a"], None, stem), r"points of shape \(1, 3\)"),
        (lambda stem: plot_points([[1, 2], [np.inf, 0]], ["a", "b"], None, stem), "all of them finite"),
        (lambda stem: plot_points(np.zeros((57, 2)), range(57), None, stem), "57 groups are more than the 56"),
        (
            lambda stem: save(draw_confusion(["a"], [[1]]), stem.parent / "nowhere" / "x"),
            "no folder .*nowhere; create it",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, draw: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        draw(tmp_path / "plot")
    assert list(tmp_path.iterdir()) == []
