"""Lesson 8: embed a few texts in memory.

You learn the call for small inputs: the same vectors as `extract`, without a store.

    python examples/08_embed.py
"""

import bertfeat

texts = [
    "The river rose overnight and flooded the fields.",
    "Heavy rain has put the valley under water.",
    "The bank raised its interest rates again.",
    "Mortgages have become more expensive.",
]
vectors = bertfeat.embed(texts, model="minilm", pooling="mean", normalize=True)
cosines = vectors @ vectors.T

for row, text in enumerate(texts):
    others = [(float(cosines[row, column]), texts[column]) for column in range(len(texts)) if column != row]
    cosine, nearest = max(others)
    print(f"{text:<48} -> {nearest:<48} {cosine:.2f}")
