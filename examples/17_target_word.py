"""Lesson 17: a target word over time.

You learn to store the uses of one word only, with the year of each, and to measure how near they are to two senses.

    python examples/17_target_word.py
"""

import sys

import numpy as np
import polars as pl

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-target"
USES = {
    1950: [
        "A dark cloud came over the hills before the storm.",
        "The pilot flew the small plane through a cloud.",
        "White clouds moved slowly across the summer sky.",
        "Not a cloud was to be seen on the day of the race.",
    ],
    1985: [
        "Clouds of dust rose behind the cars on the dry road.",
        "The weather map showed low clouds over the coast.",
        "On paper, the network of machines was drawn as a cloud.",
        "A cloud hid the moon for most of the night.",
    ],
    2020: [
        "The company moved all its servers to the cloud.",
        "Photos are copied from the phone into the cloud every night.",
        "Running the software in the cloud costs less than our own machines.",
        "The forecast was wrong: no cloud, and no rain.",
    ],
}
corpus = pl.DataFrame([{"text": text, "year": year} for year, texts in USES.items() for text in texts])
store = bertfeat.extract(
    corpus, folder, levels="span", spans="words:cloud,clouds", keep_columns="year", layers="-1", store_dtype="float32"
)

# The senses are uses too: brackets mark the word in an index of spans.
index = bertfeat.build_index(store, f"{folder}.index", transform="center")
senses = ["rain fell from the [cloud]", "we store our data in the [cloud]"]
vectors = index.prepare(index.encode(senses).vectors)
similar = index.prepare(store.numpy("span", "layer_06")) @ vectors.T
uses = store.polars("span", ["year", "text"]).with_columns(
    sky=similar[:, 0], computing=similar[:, 1], nearer=pl.Series(np.array(["sky", "computing"])[similar.argmax(axis=1)])
)
print(
    uses.group_by("year", maintain_order=True).agg(pl.len(), (pl.col("nearer") == "computing").sum().alias("computing"))
)
print(index.search(senses[1], k=2, columns=["year", "doc_id"]))
