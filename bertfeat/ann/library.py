"""faiss, loaded with kernels that this processor can run.

The OpenBLAS in the wheels of faiss (0.3.15, of 2021) does not know processors that are younger, and multiplies
matrices on them with instructions of 2004: training took 3.6 times as long on a processor of 2023. It is given the
kernels to use, unless the user names others, and only it: the setting is there while faiss loads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

_VARIABLE = "OPENBLAS_CORETYPE"
# NumPy's names of what OpenBLAS's kernels for Haswell need: before version 2.4, and since.
_AVX2 = {"AVX2", "X86_V3"}

if TYPE_CHECKING or _VARIABLE in os.environ:
    import faiss
else:
    # NumPy leaves out lists that are empty.
    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})
    if _AVX2 & {*simd.get("baseline", ()), *simd.get("found", ())}:
        os.environ[_VARIABLE] = "Haswell"
    try:
        import faiss
    finally:
        os.environ.pop(_VARIABLE, None)

__all__ = ["faiss"]
