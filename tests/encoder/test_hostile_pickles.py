"""Hostile and damaged pickle files: each is refused in one line, runs nothing and leaves nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertfeat.encoder.conversion import convert
from bertfeat.errors import CheckpointError
from tests.support.hostile_pickles import calls, damaged

pytestmark = pytest.mark.promise("pickle")


@pytest.mark.parametrize("name", [*calls(Path("canary")), *damaged()])
def test_a_hostile_or_damaged_pickle_is_one_line_and_runs_nothing(name: str, folder: Path, tmp_path: Path) -> None:
    content, said = (calls(tmp_path / "canary") | damaged())[name]
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        convert(str(folder), folder.parent / "made")
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert str(folder / "pytorch_model.bin") in message
    assert re.search(said, message)
    assert message.isprintable()
    assert len(message) < 600
    assert "weights_only" not in message, "never advise to run the code of the file"
    assert [path.name for path in folder.parent.iterdir()] == ["model"], "no canary, and no output"
