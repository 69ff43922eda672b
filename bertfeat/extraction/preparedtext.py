"""Documents that are ready for the encoder."""

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
        """Return the numbers of documents, tokens, windows and packs, for the receipt: the same with any cache."""
        return {
            "n_documents": len(self.text.documents),
            **self.text.counts(),
            "n_packs": len(self.packs),
            "n_encoded_tokens": tokens_of(self.packs),
            "n_repeated_windows": sum(len(pack.copies) for pack in self.packs),
        }


def tokens_of(packs: Sequence[Pack]) -> int:
    """Return the number of tokens in packs, special tokens included."""
    return sum(pack.n_tokens for pack in packs)
