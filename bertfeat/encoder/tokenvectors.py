"""Reader of model2vec folders: token vectors beside a tokenizer. Files of word vectors become such folders."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from safetensors import safe_open

from bertfeat.durable.files import digest_of
from bertfeat.durable.records import from_values
from bertfeat.encoder.filedigests import named_digest
from bertfeat.encoder.sentencemodel import NormalizeStep, SentenceMode, SentenceModel
from bertfeat.encoder.weights import SINGLE, inside, read_header
from bertfeat.errors import CheckpointError, checkpoint_errors
from bertfeat.records import Float32Array, IntArray

MODEL_TYPE = "model2vec"
_FLOATS, _INTS = ("F32", "F16", "F64", "I8"), ("I64", "I32", "I16", "U8", "U16", "U32")
# The arrays of a file, and the types in which they are used. With a mapping, several tokens share a row of embeddings.
_TYPES = {"embeddings": np.float32, "mapping": np.int64, "weights": np.float32}
MAX_DIM = 65_536
# Changes when the words of a file are found in text by other rules.
_WORD_RULES = "bertfeat words 1"


@dataclass(frozen=True, slots=True)
class WordFile:
    """What a folder keeps of the file of word vectors that it was made of.

    `n_repeated` rows have words that came before, and `n_left_out` words that are empty or not UTF-8. If `is_uncased`,
    no word has an upper-case letter, so that text is lower-cased; marks such as `<UNK>` do not count. `digest` is the
    xxh3-128 (hex) of the safetensors file.
    """

    layout: str
    n_words: int
    n_repeated: int
    n_left_out: int
    is_uncased: bool
    digest: str


@dataclass(frozen=True, slots=True)
class _Settings:
    """What is read of config.json; the length is that which model2vec takes if the file names none."""

    normalize: bool = False
    max_length: Annotated[int, Meta(ge=1)] | None = 512
    word_file: WordFile | None = None


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The vectors of a model2vec folder, checked and not loaded.

    The safetensors `file` holds `n_values` numbers: the vectors of `n_ids` token ids, and more. The mean of a text is
    divided by its length if the model `normalizes`; model2vec reads `max_length` tokens of a text, or all. `words` is
    the file of word vectors that the folder was made of, if it was.
    """

    file: Path
    n_ids: int
    dim: int
    n_values: int
    tokenizer_sha256: str
    normalizes: bool
    max_length: int | None
    words: WordFile | None

    def sentence_model(self) -> SentenceModel | None:
        """Return how model2vec makes the vector of a text; None for word vectors, which say nothing of texts."""
        if self.words is not None:
            return None
        steps = (NormalizeStep(),) if self.normalizes else ()
        length = self.max_length
        return SentenceModel((SentenceMode.MEAN,), True, steps, max_length=length, has_special_tokens=False)

    def read(self) -> tuple[Float32Array, IntArray | None, Float32Array | None]:
        """Return the vectors float32 (n_rows, dim), the row of each token (n_ids,), and the weight of each (n_ids,).

        Raises:
            CheckpointError: A row is out of range, or a number is not finite.
        """
        if self.words is not None and digest_of(self.file) != self.words.digest:
            raise CheckpointError(f"{self.file}: its bytes are not those that were written; delete {self.file.parent}")
        with checkpoint_errors(self.file, "it does not load"), safe_open(self.file, framework="np") as file:
            present = [name for name in _TYPES if name in file.keys()]  # noqa: SIM118
            arrays: dict[str, Any] = {name: file.get_tensor(name).astype(_TYPES[name], copy=False) for name in present}
        for name, values in arrays.items():
            if not np.isfinite(values).all():
                raise CheckpointError(f"{self.file}: {name} holds nan or infinity; download or copy the model again")
        vectors, mapping = arrays["embeddings"], arrays.get("mapping")
        if mapping is not None and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(vectors):
            raise CheckpointError(f"{self.file}: mapping names rows outside of the {len(vectors):,} of embeddings")
        return vectors, mapping, arrays.get("weights")


def open_token_vectors(folder: Path, config: Mapping[str, Any]) -> TokenVectors:
    """Check the arrays and the settings of a model2vec folder.

    Raises:
        CheckpointError: An array is missing, or a shape, a type or a setting is wrong.
    """
    file = inside(folder, SINGLE)
    arrays = read_header(file)
    kind, shape = arrays.get("embeddings", ("no array", ()))
    if kind not in _FLOATS or len(shape) != 2 or not shape[0] or not 1 <= shape[1] <= MAX_DIM:
        raise CheckpointError(f"{file}: embeddings is {kind} {list(shape)}; expected numbers (tokens, 1 to {MAX_DIM})")
    for name, kinds in (("weights", _FLOATS), ("mapping", _INTS)):
        kind, found = arrays.get(name, (kinds[0], (1,)))
        if kind not in kinds or len(found) != 1:
            raise CheckpointError(f"{file}: {name} is {kind} {list(found)}; expected one number per token")
    n_ids = arrays["mapping"][1][0] if "mapping" in arrays else shape[0]
    if "weights" in arrays and arrays["weights"][1][0] < n_ids:
        raise CheckpointError(f"{file}: {arrays['weights'][1][0]} weights for {n_ids} tokens")
    with checkpoint_errors(folder / "config.json", "does not fit model2vec"):
        settings = from_values(_Settings, config)
    words = settings.word_file
    rules = hashlib.sha256(f"{_WORD_RULES}, uncased {words.is_uncased}".encode()).hexdigest() if words else None
    return TokenVectors(
        file,
        n_ids,
        dim=shape[1],
        n_values=sum(math.prod(found) for _, found in arrays.values()),
        tokenizer_sha256=rules or named_digest([folder / "tokenizer.json"]),
        normalizes=settings.normalize,
        max_length=settings.max_length,
        words=words,
    )
