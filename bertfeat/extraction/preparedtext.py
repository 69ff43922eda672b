"""Documents that are ready for the encoder, and the packs of their windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertfeat.extraction.leveltables import ShardText
from bertfeat.records import BadRow, Pack
from bertfeat.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class PreparedText:
    """Documents that are ready for the encoder, and the rows that could not be read."""

    text: ShardText
    packs: Sequence[Pack]
    bad_rows: Sequence[BadRow]
    clock: Stopwatch

    def counts(self) -> dict[str, int]:
        """Return the numbers of documents, tokens, windows and packs, for the receipt."""
        return {
            "n_documents": len(self.text.documents),
            **self.text.counts(),
            "n_packs": len(self.packs),
            "n_encoded_tokens": tokens_of(self.packs),
            "n_repeated_windows": sum(len(pack.copies) for pack in self.packs),
        }

    def notes(self) -> dict[str, int]:
        """Return the number of documents without a token, and the number of the longest one, from 1, and its tokens."""
        sizes = self.text.tokens.n_texts.sum(axis=1)
        if not len(sizes):
            return {}
        longest = int(sizes.argmax())
        found = {"n_empty_documents": int((sizes == 0).sum())}
        return {**found, "longest_document": self.text.documents[longest].index + 1, "n_longest": int(sizes[longest])}


def tokens_of(packs: Sequence[Pack]) -> int:
    """Return the number of tokens in packs, special tokens included."""
    return sum(pack.n_tokens for pack in packs)
