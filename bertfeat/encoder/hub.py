"""Download of models from the Hugging Face hub, for hub ids that the user named; each is pinned to a commit."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertfeat.encoder import hubconversions
from bertfeat.encoder.packaged import packaged_hint
from bertfeat.encoder.sentencesettings import TRANSFORMER_SETTINGS
from bertfeat.encoder.weights import INDEX, PICKLE, PICKLE_INDEX, SINGLE
from bertfeat.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_TIMEOUT_S = 10.0
# In the order of their digest.
TOKENIZER_FILES = (
    *("added_tokens.json", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model"),
    *("spm.model", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)
_WEIGHTS = (SINGLE, INDEX, "model-*-of-*.safetensors", f"*_Dense/{SINGLE}")
# Only what is read: no code, no pickle, no weights of other frameworks.
_MODEL = ["config.json", *TOKENIZER_FILES]
# The model's own sentence embedding, in a folder per module.
_SENTENCES = ["modules.json", "config_sentence_transformers.json", *TRANSFORMER_SETTINGS, "*/config.json"]
# What `bertfeat convert` fetches besides: pickle files of the encoder, and of dense layers after it.
_ENCODER_PICKLES = [PICKLE, PICKLE_INDEX, "pytorch_model-*-of-*.bin"]
_DENSE_PICKLES = [f"*_Dense/{PICKLE}"]


class Fetched(NamedTuple):
    """The files of a hub model.

    Attributes:
        folder: Their folder.
        commit: Their commit.
        converted_from: The model's own commit, whose pickle files the hub's bot converted in `commit`; None elsewhere.
    """

    folder: Path
    commit: str
    converted_from: str | None


def is_hub_id(name: str) -> bool:
    """Return whether `name` has the form of a hub id, `model` or `owner/model`.

    Examples:
        >>> is_hub_id("google-bert/bert-base-cased"), is_hub_id("./folder"), is_hub_id("a/b/c")
        (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def fetch(name: str, revision: str | None, *, with_weights: bool = True) -> Fetched:
    """Download the needed files of a hub model.

    A commit that is complete in the hub's cache is used without asking the hub. If the hub cannot be reached, the
    cached copy of the revision is used, and the plan names its commit. Where the model has pickle files only, the
    conversion of the hub's bot is taken if there is one; a conversion that was taken before needs no network.

    Args:
        name: The hub id.
        revision: A branch, tag or commit; None for the default branch.
        with_weights: Download the weights as well.

    Raises:
        CheckpointError: The hub has no such model or revision, or no weights of it that can be read; or it cannot be
            reached and there is no cached copy.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = f"{name} at revision {revision}" if revision else name
    tried = f"no such folder, no installed model package of that name ({packaged_hint(name)}),"
    with _quiet_downloads():
        try:
            api = HfApi()
            commit = _resolve(api, name, revision)
            return _fetched(api, name, commit) if with_weights else Fetched(_download(name, commit, ()), commit, None)
        except GatedRepoError:
            raise CheckpointError(f"model {wanted}: access is restricted; log in with: hf auth login") from None
        except RevisionNotFoundError:
            raise CheckpointError(f"model {wanted}: the hub has no such revision") from None
        except (RepositoryNotFoundError, EntryNotFoundError, HFValidationError):
            raise CheckpointError(f"model {wanted}: {tried} and the hub has none of that name") from None
        except CheckpointError:
            raise
        # The hub's client raises the errors of its HTTP library.
        except Exception as error:
            reason = _first_line(error)
            cached = _cached(name, revision, _WEIGHTS if with_weights else ())
            if cached is None:
                raise CheckpointError(
                    f"model {wanted}: {tried} and the hub cannot be reached ({reason}); "
                    "pass a folder, or download it where there is a network"
                ) from None
            return _fetched_before(name, cached, reason) if with_weights else Fetched(cached, cached.name, None)


def _fetched(api: HfApi, name: str, commit: str) -> Fetched:
    folder = _download(name, commit)
    if _has_weights(folder):
        return Fetched(folder, commit, hubconversions.converted_from(name, commit))
    found = hubconversions.find_conversion(api, name, commit, lambda other: _same_beside_weights(name, folder, other))
    if found is not None:
        return Fetched(_download(name, found), found, commit)
    names = api.list_repo_files(name, revision=commit)
    if PICKLE not in names and PICKLE_INDEX not in names:
        raise CheckpointError(f"model {name} at {commit}: the hub has neither {SINGLE} nor {PICKLE} of it")
    return Fetched(folder, commit, None)


def _fetched_before(name: str, folder: Path, reason: str) -> Fetched:
    """Return what the cache holds of a model whose hub cannot be reached."""
    if _has_weights(folder):
        return Fetched(folder, folder.name, hubconversions.converted_from(name, folder.name))
    noted = hubconversions.noted_conversion(name, folder.name)
    converted = _cached(name, noted) if noted else None
    if converted is not None and _has_weights(converted):
        return Fetched(converted, converted.name, folder.name)
    if os.path.lexists(folder / PICKLE) or os.path.lexists(folder / PICKLE_INDEX):
        return Fetched(folder, folder.name, None)
    raise CheckpointError(
        f"model {name} at {folder.name}: no weights in the hub's cache, and the hub cannot be reached ({reason}); "
        "pass a folder, or download it where there is a network"
    )


def fetch_pickles(name: str, commit: str, *, of_encoder: bool) -> None:
    """Download the pickle files of a hub model's commit beside its other files in the hub's cache.

    Args:
        name: The hub id.
        commit: The model's commit.
        of_encoder: Download those of the encoder too; else only those of dense layers.

    Raises:
        CheckpointError: The hub cannot be reached, or does not give them.
    """
    from huggingface_hub import snapshot_download

    wanted = [*(_ENCODER_PICKLES if of_encoder else ()), *_DENSE_PICKLES]
    with _quiet_downloads():
        try:
            snapshot_download(name, revision=commit, allow_patterns=wanted, etag_timeout=_TIMEOUT_S)
        except Exception as error:
            raise CheckpointError(
                f"model {name} at {commit}: its pickle files do not download ({_first_line(error)})"
            ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _download(name: str, commit: str, weights: tuple[str, ...] = _WEIGHTS) -> Path:
    from huggingface_hub import snapshot_download

    wanted = [*_MODEL, *_SENTENCES, *weights]
    return Path(snapshot_download(name, revision=commit, allow_patterns=wanted, etag_timeout=_TIMEOUT_S))


def _has_weights(folder: Path) -> bool:
    return os.path.lexists(folder / SINGLE) or os.path.lexists(folder / INDEX)


def _same_beside_weights(name: str, folder: Path, commit: str) -> bool:
    """Download another commit, and return whether it has weights and all else is as in the folder of the first."""
    other = _download(name, commit)
    return _has_weights(other) and _contents(other) == _contents(folder)


def _contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every wanted file but the weights, by name."""
    names = [name for name in wanted_files(folder) if not name.endswith((".safetensors", INDEX))]
    return {name: (folder / name).read_bytes() for name in names}


def wanted_files(folder: Path) -> list[str]:
    """Return the names of the files in a model folder that are fetched from a hub too, sorted."""
    found = [path.relative_to(folder).as_posix() for pattern in ("*", "*/*") for path in folder.glob(pattern)]
    names = [name for name in found if any(_matches(name, pattern) for pattern in (*_MODEL, *_SENTENCES, *_WEIGHTS))]
    return sorted(name for name in names if not (folder / name).is_dir())


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)


def _cached(name: str, revision: str | None, weights: tuple[str, ...] = _WEIGHTS) -> Path | None:
    """Return the folder of a model in the hub's cache, also where an older version did not fetch all files."""
    from huggingface_hub import snapshot_download

    for wanted in ([*_MODEL, *_SENTENCES, *weights], [*_MODEL, *weights]):
        with contextlib.suppress(Exception):
            return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
    return None


def _resolve(api: HfApi, name: str, revision: str | None) -> str:
    if revision is not None and hubconversions.COMMIT.fullmatch(revision):
        return revision
    commit = api.model_info(name, revision=revision, timeout=_TIMEOUT_S).sha
    if not hubconversions.COMMIT.fullmatch(commit or ""):
        raise CheckpointError(f"model {name}: the hub names no commit, but {commit!r:.60}")
    return str(commit)


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
