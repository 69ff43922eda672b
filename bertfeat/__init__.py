"""Contextual features from BERT-like encoders: extract once to Parquet, probe and search many times.

This module imports nothing heavy: public names load on first use, so that `bertfeat --help` stays quick.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from bertfeat import forks as _forks  # noqa: F401 - from now on it watches for forks
from bertfeat._version import __version__
from bertfeat.errors import BertfeatError
from bertfeat.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from bertfeat import errors, exports, heads, plots, search
    from bertfeat.audits.build import audit
    from bertfeat.audits.result import Audit
    from bertfeat.config import ExtractConfig
    from bertfeat.encoder.conversion import convert
    from bertfeat.exports.exporting import ExportResult, export
    from bertfeat.extraction.importing import import_vectors
    from bertfeat.extraction.run import append, extract
    from bertfeat.extraction.sklearn_transformer import BertFeatures
    from bertfeat.extraction.text_encoder import Encoder, embed
    from bertfeat.layers.result import LayerComparison
    from bertfeat.map.build import StoreMap
    from bertfeat.probes.comparison import Comparison, compare_probes
    from bertfeat.probes.config import ProbeConfig
    from bertfeat.probes.fitted import FittedProbe, load_probe
    from bertfeat.probes.fitting import fit_probe, sweep_probes
    from bertfeat.probes.scoring import ProbeScore
    from bertfeat.probes.slim import Slim, slim_probe
    from bertfeat.probes.sweep import Sweep
    from bertfeat.progress import Progress
    from bertfeat.search.build import build_index
    from bertfeat.search.index import Index, open_index
    from bertfeat.store.compaction import compact
    from bertfeat.store.reader import Store, open_store
    from bertfeat.store.verification import verify

if sys.platform == "win32":
    raise ImportError("bertfeat runs on Linux and macOS; on Windows, run it in WSL (Windows Subsystem for Linux)")

__all__ = [
    "Audit", "BertFeatures", "BertfeatError", "Comparison", "Encoder", "ExportResult", "ExtractConfig",
    "FittedProbe", "Index", "LayerComparison", "ProbeConfig", "ProbeScore", "Progress", "Slim", "Store", "StoreMap",
    "Sweep", "__version__", "append", "audit", "build_index", "compact", "compare_probes", "convert", "embed",
    "errors", "export", "exports", "extract", "fit_probe", "heads", "import_vectors", "load_probe", "open_index",
    "open_store", "plots", "search", "slim_probe", "sweep_probes", "verify",
]  # fmt: skip

# module -> its public names; both load on first use
_HOMES = {
    "audits.build": "audit",
    "audits.result": "Audit",
    "config": "ExtractConfig",
    "encoder.conversion": "convert",
    "exports.exporting": "ExportResult export",
    "extraction.importing": "import_vectors",
    "extraction.run": "append extract",
    "extraction.sklearn_transformer": "BertFeatures",
    "extraction.text_encoder": "Encoder embed",
    "layers.result": "LayerComparison",
    "probes.comparison": "Comparison compare_probes",
    "probes.config": "ProbeConfig",
    "probes.fitted": "FittedProbe load_probe",
    "probes.fitting": "fit_probe sweep_probes",
    "probes.scoring": "ProbeScore",
    "probes.slim": "Slim slim_probe",
    "probes.sweep": "Sweep",
    "progress": "Progress",
    "search.index": "Index open_index",
    "search.build": "build_index",
    "map.build": "StoreMap",
    "store.compaction": "compact",
    "store.reader": "Store open_store",
    "store.verification": "verify",
}
# Rooms with further public names.
_ROOMS = ("errors", "exports", "heads", "plots", "search")
_load = _lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> object:
    return import_module(f"bertfeat.{name}") if name in _ROOMS else _load(name)


def __dir__() -> list[str]:
    return sorted(__all__)
