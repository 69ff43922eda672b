"""Progress: one type for all long calls, and what the bar shows."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertfeat
from bertfeat.progress import Bar, Progress, Silent, reporting
from bertfeat.records import Receipt
from tests.support.runner_fakes import Heard
from tests.support.store_fakes import make_plan, write_store


def drawn(*stages: tuple[Any, ...]) -> list[str]:
    """Return what a bar draws for stages, one item per drawing."""
    with contextlib.redirect_stderr(io.StringIO()) as screen, reporting(True) as progress:
        for stage in stages:
            progress.stage(*stage)
    return [text.strip() for text in screen.getvalue().split("\r") if text.strip()]


def receipt(shard: int) -> Receipt:
    return Receipt(shard, "", (), 0, {}, {}, "")


def test_stages_show_their_name_and_counted_stages_a_bar() -> None:
    assert drawn(("reading the corpus",))[-1] == "reading the corpus ..."
    lines = drawn(("reading vectors", 250, 1000), ("reading vectors", 2000, 4000), ("writing",))
    assert any(line.startswith("reading vectors:  25%|") and "250/1,000" in line for line in lines)
    assert any(line.startswith("reading vectors:  50%|") and "2,000/4,000" in line for line in lines)
    assert lines[-1] == "writing ..."


def test_a_bar_is_drawn_a_few_times_a_second_only() -> None:
    lines = drawn(*(("reading vectors", n, 100_000) for n in range(2000)))
    assert 1 < len(lines) < 200


def test_a_stage_that_begins_again_is_counted_again() -> None:
    lines = drawn(("checking", 9, 10), ("checking", 1, 10))
    assert "90%" in lines[-2] or "90%" in lines[-3]
    assert "10%" in lines[-1]


def test_the_line_of_an_extraction_stays_and_others_are_removed() -> None:
    plan = make_plan()
    for shows, last in ((False, ""), (True, "100%")):
        with contextlib.redirect_stderr(io.StringIO()) as screen, contextlib.closing(Bar()) as bar:
            bar.stage("loading the model")
            if shows:
                bar.start(plan, [])
                bar.stage("loading the weights")
                for shard in plan.shards:
                    bar.encoded(1000)
                    bar.committed(receipt(shard.index))
        assert screen.getvalue().split("\r")[-1].strip().startswith(last)
    assert f"{plan.n_rows}/{plan.n_rows} documents" in screen.getvalue()
    assert "tokens/s" in screen.getvalue()
    assert "loading the weights:   0%|" in screen.getvalue()
    assert screen.getvalue().endswith("\n")


def test_rows_of_an_earlier_run_do_not_count_in_the_rate() -> None:
    plan = make_plan()
    with contextlib.redirect_stderr(io.StringIO()) as screen, contextlib.closing(Bar()) as bar:
        bar.start(plan, [receipt(0)])
    assert f"{plan.shards[0].n_rows}/{plan.n_rows} documents [00:00<?" in screen.getvalue()


def test_a_disabled_bar_draws_nothing() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as screen, contextlib.closing(Bar(draws=False)) as bar:
        bar.stage("a", 1, 2)
        bar.start(make_plan(), [])
        bar.encoded(3)
        bar.committed(receipt(0))
        bar.clear()
    assert screen.getvalue() == ""


def test_the_receiver_of_reports() -> None:
    heard = Heard()
    with reporting(heard) as progress:
        assert progress is heard
    with reporting(False) as progress:
        assert isinstance(progress, Silent)
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(ValueError, match="broken"), reporting(True) as bar:
        raise ValueError("broken")
    assert isinstance(bar, Bar)


LONG = [
    *(bertfeat.extract, bertfeat.verify, bertfeat.fit_probe, bertfeat.sweep_probes, bertfeat.build_index),
    *(bertfeat.update_index, bertfeat.FittedProbe.predict_input),
]


@pytest.mark.parametrize("function", LONG, ids=lambda function: function.__name__)
def test_all_long_calls_take_the_same_progress(function: Callable[..., Any]) -> None:
    parameter = inspect.signature(function).parameters["progress"]
    assert (parameter.annotation, parameter.default) == ("bool | Progress", False)


def test_a_call_draws(tmp_path: Path) -> None:
    write_store(tmp_path / "s", make_plan())
    with contextlib.redirect_stderr(io.StringIO()) as screen:
        assert bertfeat.verify(tmp_path / "s", progress=True).is_good
        assert "checking shards:  33%|" in screen.getvalue()
        before = screen.getvalue()
        assert bertfeat.verify(tmp_path / "s", progress=Progress()).is_good
        assert bertfeat.verify(tmp_path / "s").is_good
    assert screen.getvalue() == before
