"""A tokenizer whose tokens are letters and an encoder whose states are arithmetic: every vector is known by hand."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors

from bertfeat.choices import Level, Pooling
from bertfeat.config import ExtractConfig
from bertfeat.corpus.columns import CorpusSchema
from bertfeat.encoder.encoder import PackEncoder
from bertfeat.encoder.layers import feature_columns
from bertfeat.extraction.flow import Flow, Loaded
from bertfeat.extraction.level_tables import ShardText
from bertfeat.extraction.plan import level_schema
from bertfeat.progress import unreported
from bertfeat.records import Column, Document, FeatureColumn, LevelTable, Pack
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.window_ranges import WindowLimits

HIDDEN = 3
N_LAYERS = 6
PAD, UNK, CLS, SEP = range(4)


def letters_backend() -> BackendTokenizer:
    """Make a BERT tokenizer for which every letter is a token: `abc d` is `a ##b ##c d`."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces += [prefix + letter for prefix in ("", "##") for letter in string.ascii_letters + string.digits]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = BackendTokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=10_000))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return backend


def letters(*, given_words: bool = False) -> Tokenizer:
    return Tokenizer(letters_backend(), cls_id=CLS, given_words=given_words)


@dataclass(frozen=True)
class FakeStates:
    """States of three values: 1000 * layer + position in the window, the same negative, and the token's id."""

    pack: Pack

    def layer(self, index: int) -> torch.Tensor:
        place = 1000.0 * index + self.pack.position_ids
        return torch.from_numpy(np.stack([place, -place, self.pack.input_ids], axis=1).astype(np.float32))

    def pooler(self) -> torch.Tensor:
        """The number of the window in its shard, its length, and 7."""
        windows = np.stack([self.pack.windows, self.pack.lengths, np.full(len(self.pack.windows), 7)], axis=1)
        return torch.from_numpy(windows.astype(np.float32))


class FakeEncoder(PackEncoder):
    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.n_lanes = 1
        self.n_halvings = 0

    def encode_parts(self, pack: Pack) -> Iterator[tuple[Pack, Any]]:
        yield pack, FakeStates(pack)


@dataclass(frozen=True)
class Features:
    """The result of a run over some documents."""

    text: ShardText
    tables: Mapping[Level, LevelTable]
    packs: Sequence[Pack]

    def column(self, level: str, name: str) -> list[Any]:
        values = self.tables[Level(level)].columns[name]
        return values.tolist() if isinstance(values, np.ndarray) else list(values)

    def vectors(self, level: str, name: str = "layer_01") -> npt.NDArray[np.float32]:
        """Return the vectors, NaN where a row has none."""
        table = self.tables[Level(level)]
        vectors = table.vectors[name].astype(np.float32)
        if table.valid is not None:
            vectors[~table.valid] = np.nan
        return vectors

    def places(self, level: str, name: str = "layer_01") -> list[float | None]:
        """Return the first value of each vector, which is 1000 * layer + position; None where a row has no vector."""
        return [None if np.isnan(value) else float(value) for value in self.vectors(level, name)[:, 0]]


def at(*places: float | None) -> list[float | None]:
    """Return what `Features.places` gives of layer 1 for these positions."""
    return [None if place is None else 1000 + place for place in places]


def run(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    *,
    max_length: int = 100,
    stride: int = 0,
    max_batch_tokens: int = 30,
    layers: str = "1",
    **settings: Any,
) -> Features:
    """Run the flow over documents, with the fake encoder instead of a model."""
    config = ExtractConfig.from_dict(
        {"levels": "token,word,sentence", "combine": "none", "store_dtype": "float32", "layers": layers} | settings
    ).effective()
    chosen = tuple(int(layer) for layer in layers.split(","))
    features = dict.fromkeys(Level, feature_columns(chosen, config.combine, hidden_size=HIDDEN, n_layers=N_LAYERS))
    if config.pooling is Pooling.POOLER:
        features[Level.SENTENCE] = (FeatureColumn("pooler", (N_LAYERS,), "none", HIDDEN),)
    if config.span_pooling == "ends":
        features[Level.SPAN] = tuple(dataclasses.replace(each, dim=2 * each.dim) for each in features[Level.SPAN])
    own = sorted({name for document in documents for name in document.annotations})
    corpus = CorpusSchema(annotations=tuple(Column(name, "string") for name in own), has_pairs=True)
    schemas = {level: level_schema(level, corpus, features[level]) for level in config.levels}
    limits = WindowLimits(max_length=max_length, stride=stride, on_overlong=config.on_overlong)
    resolved = SimpleNamespace(limits=limits, max_batch_tokens=max_batch_tokens, sentence=None)
    network = SimpleNamespace(load=lambda: Loaded(FakeEncoder()))
    flow = Flow(config, schemas, resolved, tokenizer, network)  # type: ignore[arg-type]
    prepared = flow.prepare(documents)
    return Features(prepared.text, flow.encode(prepared, unreported).finish().tables, prepared.packs)


def texts(*lines: str) -> list[Document]:
    return [Document(index=i, doc_id=i, text=line) for i, line in enumerate(lines)]


def pairs(*lines: tuple[str, str]) -> list[Document]:
    return [Document(index=i, doc_id=i, text=first, text_pair=second) for i, (first, second) in enumerate(lines)]


def word_lists(*lists: Sequence[str], groups: Sequence[str] | None = None) -> list[Document]:
    """Make documents of given words, each labelled with the word itself in capitals."""
    return [
        Document(
            index=i,
            doc_id=i,
            text=" ".join(words),
            words=tuple(words),
            group=None if groups is None else groups[i],
            annotations={"label": [word.upper() for word in words]},
        )
        for i, words in enumerate(lists)
    ]


def grouped(*lines: str, groups: Sequence[str] | None = None) -> list[Document]:
    """Make sentences of documents: all of one, or of those named in `groups`."""
    names = groups or ["one"] * len(lines)
    return [Document(index=i, doc_id=i, text=line, group=names[i]) for i, line in enumerate(lines)]
