"""Files of word vectors and folders of model2vec, as their own tools write them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

Vectors = Mapping[str, Any]
LAYOUTS = ("word2vec.txt", "glove.txt", "fasttext.vec", "word2vec.bin", "word2vec.c.bin")


def write_vectors(path: Path, vectors: Vectors, *, layout: str = "") -> Path:
    """Write word vectors in a layout of `LAYOUTS`, by default the file's own name; packed if the name ends in .gz."""
    layout = layout or path.name.removesuffix(".gz")
    rows = [(word.encode(), np.asarray(values, "<f4")) for word, values in vectors.items()]
    header = b"" if layout == "glove.txt" else b"%d %d\n" % (len(rows), len(rows[0][1]))
    if layout.endswith(".bin"):
        # The C tool ends each vector with a line end, gensim does not.
        end = b"\n" if ".c." in layout else b""
        body = b"".join(word + b" " + values.tobytes() + end for word, values in rows)
    else:
        end = b" \n" if layout.endswith(".vec") else b"\n"
        body = b"".join(word + b" " + " ".join(map(repr, values.tolist())).encode() + end for word, values in rows)
    path.write_bytes(gzip.compress(header + body) if path.suffix == ".gz" else header + body)
    return path


def write_model2vec(
    folder: Path,
    *,
    pieces: list[str],
    dim: int = 8,
    n_rows: int | None = None,
    has_weights: bool = False,
    dtype: str = "float32",
    **config: Any,
) -> Path:
    """Write a model2vec folder with a WordPiece tokenizer; with `n_rows`, tokens share that many rows."""
    rng = np.random.default_rng(7)
    vocabulary = {piece: number for number, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # Some folders still have the template of the model that they were made from; model2vec does not use it.
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    arrays = {"embeddings": rng.normal(size=(n_rows or len(vocabulary), dim)).astype(dtype)}
    if n_rows is not None:
        arrays["mapping"] = rng.integers(0, n_rows, len(vocabulary))
    if has_weights:
        arrays["weights"] = rng.uniform(0.5, 2, len(vocabulary)).astype("float32")
    folder.mkdir(parents=True)
    save_file(arrays, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True, **config}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    # model2vec writes it too; it names a module that transformers does not have.
    modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return folder
