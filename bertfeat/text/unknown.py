"""Unknown words of static vectors: they are counted, and leave the pooled vectors."""

from __future__ import annotations

import numpy as np

from bertfeat.ragged import run_of
from bertfeat.text.alignment import Units
from bertfeat.text.windows import Windows


def without_unknown(units: Units, windows: Windows, unknown_id: int) -> Units:
    """Return units without the positions of unknown words; a row that has no others has no vector."""
    window = run_of(np.diff(units.window_starts))
    n = np.diff(units.starts)
    known = windows.input_ids[units.positions + np.repeat(windows.starts[window], n)] != unknown_id
    if known.all():
        return units
    n_known = np.bincount(run_of(n)[known], minlength=len(n))
    keep = n_known > 0
    weights = None if units.weights is None else units.weights[known]
    return Units.build(
        windows, units.n_rows, units.row[keep], window[keep], n_known[keep], units.positions[known], weights
    )
