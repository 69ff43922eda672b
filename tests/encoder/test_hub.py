"""Models of the hub: pinned to a commit, one line without a network, and pickle files only for `convert`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]
from huggingface_hub.utils import filter_repo_objects

from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.conversion import convert
from bertfeat.errors import CheckpointError
from tests.support.command_line import good as run_good
from tests.support.hostile_pickles import saved

NAME = "owner/model"
OWN = "a" * 40


@dataclass
class Hub:
    """A hub with one model: the calls of HfApi that are used, and the cache that downloads go to."""

    cache: Path
    commits: dict[str, Path]
    asked: list[str] = field(default_factory=list)
    lost_at: str | None = None

    def ask(self, call: str) -> None:
        self.asked.append(call)
        if self.lost_at is not None and self.lost_at in (call, "all"):
            raise ConnectionError("no network\nand a second line")

    def model_info(self, _: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
        assert timeout
        self.ask("model_info")
        return SimpleNamespace(sha=revision or OWN)

    def list_repo_files(self, _: str, *, revision: str) -> list[str]:
        self.ask("files")
        return self._names(revision)

    def snapshot_download(
        self, _: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool = False, **__: Any
    ) -> str:
        commit = revision or OWN
        folder = self.cache / "snapshots" / commit
        if local_files_only:
            if not folder.is_dir():
                raise FileNotFoundError(f"{commit} is not in the cache")
            return str(folder)
        if not folder.is_dir() or "pytorch_model.bin" in allow_patterns:
            self.ask(f"download {commit[0]}")
        for name in filter_repo_objects(self._names(commit), allow_patterns=allow_patterns):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.commits[commit] / name, folder / name)
        return str(folder)

    def _names(self, commit: str) -> list[str]:
        folder = self.commits[commit]
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A model with a pickle file."""
    from safetensors.torch import load_file

    own = Path(shutil.copytree(folder, tmp_path / "own"))
    (own / "pytorch_model.bin").write_bytes(saved(load_file(own / "model.safetensors")))
    (own / "model.safetensors").unlink()
    (tmp_path / "cache" / "blobs").mkdir(parents=True)
    made = Hub(tmp_path / "cache", {OWN: own})
    for call in ("model_info", "list_repo_files"):
        monkeypatch.setattr(huggingface_hub.HfApi, call, lambda _, *a, call=call, **k: getattr(made, call)(*a, **k))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "bertfeat"))
    return made


def test_pickle_weights_are_one_line_and_are_not_downloaded(there: Hub) -> None:
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=f"^{NAME}: only pickle weights; run: bertfeat convert {NAME} -o FOLDER$"
        ):
            open_checkpoint(NAME)
    assert there.asked.count("download a") == 1
    assert not list(there.cache.rglob("*.bin"))


def test_a_model_in_the_cache_needs_no_network(there: Hub, folder: Path) -> None:
    there.commits[OWN] = folder
    first = open_checkpoint(NAME)
    assert first.revision == first.info().revision == OWN
    for lost_at, revision in (("all", None), ("model_info", None), ("all", OWN)):
        there.lost_at = lost_at
        assert open_checkpoint(NAME, revision) == first


@pytest.mark.parametrize("commit", [None, "", "main", "../../elsewhere", "a" * 39])
def test_a_hub_that_names_no_commit_is_refused(there: Hub, commit: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace(sha=commit))
    with pytest.raises(CheckpointError, match=f"model {NAME}: the hub names no commit, but "):
        open_checkpoint(NAME)
    assert there.asked == []


def test_an_answer_that_is_not_of_a_hub_is_as_no_network(
    there: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = __import__(HTTPError.__module__)
    for error, said in {
        json.JSONDecodeError("Expecting value", "<html>", 0): "its answer is not JSON",
        KeyError("id"): "its answer is JSON, but not about a model",
        http.InvalidURL("Invalid IDNA hostname"): "Invalid IDNA hostname",
    }.items():
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", partial(_raise, error))
        with pytest.raises(CheckpointError, match=rf"the hub cannot be reached \({said}\); pass a folder"):
            open_checkpoint(NAME)
    there.commits[OWN] = folder
    first = open_checkpoint(NAME, OWN)
    assert open_checkpoint(NAME) == first
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", partial(_raise, LookupError("a bug")))
    with pytest.raises(LookupError):
        open_checkpoint(NAME)


def _raise(error: Exception, *_: Any, **__: Any) -> NoReturn:
    raise error


def test_an_endpoint_that_is_not_a_url_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: the hub's library reads it once."""
    code = f"from bertfeat.encoder.hub import fetch; fetch({NAME!r}, None)"
    environment = {**os.environ, "HF_ENDPOINT": "http://proxy:port", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"bertfeat.errors.CheckpointError: model {NAME}: HF_ENDPOINT 'http://proxy:port' is not a URL"
    )


@pytest.mark.parametrize("lost_at", ["model_info", "download a", "files"])
def test_a_network_that_is_lost_midway_is_one_line_and_the_next_try_goes_on(there: Hub, lost_at: str) -> None:
    there.lost_at = lost_at
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(no network\)") as caught:
        open_checkpoint(NAME)
    assert "\n" not in str(caught.value)
    there.lost_at = None
    with pytest.raises(CheckpointError, match="only pickle weights"):
        open_checkpoint(NAME)


def test_a_model_without_weights_that_can_be_read(there: Hub) -> None:
    (there.commits[OWN] / "pytorch_model.bin").rename(there.commits[OWN] / "tf_model.h5")
    with pytest.raises(CheckpointError, match=r"the hub has neither model.safetensors nor pytorch_model.bin of it"):
        open_checkpoint(NAME)


def test_convert_fetches_the_pickle_files_of_the_commit(there: Hub, tmp_path: Path) -> None:
    made = convert(NAME, tmp_path / "made")
    assert made.revision == OWN
    assert open_checkpoint(str(tmp_path / "made")).weights_sha256 == made.weights_sha256
    assert f"converted  from {NAME} at {OWN}, pytorch_model.bin" in run_good("inspect", tmp_path / "made").out
    # The pickle file is in the hub's cache now: without a network, too.
    there.lost_at = "all"
    assert convert(NAME, tmp_path / "made") == made


def test_pickle_files_that_do_not_download_are_one_line(there: Hub, tmp_path: Path) -> None:
    fetch: Callable[..., str] = there.snapshot_download
    open_message = "its pickle files do not download (no network)"
    with pytest.MonkeyPatch.context() as patch:

        def lose(name: str, **asked: Any) -> str:
            if "pytorch_model.bin" in asked["allow_patterns"]:
                raise ConnectionError("no network")
            return fetch(name, **asked)

        patch.setattr(huggingface_hub, "snapshot_download", lose)
        with pytest.raises(CheckpointError) as caught:
            convert(NAME, tmp_path / "made")
    assert open_message in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_patterns_name_no_pickle_and_no_code() -> None:
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in hub._WANTED)
