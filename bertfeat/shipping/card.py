"""The model card of a shipped probe: a README.md with the metadata that model hubs read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertfeat.encoder.checkpoint import Checkpoint

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

CARD = "README.md"
_MADE_BY = "bertfeat probe ship"


def model_card(probe: FittedProbe, checkpoint: Checkpoint, target: str) -> str:
    """Return the text of a model card."""
    spec = probe.spec
    return (
        f"---\nlibrary_name: {target}\ntags:\n- bertfeat\n---\n"
        f"# {probe.label}\n\nHead {probe.probe.head} on {spec.feature} of {spec.model}, "
        f"{max(spec.layers)} of {checkpoint.n_layers} blocks; made by `{_MADE_BY}`.\n"
    )


def is_shipped(folder: Path) -> bool:
    """Return whether a folder has the model card of a shipped probe."""
    card = folder / CARD
    return card.is_file() and _MADE_BY in card.read_text(encoding="utf-8", errors="replace")
