"""Download of models from the Hugging Face hub, for hub ids that the user named; each is pinned to a commit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertfeat.encoder.packaged import packaged_hint
from bertfeat.encoder.sentence_files import TRANSFORMER_SETTINGS
from bertfeat.encoder.weights import INDEX, PICKLE, PICKLE_INDEX, SINGLE
from bertfeat.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
# In the order of their digest.
TOKENIZER_FILES = (
    *("added_tokens.json", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model"),
    *("spm.model", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)
# Only what is read: no code, no pickle, no weights of other frameworks. Modules of sentence-transformers have folders.
_WANTED = (
    *("config.json", *TOKENIZER_FILES, SINGLE, INDEX, "model-*-of-*.safetensors", f"*_Dense/{SINGLE}"),
    *("modules.json", "config_sentence_transformers.json", *TRANSFORMER_SETTINGS, "*/config.json"),
)
DENSE_PICKLES = (f"*_Dense/{PICKLE}",)
PICKLES = (PICKLE, PICKLE_INDEX, "pytorch_model-*-of-*.bin", *DENSE_PICKLES)
# By the class of the error.
_REASONS = {
    "GatedRepoError": "restricts access to it; log in with: hf auth login",
    "RepositoryNotFoundError": "has none of that name",
    "RevisionNotFoundError": "has no such revision of it",
}


def is_hub_id(name: str) -> bool:
    """Return whether `name` has the form of a hub id, `model` or `owner/model`.

    Examples:
        >>> is_hub_id("google-bert/bert-base-cased"), is_hub_id("./folder"), is_hub_id("a/b/c")
        (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and ".." not in name and "--" not in name


def fetch(name: str, revision: str | None, wanted: Sequence[str] = _WANTED) -> tuple[Path, str]:
    """Download files of a hub model by their patterns, and return their folder and their commit.

    A commit that is complete in the hub's cache is used without asking the hub. If the hub cannot be reached, the
    cached copy of the revision (branch, tag or commit; by default the main branch) is used, and the plan names its
    commit. Pickle files are not downloaded unless they are `wanted`.

    Raises:
        CheckpointError: The hub has no such model or revision; or it cannot be reached and there is no whole copy in
            its cache; or the cache cannot be written.
    """
    try:
        # It reads HF_ENDPOINT when it is imported.
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import tqdm

        class Silent(tqdm):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        patterns = list(wanted)
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns, tqdm_class=Silent))
    except (AttributeError, LookupError, NameError, TypeError):
        # A bug, which keeps its traceback.
        raise
    # Those of HTTP, of a disk, of an answer that is not JSON and of hf_xet have no common class.
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
        verb = "cannot be reached" if isinstance(error, FileNotFoundError) else "cannot give it"
        at = f" at revision {revision}" if revision else ""
        remedy = "pass a folder, or download it where there is a network; see HF_HUB_OFFLINE, HF_ENDPOINT and HF_HOME"
        reason = _REASONS.get(type(error).__name__, f"{verb} ({said}); {remedy}")
        raise CheckpointError(
            f"model {name}{at}: no such folder, no installed model package of that name ({packaged_hint(name)}), "
            f"and the hub {reason}"
        ) from error
    return folder, folder.name


def wanted_files(folder: Path, *, weights: bool = True) -> list[str]:
    """Return the names of the files in a model folder that are fetched from a hub too, sorted.

    Without `weights`, those of the encoder are left out; those of dense layers never are.
    """
    found = {path for pattern in _WANTED for path in folder.glob(pattern) if not path.is_dir()}
    # Without modules, folders with a config.json are other models.
    has_modules = os.path.lexists(folder / "modules.json")
    return sorted(
        path.relative_to(folder).as_posix()
        for path in found
        if (weights or not path.name.endswith((".safetensors", INDEX)) if path.parent == folder else has_modules)
    )
