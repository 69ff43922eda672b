"""`bertfeat inspect` of a model, a store, a probe, a sweep and an index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers")

import bertfeat
from bertfeat.probes.sweep import read_sweep
from bertfeat.store.layout import MANIFESTS, PRIVATE
from tests.support.command_line import good, refused
from tests.support.sentence_models import save_sentence_model


@pytest.fixture(scope="module")
def saved(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: dict[str, Any] = {"modes": ("cls", "mean"), "dense": [{"out_features": 8}], "max_length": 40}
    made |= {"prompts": {"query": "ask: ", "passage": "text: "}, "default_prompt_name": "passage"}
    return save_sentence_model(tiny_folder, tmp_path_factory.mktemp("saved") / "model", **made)


def test_a_model_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An installed model package has its name, whatever folder is there.
    monkeypatch.chdir(tmp_path)
    Path("minilm").mkdir()
    found = good("inspect", "minilm", "--json").json
    expected = {"family": "bert", "n_layers": 6, "hidden_size": 384, "n_parameters": 22713728, "max_length": 512}
    assert found | expected == found
    assert found["embedding"]["tuned_length"] == 256
    assert found["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert found["flags"] == "--level sentence --pooling model"
    assert {"22,713,728", found["weights_sha256"], "model"} <= set(good("inspect", "minilm").out.split())


def test_a_model_folder_with_prompts_and_a_dense_layer_and_flags_that_work(saved: Path, tmp_path: Path) -> None:
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
    (tmp_path / "corpus.txt").write_text("one fox\n")
    good("extract", tmp_path / "corpus.txt", "-o", tmp_path / "out", "--model", saved, *found["flags"].split())
    assert good("inspect", tmp_path / "out", "--json").json["levels"]["sentence"]["features"] == {"embedding": 8}


def test_a_store(place: Path) -> None:
    path = place / "made" / "store"
    summary, shown = good("inspect", path, "--json").json, good("inspect", path).out
    assert all(words in shown for words in ("sentence", "layer_03 32", "tiny", "sha256", "torch "))
    store = bertfeat.open_store(path)
    n_rows = {str(level): store.n_rows(level) for level in store.levels}
    assert {level: info["n_rows"] for level, info in summary["levels"].items()} == n_rows
    assert summary["n_bytes"] == sum(file.stat().st_size for file in path.rglob("*.parquet"))
    assert summary["complete"] is True
    assert {"encode", "read", "tokenize"} <= summary["seconds"].keys()


def test_an_unfinished_store(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "made" / "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / MANIFESTS)
    next((tmp_path / "store" / PRIVATE).glob("work/*/00000.json")).unlink()
    found = good("inspect", tmp_path / "store", "--json").json
    assert (found["complete"], found["n_shards"], found["n_shards_planned"]) == (False, 0, 1)
    shutil.rmtree(tmp_path / "store" / PRIVATE)
    assert "a folder with sentence, word" in refused("inspect", tmp_path / "store")


def test_a_probe(place: Path) -> None:
    probe = place / "made" / "probe"
    found = good("inspect", probe, "--json").json
    summary = json.loads(json.dumps(bertfeat.load_probe(probe).summary()))
    n_bytes = (probe / "weights.safetensors").stat().st_size
    assert found == {"kind": "probe", "probe": str(probe), **summary, "n_bytes": n_bytes, "warnings": []}
    shown = good("inspect", probe).out
    assert all(words in shown for words in ("centroid", "layer_03", "sentence", "accuracy", "bertfeat"))


def test_a_sweep(place: Path) -> None:
    sweep = place / "made" / "sweep"
    found = good("inspect", sweep, "--json").json
    written = json.loads((sweep / "result.json").read_text())
    assert written.pop("check")
    assert found == {"kind": "sweep", "sweep": str(sweep), **written, "warnings": []}
    out = good("inspect", sweep).out
    assert read_sweep(sweep).table() in out
    assert out.splitlines()[-1].startswith(f"best {found['best']}, accuracy ")


def test_an_index(place: Path) -> None:
    found = good("inspect", place / "made" / "index", "--json").json
    assert (found["n_vectors"], found["level"], found["feature"]) == (28, "sentence", "layer_03")
    shown = good("inspect", place / "made" / "index").out
    assert all(words in shown for words in ("Flat", "cosine", found["store"]))
