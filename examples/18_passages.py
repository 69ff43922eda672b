"""Lesson 18: search in long documents, which shows the passage and the words that met.

You learn to cut documents into paragraphs, to search these, and to get the best passage of each document.

    python examples/18_passages.py
"""

import sys
from pathlib import Path

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-passages"
lines = Path("examples/data/peps.txt").read_text(encoding="utf-8").splitlines()
guides = {"id": ["style", "docstrings", "names"], "text": ["\n\n".join(lines[i : i + 40]) for i in (0, 40, 60)]}

# Each paragraph is pooled from the windows of its whole document; the tokens are for reranking.
store = bertfeat.extract(guides, folder, levels="token,span", chunk="paragraphs", id_column="id", layers="-1")
index = bertfeat.build_index(store, f"{folder}.index", level="span", rerank="token:layer_06")
hits = index.search("how are functions named?", k=3, group_by="doc_id", matches=True)
for hit in hits.iter_rows(named=True):
    met = ", ".join(f"{match['query_word']} -> {match['word']}" for match in hit["matches"][:4])
    place = f"{hit['doc_id']} {hit['char_start']}..{hit['char_end']}"
    print(f"{hit['rank']}. {hit['score']:.3f}  {place}: {hit['text'][:70]}...  ({met})")
