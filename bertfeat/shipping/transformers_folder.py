"""A shipped probe as a folder of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.errors import UserError
from bertfeat.shipping.linear_map import LinearMap

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe


def refusal(probe: FittedProbe, checkpoint: Checkpoint) -> str | None:  # noqa: ARG001
    """Return why the target cannot express a probe, as the end of a sentence; None if it may."""
    if LinearMap.of(probe.probe) is None:
        return f"head {probe.probe.head} is not linear"
    return None


def write(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the model, its tokenizer and its config."""
    raise UserError(f"{probe.name}, {checkpoint.name}, {folder}: not written yet")
