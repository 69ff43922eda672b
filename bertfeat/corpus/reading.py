"""The corpus: its files in order, scanned once for the plan and read slice by slice for the extraction."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import NamedTuple

from bertfeat.choices import BadRows
from bertfeat.config import ExtractConfig
from bertfeat.corpus.columns import CorpusSchema, Earlier, SchemaSurvey
from bertfeat.corpus.content import Content, Fault, Reader, Row, Start
from bertfeat.corpus.duplicates import IdRegister
from bertfeat.corpus.formats import open_reader
from bertfeat.corpus.inputs import shown_path
from bertfeat.errors import InputError
from bertfeat.records import BadRow, DocId, Document, InputFile, ShardSpec

# A bad row of more bytes counts in the size of a shard.
_LARGE_BAD_ROW = 1_000_000


class ScannedRow(NamedTuple):
    """The data of a row that planning needs.

    `index` is the row's 0-based number in the corpus; `file`, `offset`, `row` and `state` give its start, as in
    `FileSlice`; `n_bytes` counts the UTF-8 bytes of its texts (for a bad row, its raw bytes if they are over a
    million, else 0); `group` names its document.
    """

    # A tuple is created faster than a frozen dataclass, which matters for a hundred million rows. No caller needs the
    # method of tuples that the name `index` hides.
    index: int  # type: ignore[assignment]
    file: int
    path: str
    offset: int
    row: int
    state: str | None
    n_bytes: int
    group: DocId | None
    doc_id: DocId | None
    bad: BadRow | None


class Corpus:
    """The files of a corpus as one sequence of rows.

    A row that cannot be read raises an error with `bad_rows="error"`, and is yielded as a `BadRow` with
    `bad_rows="quarantine"`. The name of a group is `FILE:NAME`, since no group spans files. With `earlier`, the first
    files are those of a store, to which the others are added: rows are numbered on, and must agree with the store.

    Examples:
        >>> corpus = Corpus(resolve_inputs(["corpus.txt"]), ExtractConfig())  # doctest: +SKIP
        >>> shards = cut_shards(corpus.scan(), cost, max_cost, keep_groups=False)  # doctest: +SKIP
        >>> documents = list(corpus.read(shards[0]))  # doctest: +SKIP
    """

    def __init__(self, files: Sequence[InputFile], config: ExtractConfig, earlier: Earlier | None = None) -> None:
        self.files = tuple(files)
        self.config = config
        self.earlier = earlier
        self._schema: CorpusSchema | None = None
        self._idle: tuple[int, Reader] | None = None

    def schema(self) -> CorpusSchema:
        """Return the columns of the corpus; they are known once `scan` has run to its end."""
        if self._schema is None:
            raise RuntimeError("the schema of a corpus is known once scan() has run to its end")
        return self._schema

    def close(self) -> None:
        """Close the file that is open between two reads."""
        if self._idle is not None:
            self._idle[1].close()
            self._idle = None

    def check_head(self) -> None:
        """Check the columns and the first row of the first file, which takes no time.

        Raises:
            InputError: `scan` would raise the same.
        """
        with closing(open_reader(self.files[0], self.config)) as reader:
            for row in islice(reader.rows(reader.start), 1):
                self._scanned(0, 0, row)

    def scan(self) -> Generator[ScannedRow]:
        """Yield every row up to the limit, in order, with its place; its content is checked and dropped.

        Earlier files are not read.

        Raises:
            InputError: A file or row cannot be read, files or rows do not agree on types, or (at the end, and with
                `bad_rows="quarantine"` too) an id appears twice.
        """
        survey = SchemaSurvey(self.config, self.earlier)
        looks_at_values = bool(self.config.id_column or self.config.keep_columns)
        n_files, n_rows = (self.earlier.n_files, self.earlier.n_rows) if self.earlier else (0, 0)
        limit = self.config.limit
        with IdRegister() as register:
            for number, file in enumerate(self.files[n_files:], n_files):
                if n_rows == limit:
                    break
                first = n_rows
                with closing(open_reader(file, self.config)) as reader:
                    survey.open_file(reader)
                    for row in islice(reader.rows(reader.start), None if limit is None else limit - first):
                        scanned = self._scanned(n_rows, number, row)
                        if looks_at_values and isinstance(row.content, Content):
                            survey.add(reader, row.content, row.row)
                            if row.content.doc_id is not None:
                                register.add(n_rows, row.content.doc_id)
                        yield scanned
                        n_rows += 1
                    survey.close_file(reader, n_rows - first)
            duplicate = register.find_duplicate()
            if duplicate is not None:
                raise self._duplicate_error(*duplicate)
            self._check_known(register)
        self._schema = survey.result()

    def read(self, shard: ShardSpec) -> Iterator[Document | BadRow]:
        """Yield the documents of a shard, in order; only its slices of the files are read.

        Shards may be read in any order. In ascending order, a compressed file is decompressed once.

        Raises:
            InputError: A file or row cannot be read, or a file has fewer rows than it had when the shard was planned.
        """
        index = shard.first_row
        for piece in shard.slices:
            with self._lease(piece.file) as reader:
                end = index + piece.n_rows
                for row in islice(reader.rows(Start(piece.offset, piece.row, piece.state)), piece.n_rows):
                    yield self._document(index, piece.file, row)
                    index += 1
            if index < end:
                raise InputError(
                    f"ends {end - index:,} rows before shard {shard.name} does; the file has changed since it was "
                    "planned: start again with `overwrite`",
                    path=shown_path(self.files[piece.file].path),
                )

    @contextmanager
    def _lease(self, number: int) -> Iterator[Reader]:
        """Lend the reader of a file to one caller, and keep it open for the next slice unless an error occurred."""
        with ExitStack() as on_error:
            if self._idle is not None and self._idle[0] == number:
                reader = self._idle[1]
                self._idle = None
            else:
                self.close()
                reader = open_reader(self.files[number], self.config)
            on_error.callback(reader.close)
            yield reader
            on_error.pop_all()
        self.close()
        self._idle = (number, reader)

    def _scanned(self, index: int, number: int, row: Row) -> ScannedRow:
        content = row.content
        path = shown_path(self.files[number].path)
        group = _group_name(number, content.group)
        if isinstance(content, Fault):
            bad = self._bad_row(index, path, row.row, content)
            # Bad rows give no output, but their bytes are held until the shard is done: few large ones fill a shard.
            n_raw = len(content.raw or b"")
            n_bytes = n_raw if n_raw > _LARGE_BAD_ROW else 0
            return ScannedRow(index, number, path, row.offset, row.row, row.state, n_bytes, group, None, bad)
        n_bytes = _n_bytes(content.text)
        if content.text_pair is not None:
            n_bytes += _n_bytes(content.text_pair)
        doc_id = index if content.doc_id is None else content.doc_id
        return ScannedRow(index, number, path, row.offset, row.row, row.state, n_bytes, group, doc_id, None)

    def _document(self, index: int, number: int, row: Row) -> Document | BadRow:
        content = row.content
        path = shown_path(self.files[number].path)
        if isinstance(content, Fault):
            return self._bad_row(index, path, row.row, content)
        return Document(
            index=index,
            doc_id=index if content.doc_id is None else content.doc_id,
            text=content.text,
            text_pair=content.text_pair,
            words=content.words,
            group=_group_name(number, content.group),
            kept=content.kept,
            annotations=content.annotations,
            path=path,
            row=row.row,
        )

    def _bad_row(self, index: int, path: str, row: int, fault: Fault) -> BadRow:
        if self.config.bad_rows is BadRows.ERROR:
            # Where the column is wrong, all rows would be skipped.
            is_of_column = "_column" in fault.reason or "is_split_into_words" in fault.reason
            hint = "" if is_of_column else "; to skip such rows, pass `bad_rows='quarantine'`"
            raise InputError(fault.reason + hint, path=path, row=row)
        return BadRow(index, path, row, fault.reason, fault.raw)

    def _check_known(self, register: IdRegister) -> None:
        """Refuse ids that the store has already, to which this corpus is added."""
        if self.earlier is None or self.earlier.ids is None:
            return
        index = register.find_known(self.earlier.ids)
        if index is not None:
            row = self._find_row(index)
            raise InputError(
                f"id {row.doc_id!r} is in {self.earlier.place} already; leave out documents that are there",
                path=row.path,
                row=row.row,
            )

    def _find_row(self, index: int) -> ScannedRow:
        """Read the corpus again up to a row."""
        with closing(self.scan()) as rows:
            return next(row for row in rows if row.index == index)

    def _duplicate_error(self, first: int, second: int) -> InputError:
        before, row = self._find_row(first), self._find_row(second)
        return InputError(
            f"id {row.doc_id!r} appears twice, first at {before.path}:{before.row}; make ids unique, or leave out "
            "`id_column` to number the rows (`bad_rows='quarantine'` does not set duplicates aside)",
            path=row.path,
            row=row.row,
        )


def _group_name(number: int, group: DocId | None) -> str | None:
    return None if group is None else f"{number}:{group}"


def _n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
