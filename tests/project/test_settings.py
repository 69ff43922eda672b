"""Settings by name: their types are those of the config and the heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from bertfeat.config import ExtractConfig
from bertfeat.heads.registry import HeadSettings
from bertfeat.probes.config import ProbeConfig, ProbeSettings
from bertfeat.settings import ExtractSettings


def accepted(name: str, kind: Any) -> Any:
    """Return what may be passed for a field: a text for a choice, a text or a list for several values."""
    if name == "layers":
        return str | int | Iterable[int]
    if get_origin(kind) is tuple:
        return str | Sequence[accepted(name, get_args(kind)[0])]
    return str if isinstance(kind, type) and issubclass(kind, StrEnum) else kind


def test_settings_of_an_extraction_are_the_fields_of_the_config() -> None:
    fields = get_type_hints(ExtractConfig)
    assert get_type_hints(ExtractSettings) == {name: accepted(name, kind) for name, kind in fields.items()}


def test_settings_of_a_probe_are_the_fields_of_the_config_and_the_parameters_of_heads() -> None:
    assert get_type_hints(ProbeSettings) == get_type_hints(HeadSettings) | get_type_hints(ProbeConfig)
