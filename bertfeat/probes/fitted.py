"""Fitted probe with the origin of its features: it scores, predicts and saves."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus import Inputs, Paths, reader_of, resolve_kind
from bertfeat.display import html_table, model_text
from bertfeat.durable.files import os_errors
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.forks import limit_threads
from bertfeat.heads.base import Probe, require_same_kind
from bertfeat.heads.probefolder import load_probe as load_head
from bertfeat.heads.probefolder import save_probe as save_head
from bertfeat.probes.labels import LabelTable, find_labels
from bertfeat.probes.learningrows import select_rows, stream_of
from bertfeat.probes.predictedcolumns import Beside, kept_settings, names_in
from bertfeat.probes.predictions import Written, check_output, predict_table, predicted_frames, write_frames
from bertfeat.probes.probedescription import ProbeDescription, Training, description_of
from bertfeat.probes.scoring import ProbeScore, score_labelled
from bertfeat.progress import Progress
from bertfeat.settings import ExtractSettings
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, open_store

if TYPE_CHECKING:
    from bertfeat.extraction.flow import Flow

_GOLD = "gold"


@dataclass(eq=False)
class FittedProbe:
    """A fitted probe, the feature that it reads, and how it was trained; made by `fit_probe` or `load_probe`.

    Attributes:
        probe: The classifier, a scikit-learn estimator.
        spec: The feature, with the settings that it was extracted with.
        label: The column that it learned.
        first_tokens: At token level, whether it learned the labels of words from their first tokens.
        training: A record of its training: rows, classes, seeds, scores on dev, versions, ...
        name: Its name in messages.
    """

    probe: Probe
    spec: FeatureSpec
    label: str
    first_tokens: bool
    training: Training
    name: str
    _flows: dict[str, Flow] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        what = f"{self.probe.head} on {self.spec.feature}, level {self.level}, label {self.label!r}"
        return f"FittedProbe({self.name!r}, {what}, {len(self.probe.classes_)} classes)"

    def _repr_html_(self) -> str:
        names = ("model", "n_rows", "n_documents", "metric", "params", "classes")
        summary = {**self.summary(), "model": model_text(to_values(self.spec))}
        return html_table(repr(self), ["", "value"], [(name, summary[name]) for name in names if name in summary])

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
            labels: A file or frame with the labels; see `fit_probe`.
            bootstrap: Whether to compute confidence intervals.

        Raises:
            UserError: The store has other features or no labels.
            StoreError: A part is missing or damaged.
        """
        opened = self._checked(store)
        found = select_rows(opened, self.level, self.spec.feature, label or self.label, labels=labels)
        if not len(found.rows):
            raise UserError(f"{opened.path}: no row at level {self.level} has a label; there is nothing to score")
        require_same_kind(found.labels, found.source, self.probe.classes_, self._mine)
        stream = stream_of(opened, self.level, self.spec.feature, found)
        return score_labelled(self.probe, stream, found, self.level, bootstrap=bootstrap)

    def predict(
        self,
        store: str | Path | Store,
        *,
        columns: str | Sequence[str] = (),
        errors: bool = False,
        label: str | None = None,
        labels: LabelTable | None = None,
    ) -> pl.DataFrame:
        """Label the rows of a store.

        Args:
            store: The store.
            columns: Further columns: of the level, of its documents if the sentence level is stored too, or gold labels
                under their name. A list, or names between commas.
            errors: Return only the rows whose gold label is another one than the prediction, or that have a gold label
                and no prediction; the score counts the same rows as errors.
            label: The column with the gold labels; None for the one that the probe was fitted on.
            labels: A file or frame with the gold labels; see `fit_probe`.

        Returns:
            A row for each row of the level, in order: `doc_id`; `word_index` and `word`, or `token_index` and `token`;
            `columns`; the gold label if `errors`, `label` or `labels` is given; `prediction`; and `probability`, which
            is null for heads that have none. Both are null in rows without a vector.

        Raises:
            UserError: The store has other features, or lacks a column or the gold labels.
            StoreError: A part is missing or damaged.
        """
        opened = self._checked(store)
        beside = self._beside(opened, columns, errors, label, labels)
        return pl.concat(self._frames(opened, beside, Counter()))

    def predict_to(
        self,
        store: str | Path | Store,
        path: str | Path,
        *,
        columns: str | Sequence[str] = (),
        errors: bool = False,
        label: str | None = None,
        labels: LabelTable | None = None,
        overwrite: bool = False,
    ) -> Written:
        """Label the rows of a store and write them as Parquet or CSV, shard by shard; see `predict` for the columns.

        Args:
            store: The store.
            path: The file, which ends in .parquet or .csv and appears only when it is whole.
            columns: Further columns; see `predict`.
            errors: Write only the rows that are wrong; see `predict`.
            label: The column with the gold labels; see `predict`.
            labels: A file or frame with the gold labels; see `fit_probe`.
            overwrite: Replace a file that is already there.

        Raises:
            UserError: The store has other features, or lacks a column or the gold labels; or the file is already there.
            StoreError: A part is missing or damaged.
            RunError: The system refused a write.
        """
        out = check_output(path, overwrite=overwrite)
        opened = self._checked(store)
        beside, counts = self._beside(opened, columns, errors, label, labels), Counter[str]()
        written = write_frames(self._frames(opened, beside, counts), out)
        return written._replace(n_gold=counts[_GOLD]) if errors else written

    def predict_texts(self, texts: Iterable[str], *, device: str = "auto") -> pl.DataFrame:
        """Label texts in memory, encoded like the probe's features; each text is a document.

        The encoder is loaded once. For more than a few thousand texts use `predict_input`.

        Returns:
            The columns of `predict`; `doc_id` is the text's number.

        Raises:
            UserError: The model is missing or has changed, or `texts` holds other values than strings.
        """
        # Imported here because scoring and fitting linear heads need no torch.
        from bertfeat.extraction.documents import documents_of
        from bertfeat.extraction.flow import Flow

        documents = documents_of(texts)
        if not documents:
            raise UserError("texts is empty; pass one text or more")
        if device not in self._flows:
            self._flows[device] = Flow.of_feature(self.spec, mine=self._mine, device=device)
        table = self._flows[device].run(documents)[self.level]
        return predict_table(self.probe, table, self.spec, first_tokens=self.first_tokens)

    def predict_input(
        self,
        inputs: Inputs,
        path: str | Path,
        *,
        columns: str | Sequence[str] = (),
        errors: bool = False,
        label: str | None = None,
        labels: LabelTable | None = None,
        overwrite: bool = False,
        progress: bool | Progress | None = None,
        **settings: Unpack[ExtractSettings],
    ) -> Written:
        """Label a corpus: extract it with the probe's own settings, predict, and write the result; see `predict_to`.

        While this runs, the features are in a folder beside the output.

        Args:
            inputs: Files, globs, `-` for standard input, or a data frame; see `extract`.
            path: The file to write.
            columns: Further columns, also those of the input; see `predict`.
            errors: Write only the rows that are wrong; see `predict`.
            label: The column of the input with the gold labels; see `predict`.
            labels: A file or frame with the gold labels; see `fit_probe`.
            overwrite: Replace a file that is already there.
            progress: Of the extraction; see `extract`.
            **settings: Settings to read the corpus (`text_column`, `format`, `id_column`, ...) and to compute
                (`device`, `workers`).

        Raises:
            UserError: The inputs or settings cannot be used, the model has changed, or the file is already there.
            RunError: The run failed; no files are left.
        """
        from bertfeat.encoder.checkpoint import open_checkpoint
        from bertfeat.extraction.resolution import check_model
        from bertfeat.extraction.run import extract

        out = check_output(path, overwrite=overwrite)
        names, gold = names_in(columns), None
        if labels is None and (errors or label is not None or self.label in names):
            gold = label or self.label
        asked = self.spec.extract_config(**settings)
        corpus = resolve_kind(inputs, asked)
        reader = reader_of(corpus, asked.format)
        kept = kept_settings(self.level, names, gold, reader)
        config = self.spec.extract_config(**{**kept, **settings})
        check_model(self.spec, open_checkpoint(config.model, config.revision), mine=self._mine)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
            features = Path(folder) / "features"
            try:
                store = extract(corpus, features, config, progress=progress)
                written = self.predict_to(
                    store, out, columns=columns, errors=errors, label=label, labels=labels, overwrite=overwrite
                )
            except UserError as error:
                # The user knows the corpus and `columns`, not this store and what it keeps.
                named = ", ".join(map(str, corpus)) if isinstance(corpus, Paths) else "the data frame"
                said = str(error).replace(str(features), named)
                error.args = (said if "keep_columns" in settings else said.replace("`keep_columns`", "`columns`"),)
                raise
            return written._replace(n_set_aside=store.manifest.totals.n_bad_rows)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Save as safetensors and JSON.

        Args:
            folder: A folder that is not there yet.
            overwrite: Replace a probe that is already there.

        Raises:
            UserError: Something is already there.
            RunError: The system refused a write.
        """
        target = local_path(folder, "a probe")
        save_head(self.probe, target, self._description, overwrite=overwrite)
        self.name = target.absolute().name

    def summary(self) -> dict[str, Any]:
        """Return the probe's head, feature and classes, and the record of its training, as JSON values."""
        return self._description.summary(self.probe.head, self.probe.get_params(), self.probe.classes_.tolist())

    @property
    def _description(self) -> ProbeDescription:
        return ProbeDescription(self.spec, self.label, self.first_tokens, self.training)

    @property
    def _mine(self) -> str:
        return f"probe {self.name}"

    def _checked(self, store: str | Path | Store) -> Store:
        opened = as_store(store)
        self.spec.find_in(opened, mine=self._mine)
        return opened

    def _beside(
        self, store: Store, columns: str | Sequence[str], errors: bool, label: str | None, labels: LabelTable | None
    ) -> Beside:
        """Find what is asked for beside predictions; see `predict`."""
        names, gold = names_in(columns), None
        if errors or label is not None or labels is not None or self.label in names:
            gold = find_labels(store, self.level, label or self.label, labels)
        beside = Beside(names, gold, errors)
        beside.check(store, self.level)
        return beside

    def _frames(self, store: Store, beside: Beside, counts: Counter[str]) -> Iterator[pl.DataFrame]:
        """Yield the predictions of each shard, and count the gold labels if only errors are asked for."""
        only_first = self.first_tokens
        feature = self.spec.feature
        for frame in predicted_frames(self.probe, store, self.level, feature, beside, first_tokens=only_first):
            if not beside.only_errors:
                yield frame
                continue
            wrong, n_gold = beside.errors(frame, self.probe.classes_, self._mine)
            counts[_GOLD] += n_gold
            yield frame.filter(wrong)
        if beside.only_errors and not counts[_GOLD]:
            raise beside.none_given(store, self.level)


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
    probe, extra = load_head(local_path(folder, "a probe"))
    kept = description_of(extra, folder)
    name = Path(folder).absolute().name
    return FittedProbe(probe, kept.spec, kept.label, kept.first_tokens, kept.training, name)


def as_store(store: str | Path | Store) -> Store:
    """Return a store, or open the store in a folder; a probe computes with its rows next."""
    limit_threads()
    return store if isinstance(store, Store) else open_store(store)
