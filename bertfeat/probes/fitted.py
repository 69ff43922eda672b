"""Fitted probe with the origin of its features: it scores, predicts and saves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

import numpy as np
import polars as pl

from bertfeat.choices import Level, Task
from bertfeat.config import names_in
from bertfeat.corpus import Inputs, Paths, reader_of, resolve_kind
from bertfeat.corpus.corpus import may_be_file
from bertfeat.corpus.data_frames import hold_texts
from bertfeat.display import html_table, model_text
from bertfeat.durable.files import os_errors
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.forks import limit_threads
from bertfeat.heads.base import Probe, require_same_kind
from bertfeat.heads.folder import load_probe as load_head
from bertfeat.heads.folder import save_probe as save_head
from bertfeat.levels import LEVELS
from bertfeat.probes.config import LabelTable, PredictSettings
from bertfeat.probes.description import Training, training_of
from bertfeat.probes.predictions import (
    PREDICTION,
    PROBABILITY,
    OutputColumns,
    Written,
    check_output,
    kept_settings,
    most_confident_first,
    predict_rows,
    write_frames,
)
from bertfeat.probes.rows import IS_FIRST_TOKEN, LabelSource, select_rows, warn_of_gaps
from bertfeat.probes.scoring import ProbeScore, score_rows
from bertfeat.progress import Progress
from bertfeat.records import BoolArray
from bertfeat.settings import ExtractSettings
from bertfeat.storage import ObjectPath, as_path
from bertfeat.store.parts import frame_of
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from bertfeat.store.reader import as_store as opened_store
from bertfeat.vectors.array import ArrayVectors, Vectors
from bertfeat.vectors.store import StoreVectors

if TYPE_CHECKING:
    from bertfeat.extraction.flow import Flow
    from bertfeat.shipping.ship import Shipped


@dataclass(eq=False)
class FittedProbe:
    """A fitted probe, the feature that it reads, and how it was trained; made by `fit_probe` or `load_probe`.

    Attributes:
        probe: The classifier, a scikit-learn estimator.
        training: A record of its feature, label and training: rows, classes, seeds, scores on dev, versions, ...
        name: Its name in messages.
    """

    probe: Probe
    training: Training
    name: str
    _flows: dict[str, Flow] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        what = f"{self.probe.head} on {self.spec.feature}, level {self.level}, label {self.label!r}"
        learned = "numbers" if self.probe.task == Task.REGRESS else f"{len(self.probe.classes_)} classes"
        return f"FittedProbe({self.name!r}, {what}, {learned})"

    def _repr_html_(self) -> str:
        names = ("model", "n_rows", "n_documents", "metric", "params", "classes")
        summary = {**self.summary(), "model": model_text(to_values(self.spec))}
        return html_table(repr(self), ["", "value"], [(name, summary[name]) for name in names])

    @property
    def spec(self) -> FeatureSpec:
        """The feature, with the settings that it was extracted with."""
        return self.training.spec

    @property
    def label(self) -> str:
        """The column that it learned."""
        return self.training.label

    @property
    def level(self) -> Level:
        """The level whose rows it labels."""
        return self.spec.level

    def score(
        self,
        store: str | Path | Store,
        *,
        label: str | None = None,
        labels: LabelTable | None = None,
        bootstrap: bool = True,
    ) -> ProbeScore:
        """Score it on a labelled store, in memory that stays flat.

        Args:
            store: The store, extracted with the settings of the one that it was fitted on.
            label: The column with the labels; None for the one that it was fitted on.
            labels: A file or frame with the labels; see `ProbeConfig`.
            bootstrap: Whether to compute confidence intervals.

        Raises:
            UserError: The store has other features or no labels.
            StoreError: A part is missing or damaged.
        """
        store = as_store(store)
        self.spec.find_in(store, mine=self._mine)
        rows = select_rows(store, self.level, self.spec.feature, label or self.label, labels, task=self.probe.task)
        warn_of_gaps(store, rows, type(self.probe))
        if self.probe.task == Task.CLASSIFY:
            require_same_kind(rows.labels, rows.source.where, self.probe.classes_, self._mine)
        return score_rows(self.probe, rows.stream(store, self.spec.feature), rows, bootstrap=bootstrap)

    @overload
    def predict(
        self, what: Store | Inputs, output: None = None, **settings: Unpack[PredictSettings]
    ) -> pl.DataFrame: ...
    @overload
    def predict(self, what: Store | Inputs, output: str | Path, **settings: Unpack[PredictSettings]) -> Written: ...
    def predict(
        self,
        what: Store | Inputs,
        output: str | Path | None = None,
        *,
        columns: str | Sequence[str] = (),
        errors: bool = False,
        label: str | None = None,
        labels: LabelTable | None = None,
        overwrite: bool = False,
        progress: bool | Progress | None = None,
        **settings: Unpack[ExtractSettings],
    ) -> pl.DataFrame | Written:
        """Label the rows of a store, of texts, or of a corpus that is extracted with the probe's own settings.

        A list of texts is encoded in memory, by an encoder that is loaded once. The features of a corpus are kept in a
        temporary folder while this runs, beside the output if there is one.

        Args:
            what: A store or its folder; a list of texts, each a document whose `doc_id` is its number; or a corpus as
                `extract` takes it: a file, a list of files, a glob, `-` for standard input, a data frame, ...
            output: A file to write shard by shard, which ends in .parquet or .csv and appears only when it is whole;
                None to return the rows.
            columns: Further columns: of the level, of its documents if the sentence level is stored too, of the corpus,
                or gold labels under their name. A list, or names between commas.
            errors: Return only the rows whose prediction is missing or is not the gold label: those that the score
                counts as errors. The most probable predictions come first, rows without one last; the errors, and
                nothing else, are held in memory for this.
            label: The column with the gold labels; None for the one that the probe was fitted on.
            labels: A file or frame with the gold labels; see `ProbeConfig`.
            overwrite: Replace a file that is already there.
            progress: Progress of the extraction; see `extract`.
            **settings: Settings to read the corpus (`text_column`, `format`, `id_column`, ...) and to compute
                (`device`, `workers`).

        Returns:
            A row for each row of the level, in order: `doc_id`; `word_index` and `word`, `token_index` and `token`, or
            `span_index` and `text`; `columns`; the gold label if `errors`, `label` or `labels` is given; `prediction`;
            and `probability`, which is null for heads that have none. Both are null in rows without a vector. With
            `output`, what was written.

        Raises:
            UserError: The store has other features or the model has changed; a column, the gold labels or a setting
                cannot be used; or the file is already there.
            StoreError: A part is missing or damaged.
            RunError: The run failed, or the system refused a write; no files are left.
        """
        out = None if output is None else check_output(output, overwrite=overwrite)
        names = names_in(columns)
        asks_gold = errors or label is not None or labels is not None or self.label in names
        gold = (label or self.label) if asks_gold else None
        if errors and self.probe.task != Task.CLASSIFY:
            raise UserError(f"{self._mine} has `task={str(self.probe.task)!r}`; `errors` are of one class per row")
        store, texts, n_set_aside = _store_of(what), _texts_of(what), 0
        if store is not None and settings:
            raise UserError(f"`{next(iter(settings))}` is for reading text; {store.path} is a store")
        of_rows = self.spec.row_settings(mine=self._mine) if store is None else {}
        if texts is not None:
            if out is None and not names and gold is None and settings.keys() <= {"device"}:
                return self._predict_texts(texts, {**of_rows, **settings})
            what = {settings.get("text_column", "text"): texts}
        with ExitStack() as stack:
            if store is not None:
                place = str(store.path)
            else:
                config = self.spec.extract_config(**{**of_rows, **settings})
                corpus = resolve_kind(cast("Inputs", what), config)
                place = ", ".join(map(str, corpus)) if isinstance(corpus, Paths) else "the data frame"
                prefix, parent = (f".{out.name}-", out.parent) if out else (None, None)
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=parent))
                reader = reader_of(corpus, config.format)
                kept = kept_settings(self.level, names, gold if labels is None else None, reader)
                store = self._extract(corpus, Path(folder) / "features", {**of_rows, **kept, **settings}, progress)
                n_set_aside = store.manifest.totals.n_bad_rows
            # Settings of an extraction may have changed the feature.
            self.spec.find_in(store, mine=self._mine)
            source = None if gold is None else LabelSource.find(store, self.level, gold, labels, place)
            shown = OutputColumns.of(store, self.level, names, source, place)
            frames = self._predict_store(store, shown, only_errors=errors)
            if errors:
                frames = iter([most_confident_first(frames)])
            if out is None:
                return pl.concat(frames)
            written = write_frames(frames, out)
            return written._replace(n_set_aside=n_set_aside, n_gold=shown.n_gold if errors else None)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Save as safetensors and JSON.

        Args:
            folder: A folder that is not there yet.
            overwrite: Replace a probe that is already there.

        Raises:
            UserError: Something is already there.
            RunError: The system refused a write.
        """
        save_head(self.probe, folder, self.training, overwrite=overwrite)
        self.name = Path(folder).absolute().name

    def ship(self, output: str | Path, *, to: str = "transformers", overwrite: bool = False) -> Shipped:
        """Write it, with the blocks of the model that it needs, as a model folder that works without bertfeat.

        The linear head becomes the classifier. A folder that does not give the probe's scores is refused.

        Args:
            output: A folder that is not there yet.
            to: The library that loads the folder: `transformers`, `sentence-transformers`, or `onnx`.
            overwrite: Replace a model that was shipped before.

        Returns:
            The folder, its blocks and its size, beside those of the whole model.

        Raises:
            UserError: The library cannot express the probe (the message names what can), the model has changed, or
                something is already there.
            RunError: The system refused a write.
        """
        from bertfeat.shipping.ship import ship

        return ship(self, output, to=to, overwrite=overwrite)

    def summary(self) -> dict[str, Any]:
        """Return the probe's head, parameters and classes, and the record of its training, as JSON values."""
        return self.training.to_dict(self.probe.head, self.probe.settings, self.probe.classes_.tolist())

    @property
    def _mine(self) -> str:
        return f"probe {self.name}"

    def _extract(
        self, corpus: Any, folder: Path, settings: Mapping[str, Any], progress: bool | Progress | None
    ) -> Store:
        """Extract a corpus with the probe's own settings, and others in their place, by the probe's model."""
        from bertfeat.encoder.checkpoint import open_checkpoint
        from bertfeat.extraction.resolution import check_model
        from bertfeat.extraction.run import extract

        config = self.spec.extract_config(**settings)
        check_model(self.spec, open_checkpoint(config.model, config.revision), mine=self._mine)
        return extract(corpus, folder, config, progress=progress)

    def _predict_store(self, store: Store, shown: OutputColumns, *, only_errors: bool) -> Iterator[pl.DataFrame]:
        """Yield the predictions of each shard, or only those that are not the gold label."""
        for entry in store.manifest.shards:
            shard, at = store.shard(entry.shard), (self.level, self.spec.feature)
            frame = shown.read(shard, ["word_index"] if self.training.first_tokens else [])
            found = self._labelled(frame, shard.valid(*at), partial(StoreVectors, shard, *at))
            found = found.select(*shown.shown, PREDICTION, PROBABILITY)
            yield shown.errors(found, self.probe.classes_, self._mine) if only_errors else found
        if shown.gold is not None and only_errors and not shown.n_gold:
            raise shown.gold.error_of_none()

    def _predict_texts(self, texts: Sequence[str], settings: Mapping[str, Any]) -> pl.DataFrame:
        """Return the predictions for texts in memory, with the columns that name a row."""
        # Imported here because scoring and fitting linear heads need no torch.
        from bertfeat.extraction.documents import documents_of
        from bertfeat.extraction.flow import Flow

        documents = documents_of(texts)
        if not documents:
            raise UserError("texts is empty; pass one text or more")
        key = repr(sorted(settings.items()))
        if key not in self._flows:
            self._flows[key] = Flow.of_feature(self.spec, mine=self._mine, **settings)
        flow = self._flows[key]
        table = flow.run(documents)[self.level]
        frame = frame_of(table, flow.schemas[self.level], flow.config.store_dtype)
        has_vector = np.ones(table.n_rows, np.bool_) if table.valid is None else table.valid
        vectors = self.spec.vectors_in(table)
        found = self._labelled(frame, has_vector, lambda rows, **_: ArrayVectors(vectors[rows]))
        return found.select(*LEVELS[self.level].names, PREDICTION, PROBABILITY)

    def _labelled(self, frame: pl.DataFrame, has_vector: BoolArray, vectors: Callable[..., Vectors]) -> pl.DataFrame:
        """Add predictions to a frame of rows, null without a vector; `vectors` takes `rows` and their `documents`."""
        if self.training.first_tokens:
            has_vector = has_vector & frame.select(IS_FIRST_TOKEN).to_series().to_numpy()
        rows = np.flatnonzero(has_vector)
        documents = frame["doc_id"].rle_id().cast(pl.Int64).to_numpy()[rows]
        found = predict_rows(self.probe, vectors(rows=rows, documents=documents), documents)
        places = pl.Series(np.full(frame.height, -1)).scatter(rows, np.arange(len(rows))).replace(-1, None)
        return frame.hstack(found.select(pl.all().gather(places)))


@os_errors(UserError)
def load_probe(folder: str | Path) -> FittedProbe:
    """Load a saved probe.

    Raises:
        UserError: The folder has no probe, or the probe is damaged.

    Examples:
        >>> from bertfeat import extract, fit_probe
        >>> store = extract("examples/data/wnut17_dev.conll", tmp / "features", levels="word", layers="-1")
        >>> fit_probe(store, "label", level="word", head="centroid").save(tmp / "probe")
        >>> load_probe(tmp / "probe").score(store).metric
        'entity_f1'
    """
    probe, extra = load_head(folder)
    return FittedProbe(probe, training_of(extra, folder), Path(folder).absolute().name)


def as_store(store: str | Path | Store) -> Store:
    """Return a store, or open the store in a folder; a probe computes with its rows next."""
    limit_threads()
    return opened_store(store)


def _store_of(what: Store | Inputs) -> Store | None:
    """Return a store, or the store in a folder; None for texts and corpora."""
    if isinstance(what, str) and not may_be_file(what):
        raise UserError(f"{what!r:.60} is neither a store nor a file; pass texts as a list")
    if isinstance(what, Store) or (isinstance(what, str | Path | ObjectPath) and as_path(what).is_dir()):
        return as_store(what)
    return None


def _texts_of(what: Store | Inputs) -> list[str] | None:
    """Return a list of texts; None for a list of files or rows, and anything else."""
    if not isinstance(what, list | tuple) or isinstance(what, Paths):
        return None
    if all(isinstance(item, str | Path) for item in what):
        return [*what] if not what or hold_texts(what) else None
    return None if all(isinstance(item, Mapping) for item in what) else [*what]
