"""Public names of a package that load on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from bertfeat.errors import BertfeatError


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package; `homes` gives the public names of each module, separated by spaces."""
    modules = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"bertfeat.{modules[name]}"), name)
        except BertfeatError as missing:
            # An optional library; the traceback would be 20 lines of importlib.
            raise missing.with_traceback(None) from None

    return load
