"""Results as JSON, as a Markdown table and as a bar chart.

python -m benchmarks.speed.report STEM       writes STEM.md, STEM.png and STEM.svg of STEM.json again
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.speed.check_tables import check_tables
from bertfeat.plots.tables import markdown_table

_OURS, _OTHER = "#1b6ca8", "#b9c3cc"
_LOWER = "bertfeat, bfloat16"
# The columns of the overview: the rivals that share one, and what their ratios are to.
_COLUMNS = {
    "transformers, corpus order": ("transformers, corpus order",),
    "transformers, sorted": ("transformers, sorted",),
    "one at a time": ("transformers, one at a time",),
    "sentence-transformers": ("sentence-transformers",),
    "flair": ("flair",),
    "ONNX Runtime, plain / fused": ("ONNX Runtime", "ONNX Runtime, fused"),
    "OpenVINO, latency / streams": ("OpenVINO", "OpenVINO, streams"),
    "CTranslate2, one / two workers": ("CTranslate2", "CTranslate2, workers"),
}
_LOWER_COLUMNS = {
    f"{engine}, {dtype}": tuple(f"{name}, {dtype}" for name in names)
    for engine, names in (
        ("OpenVINO", ("OpenVINO", "OpenVINO, streams")),
        ("CTranslate2", ("CTranslate2", "CTranslate2, workers")),
    )
    for dtype in ("bfloat16", "int8")
    if (engine, dtype) != ("CTranslate2", "bfloat16")
}
# The default workloads of the chart, one of each kind.
_CHART = ("short-token", "short-word", "short-sentence", "paragraphs", "mixed")


def write_report(results: Mapping[str, Any], stem: Path, command: str) -> None:
    """Add results to those of other workloads in STEM.json, and write table and chart of all of them."""
    path = stem.with_suffix(".json")
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"results": {}}
    whole["machine"] = describe_machine()
    for name, result in results.items():
        whole["results"][name] = {**result, "command": command, "date": whole["machine"]["date"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    write_views(whole["results"], stem)


def write_views(results: Mapping[str, Any], stem: Path, chart: Sequence[str] = _CHART) -> None:
    """Write STEM.md, and STEM.png and STEM.svg where workloads of `chart` are among the results."""
    stem.with_suffix(".md").write_text(table(results), encoding="utf-8")
    duels = {name: results[name] for name in chart if name in results}
    if duels:
        draw(duels, stem)


def table(results: Mapping[str, Any]) -> str:
    """Return the Markdown tables: a row for each rival of each workload, then the checks that have no rival."""
    duels = [result for result in results.values() if "rivals" in result]
    lower = [result for result in duels if _LOWER in result["rivals"]]
    tables = [overview(duels, "bertfeat", _COLUMNS), *([overview(lower, _LOWER, _LOWER_COLUMNS)] if lower else [])]
    return "\n\n".join([*([*tables, _duels(duels)] if duels else []), *check_tables(results)]) + "\n"


def overview(results: Sequence[Mapping[str, Any]], ours: str, columns: Mapping[str, Sequence[str]]) -> str:
    """Return a Markdown table of how many times as fast as its rivals `ours` is, a row for each workload."""
    rows = []
    for result in results:
        rivals = result["rivals"]
        own = rivals[ours].get("ratio", 1.0)
        cells = [
            " / ".join(f"{rivals[label]['ratio'] / own:.2f}" for label in labels if label in rivals)
            for labels in columns.values()
        ]
        rows.append([result["title"], f"{rivals[ours]['tokens_per_s']:,.0f}", *cells])
    return markdown_table(["workload", f"{ours}, tokens/s", *columns], rows)


def _duels(results: Sequence[Mapping[str, Any]]) -> str:
    heads = [
        "workload",
        "rival",
        "tokens/s",
        "batch",
        "bertfeat, times as fast",
        "with loading",
        "CPU s",
        "cosine",
    ]
    rows = []
    for result in results:
        title = f"{result['title']} ({result['n_rows']:,} rows, {result['n_tokens']:,} tokens)"
        for label, rival in result["rivals"].items():
            rows.append([title, *_cells(label, rival)])
            title = ""
        rows += [["", label, "missing", *[""] * 5] for label in result["missing"]]
    return markdown_table(heads, rows)


def _cells(label: str, rival: Mapping[str, Any]) -> list[str]:
    cells = [label, f"{rival['tokens_per_s']:,.0f}", str(rival["batch"] or "")]
    cells += [f"{rival[key]:.2f}" if key in rival else "" for key in ("ratio", "ratio_with_loading")]
    likeness = f"{rival['cosine_least']:.5f}, {rival['cosine_mean']:.5f}" if "cosine_least" in rival else ""
    return [*cells, f"{statistics.median(rival['cpu_s']):.1f}", likeness]


def draw(results: Mapping[str, Any], stem: Path) -> None:
    """Draw the tokens per second of each rival, one panel per workload, and its ratio to bertfeat."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    n_bars = [len(result["rivals"]) for result in results.values()]
    figure, axes = plt.subplots(
        len(results),
        1,
        figsize=(9, 0.34 * sum(n_bars) + 0.62 * len(n_bars)),
        gridspec_kw={"height_ratios": [n + 0.4 for n in n_bars]},
        layout="constrained",
        squeeze=False,
    )
    for axis, result in zip(axes[:, 0], results.values(), strict=True):
        _panel(axis, result)
    figure.supxlabel("tokens per second, from text to files on disk", fontsize=9)
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix), dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
    plt.close(figure)


def _panel(axis: Any, result: Mapping[str, Any]) -> None:
    rivals = sorted(result["rivals"].items(), key=lambda item: item[1]["tokens_per_s"])
    rates = [rival["tokens_per_s"] for _, rival in rivals]
    labels = [label for label, _ in rivals]
    axis.barh(labels, rates, color=[_OURS if label.startswith("bertfeat") else _OTHER for label in labels], height=0.72)
    for place, (label, rival) in enumerate(rivals):
        text = f"{rival['tokens_per_s']:,.0f}"
        if label != "bertfeat":
            text += f"   bertfeat: {rival['ratio']:.2f} times as fast"
        axis.text(rates[place] + max(rates) * 0.01, place, text, va="center", fontsize=8)
    axis.set_title(result["title"], loc="left", fontsize=9.5, fontweight="bold")
    axis.set_xlim(0, max(rates) * 1.33)
    axis.tick_params(labelsize=8.5, length=0)
    axis.set_xticks([])
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    kept = json.loads(given.with_suffix(".json").read_text(encoding="utf-8"))["results"]
    write_views(kept, given, sys.argv[2:] or _CHART)
