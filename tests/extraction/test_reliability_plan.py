"""A run resumes under the plan that its store was begun with, and under no other plan."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import bertfeat
from bertfeat.config import ExtractConfig
from bertfeat.errors import PlanMismatch, RunError, UserError
from bertfeat.extraction.job import Job, open_inputs, open_job
from bertfeat.extraction.run import ShardTask, extract
from bertfeat.progress import Progress
from tests.support.drill import result_files, three_shards

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


@pytest.fixture(scope="module")
def made(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("made")
    settings = three_shards(folder, shutil.copytree(model, folder / "model")) | {"stride": 7}
    extract(output=folder / "s", **settings)
    return folder, settings


def refused(root: Path, settings: dict[str, Any], said: str) -> set[str]:
    """Try to resume a store; check that it is refused in these words and untouched, and return the differing fields."""
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in root.rglob("*") if file.is_file()}
    with pytest.raises(PlanMismatch) as got:
        extract(output=root, **settings)
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in before} == before
    assert re.search(rf"made with other (settings|inputs): {said}; (use|pass)", str(got.value)), got.value
    return set(got.value.fields)


@pytest.mark.promise("plan")
@pytest.mark.parametrize(
    ("name", "value"),
    {
        "layers": "0",
        "combine": "none,concat",
        "prompt": "query: ",
        "levels": ["word", "span"],
        "pooling": "max",
        "max_length": 12,
        "store_dtype": "float32",
        "compute_dtype": "bfloat16",
        "id_column": None,
        "on_overlong": "truncate",
    }.items(),
)
def test_a_changed_setting_is_refused_and_named(made, name, value):
    folder, settings = made
    # Without windows, a stride has no effect: it is not asked for, and makes no difference.
    changed = {name: value, **({"stride": None} if name == "on_overlong" else {})}
    assert refused(folder / "s", settings | changed, rf"`{name}` was [^;]+, now [^;]+") == {name}


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.promise("plan")
def test_a_changed_byte_of_input_or_model_is_refused_and_named(made, tmp_path):
    folder, settings = made
    corpus, more = settings["inputs"], tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "fine"}\n')
    said = f"the inputs were {corpus}, now {corpus}, {more}; pass the new ones alone with `append`, or"
    with pytest.raises(PlanMismatch, match=said) as got:
        extract(output=folder / "s", **settings | {"inputs": [corpus, str(more)]})
    assert got.value.fields.keys() == {"inputs"}
    digest = "the digest of the model's {} was [0-9a-f]{{12}}…, now [0-9a-f]{{12}}…"
    for name, change, field, said in [
        ("corpus.jsonl", lambda data: data.replace(b"the", b"thE", 1), "inputs", f"{corpus} has changed since .*"),
        ("model/model.safetensors", flip_last, "model.weights_sha256", digest.format("weights")),
        ("model/tokenizer.json", lambda data: data + b"\n", "model.tokenizer_sha256", digest.format("tokenizer")),
        ("model/config.json", lambda data: data.replace(b"gelu", b"relu"), "model.config_sha256", digest.format(".*")),
    ]:
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(change(kept))
        assert refused(folder / "s", settings, said) == {field}
        (folder / name).write_bytes(kept)


@pytest.mark.promise("plan")
def test_what_does_not_change_the_bytes_is_accepted(made, tmp_path):
    folder, settings = made
    before = result_files(folder / "s")
    moved = shutil.copy(settings["inputs"], tmp_path / "moved.jsonl")
    # The shards of a finished store are cut already.
    for change in ({"workers": 4}, {"device": "cpu"}, {"shard_bytes": 1_000_000}, {"inputs": moved}):
        extract(output=folder / "s", **settings | change)
        assert result_files(folder / "s") == before


def change_config(model: str | Path, **values: Any) -> None:
    file = Path(model) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.promise("plan")
def test_a_part_of_the_configuration_that_decides_no_vector_may_change(made, tmp_path):
    folder, settings = made
    copied = settings | {"model": str(shutil.copytree(settings["model"], tmp_path / "model"))}
    change_config(copied["model"], _name_or_path="elsewhere", dtype="bfloat16", use_cache=False, id2label={"0": "yes"})
    assert extract(output=folder / "s", **copied).plan == bertfeat.open_store(folder / "s").plan
    change_config(copied["model"], layer_norm_eps=0.5)
    said = r"`model` was .*; the digest of the model's config\.json was .*"
    assert "model.config_sha256" in refused(folder / "s", copied, said)


def test_a_worker_needs_the_model_of_the_plan(made, tmp_path, monkeypatch):
    """Else vectors of another model would be in the store: a folder may change, or differ on another machine."""
    folder, settings = made
    model = shutil.copytree(folder / "model", tmp_path / "model")
    values = {name: value for name, value in settings.items() if name != "inputs"}
    config = ExtractConfig.from_dict(values | {"model": str(model)})
    with open_inputs(settings["inputs"], tmp_path / "s", config) as files:
        job = open_job(config, files, tmp_path / "s", Progress(), overwrite=False)
        weights = model / "model.safetensors"
        weights.write_bytes(flip_last(weights.read_bytes()))
        with pytest.raises(RunError, match=r"model: not as in .*'s weights was .*; start the run again"):
            ShardTask(job)
        monkeypatch.setattr(Job, "on_cluster", True)
        with pytest.raises(RunError, match=r"'s weights was .*, now .*; install the same on every"):
            ShardTask(job)


@pytest.mark.promise("plan")
def test_texts_are_not_encoded_with_another_configuration_for_a_probe_or_an_index(made, tmp_path):
    folder, settings = made
    settings = settings | {"model": str(shutil.copytree(folder / "model", tmp_path / "model"))}
    store = extract(output=tmp_path / "s", **settings)
    labels = tmp_path / "labels.csv"
    ids = store.polars("sentence", ["doc_id"])["doc_id"]
    labels.write_text("doc_id,label\n" + "".join(f"{name},{number % 2}\n" for number, name in enumerate(ids)))
    probe = bertfeat.fit_probe(store, "label", labels=labels, level="sentence", head="ridge")
    bertfeat.build_index(store, tmp_path / "i", level="sentence", feature=-1)
    said = r"has config\.json of the model [0-9a-f]{12}…; model .* has config\.json of the model [0-9a-f]{12}…; extract"
    with bertfeat.open_index(tmp_path / "i") as index:
        change_config(settings["model"], layer_norm_eps=0.5)
        with pytest.raises(UserError, match=said):
            index.search(["a text"])
    with pytest.raises(UserError, match=said):
        probe.predict(["a text"])
    with pytest.raises(UserError, match=said):
        probe.predict(settings["inputs"], tmp_path / "o.parquet")
    # Rows of the store need no model.
    assert len(probe.predict(store)) == len(ids)
