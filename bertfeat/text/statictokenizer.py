"""Tokenizer of static vectors: the tokenizer.json of a model2vec folder, without special tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import models, normalizers

from bertfeat.durable.files import os_errors
from bertfeat.errors import CheckpointError, checkpoint_errors
from bertfeat.text.backend import check_ids
from bertfeat.text.tokenizer import Tokenizer


@os_errors(CheckpointError)
def folder_tokenizer(
    folder: Path, *, n_ids: int, given_words: bool, prompt: str = "", is_uncased: bool | None = None
) -> Tokenizer:
    """Return the tokenizer of a model2vec folder; its unknown token has no vector, as in model2vec.

    Args:
        folder: The folder.
        n_ids: The ids that have a vector.
        given_words: Documents are lists of words.
        prompt: See `Tokenizer`.
        is_uncased: For word vectors, whose given words are looked up whole: whether they are lower-cased; else None.

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
    if is_uncased is None:
        looks_up, chars_per_token = "tokens", int(np.median([len(token) for token in backend.get_vocab()]))
    else:
        # Word vectors read a text whole.
        looks_up, chars_per_token = "words, text lower-cased" if is_uncased else "words", None
        if given_words:
            backend.pre_tokenizer, backend.normalizer = None, normalizers.Lowercase() if is_uncased else None
    return Tokenizer(
        backend,
        cls_id=None,
        given_words=given_words,
        folder=folder,
        n_ids=n_ids,
        prompt=prompt,
        unknown_id=unknown_id,
        looks_up=looks_up,
        chars_per_token=chars_per_token,
    )
