"""Choose layers: all of them as columns, or combined; 0 is the output of the embedding layer."""

import itertools
import sys

import numpy as np

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-layer-features"
store = bertfeat.extract(
    "examples/data/wnut17_dev.conll", folder, levels="sentence", layers="all", combine="none", store_dtype="float32"
)

layers = [feature.name for feature in store.features("sentence")]
print("stored:", ", ".join(layers))
for lower, upper in itertools.pairwise(layers):
    a, b = store.numpy("sentence", lower), store.numpy("sentence", upper)
    cosine = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    print(f"{lower} -> {upper}: mean cosine {cosine.mean():.3f}")

# A concatenation is made from the stored layers when it is read; lowest layer first.
print("concat_last4:", store.numpy("sentence", "concat_last4").shape)
