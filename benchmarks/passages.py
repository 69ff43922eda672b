"""Passages of long documents: the best passage of each article by every way to cut, beside the whole article.

    python -m benchmarks.passages --data DATA --folder WORK    XQuAD English: 48 articles of its 240 paragraphs
    python -m benchmarks.passages --folder WORK --quick        12 paragraphs that the tests have, in three articles

DATA holds xquad.en.json as its authors publish it. Paragraphs of one article are joined by blank lines, and each
question asks for its article; nDCG@10 is of articles, by the best of their passages, exact search by the cosine of
centred means of MiniLM's last layer. `alone` encodes each passage as a text of its own, `document` pools it from the
windows of its article (late chunking); both also reranked by the words that met. Paragraphs alone must be equal to
`bertfeat.embed`. Seconds are of the processor for an extraction, interleaved, best of three.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import polars as pl

import bertfeat
from benchmarks.machine import report
from benchmarks.rerank import find
from bertfeat.plots.tables import markdown_table
from bertfeat.search.evaluation import evaluate_retrieval

SETTINGS = {"layers": "-1", "id_column": "id", "progress": False, "overwrite": True}
WAYS: list[tuple[str, dict[str, str]]] = [
    ("whole article", {"levels": "token,sentence"}),
    *(
        (f"{chunk}, {context}", {"levels": "token,span", "chunk": chunk, "chunk_context": context})
        for chunk in ("paragraphs", "sentences", "tokens:100", "tokens:200:50")
        for context in ("document", "alone")
    ),
]


def articles_of(path: Path) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return the articles, and each question with the id of its article."""
    data = json.loads(path.read_text(encoding="utf-8"))["data"]
    texts = ["\n\n".join(paragraph["context"] for paragraph in article["paragraphs"]) for article in data]
    asked = [
        (one["question"], f"a{row}")
        for row, article in enumerate(data)
        for paragraph in article["paragraphs"]
        for one in paragraph["qas"]
    ]
    return pl.DataFrame({"id": [f"a{row}" for row in range(len(texts))], "text": texts}), asked


def quick() -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """Return three articles of the lines of a text, which ask for themselves by their first words."""
    lines = Path("examples/data/peps.txt").read_text(encoding="utf-8").splitlines()
    groups = [lines[start : start + 4] for start in (0, 40, 80)]
    frame = pl.DataFrame({"id": [f"a{row}" for row in range(3)], "text": ["\n\n".join(group) for group in groups]})
    return frame, [(" ".join(line.split()[:8]), f"a{row}") for row, group in enumerate(groups) for line in group]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.data is None and not given.quick:
        parser.error("pass --data DATA, or --quick")
    articles, asked = quick() if given.quick else articles_of(find(given.data, "xquad.en.json"))
    given.folder.mkdir(parents=True, exist_ok=True)
    queries, qrels = given.folder / "queries.csv", given.folder / "qrels.tsv"
    pl.DataFrame([(f"q{n}", text) for n, (text, _) in enumerate(asked)], ["id", "text"], orient="row").write_csv(
        queries
    )
    qrels.write_text("".join(f"q{n}\t{article}\t1\n" for n, (_, article) in enumerate(asked)))
    rows = []
    for name, settings in WAYS:
        place = given.folder / "store"
        store = bertfeat.extract(articles, place, **SETTINGS, **settings)
        level = settings["levels"].partition(",")[2]
        if name == "paragraphs, alone":
            texts = store.polars("span", ["text"])["text"].to_list()
            own = store.numpy("span", "layer_06").astype(np.float32)
            assert np.allclose(own, bertfeat.embed(texts), rtol=0, atol=2e-3 * np.abs(own).max()), "not equal to embed"
        index = bertfeat.build_index(
            store,
            given.folder / "index",
            level=level,
            factory="Flat",
            transform="center",
            rerank="token:layer_06",
            overwrite=True,
            progress=False,
        )
        found = evaluate_retrieval(index, qrels, queries)
        dense, gain = found["dense"], found["gain"]["ndcg@10"]
        rows.append(
            {
                "passages": name,
                "rows": store.n_rows(level),
                "dense": f"{dense['ndcg@10']:.3f}",
                "reranked": f"{found['ndcg@10']:.3f}",
                "difference": f"{gain['low']:+.3f} to {gain['high']:+.3f}",
            }
        )
        shutil.rmtree(given.folder / "index")
    timed = speed(articles, given.folder / "store")
    for table in (rows, timed):
        print(markdown_table(list(table[0]), [list(row.values()) for row in table]))
    report({"passages": rows, "speed": timed})


def speed(articles: pl.DataFrame, place: Path) -> list[dict[str, object]]:
    """Return the seconds of encoding: paragraphs within their articles, alone, and as texts of a corpus."""
    paragraphs = pl.DataFrame({"text": [part for text in articles["text"] for part in text.split("\n\n")]})
    span = {**SETTINGS, "levels": "span", "chunk": "paragraphs"}
    whole = {**SETTINGS, "levels": "sentence", "id_column": None}
    runs = {
        "tokens": (articles, {**SETTINGS, "levels": "token"}),
        "tokens and spans of words": (articles, {**SETTINGS, "levels": "token,span", "spans": "words:the,of"}),
        "paragraphs, document": (articles, span),
        "paragraphs, alone": (articles, {**span, "chunk_context": "alone"}),
        "paragraphs as texts": (paragraphs, whole),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for name, (corpus, settings) in runs.items():
            start = time.process_time()
            bertfeat.extract(corpus, place, **settings)
            seconds[name].append(time.process_time() - start)
    return [{"run": name, "CPU seconds": f"{min(found):.2f}"} for name, found in seconds.items()]


if __name__ == "__main__":
    main()
