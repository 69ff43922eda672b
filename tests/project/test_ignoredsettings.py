"""Settings that have no effect beside others: each is refused in one line, and defaults are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sklearn.base import clone

import bertfeat
from bertfeat.config import ExtractConfig, flag
from bertfeat.errors import ConfigError
from bertfeat.extraction.textencoder import memory_config
from bertfeat.ignoredsettings import ignored_settings
from tests.support.cli_runs import run_cli

_SENTENCE: dict[str, Any] = {"levels": "sentence"}
_OF_MODEL: dict[str, Any] = {**_SENTENCE, "pooling": "model"}
# The other settings, the one that they ignore, what says so, and what gives it an effect.
CASES: list[tuple[dict[str, Any], str, object, str, dict[str, Any]]] = [
    ({"levels": "token,sentence"}, "word_pooling", "mean", "without the word level", {"levels": "word"}),
    ({"levels": "sentence"}, "unknown_words", "zero", "without the word level", {"levels": "word"}),
    ({}, "label_column", "3", "without the word level", {"levels": "token,word"}),
    ({"levels": "word"}, "pooling", "max", "without the sentence level", _SENTENCE),
    ({"levels": "word"}, "pooling", "model", "without the sentence level", _SENTENCE),
    ({}, "include_special_tokens", True, "without the sentence level", _SENTENCE),
    ({}, "keep_columns", "a,b", "without the sentence level", _SENTENCE),
    ({**_SENTENCE, "pooling": "cls"}, "include_special_tokens", True, "takes one token", {"pooling": "max"}),
    ({**_SENTENCE, "pooling": "pooler"}, "include_special_tokens", True, "takes one token", {"pooling": "mean"}),
    ({**_SENTENCE, "pooling": "lasttoken"}, "include_special_tokens", True, "one token", {"pooling": "weightedmean"}),
    (_OF_MODEL, "layers", "0,1", "reads the last layer", {"pooling": "mean"}),
    (_OF_MODEL, "combine", "sum,mean", "gives one vector", {"levels": "word,sentence"}),
    ({**_SENTENCE, "pooling": "pooler"}, "layers", "0..3", "reads the last layer", {"levels": "token,sentence"}),
    ({}, "document_column", "d", "without --document-context; pass both or neither", {"document_context": True}),
    ({"on_overlong": "truncate"}, "stride", 4, "no text has two windows", {"on_overlong": "window"}),
    ({"on_overlong": "error"}, "stride", 0, "no text has two windows", {"document_context": True}),
    ({}, "cache_size", 2_000_000, "without --cache; add it", {"cache": "folder"}),
    ({}, "ray_address", "auto", "without --runner ray; add it", {"runner": "ray"}),
]


def _flags(settings: dict[str, Any]) -> list[str]:
    return [part for name, value in settings.items() for part in (flag(name), *([] if value is True else [str(value)]))]


@pytest.mark.parametrize(("others", "name", "value", "said", "mended"), CASES)
def test_a_setting_without_effect_is_refused_by_name(others, name, value, said, mended, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=f"^`{name}="):
        ExtractConfig(**{**others, name: value})
    assert ExtractConfig(**{**others, **mended, name: value})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("One.\n")
    code, out, err = run_cli("extract", "a.txt", "-o", "out", *_flags({**others, name: value}))
    assert (code, out, len(err)) == (2, "", 1)
    shown = flag(name) if value is True else f"{flag(name)} {value}"
    assert f"{shown} has no effect" in err[0]
    assert said in err[0]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("others", "name", "value"),
    [
        ({"levels": "token"}, "word_pooling", "first"),
        ({"levels": "word"}, "pooling", "mean"),
        (_OF_MODEL, "layers", "last4"),
        (_OF_MODEL, "combine", "none,concat"),
        ({}, "cache_size", 10_000_000_000),
    ],
)
def test_a_default_is_refused_where_it_is_given(others, name, value, tmp_path):
    """Who writes it expects it to do something; `mean` at the word level is the pooling of words for many."""
    assert ExtractConfig(**{**others, name: value}) == ExtractConfig(**others)
    with pytest.raises(ConfigError, match=f"^`{name}=.* has no effect"):
        bertfeat.extract(tmp_path / "a.txt", tmp_path / "out", **{**others, name: value})
    code, _, err = run_cli("extract", "a.txt", "-o", "out", *_flags({**others, name: value}))
    assert code == 2
    assert f"{flag(name)} {value} has no effect" in err[0]


@pytest.mark.parametrize("others", [case[0] for case in CASES])
def test_defaults_are_not_refused(others):
    config = ExtractConfig(**others)
    assert dataclasses.replace(config, workers=2).workers == 2
    assert ExtractConfig.from_dict(config.to_dict()) == config
    assert ExtractConfig(**_OF_MODEL, layers=-1).layers == "-1"
    # None, False and empty values ask for nothing.
    empty = {"document_column": None, "include_special_tokens": False, "keep_columns": [], "stride": None}
    assert ExtractConfig.of(None, {**others, **empty}) == config


def test_every_setting_is_in_the_table_or_has_an_effect_beside_all_others():
    """A new setting has to be put into the table, or into this list."""
    with_effect = {
        *("format", "text_column", "text_pair_column", "text_pairs", "id_column", "is_split_into_words", "no_header"),
        *("delimiter", "limit", "bad_rows", "model", "revision", "random_weights", "levels", "prompt", "prompt_name"),
        *("max_length", "on_overlong", "document_context", "store_dtype", "vector_encoding", "compute_dtype"),
        *("max_batch_tokens", "shard_bytes", "device", "workers", "runner", "cache"),
    }
    in_table = {name for others, *_ in CASES for name in ignored_settings(ExtractConfig(**others))}
    assert with_effect.isdisjoint(in_table)
    assert with_effect | in_table == {field.name for field in dataclasses.fields(ExtractConfig)}


def test_recorded_and_derived_values_take_their_defaults():
    recorded = {"levels": "word", "pooling": "max", "word_pooling": "mean", "on_overlong": "truncate", "stride": 8}
    settled = ExtractConfig.settled({**recorded, "layers": iter([1, 2])})
    assert (settled.pooling, settled.word_pooling, settled.stride, settled.layers) == ("mean", "mean", None, "1,2")
    with pytest.raises(ConfigError, match="`pooling='max'` has no effect"):
        ExtractConfig.settled(recorded, ["pooling"])
    with pytest.raises(ConfigError, match="no setting 'pool'"):
        ExtractConfig.settled({"pool": 1})
    config = ExtractConfig(levels="word,sentence", word_pooling="mean", pooling="max")
    assert config.adapted(levels="sentence") == ExtractConfig(levels="sentence", pooling="max")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"word_pooling": "mean"}, "`word_pooling='mean'` has no effect without the word level"),
        ({"word_pooling": "first"}, "`word_pooling='first'` has no effect without the word level"),
        ({"unknown_words": "zero"}, "`unknown_words='zero'` has no effect without the word level"),
        ({"pooling": "model", "layers": [0, 1]}, "`layers='0,1'` has no effect"),
        ({"pooling": "pooler", "combine": "sum"}, "`combine='sum'` has no effect"),
        ({"pooling": "cls", "include_special_tokens": True}, "`include_special_tokens=True` has no effect"),
        ({"on_overlong": "truncate", "stride": 4}, "`stride=4` has no effect"),
    ],
)
def test_texts_in_memory(settings, said):
    with pytest.raises(ConfigError, match=said):
        bertfeat.embed(["One."], **settings)


def test_an_encoder_of_all_levels_ignores_none_of_their_settings():
    config = memory_config({"layers": -1, "combine": "concat", "word_pooling": "mean", "pooling": "model"})
    assert (config.word_pooling, config.layers) == ("mean", "-1")


def test_an_estimator_accepts_what_a_search_of_its_parameters_combines(tiny_folder):
    plain = bertfeat.BertFeatures(str(tiny_folder), pooling="pooler", on_overlong="truncate")
    features = clone(plain).set_params(layers=[0, 1], stride=4)
    assert (features.fit_transform(["One."]) == plain.fit_transform(["One."])).all()
