"""Splits of a corpus without files of its own for dev and test, the same in each recipe that trains."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from bertfeat.errors import InputError


def draw_rows(n_rows: int, limit: int | None) -> list[int]:
    """Return the numbers of the rows to use, in order: all, or `limit` of them, drawn at random."""
    rows = pl.int_range(n_rows, eager=True)
    return (rows if limit is None else rows.sample(min(limit, n_rows), seed=0, shuffle=True)).to_list()


def hold_out(n_rows: int, seed: int, names: Collection[str] = ("test", "dev")) -> dict[str, list[int]]:
    """Return the rows of train and of each of `names`: a fifth for test, and a tenth of the rest for dev."""
    rows = pl.int_range(n_rows, eager=True).sample(fraction=1.0, shuffle=True, seed=seed).to_list()
    held = {}
    for name, share in {"test": 5, "dev": 10}.items():
        if name in names:
            cut = max(1, len(rows) // share)
            held[name], rows = rows[:cut], rows[cut:]
    if held and not rows:
        raise InputError(f"{n_rows} rows are too few to train on and to hold out {' and '.join(held)}; bring more")
    return {"train": rows, **held}
