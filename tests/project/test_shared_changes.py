"""Changes to the whole process, such as log levels: threads that overlap leave none behind."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging

from bertfeat.encoder import loading
from bertfeat.errors import checkpoint_errors

pytestmark = pytest.mark.promise("threads")

Block = Callable[[], AbstractContextManager[object]]


def state() -> tuple[object, ...]:
    logger = logging.getLogger("transformers")
    return logger.level, list(warnings.filters), warnings.showwarning, transformers_logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    "block",
    [lambda: checkpoint_errors(Path("m"), "does not load"), loading.no_progress_bars],
    ids=["errors-of-a-model", "bars-of-transformers"],
)
def test_threads_that_overlap_restore_what_they_change(block: Block) -> None:
    """The first to enter is the first to leave: a plain context manager leaves the change of the second for ever."""
    before, inside, first_left = state(), threading.Barrier(3, timeout=30), threading.Event()
    seen = []

    def first() -> None:
        with block():
            inside.wait()
        first_left.set()

    def second() -> None:
        with block():
            inside.wait()
            first_left.wait(30)
            seen.append(state())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    inside.wait()
    for thread in threads:
        thread.join(30)
    assert seen[0] != before
    assert state() == before
