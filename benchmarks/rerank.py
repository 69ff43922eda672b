"""Late interaction: the candidates of a dense search, rescored by MaxSim over the token rows of a layer.

    python -m benchmarks.rerank --data DATA --folder WORK    all collections in DATA
    python -m benchmarks.rerank --folder WORK --quick        12 paragraphs that the tests have

DATA holds the files of the collections as their authors publish them, in any folders; a collection whose files are not
there is left out. WORK keeps the extracted vectors, 7 GB in all.

The dense search is exact, by the cosine of MiniLM's own embedding. Vectors of tokens, without special tokens, are
centred by the mean of all tokens of documents and scaled to length 1. `maxsim` is the mean over the query's tokens of
the largest dot product with a token of the document; `idf` weights the query's tokens by their rarity in the documents;
`mixed` is the mean of the dense cosine and `idf`. An index of bertfeat must give the same scores. BM25 is that of
the package bm25s (k1 1.5, b 0.75), on lower-case words of two characters and more, without English stopwords,
stemmed by Snowball; without bm25s and PyStemmer it is left out. Prints tables of nDCG@10 and MRR@10, with 95 %
intervals of the difference from the dense search (paired bootstrap of queries).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from benchmarks.machine import report
from benchmarks.measured import ROOT
from bertfeat import Store, build_index, extract
from bertfeat.plots.tables import markdown_table

N_QUERIES, N_CANDIDATES, N_RANKS, N_RESAMPLES = 500, 100, 10, 2000
# Long documents count with their first characters only: several windows of the model, and still small on disk.
N_CHARACTERS = 2000
# All documents are rescored too, in collections of up to this many.
N_FULL = 1000
DEFAULT = ("layer_06", "bit")
KINDS = [(f"layer_{layer:02d}", "float16") for layer in range(7)]
KINDS += [(layer, codes) for layer in ("layer_05", "layer_06") for codes in ("int8", "bit")]
Scores = dict[str, np.ndarray]


class Collection(NamedTuple):
    """Documents, queries, and the documents (by position) that are relevant to each query."""

    documents: list[str]
    queries: list[str]
    relevant: list[list[int]]


class Tokens(NamedTuple):
    """Tokens of texts: their rows in the store, the texts they belong to, and where each text starts, with the end."""

    store: Store
    rows: np.ndarray
    texts: np.ndarray
    starts: np.ndarray
    ids: np.ndarray

    def vectors(self, layer: str) -> np.ndarray:
        """Return the vectors of a layer, float32 (n_tokens, dim)."""
        return self.store.numpy("token", layer)[self.rows].astype(np.float32)


def find(data: Path, pattern: str) -> Path:
    found = sorted(data.rglob(pattern))
    if not found:
        raise FileNotFoundError(f"no {pattern} in {data}")
    return found[0]


def of_pairs(pairs: list[tuple[str, str]], others: Iterable[str] = ()) -> Collection:
    """Return a collection of queries and the documents they belong to, among those of all pairs and others."""
    position = {text: row for row, text in enumerate(dict.fromkeys([*(document for _, document in pairs), *others]))}
    answers: dict[str, list[int]] = {}
    for query, document in pairs:
        if query != document:
            answers.setdefault(query, []).append(position[document])
    return sampled(list(position), list(answers), list(answers.values()))


def of_labels(documents: list[tuple[str, str]], queries: list[tuple[str, str]]) -> Collection:
    """Return a collection of texts with labels, where the documents with a query's label are relevant."""
    rows: dict[str, list[int]] = {}
    for row, (_, label) in enumerate(documents):
        rows.setdefault(label, []).append(row)
    texts, asked = ([text for text, _ in part] for part in (documents, queries))
    return sampled(texts, asked, [rows[label] for _, label in queries])


def sampled(documents: list[str], queries: list[str], relevant: list[list[int]]) -> Collection:
    """Return a collection with some of the queries, drawn at random, in their order."""
    kept = sorted(np.random.default_rng(0).permutation(len(queries))[:N_QUERIES].tolist())
    return Collection(documents, [queries[n] for n in kept], [relevant[n] for n in kept])


def xquad(data: Path) -> Collection:
    """XQuAD English: question, its paragraph; all questions."""
    articles = json.loads(find(data, "xquad.en.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(answer["question"], row) for row, one in enumerate(paragraphs) for answer in one["qas"]]
    return Collection([one["context"] for one in paragraphs], [text for text, _ in asked], [[row] for _, row in asked])


def peps(data: Path) -> Collection:
    """Python's PEPs, their files one after the other: title, text below the header."""
    with gzip.open(find(data, "peps.txt.gz"), "rt", encoding="utf-8") as file:
        texts = re.split(r"^(?=PEP: \d+$)", file.read(), flags=re.MULTILINE)
    pairs = []
    for text in texts:
        header, _, body = text.partition("\n\n")
        title = re.search(r"^Title: (.*(?:\n[ \t]+.*)*)", header, re.MULTILINE)
        if title is not None and body.strip():
            pairs.append((" ".join(title[1].split()), body.strip()[:N_CHARACTERS]))
    return of_pairs(pairs)


def wikitext(data: Path) -> Collection:
    """WikiText-2, validation and test: title of the article and heading of a section, text of the section."""
    pairs = []
    for name in ("wikitext-2/valid.txt", "wikitext-2/test.txt"):
        text = find(data, name).read_text(encoding="utf-8").replace("<unk>", "")
        parts = re.split(r"^ ((?:= )+.*(?: =)+) $", re.sub(r" @(.)@ ", r"\1", text), flags=re.MULTILINE)
        title = ""
        for line, body in zip(parts[1::2], parts[2::2], strict=True):
            heading = " ".join(line.strip("= ").split())
            title = title if line.startswith("= =") else heading
            if body.strip():
                query = title if heading == title else f"{title}: {heading}"
                pairs.append((query, " ".join(body.split())[:N_CHARACTERS]))
    return of_pairs(pairs)


def stsb(data: Path) -> Collection:
    """STS-B English, all splits: first sentence, second sentence, of pairs with a score of 4 and more."""
    paths = [find(data, f"stsb-en-{split}.csv") for split in ("train", "dev", "test")]
    rows = [row for path in paths for row in pl.read_csv(path, has_header=False, infer_schema=False).rows()]
    pairs = [(first, second) for first, second, score in rows if float(score) >= 4]
    return of_pairs(pairs, others=[second for _, second, _ in rows])


def banking77(data: Path) -> Collection:
    """banking77: text of the test set, texts of the training set with its intent."""
    return of_labels(*(pl.read_csv(find(data, f"banking_data/{split}.csv")).rows() for split in ("train", "test")))


def polarity(data: Path) -> Collection:
    """Sentence polarity (Pang and Lee, 2005): sentence of a review, sentences with its polarity; a random half."""
    rows = []
    with zipfile.ZipFile(find(data, "sentence_polarity.zip")) as archive:
        for label in ("pos", "neg"):
            text = archive.read(f"sentence_polarity/rt-polarity.{label}").decode("latin-1")
            rows += [(line.strip(), label) for line in text.splitlines() if line.strip()]
    rows = [rows[n] for n in np.random.default_rng(1).permutation(len(rows))]
    return of_labels(rows[: len(rows) // 2], rows[len(rows) // 2 :])


COLLECTIONS: dict[str, Callable[[Path], Collection]] = {
    read.__name__: read for read in (xquad, stsb, banking77, peps, wikitext, polarity)
}


def encode(texts: list[str], folder: Path) -> Tokens:
    """Extract the token vectors of all layers and the model's own embeddings."""
    frame = pl.DataFrame({"text": texts})
    store = extract(frame, folder, levels=["token", "sentence"], layers="all", combine="none", pooling="model")
    tokens = store.polars("token", ["doc_id", "token_id", "is_special"]).with_row_index().filter(~pl.col("is_special"))
    rows, owners, ids = (tokens[name].to_numpy() for name in ("index", "doc_id", "token_id"))
    return Tokens(store, rows, owners, np.searchsorted(owners, np.arange(len(texts) + 1)), ids)


def dense_scores(documents: Store, queries: Store) -> np.ndarray:
    """Return the cosines of queries (rows) and documents (columns)."""
    ours, theirs = (unit(store.numpy("sentence", "embedding").astype(np.float32)) for store in (queries, documents))
    return ours @ theirs.T


def bm25_scores(collection: Collection) -> np.ndarray | None:
    """Return the scores of BM25, or None without its packages."""
    if find_spec("bm25s") is None or find_spec("Stemmer") is None:
        return None
    import bm25s
    import Stemmer

    chosen = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    index = bm25s.BM25()
    index.index(bm25s.tokenize(collection.documents, **chosen), show_progress=False)
    words = bm25s.tokenize(collection.queries, return_ids=False, **chosen)
    return np.stack([index.get_scores(one) if one else np.zeros(len(collection.documents)) for one in words])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale rows to length 1; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def coded(centred: np.ndarray, codes: str) -> np.ndarray:
    """Return the vectors of documents as their codes give them back."""
    if codes == "bit":
        return np.where(centred >= 0, np.float32(1), np.float32(-1)) / np.float32(centred.shape[1] ** 0.5)
    scaled = unit(centred)
    if codes == "float16":
        return scaled.astype(np.float16).astype(np.float32)
    steps = np.maximum(np.abs(scaled).max(axis=1, keepdims=True), 1e-9) / 127
    return np.rint(scaled / steps) * steps


def rarities(documents: Tokens, queries: Tokens) -> np.ndarray:
    """Return a weight for each token of the queries, higher if fewer documents contain it."""
    held = np.unique(np.stack([documents.texts, documents.ids]), axis=1)[1]
    counts = np.bincount(held, minlength=queries.ids.max() + 1)[queries.ids]
    return np.log1p((len(documents.starts) - 1 - counts + 0.5) / (counts + 0.5))


def late_scores(documents: Tokens, queries: Tokens, layer: str, codes: str, pool: np.ndarray) -> Scores:
    """Return `maxsim` and `idf` of queries (rows) and the documents in their pool (columns); -inf for others."""
    vectors = documents.vectors(layer)
    mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    known, asked = coded(vectors - mean, codes), unit(queries.vectors(layer) - mean)
    owners = queries.texts
    weights = {"maxsim": np.ones(len(owners)), "idf": rarities(documents, queries)}
    weights = {name: each / np.bincount(owners, each)[owners] for name, each in weights.items()}
    found = {name: np.full(pool.shape, -np.inf, np.float32) for name in weights}
    for row, (start, end) in enumerate(zip(documents.starts, documents.starts[1:], strict=False)):
        queried = pool[:, row]
        chosen = np.flatnonzero(queried[owners])
        if start == end or not len(chosen):
            continue
        best = (known[start:end] @ asked[chosen].T).max(axis=0)
        for name, each in weights.items():
            sums = np.bincount(owners[chosen], each[chosen] * best, minlength=len(pool))
            found[name][queried, row] = sums[queried]
    return found


def candidates(scores: np.ndarray) -> np.ndarray:
    """Return which documents are among the first of each query; ties are in the order of the corpus."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :N_CANDIDATES]
    chosen = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(chosen, order, values=True, axis=1)
    return chosen


def fused(rankings: list[np.ndarray]) -> np.ndarray:
    """Return the sum of 1 / (60 + rank) over the first documents of each ranking (reciprocal rank fusion)."""
    ranks = [1 + np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1) for scores in rankings]
    return np.sum([np.where(each <= N_CANDIDATES, 1 / (60 + each), 0) for each in ranks], axis=0)


def variants(late: Scores, dense: np.ndarray, pool: np.ndarray) -> Scores:
    """Return the scores of the rankings of a pool, by variant."""
    found = {name: np.where(pool, scores, -np.inf) for name, scores in late.items()}
    return {**found, "mixed": np.where(pool, (dense + late["idf"]) / 2, -np.inf)}


def measures(scores: np.ndarray, collection: Collection) -> Scores:
    """Return nDCG@10 and MRR@10 of each query."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :N_RANKS]
    discounts = 1 / np.log2(np.arange(2, N_RANKS + 2))
    ndcg, mrr = np.zeros(len(order)), np.zeros(len(order))
    for row, relevant in enumerate(collection.relevant):
        hits = np.isin(order[row], relevant)
        ndcg[row] = discounts[: len(hits)][hits].sum() / discounts[: len(relevant)].sum()
        mrr[row] = 1 / (1 + np.argmax(hits)) if hits.any() else 0
    return {"nDCG@10": ndcg, "MRR@10": mrr}


def against(found: dict[str, Scores], name: str, measure: str) -> str:
    """Return the mean of a measure, and its difference from the dense search with the bootstrap interval."""
    if name not in found:
        return ""
    values = found[name][measure]
    differences = values - found["dense"][measure]
    resampled = np.random.default_rng(0).integers(0, len(values), (N_RESAMPLES, len(values)))
    low, high = np.quantile(differences[resampled].mean(axis=1), [0.025, 0.975])
    return f"{values.mean():.3f} ({differences.mean():+.3f}: {low:+.3f} to {high:+.3f})"


def rankings(collection: Collection, folder: Path, kinds: list[tuple[str, str]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield rankings, each as its name and the scores of queries (rows) and documents (columns); dense is first."""
    documents, queries = (encode(getattr(collection, name), folder / name) for name in ("documents", "queries"))
    dense, bm25 = dense_scores(documents.store, queries.store), bm25_scores(collection)
    yield "dense", dense
    pools = {"": candidates(dense)}
    if bm25 is not None:
        yield "BM25", bm25
        yield "dense+BM25", fused([dense, bm25])
        pools[", candidates of both"] = pools[""] | candidates(bm25)
    if len(collection.documents) <= N_FULL:
        pools[", all documents"] = np.ones_like(pools[""])
    for kind in kinds:
        wanted = pools if kind == DEFAULT else {"": pools[""]}
        late = late_scores(documents, queries, *kind, np.any(list(wanted.values()), axis=0))
        for ending, pool in wanted.items():
            for name, scores in variants(late, dense, pool).items():
                if kind == DEFAULT and name == "mixed" and not ending:
                    check_equal(collection, documents.store, folder, scores)
                yield " ".join(kind) + f" {name}{ending}", scores


def check_equal(collection: Collection, documents: Store, folder: Path, scores: np.ndarray) -> None:
    """Assert that an index with the default settings finds hits with these scores."""
    rerank = {"rerank": f"token:{DEFAULT[0]}", "codes": DEFAULT[1], "factory": "Flat"}
    with build_index(documents, folder / "index", level="sentence", feature="embedding", **rerank) as index:
        hits = index.search(collection.queries, N_RANKS, columns=["row"])
    expected = -np.sort(-scores, axis=1)[:, :N_RANKS]
    differences = np.abs(hits["score"].to_numpy().reshape(expected.shape) - expected)
    # The index takes the mean of a sample where there are many tokens, so single bits near zero may differ.
    assert differences.mean() < 1e-3
    assert differences.max() < 2e-2


def table(results: dict[str, dict[str, Scores]], measure: str) -> str:
    """Return a measure of all rankings (rows) and collections (columns) as Markdown."""
    names = dict.fromkeys(name for found in results.values() for name in found)
    lines = [[name, *(against(found, name, measure) for found in results.values())] for name in names]
    return markdown_table([measure, *results], lines)


def main() -> None:
    """Encode, rank and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.quick:
        parser.error("name the folder of the collections with --data, or pass --quick")
    kinds = [DEFAULT] if arguments.quick else KINDS
    data = ROOT / "tests" / "data" / "xquad_en" if arguments.quick else arguments.data
    results: dict[str, dict[str, Scores]] = {}
    for title in ["xquad"] if arguments.quick else COLLECTIONS:
        try:
            collection = COLLECTIONS[title](data)
        except FileNotFoundError as error:
            print(f"{title}: left out; {error}", file=sys.stderr)
            continue
        results[title] = {}
        for name, scores in rankings(collection, arguments.folder / title, kinds):
            results[title][name] = measures(scores, collection)
            print(f"{title}, {name}: {results[title][name]['nDCG@10'].mean():.3f}", file=sys.stderr)
    for measure in ("nDCG@10", "MRR@10"):
        print(table(results, measure) + "\n")
    report({"command": " ".join(sys.argv[1:])}, arguments.folder / "machine.json")


if __name__ == "__main__":
    main()
