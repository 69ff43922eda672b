"""Identity of random weights: the libraries that draw them, and the digest that stands for them.

Loads neither torch nor transformers; `weightdraws` draws.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from bertfeat.encoder.modelconfig import NAMES

# The number of the rule by which `weightdraws` makes weights of a seed; a change of the rule counts it up.
_RULE = 1


def initialiser() -> str:
    """Return the libraries that decide random weights, with their versions; NumPy, too, may change what a seed gives.

    Examples:
        >>> initialiser().split()[::2]
        ['transformers', 'torch', 'numpy']
    """
    # A build for a device, such as +cpu, draws the same.
    return ", ".join(f"{name} {version(name).partition('+')[0]}" for name in ("transformers", "torch", "numpy"))


def random_digest(seed: int, config: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) over all that decides random weights: the seed, the config and the initialiser.

    Examples:
        >>> random_digest(0, {"hidden_size": 8}) == random_digest(1, {"hidden_size": 8})
        False
    """
    decisive = {key: value for key, value in config.items() if key not in NAMES}
    said = json.dumps([_RULE, seed, initialiser(), decisive], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()
