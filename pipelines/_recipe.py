"""Command of a recipe: it is alone in its output folder, writes result.json at its end, and prints a table."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import polars as pl
from click.core import ParameterSource

from bertfeat.cli import options
from bertfeat.cli.failures import report_failures
from bertfeat.cli.options import refuse_given
from bertfeat.config import ExtractConfig
from bertfeat.durable.file_lock import folder_lock
from bertfeat.durable.files import make_parents, remove_empty
from bertfeat.durable.publication import publish_bytes
from bertfeat.errors import BertfeatWarning, require

__all__ = [
    "CHECKPOINTS", "FILE", "OUTPUT", "Result", "config_of_pooling", "features_options", "output_option", "recipe",
    "refuse_given", "warn_of_poolings", "write",
]  # fmt: skip

#: The folder of checkpoints in the output folder; it is removed when the results are written.
CHECKPOINTS = ".checkpoints"
FILE = click.Path(exists=True, dir_okay=False)
OUTPUT = click.Path(file_okay=False, path_type=Path)
_LOCK = ".lock"

output_option = click.option("-o", "--output", type=OUTPUT, required=True, help="Folder of the results.")
_GROUPS = (options.corpus_options, options.model_options, options.feature_options, options.length_options)
_EXTRACT = click.command()(options.together(*_GROUPS, options.compute_options)(lambda: None))


def features_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of one feature of texts to a command: --layers, --pooling."""
    poolings = click.Choice(["mean", "max", "cls"])
    layers = click.option("--layers", default="-1", show_default=True, help="One layer, or several concatenated ones.")
    return layers(click.option("--pooling", type=poolings, default="mean", show_default=True)(function))


class Result(NamedTuple):
    """The result of a recipe: the values of result.json, and the text to print."""

    values: Mapping[str, Any]
    text: str


def recipe(*libraries: str, extraction: str = "model") -> Callable[[Callable[..., Result]], click.Command]:
    """Return the decorator of a command that needs libraries and has the named options of `bertfeat extract`."""
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.command(cls=_Recipe, libraries=libraries, extraction=extraction.split(), context_settings=settings)


class _Recipe(click.Command):
    def __init__(
        self, *, libraries: Sequence[str], extraction: Sequence[str], callback: Callable[..., Result], **attributes: Any
    ) -> None:
        super().__init__(callback=callback, **attributes)
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
                result = {"pipeline": self._pipeline, "seconds": time.perf_counter() - started, **values}
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


def config_of_pooling(pooling: str, settings: Mapping[str, Any]) -> ExtractConfig:
    """Return the settings of one of several extractions; what this pooling ignores, another may need."""
    return ExtractConfig.from_dict({**settings, "pooling": pooling}).effective()


def warn_of_poolings(poolings: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Warn of options of the command line that have no effect with any of the poolings."""
    source = click.get_current_context().get_parameter_source
    each = [{*ExtractConfig.from_dict({**settings, "pooling": pooling}).ignored()} for pooling in poolings]
    for name in sorted(set.intersection(*each)):
        if source(name) is ParameterSource.COMMANDLINE:
            said = f"`{name}` has no effect with `poolings={','.join(poolings)}`; leave it out"
            warnings.warn(BertfeatWarning(said), stacklevel=2)
