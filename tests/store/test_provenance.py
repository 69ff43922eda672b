"""Provenance of a feature: compared field by field, and used to extract again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest

from bertfeat.choices import Combine, Level
from bertfeat.config import ExtractConfig
from bertfeat.errors import UserError
from bertfeat.records import ModelInfo
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from tests.support.probe_stores import numbered, word_frame, write_fake


def store_of(folder: Path, name: str = "features", *, combine: str = "concat", **metadata: object) -> Store:
    shard = {Level.WORD: word_frame(0, [2, 3], lambda doc, n: "x"), Level.SENTENCE: sentences()}
    return write_fake(folder / name, [shard], numbered, combine=combine, **metadata)


def sentences() -> pl.DataFrame:
    return pl.DataFrame({"doc_id": [0, 1], "text": ["a b", "a b c"]})


class TestDescription:
    def test_each_level_keeps_its_own_settings(self, tmp_path: Path) -> None:
        store = store_of(tmp_path, word_pooling="last", pooling="max", include_special_tokens=True)
        word = FeatureSpec.of(store, "word", "concat_last4")
        assert (word.level, word.layers, word.combine, word.dim) == (Level.WORD, (3, 4, 5, 6), "concat", 16)
        assert (word.pooling, word.include_special_tokens) == ("last", None)
        sentence = FeatureSpec.of(store, "sentence", "layer_05")
        assert (sentence.layers, sentence.combine, sentence.dim) == ((5,), "none", 4)
        assert (sentence.pooling, sentence.include_special_tokens) == ("max", True)
        for name in ("no_level", "word"):
            with pytest.raises(UserError, match=r"no level 'no_level'|no feature 'layer_09'"):
                FeatureSpec.of(store, name, "layer_09")


class TestComparison:
    @pytest.mark.parametrize(
        ("metadata", "sides"),
        [
            ({"weights_sha256": "c" * 64}, ("model weights aaaaaaaaaaaa…", "model weights cccccccccccc…")),
            (
                {"weights_sha256": "c" * 64, "model": "other"},
                ("model 'tiny', model weights aaaaaaaaaaaa…", "model 'other', model weights cccccccccccc…"),
            ),
            ({"tokenizer_sha256": "d" * 64}, ("tokenizer bbbbbbbbbbbb…", "tokenizer dddddddddddd…")),
            (
                {"config_sha256": "e" * 64},
                ("config.json of the model cccccccccccc…", "config.json of the model eeeeeeeeeeee…"),
            ),
            ({"word_pooling": "mean"}, ("pooling 'first'", "pooling 'mean'")),
            ({"document_context": True}, ("document-context False", "document-context True")),
        ],
    )
    def test_settings_that_change_the_meaning_are_refused_with_both_values(
        self, tmp_path: Path, metadata: dict, sides: tuple[str, str]
    ) -> None:
        spec = FeatureSpec.of(store_of(tmp_path, config_sha256="c" * 64), "word", "concat_last4")
        other = store_of(tmp_path, "others", **{"config_sha256": "c" * 64, **metadata})
        with pytest.raises(UserError) as found:
            spec.find_in(other, mine="probe ner")
        assert str(found.value) == (
            f"probe ner and store others hold different features: probe ner has {sides[0]}; store others has "
            f"{sides[1]}; extract with the settings of probe ner, which bertfeat inspect shows"
        )

    @pytest.mark.parametrize(
        "metadata",
        [
            {"model": "another name of it"},
            {"max_length": 16},
            {"stride": 2},
            {"on_overlong": "truncate"},
            {"store_dtype": "float16"},
            {"compute_dtype": "bfloat16"},
            {"pooling": "max"},
        ],
    )
    def test_lengths_types_and_other_levels_may_differ(self, tmp_path: Path, metadata: dict) -> None:
        spec = FeatureSpec.of(store_of(tmp_path), "word", "concat_last4")
        assert spec.find_in(store_of(tmp_path, "others", **metadata), mine="probe ner").layers == spec.layers

    def test_another_level_or_feature_is_named(self, tmp_path: Path) -> None:
        store = store_of(tmp_path, combine="none")
        spec = FeatureSpec.of(store, "word", "layer_03")
        with pytest.raises(UserError, match="a has level 'word', pooling 'first'"):
            spec.require_same(FeatureSpec.of(store, "sentence", "layer_03"), mine="a", theirs="b")
        with pytest.raises(UserError, match=r"a has layers \[3\]; b has layers \[4\]"):
            spec.require_same(FeatureSpec.of(store, "word", "layer_04"), mine="a", theirs="b")
        below = dataclasses.replace(spec, feature="layer_02", layers=(2,))
        with pytest.raises(UserError, match=r"has layers \[2\], feature 'layer_02'; .* has layers \[3, 4, 5, 6\], f"):
            below.find_in(store, mine="probe ner")
        token = dataclasses.replace(spec, level=Level.TOKEN)
        with pytest.raises(UserError, match="probe ner works at level token, store features holds word, sentence"):
            token.find_in(store, mine="probe ner")

    def test_another_model_is_refused(self, tmp_path: Path) -> None:
        spec = FeatureSpec.of(store_of(tmp_path), "word", "layer_03")
        info = ModelInfo("tiny", None, "bert", "a" * 64, "b" * 64, 6, 4, 32)
        spec = dataclasses.replace(spec, config_sha256="c" * 64)
        spec.require_model(info, "c" * 64, None, mine="probe ner")
        with pytest.raises(UserError, match=r"ner has model weights aaaaaaaaaaaa…; model tiny has model weights f"):
            spec.require_model(dataclasses.replace(info, weights_sha256="f" * 64), "c" * 64, None, mine="probe ner")
        with pytest.raises(UserError, match=r"has config.json of the model cccccccccccc…; model tiny has config.json"):
            spec.require_model(info, "d" * 64, None, mine="probe ner")


class TestSettings:
    def test_the_settings_extract_the_feature_alone(self, tmp_path: Path) -> None:
        store = store_of(tmp_path, word_pooling="last", max_length=20, stride=3, on_overlong="truncate")
        config = FeatureSpec.of(store, "word", "concat_last4").extract_config(text_column="body", device="cpu")
        assert config == ExtractConfig(
            model="tiny",
            prompt="",
            levels="word",
            layers="3,4,5,6",
            combine="concat",
            word_pooling="last",
            max_length=20,
            on_overlong="truncate",
            store_dtype="float32",
            compute_dtype="float32",
            text_column="body",
            device="cpu",
        )

    def test_a_sum_of_rounded_layers_is_made_of_rounded_layers_again(self, tmp_path: Path) -> None:
        store = store_of(tmp_path)
        assert FeatureSpec.of(store, "word", "mean_last4").extract_config().combine == (Combine.NONE,)
        sentence = FeatureSpec.of(store, "sentence", "layer_05").extract_config()
        assert (sentence.combine, sentence.layers, sentence.pooling) == ((Combine.NONE,), "5", "mean")
