"""A store goes on under the plan that it was begun with, and under no other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import bertfeat
from bertfeat.errors import PlanMismatch
from bertfeat.extraction.deepcheck import recheck
from bertfeat.extraction.run import extract
from tests.support.cli_runs import three_shards
from tests.support.drill import result_files, write_corpus
from tests.support.families import build_model

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model("bert", tmp_path_factory.mktemp("model") / "bert", num_hidden_layers=2)


@pytest.fixture
def settings(tmp_path, model) -> dict[str, Any]:
    return three_shards(tmp_path, model)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"layers": "0"}, "layers"),
    "combine": ({"combine": "none"}, "combine"),
    "levels": ({"levels": ["word"]}, "levels"),
    "word_pooling": ({"word_pooling": "mean"}, "word_pooling"),
    "pooling": ({"pooling": "max"}, "pooling"),
    "max_length": ({"max_length": 12, "stride": 7}, "max_length"),
    "stride": ({"stride": 2}, "stride"),
    "store_dtype": ({"store_dtype": "float32"}, "store_dtype"),
    "vector_encoding": ({"vector_encoding": "binary"}, "vector_encoding"),
    "compute_dtype": ({"compute_dtype": "bfloat16"}, "compute_dtype"),
    "max_batch_tokens": ({"max_batch_tokens": 64}, "max_batch_tokens"),
    "shard_bytes": ({"shard_bytes": 20_000}, "shard_bytes"),
    "id_column": ({"id_column": None}, "id_column"),
    "on_overlong": ({"on_overlong": "truncate"}, "on_overlong"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("made")
    settings = {
        "inputs": str(write_corpus(folder / "corpus.jsonl", 12)),
        "model": str(shutil.copytree(model, folder / "model")),
        "id_column": "id",
        "levels": ["word", "sentence"],
        "layers": "-1",
        "shard_bytes": 25_000,
    }
    extract(output=folder / "s", **settings)
    return folder, settings


def refused(root: Path, settings: dict[str, Any]) -> set[str]:
    """Try to go on with a store; return the differing fields that the refusal names, and check that it is untouched."""
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in root.rglob("*") if file.is_file()}
    with pytest.raises(PlanMismatch) as got:
        extract(output=root, **settings)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in before} == before
    assert set(root.rglob("*")) >= set(before)
    assert all(name in str(got.value) for name in got.value.fields)
    return set(got.value.fields)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_refused_and_named(made, name):
    folder, settings = made
    change, field = CHANGES[name]
    assert refused(folder / "s", settings | change) == {field}


def test_a_changed_byte_of_input_weights_or_tokenizer_is_refused_and_named(made, tmp_path):
    folder, settings = made
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(Path(settings["inputs"]).read_text().replace("the", "thE", 1))
    assert refused(folder / "s", settings | {"inputs": str(corpus)}) == {"input.0.digest"}
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "fine"}\n')
    fields = {"n_inputs", "input.1.digest", "input.1.format"}
    assert refused(folder / "s", settings | {"inputs": [settings["inputs"], str(more)]}) == fields
    model = Path(settings["model"])
    weights = load_file(model / "model.safetensors")
    for file, field in [("model.safetensors", "model.weights_sha256"), ("tokenizer.json", "model.tokenizer_sha256")]:
        kept = (model / file).read_bytes()
        if file == "model.safetensors":
            name = next(name for name in weights if name.endswith("word_embeddings.weight"))
            save_file({**weights, name: weights[name] * 1.001}, model / file, metadata={"format": "pt"})
        else:
            (model / file).write_bytes(
                kept.replace(b'"lowercase":true', b'"lowercase":false').replace(
                    b'"lowercase": true', b'"lowercase": false'
                )
            )
        assert (model / file).read_bytes() != kept
        assert refused(folder / "s", settings) == {field}
        (model / file).write_bytes(kept)


@pytest.mark.parametrize("change", [{"workers": 1}, {"workers": 4}, {"device": "cpu"}])
def test_what_does_not_change_the_bytes_is_accepted(made, change):
    folder, settings = made
    before = result_files(folder / "s")
    extract(output=folder / "s", **settings, **change)
    assert result_files(folder / "s") == before


def test_inputs_and_stores_may_move(made, tmp_path):
    folder, settings = made
    shutil.copytree(folder / "s", tmp_path / "elsewhere")
    moved = shutil.copy(settings["inputs"], tmp_path / "moved.jsonl")
    extract(output=tmp_path / "elsewhere", **settings | {"inputs": moved})
    assert result_files(tmp_path / "elsewhere") == result_files(folder / "s")


def test_a_model_is_what_its_digests_say_under_any_name(made, tmp_path, monkeypatch):
    folder, settings = made
    monkeypatch.chdir(folder)
    spelled = settings | {"model": "./model"}
    extract(output=tmp_path / "s", **spelled)
    whole = result_files(tmp_path / "s")
    assert whole != result_files(folder / "s")
    copied = {"model": str(shutil.copytree(folder / "model", tmp_path / "copied"))}
    for file in [*(tmp_path / "s").rglob("*.json"), *(tmp_path / "s").rglob("*.parquet")]:
        if file.name != "plan.json":
            file.unlink()
    extract(output=tmp_path / "s", **spelled | copied)
    assert result_files(tmp_path / "s") == whole
    assert not recheck(tmp_path / "s").problems
    with bertfeat.build_index(folder / "s", tmp_path / "index", level="word") as index:
        n_vectors = index.n_vectors
    with bertfeat.open_index(tmp_path / "index", store=tmp_path / "s") as index:
        assert index.n_vectors == n_vectors
    bertfeat.build_index(tmp_path / "s", tmp_path / "index", level="word").close()
    (tmp_path / "copied" / "vocab.txt").write_text("another tokenizer")
    assert "model.tokenizer_sha256" in refused(tmp_path / "s", spelled | copied)
