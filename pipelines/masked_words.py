"""Words that a language model expects, and how likely it finds those of a text.

python -m bertfeat.pipelines.masked_words --model MODEL "Paris is the [MASK] of France." -k 5
python -m bertfeat.pipelines.masked_words --model MODEL --corpus sentences.txt -o scores
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import polars as pl

import bertfeat
from bertfeat.pipelines._likelihood import LanguageModel
from bertfeat.pipelines._recipe import FILE, OUTPUT, Result, read_documents, recipe, refuse_given, write
from bertfeat.plots.tables import text_table


@recipe(extraction="text_column id_column limit device")
@click.argument("texts", nargs=-1)
@click.option("--model", required=True, help="Model with a trained head for words: package, folder, or hub id.")
@click.option("-k", type=click.IntRange(min=1), default=5, show_default=True, help="Words for each mask.")
@click.option("--layers", default="-1", show_default=True, help="Layers of the states at the masks, with --output.")
@click.option("--corpus", type=FILE, help="Instead of texts: a file to score.")
@click.option("-o", "--output", type=OUTPUT, help="Folder of the results.")
def main(texts: tuple[str, ...], model: str, corpus: str | None, output: Path | None, **reading: Any) -> Result:
    """Guess the words of masks in TEXTS, or score the words of a corpus."""
    if bool(texts) == (corpus is not None):
        raise click.UsageError("pass texts with a mask, or --corpus, and not both")
    device, k, layers = (reading.pop(name) for name in ("device", "k", "layers"))
    if corpus is None:
        refuse_given(reading, "is for --corpus")
        return _fill(texts, LanguageModel(model, device), k, layers, output)
    if output is None:
        raise click.UsageError("--corpus needs --output, the folder of the scores")
    documents = read_documents(corpus, **reading)
    if not documents:
        raise click.UsageError(f"{corpus}: has no documents")
    language = LanguageModel(model, device, given_words=documents[0].words is not None)
    return _score(language, documents, output)


def _fill(texts: Sequence[str], language: LanguageModel, k: int, layers: str, output: Path | None) -> Result:
    """Find the words for each mask; keep them with the states at the masks in masks.parquet."""
    words = language.fill(texts, k)
    shown = words.drop("char_end")
    if output is not None:
        frame = pl.DataFrame({"text": [language.with_mask(text) for text in texts]})
        how: Any = {"model": language.name, "levels": "token", "layers": layers, "device": str(language.device)}
        store = bertfeat.extract(frame, output / "features", overwrite=True, **how)
        states = store.polars("token").filter(pl.col("token_id") == language.mask_id)
        ranked = words.group_by("doc_id", "char_start", maintain_order=True).agg("word", "probability")
        kept = ["doc_id", "char_start", "char_end", *(feature.name for feature in store.features("token"))]
        joined = states.select(kept).join(ranked, on=["doc_id", "char_start"], maintain_order="left")
        write(output / "masks.parquet", joined)
    return Result({"words": words.to_dicts()}, text_table(shown.columns, shown.rows()))


def _score(language: LanguageModel, documents: Sequence[Any], output: Path) -> Result:
    """Write a row for each word and for each document, and sum them up."""
    words = pl.concat(language.score_words(documents)).with_columns(surprisal=-pl.col("log_prob") / math.log(2))
    sums = words.group_by("doc_id", maintain_order=True).agg(
        pl.len().alias("n_words"), *(pl.col(name).sum() for name in ("n_tokens", "log_prob", "surprisal"))
    )
    known = words.drop_nulls("log_prob")
    if not len(known):
        raise click.UsageError("the corpus has no words that can be scored; pass texts of several words")
    write(output / "words.parquet", words)
    write(output / "documents.parquet", sums)
    log_prob = float(known["log_prob"].sum())
    values = {
        "n_documents": len(documents),
        "n_words": len(words),
        "n_words_without_score": len(words) - len(known),
        "log_prob": log_prob,
        "surprisal_per_word": -log_prob / math.log(2) / len(known),
        "perplexity_per_token": math.exp(-log_prob / int(known["n_tokens"].sum())),
    }
    score = "log-likelihood" if language.is_causal else "pseudo-log-likelihood"
    rows = [(name.replace("_", " "), value) for name, value in values.items()]
    return Result({"score": score, **values}, text_table([score, ""], rows))


if __name__ == "__main__":
    main()
