"""Lesson 16: use the heads as estimators of scikit-learn.

You learn to compare heads by cross-validation, and to put one into a pipeline with the features of texts.

    python examples/16_heads.py
"""

import csv
from pathlib import Path

from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from bertfeat import BertFeatures
from bertfeat.heads import CentroidProbe, LogisticRegressionProbe, RidgeProbe

with Path("examples/data/reviews.csv").open(encoding="utf-8", newline="") as file:
    reviews = list(csv.DictReader(file))[:120]
texts, labels = ([review[column] for review in reviews] for column in ("text", "label"))
features = BertFeatures("minilm")
vectors = features.fit_transform(texts)

for head in (LogisticRegressionProbe(C=0.01), RidgeProbe(alpha=100.0), CentroidProbe()):
    print(f"{head}: {cross_val_score(head, vectors, labels, cv=4).mean():.2f}")

model = make_pipeline(features, LogisticRegressionProbe(C=0.01)).fit(texts, labels)
print("prediction:", model.predict(["a warm and very funny film"])[0])
