"""Errors under `--json`, and names of commands that are nearly right."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertfeat.extraction.run import extract
from tests.support.command_line import bertfeat, refused


def error_of(*arguments: str | Path) -> tuple[int, dict[str, object]]:
    """Run a command that fails; return its exit code and the error in its JSON, whose message stderr has too."""
    result = bertfeat(*arguments)
    (error,) = result.json.values()
    assert result.err == f"bertfeat: {error['message']}\n"
    assert list(error) == ["kind", "message", "path", "row", "settings"]
    return result.code, error


@pytest.mark.parametrize(
    "command",
    [
        "extract none.txt -o out",
        "extract none.txt --dry-run",
        "inspect none/none/none",
        "verify none",
        "search none text",
        "probe fit none -o out",
        "probe score none none",
        "probe predict none none.txt -o out.parquet",
        "probe sweep none -o out",
        "index build none -o out",
        "index update none none",
        "export none --to npy -o out",
        "static none -o out",
        "layers none -o out",
        "map none -o out.parquet",
        "card none",
        "compact none",
        "convert none -o out",
        "import none.npy -o out --level word",
        "serve none",
        "index eval none",
    ],
)
def test_every_command_with_json_prints_its_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, error = error_of(*command.split(), "--json")
    assert code == 2
    assert "none" in str(error["message"])
    assert str(error["kind"]).endswith("Error")


def test_file_and_row(tmp_path: Path) -> None:
    corpus = tmp_path / "bad.jsonl"
    corpus.write_text('{"text": "fine"}\nno json\n')
    code, error = error_of("extract", corpus, "-o", tmp_path / "out", "--json")
    assert (code, error["kind"], error["path"], error["row"]) == (2, "InputError", str(corpus), 2)
    assert str(error["message"]).startswith(f"{corpus}:2: not JSON")


@pytest.mark.parametrize("command", ["extract --json", "models --json --jso", "search a b -k x --json"])
def test_usage(command: str) -> None:
    code, error = error_of(*command.split())
    assert (code, error["kind"], error["path"], error["row"]) == (2, "UsageError", None, None)


def test_without_json_and_after_two_dashes_stdout_stays_empty() -> None:
    for arguments in (("inspct", "x"), ("inspct", "x", "--json"), ("inspct", "--", "--json")):
        result = bertfeat(*arguments)
        assert (result.code, result.out) == (2, "")
        assert "Did you mean 'inspect'?" in result.err


def test_json_is_a_flag_of_the_command_and_no_value_of_an_option() -> None:
    assert bertfeat("extract", "none.txt", "-o", "--json").out == ""
    assert bertfeat("search", "none", "--", "--json").out == ""


def test_a_bug_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertfeat.encoder.discovery.types_of_text", lambda: 1 / 0)
    result = bertfeat("models", "--json")
    assert (result.code, result.json["error"]["kind"]) == (3, "ZeroDivisionError")
    assert "Traceback" in result.err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])  # the second is torch's
def test_no_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("bertfeat.encoder.discovery.types_of_text", Mock(side_effect=error))
    result = bertfeat("models")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "memory" in result.err


def test_python_without_docstrings_is_refused() -> None:
    command = [sys.executable, "-OO", "-m", "bertfeat", "models"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "use -O" in done.stderr


def test_a_check_that_fails_prints_its_report_alone(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one fox\n")
    extract(tmp_path / "a.txt", tmp_path / "out", model=str(tiny_folder), layers="-1")
    shutil.rmtree(tmp_path / "out" / "token")
    result = bertfeat("verify", tmp_path / "out", "--json")
    assert (result.code, result.json["good"]) == (1, False)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("inspct", "No such command 'inspct'. Did you mean 'inspect'? (see bertfeat --help)"),
        ("probe ftt", "No such command 'ftt'. Did you mean 'fit'? (see bertfeat probe --help)"),
        ("serch", "Did you mean "),
        ("zzz", "No such command 'zzz'. (see bertfeat --help)"),
    ],
)
def test_commands_that_are_nearly_right(command: str, said: str) -> None:
    assert said in refused(*command.split())
