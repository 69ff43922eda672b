"""Hostile and damaged pickle files: each is refused in one line, runs nothing and leaves nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertfeat.encoder.conversion import convert
from bertfeat.errors import CheckpointError
from tests.support.hostile_pickles import calls, damaged


def check_refusal(folder: Path, name: str, content: bytes, said: str) -> None:
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        convert(str(folder), folder.parent / "made")
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert str(folder / "pytorch_model.bin") in message
    assert re.search(said, message), (name, message)
    assert message.isprintable(), (name, message)
    assert len(message) < 600
    assert "weights_only" not in message, "never advise to run the code of the file"
    assert [path.name for path in folder.parent.iterdir()] == ["model"], name


def test_pickles_that_call_are_refused_and_leave_no_canary(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name, (content, said) in calls(tmp_path / "canary").items():
        check_refusal(folder, name, content, said)


def test_pickles_that_are_damaged_or_hold_no_tensors_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name, (content, said) in damaged().items():
        check_refusal(folder, name, content, said)
