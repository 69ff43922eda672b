"""Lesson 13: add new documents to a store and to its index.

You learn to keep both up to date while a corpus grows: `append` encodes only the new documents, and `index.update` adds
their rows.

    python examples/13_update_index.py
"""

import tempfile
from pathlib import Path

import bertfeat

lines = Path("examples/data/peps.txt").read_text(encoding="utf-8").splitlines(keepends=True)

with tempfile.TemporaryDirectory() as temporary:
    monday, tuesday, place = (Path(temporary, name) for name in ("monday.txt", "tuesday.txt", "notes.index"))

    monday.write_text("".join(lines[:60]), encoding="utf-8")
    store = bertfeat.extract(monday, Path(temporary, "notes"), levels="sentence", layers="-1")
    with bertfeat.build_index(store, place) as index:
        print("monday: ", index.n_vectors, "vectors")

    # A file with the new documents alone.
    tuesday.write_text("".join(lines[60:90]), encoding="utf-8")
    store = bertfeat.append(store, tuesday)
    with bertfeat.open_index(place).update(store) as index:
        print("tuesday:", index.n_vectors, "vectors")
        hit = index.search(lines[75], k=1)
        print("line 75 is found as document", hit["doc_id"][0], f"with a cosine of {hit['score'][0]:.2f}")
