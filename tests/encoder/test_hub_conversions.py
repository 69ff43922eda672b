"""Conversions of the hub's own bot: taken only from the bot, on the very commit, and with nothing else changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.utils import filter_repo_objects

from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.conversion import NOTE, convert
from bertfeat.encoder.weights import PickleOnly
from bertfeat.errors import CheckpointError
from tests.support.command_line import good as run_good
from tests.support.hostile_pickles import saved

NAME = "owner/model"
OWN, CONVERTED, OTHER = "a" * 40, "b" * 40, "c" * 40
BOT, TITLE = "SFconvertbot", "Adding `safetensors` variant of this model"


@dataclass(frozen=True)
class Pull:
    """A pull request, and the commits of its reference, the latest first."""

    num: int = 7
    title: str = TITLE
    author: str = BOT
    status: str = "open"
    is_pull_request: bool = True
    commits: tuple[str, ...] = (CONVERTED, OWN, OTHER)

    @property
    def git_reference(self) -> str:
        return f"refs/pr/{self.num}"


@dataclass
class Hub:
    """A hub with one model: the calls of HfApi that are used, and the cache that downloads go to."""

    cache: Path
    commits: dict[str, Path]
    pulls: list[Pull] = field(default_factory=list)
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

    def get_repo_discussions(self, _: str, **filters: str) -> Iterator[Pull]:
        assert filters == {"author": BOT, "discussion_type": "pull_request", "discussion_status": "open"}
        self.ask("discussions")
        return iter(self.pulls)

    def list_repo_commits(self, _: str, *, revision: str) -> list[SimpleNamespace]:
        self.ask("commits")
        found = next(pull for pull in self.pulls if pull.git_reference == revision)
        return [SimpleNamespace(commit_id=commit) for commit in found.commits]

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
    """A model with a pickle file, and the bot's conversion of it on an open pull request."""
    from safetensors.torch import load_file

    own = Path(shutil.copytree(folder, tmp_path / "own"))
    (own / "pytorch_model.bin").write_bytes(saved(load_file(own / "model.safetensors")))
    (own / "model.safetensors").unlink()
    shutil.copy(own / "pytorch_model.bin", folder)
    (tmp_path / "cache" / "blobs").mkdir(parents=True)
    made = Hub(tmp_path / "cache", {OWN: own, CONVERTED: folder}, [Pull()])
    for call in ("model_info", "get_repo_discussions", "list_repo_commits", "list_repo_files"):
        monkeypatch.setattr(huggingface_hub.HfApi, call, lambda _, *a, call=call, **k: getattr(made, call)(*a, **k))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setenv("BERTFEAT_CACHE", str(tmp_path / "bertfeat"))
    return made


def test_the_bots_conversion_is_taken_pinned_and_shown(there: Hub) -> None:
    checkpoint = open_checkpoint(NAME)
    assert checkpoint.revision == checkpoint.info().revision == CONVERTED
    assert checkpoint.converted_from == OWN
    assert checkpoint.folder == there.cache / "snapshots" / CONVERTED
    assert not list(there.cache.rglob("*.bin"))
    shown = run_good("inspect", NAME).out
    assert f"{NAME} at {CONVERTED}: BERT" in shown
    assert f"converted  from commit {OWN}, by the hub's bot" in shown
    # A plan names the conversion; workers open it without looking for it again.
    there.asked.clear()
    again = open_checkpoint(NAME, CONVERTED)
    assert (again.folder, again.converted_from, there.asked) == (checkpoint.folder, OWN, [])


def test_a_conversion_in_the_cache_needs_no_network(there: Hub) -> None:
    first = open_checkpoint(NAME)
    for lost_at, revision in (("all", None), ("discussions", None), ("all", OWN), ("all", CONVERTED)):
        there.lost_at = lost_at
        assert open_checkpoint(NAME, revision) == first
    there.pulls.clear()
    there.lost_at = None
    assert open_checkpoint(NAME) == first


@pytest.mark.parametrize(
    "pulls",
    [
        [],
        [Pull(author="SFconvertbot2")],
        [Pull(title="Adding `safetensors` variant of this model!")],
        [Pull(status="closed")],
        [Pull(status="merged")],
        [Pull(status="draft")],
        [Pull(is_pull_request=False)],
        [Pull(commits=(CONVERTED, OTHER, OWN))],
        [Pull(commits=(CONVERTED,))],
        [Pull(commits=("main", OWN))],
        [Pull(commits=("d" * 40, CONVERTED, OWN))],
    ],
)
def test_any_other_pull_request_is_not_taken(there: Hub, pulls: list[Pull]) -> None:
    there.pulls[:] = pulls
    with pytest.raises(
        PickleOnly, match=rf"^{NAME}: weights in pickle files only.*run `bertfeat convert {NAME} -o FOLDER`"
    ):
        open_checkpoint(NAME)
    assert [call for call in there.asked if call.startswith("download")] == ["download a"]


def test_closed_discussions_hold_no_conversion(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise huggingface_hub.errors.HfHubHTTPError("Discussions are disabled", response=response)

    response: Any = SimpleNamespace(status_code=403, headers={}, request=None)
    monkeypatch.setattr(huggingface_hub.HfApi, "get_repo_discussions", refuse)
    with pytest.raises(PickleOnly, match="run `bertfeat convert"):
        open_checkpoint(NAME)
    response.status_code = 500
    with pytest.raises(CheckpointError, match="the hub cannot be reached"):
        open_checkpoint(NAME)


@pytest.mark.parametrize("commit", [None, "", "main", "../../elsewhere", "a" * 39])
def test_a_hub_that_names_no_commit_is_refused(there: Hub, commit: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace(sha=commit))
    with pytest.raises(CheckpointError, match=f"model {NAME}: the hub names no commit, but "):
        open_checkpoint(NAME)
    assert there.asked == []


def test_the_first_right_one_of_several_is_taken(there: Hub) -> None:
    there.pulls[:] = [
        Pull(1, author="someone"),
        Pull(2, commits=(OTHER, CONVERTED, OWN)),
        Pull(3, commits=("d" * 40, OWN)),
        Pull(4),
    ]
    # The third has no safetensors.
    there.commits["d" * 40] = there.commits[OWN]
    assert open_checkpoint(NAME).revision == CONVERTED


@pytest.mark.parametrize("change", ["config.json", "tokenizer.json", "1_Pooling/config.json"])
def test_a_conversion_that_changes_more_than_weights_is_not_taken(there: Hub, change: str) -> None:
    path = there.commits[CONVERTED] / change
    path.parent.mkdir(exist_ok=True)
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, "layer_norm_eps": 0.5}))
    with pytest.raises(PickleOnly):
        open_checkpoint(NAME)


def test_another_revision_has_no_conversion_on_main(there: Hub) -> None:
    there.commits[OTHER] = there.commits[OWN]
    with pytest.raises(PickleOnly) as caught:
        open_checkpoint(NAME, OTHER)
    assert caught.value.commit == OTHER


@pytest.mark.parametrize("lost_at", ["model_info", "download a", "discussions", "commits", "files", "download b"])
def test_a_network_that_is_lost_midway_is_one_line_and_the_next_try_goes_on(there: Hub, lost_at: str) -> None:
    there.lost_at = lost_at
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached \(no network\)") as caught:
        open_checkpoint(NAME)
    assert not isinstance(caught.value, PickleOnly)
    assert "\n" not in str(caught.value)
    there.lost_at = None
    assert open_checkpoint(NAME).revision == CONVERTED


def test_a_model_without_weights_that_can_be_read(there: Hub) -> None:
    there.pulls.clear()
    (there.commits[OWN] / "pytorch_model.bin").rename(there.commits[OWN] / "tf_model.h5")
    with pytest.raises(CheckpointError, match=r"the hub has neither model.safetensors nor pytorch_model.bin of it"):
        open_checkpoint(NAME)


def test_a_note_that_is_damaged_is_made_again(there: Hub, tmp_path: Path) -> None:
    first = open_checkpoint(NAME)
    for content in ("[]", "{", json.dumps({f"{NAME}@{OWN}": "../evil"}), json.dumps({f"{NAME}@{OWN}": 5})):
        (tmp_path / "bertfeat" / "conversions.json").write_text(content)
        assert open_checkpoint(NAME) == first


@pytest.mark.usefixtures("forked")
def test_convert_fetches_the_pickle_files_of_the_commit(there: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"model {NAME}: its weights need no conversion"):
        convert(NAME, tmp_path / "made")
    there.pulls.clear()
    shutil.rmtree(tmp_path / "bertfeat")
    made = convert(NAME, tmp_path / "made")
    assert made.revision == OWN
    note = json.loads((tmp_path / "made" / NOTE).read_text())
    assert (note["source"], note["revision"]) == (NAME, OWN)
    assert f"converted  from {NAME} at {OWN}, pytorch_model.bin" in run_good("inspect", tmp_path / "made").out
    # The pickle file is in the hub's cache now: without a network, too.
    there.lost_at = "all"
    assert convert(NAME, tmp_path / "made").was_complete


def test_pickle_files_that_do_not_download_are_one_line(there: Hub, tmp_path: Path) -> None:
    there.pulls.clear()
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
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in (*hub._MODEL, *hub._SENTENCES, *hub._WEIGHTS))
