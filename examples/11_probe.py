"""Fit a probe: a linear tagger on the concatenated last four layers finds the entities in tweets."""

import sys

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-entities"
store = bertfeat.extract("examples/data/wnut17_dev.conll", folder, levels="word", layers="last4", label_column="2")

probe = bertfeat.fit_probe(
    store,
    "label",
    level="word",
    feature="concat_last4",
    head="linear",
    max_epochs=5,
)
print("classes:", len(probe.probe.classes_))
# On the training data; a real score needs another store.
print(f"F1 of entities on train: {probe.score(store).scores.value('entity_f1'):.2f}")

tagged = probe.predict_texts(["Angela Merkel met the mayor of New York"])
for word, tag in tagged.select("word", "prediction").iter_rows():
    print(f"{word:10} {tag}")
