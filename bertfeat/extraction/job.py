"""A job: a plan with everything that a worker needs to run its shards.

Nothing here needs torch: wrong inputs and settings, and a finished store, are reported before it is imported.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertfeat.choices import Runner
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, Inputs, resolve_inputs, spool_stdin
from bertfeat.corpus.corpus import STDIN, shown_path
from bertfeat.corpus.data_frames import Paths, resolve_kind, write_frame
from bertfeat.corpus.formats import check_text_column, has_words, own_id_column
from bertfeat.corpus.span_files import shared_spans
from bertfeat.devices import resolve_device
from bertfeat.encoder.checkpoint import name_elsewhere, open_checkpoint
from bertfeat.errors import InputError
from bertfeat.extraction.plan import make_plan, plan_fields, span_file, stored_plan
from bertfeat.extraction.resolution import Resolved, resolve
from bertfeat.forks import check_polars
from bertfeat.progress import Progress
from bertfeat.records import InputFile, Plan
from bertfeat.runners.ray import OnRay, check_ray
from bertfeat.storage import AnyPath, ObjectPath, as_path, is_url
from bertfeat.store.layout import TMP


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a worker needs to run any shard; `workers` is a number of processes, or the place on Ray."""

    root: AnyPath
    plan: Plan
    config: ExtractConfig
    files: tuple[InputFile, ...]
    resolved: Resolved
    workers: int | OnRay

    @property
    def run_name(self) -> str:
        """A name that a resumed run has again, and no other run."""
        return f"{self.plan.plan_hash} {_absolute(self.root)}"

    @property
    def on_cluster(self) -> bool:
        """Whether workers may run on other machines."""
        return isinstance(self.workers, OnRay)

    @contextmanager
    def for_workers(self) -> Iterator[Job]:
        """Yield the job as it is sent to workers; other machines get absolute paths and the plan's kind of device.

        Workers need not know the shards that are not theirs, nor the inputs twice: those of many files are large.
        They share a table of spans, in the folder of the store.
        """
        root, config, files = self.root, self.config, self.files
        if self.on_cluster:
            root = _absolute(root)
            config = dataclasses.replace(
                config,
                device=self.plan.fields["device_kind"],
                model=name_elsewhere(config.model),
                cache=None if config.cache is None else str(Path(config.cache).absolute()),
                spans=config.spans if (spans := span_file(config)) is None else str(Path(spans.path).absolute()),
            )
            files = tuple(
                file if is_url(file.path) else dataclasses.replace(file, path=str(Path(file.path).absolute()))
                for file in files
            )
        with ExitStack() as stack:
            folder = None if isinstance(root, ObjectPath) else root / TMP
            if self.workers != 1 and (folder or not self.on_cluster) and span_file(config):
                shared = stack.enter_context(shared_spans(str(config.spans), folder))
                config = dataclasses.replace(config, spans=shared)
            plan = dataclasses.replace(self.plan, inputs=(), shards=())
            yield dataclasses.replace(self, root=root, plan=plan, config=config, files=files)


@contextmanager
def open_inputs(inputs: Inputs, output: str | AnyPath, config: ExtractConfig) -> Iterator[tuple[InputFile, ...]]:
    """Resolve the inputs to files; standard input or a data frame is copied beside the output until the run ends."""
    check_polars()
    found = resolve_kind(inputs, config)
    if not isinstance(found, Paths):
        with _spool_folder("frame", output, config) as folder:
            arguments = [str(write_frame(found, folder, config))]
            yield resolve_inputs(arguments)
        return
    arguments = [str(as_path(item)) if isinstance(item, Path) else item for item in found]
    if STDIN not in arguments:
        yield _with_bytes(resolve_inputs(arguments, config.format))
        return
    if sys.stdin is None:
        raise InputError("standard input is closed; pipe in a text, or name a file")
    with _spool_folder("stdin", output, config) as folder:
        spooled = spool_stdin(sys.stdin.buffer, folder)
        yield _with_bytes(resolve_inputs(arguments, config.format, spooled=spooled))


@contextmanager
def _spool_folder(kind: str, output: str | AnyPath, config: ExtractConfig) -> Iterator[Path]:
    """Make a folder for the copy of an input, which messages name by its kind, and remove it at the end."""
    what = {"stdin": "-", "frame": "a data frame"}[kind]
    place = as_path(output)
    beside = None if isinstance(place, ObjectPath) else place.absolute().parent
    if config.runner is Runner.RAY:
        if beside is None:
            raise InputError(
                f"{what} cannot be read by the machines of a cluster; upload it first, and name the object"
            )
        if not beside.is_dir():
            raise InputError(f"{what} is copied to a folder that every machine can read; create {beside} first")
    where = beside if beside is not None and beside.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f".bertfeat-{kind}-", dir=where, ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        except InputError as error:
            if error.path is None or shown_path(error.path) == error.path:
                raise
            raise InputError(error.reason, path=shown_path(error.path), row=error.row) from None


def _absolute(place: AnyPath) -> AnyPath:
    return place if isinstance(place, ObjectPath) else place.absolute()


def _with_bytes(files: tuple[InputFile, ...]) -> tuple[InputFile, ...]:
    if not any(file.n_bytes for file in files):
        raise InputError("has no bytes; did the program that writes it fail?", path=files[0].path)
    return files


def open_job(
    config: ExtractConfig, files: tuple[InputFile, ...], output: AnyPath, progress: Progress, *, overwrite: bool
) -> Job:
    """Plan a run, or use the plan of the store at `output` if it is the same."""
    if config.runner is Runner.RAY:
        check_ray(config.ray_address)
    # An append has this setting from its store, whose files may have columns.
    check_text_column(files, config)
    if config.id_column is None:
        config = dataclasses.replace(config, id_column=own_id_column(files))
    corpus = Corpus(files, config)
    corpus.check_head()
    checkpoint = open_checkpoint(config.model, config.revision)
    tokenizer, resolved = resolve(config, checkpoint, given_words=gives_words(files, config))
    fields = plan_fields(config, resolved, files)
    plan = None if overwrite else stored_plan(output, fields, files)
    if plan is None:
        progress.stage("reading the corpus")
        plan = make_plan(fields, resolved, corpus, tokenizer)
    return make_job(output, plan, config, files, resolved)


def make_job(
    output: AnyPath, plan: Plan, config: ExtractConfig, files: tuple[InputFile, ...], resolved: Resolved
) -> Job:
    """Return the job of a plan, with the place where its workers run."""
    if config.runner is Runner.RAY:
        workers: int | OnRay = OnRay(config.ray_address, config.workers, resolved.device_kind == "cuda")
    else:
        workers = config.workers or (1 if resolved.device_kind == "cpu" else len(resolve_device(config.device)))
    # The commit that the hub's branch is at now; a stored plan may have another name for the model.
    config = dataclasses.replace(config, revision=resolved.model.revision)
    return Job(output, plan, config, files, resolved, workers)


def gives_words(files: Sequence[InputFile], config: ExtractConfig) -> bool:
    """Return whether the documents of a corpus are lists of words."""
    first = {has_words(file.format) or config.is_split_into_words: file.path for file in reversed(files)}
    if len(first) > 1:
        raise InputError(f"gives text, and {first[True]} gives words; extract them apart", path=first[False])
    return True in first
