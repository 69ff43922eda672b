"""Tokenizers of static vectors: the words of a file of vectors, or the tokenizer.json of a model2vec folder.

Running text is split into words as BERT's tokenizer does: at whitespace, around each punctuation mark and each Chinese
character. Given words are looked up as they are. Special tokens are never added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from bertfeat.durable.files import os_errors
from bertfeat.errors import CheckpointError, checkpoint_errors
from bertfeat.text.backend import check_ids
from bertfeat.text.tokenizer import Tokenizer

# No file of vectors has a row for the empty word.
_UNKNOWN = ""


def word_tokenizer(
    rows: Mapping[str, int], path: Path, *, unknown_id: int, is_uncased: bool, given_words: bool, prompt: str = ""
) -> Tokenizer:
    """Return a tokenizer whose tokens are the words of a file of vectors.

    Args:
        rows: The id of each word.
        path: The file, for messages.
        unknown_id: The id of all other words, greater than any of `rows`.
        is_uncased: Words are lower-cased before they are looked up.
        given_words: Documents are lists of words.
        prompt: See `Tokenizer`.
    """
    backend = BackendTokenizer(models.WordLevel({**rows, _UNKNOWN: unknown_id}, unk_token=_UNKNOWN))
    if not given_words:
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=is_uncased
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif is_uncased:
        backend.normalizer = normalizers.Lowercase()
    return Tokenizer(
        backend,
        cls_id=None,
        given_words=given_words,
        folder=path,
        n_ids=unknown_id + 1,
        prompt=prompt,
        unknown_id=unknown_id,
        looks_up="words, text lower-cased" if is_uncased else "words",
    )


@os_errors(CheckpointError)
def folder_tokenizer(folder: Path, *, n_ids: int, given_words: bool, prompt: str = "") -> Tokenizer:
    """Return the tokenizer of a model2vec folder; its unknown token has no vector, as in model2vec.

    Raises:
        CheckpointError: The folder's tokenizer.json cannot be used.
    """
    path = folder / "tokenizer.json"
    with checkpoint_errors(path, "the tokenizer cannot be loaded"):
        backend = BackendTokenizer.from_file(str(path))
        check_ids(folder, backend)
        backend.post_processor = None
        # Only Unigram names its unknown token by an id.
        name = getattr(backend.model, "unk_token", None)
        is_unigram = isinstance(backend.model, models.Unigram)
        unknown_id = json.loads(backend.to_str())["model"].get("unk_id") if is_unigram else None
        if isinstance(name, str):
            unknown_id = backend.token_to_id(name)
    return Tokenizer(
        backend,
        cls_id=None,
        given_words=given_words,
        folder=folder,
        n_ids=n_ids,
        prompt=prompt,
        unknown_id=unknown_id,
        looks_up="tokens",
        chars_per_token=int(np.median([len(token) for token in backend.get_vocab()])),
    )
