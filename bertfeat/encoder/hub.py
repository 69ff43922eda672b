"""Download of models from the Hugging Face hub, for hub ids that the user named; each is pinned to a commit."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertfeat.encoder.packaged import packaged_hint
from bertfeat.encoder.sentencefiles import TRANSFORMER_SETTINGS
from bertfeat.encoder.weights import INDEX, PICKLE, PICKLE_INDEX, SINGLE
from bertfeat.errors import CheckpointError, RunError, Shared

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 10.0
# Errors of a disk, not of a network.
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO, errno.ENOTDIR, errno.EMFILE)
# In the order of their digest.
TOKENIZER_FILES = (
    *("added_tokens.json", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model"),
    *("spm.model", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)
# Only what is read: no code, no pickle, no weights of other frameworks.
_MODEL = ["config.json", *TOKENIZER_FILES, SINGLE, INDEX, "model-*-of-*.safetensors", f"*_Dense/{SINGLE}"]
# The model's own sentence embedding, in a folder per module.
_WANTED = [*_MODEL, "modules.json", "config_sentence_transformers.json", *TRANSFORMER_SETTINGS, "*/config.json"]


def is_hub_id(name: str) -> bool:
    """Return whether `name` has the form of a hub id, `model` or `owner/model`.

    Examples:
        >>> is_hub_id("google-bert/bert-base-cased"), is_hub_id("./folder"), is_hub_id("a/b/c")
        (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def fetch(name: str, revision: str | None) -> tuple[Path, str]:
    """Download the needed files of a hub model, and return their folder and their commit.

    A commit that is complete in the hub's cache is used without asking the hub. If the hub cannot be reached, the
    cached copy of the revision is used, and the plan names its commit. Pickle files are not downloaded.

    Args:
        name: The hub id.
        revision: A branch, tag or commit; None for the default branch.

    Raises:
        CheckpointError: The hub has no such model or revision, or no weights of it that can be read; or it cannot be
            reached and there is no cached copy.
        RunError: The files cannot be written to the hub's cache.
    """
    try:
        from huggingface_hub.hf_api import HfApi
    except ValueError as error:
        # It reads HF_ENDPOINT when it is imported.
        reason = f"HF_ENDPOINT {os.environ.get('HF_ENDPOINT')!r:.100} is not a URL ({_first_line(error)}); correct it"
        raise CheckpointError(f"model {name}: {reason}") from None
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = f"{name} at revision {revision}" if revision else name
    tried = f"no such folder, no installed model package of that name ({packaged_hint(name)}),"
    with _quiet_downloads():
        try:
            api = HfApi()
            commit = _resolve(api, name, revision)
            folder = _download(name, commit, _WANTED)
            if not _has(folder, SINGLE, INDEX) and not {PICKLE, PICKLE_INDEX} & {
                *api.list_repo_files(name, revision=commit)
            }:
                raise CheckpointError(f"model {name} at {commit}: the hub has neither {SINGLE} nor {PICKLE} of it")
            return folder, commit
        except GatedRepoError:
            raise CheckpointError(f"model {wanted}: access is restricted; log in with: hf auth login") from None
        except RevisionNotFoundError:
            raise CheckpointError(f"model {wanted}: the hub has no such revision") from None
        except (RepositoryNotFoundError, RemoteEntryNotFoundError, HFValidationError):
            raise CheckpointError(f"model {wanted}: {tried} and the hub has none of that name") from None
        except Exception as error:
            _raise_unless_offline(error, wanted)
            remedy = "pass a folder, or download it where there is a network"
            missed = f"the hub cannot be reached ({_first_line(error)}); {remedy}"
            cached = _cached(name, revision)
            if cached is None:
                raise CheckpointError(f"model {wanted}: {tried} and {missed}") from None
            if not _has(cached, SINGLE, INDEX, PICKLE, PICKLE_INDEX):
                raise CheckpointError(
                    f"model {name} at {cached.name}: no weights in the hub's cache, and {missed}"
                ) from None
            return cached, cached.name


def fetch_pickles(name: str, commit: str, *, of_encoder: bool) -> None:
    """Download the pickle files of a hub model's commit beside its other files in the hub's cache.

    Args:
        name: The hub id.
        commit: The model's commit.
        of_encoder: Download those of the encoder too; else only those of dense layers.

    Raises:
        CheckpointError: The hub cannot be reached, or does not give them.
    """
    encoder = (PICKLE, PICKLE_INDEX, "pytorch_model-*-of-*.bin") if of_encoder else ()
    with _quiet_downloads():
        try:
            _download(name, commit, [*encoder, f"*_Dense/{PICKLE}"])
        except Exception as error:
            _raise_unless_offline(error, f"{name} at {commit}")
            raise CheckpointError(
                f"model {name} at {commit}: its pickle files do not download ({_first_line(error)})"
            ) from None


def _raise_unless_offline(error: Exception, wanted: str) -> None:
    """Raise an error again that does not come from the network, so that bugs of bertfeat keep their traceback.

    Raises:
        RunError: The files cannot be written here.
    """
    # The class of the HTTP library, which is another one in each version.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    if isinstance(error, OSError) and error.errno in _OF_DISK:
        place = f" at {error.filename}" if error.filename else ""
        reason = (error.strerror or str(error)).lower()
        raise RunError(f"model {wanted}: cannot be written to the hub's cache{place} ({reason}); see HF_HOME") from None
    # hf_xet, which downloads large files, raises RuntimeError; ValueError: the answer is not JSON, as of a login page.
    is_of_network = isinstance(error, OSError | HTTPError | RuntimeError | ValueError)
    # InvalidURL, for a wrong HF_ENDPOINT, does not derive from HTTPError.
    if not is_of_network and type(error).__module__ != HTTPError.__module__:
        raise error


def _first_line(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "its answer is not JSON"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _download(name: str, commit: str, wanted: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=commit, allow_patterns=wanted, etag_timeout=_TIMEOUT_S))


def _has(folder: Path, *names: str) -> bool:
    return any(os.path.lexists(folder / name) for name in names)


def wanted_files(folder: Path, *, weights: bool = True) -> list[str]:
    """Return the names of the files in a model folder that are fetched from a hub too, sorted.

    Args:
        folder: The folder.
        weights: Name the weights of the encoder as well. Those of dense layers are always named.
    """
    found = [path.relative_to(folder).as_posix() for pattern in ("*", "*/*") for path in folder.glob(pattern)]
    names = [name for name in found if any(_matches(name, pattern) for pattern in _WANTED)]
    # Without modules, folders with a config.json are other models.
    has_modules = os.path.lexists(folder / "modules.json")
    return sorted(
        name
        for name in names
        if not (folder / name).is_dir()
        and (has_modules if "/" in name else weights or not name.endswith((".safetensors", INDEX)))
    )


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)


def _cached(name: str, revision: str | None) -> Path | None:
    """Return the folder of a model in the hub's cache, also where an older version did not fetch all files."""
    from huggingface_hub import snapshot_download

    for wanted in (_WANTED, _MODEL):
        with contextlib.suppress(Exception):
            return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
    return None


def _resolve(api: HfApi, name: str, revision: str | None) -> str:
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    try:
        commit = api.model_info(name, revision=revision, timeout=_TIMEOUT_S).sha
    except KeyError as error:
        raise ConnectionError("its answer is JSON, but not about a model") from error
    if not _COMMIT.fullmatch(commit or ""):
        raise CheckpointError(f"model {name}: the hub names no commit, but {commit!r:.60}")
    return str(commit)


@Shared
@contextlib.contextmanager
def _quiet_downloads() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS"):
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
