"""Slim probes: the smallest choice of blocks, width, head and pooling whose score is nearly the best one."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import polars as pl

from bertfeat.choices import Level, SpanPair
from bertfeat.config import names_in
from bertfeat.display import counted, human_bytes
from bertfeat.errors import BertfeatWarning, UserError, require
from bertfeat.levels import LEVELS
from bertfeat.plots.charts import ScoreBar, style
from bertfeat.probes.config import ProbeConfig, ProbeSettings
from bertfeat.probes.fitted import FittedProbe
from bertfeat.probes.fitting import Fit, ProbeTask, SweptStore, fit_rows, sweep_fits
from bertfeat.probes.rows import LabelledRows
from bertfeat.probes.scoring import score_rows
from bertfeat.probes.sweep import PROBE, Sweep, SweepRow
from bertfeat.progress import Progress, reporting
from bertfeat.store.reader import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTHS = "full,128,64,32"
# Texts and characters of a measurement of speed, texts that warm it up, and rounds.
_MAX_TEXTS, _MAX_CHARACTERS, _N_WARM, _N_ROUNDS = 64, 8_000, 8, 3
# What shows in the token of some tokenizers that it continues or begins a word.
_TOKEN_MARK = "^(##|\u0120|\u2581)"
# What makes a choice smaller, the first thing first.
_SIZES = ("model_bytes", "blocks", "width")


@dataclass(frozen=True, kw_only=True, repr=False)
class Slim(Sweep):
    """A sweep over blocks, widths and heads, and the smallest row that is nearly as good as the best one.

    Both were chosen on dev. `kept_apart` and `best_apart` are their scores on `n_test` rows that chose nothing: the
    share `test_share` of the documents, without those of dev. `probe` is the kept one. The costs of a row are among its
    `controls`: its blocks, its width (principal axes, or all dimensions), texts per second, bytes of the weights that
    load, and bytes of a stored vector of this width.
    """

    keep: float
    test_share: float
    n_test: int
    kept: SweepRow
    kept_apart: ScoreBar
    best_apart: ScoreBar
    probe: FittedProbe | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the probe as JSON values."""
        return Sweep.to_dict(replace(self, probe=None))

    def lines(self) -> list[str]:
        """Return what was kept and what it costs, beside the best one, as lines to read."""
        found = []
        for what, row, bar in (("kept", self.kept, self.kept_apart), ("best", self.best, self.best_apart)):
            ends, costs = "" if bar.low is None else f" ({bar.low:.4f} to {bar.high:.4f})", row.controls
            shown = f"{what} {row.name}: {self.metric} {row.score:.4f}, on {self.n_test} rows that chose nothing "
            shown += f"{bar.score:.4f}{ends}; {counted(int(costs['blocks']), 'block')}, "
            found.append(f"{shown}{human_bytes(costs['model_bytes'])}, {costs['texts_per_s']:.0f} texts per s")
        return found

    def plot(self) -> Axes:
        """Draw the scores against the layers, under which is what their blocks cost; return matplotlib's axes."""
        axes, sizes = super().plot(), {row.layers[0]: row.controls for row in self.rows if len(row.layers) == 1}
        with style():
            labels = {n: f"{n}\n{c['model_bytes'] / 1e6:.0f} MB\n{c['texts_per_s']:.0f}/s" for n, c in sizes.items()}
            axes.set_xticks([*labels], [*labels.values()], fontsize=8)
            axes.plot([self.kept.layers[-1]], [self.kept.score], "ko", markersize=14, fillstyle="none", label="kept")
        axes.set_xlabel("layer, with the weights that load and the texts per second; circle: the kept choice")
        return axes

    def _write_more(self, folder: Path) -> None:
        if self.probe is not None:
            self.probe.save(folder / PROBE)


def slim_probe(
    store: str | Path | Store | Sequence[str | Path | Store],
    label: str,
    config: ProbeConfig | None = None,
    *,
    keep: float = 0.98,
    widths: str | Sequence[int | str] | None = None,
    heads: str | Sequence[str] = (),
    test_share: float = 0.2,
    progress: bool | Progress | None = None,
    **settings: Unpack[ProbeSettings],
) -> Slim:
    """Find the smallest choice of blocks, width, head and pooling that keeps a share of the best score.

    The documents of `dev`, or the share `hold_out`, choose; of the others, the share `test_share` reports the choice.
    The smallest choice has the fewest bytes of weights, then blocks, then width, then the earliest head. Texts per
    second are measured: the median of rounds that run each model in turn on texts of the store.

    Args:
        store: A store, or several of the same documents, with other poolings or models.
        label: The column with the labels; see `fit_probe`.
        config: The settings as one object, or by name in `settings`. `features` are the single layers by default.
        keep: The share of the best score on dev that is enough.
        widths: Numbers of principal axes for linear heads, and `full`, as a list or with commas; None is
            `full,128,64,32`. Those that are not below the numbers of dimensions and training rows are left out.
        heads: The heads, the cheaper ones first, as a list or with commas; by default that of the task.
        test_share: The share of the documents, without those of dev, that chooses nothing.
        progress: See `extract`.
        **settings: The fields of `ProbeConfig`, and the parameters of the heads.

    Raises:
        UserError: A setting or the data cannot be used, the best score is not above 0, or the features were imported.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> data = {"text": ["a warm film", "a dull film", "so warm", "so dull"] * 6, "label": ["+", "-"] * 12}
        >>> store = extract(data, tmp / "features", levels="sentence", layers="0,1", keep_columns="label")
        >>> slim_probe(store, "label", widths="full,4").kept.feature
        'layer_00'
    """
    require("matplotlib")
    unused = dict.fromkeys(("limits", "control", "baselines", "mdl"), "it is for sweep_probes")
    unused |= {"feature": "name `features`", "mix": "name `features`", "head": "pass `heads`"}
    config = ProbeConfig.of(config, settings, unused)
    if not (0 < keep <= 1 and 0 < test_share < 1) or "n_components" in config.params:
        raise UserError(f"keep {keep}, test_share {test_share}: pass shares below 1, and `widths` for `n_components`")
    parts, tests, fits = list[SweptStore](), list[LabelledRows](), list[Fit]()
    for one in [store] if isinstance(store, str | Path | Store) else store:
        tasks = [ProbeTask.of(one, label, replace(config, head=name)) for name in names_in(heads) or [None]]
        part = SweptStore.of(tasks[0], label)
        train, test = part.train.split(test_share, config.seed)
        part.task.check_labels(train, None)
        layers = [choice for choice in part.choices if choice.name.startswith("layer_")]
        choices = layers if layers and config.features is None else part.choices
        parts.append(part._replace(train=train, choices=choices))
        parts[-1].check_same(parts[0])
        tests.append(test)
        fits += _fits(len(tests) - 1, parts[-1], tasks, widths)
    if not parts:
        raise UserError("a choice among no stores; pass one or more")
    with reporting(progress) as reports:
        costs = _costs(fits, reports)
        sweep = sweep_fits(label, parts, fits, reports)
        found = zip(sweep.rows, fits, costs, strict=True)
        rows = [replace(row, head=task.head.head, controls=cost) for row, (_, task, *_), cost in found]
        best = max(range(len(rows)), key=lambda place: rows[place].score)
        kept, apart = rows.index(_smallest(rows, rows[best], keep)), {}
        for place in {best, kept}:
            n, task, choice, _ = fits[place]
            fitted = fit_rows(task, label, choice, parts[n].train, parts[n].held, reports)
            vectors, metric = tests[n].stream(task.store, choice.feature), rows[place].metric
            score = score_rows(fitted.probe, vectors, tests[n], bootstrap=[metric], ranks=False)
            ends = score.intervals.get(metric)
            apart[place] = fitted, ScoreBar(score.values.get(metric, 0.0), *((ends.low, ends.high) if ends else ()))
    values = {one.name: getattr(sweep, one.name) for one in fields(Sweep)}
    values |= {"rows": tuple(rows), "head": ", ".join(dict.fromkeys(str(row.head) for row in rows)), "keep": keep}
    values |= {"test_share": test_share, "n_test": len(tests[0].rows), "kept": rows[kept], "probe": apart[kept][0]}
    return Slim(**values, kept_apart=apart[kept][1], best_apart=apart[best][1])


def _smallest(rows: Sequence[SweepRow], best: SweepRow, keep: float) -> SweepRow:
    """Return the smallest row that keeps a share of the best score; of equal size, that of the earlier head."""
    if best.score <= 0:
        raise UserError(f"the best {best.metric} on dev is {best.score:.4f}, of which no share can be kept")
    heads, enough = [*dict.fromkeys(row.head for row in rows)], [row for row in rows if row.score >= keep * best.score]
    return min(enough, key=lambda row: (*map(row.controls.get, _SIZES), heads.index(row.head), -row.score))


def _fits(
    place: int, part: SweptStore, tasks: Sequence[ProbeTask], widths: str | Sequence[int | str] | None
) -> list[Fit]:
    """Return the fits of a store, of the widths that a head, a feature and the rows allow, or of all dimensions."""
    given = _WIDTHS if widths is None else widths if isinstance(widths, str) else map(str, widths)
    names, fits = names_in(given), list[Fit]()
    if wrong := [name for name in names if name != "full" and not (name.isdecimal() and int(name))]:
        raise UserError(f"`widths` holds {wrong[0]!r}; write whole numbers above 0, or full")
    for choice in part.choices:
        most = min(part.task.store.feature(part.task.level, choice.feature).dim, int(part.train.has_vector.sum()))
        for task in tasks:
            able = [int(name) for name in names if name != "full" and hasattr(task.head, "n_components")]
            found: list[dict[str, int]] = [{"n_components": width} for width in able if width < most]
            for axes in [*([{}] if "full" in names or not found else []), *found]:
                own = replace(task.config, params={**task.config.params, **axes})
                fits.append((place, replace(task, config=own), choice, None))
    used = {str(task.config.params.get("n_components", "full")) for _, task, *_ in fits}
    if widths is not None and (left := [name for name in names if name not in used]):
        text = f"`widths` {left[0]} has no effect: axes are for linear heads, fewer than dimensions and training rows"
        warnings.warn(BertfeatWarning(text), stacklevel=3)
    return fits


def _costs(fits: Sequence[Fit], reports: Progress) -> list[dict[str, float]]:
    """Return what each fit costs; a store's models of each number of blocks are measured once, one of them in memory.

    Each round measures all of them: a machine that slows down slows all.
    """
    from bertfeat.extraction.documents import documents_of
    from bertfeat.extraction.flow import Flow

    # A text alone has no second span, which costs next to nothing.
    specs = [replace(task.spec(choice.feature), span_pair=SpanPair.NONE) for _, task, choice, _ in fits]
    keys = [(n, max(spec.layers)) for (n, *_), spec in zip(fits, specs, strict=True)]
    texts = {n: documents_of(_sample(store)) for n, store in {n: task.store for n, task, *_ in fits}.items()}
    seconds, n_bytes = defaultdict[tuple[int, int], list[float]](list), dict[tuple[int, int], int]()
    for number in range(_N_ROUNDS):
        reports.stage("measuring texts per second", number, _N_ROUNDS)
        for key, spec in dict(zip(keys, specs, strict=True)).items():
            flow = Flow.of_feature(spec, mine="the store")
            flow.run(texts[key[0]][:_N_WARM])
            started = time.perf_counter()
            flow.run(texts[key[0]])
            seconds[key].append(time.perf_counter() - started)
            n_bytes[key] = flow.encoder.n_bytes
    found = []
    for key, spec, (n, task, *_) in zip(keys, specs, fits, strict=True):
        width = task.config.params.get("n_components", spec.dim)
        costs = {"blocks": key[1], "width": width, "texts_per_s": round(len(texts[n]) / median(seconds[key]), 1)}
        found.append(costs | {"model_bytes": n_bytes[key], "row_bytes": width * np.dtype(spec.store_dtype).itemsize})
    return found


def _sample(store: Store) -> list[str]:
    """Return texts from all over the first shard of a store, or its words or tokens as texts."""
    from bertfeat.extraction.estimation import spread

    order = (Level.SENTENCE, Level.WORD, Level.TOKEN, Level.SPAN)
    level = next(level for level in order if level in store.levels)
    column = LEVELS[level].surface or "text"
    frame = store.shard(store.manifest.shards[0].shard).polars(level, ["doc_id", column])
    words = pl.col(column).str.replace(_TOKEN_MARK, "").str.join(" ")
    joined = frame.group_by("doc_id", maintain_order=True).agg(words)[column].to_list()
    texts = spread([text for text in joined if text.strip()], _MAX_TEXTS)
    if not texts:
        raise UserError(f"{store.path}: its first shard has no text to measure speed on; extract texts first")
    return texts[: max(1, int(np.searchsorted(np.cumsum([*map(len, texts)]), _MAX_CHARACTERS)))]
