"""Models of the hub: pinned to a commit, one line without a network, and pickle files only for `convert`."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import filter_repo_objects

from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.conversion import convert
from bertfeat.errors import CheckpointError
from tests.support.command_line import good as run_good
from tests.support.hostile_pickles import saved

pytestmark = pytest.mark.promise("hub")

NAME = "owner/model"
OWN = "a" * 40


@dataclass
class Hub:
    """A hub with one model, as `snapshot_download` shows it: the network, and the cache that downloads go to."""

    cache: Path
    commits: dict[str, Path]
    asked: list[str] = field(default_factory=list)
    is_lost: bool = False

    def snapshot_download(self, _: str, *, revision: str | None, allow_patterns: list[str], **__: Any) -> str:
        commit = revision or OWN
        folder, model = self.cache / "snapshots" / commit, self.commits[commit]
        there = sorted(str(path.relative_to(model)) for path in model.rglob("*") if path.is_file())
        missing = [
            name for name in filter_repo_objects(there, allow_patterns=allow_patterns) if not (folder / name).exists()
        ]
        if missing and self.is_lost:
            raise LocalEntryNotFoundError("Got: ConnectError: no network\nand a second line")
        self.asked += missing
        for name in missing:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model / name, folder / name)
        return str(folder)


@pytest.fixture
def there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A model with a pickle file."""
    from safetensors.torch import load_file

    own = Path(shutil.copytree(folder, tmp_path / "own"))
    (own / "pytorch_model.bin").write_bytes(saved(load_file(own / "model.safetensors")))
    (own / "model.safetensors").unlink()
    for name in ("evil.py", "onnx/model.safetensors", "2_Dense/pytorch_model.bin", "2_Dense/model.safetensors"):
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).touch()
    (tmp_path / "cache" / "blobs").mkdir(parents=True)
    made = Hub(tmp_path / "cache", {OWN: own})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "bertfeat"))
    return made


def test_pickle_weights_are_one_line_and_are_not_downloaded(there: Hub) -> None:
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"for pickle weights, run: bertfeat convert {NAME} -o FOLDER$"):
            open_checkpoint(NAME)
    wanted = ["2_Dense/model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert there.asked == wanted, "no pickle file, no code, and each file once"


def test_a_model_in_the_cache_needs_no_network(there: Hub, folder: Path) -> None:
    there.commits[OWN] = folder
    first = open_checkpoint(NAME)
    assert first.revision == first.info().revision == OWN
    there.is_lost = True
    for revision in (None, OWN):
        assert open_checkpoint(NAME, revision) == first


@pytest.mark.promise("hub")
def test_what_the_hub_and_its_library_raise_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the network is reported as an unreachable hub, not a full disk."""
    for error, said in {
        GatedRepoError.__new__(GatedRepoError): "and the hub restricts access to it; log in with: hf auth login",
        RepositoryNotFoundError.__new__(RepositoryNotFoundError): "and the hub has none of that name",
        RevisionNotFoundError.__new__(RevisionNotFoundError): "and the hub has no such revision of it",
        LocalEntryNotFoundError("Got: ConnectError\nand more"): r"the hub cannot be reached \(.*: Got: ConnectError\)",
        OSError(errno.ENOSPC, "No space left on device", "/c/model"): r"cannot give it \(OSError: .*No space left on",
        json.JSONDecodeError("Expecting value", "<html>", 0): r"cannot give it \(JSONDecodeError: ",
    }.items():
        monkeypatch.setattr(huggingface_hub, "snapshot_download", partial(_raise, error))
        with pytest.raises(CheckpointError, match=said) as caught:
            hub.fetch(NAME, "main")
        assert str(caught.value).startswith(f"model {NAME} at revision main: no such folder, no installed")
        assert str(caught.value).isprintable()


def _raise(error: Exception, *_: Any, **__: Any) -> NoReturn:
    raise error


def test_convert_fetches_the_pickle_files_of_the_commit(there: Hub, tmp_path: Path) -> None:
    made = convert(NAME, tmp_path / "made")
    assert made.revision == OWN
    assert open_checkpoint(str(tmp_path / "made")).weights_sha256 == made.weights_sha256
    assert f"{NAME} at {OWN}" in run_good("inspect", tmp_path / "made").out
    # The pickle file is in the hub's cache now: without a network, too.
    there.is_lost = True
    assert convert(NAME, tmp_path / "made") == made
    shutil.rmtree(there.cache / "snapshots")
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(LocalEntryNotFoundError: .* no network"):
        convert(NAME, tmp_path / "none")
    assert not (tmp_path / "none").exists()
