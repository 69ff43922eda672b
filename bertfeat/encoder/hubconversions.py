"""Finder of the conversions to safetensors that the hub's own bot proposes for models with pickle files only.

transformers takes the bot's open pull request on the main branch. Here the parent must be the very commit that was
asked for, and nothing but weights may differ. Which conversion was taken is noted in the user's cache, by commits, so
that it needs no network the next time. A conversion is never asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from bertfeat.durable.usercache import read_cached, write_cached
from bertfeat.encoder.weights import INDEX, SINGLE

if TYPE_CHECKING:
    from huggingface_hub import Discussion, HfApi

COMMIT = re.compile(r"[0-9a-f]{40}")
_AUTHOR = "SFconvertbot"
# With backticks; in a string of this package they would name a setting.
_TITLE = "Adding 'safetensors' variant of this model".replace("'", "`")
_FILE = "conversions.json"
_MAX_ENTRIES = 256


def find_conversion(api: HfApi, name: str, commit: str, is_same: Callable[[str], bool]) -> str | None:
    """Return the commit with the bot's conversion of a commit, or None.

    Args:
        api: The hub.
        name: The hub id.
        commit: The model's commit.
        is_same: Tells whether another commit has weights, and nothing else that differs.
    """
    if (noted := noted_conversion(name, commit)) is not None:
        return noted
    for pull in _pulls(api, name):
        # The hub's filters are not relied on.
        if (pull.title, pull.author, pull.status, pull.is_pull_request) != (_TITLE, _AUTHOR, "open", True):
            continue
        commits = [str(made.commit_id) for made in api.list_repo_commits(name, revision=pull.git_reference)[:2]]
        if len(commits) < 2 or commits[1] != commit or not COMMIT.fullmatch(commits[0]):
            continue
        names = api.list_repo_files(name, revision=commits[0])
        if (SINGLE in names or INDEX in names) and is_same(commits[0]):
            _note(name, commit, commits[0])
            return commits[0]
    return None


def _pulls(api: HfApi, name: str) -> list[Discussion]:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return list(
            api.get_repo_discussions(name, author=_AUTHOR, discussion_type="pull_request", discussion_status="open")
        )
    except HfHubHTTPError as error:
        # The owner of a model can close its discussions.
        if error.response.status_code == 403:
            return []
        raise


def noted_conversion(name: str, commit: str) -> str | None:
    """Return the conversion of a commit that was taken before, or None."""
    return _notes().get(f"{name}@{commit}")


def converted_from(name: str, commit: str) -> str | None:
    """Return the commit whose conversion a commit is, where it was taken before, or None."""
    found = [key for key, converted in _notes().items() if converted == commit]
    return next((key.rpartition("@")[2] for key in found if key.startswith(f"{name}@")), None)


def _notes() -> dict[str, str]:
    try:
        notes = json.loads(read_cached(_FILE) or b"{}")
        return {key: value for key, value in notes.items() if isinstance(value, str) and COMMIT.fullmatch(value)}
    except (ValueError, AttributeError):  # AttributeError: not an object
        return {}


def _note(name: str, commit: str, conversion: str) -> None:
    notes = {**_notes(), f"{name}@{commit}": conversion}
    write_cached(_FILE, json.dumps(dict(list(notes.items())[-_MAX_ENTRIES:])).encode())
