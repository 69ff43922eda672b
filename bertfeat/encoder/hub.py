"""Download of models from the Hugging Face hub, for hub ids that the user named; each is pinned to a commit."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertfeat.encoder.packaged import packaged_hint
from bertfeat.encoder.sentencesettings import TRANSFORMER_SETTINGS
from bertfeat.encoder.weights import INDEX, SINGLE
from bertfeat.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S = 10.0
# In the order of their digest.
TOKENIZER_FILES = (
    *("added_tokens.json", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model"),
    *("spm.model", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)
# Only what is read: no code, no pickle, no weights of other frameworks.
_WEIGHTS = [SINGLE, INDEX, "model-*-of-*.safetensors", f"*_Dense/{SINGLE}"]
_MODEL = ["config.json", *TOKENIZER_FILES]
# The model's own sentence embedding, in a folder per module.
_SENTENCES = ["modules.json", "config_sentence_transformers.json", *TRANSFORMER_SETTINGS, "*/config.json"]


def is_hub_id(name: str) -> bool:
    """Tell whether `name` has the form of a hub id, `model` or `owner/model`.

    Examples:
        >>> is_hub_id("google-bert/bert-base-cased"), is_hub_id("./folder"), is_hub_id("a/b/c")
        (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def fetch(name: str, revision: str | None, *, with_weights: bool = True) -> tuple[Path, str]:
    """Download the needed files of a hub model and return its folder and commit.

    A commit that is complete in the hub's cache is used without asking the hub. If the hub cannot be reached, the
    cached copy of the revision is used, and the plan names its commit.

    Args:
        name: The hub id.
        revision: A branch, tag or commit; None for the default branch.
        with_weights: Download the weights as well.

    Raises:
        CheckpointError: The hub has no such model or revision, or cannot be reached and there is no cached copy.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted = f"{name} at revision {revision}" if revision else name
    tried = f"no such folder, no installed model package of that name ({packaged_hint(name)}),"
    model = [*_MODEL, *(_WEIGHTS if with_weights else ())]
    with _quiet_downloads():
        try:
            commit = _resolve(HfApi(), name, revision)
            patterns = [*model, *_SENTENCES]
            folder = snapshot_download(name, revision=commit, allow_patterns=patterns, etag_timeout=_TIMEOUT_S)
        except GatedRepoError:
            raise CheckpointError(f"model {wanted}: access is restricted; log in with: hf auth login") from None
        except RevisionNotFoundError:
            raise CheckpointError(f"model {wanted}: the hub has no such revision") from None
        except (RepositoryNotFoundError, EntryNotFoundError, HFValidationError):
            raise CheckpointError(f"model {wanted}: {tried} and the hub has none of that name") from None
        # The hub's client raises the errors of its HTTP library.
        except Exception as error:
            cached = _cached(name, revision, model)
            if cached is None:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise CheckpointError(
                    f"model {wanted}: {tried} and the hub cannot be reached ({reason[0][:200]}); "
                    "pass a folder, or download it where there is a network"
                ) from None
            return cached, cached.name
    return Path(folder), commit


def _cached(name: str, revision: str | None, model: list[str]) -> Path | None:
    """Return the folder of a model in the hub's cache, also where an older version did not fetch all files."""
    from huggingface_hub import snapshot_download

    for wanted in ([*model, *_SENTENCES], model):
        with contextlib.suppress(Exception):
            return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
    return None


def _resolve(api: HfApi, name: str, revision: str | None) -> str:
    if revision is not None and _COMMIT.fullmatch(revision):
        return revision
    commit = api.model_info(name, revision=revision, timeout=_TIMEOUT_S).sha
    if not commit:
        raise CheckpointError(f"model {name}: the hub names no commit")
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
