"""The corpus: its files in order, scanned once for the plan and read slice by slice for the extraction."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import NamedTuple

from bertfeat.choices import BadRows
from bertfeat.config import ExtractConfig
from bertfeat.corpus.columns import CorpusSchema, Earlier, IdRegister, SchemaSurvey
from bertfeat.corpus.content import BEGIN, Content, Reader, Row, RowError
from bertfeat.corpus.corpus import shown_path
from bertfeat.corpus.formats import open_reader
from bertfeat.errors import InputError, named_settings
from bertfeat.records import BadRow, DocId, Document, InputFile, ShardSpec, excess_of

# A bad row of more bytes counts in the size of a shard.
_LARGE_BAD_ROW = 1_000_000


class ScannedRow(NamedTuple):
    """The data of a row that planning needs.

    `index` is the row's 0-based number in the corpus; `file`, `offset`, `row` and `state` give its start, as in
    `FileSlice`; `n_bytes` counts the UTF-8 bytes of its texts (for a bad row, its raw bytes if they are over a
    million, else 0); `group` names its document. `n_spans` counts the spans of a file, if there is one.
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
    n_spans: int = 0


class Corpus:
    """The files of a corpus as one sequence of rows.

    A row that cannot be read raises an error with `bad_rows="error"`, and is yielded as a `BadRow` with
    `bad_rows="quarantine"`. The name of a group is `FILE:NAME`, since no group spans files. With `earlier`, the
    files are added to a store: rows are numbered on, and must agree with the store.
    """

    def __init__(self, files: Sequence[InputFile], config: ExtractConfig, earlier: Earlier | None = None) -> None:
        self.files = tuple(files)
        self.config = config
        self.earlier = earlier
        self._names = [shown_path(file.path) for file in self.files]
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
        """Check the columns and the first row, which takes no time."""
        with closing(self.scan()) as rows:
            next(rows, None)

    def scan(self) -> Generator[ScannedRow]:
        """Yield every row up to the limit, in order, with its place; its content is checked and dropped."""
        survey = SchemaSurvey(self.config, self.earlier)
        looks_at_values = bool(self.config.id_column or self.config.keep_columns)
        n_rows = self.earlier.n_rows if self.earlier else 0
        limit = self.config.limit
        register = IdRegister()
        for number, file in enumerate(self.files):
            if n_rows == limit:
                break
            first = n_rows
            with closing(open_reader(file, self.config)) as reader:
                survey.open_file(reader)
                for row in islice(reader.rows(BEGIN), None if limit is None else limit - first):
                    content = self._content(reader, row)
                    scanned = self._scanned(n_rows, number, row, content)
                    if looks_at_values and isinstance(content, Content):
                        survey.add(reader, content, row.row)
                        if content.doc_id is not None:
                            register.add(content.doc_id)
                    yield scanned
                    n_rows += 1
        self._check_ids(register)
        self._schema = survey.result()

    def read(self, shard: ShardSpec) -> Iterator[Document | BadRow]:
        """Yield the documents of a shard, in order; only its slices of the files are read.

        Shards may be read in any order. In ascending order, a compressed file is decompressed once.
        """
        index = shard.first_row
        for piece in shard.slices:
            with self._lease(piece.file) as reader:
                end = index + piece.n_rows
                for row in islice(reader.rows(piece), piece.n_rows):
                    yield self._document(index, piece.file, row, self._content(reader, row))
                    index += 1
            if index < end:
                raise InputError(
                    f"ends {end - index:,} rows before shard {shard.name} does; the file has changed since it was "
                    "planned: start again with `overwrite`",
                    path=self._names[piece.file],
                )

    @contextmanager
    def _lease(self, number: int) -> Iterator[Reader]:
        """Lend the reader of a file to one caller, and keep it open for the next slice unless an error occurred."""
        if self._idle is not None and self._idle[0] == number:
            reader, self._idle = self._idle[1], None
        else:
            self.close()
            reader = open_reader(self.files[number], self.config)
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        self.close()
        self._idle = (number, reader)

    def _content(self, reader: Reader, row: Row) -> Content | RowError:
        """Return the content of a row, or why it has none: here the size of a document is checked."""
        if isinstance(row.values, RowError):
            return row.values
        try:
            content = reader.content(row.values, self.config)
        except RowError as error:
            return error
        reason = excess_of(content.text, content.text_pair)
        return content if reason is None else RowError(f"the row {reason}")

    def _scanned(self, index: int, number: int, row: Row, content: Content | RowError) -> ScannedRow:
        path, group, doc_id, bad = self._names[number], row.group, None, None
        if isinstance(content, RowError):
            bad = self._bad_row(index, path, row, content)
            # Bad rows give no output, but their bytes are held until the shard is done: few large ones fill a shard.
            n_raw = len(row.raw or b"")
            n_bytes = n_raw if n_raw > _LARGE_BAD_ROW else 0
        else:
            n_bytes = _n_bytes(content.text)
            if content.text_pair is not None:
                n_bytes += _n_bytes(content.text_pair)
            doc_id = index if content.doc_id is None else content.doc_id
            group = group if content.group is None else content.group
        group = _group_name(number, group)
        return ScannedRow(index, number, path, row.offset, row.row, row.state, n_bytes, group, doc_id, bad)

    def _document(self, index: int, number: int, row: Row, content: Content | RowError) -> Document | BadRow:
        path = self._names[number]
        if isinstance(content, RowError):
            return self._bad_row(index, path, row, content)
        kept = content.kept
        if len(kept) < len(self.config.keep_columns):
            kept = {name: kept.get(name) for name in self.config.keep_columns}
        return Document(
            index=index,
            doc_id=index if content.doc_id is None else content.doc_id,
            text=content.text,
            text_pair=content.text_pair,
            words=content.words,
            group=_group_name(number, row.group if content.group is None else content.group),
            kept=kept,
            annotations=content.annotations,
            path=path,
            row=row.row,
        )

    def _bad_row(self, index: int, path: str, row: Row, error: RowError) -> BadRow:
        reason = str(error)
        if self.config.bad_rows is BadRows.ERROR:
            # Where the column is wrong, all rows would be skipped.
            is_of_column = any(name.endswith(("_column", "_into_words")) for name in named_settings(reason))
            hint = "" if is_of_column else "; to skip such rows, pass `bad_rows='quarantine'`"
            raise InputError(reason + hint, path=path, row=row.row)
        return BadRow(index, path, row.row, reason, row.raw)

    def _check_ids(self, register: IdRegister) -> None:
        """Refuse an id that appears twice, or that is in the store to which this corpus is added."""
        known = self.earlier.ids if self.earlier else None
        if (twice := register.find_duplicate()) is not None:
            before, row = map(self._find_row, twice)
            place = f"{before.path}:{before.row}"
            reason = f"id {row.doc_id!r} appears twice, first at {place}; make ids unique, or pass another `id_column`"
        elif self.earlier and known and (number := register.find_known(known)) is not None:
            row = self._find_row(number)
            reason = f"id {row.doc_id!r} is in {self.earlier.place} already; leave out documents that are there"
        else:
            return
        raise InputError(reason, path=row.path, row=row.row)

    def _find_row(self, number: int) -> ScannedRow:
        """Read the corpus again up to the row with an id of this number."""
        with closing(self.scan()) as rows:
            return next(islice((row for row in rows if row.bad is None), number, None))


def _group_name(number: int, group: DocId | None) -> str | None:
    return None if group is None else f"{number}:{group}"


def _n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
