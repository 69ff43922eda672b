"""Command of a recipe, alone in its output folder, with the documents that it reads, and what it writes and costs."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import polars as pl

from bertfeat import Store
from bertfeat.choices import Level
from bertfeat.cli import options
from bertfeat.cli.failures import report_failures
from bertfeat.cli.options import refuse_given as refuse_given
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, cut_shards, resolve_inputs
from bertfeat.corpus.formats import check_text_column
from bertfeat.durable.file_lock import folder_lock
from bertfeat.durable.files import make_parents, remove_empty
from bertfeat.durable.publication import publish_bytes
from bertfeat.errors import InputError, require
from bertfeat.plots.tables import markdown_table
from bertfeat.records import Document

#: The folder of checkpoints in the output folder; it is removed when the results are written.
CHECKPOINTS = ".checkpoints"
FILE = click.Path(exists=True, dir_okay=False)
OUTPUT = click.Path(file_okay=False, path_type=Path)
_LOCK = ".lock"

_OUTPUT = click.Option(["-o", "--output"], type=OUTPUT, required=True, help="Folder of the results.")
_GROUPS = (options.corpus_options, options.model_options, options.feature_options, options.length_options)
_EXTRACT = click.command()(options.together(*_GROUPS, options.compute_options)(lambda: None))
features_options = options.together(
    click.option("--layers", default="-1", show_default=True, help="One layer, or several concatenated ones."),
    click.option("--pooling", type=click.Choice(["mean", "max", "cls"]), default="mean", show_default=True),
)


def read_documents(path: str | Path, **settings: Any) -> list[Document]:
    """Return the documents of a file in order, with kept columns and annotations; `settings` are of `ExtractConfig`."""
    # At these levels, no setting that says how files are read is ignored.
    given = {name: value for name, value in settings.items() if value is not None}
    config = ExtractConfig.from_dict({"levels": (Level.WORD, Level.SENTENCE), **given})
    files = resolve_inputs([str(path)], config.format)
    check_text_column(files, config)
    with closing(Corpus(files, config)) as corpus:
        everything = cut_shards(corpus.scan(), lambda _: 0, 1, keep_groups=False)
        return [row for shard in everything for row in corpus.read(shard) if isinstance(row, Document)]


def read_splits(files: Mapping[str, str], *, seed: int, n_drawn: int | None = None, **settings: Any) -> Any:
    """Return the documents of each file, or `n_drawn` of them; dev and test are held out of train if they have none."""
    splits = {}
    for name, path in files.items():
        documents = read_documents(path, **settings)
        splits[name] = [documents[row] for row in draw_rows(len(documents), n_drawn)]
    train = splits["train"]
    held = hold_out(len(train), seed, {"test", "dev"} - splits.keys())
    return splits | {name: [train[row] for row in rows] for name, rows in held.items()}


def draw_rows(n_rows: int, limit: int | None) -> list[int]:
    """Return the numbers of the rows to use, in order: all, or `limit` of them, drawn at random."""
    rows = pl.int_range(n_rows, eager=True)
    return (rows if limit is None else rows.sample(min(limit, n_rows), seed=0, shuffle=True)).to_list()


def hold_out(n_rows: int, seed: int, names: Collection[str] = ("test", "dev")) -> dict[str, list[int]]:
    """Return the rows of train and of each of `names`: a fifth for test, and a tenth of the rest for dev."""
    rows = pl.int_range(n_rows, eager=True).sample(fraction=1.0, shuffle=True, seed=seed).to_list()
    held = {}
    for name, share in {"test": 5, "dev": 10}.items():
        if name in names:
            cut = max(1, len(rows) // share)
            held[name], rows = rows[:cut], rows[cut:]
    if held and not rows:
        raise InputError(f"{n_rows} rows are too few to train on and to hold out {' and '.join(held)}; bring more")
    return {"train": rows, **held}


class Result(NamedTuple):
    """The result of a recipe: what result.json has beside the options, and the text to print."""

    values: Mapping[str, Any]
    text: str


def recipe(*libraries: str, extraction: str = "model") -> Callable[[Callable[..., Result]], click.Command]:
    """Return the decorator of a command that needs libraries, with --output and the named options of an extraction."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.command(cls=_Recipe, libraries=libraries, extraction=extraction.split(), context_settings=settings)


class _Recipe(click.Command):
    def __init__(self, *, libraries: Sequence[str], extraction: Sequence[str], callback: Any, **settings: Any) -> None:
        super().__init__(callback=callback, **settings)
        if not any("--output" in param.opts for param in self.params):
            self.params.append(_OUTPUT)
        self.params += [param for param in _EXTRACT.params if param.name in extraction]
        self._libraries = libraries
        self._pipeline = Path(inspect.getfile(callback)).stem

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run the recipe, and report errors as commands do."""
        with report_failures(self):
            return super().main(*arguments, **{**settings, "standalone_mode": False})

    def invoke(self, ctx: click.Context) -> None:
        """Run the recipe, unless a library is missing or another process writes to the output folder."""
        require(*self._libraries, what="this recipe needs")
        started = time.perf_counter()
        output: Path | None = ctx.params.get("output")
        with contextlib.nullcontext() if output is None else _alone_in(output):
            values, text = super().invoke(ctx)
            if output is not None:
                options = {name: value for name, value in ctx.params.items() if name != "output"}
                result = {"pipeline": self._pipeline, "seconds": time.perf_counter() - started, **options, **values}
                write(output / "result.json", result)
                shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)
        click.echo(text)


@contextlib.contextmanager
def _alone_in(output: Path) -> Iterator[None]:
    """Make a folder and lock it during the block; the lock ends with its process, also if that is killed."""
    path = output / _LOCK
    made = make_parents(path)
    try:
        with folder_lock(output, _LOCK, "is running a recipe with this --output"):
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
    finally:
        remove_empty(made)


def write(path: Path, content: str | Mapping[str, Any] | pl.DataFrame) -> None:
    """Publish a text, values as JSON, or a table as Parquet, CSV or JSON lines; the folder is made if missing."""
    data = io.BytesIO()
    if isinstance(content, str):
        data.write(content.encode())
    elif not isinstance(content, pl.DataFrame):
        data.write(json.dumps(content, indent=2).encode() + b"\n")
    elif path.suffix == ".parquet":
        content.write_parquet(data)
    elif path.suffix == ".csv":
        content.write_csv(data)
    else:
        content.write_ndjson(data)
    make_parents(path)
    publish_bytes(path, data.getvalue())


def extraction_seconds(stores: Iterable[Store]) -> float:
    """Return the time that the shards of stores took, in whichever run; loading the model is not in it."""
    return sum(sum(receipt.seconds.values()) for store in stores for receipt in store.receipts())


def costs_of(probe: Any, stores: Collection[Store]) -> tuple[float, int]:
    """Return the seconds of the extraction and of one training, and the size of the vectors that a probe reads."""
    spec = probe.spec
    # A sum or a mean that is not stored reads all of its layers.
    n_values = int(spec.dim * (len(spec.layers) if spec.is_added_up else 1))
    n_bytes = sum(store.n_rows(spec.level) for store in stores) * n_values * np.dtype(str(spec.store_dtype)).itemsize
    return extraction_seconds(stores) + probe.training.seconds, n_bytes


def cost_cells(seconds: float | None, n_bytes: int | None) -> list[str | None]:
    """Return the cells of a table: seconds and MB."""
    return [None if seconds is None else f"{seconds:.1f}", None if n_bytes is None else f"{n_bytes / 1e6:.1f}"]


def cost_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of rows with `features`, `score` as `to_dict` gives it, `seconds` and `n_bytes`."""
    metric = rows[0]["score"]["metric"]
    lines = []
    for row in rows:
        between = row["score"]["intervals"].get(metric)
        interval = between and f"{between['low']:.3f} to {between['high']:.3f}"
        costs = cost_cells(row["seconds"], row["n_bytes"])
        lines.append([row["features"], f"{row['score'][metric]:.3f}", interval, *costs])
    return markdown_table(["features", metric.replace("_", " "), "95 % interval", "seconds", "MB"], lines)
