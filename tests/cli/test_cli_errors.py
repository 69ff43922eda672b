"""Errors under `--json`, and names of commands that are nearly right."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from bertfeat.extraction.run import extract
from tests.support.command_line import bertfeat


def error_of(*arguments: str | Path) -> tuple[int, dict[str, object]]:
    """Run a command that fails; return its exit code and the error in its JSON, whose message stderr has too."""
    result = bertfeat(*arguments)
    (error,) = result.json.values()
    assert result.err == f"bertfeat: {error['message']}\n"
    assert list(error) == ["kind", "message", "path", "row", "settings"]
    return result.code, error


COMMANDS = """extract none.txt -o out | extract none.txt --dry-run | inspect none/none/none | verify none
search none text | serve none | probe fit none -o out | probe score none none | probe sweep none -o out
probe predict none none.txt -o out.parquet | index build none -o out | index update none none | index eval none
export none --to npy -o out | static none -o out | layers none -o out | map none -o out.parquet | card none
compact none | convert none -o out | import none.npy -o out --level word"""


@pytest.mark.parametrize("command", COMMANDS.replace("\n", " | ").split(" | "))
def test_every_command_with_json_prints_its_error(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, error = error_of(*command.split(), "--json")
    assert code == 2
    assert "none" in str(error["message"])
    assert str(error["kind"]).endswith("Error")


def test_file_row_and_settings(tmp_path: Path) -> None:
    corpus = tmp_path / "bad.jsonl"
    corpus.write_text('{"text": "fine"}\nno json\n')
    code, error = error_of("extract", corpus, "-o", tmp_path / "out", "--json")
    assert str(error.pop("message")).endswith("--bad-rows quarantine")
    assert (code, error) == (2, {"kind": "InputError", "path": str(corpus), "row": 2, "settings": ["bad_rows"]})


@pytest.mark.parametrize("command", ["extract --json", "models --json --jso", "search a b -k x --json"])
def test_usage(command: str) -> None:
    code, error = error_of(*command.split())
    assert (code, error["kind"], error["path"], error["row"]) == (2, "UsageError", None, None)


@pytest.mark.parametrize("command", ["inspct x", "inspct x --json", "inspct -- --json", "probe ftt", "zzz"])
def test_names_of_commands_that_are_nearly_right(command: str) -> None:
    result = bertfeat(*command.split())
    assert (result.code, result.out) == (2, "")
    near = {"inspct": "Did you mean 'inspect'?", "probe": "Did you mean 'fit'?", "zzz": "--help"}
    assert near[command.split()[0]] in result.err


def test_a_bug_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertfeat.encoder.entry_points.types_of_text", lambda: 1 / 0)
    result = bertfeat("models", "--json")
    assert (result.code, result.json["error"]["kind"]) == (3, "ZeroDivisionError")
    assert "Traceback" in result.err


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])  # the second is torch's
def test_no_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("bertfeat.encoder.entry_points.types_of_text", Mock(side_effect=error))
    result = bertfeat("models")
    assert (result.code, result.err.count("\n")) == (3, 1)
    assert "memory" in result.err


def test_a_check_that_fails_prints_its_report_alone(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one fox\n")
    extract(tmp_path / "a.txt", tmp_path / "out", model=str(tiny_folder), layers="-1")
    shutil.rmtree(tmp_path / "out" / "token")
    result = bertfeat("verify", tmp_path / "out", "--json")
    assert (result.code, result.json["good"]) == (1, False)
