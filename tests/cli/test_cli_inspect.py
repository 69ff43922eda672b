"""`bertfeat inspect` of a model, a store, a probe, a sweep and an index, and of what is none of these."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers")

import bertfeat as bertfeat_package
from bertfeat.heads.folder import DOCUMENT
from bertfeat.probes.sweep import read_sweep
from bertfeat.store.layout import MANIFESTS, PRIVATE
from tests.support.command_line import good
from tests.support.command_line import refused as refused_line
from tests.support.index_stores import documents, tiny_store
from tests.support.sentence_models import save_sentence_model


@pytest.fixture(scope="module")
def saved(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: dict[str, Any] = {"modes": ("cls", "mean"), "dense": [{"out_features": 8}], "max_length": 40}
    made |= {"prompts": {"query": "ask: ", "passage": "text: "}, "default_prompt_name": "passage"}
    return save_sentence_model(tiny_folder, tmp_path_factory.mktemp("saved") / "model", **made)


def refused(what: str | Path) -> str:
    return refused_line("inspect", what)


def test_a_model_by_name() -> None:
    found = good("inspect", "minilm", "--json").json
    expected = {"family": "bert", "n_layers": 6, "hidden_size": 384, "n_parameters": 22713728}
    assert found | expected == found
    assert (found["max_length"], found["embedding"]["tuned_length"]) == (512, 256)
    assert found["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert found["flags"] == "--level sentence --pooling model"
    shown = good("inspect", "minilm").out
    assert {"22,713,728", found["weights_sha256"], "model"} <= set(shown.split())


def test_a_model_folder_with_prompts_and_a_dense_layer(saved: Path) -> None:
    assert "--level sentence --pooling model --prompt-name passage" in good("inspect", saved).out
    found = good("inspect", saved, "--json").json
    assert found["embedding"] | {"sha256": None} == {
        "description": "first token and mean joined, then a dense layer (64 to 8, tanh)",
        "dim": 8,
        "modes": ["cls", "mean"],
        "include_prompt": True,
        "tuned_length": 40,
        "sha256": None,
    }
    assert (found["max_length"], found["n_layers"], found["hidden_size"]) == (64, 3, 32)
    assert found["default_prompt_name"] == "passage"
    assert found["prompts"] == {"document": "", "passage": "text: ", "query": "ask: "}


def test_a_model_without_an_embedding_of_its_own_or_with_one_that_is_not_supported(
    tiny_folder: Path, saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "model"))
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "custom_st.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    for model, problem in ((tiny_folder, "modules.json"), (folder, "'custom_st.Dense'")):
        found = good("inspect", model, "--json").json
        assert (found["embedding"], "--pooling mean" in found["flags"]) == (None, True)
        assert problem in found["embedding_problem"]


def test_things_that_are_neither(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").touch()
    shutil.copytree(saved, "model")
    Path("model/model.safetensors").unlink()
    for what in ("folder", "file", "./nothing", "owner/nothing", "x" * 5000, "model"):
        assert what in refused(what)
    # An installed model package has its name, whatever folder is there.
    Path("minilm").mkdir()
    assert good("inspect", "minilm", "--json").json["family"] == "bert"


@pytest.fixture(scope="module")
def things(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, and a probe, a sweep and an index of it."""
    folder = tmp_path_factory.mktemp("things") / "made"
    store = tiny_store(folder, tiny_folder, documents(12), levels="sentence,word")
    fitted = bertfeat_package.fit_probe(store, "label", level="sentence", head="centroid", dev=store)
    fitted.save(folder / "probe")
    bertfeat_package.sweep_probes(store, "label", level="sentence", head="centroid", dev=store).write(folder / "sweep")
    bertfeat_package.build_index(store, folder / "index", level="sentence", threads=1).close()
    return folder


def test_a_probe(things: Path) -> None:
    found = good("inspect", things / "probe", "--json").json
    fitted = bertfeat_package.load_probe(things / "probe")
    summary = json.loads(json.dumps(fitted.summary()))
    assert found == {
        "kind": "probe",
        "probe": str(things / "probe"),
        **summary,
        "n_bytes": (things / "probe" / "weights.safetensors").stat().st_size,
        "warnings": [],
    }
    shown = good("inspect", things / "probe").out
    for words in ("centroid", "layer_03", "sentence", fitted.spec.weights_sha256, "accuracy", "bertfeat"):
        assert words in shown


def test_a_sweep(things: Path) -> None:
    found = good("inspect", things / "sweep", "--json").json
    written = json.loads((things / "sweep" / "result.json").read_text())
    assert written.pop("check")
    assert found == {"kind": "sweep", "sweep": str(things / "sweep"), **written, "warnings": []}
    out = good("inspect", things / "sweep").out
    assert read_sweep(things / "sweep").table() in out
    assert out.splitlines()[-1].startswith(f"best {found['best']}, accuracy ")


def test_an_index(things: Path) -> None:
    found = good("inspect", things / "index", "--json").json
    assert (found["n_vectors"], found["level"], found["feature"]) == (28, "sentence", "layer_03")
    assert set(found["files"]) == {"index.faiss", "rows.parquet"}
    shown = good("inspect", things / "index").out
    for words in ("Flat", "cosine", found["store"], "4.0 GB"):
        assert words in shown


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("probe score made/store made/probe", "store: is a store, not a probe: it has no probe.json"),
        ("probe predict made/probe made/index -o p.parquet", "index: is an index, not a bertfeat store"),
        ("verify made/probe", "probe: is a probe, not a bertfeat store"),
        ("compact made/index", "index: is an index, not a bertfeat store"),
        ("search made/store text", "store: is a store, not an index"),
        ("inspect made/corpus.jsonl", "corpus.jsonl"),
        ("inspect nothing", "hub"),
        ("inspect made/no/thing", "made/no/thing"),
        ("export made/store --to tensorboard -o t", "projector"),
        ("probe fit made/store --level sentence --label doc_id -o p", "'doc_id' has a different value in each row"),
    ],
)
def test_one_thing_for_another(command: str, said: str, things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(things.parent)
    assert said in refused_line(*command.split())


def test_an_unfinished_store(things: Path, tmp_path: Path) -> None:
    shutil.copytree(things / "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / MANIFESTS)
    next((tmp_path / "store" / PRIVATE).glob("work/*/00000.json")).unlink()
    found = good("inspect", tmp_path / "store", "--json").json
    assert (found["complete"], found["n_shards"], found["n_shards_planned"]) == (False, 0, 1)
    shutil.rmtree(tmp_path / "store" / PRIVATE)
    assert "a folder with sentence, word" in refused(tmp_path / "store")


def test_a_damaged_probe_is_one_line(things: Path, tmp_path: Path) -> None:
    shutil.copytree(things / "probe", tmp_path / "probe")
    path = tmp_path / "probe" / DOCUMENT
    path.write_text(path.read_text().replace("centroid", "centroidd", 1))
    assert "probe.json: damaged or edited: its bytes do not match" in refused(tmp_path / "probe")
