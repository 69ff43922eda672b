"""Speed of bertfeat against named peers, on the same corpora, with the same vectors, in the same run."""
