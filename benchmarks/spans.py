"""Edge probing: the types of gold mentions by a probe of spans, beside scikit-learn and a probe of words.

    python -m benchmarks.spans --data DATA

DATA holds, in any folders, `wnut17train.conll` and `emerging.test.annotated` (WNUT-17), and `bc5cdr/train.tsv` and
`bc5cdr/test.tsv`, as their authors publish them. The probe is `logreg` on the ends of mentions at layer 4 of MiniLM.
The oracle takes the first and the last token that overlap a mention from the rows of the token level, and fits
scikit-learn's LogisticRegression: vectors have to be equal, accuracies within a point. The probe of words gives a
mention the type of its first word's tag. Intervals are 95 %, by a bootstrap over sentences.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.machine import report
from benchmarks.rerank import find
from bertfeat import Store, extract, fit_probe
from bertfeat.heads.entities import entity_spans
from bertfeat.plots.tables import markdown_table

CORPORA = {
    "WNUT-17": ("wnut17train.conll", "emerging.test.annotated"),
    "BC5CDR": ("bc5cdr/train.tsv", "bc5cdr/test.tsv"),
}
FEATURE, C, N_SENTENCES = "layer_04", 0.01, 3000


def store_of(path: Path, folder: Path, limit: int | None) -> Store:
    """Return a store of the tokens, the words and the gold mentions of a file of words with tags."""
    same = {"format": "conll", "layers": 4, "limit": limit, "progress": False}
    words = extract(path, folder / "words", levels="word", **same).polars("word", ["doc_id", "word", "label"])
    mentions, texts = [], []
    for (sentence,), rows in words.group_by("doc_id", maintain_order=True):
        for kind, start, end in sorted(entity_spans(rows["label"].to_list()), key=lambda each: each[1]):
            mentions.append({"doc_id": sentence, "word_start": start, "word_end": end, "type": kind})
            texts.append(" ".join(rows["word"][start:end]))
    pl.DataFrame(mentions).write_parquet(folder / "mentions.parquet")
    asked = {"levels": "token,word,span", "spans": str(folder / "mentions.parquet"), "span_pooling": "ends"}
    store = extract(path, folder / "store", **same, **asked)
    assert store.polars("span", ["text"])["text"].to_list() == texts
    return store


def oracle_vectors(store: Store) -> np.ndarray:
    """Return the vectors of the first and the last token of each mention, side by side, found in the token rows."""
    names = ["doc_id", "char_start", "char_end"]
    tokens, vectors = store.polars("token", names).with_row_index("row"), store.numpy("token", FEATURE)
    of_sentence = tokens.drop_nulls().partition_by("doc_id", as_dict=True, include_key=False)
    ends = []
    for sentence, start, end in store.polars("span", names).iter_rows():
        inside = of_sentence[(sentence,)].filter((pl.col("char_start") < end) & (pl.col("char_end") > start))["row"]
        ends.append(np.concatenate([vectors[inside[0]], vectors[inside[-1]]]))
    return np.array(ends)


def measured(train: Store, test: Store) -> dict[str, object]:
    """Return the accuracies of the probe, the oracle, the probe of words and the majority."""
    found = [(oracle_vectors(store), store.polars("span", ["type"])["type"].to_numpy()) for store in (train, test)]
    for store, (vectors, _) in zip((train, test), found, strict=True):
        np.testing.assert_array_equal(store.numpy("span", FEATURE), vectors)
    (known, kinds), (asked, truth) = found
    probe = fit_probe(train, "type", level="span", head="logreg", C=C, progress=False).score(test)
    oracle = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=1000)).fit(known.astype(float), kinds)
    by_oracle = float((oracle.predict(asked.astype(float)) == truth).mean())
    assert abs(probe.value - by_oracle) < 0.01
    tagged = fit_probe(train, "label", level="word", head="logreg", C=C, progress=False).predict(test)
    tags = dict(zip(zip(tagged["doc_id"], tagged["word_index"], strict=True), tagged["prediction"], strict=True))
    words = test.polars("word", ["doc_id", "word_index", "char_start"])
    word_at = {(sentence, start): word for sentence, word, start in words.iter_rows()}
    firsts = [(row[0], word_at[row]) for row in test.polars("span", ["doc_id", "char_start"]).iter_rows()]
    by_words = [tags[first].partition("-")[2] == kind for first, kind in zip(firsts, truth, strict=True)]
    interval = probe.intervals[probe.metric]
    return {
        "mentions": f"{len(kinds):,}, {len(truth):,}",
        "spans": f"{probe.value:.3f} ({interval.low:.3f} to {interval.high:.3f})",
        "scikit-learn": f"{by_oracle:.3f}",
        "words": f"{np.mean(by_words):.3f}",
        "majority": f"{np.mean(truth == Counter(kinds.tolist()).most_common(1)[0][0]):.3f}",
    }


def main() -> None:
    """Measure, check and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    for corpus, names in CORPORA.items():
        with tempfile.TemporaryDirectory() as name:
            stores = []
            for part, limit in zip(names, (N_SENTENCES, None), strict=True):
                folder = Path(name, f"{len(stores)}")
                folder.mkdir()
                stores.append(store_of(find(given.data, part), folder, limit))
            rows.append({"corpus": corpus, **measured(*stores)})
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows]))
    report({"spans": rows})


if __name__ == "__main__":
    main()
