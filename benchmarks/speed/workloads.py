"""The workloads: each a corpus, an output and the rivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OURS = "bertfeat"
CORPUS_ORDER = "transformers, corpus order"
SORTED = "transformers, sorted"
ONE = "transformers, one at a time"
ENCODE = "sentence-transformers"
FLAIR = "flair"
ORT = "ONNX Runtime"
FUSED = "ONNX Runtime, fused"
OPENVINO = "OpenVINO"
STREAMS = "OpenVINO, streams"
CT2 = "CTranslate2"
CT2_WORKERS = "CTranslate2, workers"


@dataclass(frozen=True)
class Entry:
    """A rival in a workload: the peer, and its corpus, output and type where they differ from the workload's.

    An entry with another corpus or output is bertfeat itself, doing more; its vectors are not compared. Those of an
    entry with a type of lower precision are compared by their cosines: the least and the mean.
    """

    peer: str
    corpus: str | None = None
    output: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Workload:
    """One table of the result."""

    title: str
    corpus: str
    output: str
    n_rows: int
    rivals: Mapping[str, Entry]
    model: str = "minilm"
    in_memory: bool = False


def _peers(*names: str) -> dict[str, Entry]:
    return {name: Entry(name) for name in names}


def _in(dtype: str, *names: str) -> dict[str, Entry]:
    return {f"{name}, {dtype}": Entry(name, dtype=dtype) for name in names}


# Engines that give any layer, and those that give the last one, in float32.
_ENGINES = (ORT, FUSED, OPENVINO, STREAMS)
_LAST_LAYER_ENGINES = (*_ENGINES, CT2, CT2_WORKERS)
# The same in types of lower precision, and bertfeat in bfloat16.
_LOWER = {
    **_in("bfloat16", OURS, OPENVINO, STREAMS),
    **_in("int8", OPENVINO, STREAMS, CT2, CT2_WORKERS),
}

WORKLOADS = {
    "short-token": Workload(
        "Short sentences, every token: last four layers and their concatenation",
        "sentences",
        "token-last4-concat",
        3000,
        _peers(CORPUS_ORDER, SORTED, ONE, *_ENGINES),
    ),
    "short-word": Workload(
        "Short sentences, first token of every word: last four layers concatenated",
        "words",
        "word-concat4",
        1000,
        _peers(CORPUS_ORDER, SORTED, ONE, FLAIR, *_ENGINES),
    ),
    "short-sentence": Workload(
        "Short sentences, sentence embeddings",
        "sentences",
        "sentence",
        3000,
        {**_peers(ENCODE, CORPUS_ORDER, SORTED, *_LAST_LAYER_ENGINES), **_LOWER},
    ),
    "short-memory": Workload(
        "Short sentences, sentence embeddings in memory",
        "sentences",
        "sentence",
        3000,
        _peers(ENCODE),
        in_memory=True,
    ),
    "short-token-last": Workload(
        "Short sentences, every token: last layer",
        "sentences",
        "token-last",
        3000,
        _peers(ENCODE, SORTED, *_LAST_LAYER_ENGINES),
    ),
    "short-token-4": Workload(
        "Short sentences, every token: last four layers", "sentences", "token-last4", 3000, _peers(SORTED, *_ENGINES)
    ),
    "short-token-all": Workload(
        "Short sentences, every token: all layers",
        "sentences",
        "token-all",
        3000,
        _peers(CORPUS_ORDER, SORTED, *_ENGINES),
    ),
    "paragraphs": Workload(
        "Paragraphs of PEPs, sentence embeddings",
        "paragraphs",
        "sentence",
        600,
        {**_peers(ENCODE, CORPUS_ORDER, SORTED, *_LAST_LAYER_ENGINES), **_LOWER},
    ),
    "paragraphs-token": Workload(
        "Paragraphs of PEPs, every token: last four layers and their concatenation",
        "paragraphs",
        "token-last4-concat",
        400,
        _peers(CORPUS_ORDER, SORTED, *_ENGINES),
    ),
    "encyclopedia": Workload(
        "Paragraphs of Wikipedia, sentence embeddings",
        "encyclopedia",
        "sentence",
        250,
        _peers(ENCODE, CORPUS_ORDER, SORTED, *_LAST_LAYER_ENGINES),
    ),
    "mixed": Workload(
        "Mixed lengths, 4 to 512 tokens, sentence embeddings",
        "mixed",
        "sentence",
        250,
        {**_peers(CORPUS_ORDER, SORTED, ENCODE, *_LAST_LAYER_ENGINES), **_LOWER},
    ),
    "mixed-token": Workload(
        "Mixed lengths, 4 to 512 tokens, every token: last four layers and their concatenation",
        "mixed",
        "token-last4-concat",
        250,
        _peers(CORPUS_ORDER, SORTED, *_ENGINES),
    ),
    "half-the-layers": Workload(
        "Layer 6 of BERT-base's shape, mean of each paragraph",
        "paragraphs",
        "sentence-layer-6",
        120,
        {
            "bertfeat, layers 1 to 12": Entry(OURS, output="sentence-layers-1-12"),
            **_peers(CORPUS_ORDER, SORTED, *_ENGINES),
        },
        model="bert-base",
    ),
    "duplicates": Workload(
        "Short sentences of which every fifth repeats another, sentence embeddings",
        "duplicates",
        "sentence",
        2800,
        {"bertfeat, without repeats": Entry(OURS, corpus="distinct"), **_peers(ENCODE, SORTED, *_LAST_LAYER_ENGINES)},
    ),
}
