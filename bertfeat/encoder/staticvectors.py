"""Static vectors as models: what a plan keeps of a file of word vectors or a model2vec folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bertfeat.encoder.families import STATIC
from bertfeat.encoder.filedigests import named_digest, weights_digest
from bertfeat.encoder.tokenvectors import TokenVectors
from bertfeat.encoder.weights import read_header
from bertfeat.encoder.wordvectors import WordVectors

StaticVectors: TypeAlias = WordVectors | TokenVectors

# Static vectors know no context, so that a window only limits the memory of a long document.
STATIC_WINDOW = 65_536
# Changes when the words of a file of vectors are found in text by other rules.
_WORD_RULES = "bertfeat words 1"


def facts_of(
    found: StaticVectors, folder: Path, tokenizer: Sequence[Path], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a `Checkpoint`, but for its name and revision.

    Args:
        found: The vectors.
        folder: The folder of the model, or the file of word vectors.
        tokenizer: The tokenizer's files; none for word vectors, whose words are found by rules.
        config: The content of config.json.
    """
    if isinstance(found, WordVectors):
        weights, n_ids, n_values = found.path, found.n_rows + 1, found.n_rows * found.dim
        digest = hashlib.sha256(f"{_WORD_RULES}, uncased {found.is_uncased}".encode()).hexdigest()
    else:
        weights, n_ids, digest = found.file, found.n_ids, named_digest(tokenizer)
        n_values = sum(math.prod(shape) for _, shape in read_header(found.file).values())
    return {
        "folder": folder,
        "family": STATIC,
        "n_layers": 0,
        "hidden_size": found.dim,
        "n_ids": n_ids,
        "max_length": STATIC_WINDOW,
        "weights_files": (weights,),
        "weights_sha256": weights_digest([weights]),
        "tokenizer_sha256": digest,
        "n_values": n_values,
        "is_bfloat16": False,
        "config": config,
        "static": found,
    }
