"""Lesson 11: train a cheap classifier on the features.

You learn to fit a probe: a linear tagger on the concatenated last four layers that finds the entities of a tweet.

    python examples/11_probe.py
"""

import sys

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-entities"
store = bertfeat.extract("examples/data/wnut17_dev.conll", folder, levels="word", layers="last4", label_column="2")

probe = bertfeat.fit_probe(store, "label", level="word", feature="concat_last4", head="linear", max_epochs=5)
print("classes:", len(probe.probe.classes_))
# This is the score on the training data; score a store of other texts to know how good the probe is.
print(f"F1 of entities on train: {probe.score(store).scores.value('entity_f1'):.2f}")

tagged = probe.predict(["Angela Merkel met the mayor of New York"])
for word, tag in tagged.select("word", "prediction").iter_rows():
    print(f"{word:10} {tag}")
