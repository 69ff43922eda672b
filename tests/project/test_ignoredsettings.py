"""Settings that have no effect beside others: a warning names each once, and the run is as without it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import bertfeat
from bertfeat.config import ExtractConfig, flag
from bertfeat.errors import BertfeatWarning
from tests.support.command_line import run_cli

pytestmark = pytest.mark.promise("without-effect")

_SENTENCE: dict[str, Any] = {"levels": "sentence"}
_OF_MODEL: dict[str, Any] = {**_SENTENCE, "pooling": "model"}
# The other settings, the one that has no effect beside them, the reason, and what gives it an effect.
CASES: list[tuple[dict[str, Any], str, object, str, dict[str, Any]]] = [
    ({"levels": "token,sentence"}, "word_pooling", "mean", "without the word level", {"levels": "word"}),
    ({"levels": "sentence"}, "unknown_words", "zero", "without the word level", {"levels": "word"}),
    ({"levels": "word"}, "pooling", "max", "without the sentence level", _SENTENCE),
    ({"levels": "word"}, "pooling", "model", "without the sentence level", _SENTENCE),
    ({}, "include_special_tokens", True, "without the sentence level", _SENTENCE),
    ({**_SENTENCE, "pooling": "cls"}, "include_special_tokens", True, "takes one token", {"pooling": "max"}),
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


def _warned(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(issubclass(warning.category, BertfeatWarning) for warning in caught)
    assert {Path(warning.filename) for warning in caught} <= {Path(__file__)}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(("others", "name", "value", "said", "mended"), CASES)
def test_a_setting_without_effect_is_warned_of_and_takes_its_default(others, name, value, said, mended):
    found = []
    texts = _warned(lambda: found.append(ExtractConfig.of(None, {**others, name: value})))
    assert [text.partition("=")[0] for text in texts] == [f"`{name}"]
    assert found == [ExtractConfig(**others).effective()]
    # Nothing is said where it has an effect, where it is the default, nor of a config that is built again.
    usual = {name: getattr(ExtractConfig(**others), name)}
    for quiet in ({**others, **mended, name: value}, {**others, **usual}, found[0].to_dict()):
        assert _warned(lambda quiet=quiet: ExtractConfig.of(None, quiet)) == []


@pytest.mark.parametrize(("others", "name", "value", "said", "mended"), CASES)
def test_the_command_line_shows_flags(others, name, value, said, mended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Without a corpus the run ends soon after.
    code, _, err = run_cli("extract", "a.txt", "-o", "out", *_flags({**others, name: value}))
    shown = flag(name) if value is True else f"{flag(name)} {value}"
    assert code == 2
    assert err[0].startswith(f"bertfeat: warning: {shown} has no effect ")
    assert said in err[0]
    assert len(err) == 2


def test_an_extraction_warns_once_and_is_the_one_without_the_setting(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("One.\n")
    asked = ["a.txt", "--model", str(tiny_folder), "--level", "word", "--layers=-1", "--json"]
    code, out, err = run_cli(
        "extract", *asked, "-o", "s", "--pooling", "max", "--stride", "4", "--on-overlong=truncate"
    )
    told = json.loads(out)["warnings"]
    assert (code, err) == (0, [f"bertfeat: warning: {text}" for text in told])
    assert [text.partition(" has")[0] for text in told] == ["--pooling max", "--stride 4"]
    # The same store, and an append to it, whose settings are those of the store.
    for more in (["--on-overlong=truncate"], ["--append"]):
        (tmp_path / "a.txt").write_text("One.\n" if more != ["--append"] else "Two.\n")
        code, out, err = run_cli("extract", *asked, "-o", "s", *more)
        assert (code, err, json.loads(out)["warnings"]) == (0, [], [])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"pooling": "pooler", "layers": "0,1", "combine": "sum"}, ["layers='0,1'", "combine='sum'"]),
        ({"pooling": "cls", "include_special_tokens": True}, ["include_special_tokens=True"]),
        ({"on_overlong": "truncate", "stride": 4}, ["stride=4"]),
    ],
)
def test_texts_in_memory(settings, named, minilm_folder):
    model = str(minilm_folder)
    vectors = []
    texts = _warned(lambda: vectors.append(bertfeat.embed(["One."], model, **settings)))
    assert [text.partition("`")[2].partition("`")[0] for text in texts] == named
    # An encoder gives tokens and words too, for which most of these have an effect.
    of_all_levels = [one for one in named if one.startswith(("stride", "include"))]
    texts = _warned(lambda: vectors.append(bertfeat.Encoder(model, **settings).encode(["One."])))
    assert [text.partition("`")[2].partition("`")[0] for text in texts] == of_all_levels
    assert (vectors[0] == vectors[1]).all()
