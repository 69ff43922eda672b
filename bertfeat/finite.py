"""Search for NaN and infinity in vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import BoolArray

# The exponent bits: all of them are set in infinities and NaNs, and in no other number.
_EXPONENT: dict[int, tuple[type[np.unsignedinteger[Any]], int]] = {
    2: (np.uint16, 0x7C00),
    4: (np.uint32, 0x7F800000),
    8: (np.uint64, 0x7FF0000000000000),
}
_CHUNK_VALUES = 1 << 19


def first_not_finite(vectors: npt.NDArray[Any], valid: BoolArray | None = None) -> int | None:
    """Return the first row of floats (n_rows, dim), contiguous, that holds NaN or infinity, or None.

    Only rows in `valid`, bool (n_rows,), count. The bits of a chunk of rows are tested: NumPy's `isfinite` is much
    slower on float16, and needs half the memory of a shard in addition.
    """
    kind, exponent = _EXPONENT[vectors.dtype.itemsize]
    n_rows, dim = vectors.shape
    step = max(1, _CHUNK_VALUES // max(1, dim))
    bits = np.empty((min(step, n_rows), dim), kind)
    for start in range(0, n_rows if dim else 0, step):
        chunk = vectors[start : start + step].view(kind)
        masked = bits[: len(chunk)]
        np.bitwise_and(chunk, kind(exponent), out=masked)
        if masked.max() < exponent:
            continue
        bad = (masked == exponent).any(axis=1)
        if valid is not None:
            bad &= valid[start : start + step]
        if bad.any():
            return start + int(bad.argmax())
    return None
