"""Lesson 14: topics of a corpus with BERTopic (pip install bertopic).

You learn to hand a scikit-learn pipeline with BertFeatures to BERTopic as its embedding model.

    python examples/14_bertopic.py
"""

from pathlib import Path

from bertopic import BERTopic
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline

import bertfeat

texts = [line for line in Path("examples/data/peps.txt").read_text(encoding="utf-8").splitlines() if len(line) > 60]
embedder = make_pipeline(bertfeat.BertFeatures("minilm", pooling="model"))

# PCA and k-means in the place of UMAP and HDBSCAN: the same topics in each run.
topics = BERTopic(
    embedding_model=embedder,
    umap_model=PCA(5, random_state=0),
    hdbscan_model=KMeans(6, n_init=10, random_state=0),
    vectorizer_model=CountVectorizer(stop_words="english"),
)
topics.fit(texts)
for number, n_texts in topics.get_topic_freq().itertuples(index=False):
    words = ", ".join(word for word, _ in topics.get_topic(number)[:5])
    print(f"topic {number}: {n_texts:3} texts: {words}")
