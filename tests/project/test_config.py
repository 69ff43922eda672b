"""The settings: checked on construction, JSON both ways, unknown keys refused, and their types by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfeat.choices import Combine, Level
from bertfeat.config import ExtractConfig, parse_size
from bertfeat.errors import ConfigError
from bertfeat.heads.registry import HeadSettings
from bertfeat.probes.config import ProbeConfig, ProbeSettings
from bertfeat.settings import ExtractSettings

DEFAULTS = {field.name: field.default for field in dataclasses.fields(ExtractConfig)}
ENUMS = {name: type(default) for name, default in DEFAULTS.items() if isinstance(default, StrEnum)}
NUMBERS = {"limit": 1, "max_length": 1, "stride": 0, "max_batch_tokens": 1, "shard_bytes": 1, "workers": 1}
RUN_ONLY = {"device", "workers", "shards", "runner", "ray_address", "cache", "cache_size"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *(({name: "sideways"}, rf"`{name}` 'sideways' must be one of .*{min(kind)}") for name, kind in ENUMS.items()),
        *(({name: least - 1}, rf"`{name}={least - 1}` is below {least}") for name, least in NUMBERS.items()),
        *(({"stride": value}, "`stride` .* is not a whole number") for value in (1.5, "12", True)),
        ({"level": 1}, "no setting 'level'; did you mean 'levels'"),
        ({"zzz": 1}, "no setting 'zzz'.* settings are format, text_"),
        ({"levels": ""}, "`levels` is empty"),
        ({"combine": ""}, "`combine` is empty"),
        ({"keep_columns": [3]}, "^`keep_columns` 3 is not text$"),
        ({"levels": None}, "^`levels` None is not text$"),
        ({"model": Path("m")}, r"^`model` PosixPath\('m'\) is not text$"),
        ({"no_header": "no"}, "^`no_header` 'no' is not True or False$"),
        ({"shard_bytes": None}, "^`shard_bytes` None is not a whole number$"),
        ({"layers": "banana"}, "^`layers` 'banana' is not a layer; write 'all', 'last4', numbers and ranges"),
        ({"layers": "1...2"}, "^`layers` '1...2' is not a layer"),
        ({"text_pair_column": "b", "text_pairs": True}, "`text_pairs`"),
        ({"is_split_into_words": True, "text_pairs": True}, "`is_split_into_words`"),
        ({"document_context": True, "include_special_tokens": True}, "`include_special_tokens`"),
        ({"document_context": True, "text_pair_column": "b"}, "`document_context`"),
        ({"document_context": True, "levels": "sentence", "pooling": "cls"}, "`pooling='cls'`"),
        ({"document_context": True, "prompt": "query: "}, "`prompt` cannot be used with `document_context`"),
        ({"prompt": "query: ", "prompt_name": "query"}, "`prompt` and `prompt_name`"),
        ({"pooling": "model", "levels": "sentence", "include_special_tokens": True}, "drop `include_special_tokens`"),
        ({"keep_columns": "a"}, "`keep_columns` would not be stored without the sentence level; add that to `levels`"),
        ({"label_column": "a"}, "`label_column` would not be stored without the word level; add that to `levels`"),
    ],
)
def test_a_mistake_is_named_with_its_setting(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ExtractConfig.from_dict(settings)


def test_lists_as_text_or_sequence_in_one_order() -> None:
    assert ExtractConfig(levels="sentence, token").levels == (Level.TOKEN, Level.SENTENCE)  # type: ignore[arg-type]
    assert ExtractConfig(levels=["word", "word"]).levels == (Level.WORD,)  # type: ignore[arg-type]
    assert ExtractConfig(combine="mean,none").combine == (Combine.NONE, Combine.MEAN)  # type: ignore[arg-type]
    kept = ExtractConfig(keep_columns="b, a,b", levels=("sentence",))  # type: ignore[arg-type]
    assert kept.keep_columns == ("b", "a")


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1, "-1"), ([0, -1], "0,-1"), ((4,), "4"), ("0, 4..6", "0,4..6"), ("last4", "last4"), ("all,-3..0", "all,-3..0")],
)
def test_layers_become_text(value: object, text: str) -> None:
    assert ExtractConfig.from_dict({"layers": value}).layers == text


def test_settings_of_where_a_run_takes_place_are_not_planned() -> None:
    # The plan has the text of the prompt, which is known once the model is found.
    assert set(ExtractConfig().to_dict()) - set(ExtractConfig().planned()) == RUN_ONLY | {"prompt", "prompt_name"}
    elsewhere = ExtractConfig(device="cuda:1", workers=4)
    assert elsewhere.planned() == ExtractConfig().planned()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "levels": st.lists(st.sampled_from(list(Level)), min_size=1),
            "combine": st.lists(st.sampled_from(list(Combine)), min_size=1),
            "layers": st.one_of(st.integers(-13, 12), st.lists(st.integers(-13, 12), min_size=1), st.just("last4")),
            "model": st.text(),
            "stride": st.none() | st.integers(0, 10**6),
            "shard_bytes": st.integers(1, 2**40),
            "include_special_tokens": st.booleans(),
            **{name: st.sampled_from(list(kind)) for name, kind in ENUMS.items()},
        },
    )
)
def test_json_both_ways(values: dict[str, object]) -> None:
    if values.get("pooling") == "model":
        values |= {"levels": "sentence", "include_special_tokens": False}
    # Only a file gives two spans.
    values |= {"span_pair": "none", **({"chunk": "sentences"} if "span" in values.get("levels", ()) else {})}  # type: ignore[operator]
    config = ExtractConfig.from_dict(values).effective()
    assert config.effective() == config
    assert config.ignored() == {}
    assert ExtractConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("layers", "combine"), [("last4", ["none", "concat"]), ("all", ["none"]), (-1, ["none"]), ("-4..-1", ["none"])]
)
def test_layers_are_joined_by_default_for_the_last_four_only(layers: str | int, combine: list[str]) -> None:
    assert ExtractConfig(layers=layers).to_dict()["combine"] == combine  # type: ignore[arg-type]
    assert ExtractConfig(layers=layers, combine="concat,sum").to_dict()["combine"] == ["concat", "sum"]  # type: ignore[arg-type]


def test_sizes_are_decimal_and_exact() -> None:
    asked = (7, "7", "1.5 GB", "2k", "3Mb", "1T", " 64 b ", "0.29GB")
    assert [parse_size(size) for size in asked] == [7, 7, 15 * 10**8, 2000, 3 * 10**6, 10**12, 64, 290_000_000]
    for text in ("", "-5GB", "4GiB", "1e3"):
        with pytest.raises(ConfigError, match="is not a size; write for example 256MB"):
            parse_size(text)


def test_settings_are_an_object_or_names() -> None:
    config = ExtractConfig(levels="word")
    assert ExtractConfig.of(config, {}) == config == ExtractConfig.of(None, {"levels": "word"})
    with pytest.raises(ConfigError, match="setting 'layers' beside config; put it into config, or pass all by name"):
        ExtractConfig.of(config, {"layers": "all"})


def test_a_config_is_shown_as_the_settings_that_were_given() -> None:
    config = ExtractConfig(levels="word,sentence", layers=-1, pooling="cls", workers=2)
    assert repr(config) == "ExtractConfig(levels=('word', 'sentence'), layers='-1', pooling='cls', workers=2)"
    assert eval(repr(config)) == config


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
