"""The settings: checked on construction, JSON both ways, unknown keys refused."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertfeat.choices import Combine, Level
from bertfeat.config import ExtractConfig, parse_size
from bertfeat.errors import ConfigError

DEFAULTS = {field.name: field.default for field in dataclasses.fields(ExtractConfig)}
ENUMS = {name: type(default) for name, default in DEFAULTS.items() if isinstance(default, StrEnum)}
MEMBERS = [(name, member) for name, kind in ENUMS.items() for member in kind]
NUMBERS = {"limit": 1, "max_length": 1, "stride": 0, "max_batch_tokens": 1, "shard_bytes": 1, "workers": 1}
RUN_ONLY = {"device", "workers", "shards", "runner", "ray_address", "cache", "cache_size"}


@pytest.mark.parametrize("name", ENUMS)
def test_a_wrong_choice_names_setting_value_and_choices(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ExtractConfig.from_dict({name: "sideways"})
    assert str(caught.value).startswith(f"`{name}` 'sideways' must be one of ")
    assert all(str(member) in str(caught.value) for member in ENUMS[name])


@pytest.mark.parametrize(("name", "least"), NUMBERS.items())
def test_numbers(name: str, least: int) -> None:
    assert getattr(ExtractConfig.from_dict({name: least}), name) == least
    with pytest.raises(ConfigError, match=rf"`{name}={least - 1}` is below {least}"):
        ExtractConfig.from_dict({name: least - 1})
    for value in (1.5, "12", True):
        with pytest.raises(ConfigError, match=f"`{name}` .* is not a whole number"):
            ExtractConfig.from_dict({name: value})


@pytest.mark.parametrize(
    ("key", "hint"),
    [("level", "did you mean 'levels'"), ("poolings", "did you mean 'pooling'"), ("zzz", "settings are format, text_")],
)
def test_unknown_keys_are_refused_with_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting {key!r}") as caught:
        ExtractConfig.from_dict({key: 1})
    assert hint in str(caught.value)


def test_lists_as_text_or_sequence_in_one_order() -> None:
    assert ExtractConfig(levels="sentence, token").levels == (Level.TOKEN, Level.SENTENCE)  # type: ignore[arg-type]
    assert ExtractConfig(levels=["word", "word"]).levels == (Level.WORD,)  # type: ignore[arg-type]
    assert ExtractConfig(combine="mean,none").combine == (Combine.NONE, Combine.MEAN)  # type: ignore[arg-type]
    kept = ExtractConfig(keep_columns="b, a,b", levels=("sentence",))  # type: ignore[arg-type]
    assert kept.keep_columns == ("b", "a")
    for name in ("levels", "combine"):
        with pytest.raises(ConfigError, match=f"`{name}` is empty"):
            ExtractConfig.from_dict({name: ""})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("keep_columns", [3], "3 is not text"),
        ("levels", None, "None is not text"),
        ("combine", 3, "3 is not text"),
        ("text_column", None, "None is not text"),
        ("model", Path("m"), r"PosixPath\('m'\) is not text"),
        ("device", 0, "0 is not text"),
        ("no_header", "no", "'no' is not True or False"),
        ("shard_bytes", None, "None is not a whole number"),
    ],
)
def test_a_value_of_another_type_is_named(name: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^`{name}` {said}$"):
        ExtractConfig.from_dict({name: value})


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1, "-1"), ([0, -1], "0,-1"), ((4,), "4"), ("0, 4..6", "0,4..6"), ("last4", "last4"), ("all,-3..0", "all,-3..0")],
)
def test_layers_become_text(value: object, text: str) -> None:
    assert ExtractConfig.from_dict({"layers": value}).layers == text


@pytest.mark.parametrize(
    ("together", "said"),
    [
        ({"text_pair_column": "b", "text_pairs": True}, "`text_pairs`"),
        ({"is_split_into_words": True, "text_pair_column": "b"}, "`is_split_into_words`"),
        ({"is_split_into_words": True, "text_pairs": True}, "`is_split_into_words`"),
        ({"document_context": True, "include_special_tokens": True}, "`include_special_tokens`"),
        ({"document_context": True, "text_pair_column": "b"}, "`document_context`"),
        ({"document_context": True, "levels": "sentence", "pooling": "cls"}, "`pooling='cls'`"),
        ({"document_context": True, "levels": "sentence", "pooling": "pooler"}, "`pooling='pooler'`"),
        ({"document_context": True, "levels": "sentence", "pooling": "lasttoken"}, "`pooling='lasttoken'`"),
        ({"document_context": True, "prompt": "query: "}, "`prompt` cannot be used with `document_context`"),
        ({"prompt": "query: ", "prompt_name": "query"}, "`prompt` and `prompt_name`"),
        ({"pooling": "model", "levels": "sentence", "include_special_tokens": True}, "drop `include_special_tokens`"),
        ({"keep_columns": "a"}, "`keep_columns` would not be stored without the sentence level; add that to `levels`"),
        ({"label_column": "a"}, "`label_column` would not be stored without the word level; add that to `levels`"),
    ],
)
def test_settings_that_contradict_each_other(together: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ExtractConfig.from_dict(together)


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
