"""Loader of a model's tokenizer from its folder, and the changes to it for exact offsets and given words.

What transformers makes of the files of a folder depends on the class that it chooses, so it is kept in the user's cache
rather than rebuilt here: only the first use of a model imports transformers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat._version import __version__
from bertfeat.durable.files import os_errors
from bertfeat.durable.usercache import cache_path, read_cached, write_cached
from bertfeat.errors import CheckpointError, checkpoint_errors

# A tokenizer, and the id of its classification token.
Backend: TypeAlias = tuple[BackendTokenizer, int | None]

_FOLDER = "tokenizers"
_MAX_ENTRIES = 16
# The files that transformers may read for a tokenizer; it runs no code of the folder.
_ENDINGS = (".json", ".jinja", ".model", ".txt")
# Tokenizer files of more bytes are refused before; others of that size may be a user's data.
_MAX_BYTES = 64_000_000
# More than the rows of any embedding matrix; the tables here and in `tokenizers` are as long as the largest id.
_MAX_IDS = 10_000_000


def adapted(backend: BackendTokenizer, *, given_words: bool) -> BackendTokenizer:
    """Return a tokenizer that does not trim offsets and, for given words, sees a space before each if it keeps them."""
    text = backend.to_str()
    if "trim_offsets" not in text:
        return _spaced(backend) if given_words else backend
    state = json.loads(text)
    # Trimming by the characters of the pieces would remove a character of a word without a space before it.
    for node in _nodes(state["post_processor"]):
        if "trim_offsets" in node:
            node["trim_offsets"] = False
    if given_words:
        _prefix_words(state)
    return BackendTokenizer.from_str(json.dumps(state))


def _prefix_words(state: dict[str, Any]) -> None:
    nodes = _nodes(state["pre_tokenizer"])
    # The pattern of a Split is an object without a type.
    splitters = [node for node in nodes if "type" in node and "pretokenizers" not in node]
    if splitters and splitters[0]["type"] == "ByteLevel":
        splitters[0]["add_prefix_space"] = True
    elif any(node["type"] == "ByteLevel" for node in splitters):
        # After another splitter the flag would put a space before each part of a word.
        own = [state["normalizer"]] if state["normalizer"] else []
        state["normalizer"] = {"type": "Sequence", "normalizers": [*own, {"type": "Prepend", "prepend": " "}]}


def _spaced(backend: BackendTokenizer) -> BackendTokenizer:
    """Put `▁` before given words where the tokenizer writes it for a space, but puts none there itself, as Gemma's."""
    own = backend.normalizer
    normalizing, splitting = (
        _nodes(json.loads(part.__getstate__())) if part is not None else [] for part in (own, backend.pre_tokenizer)
    )
    writes = any(node.get("content") == "▁" for node in normalizing)
    if any(node.get("type") == "Prepend" for node in normalizing) or not (
        writes or any(node.get("prepend_scheme") == "never" for node in splitting)
    ):
        return backend
    changed = BackendTokenizer.from_str(backend.to_str())
    prefix = normalizers.Prepend("▁")
    changed.normalizer = prefix if own is None else normalizers.Sequence([own, prefix])
    return changed


def _nodes(node: object) -> list[dict[str, Any]]:
    """Return the objects in a part of a tokenizer's JSON, outer ones first."""
    if isinstance(node, list):
        return [found for child in node for found in _nodes(child)]
    if isinstance(node, dict):
        return [node, *(found for child in node.values() for found in _nodes(child))]
    return []


@os_errors(CheckpointError)
def load_backend(folder: Path) -> Backend:
    """Return the tokenizer of a model folder as transformers configures it, and the id of its classification token.

    Raises:
        CheckpointError: The folder has no tokenizer that can be used, or a file cannot be read.
    """
    key = _key(folder)
    found = _decoded(read_cached(f"{_FOLDER}/{key}"))
    if found is not None:
        return found
    backend, cls_id = _configured(folder)
    # A file that changed meanwhile (a download) belongs to another key.
    if _key(folder) == key:
        body = json.dumps({"cls_id": cls_id, "tokenizer": backend.to_str()}).encode()
        write_cached(f"{_FOLDER}/{key}", hashlib.sha256(body).digest() + body)
        _drop_oldest()
    return backend, cls_id


def _key(folder: Path) -> str:
    """Return the name of an entry: a digest of the folder's small files, its path, and the versions of the code."""
    versions = [__version__, *map(version, ("tokenizers", "transformers"))]
    digest = hashlib.sha256(json.dumps([str(folder), *versions]).encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in _ENDINGS and path.is_file() and path.stat().st_size <= _MAX_BYTES:
            content = path.read_bytes()
            digest.update(os.fsencode(path.name) + f"\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _decoded(data: bytes | None) -> Backend | None:
    """Return the tokenizer of an entry, or None if the entry is missing or damaged."""
    size = hashlib.sha256().digest_size
    if data is None or hashlib.sha256(data[size:]).digest() != data[:size]:
        return None
    # `from_str` raises a plain Exception.
    with contextlib.suppress(Exception):
        entry = json.loads(data[size:])
        return BackendTokenizer.from_str(entry["tokenizer"]), entry["cls_id"]
    return None


def _drop_oldest() -> None:
    with contextlib.suppress(OSError, RuntimeError):
        entries = sorted(cache_path(_FOLDER).iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in entries[_MAX_ENTRIES:]:
            path.unlink(missing_ok=True)


def _configured(folder: Path) -> Backend:
    from transformers import AutoTokenizer

    remedy = "correct the file or download the model again"
    if not (folder / "tokenizer.json").exists():
        remedy = "save a tokenizer.json, or for SentencePiece models pip install 'bertfeat[sentencepiece]'"
    with checkpoint_errors(lambda: _file_at_fault(folder), "the tokenizer cannot be loaded", remedy):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        found = tokenizer.backend_tokenizer if tokenizer.is_fast else _fast_form(folder, tokenizer)
        check_ids(folder, found)
        return BackendTokenizer.from_str(found.to_str()), tokenizer.cls_token_id


def _fast_form(folder: Path, tokenizer: Any) -> BackendTokenizer:
    """Return the fast form of a slow tokenizer: of ESM's, which transformers has in Python only.

    It takes the pieces of its vocabulary out of the text, the longest first; what is left between them and whitespace
    is unknown.
    """
    kind = type(tokenizer).__name__
    if kind != "EsmTokenizer":
        raise CheckpointError(
            f"{folder}: {kind} has no fast version, and so no character offsets; save a tokenizer.json into the folder "
            "and tokenizer_class PreTrainedTokenizerFast in its tokenizer_config.json"
        )
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder.values()
    first, last = tokenizer.cls_token, tokenizer.eos_token
    if first is None or last is None or tokenizer.unk_token not in vocabulary:
        raise CheckpointError(f"{folder}: {kind} needs cls_token, eos_token and unk_token")
    if tokenizer.split_special_tokens or any(token.single_word for token in added):
        raise CheckpointError(f"{folder}: split_special_tokens and single_word are not supported with {kind}")
    backend = BackendTokenizer(models.WordLevel(vocabulary, unk_token=tokenizer.unk_token))
    # Python splits at these four characters as well, Rust does not.
    backend.normalizer = normalizers.Sequence([normalizers.Replace(chr(n), " ") for n in range(0x1C, 0x20)])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = set(tokenizer.all_special_tokens)
    backend.add_tokens([AddedToken(t, normalized=False, special=t in special) for t in sorted(vocabulary) if t])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(token, vocabulary[token]) for token in (first, last)],
    )
    return backend


def check_ids(folder: Path, backend: BackendTokenizer) -> None:
    """Refuse a tokenizer with an id that no model has."""
    piece, largest = max(backend.get_vocab().items(), key=lambda item: item[1], default=("", 0))
    if largest >= _MAX_IDS:
        raise CheckpointError(f"{folder}: the tokenizer gives token {piece!r:.60} the id {largest}; is it damaged?")


def _file_at_fault(folder: Path) -> Path:
    """Return the first file that does not load alone, or the folder if each does."""
    from transformers import AutoConfig

    files = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    for path in (folder / name for name in files if (folder / name).exists()):
        try:
            with checkpoint_errors(folder, path.name):
                if path.name == "config.json":
                    AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
                elif path.name == "tokenizer.json":
                    BackendTokenizer.from_file(str(path))
                elif not isinstance(json.loads(path.read_bytes()), dict):
                    raise TypeError(path.name)
        except CheckpointError:
            return path
    return folder
