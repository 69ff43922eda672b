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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bertfeat
from bertfeat import progress as module
from bertfeat.cli import main
from bertfeat.display import display_width
from bertfeat.errors import ConfigError
from bertfeat.progress import Bar, Progress, is_watched, reporting
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


def drawn(*stages: tuple[Any, ...]) -> list[str]:
    """Return what a bar draws for stages, one item per drawing."""
    with contextlib.redirect_stderr(Screen()) as screen, reporting(True) as progress:
        for stage in stages:
            progress.stage(*stage)
    return lines_of(screen.getvalue())


def receipt(shard: int, n_tokens: int = 0) -> Receipt:
    return Receipt(shard, "", (), 0, {"n_encoded_tokens": n_tokens}, {}, "")


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[list[str]]:
    """Make standard error a terminal of a width; yields the list that holds what was drawn, after the block."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
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
    lines = (" ".join(draw.choices(words, k=1 + n % 30 * (1 + n % 3))) + "\n" for n in range(400))
    (tmp_path / "corpus.txt").write_text("".join(lines), encoding="utf-8")
    return tmp_path / "corpus.txt"


@pytest.fixture
def settings(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    # Every report is drawn.
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    return {"model": str(tiny_folder), "levels": "sentence", "layers": "-1", "max_batch_tokens": 256}


def test_stages_show_their_name_and_counted_stages_a_bar() -> None:
    assert drawn(("reading the corpus",)) == ["reading the corpus ..."]
    lines = drawn(("reading vectors", 250, 1000), ("reading vectors", 2000, 4000), ("writing",))
    assert [line.partition("|")[0] for line in lines] == [
        "reading vectors:  25%",
        "reading vectors:  50%",
        "writing ...",
    ]
    assert "| 250/1000 [00:00<" in lines[0]


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


class TestTimeLeft:
    """It goes by tokens: those of shards that have not begun are estimated by their documents."""

    def shown(self, *reports: tuple[str, Any], clock: SimpleNamespace, done: Sequence[Receipt] = ()) -> str:
        """Return the last line after reports of a method and its arguments, 10 seconds after each other."""
        with contextlib.redirect_stderr(Screen()) as screen, contextlib.closing(Bar()) as bar:
            bar.start(make_plan(), done)
            for method, *arguments in reports:
                getattr(bar, method)(*arguments)
                clock.now += 10
        return lines_of(screen.getvalue())[-1]

    def test_of_a_run(self, clock: SimpleNamespace) -> None:
        rows = [shard.n_rows for shard in make_plan().shards]
        tokens = 1000 * rows[0]
        # Loading takes time which does not count; no document is whole yet, and half of the first shard is encoded.
        reports = [("stage", "loading"), ("encoded", 0, 0, 0, tokens), ("encoded", 0, 0, tokens // 2, tokens)]
        line = self.shown(*reports, clock=clock)
        total = 1000 * sum(rows)
        left = int(20 * (total - tokens / 2) / (tokens / 2))
        assert f" 2.50k/{total // 1000}.0k [00:20<{left // 60:02d}:{left % 60:02d}, " in line
        assert line.startswith(f"{tokens / 2 / total:.0%}|")

    def test_of_a_run_that_resumes(self, clock: SimpleNamespace) -> None:
        first, second, *others = make_plan().shards
        reports = [("encoded", second.index, 0, 0, 90 * second.n_rows), ("committed", receipt(1, 90 * second.n_rows))]
        line = self.shown(*reports, clock=clock, done=[receipt(first.index, 90 * first.n_rows)])
        left = int(20 * sum(shard.n_rows for shard in others) / second.n_rows)
        assert f"[00:20<00:{left:02d}, " in line
        assert f"{first.n_rows + second.n_rows}/{make_plan().n_rows} documents" in line


@pytest.mark.parametrize("value", ["yes", 1, print, Progress])
def test_another_value_is_refused_in_one_line(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"progress .* is not True, False, None or an instance") as caught:
        bertfeat.extract("nothing.txt", tmp_path / "s", progress=value)
    assert "\n" not in str(caught.value)


def test_a_call_draws(tmp_path: Path) -> None:
    write_store(tmp_path / "s", make_plan())
    with contextlib.redirect_stderr(io.StringIO()) as screen:
        assert bertfeat.verify(tmp_path / "s", progress=True).is_good
        assert "checking shards:  33%|###3      | 1/3 [00:00<" in screen.getvalue()
        before = screen.getvalue()
        for silent in (Progress(), False, None):
            assert bertfeat.verify(tmp_path / "s", progress=silent).is_good
    assert screen.getvalue() == before


@pytest.mark.parametrize("context", [False, True])
def test_the_reports_of_a_shard_end_with_its_documents_and_tokens(
    context: bool, corpus: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    if context:
        text = "\n".join("".join(f"{word}\n" for word in line.split()) for line in corpus.read_text().splitlines())
        corpus = tmp_path / "corpus.conll"
        corpus.write_text(text, encoding="utf-8")
        settings |= {"document_context": True}
    heard = Heard()
    store = bertfeat.extract(corpus, tmp_path / "s", progress=heard, **settings)
    (reports,) = heard.encodings.values()
    assert len(reports) > 10
    assert reports[0] == (0, 0, reports[-1][1])
    assert all(late >= early for early, late in itertools.pairwise(reports))
    n_tokens = sum(receipt.counts["n_encoded_tokens"] for receipt in store.receipts())
    assert reports[-1] == (len(store), n_tokens, n_tokens)
    assert any(0 < n_documents < len(store) for n_documents, _, _ in reports)


@pytest.mark.parametrize("columns", [40, 60, 100, 0])
def test_the_line_of_one_shard_moves_in_a_terminal_and_fits_it(
    columns: int, corpus: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    with terminal(columns) as lines:
        assert is_watched()
        bertfeat.extract(corpus, tmp_path / "s", **settings)
    if columns:
        assert max(map(display_width, lines)) <= columns
    moving = [found for line in lines if (found := re.match(r"(\d+)%\|.*\| \S+/\S+ \[\d\d:\d\d<\d\d:\d\d", line))]
    assert len({found[1] for found in moving}) > 5
    assert lines[-1].startswith("100%")
    assert columns == 40 or "400/400" in lines[-1]


@pytest.mark.parametrize(
    ("flags", "draws"),
    [("", True), ("--quiet", False), ("--json", False), ("--dry-run", True), ("--dry-run --quiet", False)],
)
def test_the_command_draws_in_a_terminal_unless_it_is_quiet(
    flags: str, draws: bool, corpus: Path, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"extract {corpus} -o {tmp_path / 's'} --model {settings['model']} --level sentence --layers=-1 {flags}"
    monkeypatch.setattr(sys, "argv", ["bertfeat", *command.split()])
    with terminal(80) as lines, contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    assert bool(lines) == draws
