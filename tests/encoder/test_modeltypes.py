"""Every model type of transformers is supported, refused with a reason, or not a model of text."""

from __future__ import annotations

from collections import Counter

import pytest
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from bertfeat.encoder.families import families
from bertfeat.encoder.modeltypes import refusal_of, refused_types, types_without_text
from tests.support.places import ROOT

SUPPORTED = [family.model_type for family in families()]
REFUSED = [model_type for _, types in refused_types() for model_type in types]


COUNTS = Counter([*SUPPORTED, *REFUSED, *types_without_text()])


def test_no_type_has_two_places() -> None:
    assert [model_type for model_type, n in COUNTS.items() if n > 1] == []


def test_every_type_of_the_pinned_transformers_has_a_place() -> None:
    if f"transformers=={transformers.__version__}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("the lists are those of the transformers in constraints.txt")
    missing = sorted(set(CONFIG_MAPPING_NAMES) - set(COUNTS))
    assert not missing, (
        f"transformers has new model types: {', '.join(missing)}. Give each a row in a table of families "
        "(docs/extending.md), or add its name in bertfeat/encoder/modeltypes.py to a reason for its refusal, or to "
        "those that are not models of text"
    )
    gone = sorted(set(COUNTS) - set(CONFIG_MAPPING_NAMES))
    assert not gone, f"transformers has no model types {', '.join(gone)} any more; remove them from bertfeat/encoder/"


def test_the_names_are_what_transformers_maps() -> None:
    assert "bert" in CONFIG_MAPPING
    assert all(family.model_type in CONFIG_MAPPING for family in families())


def test_each_refusal_has_a_reason_and_supported_types_have_none() -> None:
    assert all(refusal_of(model_type) for model_type in (*REFUSED, *types_without_text(), "new"))
    assert not any(refusal_of(model_type) for model_type in (*SUPPORTED, "no_such"))
    assert len({reason for reason, _ in refused_types()}) == len(refused_types())


def test_the_text_model_inside_is_named_where_it_is_supported() -> None:
    assert str(refusal_of("gemma3")).endswith("alone, of the type 'gemma3_text'")
    assert str(refusal_of("llava", "qwen2")).endswith("alone, of the type 'qwen2'")
    assert str(refusal_of("llava", ["qwen2"])).endswith("alone, where its type is supported")
    assert str(refusal_of("mamba", "qwen2")).endswith("in place of attention")
