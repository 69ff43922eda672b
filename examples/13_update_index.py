"""Lesson 13: add new documents to an index.

You learn to keep an index up to date while a corpus grows: extract the longer corpus with the same settings, then
`update_index` adds the rows that are new.

    python examples/13_update_index.py
"""

import tempfile
from pathlib import Path

import bertfeat

lines = Path("examples/data/peps.txt").read_text(encoding="utf-8").splitlines(keepends=True)

with tempfile.TemporaryDirectory() as temporary:
    corpus, place = Path(temporary, "notes.txt"), Path(temporary, "notes.index")

    corpus.write_text("".join(lines[:60]), encoding="utf-8")
    store = bertfeat.extract(corpus, Path(temporary, "monday"), levels="sentence", layers="-1")
    with bertfeat.build_index(store, place) as index:
        print("monday: ", index.n_vectors, "vectors")

    # The file has grown: the old lines first, the new ones after them.
    corpus.write_text("".join(lines[:90]), encoding="utf-8")
    store = bertfeat.extract(corpus, Path(temporary, "tuesday"), levels="sentence", layers="-1")
    with bertfeat.update_index(place, store) as index:
        print("tuesday:", index.n_vectors, "vectors")
        hit = index.search(lines[75], k=1)
        print("line 75 is found as document", hit["doc_id"][0], f"with a cosine of {hit['score'][0]:.2f}")
