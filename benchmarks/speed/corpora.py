"""Corpora with the length distributions of real text, made from the texts under benchmarks/data.

Whatever is drawn, is drawn from a seed: the same corpus on every machine.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[1] / "data"
_SHORTEST, _LONGEST = 4, 512
_DUPLICATES = 0.2

Texts = list[Any]


def _lines(name: str) -> list[str]:
    with gzip.open(_DATA / name, "rt", encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def sentences(tokenizer: Any, n_rows: int) -> Texts:  # noqa: ARG001
    """Sentences of English web text (UD English-EWT): half have fewer than 15 tokens."""
    return _lines("ewt.txt.gz")[:n_rows]


def words(tokenizer: Any, n_rows: int) -> Texts:  # noqa: ARG001
    """The same sentences as lists of words, cut at spaces."""
    return [line.split() for line in _lines("ewt.txt.gz")[:n_rows]]


def paragraphs(tokenizer: Any, n_rows: int) -> Texts:  # noqa: ARG001
    """Paragraphs of Python Enhancement Proposals: half have more than 55 tokens."""
    return _lines("peps.txt.gz")[:n_rows]


def encyclopedia(tokenizer: Any, n_rows: int) -> Texts:  # noqa: ARG001
    """Paragraphs of Wikipedia: half have more than 138 tokens."""
    return _lines("wikitext.txt.gz")[:n_rows]


def passages(tokenizer: Any, n_rows: int) -> Texts:  # noqa: ARG001
    """Passages of the length of paragraphs that start anywhere in the running text of the PEPs."""
    draw = random.Random(8)
    lengths = [len(line.split()) for line in _lines("peps.txt.gz")]
    running = " ".join(_lines("peps.txt.gz")).split()
    starts = (draw.randrange(len(running) - max(lengths)) for _ in range(n_rows))
    return [" ".join(running[start : start + draw.choice(lengths)]) for start in starts]


def mixed(tokenizer: Any, n_rows: int) -> Texts:
    """Running text cut to 4 to 512 tokens; lengths are log-uniform."""
    draw = random.Random(8)
    running = " ".join(_lines("peps.txt.gz"))
    offsets = tokenizer(running, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    texts, at = [], 0
    for _ in range(n_rows):
        # Two tokens of each window are special.
        length = round(_SHORTEST * (_LONGEST / _SHORTEST) ** draw.random()) - 2
        if at + length > len(offsets):
            at = draw.randrange(100)
        texts.append(running[offsets[at][0] : offsets[at + length - 1][1]])
        at += length
    return texts


def distinct(tokenizer: Any, n_rows: int) -> Texts:
    """Sentences of English web text without duplicates."""
    return list(dict.fromkeys(sentences(tokenizer, 10**9)))[:n_rows]


def duplicates(tokenizer: Any, n_rows: int) -> Texts:
    """As many rows as `distinct`, of which every fifth repeats another."""
    draw = random.Random(8)
    once = distinct(tokenizer, n_rows)
    n_repeats = round(_DUPLICATES * len(once))
    kept = draw.sample(once, len(once) - n_repeats)
    texts = kept + draw.sample(kept, n_repeats)
    draw.shuffle(texts)
    return texts


CORPORA: dict[str, Callable[[Any, int], Texts]] = {
    made.__name__: made for made in (sentences, words, paragraphs, encyclopedia, passages, mixed, distinct, duplicates)
}


def write_corpus(texts: Sequence[Any], folder: Path, name: str) -> Path:
    """Write texts as a .txt file, lists of words as .jsonl."""
    is_split = isinstance(texts[0], list)
    path = folder / f"{name}{'.jsonl' if is_split else '.txt'}"
    lines = [json.dumps({"text": text}) for text in texts] if is_split else texts
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def count_tokens(tokenizer: Any, texts: Sequence[Any], max_length: int) -> list[int]:
    """Return the tokens of each text as every rival encodes it, special ones included."""
    is_split = isinstance(texts[0], list)
    found = tokenizer(list(texts), truncation=True, max_length=max_length, is_split_into_words=is_split)
    return [len(ids) for ids in found["input_ids"]]


def padded_share(lengths: Sequence[int], batch: int) -> float:
    """Return the share of padding among the encoded tokens, in batches of consecutive texts."""
    batches = [lengths[start : start + batch] for start in range(0, len(lengths), batch)]
    return 1 - sum(lengths) / sum(len(part) * max(part) for part in batches)
