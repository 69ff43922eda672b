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

if TYPE_CHECKING:
    from bertfeat import errors, heads, reports
    from bertfeat.ann.evaluation import retrieval_metrics
    from bertfeat.ann.transforms import TransformSpec
    from bertfeat.cli.failures import report_failures
    from bertfeat.config import ExtractConfig
    from bertfeat.encoder.conversion import convert
    from bertfeat.exports.datasetcard import dataset_card
    from bertfeat.exports.exporting import export
    from bertfeat.extraction.importing import import_vectors
    from bertfeat.extraction.run import append, extract
    from bertfeat.extraction.sklearntransformer import BertFeatures
    from bertfeat.extraction.textencoder import Encoder, embed
    from bertfeat.geometry.layermeasures import compare_layers
    from bertfeat.geometry.layerresult import LayerComparison
    from bertfeat.probes.config import ProbeConfig
    from bertfeat.probes.fitted import FittedProbe, load_probe
    from bertfeat.probes.fitting import fit_probe, sweep_probes
    from bertfeat.progress import Progress
    from bertfeat.search.exactrows import nearest_rows
    from bertfeat.search.hitrows import words_in_context
    from bertfeat.search.index import Index, open_index
    from bertfeat.search.kwic import Context
    from bertfeat.search.qrels import read_qrels
    from bertfeat.search.quality import evaluate_index, evaluate_retrieval
    from bertfeat.search.queryfiles import QueryFile
    from bertfeat.search.storeindex import build_index
    from bertfeat.search.storemap import map_store
    from bertfeat.search.storeupdate import update_index
    from bertfeat.store.compaction import compact
    from bertfeat.store.reader import Store, open_store
    from bertfeat.store.verification import verify

if sys.platform == "win32":
    raise ImportError("bertfeat runs on Linux and macOS; on Windows, run it in WSL (Windows Subsystem for Linux)")

__all__ = [
    "BertFeatures", "BertfeatError", "Context", "Encoder", "ExtractConfig", "FittedProbe", "Index", "LayerComparison",
    "ProbeConfig", "Progress", "QueryFile", "Store", "TransformSpec", "__version__", "append", "build_index", "compact",
    "compare_layers", "convert", "dataset_card", "embed", "errors", "evaluate_index", "evaluate_retrieval", "export",
    "extract", "fit_probe", "heads", "import_vectors", "load_probe", "map_store", "nearest_rows", "open_index",
    "open_store", "read_qrels", "report_failures", "reports",
    "retrieval_metrics", "sweep_probes", "update_index", "verify", "words_in_context",
]  # fmt: skip

# module -> its public names; both load on first use
_HOMES = {
    "ann.evaluation": "retrieval_metrics",
    "ann.transforms": "TransformSpec",
    "cli.failures": "report_failures",
    "config": "ExtractConfig",
    "encoder.conversion": "convert",
    "exports.datasetcard": "dataset_card",
    "exports.exporting": "export",
    "extraction.textencoder": "Encoder embed",
    "extraction.importing": "import_vectors",
    "extraction.run": "append extract",
    "extraction.sklearntransformer": "BertFeatures",
    "geometry.layermeasures": "compare_layers",
    "geometry.layerresult": "LayerComparison",
    "probes.fitted": "FittedProbe load_probe",
    "probes.config": "ProbeConfig",
    "probes.fitting": "fit_probe sweep_probes",
    "progress": "Progress",
    "search.exactrows": "nearest_rows",
    "search.hitrows": "words_in_context",
    "search.index": "Index open_index",
    "search.kwic": "Context",
    "search.qrels": "read_qrels",
    "search.quality": "evaluate_index evaluate_retrieval",
    "search.queryfiles": "QueryFile",
    "search.storeindex": "build_index",
    "search.storemap": "map_store",
    "search.storeupdate": "update_index",
    "store.compaction": "compact",
    "store.reader": "Store open_store",
    "store.verification": "verify",
}
_MODULES = ("errors", "heads", "reports")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"bertfeat.{name}")
    for module, names in _HOMES.items():
        if name in names.split():
            try:
                return getattr(import_module(f"bertfeat.{module}"), name)
            except BertfeatError as missing:
                # An optional library; the traceback would be 20 lines of importlib.
                raise missing.with_traceback(None) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
