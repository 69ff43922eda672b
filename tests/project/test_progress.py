"""Progress: one type for all long calls, what the bar shows, and that it moves while a shard runs."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import random
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bertfeat
from bertfeat import progress as module
from bertfeat.cli import main
from bertfeat.display import display_width
from bertfeat.errors import ConfigError
from bertfeat.progress import Bar, Progress, is_watched
from bertfeat.records import Receipt
from tests.support.families import SENTENCES
from tests.support.runner_fakes import Heard
from tests.support.store_fakes import make_plan, write_store


def lines_of(screen: str) -> list[str]:
    """Return what was drawn, one item per drawing."""
    return [text.strip() for text in screen.split("\r") if text.strip()]


class Screen(io.StringIO):
    """A terminal of an unknown width."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


def receipt(shard: int, n_tokens: int = 0) -> Receipt:
    return Receipt(shard, "", (), 0, {"n_encoded_tokens": n_tokens}, {}, "")


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[list[str]]:
    """Make standard error a terminal of a width; yields the list that holds what was drawn, after the block."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    found, lines = [], []

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(ours, 1 << 16):
                found.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(theirs, "w") as screen, contextlib.redirect_stderr(screen):
            yield lines
    finally:
        reader.join(60)
        os.close(ours)
    lines += lines_of(b"".join(found).decode())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Texts of 1 to 90 words, of which the longest need several windows of the tiny model."""
    words, draw = sorted({word for text in SENTENCES for word in text.split()}), random.Random(19)
    lines = (" ".join(draw.choices(words, k=1 + n % 30 * (1 + n % 3))) + "\n" for n in range(200))
    (tmp_path / "corpus.txt").write_text("".join(lines), encoding="utf-8")
    return tmp_path / "corpus.txt"


@pytest.fixture
def settings(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    # Every report is drawn.
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    return {"model": str(tiny_folder), "levels": "sentence", "layers": "-1", "max_batch_tokens": 256}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("tqdm.std.time", lambda: clock.now)
    return clock


def test_a_log_has_a_line_a_minute_and_one_at_the_end(clock: SimpleNamespace) -> None:
    plan, n = make_plan(), 100
    with contextlib.redirect_stderr(io.StringIO()) as log, contextlib.closing(Bar()) as bar:
        bar.stage("reading the corpus")
        bar.start(plan, [])
        for shard in plan.shards:
            for done in range(n + 1):
                clock.now += 1
                bar.encoded(shard.index, shard.n_rows * done // n, 10 * done, 10 * n)
            bar.committed(receipt(shard.index, 10 * n))
    stage, _, *lines = log.getvalue().splitlines()
    assert stage == "reading the corpus ..."
    assert len(lines) == (clock.now - 1000) // 60 + 1
    assert all(f"/{plan.n_rows} documents]" in line for line in lines)
    assert lines[-1].startswith("100%|##########| ")
    assert "\r" not in log.getvalue()


def test_the_time_left_goes_by_tokens_and_by_documents_of_shards_that_have_not_begun(clock: SimpleNamespace) -> None:
    rows = [shard.n_rows for shard in make_plan().shards]
    tokens, total = 1000 * rows[0], 1000 * sum(rows)
    with contextlib.redirect_stderr(Screen()) as screen, contextlib.closing(Bar()) as bar:
        bar.start(make_plan(), [])
        # Loading takes time which does not count; no document is whole yet, and half of the first shard is encoded.
        bar.stage("loading")
        clock.now += 10
        bar.encoded(0, 0, 0, tokens)
        clock.now += 10
        bar.encoded(0, 0, tokens // 2, tokens)
        clock.now += 10
    line = lines_of(screen.getvalue())[-1]
    left = int(20 * (total - tokens / 2) / (tokens / 2))
    assert f" 2.50k/{total // 1000}.0k [00:20<{left // 60:02d}:{left % 60:02d}, " in line
    assert line.startswith(f"{tokens / 2 / total:.0%}|")


def test_another_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"progress .* is not True, False, None or an instance"):
        bertfeat.extract("nothing.txt", tmp_path / "s", progress="yes")  # type: ignore[arg-type]


def test_a_call_draws(tmp_path: Path) -> None:
    write_store(tmp_path / "s", make_plan())
    with contextlib.redirect_stderr(io.StringIO()) as screen:
        assert bertfeat.verify(tmp_path / "s", progress=True).is_good
        assert "checking shards:  33%|###3      | 1/3 [00:00<" in screen.getvalue()
        before = screen.getvalue()
        for silent in (Progress(), False, None):
            assert bertfeat.verify(tmp_path / "s", progress=silent).is_good
    assert screen.getvalue() == before


def test_the_reports_of_a_shard_end_with_its_documents_and_tokens(
    corpus: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    heard = Heard()
    store = bertfeat.extract(corpus, tmp_path / "s", progress=heard, **settings)
    (reports,) = heard.encodings.values()
    assert len(reports) > 10
    assert reports[0] == (0, 0, reports[-1][1])
    assert all(late >= early for early, late in itertools.pairwise(reports))
    n_tokens = sum(receipt.counts["n_encoded_tokens"] for receipt in store.receipts())
    assert reports[-1] == (len(store), n_tokens, n_tokens)
    assert any(0 < n_documents < len(store) for n_documents, _, _ in reports)


@pytest.mark.parametrize("columns", [40, 100])
def test_the_line_of_one_shard_moves_in_a_terminal_and_fits_it(
    columns: int, corpus: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    with terminal(columns) as lines:
        assert is_watched()
        bertfeat.extract(corpus, tmp_path / "s", **settings)
    assert max(map(display_width, lines)) <= columns
    moving = [found for line in lines if (found := re.match(r"(\d+)%\|.*\| \S+/\S+ \[\d\d:\d\d<\d\d:\d\d", line))]
    assert len({found[1] for found in moving}) > 5
    assert lines[-1].startswith("100%")
    assert columns == 40 or "200/200" in lines[-1]


@pytest.mark.parametrize(("flags", "draws"), [("--dry-run", True), ("--quiet", False), ("--json", False)])
def test_the_command_draws_in_a_terminal_unless_it_is_quiet(
    flags: str, draws: bool, corpus: Path, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"extract {corpus} -o {tmp_path / 's'} --model {settings['model']} --level sentence --layers=-1 {flags}"
    monkeypatch.setattr(sys, "argv", ["bertfeat", *command.split()])
    with terminal(80) as lines, contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert bool(lines) == draws
