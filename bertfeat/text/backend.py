"""Loader of a model's tokenizer from its folder, and the changes to it for exact offsets and given words.

What transformers makes of the files of a folder depends on the class that it chooses, so it is kept in the user's cache
rather than rebuilt here: only the first use of a model imports transformers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as BackendTokenizer

from bertfeat._version import __version__
from bertfeat.durable.files import os_errors
from bertfeat.durable.records import decode, seal, unseal
from bertfeat.durable.user_cache import cache_path, read_cached, write_cached
from bertfeat.errors import CheckpointError, checkpoint_errors

_FOLDER = "tokenizers"
_MAX_ENTRIES = 16
# The files that transformers may read for a tokenizer; it runs no code of the folder.
_ENDINGS = (".json", ".jinja", ".model", ".txt")
# Tokenizer files of more bytes are refused before; others of that size may be a user's data.
_MAX_BYTES = 64_000_000
# More than the rows of any embedding matrix; the tables here and in `tokenizers` are as long as the largest id.
_MAX_IDS = 10_000_000


@dataclass(frozen=True, slots=True)
class _Kept:
    tokenizer: str
    cls_id: int | None


def adapt(backend: BackendTokenizer, *, given_words: bool) -> None:
    """Let a tokenizer keep all offsets and, for given words, see a space before each word if it keeps spaces."""
    for processor in _leaves(backend.post_processor):
        # Trimming by the characters of the pieces would remove a character of a word without a space before it.
        if hasattr(processor, "trim_offsets"):
            processor.trim_offsets = False
    if not given_words:
        return
    own, splitters = backend.normalizer, _leaves(backend.pre_tokenizer)
    if splitters and isinstance(splitters[0], pre_tokenizers.ByteLevel):
        splitters[0].add_prefix_space = True
    elif prefix := _missing_prefix(_leaves(own), splitters):
        prepend = normalizers.Prepend(prefix)
        backend.normalizer = prepend if own is None else normalizers.Sequence([own, prepend])


def _missing_prefix(normalizing: list[Any], splitters: list[Any]) -> str:
    """Return the character for a space that a tokenizer writes between words, but not before the first one."""
    if any(isinstance(part, pre_tokenizers.ByteLevel) for part in splitters):
        # After another splitter `add_prefix_space` would put a space before each part of a word.
        return " "
    if any(isinstance(part, normalizers.Prepend) for part in normalizing):
        return ""
    writes = any(isinstance(part, normalizers.Replace) and part.content == "▁" for part in normalizing)
    return "▁" if writes or any(getattr(part, "prepend_scheme", "") == "never" for part in splitters) else ""


def _leaves(part: Any) -> list[Any]:
    """Return the parts of a normalizer, splitter or post-processor, which may be a sequence of others."""
    if hasattr(part, "__getitem__"):
        return [leaf for child in part for leaf in _leaves(child)]
    return [] if part is None else [part]


@os_errors(CheckpointError)
def load_backend(folder: Path) -> tuple[BackendTokenizer, int | None]:
    """Return the tokenizer of a model folder as transformers configures it, and the id of its classification token.

    Raises:
        CheckpointError: The folder has no tokenizer that can be used, or a file cannot be read.
    """
    name = _name(folder)
    with contextlib.suppress(ValueError):
        kept = unseal(_Kept, read_cached(name) or b"")
        return BackendTokenizer.from_str(kept.tokenizer), kept.cls_id
    backend, cls_id = _configured(folder)
    # A file that changed meanwhile (a download) belongs to another name.
    if _name(folder) == name:
        write_cached(name, seal(_Kept(backend.to_str(), cls_id)))
        _drop_oldest()
    return backend, cls_id


def _name(folder: Path) -> str:
    """Return the name in the cache: a digest of the folder's small files, its path, and the versions of the code."""
    versions = [__version__, *map(version, ("tokenizers", "transformers"))]
    digest = hashlib.sha256(json.dumps([str(folder), *versions]).encode())
    for path in sorted(folder.iterdir()):
        if path.suffix in _ENDINGS and path.is_file() and path.stat().st_size <= _MAX_BYTES:
            content = path.read_bytes()
            digest.update(os.fsencode(path.name) + f"\0{len(content)}\0".encode())
            digest.update(content)
    return f"{_FOLDER}/{digest.hexdigest()}.json"


def _drop_oldest() -> None:
    with contextlib.suppress(OSError, RuntimeError):
        entries = sorted(cache_path(_FOLDER).iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in entries[_MAX_ENTRIES:]:
            path.unlink(missing_ok=True)


def _configured(folder: Path) -> tuple[BackendTokenizer, int | None]:
    from transformers import AutoTokenizer

    remedy = "correct the file or download the model again"
    if not (folder / "tokenizer.json").exists():
        remedy = "save a tokenizer.json, or for SentencePiece models pip install 'bertfeat[sentencepiece]'"
    with checkpoint_errors(lambda: _damaged(folder), "the tokenizer cannot be loaded", remedy):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        found = tokenizer.backend_tokenizer if tokenizer.is_fast else _fast_form(folder, tokenizer)
        check_ids(folder, found)
        return BackendTokenizer.from_str(found.to_str()), tokenizer.cls_token_id


def _damaged(folder: Path) -> Path:
    """Return the first of the tokenizer's files that does not hold a JSON object, or the folder."""
    for path in sorted(folder.glob("*token*.json")):
        try:
            decode(dict[str, Any], path.read_bytes())
        except ValueError:
            return path
    return folder


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
    # Nucleotide Transformer puts no token at the end.
    first, last = tokenizer.cls_token, [token for token in [tokenizer.eos_token] if token]
    is_known = first is not None and tokenizer.unk_token in vocabulary
    if not is_known or tokenizer.split_special_tokens or any(token.single_word for token in added):
        needs = "cls_token and unk_token, and neither split_special_tokens nor single_word"
        raise CheckpointError(f"{folder}: {kind} needs {needs}")
    backend = BackendTokenizer(models.WordLevel(vocabulary, unk_token=tokenizer.unk_token))
    # Python splits at these four characters as well, Rust does not.
    backend.normalizer = normalizers.Sequence([normalizers.Replace(chr(n), " ") for n in range(0x1C, 0x20)])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = set(tokenizer.all_special_tokens)
    backend.add_tokens([AddedToken(t, normalized=False, special=t in special) for t in sorted(vocabulary) if t])
    backend.post_processor = processors.TemplateProcessing(
        single=[first, "$A", *last],
        pair=[first, "$A", *last, "$B", *last],
        special_tokens=[(token, vocabulary[token]) for token in (first, *last)],
    )
    return backend


def check_ids(folder: Path, backend: BackendTokenizer) -> None:
    """Refuse a tokenizer with an id that no model has."""
    piece, largest = max(backend.get_vocab().items(), key=lambda item: item[1], default=("", 0))
    if largest >= _MAX_IDS:
        raise CheckpointError(f"{folder}: the tokenizer gives token {piece!r:.60} the id {largest}; is it damaged?")
