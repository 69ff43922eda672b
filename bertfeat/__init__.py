"""Contextual features from BERT-like encoders: extract once to Parquet, probe and search many times.

Nothing heavy is imported here: the public names load on first use, so that `bertfeat --help` stays quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from bertfeat._version import __version__

if TYPE_CHECKING:
    from bertfeat.config import ExtractConfig
    from bertfeat.embedding import embed
    from bertfeat.errors import BertfeatError
    from bertfeat.extraction import extract
    from bertfeat.indexing.building import build_index
    from bertfeat.indexing.evaluating import evaluate_index, evaluate_retrieval
    from bertfeat.indexing.index import Index, open_index
    from bertfeat.indexing.updating import update_index
    from bertfeat.probing.fitted import FittedProbe, load_probe
    from bertfeat.probing.fitting import fit_probe
    from bertfeat.probing.sweeping import sweep_probes
    from bertfeat.store.reader import Store, open_store
    from bertfeat.store.verification import verify

if sys.platform == "win32":
    raise ImportError("bertfeat runs on Linux and macOS; on Windows, run it in WSL (Windows Subsystem for Linux)")

__all__ = [
    "BertfeatError",
    "ExtractConfig",
    "FittedProbe",
    "Index",
    "Store",
    "__version__",
    "build_index",
    "embed",
    "evaluate_index",
    "evaluate_retrieval",
    "extract",
    "fit_probe",
    "load_probe",
    "open_index",
    "open_store",
    "sweep_probes",
    "update_index",
    "verify",
]

_HOMES = {
    "BertfeatError": "bertfeat.errors",
    "ExtractConfig": "bertfeat.config",
    "FittedProbe": "bertfeat.probing.fitted",
    "Index": "bertfeat.indexing.index",
    "Store": "bertfeat.store.reader",
    "build_index": "bertfeat.indexing.building",
    "embed": "bertfeat.embedding",
    "evaluate_index": "bertfeat.indexing.evaluating",
    "evaluate_retrieval": "bertfeat.indexing.evaluating",
    "extract": "bertfeat.extraction",
    "fit_probe": "bertfeat.probing.fitting",
    "load_probe": "bertfeat.probing.fitted",
    "open_index": "bertfeat.indexing.index",
    "open_store": "bertfeat.store.reader",
    "sweep_probes": "bertfeat.probing.sweeping",
    "update_index": "bertfeat.indexing.updating",
    "verify": "bertfeat.store.verification",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
