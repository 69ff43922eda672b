"""The task that a column of labels can be, by its type and values, and its values in the form of a task."""

from __future__ import annotations

import polars as pl

from bertfeat.choices import Task
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels
from bertfeat.heads.targets import check_truth

# Whole numbers with more different values may be quantities as well as classes: the user says which.
_MANY = 30


def is_given(values: pl.Series) -> pl.Series:
    """Return which rows have a label: not null, not NaN, and not an empty text, as an empty cell of a .csv is."""
    given = values.is_not_null()
    if values.dtype == pl.String:
        given &= (values != "").fill_null(value=False)
    elif values.dtype.is_float():
        given &= values.is_not_nan().fill_null(value=False)
    return given


def choose_task(values: pl.Series, where: str) -> tuple[Task, str | None]:
    """Return the task of a column by its type and values, and why (not for texts); an error asks if both are likely."""
    values = values.filter(is_given(values))
    if values.dtype.is_nested():
        if isinstance(values.dtype, pl.List | pl.Array) and values.dtype.inner.is_float():
            return Task.REGRESS, f"{where} holds lists of decimals"
        return Task.MULTILABEL, f"{where} holds lists"
    numbers = values.cast(pl.Float64, strict=False)
    is_number = numbers.is_finite().fill_null(value=False)
    if values.dtype == pl.Boolean or not len(values) or not is_number.all():
        return Task.CLASSIFY, None
    if decimals := values.filter(numbers != numbers.round()).head(1).to_list():
        return Task.REGRESS, f"{where} holds decimals, such as {decimals[0]}"
    if (n_values := numbers.n_unique()) > _MANY:
        raise UserError(
            f"{where} holds {n_values} different whole numbers, such as {_some(values)}; "
            "pass `task='regress'` if they are quantities, or `task='classify'`"
        )
    return Task.CLASSIFY, f"{where} holds {n_values} different whole numbers"


def labels_of(values: pl.Series, task: str, where: str) -> Labels:
    """Return the labels of rows, (n_rows,), in the form of a task; see `check_truth`."""
    if task == Task.MULTILABEL and not isinstance(values.dtype, pl.List | pl.Array):
        raise UserError(f"{where} holds {_some(values)}, not lists; several labels per row need a column of lists")
    if task == Task.REGRESS:
        kind = pl.List(pl.Float64) if values.dtype.is_nested() else pl.Float64
        try:
            numbers = values.cast(kind)
        except pl.exceptions.PolarsError:
            raise UserError(f"{where} holds {_some(values)}, not numbers; pass `task='classify'`") from None
        return check_truth(Task.REGRESS, numbers.to_list(), where)
    has_fractions = values.dtype.is_float() and bool((values != values.round()).any())
    if task == Task.CLASSIFY and (values.dtype.is_nested() or has_fractions):
        raise UserError(f"{where} holds {_some(values)}, not classes; classes are texts or whole numbers")
    return check_truth(task, values.to_list() if task == Task.MULTILABEL else values.to_numpy(), where)


def _some(values: pl.Series) -> str:
    """Return three different values, cut if they are long."""
    return ", ".join(f"{value!r:.40}" for value in values.drop_nulls().unique(maintain_order=True).head(3).to_list())
