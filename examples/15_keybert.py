"""Lesson 15: keywords of a text with KeyBERT (pip install keybert).

You learn to make an Encoder the backend of KeyBERT, which embeds the text and its candidate phrases.

    python examples/15_keybert.py
"""

from keybert import KeyBERT
from keybert.backend import BaseEmbedder

import bertfeat


class Backend(BaseEmbedder):
    """The model's own sentence embedding, loaded once."""

    def __init__(self):
        super().__init__()
        self.encoder = bertfeat.Encoder("minilm", pooling="model")

    def embed(self, documents, verbose=False):  # noqa: ARG002
        """Return one vector per text: float32 (n_texts, 384)."""
        return self.encoder.encode(documents)


text = (
    "The river rose overnight and flooded the fields. Heavy rain had filled the valley for a week, "
    "and the banks of the river could not hold the water any longer."
)
for words, cosine in KeyBERT(Backend()).extract_keywords(text, keyphrase_ngram_range=(1, 2), top_n=5):
    print(f"{cosine:.2f} {words}")
