"""A tokenizer that panics or computes without end: one line that names the document, in bounded time."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

import bertfeat
from bertfeat.cli import main
from bertfeat.errors import RunError, TokenizingError
from bertfeat.text import tokenizer, watchdog
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.watchdog import CallFailed, call_within, held_stderr
from tests.support.fakes import texts

PANICS = "^(a|a|aa)+$"
PANICKING = "a" * 40 + "!"
# Each block of x is tried in two million ways, which is below the limit of the regex library for one place.
SLOW = "(x+x+)+y"
SLOW_TEXT = ("x" * 20 + " ") * 100 + "y"


def with_regex(pattern: str) -> Tokenizer:
    backend = BackendTokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return Tokenizer(backend, cls_id=None)


def model_with_regex(tiny: Path, folder: Path, pattern: str) -> Path:
    """Copy a model and give its tokenizer a pre-tokenizer of one regular expression."""
    shutil.copytree(tiny, folder)
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text("utf-8"))
    state["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(state), encoding="utf-8")
    return folder


def test_a_panic_is_an_error_that_names_the_document() -> None:
    with pytest.raises(
        TokenizingError, match=r"document 1 cannot be tokenized: .* failed: .*retry-limit.* 41 characters"
    ):
        with_regex(PANICS).encode(texts("fine", PANICKING, "fine too"))


def test_a_document_that_takes_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_TIMEOUT_S", 0.02)
    monkeypatch.setattr(tokenizer, "_CHARS_PER_S", 1_000_000)
    # Every look at the clock finds that the process has computed for one more minute.
    monkeypatch.setattr(watchdog.time, "process_time", partial(next, itertools.count(0.0, 60.0)))
    with pytest.raises(TokenizingError, match=r"document 0 cannot be tokenized: .* took more than 0 s on 2,101 char"):
        with_regex(SLOW).encode(texts(SLOW_TEXT, "x", "fine"))


def test_a_batch_that_fails_only_together_is_tokenized_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = texts("one a", "two", "three aa")
    made = with_regex(" ")
    whole = made.encode(found)
    calls = []

    def failing(call: object, timeout_s: float) -> object:
        calls.append(timeout_s)
        if len(calls) == 1:
            raise CallFailed("took more than 1 s")
        return call_within(call, timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(tokenizer, "call_within", failing)
    assert made.encode(found).ids.tolist() == whole.ids.tolist()
    assert len(calls) == 4


def test_time_that_the_process_did_not_compute_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = threading.Event()
    monkeypatch.setattr(watchdog.time, "process_time", lambda: 0.0)
    threading.Timer(0.3, ready.set).start()
    assert call_within(lambda: ready.wait(60), 0.01)


def test_standard_error_is_held_back_and_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    def write_and_fail() -> None:
        os.write(2, b"dropped\n")
        raise CallFailed

    with held_stderr():
        os.write(2, b"kept\n")
    with pytest.raises(CallFailed), held_stderr():
        write_and_fail()
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "kept\nafter\n"


def test_the_command_line_says_one_line(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = model_with_regex(tiny_folder, tmp_path / "model", PANICS)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"fine\n{PANICKING}\n", encoding="utf-8")
    flags = ["--model", str(model), "--level", "sentence", "--layers", "-1", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["bertfeat", "extract", str(corpus), "-o", str(tmp_path / "out"), *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert err.startswith(f"bertfeat: {corpus}:2: document 1 cannot be tokenized: ")
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_run_that_has_begun_can_be_resumed(
    workers: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertfeat.extraction.plan._SAMPLE_ROWS", 1)
    model = model_with_regex(tiny_folder, tmp_path / "model", PANICS)
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    corpus.write_text("fine\n" * 9 + PANICKING, encoding="utf-8")
    settings = {"model": str(model), "levels": "sentence", "layers": "-1", "workers": workers, "shard_bytes": 1}
    for _ in range(2):
        with pytest.raises(RunError, match=r"corpus.txt:10: document 9 cannot .*; the same command resumes the run"):
            bertfeat.extract(corpus, out, **settings)
    assert list((out / "sentence").iterdir())
