"""Optional libraries of probes: scikit-learn, and matplotlib for plots."""

from __future__ import annotations

from importlib.util import find_spec

from bertfeat.errors import UserError

_NAMES = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def require(*modules: str) -> None:
    """Check that optional libraries are installed, without loading them.

    Raises:
        UserError: A library is missing; the message names the command that installs it.
    """
    missing = [_NAMES[module] for module in modules if find_spec(module) is None]
    if missing:
        raise UserError(f"probes need {' and '.join(missing)}: pip install 'bertfeat[probes]'")
