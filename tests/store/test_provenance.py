"""Provenance of a feature: compared field by field, and used to extract again."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from bertfeat.choices import Combine, Level
from bertfeat.config import ExtractConfig
from bertfeat.errors import UserError
from bertfeat.store.provenance import FeatureSpec
from tests.support.probe_stores import numbered, word_frame, write_fake


def store_of(folder, name="features", *, combine="concat", **metadata):
    sentences = pl.DataFrame({"doc_id": [0, 1], "text": ["a b", "a b c"]})
    shard = {Level.WORD: word_frame(0, [2, 3], lambda doc, n: "x"), Level.SENTENCE: sentences}
    return write_fake(folder / name, [shard], numbered, combine=combine, **metadata)


def test_each_level_keeps_its_own_settings(tmp_path):
    store = store_of(tmp_path, word_pooling="last", pooling="max", include_special_tokens=True)
    word = FeatureSpec.of(store, "word", "concat_last4")
    assert (word.level, word.layers, word.combine, word.dim) == (Level.WORD, (3, 4, 5, 6), "concat", 16)
    assert (word.pooling, word.include_special_tokens) == ("last", None)
    sentence = FeatureSpec.of(store, "sentence", "layer_05")
    assert (sentence.layers, sentence.combine, sentence.dim) == ((5,), "none", 4)
    assert (sentence.pooling, sentence.include_special_tokens) == ("max", True)


@pytest.mark.parametrize(
    ("metadata", "mine", "theirs"),
    [
        (
            {"weights_sha256": "c" * 64, "model": "other"},
            "model 'tiny', model weights aaaaaaaaaaaa…",
            "model 'other', model weights cccccccccccc…",
        ),
        ({"weights_sha256": "c" * 64}, "model weights aaaaaaaaaaaa…", "model weights cccccccccccc…"),
        ({"tokenizer_sha256": "d" * 64}, "tokenizer bbbbbbbbbbbb…", "tokenizer dddddddddddd…"),
        ({"config_sha256": "e" * 64}, "config.json of the model cccc", "config.json of the model eeee"),
        ({"word_pooling": "mean"}, "pooling 'first'", "pooling 'mean'"),
        ({"document_context": True}, "document-context False", "document-context True"),
    ],
)
def test_settings_that_change_the_meaning_are_refused_with_both_values(tmp_path, metadata, mine, theirs):
    spec = FeatureSpec.of(store_of(tmp_path, config_sha256="c" * 64), "word", "concat_last4")
    other = store_of(tmp_path, "others", **{"config_sha256": "c" * 64, **metadata})
    with pytest.raises(UserError, match=rf"probe ner has {mine}.*; store others has {theirs}.*; extract with the set"):
        spec.find_in(other, mine="probe ner")


def test_lengths_types_and_other_levels_may_differ(tmp_path):
    spec = FeatureSpec.of(store_of(tmp_path), "word", "concat_last4")
    metadata = {"model": "another name of it", "max_length": 16, "stride": 2, "on_overlong": "truncate"}
    metadata |= {"store_dtype": "float16", "compute_dtype": "bfloat16", "pooling": "max"}
    assert spec.find_in(store_of(tmp_path, "others", **metadata), mine="probe ner").layers == spec.layers


def test_another_level_or_feature_is_named(tmp_path):
    store = store_of(tmp_path, combine="none")
    spec = FeatureSpec.of(store, "word", "layer_03")
    with pytest.raises(UserError, match=r"a has layers \[3\]; b has layers \[4\]"):
        spec.require_same(FeatureSpec.of(store, "word", "layer_04"), mine="a", theirs="b")
    below = dataclasses.replace(spec, feature="layer_02", layers=(2,))
    with pytest.raises(UserError, match=r"has layers \[2\], feature 'layer_02'; .* has layers \[3, 4, 5, 6\], f"):
        below.find_in(store, mine="probe ner")
    token = dataclasses.replace(spec, level=Level.TOKEN)
    with pytest.raises(UserError, match="probe ner works at level token, store features holds word, sentence"):
        token.find_in(store, mine="probe ner")


def test_the_settings_extract_the_feature_alone(tmp_path):
    store = store_of(tmp_path, word_pooling="last", max_length=20, stride=3, on_overlong="truncate")
    config = FeatureSpec.of(store, "word", "concat_last4").extract_config(text_column="body", device="cpu")
    wanted = {"model": "tiny", "prompt": "", "levels": "word", "layers": "3,4,5,6", "combine": "concat"}
    wanted |= {"word_pooling": "last", "max_length": 20, "on_overlong": "truncate", "store_dtype": "float32"}
    assert config == ExtractConfig(**wanted, compute_dtype="float32", text_column="body", device="cpu")
    # A sum of rounded layers is made of rounded layers again.
    assert FeatureSpec.of(store, "word", "mean_last4").extract_config().combine == (Combine.NONE,)
