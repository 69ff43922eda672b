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
    from bertfeat.errors import BertfeatError
    from bertfeat.extraction.embedding import embed
    from bertfeat.extraction.run import extract
    from bertfeat.probes.fitted import FittedProbe, load_probe
    from bertfeat.probes.fitting import fit_probe
    from bertfeat.probes.sweeps import sweep_probes
    from bertfeat.search.index import Index, open_index
    from bertfeat.search.quality import evaluate_index, evaluate_retrieval
    from bertfeat.search.storeindex import build_index
    from bertfeat.search.storeupdate import update_index
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
    "FittedProbe": "bertfeat.probes.fitted",
    "Index": "bertfeat.search.index",
    "Store": "bertfeat.store.reader",
    "build_index": "bertfeat.search.storeindex",
    "embed": "bertfeat.extraction.embedding",
    "evaluate_index": "bertfeat.search.quality",
    "evaluate_retrieval": "bertfeat.search.quality",
    "extract": "bertfeat.extraction.run",
    "fit_probe": "bertfeat.probes.fitting",
    "load_probe": "bertfeat.probes.fitted",
    "open_index": "bertfeat.search.index",
    "open_store": "bertfeat.store.reader",
    "sweep_probes": "bertfeat.probes.sweeps",
    "update_index": "bertfeat.search.storeupdate",
    "verify": "bertfeat.store.verification",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
