"""Which reader reads a format, and which settings go with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from bertfeat.config import CorpusFormat, ExtractConfig, flag
from bertfeat.corpus.conll import ConllReader
from bertfeat.corpus.conllu import ConlluReader
from bertfeat.corpus.content import Reader
from bertfeat.corpus.delimited import DelimitedReader
from bertfeat.corpus.disguise import SNIFFED_BYTES, conll_format
from bertfeat.corpus.jsonl import JsonlReader
from bertfeat.corpus.lines import LineReader
from bertfeat.corpus.linestreams import open_stream
from bertfeat.corpus.parquet import ParquetReader
from bertfeat.errors import InputError
from bertfeat.records import InputFile

_READERS: dict[CorpusFormat, Callable[[InputFile, ExtractConfig], Reader]] = {
    CorpusFormat.TXT: LineReader,
    CorpusFormat.JSONL: JsonlReader,
    CorpusFormat.CSV: DelimitedReader,
    CorpusFormat.TSV: DelimitedReader,
    CorpusFormat.PARQUET: ParquetReader,
    CorpusFormat.CONLL: ConllReader,
    CorpusFormat.CONLLU: ConlluReader,
}

_NEED_COLUMNS = ("text_pair_column", "id_column", "keep_columns", "document_column")
_CONLL = (*_NEED_COLUMNS, "text_pairs")
# A setting that a format cannot follow is refused rather than dropped in silence.
_REFUSED: dict[CorpusFormat, tuple[str, ...]] = {
    CorpusFormat.TXT: (*_NEED_COLUMNS, "is_split_into_words", "label_column"),
    CorpusFormat.JSONL: ("text_pairs",),
    CorpusFormat.CSV: ("text_pairs", "is_split_into_words", "label_column"),
    CorpusFormat.TSV: ("text_pairs", "is_split_into_words", "label_column"),
    CorpusFormat.PARQUET: ("text_pairs",),
    CorpusFormat.CONLL: _CONLL,
    CorpusFormat.CONLLU: _CONLL,
}
_INSTEAD = {
    "text_pairs": "pass --text-pair-column for columns",
    "is_split_into_words": "lists of words come from jsonl, parquet, conll and conllu",
    "label_column": "labels of words come from conll, conllu, and lists in jsonl and parquet; a document's label is a "
    "kept column: --keep-columns",
}


def open_reader(file: InputFile, config: ExtractConfig) -> Reader:
    """Open a file of the corpus.

    Raises:
        InputError: The file cannot be opened, has not the columns asked for, or a setting does not go with its format.
    """
    corpus_format = CorpusFormat(file.format)
    for name in _REFUSED[corpus_format]:
        if getattr(config, name):
            instead = _INSTEAD.get(name, "columns come from csv, tsv, jsonl and parquet")
            raise InputError(f"{flag(name)} does not go with {corpus_format}; {instead}", path=file.path)
    is_tabular = corpus_format in (CorpusFormat.JSONL, CorpusFormat.PARQUET)
    if is_tabular and config.label_column and not config.is_split_into_words:
        raise InputError(
            f"--label-column {config.label_column!r} labels the words of --is-split-into-words; keep a "
            "document's label with --keep-columns",
            path=file.path,
        )
    is_guessed = config.format is CorpusFormat.AUTO
    if is_guessed and corpus_format is CorpusFormat.TXT:
        _refuse_conll(file)
    try:
        return _READERS[corpus_format](file, config)
    except InputError:
        if is_guessed and corpus_format in (CorpusFormat.CSV, CorpusFormat.TSV):
            _refuse_conll(file)
        raise


def _refuse_conll(file: InputFile) -> None:
    """Refuse a file whose ending names another format, but whose lines look like CoNLL."""
    with closing(open_stream(file)) as stream:
        found = conll_format(stream.read(SNIFFED_BYTES))
    if found is not None:
        raise InputError(
            f"looks like CoNLL; pass --format {found} (or --format {file.format} if it is not)", path=file.path
        )
