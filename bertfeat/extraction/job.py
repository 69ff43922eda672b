"""A job: a plan with everything that a worker needs to run its shards.

Nothing here needs torch: wrong inputs and settings, and a finished store, are reported before it is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertfeat.choices import Level, Pooling, Runner
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, Inputs, resolve_inputs, spool_stdin
from bertfeat.corpus.formats import WORD_FORMATS, check_text_column
from bertfeat.corpus.frames import Paths, resolve_kind, write_frame
from bertfeat.corpus.inputs import STDIN, shown_path
from bertfeat.devices import resolve_device
from bertfeat.durable.differences import differing, named
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.modelplaces import name_elsewhere
from bertfeat.encoder.sentencemodel import UNSUPPORTED, Prompts
from bertfeat.errors import CheckpointError, InputError, PlanMismatch
from bertfeat.extraction.plan import MODEL_NAMES, make_plan, plan_fields, versions
from bertfeat.extraction.resolution import AuthorsAdvice, Resolved, check_settings, resolve
from bertfeat.extraction.staticmodels import check_static, open_tokenizer
from bertfeat.forks import check_polars
from bertfeat.levels import LEVELS, PAIR_COLUMNS
from bertfeat.progress import Progress
from bertfeat.records import InputFile, Plan
from bertfeat.runners.ray import OnRay
from bertfeat.runners.ray_cluster import check_ray
from bertfeat.storage import AnyPath, ObjectPath, as_path, is_url
from bertfeat.store.codec import hash_fields
from bertfeat.store.folder import Lease
from bertfeat.store.layout import TMP
from bertfeat.store.planfile import PlanDamaged, is_complete, read_plan
from bertfeat.store.planstates import is_of_inputs, state_of
from bertfeat.text.tokenizer import Tokenizer

_TEXTS = "for texts in memory pass {'text': [...]}, a Series or a data frame, or use bertfeat.Encoder"


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a worker needs to run any shard; small, and it can be pickled.

    `workers` is the number of processes on this machine, or the place on Ray; `lease` is that of the open store;
    `cache_token` names the run in its cache.
    """

    root: AnyPath
    plan: Plan
    config: ExtractConfig
    files: tuple[InputFile, ...]
    resolved: Resolved
    workers: int | OnRay
    lease: Lease | None = None
    cache_token: str = ""

    @property
    def on_cluster(self) -> bool:
        """Whether workers may run on other machines."""
        return isinstance(self.workers, OnRay)

    def for_workers(self, lease: Lease | None) -> Job:
        """Return the job as it is sent to workers; other machines get absolute paths and the plan's kind of device.

        Workers need not know the shards that are not theirs, nor the inputs twice: those of many files are large.
        """
        fields = {name: value for name, value in self.plan.fields.items() if not is_of_inputs(name)}
        plan = dataclasses.replace(self.plan, fields=fields, inputs=(), shards=())
        if not self.on_cluster:
            return dataclasses.replace(self, plan=plan, lease=lease)
        config = dataclasses.replace(
            self.config,
            device=self.plan.fields["device_kind"],
            model=name_elsewhere(self.config.model),
            cache=None if self.config.cache is None else str(Path(self.config.cache).absolute()),
        )
        files = tuple(
            file if is_url(file.path) else dataclasses.replace(file, path=str(Path(file.path).absolute()))
            for file in self.files
        )
        return dataclasses.replace(self, root=_absolute(self.root), plan=plan, config=config, files=files, lease=lease)


@contextmanager
def open_inputs(inputs: Inputs, output: str | AnyPath, config: ExtractConfig) -> Iterator[tuple[InputFile, ...]]:
    """Resolve the inputs to files; standard input or a data frame is copied beside the output until the run ends.

    Raises:
        InputError: A file is missing, its format is unknown, or a data frame cannot be read.
    """
    check_polars()
    found = resolve_kind(inputs, config)
    if not isinstance(found, Paths):
        with _spool_folder("frame", output, config) as folder:
            arguments = [str(write_frame(found, folder, config))]
            yield resolve_inputs(arguments)
        return
    arguments = [str(as_path(item)) if isinstance(item, Path) else item for item in found]
    if STDIN not in arguments:
        try:
            files = resolve_inputs(arguments, config.format)
        except InputError as error:
            if found is inputs or not error.reason.startswith(("no such", "no file")):
                raise
            raise InputError(f"{error.reason}; {_TEXTS}", path=error.path) from None
        yield _with_bytes(files)
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
    """Plan a run, or use the plan of the store at `output` if it is the same.

    Raises:
        UserError: The model, the settings or a row of the corpus cannot be used.
        PlanMismatch: An unfinished store was begun by other versions of the libraries.
    """
    if config.runner is Runner.RAY:
        check_ray(config.ray_address)
    # An append has this setting from its store, whose files may have columns.
    check_text_column(files, config)
    corpus = Corpus(files, config)
    corpus.check_head()
    checkpoint = open_checkpoint(config.model, config.revision, config.random_weights)
    tokenizer, resolved = resolve_job(checkpoint, files, config)
    plan = None if overwrite else _stored_plan(output, config, resolved, files)
    if plan is None:
        progress.stage("reading the corpus")
        plan = make_plan(config, resolved, files, corpus, tokenizer)
        plan = dataclasses.replace(plan, inputs=recorded(files))
    return make_job(output, plan, config, files, resolved)


def recorded(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """Return inputs under the names that a plan records; standard input and a data frame have names of their own."""
    names = [shown_path(file.path).replace("<stdin>", STDIN) for file in files]
    return tuple(
        file if name == file.path else dataclasses.replace(file, path=name)
        for file, name in zip(files, names, strict=True)
    )


def make_job(
    output: AnyPath, plan: Plan, config: ExtractConfig, files: tuple[InputFile, ...], resolved: Resolved
) -> Job:
    """Return the job of a plan, with the place where its workers run."""
    if config.runner is Runner.RAY:
        folder = _absolute(output) / TMP
        workers: int | OnRay = OnRay(config.ray_address, config.workers, resolved.device_kind == "cuda", folder)
    else:
        workers = config.workers or (1 if resolved.device_kind == "cpu" else len(resolve_device(config.device)))
    # The commit that the hub's branch is at now; a stored plan may have another name for the model.
    config = dataclasses.replace(config, revision=resolved.model.revision)
    return Job(output, plan, config, files, resolved, workers)


def _stored_plan(output: AnyPath, config: ExtractConfig, resolved: Resolved, files: Sequence[InputFile]) -> Plan | None:
    try:
        stored = read_plan(output)
    except PlanDamaged:
        # The plan is made again, and opening the store for writing repairs the file.
        return None
    if stored is None:
        return None
    # Digests identify the model; its folder may have another name now.
    # A finished store has its shards, whatever size another run asks for.
    kept = (*MODEL_NAMES, "shard_bytes") if is_complete(output) else MODEL_NAMES
    names = {name: stored.fields.get(name) for name in kept}
    # Of a grown store, the plan of the first extraction.
    fields = plan_fields(config, resolved, files) | names
    stored = state_of(stored, hash_fields(fields))
    if stored is None:
        return None
    for level, features in resolved.columns.items():
        written = {column.name for column in LEVELS[level].columns if column not in PAIR_COLUMNS}
        schema = stored.schemas[level]
        if schema.features != features or not written <= {column.name for column in schema.columns}:
            raise PlanDamaged(
                f"{output}: the {level} columns of its plan.json do not follow from the settings; use `overwrite`"
            )
    if not is_complete(output):
        check_versions(stored, f"{output}: begun with other versions", "install those, or pass `overwrite`")
    return stored


def check_versions(stored: Plan, what: str, remedy: str) -> None:
    """Refuse to continue a store of other versions of the libraries: its vectors would not be of one kind.

    Raises:
        PlanMismatch: The versions differ; the message begins with `what` and ends with `remedy`.
    """
    made_by, here = stored.metadata["versions"], versions()
    if made_by != here:
        fields = {f"versions.{name}": pair for name, pair in differing(made_by, here).items()}
        raise PlanMismatch(f"{what}: {named(differing(made_by, here))}; {remedy}", fields)


def resolve_job(
    checkpoint: Checkpoint, files: Sequence[InputFile], config: ExtractConfig
) -> tuple[Tokenizer, Resolved]:
    """Load the tokenizer of a corpus, and fill in the defaults that depend on the model.

    Raises:
        UserError: The settings do not fit the model, or the model or the corpus cannot be used.
    """
    check_static(config, checkpoint)
    prompt, advice = find_prompt(checkpoint, config), authors_advice(checkpoint, config)
    check_settings(config, checkpoint.info())
    tokenizer = load_tokenizer(checkpoint, files, config, prompt)
    return tokenizer, resolve(config, checkpoint, tokenizer, advice)


def load_tokenizer(checkpoint: Checkpoint, files: Sequence[InputFile], config: ExtractConfig, prompt: str) -> Tokenizer:
    """Load the tokenizer of a model for the words or the running text of a corpus.

    Raises:
        UserError: Some files give words and others text, or the tokenizer cannot be used.
    """
    first = {file.format in WORD_FORMATS or config.is_split_into_words: file.path for file in reversed(files)}
    if len(first) > 1:
        raise InputError(f"gives text, and {first[True]} gives words; extract them apart", path=first[False])
    return open_tokenizer(checkpoint, given_words=True in first, prompt=prompt)


def find_prompt(checkpoint: Checkpoint, config: ExtractConfig) -> str:
    """Return the text that is put before each document; the model's default prompt counts with pooling `model` only.

    Raises:
        UserError: The model has no prompt of the name asked for, or its list of prompts cannot be used.
    """
    if config.prompt is not None:
        return config.prompt
    name = config.prompt_name
    if name is None and config.pooling is not Pooling.MODEL:
        return ""
    prompts = checkpoint.prompts()
    name = prompts.default_name if name is None else name
    return "" if name is None else prompts.text_of(name)


def authors_advice(checkpoint: Checkpoint, config: ExtractConfig) -> AuthorsAdvice:
    """Return how a model is meant to be used at the sentence level; nothing if no such rows are asked for.

    Raises:
        CheckpointError: Pooling `model` is asked for, and the model has no sentence embedding of its own, or one that
            is not supported.
    """
    if Level.SENTENCE not in config.levels:
        return AuthorsAdvice()
    if config.pooling is Pooling.MODEL:
        sentence = checkpoint.sentence_model()
        if sentence is None:
            online = "" if checkpoint.revision is None else ", or connect to the hub once if its page has that file"
            raise CheckpointError(
                f"`pooling='model'`: {checkpoint.folder} has no modules.json, so the model has no sentence embedding "
                f"of its own; pass `pooling='mean'`{online}"
            )
        return AuthorsAdvice(sentence.describe(), checkpoint.prompts().texts, sentence)
    description, prompts = UNSUPPORTED, Prompts()
    with contextlib.suppress(CheckpointError):
        sentence = checkpoint.sentence_model()
        description = sentence.describe() if sentence else ""
    with contextlib.suppress(CheckpointError):
        prompts = checkpoint.prompts()
    return AuthorsAdvice(description, prompts.texts)
