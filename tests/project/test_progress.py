"""Progress: one type for all long calls, what the bar shows, and that it moves while a shard runs."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import io
import itertools
import os
import random
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bertfeat
from bertfeat import progress as module
from bertfeat.cli import main
from bertfeat.display import display_width
from bertfeat.errors import ConfigError
from bertfeat.progress import Bar, Progress, Silent, Work, is_watched, reporting
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
    assert drawn(("reading the corpus",))[-1] == "reading the corpus ..."
    lines = drawn(("reading vectors", 250, 1000), ("reading vectors", 2000, 4000), ("writing",))
    assert any(line.startswith("reading vectors:  25%|") and line.endswith("250/1,000") for line in lines)
    assert any(line.startswith("reading vectors:  50%|") and line.endswith("2,000/4,000") for line in lines)
    assert lines[-1] == "writing ..."


def test_a_bar_is_drawn_a_few_times_a_second_only() -> None:
    lines = drawn(*(("reading vectors", n, 100_000) for n in range(2000)))
    assert 1 <= len(lines) < 200
    with contextlib.redirect_stderr(Screen()) as screen, contextlib.closing(Bar()) as bar:
        bar.start(make_plan(), [])
        for n in range(2000):
            bar.encoded(0, 0, n, 10_000)
    assert 1 <= len(lines_of(screen.getvalue())) < 200


def test_a_log_has_a_line_a_minute_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(module.time, "monotonic", lambda: next(seconds))
    plan, n = make_plan(), 100
    with contextlib.redirect_stderr(io.StringIO()) as log, contextlib.closing(Bar()) as bar:
        bar.stage("reading the corpus")
        bar.start(plan, [])
        for shard in plan.shards:
            for done in range(n + 1):
                bar.encoded(shard.index, shard.n_rows * done // n, 10 * done, 10 * n)
            bar.committed(receipt(shard.index, 10 * n))
    first, *lines = log.getvalue().splitlines()
    assert first == "reading the corpus ..."
    assert 2 < len(lines) <= next(seconds) // 60 + 1
    assert all(f"/{plan.n_rows} documents, " in line for line in lines)
    assert lines[-1].startswith("100% took ")
    assert "\r" not in log.getvalue()


def test_a_stage_that_begins_again_is_counted_again() -> None:
    lines = drawn(("checking", 9, 10), ("checking", 1, 10))
    assert " 90%|" in lines[-2]
    assert " 10%|" in lines[-1]


def test_the_line_of_an_extraction_stays_and_others_are_removed() -> None:
    plan = make_plan()
    for shows, last in ((False, ""), (True, "100%|")):
        with contextlib.redirect_stderr(Screen()) as screen, contextlib.closing(Bar()) as bar:
            bar.stage("loading the model")
            if shows:
                bar.start(plan, [])
                bar.stage("loading the weights")
                for shard in plan.shards:
                    bar.encoded(shard.index, 0, 0, 1000)
                    bar.encoded(shard.index, shard.n_rows, 1000, 1000)
                    bar.committed(receipt(shard.index, 1000))
        assert screen.getvalue().split("\r")[-1].strip().startswith(last)
    lines = lines_of(screen.getvalue())
    assert f"{plan.n_rows}/{plan.n_rows} documents, {1000 * len(plan.shards):,} tokens, " in lines[-1]
    assert "took 00:0" in lines[-1]
    assert any(line.startswith("0%|") and line.endswith("| loading the weights") for line in lines)
    assert any(line.startswith("99%|") and "| writing, " in line for line in lines)
    assert screen.getvalue().endswith("\n")


class TestWork:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        clock = SimpleNamespace(now=100.0)
        monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
        return clock

    def test_time_left_goes_by_tokens(self, clock: SimpleNamespace) -> None:
        plan = make_plan()
        rows = [shard.n_rows for shard in plan.shards]
        work = Work(plan, [])
        assert (work.share, work.time_left()) == (0, "")
        work.encode(0, 0, 0, 100 * rows[0])
        clock.now += 10
        # No document is whole yet, and half of the tokens of the first shard are encoded.
        work.encode(0, 0, 50 * rows[0], 100 * rows[0])
        assert work.share == pytest.approx(0.5 * rows[0] / plan.n_rows)
        assert work.tokens_per_s == pytest.approx(5 * rows[0])
        left = 10 * (plan.n_rows / (0.5 * rows[0]) - 1)
        assert work.time_left() == f"00:{int(left):02d} left"

    def test_a_run_that_resumes_counts_what_is_left(self, clock: SimpleNamespace) -> None:
        plan = make_plan()
        first, *others = plan.shards
        work = Work(plan, [receipt(first.index, 90 * first.n_rows)])
        assert work.share == pytest.approx(first.n_rows / plan.n_rows)
        assert (work.n_documents, work.time_left()) == (first.n_rows, "")
        clock.now += 1000
        work.restart()  # the model has been loaded
        work.encode(others[0].index, 0, 0, 90 * others[0].n_rows)
        clock.now += 4
        work.encode(others[0].index, others[0].n_rows, 90 * others[0].n_rows, 90 * others[0].n_rows)
        assert work.tokens_per_s == pytest.approx(90 * others[0].n_rows / 4)
        left = 4 * sum(shard.n_rows for shard in others[1:]) / others[0].n_rows
        assert work.time_left() == f"00:{int(left):02d} left"

    def test_a_shard_that_is_tried_again_counts_once(self, clock: SimpleNamespace) -> None:
        plan = make_plan()
        work = Work(plan, [])
        for done in ((0, 0, 30), (1, 20, 30), (0, 0, 30), (0, 10, 30)):
            work.encode(0, *done)
        assert (work.n_documents, work.n_tokens) == (0, 10)
        for shard in plan.shards:
            work.commit(receipt(shard.index, 30))
        assert (work.n_documents, work.n_tokens, work.share) == (plan.n_rows, 30 * len(plan.shards), 1)


def test_a_disabled_bar_draws_nothing() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as screen, contextlib.closing(Bar(draws=False)) as bar:
        bar.stage("a", 1, 2)
        bar.start(make_plan(), [])
        bar.encoded(0, 1, 3, 3)
        bar.committed(receipt(0))
        bar.clear()
    assert screen.getvalue() == ""


def test_the_receiver_of_reports() -> None:
    heard = Heard()
    with reporting(heard) as progress:
        assert progress is heard
    for nothing in (False, None):  # no terminal
        with reporting(nothing) as progress:
            assert isinstance(progress, Silent)
    with contextlib.redirect_stderr(io.StringIO()), pytest.raises(ValueError, match="broken"), reporting(True) as bar:
        raise ValueError("broken")
    assert isinstance(bar, Bar)


@pytest.mark.parametrize("value", ["yes", 1, print, Progress])
def test_another_value_is_refused_in_one_line(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"progress .* is not True, False, None or an instance") as caught:
        bertfeat.extract("nothing.txt", tmp_path / "s", progress=value)
    assert "\n" not in str(caught.value)


LONG = [
    *(bertfeat.append, bertfeat.compact),
    *(bertfeat.extract, bertfeat.verify, bertfeat.fit_probe, bertfeat.sweep_probes, bertfeat.build_index),
    *(bertfeat.update_index, bertfeat.FittedProbe.predict_input),
]


@pytest.mark.parametrize("function", LONG, ids=lambda function: function.__name__)
def test_all_long_calls_take_the_same_progress(function: Callable[..., Any]) -> None:
    parameter = inspect.signature(function).parameters["progress"]
    assert (parameter.annotation, parameter.default) == ("bool | Progress | None", None)


def test_a_call_draws(tmp_path: Path) -> None:
    write_store(tmp_path / "s", make_plan())
    with contextlib.redirect_stderr(io.StringIO()) as screen:
        assert bertfeat.verify(tmp_path / "s", progress=True).is_good
        assert "checking shards:  33% 1/3\n" in screen.getvalue()
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
    moving = [line for line in lines if "left" in line and "/400" in line]
    assert len({line.partition("left")[2] for line in moving}) > 5
    assert all(int(line.partition("%")[0]) < 100 for line in moving)
    assert lines[-1].startswith("100%")
    assert "400/400 documents" in lines[-1]


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


NOTEBOOK = """
import sys
from types import ModuleType, SimpleNamespace

class ZMQInteractiveShell:
    config = {"IPKernelApp": {}}

shell = ZMQInteractiveShell()
sys.modules["ipykernel.zmqshell"] = ModuleType("ipykernel.zmqshell")
sys.modules["IPython"] = SimpleNamespace(get_ipython=lambda: shell, display=None)
sys.modules["IPython.display"] = SimpleNamespace(display=lambda shown: print("shown"))
sys.modules["ipywidgets"] = WIDGETS

from bertfeat.progress import is_watched, reporting
assert is_watched()
with reporting(None) as progress:
    progress.stage("reading", 1, 4)
    progress.stage("reading", 4, 4)
with reporting(False) as progress:
    progress.stage("unheard")
"""
WIDGETS = """SimpleNamespace(
    HTML=lambda: SimpleNamespace(value=""),
    FloatProgress=lambda min, max: SimpleNamespace(
        max=max, value=0, bar_style="", layout=SimpleNamespace(), style=SimpleNamespace(bar_color="")),
    HBox=type("HBox", (), {
        "__init__": lambda box, children: box.__dict__.update(children=children, layout=SimpleNamespace()),
        "close": lambda box: print("closed", box.children[1].value),
    }),
)"""


@pytest.mark.parametrize("widgets", ["None", WIDGETS], ids=["without-ipywidgets", "with-ipywidgets"])
def test_a_notebook_shows_progress_by_itself_and_without_a_warning(widgets: str) -> None:
    """The modules of Jupyter are fakes; tqdm is real."""
    command = [sys.executable, "-W", "error", "-c", NOTEBOOK.replace("WIDGETS", widgets)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if widgets == "None":
        assert done.stdout == ""
        assert "reading: 100%|██████████| 00:00 left, 4/4" in done.stderr
    else:
        shown, closed = done.stdout.splitlines()
        assert shown == "shown"
        assert closed == "closed 1"
        assert done.stderr == ""
    assert "unheard" not in done.stdout + done.stderr
