"""Errors: their exit codes, and their JSON."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertfeat import BertfeatError
from bertfeat.errors import CheckFailed, RunError
from tests.support.command_line import bertfeat, refused


def test_json_has_kind_file_row_and_settings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    result = bertfeat("extract", "not.jsonl", "-o", "out", "--model", "./tiny", "--layers", "1", "--json")
    (error,) = result.json.values()
    assert str(error.pop("message")).endswith("--bad-rows quarantine")
    expected = {"kind": "InputError", "path": "not.jsonl", "row": 2, "settings": ["bad_rows"]}
    assert (result.code, error) == (2, expected)


def test_without_json_stdout_is_empty() -> None:
    assert "none.txt" in refused("extract", "none.txt", "-o", "out")
    assert "Did you mean 'inspect'?" in refused("inspct", "x")
    assert "Did you mean 'fit'?" in refused("probe", "ftt")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CheckFailed("x"), 1, "bertfeat: x"),
        (RunError("x"), 3, "bertfeat: x"),
        (BertfeatError("two\nlines"), 3, "bertfeat: "),
        (MemoryError(), 3, "memory"),
        (RuntimeError("std::bad_alloc"), 3, "memory"),  # of torch
        (KeyboardInterrupt(), 130, "the same command"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertfeat.encoder.entry_points.types_of_text", Mock(side_effect=error))
    result = bertfeat("models")
    assert result.code == code
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_bug_prints_its_traceback_and_is_an_error_in_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertfeat.encoder.entry_points.types_of_text", lambda: 1 / 0)
    result = bertfeat("models", "--json")
    assert (result.code, result.json["error"]["kind"]) == (3, "ZeroDivisionError")
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("bertfeat: ")


def test_a_check_that_fails_prints_its_report_alone(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "made" / "store", tmp_path / "out")
    part = next((tmp_path / "out" / "word").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert bertfeat("verify", tmp_path / "out", "--json").json["good"] is False
    for flags in ([], ["--quiet"]):
        result = bertfeat("verify", tmp_path / "out", *flags)
        assert result.code == 1
        assert f"word/{part.name}: digest " in result.out
        assert result.err.count("\n") == 1
