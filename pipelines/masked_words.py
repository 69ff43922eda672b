"""Words that a language model expects, and how likely it finds those of a text.

    python -m bertfeat.pipelines.masked_words --model MODEL "Paris is the [MASK] of France." -k 5
    python -m bertfeat.pipelines.masked_words --model MODEL --corpus sentences.txt --out scores

With texts, it prints the most probable words for each mask; --out keeps them, with the state at the mask. With a
corpus, it writes a row for each word with its log probability and surprisal: for a model of masked words the
pseudo-log-likelihood, within-word left-to-right (Kauf and Ivanova 2023, arXiv 2305.10588), for a model of next words
the usual one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import polars as pl

import bertfeat
from bertfeat.cli.failures import report_failures
from bertfeat.pipelines._documents import read_documents
from bertfeat.pipelines._likelihood import LanguageModel
from bertfeat.pipelines._options import recipe, refuse_given
from bertfeat.pipelines._outputs import write
from bertfeat.reports.tables import text_table


@recipe()
@click.argument("texts", nargs=-1)
@click.option("--model", required=True, help="Model with a trained head for words: package, folder, or hub id.")
@click.option("-k", type=click.IntRange(min=1), default=5, show_default=True, help="Words for each mask.")
@click.option("--layers", default="-1", show_default=True, help="Layers of the states at the masks, with --out.")
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), help="Instead of texts: a file to score.")
@click.option("--text-column", default="text", show_default=True)
@click.option("--id-column", help="Column with the ids of documents; row numbers otherwise.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N documents of the corpus.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, or cuda:N.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder of the results.")
def main(
    texts: tuple[str, ...],
    model: str,
    k: int,
    layers: str,
    corpus: str | None,
    device: str,
    out: str | None,
    **reading: Any,
) -> None:
    """Guess the words of masks in TEXTS, or score the words of a corpus."""
    started = time.perf_counter()
    if bool(texts) == (corpus is not None):
        raise click.UsageError("pass texts with a mask, or --corpus, and not both")
    if corpus is not None and out is None:
        raise click.UsageError("--corpus needs --out, the folder of the scores")
    if corpus is not None:
        refuse_given(("k", "layers"), "is for texts with a mask, not for --corpus")
    else:
        refuse_given(reading, "is for --corpus")
        refuse_given(("layers",) if out is None else (), "is for --out, which keeps the states at the masks")
    folder = None if out is None else Path(out)
    if corpus is None:
        result = _fill(texts, LanguageModel(model, device), k, layers, folder)
    else:
        assert folder is not None
        documents = read_documents(corpus, **{name: value for name, value in reading.items() if value is not None})
        if not documents:
            raise click.UsageError(f"{corpus}: has no documents")
        language = LanguageModel(model, device, given_words=documents[0].words is not None)
        result = {"corpus": Path(corpus).name, **_score(language, documents, folder)}
    if folder is not None:
        result = {"pipeline": "masked_words", "model": model, **result, "seconds": time.perf_counter() - started}
        write(folder / "result.json", result)


def _fill(texts: Sequence[str], language: LanguageModel, k: int, layers: str, folder: Path | None) -> dict[str, Any]:
    """Print the words for each mask; keep them with the states at the masks in masks.parquet."""
    words = language.fill(texts, k)
    headers = ["char_start", "rank", "word", "probability"]
    for number, text in enumerate(texts):
        rows = words.filter(pl.col("doc_id") == number).select(headers).rows()
        click.echo(f"{text}\n{text_table(headers, rows)}\n")
    if folder is not None:
        frame = pl.DataFrame({"text": [language.with_mask(text) for text in texts]})
        path = folder / "features"
        name, device = language.name, str(language.device)
        store = bertfeat.extract(frame, path, model=name, levels="token", layers=layers, device=device, overwrite=True)
        states = store.polars("token").filter(pl.col("token_id") == language.mask_id)
        ranked = words.group_by("doc_id", "char_start", maintain_order=True).agg("word", "probability")
        kept = ["doc_id", "char_start", "char_end", *(feature.name for feature in store.features("token"))]
        joined = states.select(kept).join(ranked, on=["doc_id", "char_start"], maintain_order="left")
        write(folder / "masks.parquet", joined)
    return {"k": k, "words": words.to_dicts()}


def _score(language: LanguageModel, documents: Sequence[Any], folder: Path) -> dict[str, Any]:
    """Write a row for each word and for each document; print the sums."""
    words = pl.concat(language.score_words(documents)).with_columns(surprisal=-pl.col("log_prob") / math.log(2))
    sums = words.group_by("doc_id", maintain_order=True).agg(
        pl.len().alias("n_words"), *(pl.col(name).sum() for name in ("n_tokens", "log_prob", "surprisal"))
    )
    known = words.drop_nulls("log_prob")
    if not len(known):
        raise click.UsageError("the corpus has no words that can be scored; pass texts of several words")
    write(folder / "words.parquet", words)
    write(folder / "documents.parquet", sums)
    n_words, n_tokens, log_prob = len(known), int(known["n_tokens"].sum()), float(known["log_prob"].sum())
    result = {
        "score": "log-likelihood" if language.is_causal else "pseudo-log-likelihood",
        "n_documents": len(documents),
        "n_words": len(words),
        "n_words_without_score": len(words) - n_words,
        "log_prob": log_prob,
        "surprisal_per_word": -log_prob / math.log(2) / n_words,
        "perplexity_per_token": math.exp(-log_prob / n_tokens),
    }
    rows = [(name.replace("_", " "), value) for name, value in result.items() if name != "score"]
    click.echo(text_table([str(result["score"]), ""], rows))
    return result


if __name__ == "__main__":
    with report_failures(main):
        main(standalone_mode=False)
