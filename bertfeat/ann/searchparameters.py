"""How thoroughly an index is searched: the numbers that are tuned, and what faiss is told for one search.

The numbers go by the names of faiss's ParameterSpace: `nprobe`, `quantizer_efSearch`, `efSearch`, `k_factor_rf`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import faiss

from bertfeat.ann.structure import core
from bertfeat.errors import UserError

# A search of lists looks at so many vectors for each that it is asked for, at least: `nprobe` is tuned for 10.
_CANDIDATES_EACH = 4


def settable(index: Any) -> dict[str, int]:
    """Return what can be set for searches of an index, by name, with the largest value that makes a difference."""
    index = faiss.downcast_index(index)
    found = {}
    if isinstance(index, faiss.IndexRefine):
        found["k_factor_rf"] = 1 << 20
    inner = core(index)
    if isinstance(inner, faiss.IndexIVF):
        found["nprobe"] = inner.nlist
        if isinstance(faiss.downcast_index(inner.quantizer), faiss.IndexHNSW):
            found["quantizer_efSearch"] = inner.nlist
    elif isinstance(inner, faiss.IndexHNSW):
        found["efSearch"] = max(inner.ntotal, 1 << 20)
    return found


def check_parameters(index: Any, values: Mapping[str, float]) -> None:
    """Refuse search parameters that the index does not have.

    Raises:
        UserError: The message names them, and those that it has.
    """
    known = settable(index)
    for name, value in values.items():
        if name not in known:
            takes = ", ".join(known) or "none"
            raise UserError(f"search parameter {name!r}: this index takes {takes}; leave it out")
        if not 1 <= value <= known[name]:
            raise UserError(f"search parameter {name} is {value}; give 1 to {known[name]}")


def widened(index: Any, values: Mapping[str, float], k: int, n_allowed: int) -> dict[str, float]:
    """Return search parameters that find as much among some of the vectors as the given ones do among all.

    If one vector in ten may be found, ten times as many have to be looked at to meet as many of these. And however
    few lists are enough for ten hits, a thousand hits need more.

    Args:
        index: The index.
        values: The parameters for a search for some ten hits among all vectors.
        k: How many hits are wanted.
        n_allowed: How many vectors may be found, 1 or more.
    """
    inner, wide = core(index), dict(values)
    if isinstance(inner, faiss.IndexIVF):
        wide["nprobe"] = min(inner.nlist, math.ceil(n_compared(index, values, k) * inner.nlist / n_allowed))
    elif isinstance(inner, faiss.IndexHNSW):
        # faiss itself looks at no fewer than k.
        n_steps = wide.get("efSearch", inner.hnsw.efSearch) * inner.ntotal / n_allowed
        wide["efSearch"] = min(inner.ntotal, math.ceil(n_steps))
    return wide


def n_compared(index: Any, values: Mapping[str, float], k: int) -> float:
    """Return how many vectors a search of lists for k hits among all looks at."""
    inner = core(index)
    each = inner.ntotal / inner.nlist
    return float(max(values.get("nprobe", inner.nprobe) * each, _CANDIDATES_EACH * k))


def is_scan_cheaper(index: Any, values: Mapping[str, float], n_allowed: int) -> bool:
    """Tell whether comparing all vectors that may be found costs a graph less than walking to them past the others."""
    inner = core(index)
    if not isinstance(inner, faiss.IndexHNSW):
        return False
    n_steps = values.get("efSearch", inner.hnsw.efSearch) * inner.ntotal / n_allowed
    return bool(n_allowed <= n_steps * inner.hnsw.nb_neighbors(0))


def search_parameters(index: Any, values: Mapping[str, float], selector: Any = None) -> Any:
    """Return what faiss takes along with one search; None where there is nothing to say.

    Args:
        index: The index.
        values: The parameters by name; one that is missing is as the index has it.
        selector: faiss's selector of the vectors that may be found; None for all.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        factor = values.get("k_factor_rf", index.k_factor)
        inner = search_parameters(index.base_index, values, selector)
        return faiss.IndexRefineSearchParameters(k_factor=float(factor), base_index_params=inner)
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(index.index, values, selector)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexIVF):
        return _list_parameters(index, values, selector)
    if isinstance(index, faiss.IndexHNSW):
        n_steps = int(values.get("efSearch", index.hnsw.efSearch))
        return faiss.SearchParametersHNSW(efSearch=n_steps, sel=selector)
    return None if selector is None else faiss.SearchParameters(sel=selector)


def _list_parameters(index: Any, values: Mapping[str, float], selector: Any) -> Any:
    n_probes = int(values.get("nprobe", index.nprobe))
    params = faiss.SearchParametersIVF(nprobe=n_probes, max_codes=index.max_codes, sel=selector)
    quantizer = faiss.downcast_index(index.quantizer)
    if isinstance(quantizer, faiss.IndexHNSW):
        n_steps = int(values.get("quantizer_efSearch", quantizer.hnsw.efSearch))
        # Fewer steps than lists that are wanted would give fewer lists.
        params.quantizer_params = faiss.SearchParametersHNSW(efSearch=max(n_steps, n_probes))
    return params
