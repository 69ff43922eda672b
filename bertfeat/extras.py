"""Optional libraries of probes and plots: scikit-learn and matplotlib."""

from __future__ import annotations

from importlib.util import find_spec

from bertfeat.errors import UserError

_NAMES = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def require(*modules: str, what: str = "probes need") -> None:
    """Check that optional libraries are installed, without loading them.

    Args:
        modules: The names under which they are imported.
        what: The beginning of the message.

    Raises:
        UserError: A library is missing; the message names the command that installs it.
    """
    missing = [_NAMES[module] for module in modules if find_spec(module) is None]
    if missing:
        raise UserError(f"{what} {' and '.join(missing)}: pip install 'bertfeat[probes]'")
