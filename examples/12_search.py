"""Lesson 12: search by meaning.

You learn to build an index of document vectors and to find the documents nearest to a question. Hits are rows of the
store, so each comes with its id, its text and any column that you name.

    python examples/12_search.py
"""

import sys

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-search"
store = bertfeat.extract("examples/data/peps.txt", folder, levels="sentence", layers="-1")

# Vectors of BERT-like models have much in common; subtracting their mean makes the nearest ones more telling.
index = bertfeat.build_index(store, f"{folder}.index", transform="center")
print(index)

questions = ["Which naming styles are there?", "How long may a line be?"]
for query, rank, score, doc_id, text in index.search(questions, k=2).iter_rows():
    print(f"{questions[query]:<32} {rank}. {score:.2f}  document {doc_id:>3}: {text[:60]}")

# A row of the store can be the query, too: its nearest row is the row itself.
hits = index.search(store.take("sentence", "layer_06", [0]), k=3)
print("documents nearest to document 0:", hits["doc_id"].to_list())
