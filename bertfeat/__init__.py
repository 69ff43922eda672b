"""Contextual features from BERT-like encoders: extract once to Parquet, probe and search many times.

Nothing heavy is imported here: the public names load on first use, so that `bertfeat --help` stays quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from bertfeat._version import __version__

if TYPE_CHECKING:
    from bertfeat import errors, reports
    from bertfeat.ann.evaluation import retrieval_metrics
    from bertfeat.ann.transforms import TransformSpec
    from bertfeat.cli.failures import report_failures
    from bertfeat.config import ExtractConfig
    from bertfeat.errors import BertfeatError
    from bertfeat.extraction.embedding import embed
    from bertfeat.extraction.run import extract
    from bertfeat.probes.fitted import FittedProbe, load_probe
    from bertfeat.probes.fitting import fit_probe
    from bertfeat.probes.sweeps import sweep_probes
    from bertfeat.progress import Progress
    from bertfeat.search.exactrows import nearest_rows
    from bertfeat.search.hitrows import words_in_context
    from bertfeat.search.index import Index, open_index
    from bertfeat.search.kwic import Context
    from bertfeat.search.qrels import read_qrels
    from bertfeat.search.quality import evaluate_index, evaluate_retrieval
    from bertfeat.search.queryfiles import QueryFile
    from bertfeat.search.storeindex import build_index
    from bertfeat.search.storeupdate import update_index
    from bertfeat.store.reader import Store, open_store
    from bertfeat.store.verification import verify

if sys.platform == "win32":
    raise ImportError("bertfeat runs on Linux and macOS; on Windows, run it in WSL (Windows Subsystem for Linux)")

__all__ = [
    "BertfeatError", "Context", "ExtractConfig", "FittedProbe", "Index", "Progress", "QueryFile", "Store",
    "TransformSpec", "__version__", "build_index", "embed", "errors", "evaluate_index", "evaluate_retrieval",
    "extract", "fit_probe", "load_probe", "nearest_rows", "open_index", "open_store", "read_qrels",
    "report_failures", "reports", "retrieval_metrics", "sweep_probes", "update_index", "verify", "words_in_context",
]  # fmt: skip

_HOMES = {
    "BertfeatError": "bertfeat.errors",
    "Context": "bertfeat.search.kwic",
    "ExtractConfig": "bertfeat.config",
    "FittedProbe": "bertfeat.probes.fitted",
    "Index": "bertfeat.search.index",
    "Progress": "bertfeat.progress",
    "QueryFile": "bertfeat.search.queryfiles",
    "Store": "bertfeat.store.reader",
    "TransformSpec": "bertfeat.ann.transforms",
    "build_index": "bertfeat.search.storeindex",
    "embed": "bertfeat.extraction.embedding",
    "evaluate_index": "bertfeat.search.quality",
    "evaluate_retrieval": "bertfeat.search.quality",
    "extract": "bertfeat.extraction.run",
    "fit_probe": "bertfeat.probes.fitting",
    "load_probe": "bertfeat.probes.fitted",
    "nearest_rows": "bertfeat.search.exactrows",
    "open_index": "bertfeat.search.index",
    "open_store": "bertfeat.store.reader",
    "read_qrels": "bertfeat.search.qrels",
    "report_failures": "bertfeat.cli.failures",
    "retrieval_metrics": "bertfeat.ann.evaluation",
    "sweep_probes": "bertfeat.probes.sweeps",
    "update_index": "bertfeat.search.storeupdate",
    "verify": "bertfeat.store.verification",
    "words_in_context": "bertfeat.search.hitrows",
}
_MODULES = ("errors", "reports")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
